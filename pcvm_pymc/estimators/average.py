"""Posterior modes and averages of them: latent function, class probabilities, and intervals of these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.pieces.centres import Index
from pcvm_pymc.core.pieces.kernels import KernelPiece, as_kernel
from pcvm_pymc.core.pieces.likelihood import Weighted, log_normalised, normalised
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import QuadraticModel
from pcvm_pymc.estimators.problems import Problems, TrainingData
from pcvm_pymc.estimators.search import GridPoint, HyperparameterSearch, held_out, start_near

# --- class probabilities -----------------------------------------------------------------------

_DRAWS = 1000
_HALVINGS = 60
_ROUNDING = 1e-14  # of the largest eigenvalue: below, an eigenvalue is zero


def class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return probabilities, shape (n_new, n_classes), at latent values.

    Parameters
    ----------
    likelihood : Likelihood
        Of several scores; or of one, then with one latent value for two classes, and with one for each of
        each of several classes against the rest.
    latent : ndarray, shape (n_new,) or (n_new, n_classes)
    """
    if latent.ndim == 1:  # the likelihoods of labels are mirror images
        return np.column_stack([likelihood.probability(-latent), likelihood.probability(latent)])
    if likelihood.n_scores > 1:
        return likelihood.probability(latent)
    return np.exp(log_class_probability(likelihood, latent))


def log_class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return logarithms of class probabilities, exact in the tails; see `class_probability`."""
    ones, likelihood = np.ones(len(latent)), likelihood.of_labels
    if latent.ndim == 1:
        return np.column_stack([likelihood.log_density(latent, sign * ones) for sign in (-1, 1)])
    if likelihood.n_scores > 1:
        numbers = range(latent.shape[1])
        each = [likelihood.log_density(latent, np.full(len(latent), c)) for c in numbers]
        return log_normalised(np.column_stack(each))
    # all machines may say no
    return log_normalised(np.column_stack([likelihood.log_density(f, ones) for f in latent.T]))


class LatentNormal(NamedTuple):
    """A part of the latent function's posterior at new rows.

    Attributes
    ----------
    share : float
        Its weight in the mixture.
    mean : ndarray, shape (n_new, n_scores)
    covariance : ndarray, shape (n_new, n_scores, n_scores)
    """

    share: float
    mean: Array
    covariance: Array


#: mean and covariance of the scores at new rows, shapes (n_new, n_scores) and (n_new, n_scores, n_scores)
type Moments = Callable[[Array], tuple[Array, Array]]


def probability_interval(
    likelihood: Likelihood, parts: list[LatentNormal], probability: float
) -> Array:
    """Return equal-tailed intervals of class probabilities, shape (n_new, n_classes, 2).

    Of one score exact. Of several by draws, the same standard normals at all rows and in all calls.

    Parameters
    ----------
    likelihood : Likelihood
    parts : list of LatentNormal
        Of a mixture.
    probability : float
        Of the interval.
    """
    tails = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    n_scores = parts[0].mean.shape[1]
    if n_scores == 1:  # one class' probability rises with the latent function, the other's falls
        both = [class_probability(likelihood, _quantile(parts, tail)) for tail in tails]
        return np.sort(np.stack(both, axis=-1), axis=-1)
    ends = np.round(_DRAWS * np.cumsum([0.0, *(each.share for each in parts)])).astype(int)
    normals = np.split(np.random.default_rng(0).standard_normal((ends[-1], n_scores)), ends[1:-1])
    draws = np.concatenate([_draws(each, z) for each, z in zip(parts, normals, strict=True)])
    flat = class_probability(likelihood, draws.reshape(-1, n_scores))
    found = np.quantile(flat.reshape(draws.shape), tails, axis=0)
    return np.moveaxis(found, 0, -1)


def _draws(part: LatentNormal, normal: Array) -> Array:
    """Return latent values, shape (n_draws, n_new, n_scores).

    By the symmetric root of the covariance: signs and order of eigenvectors depend on rounding, and so
    on which rows are predicted together.
    """
    values, vectors = np.linalg.eigh(part.covariance)
    values = np.where(values > _ROUNDING * values[:, -1:], values, 0.0)
    root = (vectors * np.sqrt(values)[:, None, :]) @ vectors.swapaxes(1, 2)
    return part.mean + np.einsum("ncd,sd->snc", root, normal)


def _quantile(parts: list[LatentNormal], tail: float) -> Array:
    """Return quantiles of mixtures of normals, shape (n_new,), by bisection."""
    shares = np.array([each.share for each in parts])
    mean = np.column_stack([each.mean[:, 0] for each in parts])
    sd = np.sqrt(np.column_stack([each.covariance[:, 0, 0] for each in parts]))
    ends = mean + ndtri(tail) * sd
    low, high = ends.min(axis=1), ends.max(axis=1)
    for _ in range(_HALVINGS if len(parts) > 1 else 0):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            below = ndtr((middle[:, None] - mean) / sd) @ shares < tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


# --- fitted modes ------------------------------------------------------------------------------


class Predictor:
    """The fitted part of a classifier: a latent function and the probabilities that it gives."""

    likelihood: Likelihood

    def latent(self, X: Array, n_jobs: int = 1) -> Array:
        """Return the latent function, shape (n_new,) or (n_new, n_scores)."""
        raise NotImplementedError

    def probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return class probabilities, shape (n_new, n_classes)."""
        return class_probability(self.likelihood, self.latent(X, n_jobs))

    def log_probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return logarithms of class probabilities, exact in the tails."""
        return log_class_probability(self.likelihood, self.latent(X, n_jobs))

    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the parts of the latent function's posterior, a mixture of normals, with their weights.

        Raise for one mode: 89 % intervals of the normal posterior around it covered only 51 to 86 %.
        """
        raise ValueError(
            "the fit is one mode or a few vectors; a normal posterior around it is too narrow (of 89 % it "
            "covered 51 to 86); needed an average of modes, PCVMClassifier or MPCVMClassifier with "
            "hyperprior='default' and estimation='average', or estimation='posterior'"
        )


