"""What the estimators share for rows in chunks: their parameters, and predictions for Dask arrays."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["WIDTH_ROWS", "check_chunk_parameters", "for_dask", "is_dask", "limit_of"]

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


def limit_of(memory_limit: float | None) -> float:
    """Return the limit in bytes, infinite for none."""
    return np.inf if memory_limit is None else memory_limit


def for_dask(method: Callable[[Any], Any], X: Any, dtype: Any, n_columns: int | None = None) -> Any:
    """Return a Dask array of what a method of an estimator gives for each block of rows."""
    from pcvm_pymc.cluster import map_rows

    return map_rows(method, X, dtype, n_columns)
