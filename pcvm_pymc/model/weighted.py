"""Targets whose rows count by weights: normal and Student-t, a weight of two being the row twice."""

from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous

from pcvm_pymc.model.distributions import Draws, SymbolicRV, Tensor


class WeightedRV(SymbolicRV):
    """Targets of rows; the last parameter is how often each counts."""

    once: Any  # the law of a row that counts once

    @classmethod
    def draw(cls, rng: Any, size: Any, *params: Tensor) -> Draws:
        """Draw targets of rows that count once."""
        return cls.once(*params[:-1], size=size, rng=rng, return_next_rng=True)


class WeightedNormalRV(WeightedRV):
    """The operation of `WeightedNormal`."""

    extended_signature = "[rng],[size],(),(),()->[rng],()"
    once = pt.random.normal


class WeightedNormal(Continuous):
    """Targets normal around a mean, in rows that count by weights.

    The log density is the normal's times the weight, the sum of those of repeated rows. Draws are targets of
    rows that count once.

    Parameters
    ----------
    mu, sigma : tensor_like of float
        Mean and standard deviation.
    weight : tensor_like of float
        How often each row counts.

    Examples
    --------
    >>> import pymc as pm
    >>> twice = WeightedNormal.dist(0.0, 1.0, weight=2.0)
    >>> once = pm.Normal.dist(0.0, 1.0)
    >>> float((pm.logp(twice, 0.5) / pm.logp(once, 0.5)).eval())
    2.0
    """

    rv_type = WeightedNormalRV
    rv_op = WeightedNormalRV.rv_op

    @classmethod
    def dist(cls, mu: Any, sigma: Any, weight: Any, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([mu, sigma, weight], **kwargs)

    def support_point(rv: Tensor, size: Any, mu: Tensor, *others: Tensor) -> Tensor:
        """Return the mean."""
        return pt.zeros_like(rv) + mu

    def logp(value: Tensor, mu: Tensor, sigma: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted log density."""
        return weight * pm.logp(pm.Normal.dist(mu, sigma), value)


class WeightedStudentTRV(WeightedRV):
    """The operation of `WeightedStudentT`."""

    extended_signature = "[rng],[size],(),(),(),()->[rng],()"
    once = pt.random.t


class WeightedStudentT(Continuous):
    """Targets Student-t around a mean, in rows that count by weights, as `WeightedNormal`.

    Parameters
    ----------
    nu, mu, sigma : tensor_like of float
        Degrees of freedom, mean and scale.
    weight : tensor_like of float
        How often each row counts.
    """

    rv_type = WeightedStudentTRV
    rv_op = WeightedStudentTRV.rv_op

    @classmethod
    def dist(cls, nu: Any, mu: Any, sigma: Any, weight: Any, **kwargs: Any) -> Tensor:
        """Return the unnamed random variable."""
        return super().dist([nu, mu, sigma, weight], **kwargs)

    def support_point(rv: Tensor, size: Any, nu: Tensor, mu: Tensor, *others: Tensor) -> Tensor:
        """Return the mean."""
        return pt.zeros_like(rv) + mu

    def logp(value: Tensor, nu: Tensor, mu: Tensor, sigma: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted log density."""
        return weight * pm.logp(pm.StudentT.dist(nu=nu, mu=mu, sigma=sigma), value)
