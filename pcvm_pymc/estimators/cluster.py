"""Rows that lie in Dask arrays: on a local scheduler, or on the workers of a cluster."""

from functools import reduce
from operator import add
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.design import ArrayRows, Request, Sums
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.waiting import computed

__all__ = ["DaskRows", "dask_rows", "gathered", "map_rows"]

_TOGETHER = 8  # sums that are added in one task


class DaskRows:
    """Blocks of rows, each where Dask keeps it; only sums of the size of the basis travel.

    Inputs and labels are kept where they are computed: in the memory of the workers, or of this process
    without a cluster. What is lost with a worker is made anew from its source by Dask's scheduler; a cluster
    that stands still is named, see `computed`.

    Parameters
    ----------
    X : dask.array.Array, shape (n_obs, n_features)
        One chunk of columns.
    label : dask.array.Array, shape (n_obs,)
        Labels, -1. and +1., or numbers of classes, in the same chunks of rows.
    chunk : int
        Rows of a block whose basis functions are held at a time.
    """

    def __init__(self, X: Any, label: Any, chunk: int) -> None:
        self.chunk = chunk
        self.n_obs = len(X)
        self._held = dask.persist(X, label)  # released with the last reference to them
        blocks = (each.to_delayed(optimize_graph=False).ravel() for each in self._held)
        self.blocks = tuple(zip(*blocks, strict=True))

    def sums(self, request: Request) -> Sums:
        """Return sums over all rows."""
        asked = dask.delayed(request, pure=False)
        parts = [
            dask.delayed(_block_sums, pure=False)(X, label, asked, self.chunk)
            for X, label in self.blocks
        ]
        while len(parts) > 1:
            parts = [
                dask.delayed(_added, pure=False)(parts[k : k + _TOGETHER])
                for k in range(0, len(parts), _TOGETHER)
            ]
        return computed(parts[0])[0]

    def against_rest(self, number: int) -> "DaskRows":
        """Return the same rows, labelled by one class against the rest."""
        X, label = self._held
        return DaskRows(X, da.where(label == number, 1.0, -1.0), self.chunk)


def _block_sums(X: Array, label: Array, request: Request, chunk: int) -> Sums:
    return ArrayRows(X, label, chunk).sums(request)


def _added(parts: list[Sums]) -> Sums:
    return reduce(add, parts)


def dask_rows(
    X: Any, y: Any, chunk: int, *, several: bool = False
) -> tuple[DaskRows, NDArray[Any]]:
    """Return the rows of Dask arrays, and the classes.

    Parameters
    ----------
    X : dask.array.Array, shape (n_obs, n_features)
    y : dask.array.Array or array_like, shape (n_obs,)
    chunk : int
    several : bool
        Whether there may be more than two classes: labels are then their numbers, not -1 and +1.

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are not finite, or a number of classes that is not asked for.
    """
    X = _with_known_rows(X)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"X has shape {X.shape}; needed (n_obs, n_features), one or more of each")
    X = X.rechunk({1: -1}).astype(float)
    y = _with_known_rows(y) if hasattr(y, "__dask_graph__") else da.from_array(np.asarray(y))
    if y.shape != X.shape[:1]:
        raise ValueError(f"y has shape {y.shape}; needed ({len(X)},), one label for each row of X")
    y = y.rechunk((X.chunks[0],))
    finite, classes = computed(da.isfinite(X).all(), da.unique(y))
    if not finite:
        raise ValueError("X has values that are NaN or infinite; needed finite numbers")
    if len(classes) != 2 and not (several and len(classes) > 2):
        needed = "two or more" if several else "two"
        raise ValueError(f"y has {len(classes)} classes; needed {needed}")
    if several:
        return DaskRows(X, da.searchsorted(da.from_array(classes), y), chunk), classes
    return DaskRows(X, da.where(y == classes[1], 1.0, -1.0), chunk), classes


def _with_known_rows(array: Any) -> Any:
    """Return a Dask array whose chunks have known sizes (those of a data frame do not)."""
    return array.compute_chunk_sizes() if np.isnan(array.shape[0]) else array


def gathered(rows: DaskRows, most: int, seed: int = 0) -> tuple[Array, Array]:
    """Return some rows, drawn at random, and their labels.

    Parameters
    ----------
    rows : DaskRows
    most : int
        How many at most; fewer come where there are fewer.
    seed : int
    """
    share = min(1.0, most / rows.n_obs)
    parts = [
        dask.delayed(_drawn, pure=False)(X, label, share, (seed, k))
        for k, (X, label) in enumerate(rows.blocks)
    ]
    found = computed(*parts)
    return np.concatenate([X for X, _ in found]), np.concatenate([label for _, label in found])


def _drawn(X: Array, label: Array, share: float, seed: tuple[int, int]) -> tuple[Array, Array]:
    """Return a share of a block; at least one row of each class that it has."""
    rng = np.random.default_rng(seed)
    kept = [
        rng.choice(of_class, max(1, round(share * len(of_class))), replace=False)
        for of_class in (np.flatnonzero(label == c) for c in np.unique(label))
    ]
    rows = np.sort(np.concatenate(kept))
    return X[rows], label[rows]


def map_rows(function: Any, X: Any, dtype: Any, n_columns: int | None = None) -> Any:
    """Return a Dask array of what a function of blocks of rows gives.

    Parameters
    ----------
    function : callable
        ``(n, n_features) -> (n,)`` or, with `n_columns`, ``(n, n_columns)``.
    X : dask.array.Array, shape (n_obs, n_features)
    dtype : dtype
    n_columns : int, optional
    """
    X = X.rechunk({1: -1})
    if n_columns is None:
        return da.map_blocks(function, X, dtype=dtype, drop_axis=1)
    return da.map_blocks(function, X, dtype=dtype, chunks=(X.chunks[0], (n_columns,)))
