"""Densities that cannot be normalised: usable by EM at ``jacobian=False``, refused by what samples."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous
from pymc.logprob.transforms import LogTransform, Transform
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import WEIGHT_CUTOFF
from pcvm_pymc.model.distributions import Draws, SharedWeightRV, SymbolicRV, transformed

_ONE = np.float64(1.0)
_TWO = np.float64(2.0)
_IMPOSSIBLE = np.float64(-np.inf)

IMPROPER_MESSAGE = (
    "this model has an improper hyperprior (a rate or shape that is not positive): its posterior cannot "
    "be normalised, so that there is nothing to sample (the density is unbounded at weight zero). "
    "Use find_map_em for the papers' point estimate, or build the model with a proper hyperprior: "
    "leave hyperprior out of pcvm_model for the default, or give Hyperprior(c, d, e, f) all positive; "
    "in sparse_probit_model take prior='laplace' or 'student'"
)


def _log_scale_free(square: TensorVariable, power: TensorVariable) -> TensorVariable:
    """Return the unnormalised ``-power log |value|``, constant below the pruning cutoff, given |value|^2."""
    size = pt.maximum(pt.sqrt(square), np.float64(WEIGHT_CUTOFF))
    return -power * pt.log(size)


def _refuse(value: TensorVariable) -> TensorVariable:
    """Return `value` in a graph that raises the explanation when it is evaluated."""
    return CheckAndRaise(ValueError, IMPROPER_MESSAGE)(value, pt.constant(False))


class _EMOnlyLogTransform(LogTransform):
    """The log transform for a density that only EM may use, at ``jacobian=False``.

    Samplers ask for the Jacobian, also where starting values were given and no support point was.
    """

    def log_jac_det(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Raise when it is evaluated."""
        return _refuse(value)


class _EMOnlyIdentity(Transform):
    """The same for a value on the whole line, which is left as it is.

    Parameters
    ----------
    ndim_supp : int
        1 for the weights of a basis, which have one joint density.
    """

    name = "em"

    def __init__(self, ndim_supp: int) -> None:
        self.ndim_supp = ndim_supp

    def forward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the value."""
        return value

    def backward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the value."""
        return value

    def log_jac_det(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Raise when it is evaluated."""
        return _refuse(value.sum(axis=-1) if self.ndim_supp else value)


class _ImproperRV(SymbolicRV):
    """What cannot be normalised, hence not drawn from."""

    extended_signature = "[rng],[size],()->[rng],()"

    @classmethod
    def draw(cls, rng: Any, size: Any, *params: TensorVariable) -> Draws:
        """Raise when the draws are evaluated."""
        scale = pt.abs(_refuse(params[0])) + _ONE
        return pt.random.normal(0.0, scale, size=size, rng=rng, return_next_rng=True)


class ImproperBiasRV(_ImproperRV):
    """The operation of `ImproperBias`."""


class ImproperWeightRV(_ImproperRV):
    """The operation of `ImproperWeight`."""


class ImproperFreeWeightRV(ImproperBiasRV):
    """The operation of `ImproperFreeWeight`."""


class ImproperSharedWeightRV(SymbolicRV):
    """The operation of `ImproperSharedWeight`."""

    extended_signature = "[rng],[size],(),()->[rng],(k)"

    @classmethod
    def draw(cls, rng: Any, size: Any, *params: TensorVariable) -> Draws:
        """Raise when the draws are evaluated."""
        c, n_scores = params
        return SharedWeightRV.draw(rng, size, _refuse(c), pt.ones_like(c), n_scores)


class _Improper(Continuous):
    """A density that cannot be normalised: usable by EM, refused by what draws or starts a chain."""

    @classmethod
    def dist(cls, c: Any, **kwargs: Any) -> TensorVariable:
        """Return the unnamed random variable."""
        return super().dist([c], **kwargs)


def _refused_support_point(
    rv: TensorVariable, size: Any, c: TensorVariable, *others: TensorVariable
) -> TensorVariable:
    """Raise when it is evaluated."""
    return pt.full_like(rv, _refuse(c))


class ImproperWeight(_Improper):
    """Size of a weight under the scale-free density ``|w|^-(2c+1)`` (d = 0)."""

    rv_type = ImproperWeightRV
    rv_op = ImproperWeightRV.rv_op
    support_point = _refused_support_point

    def logp(value: TensorVariable, c: TensorVariable) -> TensorVariable:
        """Return the log density, up to a constant."""
        density = _log_scale_free(value * value, _TWO * c + _ONE)
        return pt.switch(value >= 0, density, _IMPOSSIBLE)


class ImproperBias(_Improper):
    """The bias under the scale-free density ``|b|^-(2e+1)`` (f = 0)."""

    rv_type = ImproperBiasRV
    rv_op = ImproperBiasRV.rv_op
    support_point = _refused_support_point

    def logp(value: TensorVariable, c: TensorVariable) -> TensorVariable:
        """Return the log density, up to a constant."""
        return _log_scale_free(value * value, _TWO * c + _ONE)


class ImproperFreeWeight(ImproperBias):
    """A weight of either sign under the scale-free density ``|w|^-(2c+1)`` (d = 0).

    For c = 0 it is what Jeffreys' prior of the variance leaves (Figueiredo & Jain 2001 section 3.2).
    """

    rv_type = ImproperFreeWeightRV
    rv_op = ImproperFreeWeightRV.rv_op


class ImproperSharedWeight(Continuous):
    """Weights of a basis for C scores under the scale-free density ``|w|^-(2c+C)`` (d = 0)."""

    rv_type = ImproperSharedWeightRV
    rv_op = ImproperSharedWeightRV.rv_op
    support_point = _refused_support_point

    @classmethod
    def dist(cls, c: Any, n_scores: int, **kwargs: Any) -> TensorVariable:
        """Return the unnamed random variable."""
        return super().dist([c, n_scores], **kwargs)

    def logp(value: TensorVariable, c: TensorVariable, n_scores: TensorVariable) -> TensorVariable:
        """Return the log density of each row, up to a constant."""
        return _log_scale_free(pt.sqr(value).sum(axis=-1), _TWO * c + n_scores)


transformed(ImproperWeightRV, _EMOnlyLogTransform())
transformed(ImproperFreeWeightRV, _EMOnlyIdentity(0))
transformed(ImproperSharedWeightRV, _EMOnlyIdentity(1))
