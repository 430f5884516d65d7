"""What is fitted: posterior modes and averages of them, their probabilities, and intervals of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import gen_batches

from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.pieces.centres import Centres, Index
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads
from pcvm_pymc.core.probabilities import (
    LatentNormal,
    class_numbers,
    class_probability,
    log_average,
    log_class_probability,
    log_normalised,
    normalised,
    probability_interval,
)
from pcvm_pymc.core.problem import EMResult
from pcvm_pymc.core.quadratic import QuadraticModel
from pcvm_pymc.estimators.candidates import Candidate, Point
from pcvm_pymc.estimators.formulation import Formulation
from pcvm_pymc.estimators.training import TrainingData

_INTERVAL_ROWS = 200  # whose draws are in memory at a time

#: mean and covariance of the scores at new rows, shapes (n_new, n_scores) and (n_new, n_scores, n_scores)
type Moments = Callable[[Array], tuple[Array, Array]]


class Predictor:
    """The fitted part of an estimator: a latent function and the probabilities that it gives."""

    likelihood: Likelihood

    def latent(self, X: Array) -> Array:
        """Return the latent function, shape (n_new,) or (n_new, n_scores)."""
        raise NotImplementedError

    def probability(self, X: Array) -> Array:
        """Return class probabilities, shape (n_new, n_classes)."""
        return class_probability(self.likelihood, self.latent(X))

    def log_probability(self, X: Array) -> Array:
        """Return logarithms of class probabilities, exact in the tails."""
        return log_class_probability(self.likelihood, self.latent(X))

    def log_density(self, X: Array, label: NDArray[Any]) -> Array:
        """Return the log probability of each row's label, -1. and +1. or numbers of classes."""
        log_probability = self.log_probability(X)
        number = class_numbers(label, log_probability.shape[1])
        return log_probability[np.arange(len(X)), number]

    def interval(self, X: Array, probability: float, data: TrainingData | None) -> Array:
        """Return equal-tailed intervals of class probabilities, shape (n_new, n_classes, 2)."""
        mixture, intervals = self.posterior(data), []
        for rows in gen_batches(len(X), _INTERVAL_ROWS):
            parts = [LatentNormal(share, *moments(X[rows])) for share, moments in mixture]
            intervals.append(probability_interval(self.likelihood, parts, probability))
        return np.concatenate(intervals)

    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the parts of the latent function's posterior, a mixture of normals, with their weights.

        Raise for one mode: 89 % intervals of the normal posterior around it covered only 51 to 86 %.
        """
        fault = "the fit is one mode or a few vectors; a normal posterior around it is too narrow"
        average = "an average of modes, a PCVM's (hyperprior='default', estimation='average')"
        raise ValueError(f"{fault}; needed {average}, or estimation='posterior'")


@dataclass(frozen=True)
class Mode(Point, Predictor):
    """A posterior mode.

    Attributes
    ----------
    kernel : KernelPiece
        Of this width.
    at : mapping of str
        Hyperparameters, ``width`` and ``scale`` among them.
    points : ndarray, shape (n_points, n_features)
        Centres of all modes of an average, in memory once.
    index : ndarray of int, shape (n_relevance,)
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
    at: Mapping[str, Any]
    points: Array = field(repr=False)
    index: Index = field(repr=False)
    weight: Array = field(repr=False)
    bias: Any = field(repr=False)
    log_loss: float
    basis: Index = field(repr=False)
    likelihood: Likelihood = field(repr=False)
    prior: Any = field(repr=False)

    @property
    def relevance_vectors(self) -> Array:
        """Centres whose weight is not zero, shape (n_relevance, n_features)."""
        return self.points if len(self.index) == len(self.points) else self.points[self.index]

    def latent(self, X: Array) -> Array:
        """Return ``Phi w + b``."""
        return latent_in_blocks(
            X, self.relevance_vectors, self.weight, self.bias, kernel=self.kernel, n_jobs=threads()
        )

    def attributes(self, data: TrainingData, centres: Centres) -> dict[str, Any]:
        """Return vectors, weights and width of a fit to some rows, by the names of fitted attributes."""
        support, vectors = data.numbers(centres.rows[self.basis]), self.relevance_vectors
        attributes = {"relevance_vectors_": vectors, "support_": support, "weight_": self.weight.T}
        return attributes | {"bias_": self.bias, "width_": self.width, "_kernel_": self.kernel}

    def normal(self, data: TrainingData) -> Moments:
        """Return the normal posterior around the mode, of the weights that are not zero."""
        weight, bias = self.weight.reshape(len(self.weight), -1), np.atleast_1d(self.bias)
        given = np.where(weight == 0, np.inf, self.prior.weight_precision(weight))
        of_bias = np.where(bias == 0, np.inf, self.prior.bias_precision(bias))
        rows = [(self.kernel(data.X, self.relevance_vectors), data.observed(self.likelihood))]
        model = QuadraticModel(weight, bias, given, of_bias).over(rows)
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

    def latent(self, X: Array) -> Array:
        """Return the log odds; of several classes the logarithms of their probabilities."""
        log_probability = self.log_probability(X)
        if log_probability.shape[1] == 2:
            return log_probability[:, 1] - log_probability[:, 0]
        return log_probability

    def probability(self, X: Array) -> Array:
        """Return averaged class probabilities."""
        parts = (mode.probability(X) for mode in self.modes)
        return normalised(sum(w * part for w, part in zip(self.weights, parts, strict=True)))

    def log_probability(self, X: Array) -> Array:
        """Return logarithms of averaged class probabilities, exact in the tails."""
        parts = np.stack([mode.log_probability(X) for mode in self.modes])
        return log_normalised(log_average(parts, self.weights[:, None, None]))

    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the normal posteriors around the modes."""
        if data is None:
            raise ValueError("the rows went in chunks; needed an average of rows in memory")
        return [(w, mode.normal(data)) for w, mode in zip(self.weights, self.modes, strict=True)]


def fitted_at(candidate: Candidate) -> EMResult:
    """Return the fit of a candidate that has one."""
    assert candidate.result is not None
    return candidate.result


def modes_of(formulation: Formulation, candidates: Sequence[Candidate]) -> list[Mode]:
    """Return fitted candidates as modes, whose centres are in memory once."""
    results = [fitted_at(candidate) for candidate in candidates]
    every = np.unique(np.concatenate([result.support for result in results]))
    points = formulation.centres.points[every]
    modes = []
    for candidate, result in zip(candidates, results, strict=True):
        at, kept = {**candidate.at, "width": result.width}, result.support
        where = formulation.kernel_at(at), at, points, np.searchsorted(every, kept)
        loss = np.nan if candidate.loo is None else candidate.loo.log_loss
        pieces = formulation.likelihood, formulation.prior(candidate.scale)
        modes.append(Mode(*where, result.weight[kept], result.bias, loss, kept, *pieces))
    return modes
