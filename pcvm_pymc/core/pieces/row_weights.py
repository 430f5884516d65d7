"""Rows that count by weights: a second column of the targets, and the likelihood with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.likelihoods import Likelihood, RowTerms
from pcvm_pymc.core.pieces.probit import Array


def weighted_target(target: NDArray[Any], weight: Array) -> Array:
    """Return targets and the rows' weights as two columns, shape (n_obs, 2)."""
    return np.column_stack([np.asarray(target, dtype=float), weight])


def plain_target(target: NDArray[Any]) -> NDArray[Any]:
    """Return targets without weights, shape (n_obs,)."""
    return np.ascontiguousarray(target[:, 0]) if np.ndim(target) == 2 else np.asarray(target)


def row_weight(target: NDArray[Any]) -> Array | None:
    """Return the rows' weights; None where each counts once."""
    return np.ascontiguousarray(target[:, 1]) if np.ndim(target) == 2 else None


def majority_label(label: NDArray[Any], weight: Array | None) -> float:
    """Return -1. or +1., the label that counts for more; that of numbers of classes is 1."""
    return 1.0 if (label.sum() if weight is None else weight @ label) >= 0 else -1.0


def against_rest(target: NDArray[Any], number: int) -> Array:
    """Return labels -1. and +1. of a class against the rest; weights stay."""
    label, weight = np.where(plain_target(target) == number, 1.0, -1.0), row_weight(target)
    return label if weight is None else weighted_target(label, weight)


def _times_weight(name: str) -> Any:
    """Return a method that has the result of the base's method for each row times the row's weight."""

    def method(self: "Weighted", latent: Array, target: NDArray[Any]) -> Array:
        plain, weight = self._split(target)
        each = getattr(self.base, name)(latent, plain)
        return weight.reshape(-1, *[1] * (each.ndim - 1)) * each

    return method


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood with row weights: a row of weight two counts as the row twice.

    The weights are the second column of the targets (`weighted_target`), so that a selection of rows selects
    their weights too; rows of targets of shape (n_obs,) count once.

    Parameters
    ----------
    base : Likelihood
        Of one row that counts once.
    """

    base: Likelihood
    name = property(lambda self: self.base.name)
    targets = property(lambda self: self.base.targets)
    spread = property(lambda self: self.base.spread)
    n_scores = property(lambda self: self.base.n_scores)
    #: that of a row that counts once; that of another is this times its weight
    bound = property(lambda self: self.base.bound)

    def _split(self, target: NDArray[Any]) -> tuple[NDArray[Any], Array]:
        """Return targets as the base takes them, and weights."""
        plain, weight = plain_target(target), row_weight(target)
        if self.base.targets == "classes":
            plain = np.ascontiguousarray(plain, dtype=np.int64)
        return plain, np.ones(len(plain)) if weight is None else weight

    log_density = _times_weight("log_density")
    score = _times_weight("score")
    curvature = _times_weight("curvature")
    hessian = _times_weight("hessian")

    def value_and_score(self, latent: Array, target: NDArray[Any]) -> tuple[Array, Array]:
        """Return weighted log density and slope of each row."""
        plain, weight = self._split(target)
        value, slope = self.base.value_and_score(latent, plain)
        return weight * value, weight.reshape(-1, *[1] * (slope.ndim - 1)) * slope

    def terms(self, latent: Array, target: NDArray[Any], *, rough: bool = False) -> RowTerms:
        """Return the weighted terms of rows, see `Likelihood.terms`."""
        plain, weight = self._split(target)
        terms = self.base.terms(latent, plain, rough=rough)
        values = latent[:, 0] if self.n_scores == 1 else latent
        log_likelihood = float(weight @ self.base.log_density(values, plain))
        return RowTerms(log_likelihood, weight[:, None] * terms.slope, weight * terms.curvature)

    def probability(self, latent: Array) -> Array:
        """Return the base's."""
        return self.base.probability(latent)

    def response(self, target: NDArray[Any]) -> Array | None:
        """Return the base's, of a row that counts once."""
        return self.base.response(self._split(target)[0])