@dataclass(frozen=True)
class Mode(Predictor):
    """A posterior mode.

    Attributes
    ----------
    kernel : KernelPiece
        Of this width.
    width : float or ndarray, shape (n_features,)
    scale : float
        Of the weights' prior, sqrt(d / c).
    shared : ndarray, shape (n_rows, n_features)
        Centres of all modes of an average, in memory once.
    own : ndarray of int, shape (n_relevance,)
        Which of them are this mode's.
    weight : ndarray, shape (n_relevance,) or (n_relevance, n_classes)
    bias : float or ndarray, shape (n_classes,)
    log_loss : float
        Mean negative leave-one-out log probability of the training labels, nats per row. Of many rows or
        classes that of the search: on some of the rows, or class by class.
    basis : ndarray of int, shape (n_relevance,)
        Numbers of the centres among the bases.
    likelihood : Likelihood
    prior : Hyperprior, SharedHyperprior or Laplace
    """

    kernel: KernelPiece = field(repr=False)
    width: Any
    scale: float
    shared: Array = field(repr=False)
    own: Index = field(repr=False)
    weight: Array = field(repr=False)
    bias: Any = field(repr=False)
    log_loss: float
    basis: Index = field(repr=False)
    likelihood: Likelihood = field(repr=False)
    prior: Any = field(repr=False)

    @property
    def relevance_vectors(self) -> Array:
        """Centres whose weight is not zero, shape (n_relevance, n_features)."""
        return self.shared if len(self.own) == len(self.shared) else self.shared[self.own]

    def latent(self, X: Array, n_jobs: int = 1) -> Array:
        """Return ``Phi w + b``."""
        return latent_in_blocks(
            X, self.relevance_vectors, self.weight, self.bias, kernel=self.kernel, n_jobs=n_jobs
        )

    def normal(self, data: TrainingData) -> Moments:
        """Return the normal posterior around the mode, of the weights that are not zero."""
        weight, bias = self.weight.reshape(len(self.weight), -1), np.atleast_1d(self.bias)
        given, of_bias = self.prior.weight_precision(weight), self.prior.bias_precision(bias)
        likelihood = self.likelihood if data.weight is None else Weighted(self.likelihood)
        model = QuadraticModel.at(
            [(self.kernel(data.X, self.relevance_vectors), data.target)],
            likelihood,
            weight,
            bias,
            precision=np.where(weight == 0, np.inf, given),
            bias_precision=np.where(bias == 0, np.inf, of_bias),
        )
        return lambda X: model.latent(self.kernel(X, self.relevance_vectors))


