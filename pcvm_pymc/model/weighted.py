"""Normal and Student-t targets with row weights: a row of weight two counts as the row twice."""

from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous

from pcvm_pymc.model.distributions import Draws, SymbolicRV, Tensor


class WeightedRV(SymbolicRV):
    """A distribution of targets whose last parameter is the row weight."""

    once: Any  # the law of a row that counts once

    @classmethod
    def draw(cls, rng: Any, size: Any, *params: Tensor) -> Draws:
        """Draw targets of rows that count once."""
        return cls.once(*params[:-1], size=size, rng=rng, return_next_rng=True)


class WeightedNormalRV(WeightedRV):
    """The operation of `WeightedNormal`."""

    extended_signature = "[rng],[size],(),(),()->[rng],()"
    once = pt.random.normal


class WeightedStudentTRV(WeightedRV):
    """The operation of `WeightedStudentT`."""

    extended_signature = "[rng],[size],(),(),(),()->[rng],()"
    once = pt.random.t


class WeightedNormal(Continuous):
    """Normal targets with row weights.

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

    rv_type = WeightedRV  # what follows is of both operations
    rv_op = WeightedNormalRV.rv_op

    @classmethod
    def dist(cls, *params: Any, **named: Any) -> Tensor:
        """Return the unnamed random variable."""
        given = [named.pop(name) for name in ("nu", "mu", "sigma", "weight") if name in named]
        return super().dist([*params, *given], **named)

    def support_point(rv: Tensor, *inputs: Any) -> Tensor:
        """Return the mean."""
        return pt.zeros_like(rv) + inputs[-3]

    def logp(value: Tensor, rng: Any, size: Any, *params: Tensor) -> Tensor:
        """Return the weighted log density."""
        *place, sigma, weight = params
        law = pm.Normal if len(place) == 1 else pm.StudentT
        return weight * pm.logp(law.dist(*place, sigma=sigma), value)


class WeightedStudentT(WeightedNormal):
    """Student-t targets with row weights, as `WeightedNormal`.

    Parameters
    ----------
    nu, mu, sigma : tensor_like of float
        Degrees of freedom, mean and scale.
    weight : tensor_like of float
        How often each row counts.
    """

    rv_type = WeightedStudentTRV
    rv_op = WeightedStudentTRV.rv_op
