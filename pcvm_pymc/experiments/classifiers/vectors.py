"""What a fitted estimator keeps of its training part."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

__all__ = ["opposed_rows", "vector_counts", "vector_rows"]


def vector_counts(model: Any) -> tuple[float, float]:
    """Return the support or relevance vectors of a fitted estimator, and its non-zero weights.

    NaN where the notion does not apply.
    """
    vectors = getattr(model, "relevance_vectors_", getattr(model, "support_", None))
    weight = getattr(model, "weight_", None)
    if weight is None and hasattr(model, "machine_"):
        weight = model.machine_.dual_coef_
    return (
        np.nan if vectors is None else float(len(vectors)),
        np.nan if weight is None else float(np.count_nonzero(weight)),
    )


def vector_rows(model: Any, X: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the training rows that are support or relevance vectors of a fitted estimator."""
    support = getattr(model, "support_", None)
    if support is not None:
        return np.asarray(support, dtype=np.int64)
    vectors = getattr(model, "relevance_vectors_", np.empty((0, X.shape[1])))
    return cdist(vectors, X).argmin(axis=1) if len(vectors) else np.empty(0, np.int64)


def opposed_rows(model: Any, X: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the training rows that are vectors whose weight's sign opposes their label, of two classes.

    Parameters
    ----------
    model : estimator
        Fitted, with a weight for each of its vectors.
    X, y : ndarray
        What it was fitted to.
    """
    rows = vector_rows(model, X)
    machine = getattr(model, "machine_", None)
    weight = model.weight_ if machine is None else machine.dual_coef_
    sign = np.where(y[rows] == model.classes_[1], 1.0, -1.0)
    return rows[np.ravel(weight) * sign < 0]
