"""Widths per feature: relative widths learned in each fold, and what a user reads of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.metric import MOST_ROWS, SPREAD, class_targets, relative_widths
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.encoding import Encoding
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.training import Fold, TrainingData


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
        cls,
        data: TrainingData,
        folds: Sequence[Fold],
        *,
        of_labels: bool = True,
        spread: float = SPREAD,
    ) -> "Metric":
        """Return the relative widths of each fold, from its training rows alone."""
        kind: NDArray[np.intp] = np.zeros(len(data.X), dtype=int)
        target: Array = data.label
        if of_labels:
            classes, kind = np.unique(data.label, return_inverse=True)
            target = class_targets(kind, len(classes))
        by_fold = []
        for train, _ in folds:
            few = train[choose_share(kind[train], MOST_ROWS, np.random.default_rng(0))]
            weight = data.some(few).certainty
            how: dict[str, Any] = {"spread": spread, "number": data.width_numbers}
            by_fold.append(relative_widths(data.X[few], target[few], weight, **how))
        return cls(np.stack(by_fold))

    def relevance(self, encoding: Encoding | None = None) -> tuple[Array, Array]:
        """Return how relevant each feature is, shape (n_features,), and the same of each fold."""
        relevances = [relevance(width, encoding) for width in (self.relative, self.by_fold)]
        even = (1.0 - self.share) / relevances[0].shape[-1]
        return self.share * relevances[0] + even, self.share * relevances[1] + even


def relevance(width: Array, encoding: Encoding | None = None) -> Array:
    """Return 1 / width^2 of each feature, normalised to sum one.

    With an encoding the widths are those of its columns, and a feature has the sum over its widths.
    """
    if encoding is not None:
        first = np.unique(encoding.width_numbers, return_index=True)[1]
        width, feature = width[..., first], encoding.features[first]
    out = np.square(width.min(axis=-1, keepdims=True) / width)
    out = np.asarray(out / out.sum(axis=-1, keepdims=True))
    return out if encoding is None else out @ np.eye(feature.max() + 1)[feature]
