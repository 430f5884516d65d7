"""Averages of modes: what they are made of, and their predictions."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.cells import Cells
from pcvm_pymc.estimators.classifier import (
    class_probability,
    for_dask,
    is_dask,
    log_class_probability,
)
from pcvm_pymc.estimators.documented import of_rows
from pcvm_pymc.estimators.projected import ProjectedClassifier

__all__ = ["AveragePredictions", "Component", "SharedRows", "averaged_probability"]


@dataclass(frozen=True)
class SharedRows:
    """Rows that the modes of an average stand on, one object for all of them, so that they are kept once.

    Attributes
    ----------
    points : ndarray, shape (n_rows, n_features)
    """

    points: Array

    def taken(self, own: NDArray[np.intp]) -> Array:
        """Return some of the rows, by their numbers in order; all of them as they are."""
        return self.points if len(own) == len(self.points) else self.points[own]


@dataclass(frozen=True)
class Component:
    """A mode that an average is made of.

    Attributes
    ----------
    kernel : KernelPiece
        Of this width.
    width : float or ndarray, shape (n_features,)
    scale : float
        Of the weights' prior, sqrt(d / c).
    shared : SharedRows
        Where the vectors of all modes of the average stand.
    own : ndarray of int, shape (n_relevance,)
        Which of them are this mode's.
    weight : ndarray, shape (n_relevance,) or (n_relevance, n_classes)
    bias : float or ndarray, shape (n_classes,)
    log_loss : float
        Mean negative leave-one-out log probability of the training labels, nats per row. Of many rows or
        classes that of the fits by which the cell was found: of some of the rows, or class by class.
    basis : ndarray of int, shape (n_relevance,)
        Numbers of the vectors among the bases.
    """

    kernel: KernelPiece = field(repr=False)
    width: Any
    scale: float
    shared: SharedRows = field(repr=False)
    own: NDArray[np.intp] = field(repr=False)
    weight: Array = field(repr=False)
    bias: Any = field(repr=False)
    log_loss: float
    basis: NDArray[np.intp] = field(repr=False)

    @property
    def relevance_vectors(self) -> Array:
        """Centres whose weight is not zero, shape (n_relevance, n_features)."""
        return self.shared.taken(self.own)


def averaged_probability(likelihood: Likelihood, cells: Cells, latents: list[Array]) -> Array:
    """Return averaged class probabilities, shape (n_obs, n_classes), at each cell's latent values."""
    parts = [class_probability(likelihood, latent) for latent in latents]
    return np.tensordot(cells.weights, np.stack(parts), axes=1)


class AveragePredictions(ProjectedClassifier):
    """Predictions of a classifier that may be an average; without ``components_`` it is one mode."""

    components_: list[Component]
    component_weights_: Array

    @of_rows("ndarray, shape (n_new, n_classes)")
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, n_classes), in the order of ``classes_``."""
        check_is_fitted(self)
        if not hasattr(self, "components_"):
            return super().predict_proba(X)
        if is_dask(X):
            return for_dask(self.predict_proba, X, float, len(self.classes_))
        return self._averaged(self._inputs(X))

    @of_rows("ndarray, shape (n_new,), or (n_new, n_classes) for several classes")
    def decision_function(self, X: ArrayLike) -> Array:
        """Return the latent function, shape (n_new,): positive where ``classes_[1]`` is likelier.

        For several classes that of each, shape (n_new, n_classes). Of an average there is no latent
        function: its log odds, and for several classes the logarithms of its probabilities.
        """
        check_is_fitted(self)
        if not hasattr(self, "components_"):
            return super().decision_function(X)
        n_classes = len(self.classes_)
        if is_dask(X):
            return for_dask(self.decision_function, X, float, n_classes if n_classes > 2 else None)
        log_probability = self._log_averaged(self._inputs(X))
        if n_classes == 2:
            return log_probability[:, 1] - log_probability[:, 0]
        return log_probability

    @of_rows("ndarray, shape (n_new,)")
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, shape (n_new,)."""
        check_is_fitted(self)
        if not hasattr(self, "components_") or is_dask(X):
            return super().predict(X)
        return self.classes_[self._averaged(self._inputs(X)).argmax(axis=1)]

    def _latent_values(self, X: Array, component: Component) -> Array:
        return latent_in_blocks(
            X,
            component.relevance_vectors,
            component.weight,
            component.bias,
            kernel=component.kernel,
            n_jobs=self._jobs,
        )

    def _averaged(self, X: Array) -> Array:
        """Return averaged class probabilities."""
        total = np.zeros((len(X), len(self.classes_)))
        for share, component in zip(self.component_weights_, self.components_, strict=True):
            latent = self._latent_values(X, component)
            total += share * class_probability(self._likelihood_, latent)
        return total

    def _log_averaged(self, X: Array) -> Array:
        """Return logarithms of averaged class probabilities, exact in the tails."""
        parts = [
            log_class_probability(self._likelihood_, self._latent_values(X, each))
            for each in self.components_
        ]
        return logsumexp(np.stack(parts), axis=0, b=self.component_weights_[:, None, None])

    def _log_probability(self, X: Array) -> Array:
        if not hasattr(self, "components_"):
            return super()._log_probability(X)
        return self._log_averaged(X)

    def _log_densities(self, X: Array, y: NDArray[Any]) -> Array:
        if not hasattr(self, "components_"):
            return super()._log_densities(X, y)
        number = np.searchsorted(self.classes_, y)
        return self._log_averaged(X)[np.arange(len(y)), number]
