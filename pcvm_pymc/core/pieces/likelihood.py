"""What every likelihood of a latent function knows; the pieces themselves are in `likelihoods`."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array


class RowTerms(NamedTuple):
    """What a likelihood says of some rows at their latent values.

    Attributes
    ----------
    log_likelihood : float
        Summed over the rows.
    slope : ndarray, shape (n_rows, n_scores)
        Of each row's log likelihood in its latent values.
    curvature : ndarray, shape (n_rows,)
        A bound of its downward curvature in any direction, never negative.
    """

    log_likelihood: float
    slope: Array
    curvature: Array


@dataclass(frozen=True)
class Likelihood:
    """How targets depend on the latent function: what every likelihood knows.

    A likelihood is a frozen dataclass whose fields are its nuisance parameters. Each method takes
    ``(latent, target)``: latent values of shape (n_obs,), or (n_obs, n_scores) where there are
    several scores, and targets of shape (n_obs,): labels -1. and +1., numbers of classes, or
    numbers.
    """

    name: ClassVar[str]
    #: what targets are: "labels" (-1. and +1.), "classes" (0 to n_scores - 1) or "numbers"
    targets: ClassVar[str] = "labels"
    #: how much the latent function's variance counts, see `moderated`
    spread: ClassVar[float] = 0.0
    #: whether the curvature is one number, `bound`, at every row and latent value
    is_quadratic: ClassVar[bool] = False

    @property
    def n_scores(self) -> int:
        """Number of latent values of a row."""
        return 1

    @property
    def bound(self) -> float:
        """The largest downward curvature that occurs, in any direction of a row's latent values."""
        raise NotImplementedError

    def log_density(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return log p(target | latent) of each row, shape (n_obs,)."""
        raise NotImplementedError

    def score(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return its slope in the latent values, shape of `latent`."""
        raise NotImplementedError

    def curvature(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return a row's downward curvature, shape (n_obs,), from zero to `bound`.

        Minus the second derivative where that is not negative; where the density is not log-concave, or
        a row has several latent values, a bound of it.
        """
        raise NotImplementedError

    def hessian(self, latent: Array, target: NDArray[Any]) -> Array:
        """Return minus the second derivative in all scores, shape (n_obs, n_scores, n_scores)."""
        return self.curvature(latent, target)[:, None, None]

    def probability(self, latent: Array) -> Array:
        """Return the probability of +1, shape of `latent`; of each class where there are several."""
        raise TypeError(f"targets under {self.name!r} are numbers; they have no probabilities")

    def log_likelihood(self, latent: Array, target: NDArray[Any]) -> float:
        """Return the log density, summed over the rows."""
        return float(self.log_density(latent, target).sum())

    def moderated(self, mean: Array, variance: Array) -> Array:
        """Return the latent value whose probability is the average one under a normal.

        Exact for the probit, MacKay's (1992) approximation for the logit. Its sign is that of the mean.
        """
        return mean / np.sqrt(1.0 + self.spread * variance)

    def terms(self, latent: Array, target: NDArray[Any]) -> RowTerms:
        """Return the terms of rows at latent values of shape (n_rows, n_scores)."""
        own = latent[:, 0]
        return RowTerms(
            self.log_likelihood(own, target),
            self.score(own, target)[:, None],
            self.curvature(own, target),
        )

    def rough_terms(self, latent: Array, target: NDArray[Any]) -> RowTerms:
        """Return the terms to three digits, where that is cheaper: for steps that only point the way."""
        return self.terms(latent, target)

    def response(self, target: NDArray[Any]) -> Array | None:
        """Return latent responses to begin with, shape (n_obs, n_scores); None: those of the weights."""
        return None


@dataclass(frozen=True)
class ScaleLikelihood(Likelihood):
    """Numbers scattered around the latent function: what those with a scale of the scatter share.

    Parameters
    ----------
    noise : float
        The scale, positive; NaN where it is to be estimated.
    """

    noise: float = np.nan
    targets: ClassVar[str] = "numbers"

    def with_noise(self, noise: float) -> Self:
        """Return the same likelihood of another scale."""
        return replace(self, noise=noise)

    @property
    def variance(self) -> float:
        """Variance of a target around the latent function."""
        return self.noise**2

    def squared_residuals(self, latent: Array, target: Array) -> float:
        """Return the sum of squared residuals, each counting as its curvature has it in ``noise^-2``.

        Where the noise is best, this is noise^2 times the number of rows.
        """
        residual = target - latent
        share = self.curvature(latent, target) * self.noise**2
        return float(share @ (residual * residual))


# --- rows that count by weights ------------------------------------------------------------------


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