@dataclass(frozen=True)
class Average(Predictor):
    """An average of the class probabilities of posterior modes.

    Attributes
    ----------
    modes : list of Mode
    weights : ndarray, shape (n_modes,)
        Sum to one.
    likelihood : Likelihood
    """

    modes: list[Mode]
    weights: Array
    likelihood: Likelihood

    def latent(self, X: Array, n_jobs: int = 1) -> Array:
        """Return the log odds; of several classes the logarithms of their probabilities."""
        log_probability = self.log_probability(X, n_jobs)
        if log_probability.shape[1] == 2:
            return log_probability[:, 1] - log_probability[:, 0]
        return log_probability

    def probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return averaged class probabilities."""
        parts = (each.probability(X, n_jobs) for each in self.modes)
        return normalised(sum(w * part for w, part in zip(self.weights, parts, strict=True)))

    def log_probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return logarithms of averaged class probabilities, exact in the tails."""
        parts = np.stack([each.log_probability(X, n_jobs) for each in self.modes])
        return log_normalised(logsumexp(parts, axis=0, b=self.weights[:, None, None]))

    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the normal posteriors around the modes."""
        if data is None:
            raise ValueError(
                "the rows went in chunks and are not kept; needed an average of modes of rows in memory"
            )
        return [(w, each.normal(data)) for w, each in zip(self.weights, self.modes, strict=True)]


def modes_of(problems: Problems, points: Sequence[GridPoint]) -> list[Mode]:
    """Return fitted grid points as modes, whose centres are in memory once."""
    results: list[Any] = [each.result for each in points]
    every = np.unique(np.concatenate([each.support for each in results]))
    shared = problems.centres.points[every]
    return [
        Mode(
            as_kernel(problems.kernel, result.width),
            result.width,
            point.scale,
            shared,
            np.searchsorted(every, result.support),
            result.weight[result.support],
            result.bias,
            np.nan if point.loo is None else point.loo.log_loss,
            result.support,
            problems.likelihood,
            problems.prior(point.scale),
        )
        for point, result in zip(points, results, strict=True)
    ]


# --- the fit of an average ---------------------------------------------------------------------


def fit_average(
    problems: Problems,
    search: HyperparameterSearch,
    *,
    most: int,
    same_bases: bool,
    same_fits: bool,
    weigh: bool = True,
    needs_held_out: bool = False,
    folds: Sequence[Any] = (),
) -> tuple[HyperparameterSearch, Array | None]:
    """Fit the grid points of non-negligible weight to convergence, on all rows.

    Returns them with their weights, the heaviest first, and averaged leave-one-out probabilities of the rows,
    shape (n_obs, n_classes), or None where they were not computed.

    Parameters
    ----------
    problems : Problems
    search : HyperparameterSearch
    most : int
        Grid points at most.
    same_bases : bool
        Whether the search's bases are the problems': the fits start from its weights, else from each other.
    same_fits : bool
        Whether the search fitted these very problems, less closely: then its weights stay.
    weigh : bool
        Whether grid points whose fits are other ones get new weights from their own leave-one-out densities.
    needs_held_out : bool
        Whether leave-one-out predictions are needed where they give no weights.
    folds : sequence of (ndarray, ndarray)
        To hold out in place of single rows, where rows belong to groups.
    """
    kept, points = search.kept(most), list[GridPoint]()
    in_memory = problems.rows is None
    leaves_out = in_memory and not same_fits and (weigh or needs_held_out)
    for point in kept.points:
        problem = problems.at(point.width, point.scale)
        near = point if same_bases else points[-1] if points and in_memory else None
        result = fit_em(problem, start_near(near, problem), problems.options)
        loo = held_out(problems, problem, result, folds) if leaves_out else point.loo
        points.append(replace(point, result=result, loo=loo))
    found = replace(kept, points=tuple(points))
    if leaves_out and weigh:
        found = HyperparameterSearch.of(points, feature_share=kept.feature_share)
    found = found.kept()
    if not (leaves_out or same_fits):
        return found, None
    left_out: Any = [each.loo for each in found.points]
    parts = [class_probability(problems.likelihood, each.latent) for each in left_out]
    return found, normalised(np.tensordot(found.weights, np.stack(parts), axes=1))
