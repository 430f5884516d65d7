"""Cells in this process, in several of this machine, or on a Dask cluster."""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.running.cells import CellTask, failure, run_cell
from pcvm_pymc.experiments.running.progress import Keeper
from pcvm_pymc.experiments.running.records import Cell, Record, RunError, cell_of

__all__ = ["Execute", "executor"]

type Execute = Callable[[Sequence[CellTask]], Iterator[Record]]
DASK_TIMEOUT = "10s"


def executor(jobs: int, dask: str | None) -> Execute:
    """Return what runs cells: processes of this machine, or a cluster if there is an address."""
    if dask is not None:
        return lambda tasks: _on_a_cluster(tasks, dask)
    return lambda tasks: _in_this_machine(tasks, jobs)


def _in_this_machine(tasks: Sequence[CellTask], jobs: int) -> Iterator[Record]:
    """Yield records as cells finish."""
    if jobs == 1:
        yield from map(run_cell, tasks)
        return
    finished: set[Cell] = set()
    try:
        for record in _parallel(tasks, jobs):
            finished.add(cell_of(record))
            yield record
    except TerminatedWorkerError:
        # one of them took its worker down (out of memory): alone, each says which it was
        for task in (each for each in tasks if each.cell not in finished):
            yield _alone(task)


def _parallel(tasks: Iterable[CellTask], jobs: int) -> Iterator[Record]:
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(
            delayed(run_cell)(task) for task in tasks
        )


def _alone(task: CellTask) -> Record:
    try:
        return next(iter(_parallel([task], 2)))
    except TerminatedWorkerError as error:
        reason = f"the worker died, perhaps for want of memory: {first_line(error)}"
        return failure(task, reason)


def _on_a_cluster(tasks: Sequence[CellTask], address: str) -> Iterator[Record]:
    """Yield records as the workers of a Dask cluster finish them."""
    try:
        from distributed import Client

        from pcvm_pymc.estimators.cluster import finished
    except ImportError:
        raise RunError('--dask needs the extra: pip install "pcvm-pymc[dask]"') from None
    try:
        client = Client(address, timeout=DASK_TIMEOUT)
    except (OSError, ValueError) as error:
        raise RunError(f"no Dask cluster answers at {address}: {first_line(error)}") from None
    with client:
        news = _News(client, tasks)
        futures = {
            client.submit(run_cell, replace(task, progress=kept), pure=False, retries=1): place
            for place, (task, kept) in enumerate(zip(tasks, news.keepers, strict=True))
        }
        try:
            for future in finished(client, futures):
                place, raised = futures[future], future.exception()
                news.ends(place)
                yield failure(tasks[place], str(raised)) if raised else future.result()
        except TimeoutError as error:
            raise RunError(str(error)) from None


@dataclass(frozen=True)
class _Told:
    """What a cell on a cluster knows: found by the client and told to it, for a worker may see no folder.

    A cell whose worker dies begins anew with what was found; one of a later run with what was told.
    """

    topic: str
    place: int
    found: Record | None

    def load(self) -> Record | None:
        """Return what the client found."""
        return self.found

    def save(self, record: Record) -> None:
        """Tell the client."""
        from distributed import get_worker

        get_worker().log_event(self.topic, (self.place, record))


class _News:
    """What the cells on a cluster tell; it is kept where each cell's progress is, until the cell ends."""

    def __init__(self, client: Any, tasks: Sequence[CellTask]) -> None:
        topic = f"pcvm-{uuid.uuid4().hex}"
        kept = {place: task.progress for place, task in enumerate(tasks)}
        self._kept: dict[int, Keeper | None] = kept
        self._lock = threading.Lock()
        self.keepers = [
            None if keeper is None else _Told(topic, place, keeper.load())
            for place, keeper in kept.items()
        ]
        client.subscribe_topic(topic, self._comes)

    def ends(self, place: int) -> None:
        """Take note that a cell has ended: what it told before may come later, and is of no more use."""
        with self._lock:
            self._kept.pop(place)

    def _comes(self, event: tuple[float, tuple[int, Record]]) -> None:
        place, record = event[1]
        with self._lock:
            keeper = self._kept.get(place)
            if keeper is not None:
                keeper.save(record)
