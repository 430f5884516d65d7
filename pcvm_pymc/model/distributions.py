"""Distributions of the PCVM: the stable probit likelihood and the integrated weight priors."""

from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import log as log_transform
from pymc.logprob.transforms import LogTransform, Transform
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import WEIGHT_CUTOFF
from pcvm_pymc.model.math import log_ndtr

__all__ = ["IMPROPER_MESSAGE", "FreeWeight", "MarginalBias", "MarginalWeight", "ProbitBernoulli"]

_HALF = np.float64(0.5)
_LOG_2 = np.log(2.0)
_LOG_2PI = np.log(2.0 * np.pi)

IMPROPER_MESSAGE = (
    "this model has an improper hyperprior (a rate or shape that is not positive): its posterior cannot "
    "be normalised, so that there is nothing to sample (the density is unbounded at weight zero). "
    "Use find_map_em for the papers' point estimate, or build the model with a proper hyperprior: "
    "leave hyperprior out of pcvm_model for the default, or give Hyperprior(c, d, e, f) all positive; "
    "in sparse_probit_model take prior='laplace' or 'student'"
)


class _Named:
    """A `pymc.CustomDist` under a class's own name: subclasses say how to draw and its density."""

    options: ClassVar[dict[str, Any]] = {}

    def __new__(cls, name: str, *parameters: Any, **kwargs: Any) -> TensorVariable:
        """Add the variable `name` to the model on the context stack."""
        return pm.CustomDist(name, *parameters, **cls._keywords(), **kwargs)

    @classmethod
    def dist(cls, *parameters: Any, **kwargs: Any) -> TensorVariable:
        """Return the unnamed random variable."""
        return pm.CustomDist.dist(*parameters, **cls._keywords(named=False), **kwargs)

    @classmethod
    def _keywords(cls, *, named: bool = True) -> dict[str, Any]:
        found = {
            option: getattr(cls, method)
            for option, method in (
                ("dist", "_draw"),
                ("logp", "_logp"),
                ("support_point", "_support_point"),
            )
            if hasattr(cls, method)
        }
        return {**found, "class_name": cls.__name__, **(cls.options if named else {})}


class ProbitBernoulli(_Named):
    """Labels 0 or 1 with P(label = 1) = Phi(latent) (Chen et al. 2009 eq. 3), stable in both tails.

    Parameters
    ----------
    latent : tensor_like of float
        The latent function.
    """

    options: ClassVar[dict[str, Any]] = {"dtype": "int64"}

    @staticmethod
    def _draw(latent: TensorVariable, size: Any) -> TensorVariable:
        # P(1) = erfc(-x / sqrt 2) / 2 keeps the lower tail, which invprobit rounds to zero
        return pm.Bernoulli.dist(p=_HALF * pt.erfc(-np.sqrt(0.5) * latent), size=size)

    @staticmethod
    def _logp(value: TensorVariable, latent: TensorVariable) -> TensorVariable:
        label = pt.switch(pt.eq(value, 1), np.float64(1.0), np.float64(-1.0))
        known = pt.eq(value, 0) | pt.eq(value, 1)
        return pt.switch(known, log_ndtr(label * latent), np.float64(-np.inf))


def _log_student(
    value: TensorVariable, shape: TensorVariable, rate: TensorVariable
) -> TensorVariable:
    """Return the log density of a normal whose precision is Gamma(shape, rate) (chen2009 eq. 22)."""
    constant = pt.gammaln(shape + _HALF) - pt.gammaln(shape) - _HALF * (_LOG_2PI + pt.log(rate))
    return constant - (shape + _HALF) * pt.log1p(value * value / (np.float64(2.0) * rate))


def _student(shape: TensorVariable, rate: TensorVariable, size: Any) -> TensorVariable:
    return pm.StudentT.dist(nu=np.float64(2.0) * shape, sigma=pt.sqrt(rate / shape), size=size)


class MarginalWeight(_Named):
    """Size of a weight, its Gamma(c, d) precision integrated out (Chen et al. 2009 eq. 21).

    A half-Student-t with ``2 c`` degrees of freedom and scale ``sqrt(d / c)``; the density is
    PyMC's `HalfStudentT` with all constants in double precision.

    Parameters
    ----------
    c, d : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive.
    """

    options: ClassVar[dict[str, Any]] = {"transform": log_transform}

    @staticmethod
    def _draw(c: TensorVariable, d: TensorVariable, size: Any) -> TensorVariable:
        return pt.abs(_student(c, d, size))

    @staticmethod
    def _support_point(
        rv: TensorVariable, size: Any, c: TensorVariable, d: TensorVariable
    ) -> TensorVariable:
        return pt.full_like(rv, pt.sqrt(d / c))

    @staticmethod
    def _logp(value: TensorVariable, c: TensorVariable, d: TensorVariable) -> TensorVariable:
        return pt.switch(value >= 0, _LOG_2 + _log_student(value, c, d), np.float64(-np.inf))


