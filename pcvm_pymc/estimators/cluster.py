"""Rows in Dask arrays, on a local scheduler or a cluster."""

from functools import partial, reduce
from operator import add
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.design import ArrayRows
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.probit import Array

_TOGETHER = 8  # sums that are added in one task


class DaskRows:
    """Blocks of rows, each where Dask keeps it; only sums of the size of the basis are transferred.

    Inputs and labels stay in the memory of the workers, or of this process without a cluster. Dask
    computes again what is lost with a worker.

    Parameters
    ----------
    X : dask.array.Array, shape (n_obs, n_features)
        One chunk of columns.
    label : dask.array.Array, shape (n_obs,)
        Labels, -1. and +1., or numbers of classes, in the same chunks of rows.
    chunk : int
        Rows of a block whose basis functions are in memory at a time.
    """

    def __init__(self, X: Any, label: Any, chunk: int) -> None:
        self.chunk, self.n_obs = chunk, len(X)
        self._arrays = dask.persist(X, label)  # released with the last reference to them
        blocks = (array.to_delayed(optimize_graph=False).ravel() for array in self._arrays)
        self.blocks = tuple(zip(*blocks, strict=True))

    def sums(self, request: Any) -> Any:
        """Return sums over all rows, as those of `ArrayRows`."""
        asked = dask.delayed(request, pure=False, traverse=False)  # has no Dask collections
        parts = [_sums_of(X, label, asked, self.chunk) for X, label in self.blocks]
        while len(parts) > 1:
            parts = [_added(parts[k : k + _TOGETHER]) for k in range(0, len(parts), _TOGETHER)]
        return dask.compute(parts[0])[0]

    def against_rest(self, number: int) -> "DaskRows":
        """Return the same rows, labelled by one class against the rest."""
        X, label = self._arrays
        return DaskRows(X, da.where(label == number, 1.0, -1.0), self.chunk)


def _block_sums(X: Array, label: Array, request: Any, chunk: int) -> Any:
    return ArrayRows(X, label, chunk).sums(request)


_sums_of = dask.delayed(_block_sums, pure=False)
_added = dask.delayed(partial(reduce, add), pure=False)


def dask_rows(
    X: Any, y: Any, chunk: int, *, multiclass: bool = False
) -> tuple[DaskRows, NDArray[Any]]:
    """Return the rows of Dask arrays, and the classes.

    Parameters
    ----------
    X : dask.array.Array, shape (n_obs, n_features)
    y : dask.array.Array or array_like, shape (n_obs,)
    chunk : int
    multiclass : bool
        Whether there may be more than two classes: labels are then their numbers, not -1 and +1.

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are not finite, or a number of classes that is not asked for.
    """
    X, y = _known_rows(X), _known_rows(y, "y")
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"X has shape {X.shape}; needed (n_obs, n_features), one or more of each")
    validation.check_shape("y", y.shape, X.shape[:1], "label for each row of X")
    X = X.rechunk({1: -1}).map_blocks(validation.as_numbers, "X", dtype=float)
    y = y.rechunk((X.chunks[0],)).map_blocks(validation.present_labels, dtype=y.dtype)
    bad = ~da.isfinite(X)
    count, first, classes = dask.compute(bad.sum(), bad.any(axis=1).argmax(), da.unique(y))
    if count:
        given = "X", count, validation.NOT_FINITE, first, validation.DROP
        raise ValueError(validation.MISSING.format(*given))
    classes = validation.present_labels(classes)
    if len(classes) != 2 and not (multiclass and len(classes) > 2):
        needed = "two or more" if multiclass else "two"
        raise ValueError(f"y has {len(classes)} classes; needed {needed}")
    if multiclass:
        number = y.map_blocks(partial(np.searchsorted, classes), dtype=np.int64)
        return DaskRows(X, number, chunk), classes
    return DaskRows(X, da.where(y == classes[1], 1.0, -1.0), chunk), classes


def as_dask(X: Any, name: str = "X") -> Any:
    """Return the array of a Dask array or data frame, or of an xarray.DataArray over Dask."""
    array = X.to_dask_array() if hasattr(X, "to_dask_array") else X
    array = array if isinstance(array, da.Array) else getattr(array, "data", None)
    if not isinstance(array, da.Array):
        raise ValueError(f"{name}={validation.shown(X)}; needed a Dask array or data frame")
    return array


def _known_rows(array: Any, name: str = "X") -> Any:
    """Return a Dask array whose chunks have known sizes (those of a data frame do not)."""
    if not dask.is_dask_collection(array):
        return da.from_array(validation.present_labels(array), chunks=-1)
    array = as_dask(array, name)
    return array.compute_chunk_sizes() if np.isnan(array.shape[0]) else array


def gathered(rows: DaskRows, most: int, seed: int = 0) -> tuple[Array, Array]:
    """Return at most so many rows, drawn at random, of each class in each block; and their labels."""
    share, drawn = min(1.0, most / rows.n_obs), dask.delayed(_drawn, pure=False)
    parts = [drawn(X, label, share, (seed, k)) for k, (X, label) in enumerate(rows.blocks)]
    rows_of, labels_of = zip(*dask.compute(*parts), strict=True)
    return np.concatenate(rows_of), np.concatenate(labels_of)


def _drawn(X: Array, label: Array, share: float, seed: tuple[int, int]) -> tuple[Array, Array]:
    """Return a share of a block; at least one row of each class that it has."""
    most = max(len(np.unique(label)), round(share * len(label)))
    rows = choose_share(label, most, np.random.default_rng(seed))
    return X[rows], label[rows]


def map_rows(function: Any, X: Any, like: NDArray[Any]) -> Any:
    """Return a Dask array of a function's values at blocks of rows; `like` is its value at one row."""
    X = X.rechunk({1: -1})
    shape: dict[str, Any] = {"drop_axis": 1}
    if like.ndim == 2:
        shape = {"chunks": (X.chunks[0], like.shape[1:])}
    return da.map_blocks(function, X, dtype=like.dtype, **shape)
