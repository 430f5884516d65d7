"""The base of all likelihoods, class probabilities of sum one, and rows that count by weights."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pcvm_pymc.core.pieces.probit import Array


class RowTerms(NamedTuple):
    """Log likelihood of some rows, with slope and curvature in their latent values.

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
    """How targets depend on the latent function: the base of all likelihoods.

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

    def value_and_score(self, latent: Array, target: NDArray[Any]) -> tuple[Array, Array]:
        """Return log density and slope together, for a sampler; to about 1e-4."""
        return self.log_density(latent, target), self.score(latent, target)

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

    @property
    def of_labels(self) -> "Likelihood":
        """The likelihood whose density is the probability of a label; by default this one."""
        return self

    @classmethod
    def check_targets(cls, target: NDArray[Any]) -> None:
        """Raise ValueError where targets are none of this likelihood's; by default all are."""

    def with_noise(self, noise: float) -> Self:
        """Return the same likelihood of another scale; itself where it has none."""
        return self

    def target_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return mean and variance of new numbers, given those of their latent values."""
        raise TypeError(f"targets under {self.name!r} are classes; they have no mean")

    def log_likelihood(self, latent: Array, target: NDArray[Any]) -> float:
        """Return the log density, summed over the rows."""
        return float(self.log_density(latent, target).sum())

    def moderated(self, mean: Array, variance: Array) -> Array:
        """Return the latent value whose probability is the average one under a normal.

        Exact for the probit, MacKay's (1992) approximation for the logit. Its sign is that of the mean.
        """
        return mean / np.sqrt(1.0 + self.spread * variance)

    def terms(self, latent: Array, target: NDArray[Any], *, rough: bool = False) -> RowTerms:
        """Return the terms of rows at latent values of shape (n_rows, n_scores).

        `rough` terms have three digits where that is cheaper: for steps that only point the way.
        """
        values, slope = latent[:, 0], self.score(latent[:, 0], target)[:, None]
        return RowTerms(self.log_likelihood(values, target), slope, self.curvature(values, target))

    def response(self, target: NDArray[Any]) -> Array | None:
        """Return latent responses to begin with, shape (n_obs, n_scores); None: those of the weights."""
        return None


@dataclass(frozen=True)
class ScaleLikelihood(Likelihood):
    """Numbers around the latent function with a noise scale: the base of normal and Student-t.

    Parameters
    ----------
    noise : float
        The scale, positive; NaN where it is to be estimated.
    """

    noise: float = np.nan
    targets: ClassVar[str] = "numbers"
    #: about where targets lie
    middle: ClassVar[Any] = staticmethod(np.mean)

    def with_noise(self, noise: float) -> Self:
        """Return the same likelihood of another scale."""
        return replace(self, noise=noise)

    @property
    def variance(self) -> float:
        """Variance of a target around the latent function."""
        return self.noise**2

    def target_moments(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return the latent mean, and the latent variance plus that of the noise."""
        return mean, variance + self.variance


# --- class probabilities -------------------------------------------------------------------------


def normalised(probability: Array) -> Array:
    """Return probabilities of classes, along the last axis, of sum one: none is above one.

    An average's weights sum to one but for rounding, as does what a quadrature gives.
    """
    return probability / probability.sum(axis=-1, keepdims=True)


def log_normalised(log_probability: Array) -> Array:
    """Return logarithms of class probabilities of sum one: none is above zero, and tails are exact.

    The likeliest class has minus the logarithm of one plus what the others have of it. Where all are beyond
    the largest number, none is likelier than another.
    """
    log_probability = np.maximum(log_probability, np.finfo(float).min)
    away = log_probability - log_probability.max(axis=-1, keepdims=True)
    others = np.sort(np.exp(away), axis=-1)[..., :-1]
    return away - np.log1p(others.sum(axis=-1, keepdims=True))


def log_average(log_density: Array, share: Any = None) -> Array:
    """Return logarithms of averages over the first axis; rounding lifts none above the largest part.

    Shares go in by their logarithms: as factors of a sum, a tiny one of the largest part leaves no digits.
    """
    share = 1.0 / len(log_density) if share is None else share
    with np.errstate(divide="ignore"):  # a share of zero
        parts = log_density + np.log(share)
    return np.minimum(logsumexp(parts, axis=0), log_density.max(axis=0))


# --- rows that count by weights ------------------------------------------------------------------


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
    #: that of a row that counts once; a row's own is this times its weight
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
