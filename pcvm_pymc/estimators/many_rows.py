"""What the estimators share for rows in chunks: their parameters, and predictions for Dask arrays."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.rows import Rows, chunk_rows
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["WIDTH_ROWS", "check_chunk_parameters", "for_dask", "is_dask", "rows_of_dask"]

WIDTH_ROWS = 5000  # by which a width is chosen where the rows are too many to be held


def is_dask(X: Any) -> bool:
    """Whether an input is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def check_chunk_parameters(
    memory_limit: float | None, kernel_dtype: str = "float64", *, in_chunks: bool = False
) -> None:
    """Raise unless the parameters for rows in chunks can be used, and are used together."""
    if memory_limit is not None and not (isinstance(memory_limit, Real) and memory_limit > 0):
        raise ValueError(
            f"memory_limit={memory_limit!r}; needed a positive number of bytes, or None"
        )
    if kernel_dtype not in ("float64", "float32"):
        raise ValueError(f"kernel_dtype={kernel_dtype!r} is unknown; use 'float64' or 'float32'")
    if kernel_dtype != "float64" and not in_chunks:
        raise ValueError(f"kernel_dtype={kernel_dtype!r} needs rows in chunks: give a memory_limit")


def rows_of_dask(
    X: Any, y: Any, basis: Any, memory_limit: float | None, *, several: bool = False
) -> tuple[Rows, NDArray[Any], Array, Any]:
    """Return the rows of Dask arrays, their classes, and some rows with labels to choose bases among.

    Parameters
    ----------
    X : dask.array.Array, shape (n_obs, n_features)
    y : dask.array.Array or array_like, shape (n_obs,)
    basis : int or tuple
        An estimator's argument.
    memory_limit : float, optional
    several : bool
        As for `dask_rows`.

    Raises
    ------
    ValueError
        If there is a basis on every row, or the arrays cannot be used.
    """
    from pcvm_pymc.estimators.cluster import dask_rows, gathered

    if basis is None:
        kind = "labels" if several else "signs"
        raise ValueError(
            "basis=None is a basis function on every row; for Dask arrays needed a number of rows to "
            f"choose, or (centres, {kind})"
        )
    n_basis = int(basis) if isinstance(basis, Integral) else len(basis[0])
    limit = np.inf if memory_limit is None else memory_limit
    rows, classes = dask_rows(X, y, chunk_rows(limit, n_basis, X.shape[-1]), several=several)
    return rows, classes, *gathered(rows, max(WIDTH_ROWS, 20 * n_basis))


def for_dask(method: Callable[[Any], Any], X: Any, dtype: Any, n_columns: int | None = None) -> Any:
    """Return a Dask array of what a method of an estimator gives for each block of rows."""
    from pcvm_pymc.estimators.cluster import map_rows

    return map_rows(method, X, dtype, n_columns)
