"""Distributions of the family: the stable probit likelihood and the priors with precisions integrated out.

Each is an operation of its own, so that ``isinstance(rv.owner.op, MarginalWeightRV)`` tells what a model's
variable is, whatever its name, and ``rv.owner.op.dist_params(rv.owner)`` its parameters.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous, PositiveContinuous
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
from pymc.distributions.transforms import _default_transform
from pymc.logprob.transforms import LogTransform, Transform
from pymc.pytensorf import normalize_rng_param
from pytensor.graph.basic import Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import WEIGHT_CUTOFF

type Tensor = TensorVariable
type Draws = tuple[Tensor, Tensor]

# NumPy float64 constants: pt.sqrt(2.0) would be single precision; halves and whole numbers are exact in it
_SQRT_HALF = np.sqrt(0.5)
_LOG_2 = np.log(2.0)
_LOG_2PI = np.log(2.0 * np.pi)


def ndtr(x: Tensor) -> Tensor:
    """Return Phi(x), the standard normal distribution function, which keeps its lower tail."""
    return 0.5 * pt.erfc(-_SQRT_HALF * x)


def log_ndtr(x: Tensor) -> Tensor:
    """Return log Phi(x), the log of the standard normal distribution function.

    Left of -1 through erfcx, which neither underflows nor loses digits in the tail; right of it through
    ``log1p``. Each branch sees only arguments of its own side, so that the gradient, plain automatic
    differentiation, is finite everywhere.

    Parameters
    ----------
    x : tensor_like of float, any shape

    Returns
    -------
    Tensor, shape of `x`
    """
    x = pt.as_tensor_variable(x)
    left, right = pt.minimum(x, -1.0), pt.maximum(x, -1.0)
    tail = pt.log(0.5 * pt.erfcx(-_SQRT_HALF * left)) - 0.5 * left * left
    body = pt.log1p(-0.5 * pt.erfc(_SQRT_HALF * right))
    return pt.switch(x < -1.0, tail, body)


class SymbolicRV(SymbolicRandomVariable):
    """A distribution that is sampled through other distributions: subclasses define `draw`."""

    draw: Any  # of a random generator, a size and parameters: the next generator, and the draws

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.removesuffix("RV")
        cls._print_name = (cls.name, f"\\operatorname{{{cls.name}}}")

    @classmethod
    def rv_op(cls, *params: Any, size: Any = None, rng: Any = None) -> Tensor:
        """Return the random variable of some parameters, which are taken in double precision."""
        params = tuple(
            pt.cast(
                parameter if isinstance(parameter, Variable) else np.asarray(parameter, float),
                "float64",
            )
            for parameter in params
        )
        rng, size = normalize_rng_param(rng), normalize_size_param(size)
        batch = size
        if rv_size_is_none(size):
            batch = implicit_size_from_params(*params, ndims_params=cls.ndims_params)
        inputs = [rng, size, *params]
        return cls(inputs, list(cls.draw(rng, batch, *params)))(*inputs)


class ProbitBernoulliRV(SymbolicRV):
    """The operation of `ProbitBernoulli`."""

    extended_signature = "[rng],[size],()->[rng],()"

    @classmethod
    def draw(cls, rng: Any, size: Any, latent: Tensor) -> Draws:
        """Draw labels."""
        p = ndtr(latent)  # keeps the lower tail, which invprobit rounds to zero
        return pt.random.bernoulli(p, size=size, rng=rng, return_next_rng=True)


class ProbitBernoulli(Discrete):
    """Labels 0 or 1 with P(label = 1) = Phi(latent) (Chen et al. 2009, equation 3), stable in both tails.

    Parameters
    ----------
    latent : tensor_like of float
        The latent function; any number, infinite ones included.

    Raises
    ------
    ParameterValueError
        Where it is evaluated, if `latent` is NaN.

    Examples
    --------
    >>> import pymc as pm
    >>> label = ProbitBernoulli.dist(latent=[-40.0, 0.0])
    >>> pm.logp(label, [1, 1]).eval().round(3)
    array([-8.04608e+02, -6.93000e-01])
    """

    rv_type = ProbitBernoulliRV
    rv_op = ProbitBernoulliRV.rv_op

    @classmethod
    def dist(cls, latent: Any, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([latent], **kwargs)

    def support_point(rv: Tensor, size: Any, latent: Tensor) -> Tensor:
        """Return the more probable label."""
        return pt.zeros_like(rv) + pt.cast(latent > 0, "int64")

    def logp(value: Tensor, latent: Tensor) -> Tensor:
        """Return log Phi of the latent value times the label's sign."""
        log_p = log_ndtr(pt.switch(pt.eq(value, 1), latent, -latent))
        return pt.switch(pt.eq(value, 0) | pt.eq(value, 1), log_p, -np.inf)


IMPROPER_MESSAGE = (
    "this model has an improper hyperprior, of which nothing can be sampled; needed find_map_em, or a proper "
    "one: Hyperprior(c, d, e, f) all positive; in sparse_probit_model take prior='laplace' or 'student'"
)


