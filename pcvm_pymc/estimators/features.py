"""Widths per feature: relative widths of all rows and of each fold, and what a user reads of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier

from pcvm_pymc.core.metric import MOST_ROWS, class_targets, relative_widths
from pcvm_pymc.core.pieces.centres import Index, choose_share
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.base import is_named, is_rbf
from pcvm_pymc.estimators.problems import TrainingData

#: least weight of a degree at the best width and scale of one width: of less it has no search of its own
LEAST_SHARE = 0.05


def learns_features(model: Any, X: Array, folds: Sequence[Any], n_folds: int) -> bool:
    """Whether an estimator's arguments and rows allow a width for each feature to be learned."""
    learns = is_named(model.width, "auto") and is_rbf(model.kernel)
    return learns and X.shape[1] > 1 and len(folds) == n_folds


@dataclass(frozen=True)
class Metric:
    """Relative widths of the features, of geometric mean one.

    Attributes
    ----------
    relative : ndarray, shape (n_features,)
        Learned from all rows.
    by_fold : ndarray, shape (n_folds, n_features)
        Learned from the rows outside each fold.
    """

    relative: Array
    by_fold: Array

    @classmethod
    def learned(
        cls, model: Any, data: TrainingData, folds: Sequence[tuple[Index, Index]]
    ) -> "Metric":
        """Return the relative widths of all rows, and of each fold from its training rows alone."""
        kind: NDArray[Any] = np.zeros(len(data.X))
        target: Array = data.label
        if is_classifier(model):
            classes, kind = np.unique(data.label, return_inverse=True)
            target = class_targets(kind, len(classes))

        def widths(rows: Index) -> Array:
            few = rows[choose_share(kind[rows], MOST_ROWS, np.random.default_rng(0))]
            weight = None if data.weight is None else data.weight[few]
            return relative_widths(data.X[few], target[few], weight)

        each = [widths(train) for train, _ in folds]
        return cls(widths(np.arange(len(data.X))), np.stack(each))

    def fold_widths(self, X: Array, train: Index, k: int, degree: float, multiple: float) -> Array:
        """Return a fold's widths: a multiple of the median distance of its scaled training rows."""
        relative: Array = self.by_fold[k] ** degree
        return multiple * median_distance(X[train] / relative) * relative


def relevance(width: Array) -> Array:
    """Return 1 / width^2 of each feature, normalised to sum one."""
    out = np.square(width.min(axis=-1, keepdims=True) / width)
    return np.asarray(out / out.sum(axis=-1, keepdims=True))


def set_features(
    model: Any, width: Any, metric: Metric | None, shares: Mapping[float, float] | None = None
) -> None:
    """Set the widths of the features and how relevant each is, of a fit with the RBF."""
    if not is_rbf(model.kernel):
        return
    model.feature_widths_ = np.array(np.broadcast_to(width, model.n_features_in_))
    if metric is None:
        model.feature_relevance_ = relevance(model.feature_widths_)
        model.feature_relevance_folds_ = np.empty((0, model.n_features_in_))
        return
    weights = {0.0: 1.0} if shares is None else shares
    model.feature_relevance_ = sum(
        share * relevance(metric.relative**degree) for degree, share in weights.items()
    )
    model.feature_relevance_folds_ = sum(
        share * relevance(metric.by_fold**degree) for degree, share in weights.items()
    )
