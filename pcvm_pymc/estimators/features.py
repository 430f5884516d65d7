"""Widths per feature: relative widths of each fold and their mean, and what a user reads of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier

from pcvm_pymc.core.metric import MOST_ROWS, class_targets, relative_widths
from pcvm_pymc.core.pieces.centres import Index, choose_share
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.base import is_named, is_rbf
from pcvm_pymc.estimators.problems import TrainingData


def learns_features(model: Any, X: Array, folds: Sequence[Any], n_folds: int) -> bool:
    """Whether an estimator's arguments and rows allow a width for each feature to be learned."""
    learns = is_named(model.width, "auto") and is_rbf(model.kernel)
    return learns and X.shape[1] > 1 and len(folds) == n_folds


@dataclass(frozen=True)
class Metric:
    """Relative widths of the features, of geometric mean one.

    Attributes
    ----------
    by_fold : ndarray, shape (n_folds, n_features)
        Learned from the rows outside each fold.
    share : float
        Weight of widths per feature against one width; 0 where they were not chosen.
    """

    by_fold: Array
    share: float = 0.0

    @property
    def relative(self) -> Array:
        """Relative widths: geometric means over folds, which vary less than a fit to all rows."""
        return np.asarray(np.exp(np.log(self.by_fold).mean(axis=0)))

    @classmethod
    def learned(
        cls, model: Any, data: TrainingData, folds: Sequence[tuple[Index, Index]]
    ) -> "Metric":
        """Return the relative widths of each fold, from its training rows alone."""
        kind: NDArray[Any] = np.zeros(len(data.X))
        target: Array = data.label
        if is_classifier(model):
            classes, kind = np.unique(data.label, return_inverse=True)
            target = class_targets(kind, len(classes))
        each = []
        for train, _ in folds:
            few = train[choose_share(kind[train], MOST_ROWS, np.random.default_rng(0))]
            weight = None if data.weight is None else data.weight[few]
            each.append(relative_widths(data.X[few], target[few], weight))
        return cls(np.stack(each))


def relevance(width: Array) -> Array:
    """Return 1 / width^2 of each feature, normalised to sum one."""
    out = np.square(width.min(axis=-1, keepdims=True) / width)
    return np.asarray(out / out.sum(axis=-1, keepdims=True))


def set_features(model: Any, width: Any, metric: Metric | None = None) -> None:
    """Set the widths of the features and how relevant each is, of a fit with the RBF.

    One width says nothing of the features: without a width for each relevances are NaN.
    """
    if not is_rbf(model.kernel):
        return
    d = model.n_features_in_
    model.feature_widths_ = np.array(np.broadcast_to(width, d))
    if metric is None or metric.share == 0.0:
        given = np.ndim(width) > 0
        model.feature_relevance_ = relevance(model.feature_widths_) if given else np.full(d, np.nan)
        model.feature_relevance_folds_ = np.empty((0, d))
        return
    share, even = metric.share, (1.0 - metric.share) / d
    model.feature_relevance_ = share * relevance(metric.relative) + even
    model.feature_relevance_folds_ = share * relevance(metric.by_fold) + even