def is_improper(rate: Tensor) -> bool:
    """Whether the rate of a precision is the constant zero, so that the prior is improper."""
    return isinstance(rate, Constant) and not np.any(rate.data)


def _refused_if_improper(value: Tensor, rate: Tensor) -> Tensor:
    """Return `value`, which raises when evaluated if the prior is improper."""
    if not is_improper(rate):
        return value
    return CheckAndRaise(ValueError, IMPROPER_MESSAGE)(value, pt.constant(False))


def _log_density(square: Tensor, shape: Tensor, rate: Tensor, n: Any = 1.0) -> Tensor:
    """Return the log density of n normals of a shared Gamma(shape, rate) precision, given |value|^2.

    For n = 1 the Student-t of chen2009 eq. 22. A rate of zero leaves ``|value|^-(2 shape + n)``, constant
    below the pruning cutoff and known up to a constant. Other parameters that are not positive raise.
    """
    if is_improper(rate):
        return -(2.0 * shape + n) * pt.log(pt.maximum(pt.sqrt(square), np.float64(WEIGHT_CUTOFF)))
    constant = pt.gammaln(shape + 0.5 * n) - pt.gammaln(shape)
    constant = constant - 0.5 * n * (_LOG_2PI + pt.log(rate))
    density = constant - (shape + 0.5 * n) * pt.log1p(square / (2.0 * rate))
    return check_parameters(density, shape > 0, rate > 0, msg="shape > 0, rate > 0")


class MarginalBiasRV(SymbolicRV):
    """The operation of `MarginalBias`."""

    extended_signature = "[rng],[size],(),()->[rng],()"

    @classmethod
    def draw(cls, rng: Any, size: Any, shape: Tensor, rate: Tensor) -> Draws:
        """Draw from the Student-t."""
        scale = _refused_if_improper(pt.sqrt(rate / shape), rate)
        return pt.random.t(2.0 * shape, 0.0, scale, size=size, rng=rng, return_next_rng=True)


class MarginalWeightRV(MarginalBiasRV):
    """The operation of `MarginalWeight`."""

    @classmethod
    def draw(cls, rng: Any, size: Any, shape: Tensor, rate: Tensor) -> Draws:
        """Draw from the half-Student-t."""
        rng, draws = super().draw(rng, size, shape, rate)
        return rng, pt.abs(draws)


