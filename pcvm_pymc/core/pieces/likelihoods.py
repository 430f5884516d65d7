"""Likelihoods of a latent function: log density, slope, curvature and its bound, inverse link."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln, log_expit

from pcvm_pymc.core.pieces import probit
from pcvm_pymc.core.pieces.multinomial import class_probabilities, class_terms, fractional_terms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import times_weight, weighted_median
from pcvm_pymc.core.pieces.validation import check_real, is_unknown

_LOG_2PI = np.log(2.0 * np.pi)


class RowTerms(NamedTuple):
    """Log densities of some rows' targets, with slopes and curvatures in their latent values.

    Attributes
    ----------
    log_density : ndarray, shape (n_rows,)
    slope : ndarray, shape (n_rows, n_scores)
        Of each row's log likelihood in its latent values.
    curvature : ndarray, shape (n_rows,)
        A bound of its downward curvature in any direction, never negative.
    """

    log_density: Array
    slope: Array
    curvature: Array

    @property
    def log_likelihood(self) -> float:
        """Log density, summed over the rows."""
        return float(self.log_density.sum())

    def weighted(self, weight: Array | None) -> "RowTerms":
        """Return the terms of rows that count by weights, shape (n_rows,); themselves for None."""
        return RowTerms(*(times_weight(weight, values) for values in self))


@dataclass(frozen=True)
class Likelihood:
    """How targets depend on the latent function: the base of all likelihoods.

    A likelihood is a frozen dataclass whose fields are its nuisance parameters. Each method takes
    ``(latent, target)``: latent values of shape (n_obs,), or (n_obs, n_scores) where there are several
    scores, and targets of shape (n_obs,): labels -1. and +1., numbers of classes, or numbers.
    """

    name: ClassVar[str]
    #: what targets are: "labels" (-1. and +1.), "classes" (0 to n_scores - 1) or "numbers"
    targets: ClassVar[str] = "labels"
    #: how much the latent function's variance counts, see `moderated`
    spread: ClassVar[float] = 0.0
    #: whether the curvature is one number, `bound`, at every row and latent value
    is_quadratic: ClassVar[bool] = False
    #: number of latent values of a row
    n_scores: ClassVar[Any] = 1
    #: the largest downward curvature that occurs, in any direction of a row's latent values
    bound: ClassVar[Any]

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
        return RowTerms(self.log_density(values, target), slope, self.curvature(values, target))

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
    #: ``(values, weights) -> float``, the location of targets in rows that count by weights
    middle: ClassVar[Any] = staticmethod(np.average)

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


@dataclass(frozen=True)
class Probit(Likelihood):
    """Labels with P(+1) = Phi(latent) (Chen et al. 2009 eq. 3).

    The bound of one is that of a latent response with unit noise, which EM takes as missing.
    """

    name: ClassVar[str] = "probit"
    spread: ClassVar[float] = 1.0
    bound: ClassVar[float] = 1.0

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return log Phi(label * latent)."""
        return probit.log_ndtr(target * latent)

    def score(self, latent: Array, target: Array) -> Array:
        """Return the slope: label times phi / Phi."""
        return probit.score(latent, target)

    def value_and_score(self, latent: Array, target: Array) -> tuple[Array, Array]:
        """Return log Phi(label * latent) and its slope, phi / Phi from the former."""
        x = target * latent
        value = probit.log_ndtr(x)
        return value, target * np.exp(-0.5 * (x * x + _LOG_2PI) - value)

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative, in [0, 1]."""
        return probit.curvature(latent, target)

    def terms(self, latent: Array, target: Array, *, rough: bool = False) -> RowTerms:
        """Return the terms of rows, phi / Phi computed but once."""
        x = target * latent[:, 0]
        mills = probit.inverse_mills(x)
        curvature = np.minimum(np.maximum(mills * (mills + x), 0.0), 1.0)
        return RowTerms(probit.log_ndtr(x), (target * mills)[:, None], curvature)

    def probability(self, latent: Array) -> Array:
        """Return Phi(latent)."""
        return probit.ndtr(latent)


@dataclass(frozen=True)
class NoisyProbit(Likelihood):
    """The probit with label noise: P(+1) = flip + (1 - 2 flip) Phi(latent).

    Not log-concave; given the flips the probit's responses are missing data, whose unit noise is a bound.

    Parameters
    ----------
    flip : float
        Probability that a label is the other one, less than 1/2; NaN where it is unknown. For `pcvm_model`
        also a prior, ``pm.Beta.dist(1, 9)``.
    """

    flip: float = 0.05
    name: ClassVar[str] = "label noise"
    bound: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not is_unknown(self.flip):
            check_real("flip", self.flip, 0.0, 0.5, closed="above")

    def _kept(self, latent: Array, target: Array) -> Array:
        """Return the log of the probit's part."""
        return np.log1p(-2.0 * self.flip) + probit.log_ndtr(target * latent)

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return log (flip + (1 - 2 flip) Phi(label * latent))."""
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log(self.flip), self._kept(latent, target))

    def score(self, latent: Array, target: Array) -> Array:
        """Return the probit's slope times the share of its part: less where a flip is likely."""
        share = np.exp(self._kept(latent, target) - self.log_density(latent, target))
        return share * probit.score(latent, target)

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative, ``g (g + label * latent)``, zero where that is negative."""
        slope = target * self.score(latent, target)
        return np.clip(slope * (slope + target * latent), 0.0, 1.0)

    def probability(self, latent: Array) -> Array:
        """Return flip + (1 - 2 flip) Phi(latent)."""
        return self.flip + (1.0 - 2.0 * self.flip) * probit.ndtr(latent)


@dataclass(frozen=True)
class NormalProbability(Likelihood):
    """Labels as numbers 0 and 1, normal around Phi(latent) (Chen et al. 2009, section IV, below eq. 18).

    A density of numbers, not a probability of labels: the paper's least squares on the probability scale. Its
    variance is ``1 / delta`` of the paper. Not log-concave.

    Parameters
    ----------
    noise : float
        Standard deviation, positive; NaN where it is unknown.
    """

    noise: float = 0.5
    name: ClassVar[str] = "normal-probability"

    def __post_init__(self) -> None:
        if not is_unknown(self.noise):
            check_real("noise", self.noise)

    @property
    def bound(self) -> float:
        """The largest value of ``phi^2 + (1 - Phi) f phi``, 0.18925 at f = 0.306, over the variance."""
        return 0.1893 / self.noise**2

    @property
    def of_labels(self) -> Likelihood:
        """The probit: the density here is one of numbers."""
        return Probit()

    def _residual(self, latent: Array, target: Array) -> Array:
        """Return t - Phi(latent), without cancellation."""
        return target * probit.ndtr(-target * latent)

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return the normal log density."""
        return Normal(self.noise).log_density(np.zeros(1), self._residual(latent, target))

    def score(self, latent: Array, target: Array) -> Array:
        """Return the residuals times the density of Phi (the summand of eq. 19)."""
        return self._residual(latent, target) * probit.density(latent) / self.noise**2

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative, zero where that is negative."""
        phi = probit.density(latent)
        curvature = phi * phi + self._residual(latent, target) * latent * phi
        return np.maximum(curvature, 0.0) / self.noise**2

    probability = Probit.probability


@dataclass(frozen=True)
class Logit(Likelihood):
    """Labels with P(+1) = 1 / (1 + exp(-latent))."""

    name: ClassVar[str] = "logit"
    spread: ClassVar[float] = np.pi / 8.0
    bound: ClassVar[float] = 0.25

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return the log of the logistic function at label * latent."""
        return log_expit(target * latent)

    def score(self, latent: Array, target: Array) -> Array:
        """Return the slope."""
        return target * expit(-target * latent)

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative, p (1 - p)."""
        return expit(latent) * expit(-latent)

    def probability(self, latent: Array) -> Array:
        """Return the logistic function."""
        return expit(latent)


@dataclass(frozen=True)
class Normal(ScaleLikelihood):
    """Targets normal around the latent function.

    Parameters
    ----------
    noise : float
        Standard deviation, positive; NaN where it is to be estimated.
    n_obs : float, optional
        Number of targets, where those given are a rotation's part that is not zero, or count by weights.
    """

    n_obs: float | None = None
    name: ClassVar[str] = "normal"
    is_quadratic: ClassVar[bool] = True

    @property
    def bound(self) -> float:
        """The precision of one observation."""
        return self.noise**-2.0

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return the normal log density."""
        residual = (target - latent) / self.noise
        return -0.5 * residual * residual - (0.5 * _LOG_2PI + np.log(self.noise))

    def log_likelihood(self, latent: Array, target: Array) -> float:
        """Return the log density, summed over all rows, also those that a rotation has left out."""
        residual = (target - latent) / self.noise
        n = len(target) if self.n_obs is None else self.n_obs
        return -0.5 * float(residual @ residual) - n * (0.5 * _LOG_2PI + float(np.log(self.noise)))

    def score(self, latent: Array, target: Array) -> Array:
        """Return the residuals times the precision."""
        return (target - latent) * self.bound

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return the precision of each row."""
        return np.full(len(target), self.bound)

    def drawn_targets(self, latent: Array, rng: np.random.Generator) -> Array:
        """Return normal numbers around latent values."""
        return latent + self.noise * rng.standard_normal(latent.shape)


@dataclass(frozen=True)
class StudentT(ScaleLikelihood):
    """Targets Student-t around the latent function: outliers have little effect (Tipping & Lawrence 2005).

    Not log-concave: as a scale mixture of normals it has the expected precision of each row as its curvature,
    ``(degrees + 1) / (degrees noise^2 + r^2)`` at a residual r.

    Parameters
    ----------
    noise : float
        The scale, positive; NaN where it is to be estimated.
    degrees : float
        Degrees of freedom, positive; NaN where they are unknown.
    """

    degrees: float = 4.0
    name: ClassVar[str] = "student-t"
    middle: ClassVar[Any] = staticmethod(weighted_median)  # outliers do not move it

    def __post_init__(self) -> None:
        for name in ("noise", "degrees"):
            if not is_unknown(getattr(self, name)):
                check_real(name, getattr(self, name))

    @property
    def variance(self) -> float:
        """``noise^2 degrees / (degrees - 2)``, infinite for two degrees of freedom or fewer."""
        return self.noise**2 * self.degrees / (self.degrees - 2.0) if self.degrees > 2 else np.inf

    @property
    def bound(self) -> float:
        """The expected precision of a row without residual."""
        return (self.degrees + 1.0) / (self.degrees * self.noise**2)

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return the Student-t log density."""
        nu, half = self.degrees, 0.5 * (self.degrees + 1.0)
        constant = gammaln(half) - gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu) - np.log(self.noise)
        return constant - half * np.log1p(((target - latent) / self.noise) ** 2 / nu)

    def score(self, latent: Array, target: Array) -> Array:
        """Return the residuals times their expected precisions."""
        return (target - latent) * self.curvature(latent, target)

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return the expected precision of each row, which bounds the second derivative."""
        return (self.degrees + 1.0) / (self.degrees * self.noise**2 + (target - latent) ** 2)

    def hessian(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative, negative for outliers, shape (n_obs, 1, 1)."""
        scale, square = self.degrees * self.noise**2, (target - latent) ** 2
        return ((scale - square) / (scale + square) * self.curvature(latent, target))[:, None, None]

    def drawn_targets(self, latent: Array, rng: np.random.Generator) -> Array:
        """Return Student-t numbers around latent values."""
        return latent + self.noise * rng.standard_t(self.degrees, latent.shape)


