"""The values among which parameters are chosen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.kernels import width_grid
from pcvm_pymc.experiments.classifiers.rows import Candidates

__all__ = [
    "EXPONENTIAL_RATES",
    "KROPOTOV_WIDTHS",
    "LYU_FACTORS",
    "MARGINS",
    "lyu_widths",
    "svm_candidates",
    "widths_around",
]

MARGINS = tuple(np.geomspace(0.1, 1000.0, 5).tolist())
# Kropotov et al. (2006), section V.B, in their form exp(-d^2 / (2 sigma^2))
KROPOTOV_WIDTHS = tuple((np.sqrt(2.0) * np.array([0.01, 0.1, 0.3, 1, 2, 3, 4, 5, 7, 10])).tolist())
# gamma of the Laplace prior: L1 penalties from 0.1 to 3
EXPONENTIAL_RATES = (0.01, 0.1, 1.0, 9.0)
# multiples of the root of the number of features, for Lyu's protocol
LYU_FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def widths_around(n_widths: int) -> Candidates:
    """Return candidates around the median distance of the training rows."""
    return lambda X: {"width": width_grid(X, n_widths).tolist()}


def lyu_widths(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    """Return widths in multiples of the root of the number of features."""
    return {"width": (np.array(LYU_FACTORS) * np.sqrt(X.shape[1])).tolist()}


def svm_candidates(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    """Return values of C, and widths around the median distance."""
    return {"C": MARGINS, "width": width_grid(X, 7).tolist()}
