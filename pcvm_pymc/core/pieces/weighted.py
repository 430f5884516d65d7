"""Rows that count by weights: what any likelihood is where the targets bring weights along."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.likelihood import Likelihood, RowTerms
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "Weighted",
    "against_rest",
    "majority_label",
    "plain_target",
    "row_weight",
    "weighted_target",
]


def weighted_target(target: NDArray[Any], weight: Array) -> Array:
    """Return targets with the rows' weights beside them, shape (n_obs, 2)."""
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


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood whose rows count by weights: a weight of two is the row twice.

    The weights come with the targets, see `weighted_target`, so that what takes some of the rows takes their
    weights too; targets of shape (n_obs,) count once.

    Parameters
    ----------
    base : Likelihood
        Of one row that counts once.
    """

    base: Likelihood

    @property
    def name(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.name

    @property
    def targets(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.targets

    @property
    def spread(self) -> float:  # type: ignore[override]
        """The base's."""
        return self.base.spread

    @property
    def n_scores(self) -> int:
        """The base's."""
        return self.base.n_scores

    @property
    def bound(self) -> float:
        """That of a row that counts once; a row's own is this times its weight."""
        return self.base.bound

    def _known(self, target: NDArray[Any]) -> tuple[NDArray[Any], Array]:
        """Return targets as the base has them, and weights."""
        plain, weight = plain_target(target), row_weight(target)
        if self.base.targets == "classes":
            plain = np.ascontiguousarray(plain, dtype=np.int64)
        return plain, np.ones(len(plain)) if weight is None else weight

    def log_density(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return the log density of each row, as often as it counts."""
        plain, weight = self._known(target)
        return weight * self.base.log_density(latent, plain)

    def score(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return the slope of each row, as often as it counts."""
        plain, weight = self._known(target)
        slope = self.base.score(latent, plain)
        return weight.reshape(-1, *[1] * (slope.ndim - 1)) * slope

    def curvature(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return the curvature of each row, as often as it counts."""
        plain, weight = self._known(target)
        return weight * self.base.curvature(latent, plain)

    def hessian(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return minus the second derivatives of each row, as often as it counts."""
        plain, weight = self._known(target)
        return weight[:, None, None] * self.base.hessian(latent, plain)

    def terms(self, latent: Array, target: NDArray[Any]) -> RowTerms:
        """Return the terms of rows, each as often as it counts."""
        plain, weight = self._known(target)
        return self._weighed(self.base.terms(latent, plain), latent, plain, weight)

    def _weighed(
        self, terms: RowTerms, latent: Array, plain: NDArray[Any], weight: Array
    ) -> RowTerms:
        own = latent[:, 0] if self.n_scores == 1 else latent
        return RowTerms(
            float(weight @ self.base.log_density(own, plain)),
            weight[:, None] * terms.slope,
            weight * terms.curvature,
        )

    def rough_terms(self, latent: Array, target: NDArray[Any]) -> RowTerms:
        """Return the terms of rows to three digits, each as often as it counts."""
        plain, weight = self._known(target)
        return self._weighed(self.base.rough_terms(latent, plain), latent, plain, weight)

    def probability(self, latent: Array) -> Array:
        """Return the base's."""
        return self.base.probability(latent)

    def response(self, target: NDArray[Any]) -> Array | None:
        """Return the base's, of a row that counts once."""
        return self.base.response(self._known(target)[0])
