"""Weights of rows, as estimators are given them: by row, by class, or by both."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["counted_rows"]


def counted_rows(
    sample_weight: ArrayLike | None, class_weight: Any, X: Array, y: NDArray[Any]
) -> tuple[NDArray[np.intp] | slice, Array | None]:
    """Return which rows count at all, and the weights of these; None where each counts once.

    Parameters
    ----------
    sample_weight : array_like, shape (n_obs,), optional
        Not negative. Rows of weight zero are left out.
    class_weight : dict, "balanced" or None
        Factors by class; ``"balanced"``: in proportion to one over a class' number of rows.
    X : ndarray, shape (n_obs, n_features)
    y : ndarray, shape (n_obs,)

    Raises
    ------
    ValueError
        If weights are negative, not finite, all zero or of another length, or a class is unknown.
    """
    if sample_weight is None and class_weight is None:
        return slice(None), None
    weight = _check_sample_weight(sample_weight, X, dtype=float, ensure_non_negative=True)
    kept = np.flatnonzero(weight > 0)
    if len(kept) == 0:  # as newer versions of scikit-learn say themselves
        raise ValueError("sample_weight has zeros alone; needed at least one non-zero weight")
    weight = weight[kept]
    if class_weight is not None:
        weight = weight * compute_sample_weight(class_weight, y[kept])
    return kept, weight
