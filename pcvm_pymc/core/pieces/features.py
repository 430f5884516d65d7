"""Features of the inputs that weights may stand on: linear, quadratic, or a kernel at centres."""

import numpy as np

from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["FEATURES", "feature_matrix"]

FEATURES = ("linear", "quadratic", "kernel")


def feature_matrix(
    X: Array,
    features: str = "linear",
    *,
    centres: Array | None = None,
    kernel: Kernel = "rbf",
    width: float = 1.0,
) -> Array:
    """Return the features of each row of `X`, shape (n_obs, n_features).

    Parameters
    ----------
    X : ndarray, shape (n_obs, d)
    features : {"linear", "quadratic", "kernel"}
        The d components; these, their squares and pairwise products, d + d (d + 1) / 2 in all,
        squares and products in the order of the upper triangle's rows; or a kernel at `centres`.
    centres : ndarray, shape (n_centres, d), optional
        For ``"kernel"``. Default: `X`.
    kernel : str or callable
        As for `design_matrix`. The paper's h is ``width / sqrt(2)``.
    width : float

    Raises
    ------
    ValueError
        If `features` is unknown.
    """
    if features == "linear":
        return X.copy()
    if features == "quadratic":
        row, column = np.triu_indices(X.shape[1])
        return np.hstack([X, X[:, row] * X[:, column]])
    if features == "kernel":
        return design_matrix(kernel, X, X if centres is None else centres, width)
    raise ValueError(f"features={features!r} is unknown; use one of {FEATURES}")