class MarginalBias(_Named):
    """The bias, its Gamma(e, f) precision integrated out: Student-t (Chen et al. 2009 eq. 22).

    Parameters
    ----------
    e, f : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive.
    """

    @staticmethod
    def _draw(e: TensorVariable, f: TensorVariable, size: Any) -> TensorVariable:
        return _student(e, f, size)

    @staticmethod
    def _support_point(
        rv: TensorVariable, size: Any, e: TensorVariable, f: TensorVariable
    ) -> TensorVariable:
        return pt.zeros_like(rv)

    @staticmethod
    def _logp(value: TensorVariable, e: TensorVariable, f: TensorVariable) -> TensorVariable:
        return _log_student(value, e, f)


class _AsinhTransform(Transform):
    """The inverse hyperbolic sine of a weight in its prior's scale ``sqrt(d / c)``.

    Linear for the bulk; the Student-t's tails, along which chains get lost, become exponential ones.
    """

    name = "asinh"
    ndim_supp = 0

    @staticmethod
    def _scale(inputs: tuple[Any, ...]) -> TensorVariable:
        # beside the parameters c and d there are a shape and a random generator
        floats = [
            each for each in inputs if str(getattr(each.type, "dtype", "")).startswith("float")
        ]
        c, d = floats
        return pt.sqrt(d / c)

    def forward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the value to be sampled."""
        return pt.arcsinh(value / self._scale(inputs))

    def backward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the weight."""
        return self._scale(inputs) * pt.sinh(value)

    def log_jac_det(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the log of scale times cosh, without overflow."""
        size = pt.abs(value)
        log_cosh = size + pt.log1p(pt.exp(np.float64(-2.0) * size)) - _LOG_2
        return pt.log(self._scale(inputs)) + log_cosh


class FreeWeight(MarginalBias):
    """A weight of either sign, its Gamma(c, d) precision integrated out: Student-t, as the bias.

    It is sampled as its inverse hyperbolic sine, in the scale of the prior.

    Parameters
    ----------
    c, d : tensor_like of float
        Shape and rate of the precision's Gamma distribution, positive.
    """

    options: ClassVar[dict[str, Any]] = {"transform": _AsinhTransform()}


def _log_scale_free(value: TensorVariable, shape: TensorVariable) -> TensorVariable:
    """Return the unnormalised ``-(2 shape + 1) log |value|``, constant below the pruning cutoff."""
    size = pt.maximum(pt.abs(value), np.float64(WEIGHT_CUTOFF))
    return -(np.float64(2.0) * shape + np.float64(1.0)) * pt.log(size)


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
    """The same for a value on the whole line, which is left as it is."""

    name = "em"

    def forward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the value."""
        return value

    def backward(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Return the value."""
        return value

    def log_jac_det(self, value: TensorVariable, *inputs: TensorVariable) -> TensorVariable:
        """Raise when it is evaluated."""
        return _refuse(value)


class _Improper(_Named):
    """A density that cannot be normalised: usable by the EM, refused by what draws or starts a chain."""

    @staticmethod
    def _draw(shape: TensorVariable, size: Any) -> TensorVariable:
        return pm.Normal.dist(_refuse(shape), np.float64(1.0), size=size)

    @staticmethod
    def _support_point(rv: TensorVariable, size: Any, shape: TensorVariable) -> TensorVariable:
        return pt.full_like(rv, _refuse(shape))


class ImproperWeight(_Improper):
    """Size of a weight under the scale-free density ``|w|^-(2c+1)`` (d = 0)."""

    options: ClassVar[dict[str, Any]] = {"transform": _EMOnlyLogTransform()}

    @staticmethod
    def _draw(shape: TensorVariable, size: Any) -> TensorVariable:
        return pt.abs(_Improper._draw(shape, size))

    @staticmethod
    def _logp(value: TensorVariable, shape: TensorVariable) -> TensorVariable:
        return pt.switch(value >= 0, _log_scale_free(value, shape), np.float64(-np.inf))


class ImproperBias(_Improper):
    """The bias under the scale-free density ``|b|^-(2e+1)`` (f = 0)."""

    @staticmethod
    def _logp(value: TensorVariable, shape: TensorVariable) -> TensorVariable:
        return _log_scale_free(value, shape)


class ImproperFreeWeight(ImproperBias):
    """A weight of either sign under the scale-free density ``|w|^-(2c+1)`` (d = 0).

    For c = 0 it is what Jeffreys' prior of the variance leaves (Figueiredo & Jain 2001 section 3.2).
    """

    options: ClassVar[dict[str, Any]] = {"transform": _EMOnlyIdentity()}