@dataclass(frozen=True)
class MultinomialProbit(Likelihood):
    """Classes 0 to n_classes - 1: that of the largest of normal responses around the scores.

    As in Lyu et al. (2020), eqs. 4, 10 and 22-23, by another quadrature (`pieces.multinomial`).

    Parameters
    ----------
    n_classes : int
    """

    n_classes: int
    name: ClassVar[str] = "multinomial probit"
    targets: ClassVar[str] = "classes"
    bound: ClassVar[float] = 1.0  # as for the probit
    n_scores = property(lambda self: self.n_classes)

    def log_density(self, latent: Array, target: NDArray[np.int64]) -> Array:
        """Return log P(class | scores)."""
        return class_terms(latent, target).log_probability

    def score(self, latent: Array, target: NDArray[np.int64]) -> Array:
        """Return the slope: the mean of the responses less the scores, shape (n_obs, n_classes)."""
        return class_terms(latent, target).score

    def value_and_score(self, latent: Array, target: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return log P(class | scores) and its slope, from one quadrature."""
        value, slope, _ = class_terms(latent, target, accuracy=1e-3)
        return value, slope

    def curvature(self, latent: Array, target: NDArray[np.int64]) -> Array:
        """Return a bound of each row's curvature in any direction, see `terms`."""
        return self.terms(latent, target).curvature

    def terms(self, latent: Array, target: NDArray[np.int64], *, rough: bool = False) -> RowTerms:
        """Return the terms of rows; `rough` ones by a rule that leaves 1e-4, in two fifths of the time.

        Minus the second derivative is the Laplacian matrix of a graph over the classes: its largest
        eigenvalue is at most twice a diagonal entry, of which the target's class has the largest.
        """
        value, slope, curvature = class_terms(latent, target, accuracy=1e-3 if rough else 1e-10)
        return RowTerms(value, slope, np.minimum(1.0, 2.0 * curvature))

    def hessian(self, latent: Array, target: NDArray[np.int64]) -> Array:
        """Return minus the second derivatives, shape (n_obs, n_classes, n_classes)."""
        share = (np.asarray(target)[:, None] == np.arange(self.n_classes)).astype(float)
        return fractional_terms(latent, share).hessian

    def probability(self, latent: Array) -> Array:
        """Return the probability of each class, shape (..., n_classes)."""
        share = class_probabilities(latent.reshape(-1, latent.shape[-1]), accuracy=1e-8)
        return (share / share.sum(axis=1, keepdims=True)).reshape(latent.shape)

    def drawn_targets(self, latent: Array, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the classes of the largest responses, drawn around the scores."""
        return np.asarray((latent + rng.standard_normal(latent.shape)).argmax(axis=1))

    def response(self, target: NDArray[np.int64]) -> Array:
        """Return 10.5 for the target's class and 0.5 for the others, shape (n_obs, n_classes).

        The mRVM's authors take 10 + u and u, u uniform: under an improper hyperprior the end depends on them.
        """
        return 10.0 * (np.asarray(target)[:, None] == np.arange(self.n_classes)) + 0.5


_ALL = (Probit, NoisyProbit, NormalProbability, Logit, Normal, StudentT, MultinomialProbit)
#: other names
ALIASES = {"gaussian": "normal"}

#: likelihoods by their names
LIKELIHOODS: dict[str, type[Any]] = {piece.name: piece for piece in _ALL}