class MarginalWeight(PositiveContinuous):
    """Size of a weight, its Gamma(c, d) precision integrated out (Chen et al. 2009, equation 21).

    A half-Student-t with ``2 c`` degrees of freedom and scale ``sqrt(d / c)``; the density is
    PyMC's `HalfStudentT` with all constants in double precision.

    Parameters
    ----------
    c, d : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive. With the number d = 0 the density is
        the improper ``|w|^-(2c+1)``, for `find_map_em` alone: what draws or samples raises.

    Raises
    ------
    ParameterValueError
        Where it is evaluated, if `c` or `d` is not positive.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model():
    ...     size = MarginalWeight("size", c=1.0, d=0.5, shape=3)
    >>> float(pm.logp(MarginalWeight.dist(c=1.0, d=0.5), 1.0).eval().round(3))
    -1.04
    """

    rv_type = MarginalWeightRV
    rv_op = MarginalWeightRV.rv_op

    @classmethod
    def dist(cls, c: Any, d: Any, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([c, d], **kwargs)

    def support_point(rv: Tensor, size: Any, c: Tensor, d: Tensor) -> Tensor:
        """Return the scale."""
        return pt.full_like(rv, _refused_if_improper(pt.sqrt(d / c), d))

    def logp(value: Tensor, c: Tensor, d: Tensor) -> Tensor:
        """Return the log density; of an improper one up to a constant."""
        both = 0.0 if is_improper(d) else _LOG_2
        return pt.switch(value >= 0, both + _log_density(value * value, c, d), -np.inf)


class MarginalBias(Continuous):
    """The bias, its Gamma(e, f) precision integrated out: Student-t (Chen et al. 2009, equation 22).

    Parameters
    ----------
    e, f : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive; f = 0 as d = 0 of `MarginalWeight`.

    Raises
    ------
    ParameterValueError
        Where it is evaluated, if `e` or `f` is not positive.

    Examples
    --------
    >>> import pymc as pm
    >>> round(float(pm.logp(MarginalBias.dist(e=1.0, f=0.5), 0.0).eval()), 3)
    -0.693
    """

    rv_type = MarginalBiasRV
    rv_op = MarginalBiasRV.rv_op

    @classmethod
    def dist(cls, e: Any, f: Any, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([e, f], **kwargs)

    def support_point(rv: Tensor, size: Any, e: Tensor, f: Tensor) -> Tensor:
        """Return zero."""
        return pt.zeros_like(rv) + _refused_if_improper(pt.zeros_like(f), f)

    def logp(value: Tensor, e: Tensor, f: Tensor) -> Tensor:
        """Return the log density; of an improper one up to a constant."""
        return _log_density(value * value, e, f)


class _ProperLogTransform(LogTransform):
    """The log transform, which refuses to give the Jacobian of an improper prior.

    Samplers ask for the Jacobian, also where starting values were given and no support point was.
    """

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Return the value, which is the log derivative."""
        return _refused_if_improper(value, inputs[3])


class _AsinhTransform(Transform):
    """The transform arcsinh(weight / scale), with the prior's scale ``sqrt(d / c)``.

    Linear for the bulk; the Student-t's tails, along which chains get lost, become exponential ones.

    Parameters
    ----------
    ndim_supp : int
        1 for the weights of a basis, which have one joint density: the Jacobian of a row is summed.
    """

    name = "asinh"

    def __init__(self, ndim_supp: int) -> None:
        self.ndim_supp = ndim_supp

    @staticmethod
    def _scale(inputs: tuple[Any, ...]) -> Tensor:
        _, _, c, d, *_ = inputs  # after a random generator and a size
        return pt.ones_like(d) if is_improper(d) else pt.sqrt(d / c)

    def forward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Return the value to be sampled."""
        return pt.arcsinh(value / self._scale(inputs))

    def backward(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Return the weight."""
        return self._scale(inputs) * pt.sinh(value)

    def log_jac_det(self, value: Tensor, *inputs: Tensor) -> Tensor:
        """Return the log of scale times cosh, without overflow."""
        size = pt.abs(value)
        log_cosh = size + pt.log1p(pt.exp(-2.0 * size)) - _LOG_2
        out = _refused_if_improper(pt.log(self._scale(inputs)) + log_cosh, inputs[3])
        return out.sum(axis=-1) if self.ndim_supp else out


class FreeWeightRV(MarginalBiasRV):
    """The operation of `FreeWeight`."""


class FreeWeight(MarginalBias):
    """An unconstrained weight, its Gamma(c, d) precision integrated out: Student-t, as the bias.

    It is sampled as its inverse hyperbolic sine, in the scale of the prior.

    Parameters
    ----------
    e, f : tensor_like of float
        As of `MarginalBias`: shape and rate of the precision's Gamma distribution. With e = f = 0 it is what
        Jeffreys' prior of the variance leaves (Figueiredo & Jain 2001 section 3.2).
    """

    rv_type = FreeWeightRV
    rv_op = FreeWeightRV.rv_op


class SharedWeightRV(SymbolicRV):
    """The operation of `SharedWeight`."""

    extended_signature = "[rng],[size],(),(),()->[rng],(k)"

    @classmethod
    def draw(cls, rng: Any, size: Any, c: Tensor, d: Tensor, n_scores: Tensor) -> Draws:
        """Draw a precision for each row, and its normals."""
        rng, precision = pt.random.gamma(
            c, scale=_refused_if_improper(1.0 / d, d), size=size, rng=rng, return_next_rng=True
        )
        shape = (*(precision.shape[i] for i in range(precision.ndim)), pt.cast(n_scores, "int64"))
        rng, unit = pt.random.normal(size=shape, rng=rng, return_next_rng=True)
        return rng, unit / pt.sqrt(precision)[..., None]


class SharedWeight(Continuous):
    r"""Weights of a basis function for several scores, their shared Gamma(c, d) precision integrated out.

    .. math:: p(w) = \frac{\Gamma(c + C/2)}{\Gamma(c) (2 \pi d)^{C/2}}
       \Bigl(1 + \frac{\|w\|^2}{2 d}\Bigr)^{-(c + C/2)}

    the Student-t of C dimensions: a basis serves all scores or none. Shape (..., n_scores).

    Parameters
    ----------
    c, d : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive.
    n_scores : int
        C.

    References
    ----------
    T. Damoulas, Y. Ying, M. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and
    relevance vectors", ICMLA.
    """

    rv_type = SharedWeightRV
    rv_op = SharedWeightRV.rv_op

    @classmethod
    def dist(cls, c: Any, d: Any, n_scores: int, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([c, d, n_scores], **kwargs)

    def support_point(rv: Tensor, size: Any, c: Tensor, d: Tensor, n_scores: Tensor) -> Tensor:
        """Return zeros."""
        return pt.zeros_like(rv) + _refused_if_improper(pt.zeros_like(d), d)

    def logp(value: Tensor, c: Tensor, d: Tensor, n_scores: Tensor) -> Tensor:
        """Return the log density of each row."""
        return _log_density(pt.sqr(value).sum(axis=-1), c, d, n_scores)


_default_transform.register(MarginalWeightRV, lambda op, rv: _ProperLogTransform())
_default_transform.register(FreeWeightRV, lambda op, rv: _AsinhTransform(0))
_default_transform.register(SharedWeightRV, lambda op, rv: _AsinhTransform(1))
