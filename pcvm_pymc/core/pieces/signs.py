"""Sign rules: which sign a weight has, from the label of the row that its basis stands on."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["SignRule", "class_signs", "own_label"]

type SignRule = Callable[..., Array]


def own_label(label: NDArray[Any], n_scores: int = 1) -> Array:
    """Return the sign rule of the PCVM: a weight has the sign of its own row's label, -1. or +1."""
    return np.array(label, dtype=float)


def class_signs(label: NDArray[Any], n_scores: int) -> Array:
    """Return +1 for a row's own class and -1 for the others (Lyu et al. 2020 eq. 3).

    Parameters
    ----------
    label : ndarray of int, shape (n_basis,)
        Classes of the rows that the bases stand on.
    n_scores : int
        Number of classes.

    Returns
    -------
    ndarray, shape (n_basis, n_scores)
    """
    return np.where(np.asarray(label)[:, None] == np.arange(n_scores), 1.0, -1.0)
