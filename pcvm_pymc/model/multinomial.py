"""The multinomial probit in PyTensor and PyMC: log probability with gradient, random draws."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.multinomial import multinomial_terms, rule_of
from pcvm_pymc.model.distributions import Draws, SymbolicRV

_SPACING, _DROP = rule_of(1e-10)


class _ClassTerms(Op):
    """Log probabilities of given classes and their scores, shape (rows,) and (rows, classes).

    One pass yields both, so that PyTensor computes value and gradient (Lyu et al. 2020 eq. 22: the mean
    of the responses less the latent scores) at once. Second derivatives are not implemented.
    """

    __props__: ClassVar[tuple[str, ...]] = ()

    def make_node(self, latent: Any, label: Any) -> Apply:
        """Return the node of a matrix of scores and a vector of classes."""
        inputs = [pt.cast(latent, "float64"), pt.cast(label, "int64")]
        return Apply(self, inputs, [pt.dvector(), pt.dmatrix()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list[Any]]) -> None:
        """Compute both outputs."""
        latent, label = inputs
        if len(label) != len(latent):
            raise ValueError(f"label has {len(label)} values for {len(latent)} rows of latent")
        output_storage[0][0], output_storage[1][0] = multinomial_terms(
            np.ascontiguousarray(latent), np.ascontiguousarray(label), _SPACING, _DROP
        )

    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        """Return the outputs' shapes."""
        return [(shapes[0][0],), shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Both outputs depend on the scores; classes have no derivative."""
        return [[True, True], [False, False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient in the scores: d log p / d y = zbar - y."""
        of_value, of_score = cotangents
        slope = of_value[:, None] * outputs[1]
        if not isinstance(of_score.type, DisconnectedType):
            slope = grad_not_implemented(self, 0, inputs[0], "second derivatives")
        return [slope, disconnected_type()]


@register_funcify_default_op_cache_key(_ClassTerms)
def _compiled_class_terms(op: _ClassTerms, node: Apply, **kwargs: Any) -> Any:
    @numba_njit
    def class_terms(latent, label):  # type: ignore[no-untyped-def]
        if len(label) != len(latent):
            raise ValueError("label and latent of the multinomial probit differ in their rows")
        return multinomial_terms(
            np.ascontiguousarray(latent), np.ascontiguousarray(label), _SPACING, _DROP
        )

    return class_terms


_class_terms = _ClassTerms()


class MultinomialProbitRV(SymbolicRV):
    """The operation of `MultinomialProbit`."""

    extended_signature = "[rng],[size],(c)->[rng],()"

    @classmethod
    def draw(cls, rng: Any, size: Any, latent: TensorVariable) -> Draws:
        """Draw classes as the largest of normal responses."""
        shape = (*(size[i] for i in range(size.type.shape[0])), latent.shape[-1])
        rng, noise = pt.random.normal(size=shape, rng=rng, return_next_rng=True)
        return rng, pt.argmax(latent + noise, axis=-1)


class MultinomialProbit(Discrete):
    """Classes 0 to C - 1: the index of the largest of C responses, each normal around its latent score.

    P(label = c) is the probability that ``latent[c] + noise[c]`` is the largest, with independent
    standard normal noise (Lyu et al. 2020 eqs. 4 and 10). A common shift of all scores changes nothing.

    Parameters
    ----------
    latent : tensor_like of float, shape (..., n_classes)
        Scores of the classes.

    Raises
    ------
    ParameterValueError
        Where it is evaluated, if a score is NaN.

    Notes
    -----
    The gradient of the log probability is the mean of the responses given the class, less the scores.
    Value and gradient come from one pass of the trapezoid rule of `core.pieces.multinomial`, in compiled
    code under PyTensor's numba backend too; there is none for JAX. A class outside 0 to C - 1 has log
    probability ``-inf``, as have scores of an own class that others exceed by more than 1e6.

    References
    ----------
    S. Lyu et al. (2020), "Multiclass probabilistic classification vector machine", eqs. 4, 10 and
    22-23, with another quadrature.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> label = MultinomialProbit.dist(np.zeros((5, 3)))
    >>> draws = pm.draw(label, random_seed=0)
    >>> draws.shape
    (5,)
    """

    rv_type = MultinomialProbitRV
    rv_op = MultinomialProbitRV.rv_op

    @classmethod
    def dist(cls, latent: Any, **kwargs: Any) -> TensorVariable:
        """Return the unnamed random variable; raise where there are no classes."""
        latent = pt.as_tensor(latent)
        if latent.type.shape[-1:] in ((), (0,), (1,)):
            fault = f"latent has shape {latent.type.shape}"
            raise ValueError(f"{fault}; needed (..., n_classes), two classes or more")
        return super().dist([latent], **kwargs)

    def support_point(rv: TensorVariable, size: Any, latent: TensorVariable) -> TensorVariable:
        """Return the class of the largest score."""
        return pt.zeros_like(rv) + pt.argmax(latent, axis=-1)

    def logp(value: TensorVariable, latent: TensorVariable) -> TensorVariable:
        """Return the log probability of each class."""
        scores, value = pt.as_tensor(latent), pt.as_tensor(value)
        if not scores.ndim - 1 == value.ndim == 1:  # else, as usual, there is nothing to stretch
            value = value + pt.zeros_like(scores[..., 0], dtype=value.dtype)
            scores = scores + pt.zeros(value.shape)[..., None]
        label = pt.switch(pt.eq(value, pt.floor(value)), value, -1)
        log_probability, _ = _class_terms(scores.reshape((-1, scores.shape[-1])), label.ravel())
        return log_probability.reshape(value.shape, ndim=value.ndim)
