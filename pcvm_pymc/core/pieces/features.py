"""Features of the inputs that weights may stand on: linear, quadratic, or a kernel at centres."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pcvm_pymc.core.pieces.kernels import Kernel, KernelPiece, design_matrix
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["FEATURES", "FeatureColumns", "feature_matrix", "n_features"]

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


def n_features(d: int, features: str) -> int:
    """Return how many linear or quadratic features d components have."""
    return d if features == "linear" else d + d * (d + 1) // 2


@dataclass(frozen=True)
class FeatureColumns(KernelPiece):
    """Linear or quadratic features in the place of a kernel; its centres are their numbers.

    So rows in chunks, which know kernels at centres, know features, too.

    Attributes
    ----------
    features : {"linear", "quadratic"}
    """

    features: str = "linear"
    name: ClassVar[str] = "features"

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return some features of the rows, shape (n_obs, n_some)."""
        return feature_matrix(X, self.features)[:, centres[:, 0].astype(np.int64)]
