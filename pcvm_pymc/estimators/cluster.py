"""Rows in Dask arrays, on a local scheduler or a cluster, and waiting for a cluster with a time limit."""

import logging
import time
from collections.abc import Collection, Iterator
from functools import partial, reduce
from operator import add
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import get_scheduler
from dask.utils import parse_timedelta
from numpy.typing import NDArray

from pcvm_pymc.core.design import ArrayRows, Request, Sums
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.probit import Array

_log = logging.getLogger(__name__)

_TOGETHER = 8  # sums that are added in one task
_CHECK = 10.0  # seconds between two checks of the cluster
_SAY = 30.0  # seconds of standstill before it is logged, and until it is logged again
_PATIENCE = ("pcvm-pymc.patience", "10 minutes")  # Dask's configuration, and its default


class DaskRows:
    """Blocks of rows, each where Dask keeps it; only sums of the size of the basis are transferred.

    Inputs and labels stay in the memory of the workers, or of this process without a cluster. Dask
    computes again what is lost with a worker; a cluster that stands still is an error, see `finished`.

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
        blocks = (each.to_delayed(optimize_graph=False).ravel() for each in self._arrays)
        self.blocks = tuple(zip(*blocks, strict=True))

    def sums(self, request: Request) -> Sums:
        """Return sums over all rows."""
        asked = dask.delayed(request, pure=False, traverse=False)  # has no Dask collections
        parts = [_sums_of(X, label, asked, self.chunk) for X, label in self.blocks]
        while len(parts) > 1:
            parts = [_added(parts[k : k + _TOGETHER]) for k in range(0, len(parts), _TOGETHER)]
        return computed(parts[0])[0]

    def against_rest(self, number: int) -> "DaskRows":
        """Return the same rows, labelled by one class against the rest."""
        X, label = self._arrays
        return DaskRows(X, da.where(label == number, 1.0, -1.0), self.chunk)


def _block_sums(X: Array, label: Array, request: Request, chunk: int) -> Sums:
    return ArrayRows(X, label, chunk).sums(request)


_sums_of = dask.delayed(_block_sums, pure=False)
_added = dask.delayed(partial(reduce, add), pure=False)


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
    X, y = _known_rows(X), _known_rows(y, "y")
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"X has shape {X.shape}; needed (n_obs, n_features), one or more of each")
    validation.check_shape("y", y.shape, X.shape[:1], "label for each row of X")
    X = X.rechunk({1: -1}).map_blocks(validation.as_numbers, "X", dtype=float)
    y = y.rechunk((X.chunks[0],)).map_blocks(validation.present_labels, dtype=y.dtype)
    bad = ~da.isfinite(X)
    count, first, classes = computed(bad.sum(), bad.any(axis=1).argmax(), da.unique(y))
    if count:
        raise ValueError(validation.MISSING.format("X", count, first, validation.DROP))
    classes = validation.present_labels(classes)
    if len(classes) != 2 and not (several and len(classes) > 2):
        needed = "two or more" if several else "two"
        raise ValueError(f"y has {len(classes)} classes; needed {needed}")
    if several:
        return DaskRows(X, da.searchsorted(da.from_array(classes), y), chunk), classes
    return DaskRows(X, da.where(y == classes[1], 1.0, -1.0), chunk), classes


def as_dask(X: Any, name: str = "X") -> Any:
    """Return the array of a Dask array or data frame, or of an xarray.DataArray over Dask."""
    found = X.to_dask_array() if hasattr(X, "to_dask_array") else X
    found = found if isinstance(found, da.Array) else getattr(found, "data", None)
    if not isinstance(found, da.Array):
        raise ValueError(f"{name}={validation.shown(X)}; needed a Dask array or data frame")
    return found


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
    found = computed(*parts)
    return np.concatenate([X for X, _ in found]), np.concatenate([label for _, label in found])


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


# --- waiting -----------------------------------------------------------------------------------


def computed(*things: Any) -> tuple[Any, ...]:
    """Return the values of Dask collections, as `dask.compute` does; see `finished`."""
    client = _client(things)
    if client is None:
        return dask.compute(*things)
    futures = client.compute(list(things))
    for _ in finished(client, futures):
        pass
    return tuple(client.gather(futures))


def finished(client: Any, futures: Collection[Any]) -> Iterator[Any]:
    """Yield futures of a cluster as they finish; a standstill is logged.

    Raises
    ------
    TimeoutError
        If the cluster has stood still for longer than ``pcvm-pymc.patience`` of Dask's configuration.
    """
    from distributed import wait

    most, pending = parse_timedelta(dask.config.get(*_PATIENCE)), set(futures)
    since = said = time.monotonic()
    while pending:
        trouble = ""
        try:
            done, pending = wait(pending, timeout=_CHECK, return_when="FIRST_COMPLETED")
            yield from done
        except TimeoutError:
            trouble = _trouble(client)
        now = time.monotonic()
        if not trouble:
            since = said = now
            continue
        seconds, address = now - since, client.scheduler.address
        where = f"the Dask cluster at {address} has stood still for {seconds:.0f} s: {trouble}"
        if seconds > most:
            raise TimeoutError(
                f"{where}; needed a worker at work. Start workers or the cluster again (one of this machine "
                "gives a dead worker up that is not back within 15 s, see 'distributed.deploy.lost-worker-"
                f"timeout'), or wait longer: dask.config.set({{{_PATIENCE[0]!r}: '2 hours'}})"
            )
        if now - said >= _SAY:
            said = now
            _log.warning("%s; it is given up after %.0f s", where, most)


def _client(things: tuple[Any, ...]) -> Any:
    """Return the client of the cluster that would compute; None without one, and within its own tasks."""
    client = getattr(get_scheduler(collections=things), "__self__", None)
    if not hasattr(client, "scheduler_info"):
        return None
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return client
    return None  # Dask lets a task wait for others without blocking a thread of the worker


def _trouble(client: Any) -> str:
    """Return why a cluster stands still; an empty word where it may be at work."""
    asked = {"callback_timeout": _CHECK}
    try:
        workers = client.sync(client.scheduler.identity, **asked)["workers"]
        processing = client.sync(client.scheduler.processing, workers=None, **asked)
    except (TimeoutError, OSError) as error:
        return f"its scheduler does not answer ({error or type(error).__name__})"
    if not workers:
        return "it has no worker"
    paused = {address for address, each in workers.items() if each.get("status") == "paused"}
    if len(paused) == len(workers):
        return f"its workers are paused, for want of memory: {', '.join(sorted(paused))}"
    if any(keys for address, keys in processing.items() if address not in paused):
        return ""
    return f"its workers have nothing to do: {', '.join(sorted(workers))}"
