"""Calls in several processes of this machine."""

import signal
import warnings
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, Self

from joblib import Parallel, parallel_config
from joblib.externals.loky import get_reusable_executor

from pcvm_pymc.core.pieces.resources import one_blas_thread

_DAY = 86_400  # seconds that a process waits for work


def in_processes(calls: Iterable[Any], n_processes: int) -> Generator[Any]:
    """Yield what calls return, as they end; those of one process run here and in their order.

    BLAS has one thread in each, so that results do not depend on the number of processes.

    Parameters
    ----------
    calls : iterable
        From `joblib.delayed`.
    n_processes : int
    """
    if n_processes == 1:
        yield from map(_called, calls)
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        run = Parallel(n_processes, return_as="generator_unordered", pre_dispatch="2*n_jobs")
        with _interrupts_here():
            results = run(calls)
        try:
            for result in results:  # noqa: UP028, which would close them before the filter is set
                yield result
        finally:
            with warnings.catch_warnings(action="ignore"):  # joblib's, of calls stopped on purpose
                results.close()
            get_reusable_executor().shutdown(kill_workers=True)


class Team:
    """Processes for a few short calls, of which this is one: the others import a module as it begins.

    Parameters
    ----------
    n_processes : int
        This one included.
    module : str
        Name of what the calls need.
    """

    def __init__(self, n_processes: int, module: str) -> None:
        self._n_others = n_processes - 1
        self._executor: Any = None
        if self._n_others:
            with _interrupts_here():
                self._executor = get_reusable_executor(self._n_others, timeout=_DAY)
                for _ in range(self._n_others):
                    self._executor.submit(import_module, module)

    def __enter__(self) -> Self:
        """Return the team."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the other processes."""
        if self._executor is not None:
            self._executor.shutdown(kill_workers=True)

    def results(self, calls: Iterable[Any]) -> Iterator[Any]:
        """Yield what calls return, as they end, as `in_processes` does; this process takes its share."""
        left, running = iter(calls), set[Future[Any]]()
        while True:
            for call in islice(left, self._n_others and 2 * self._n_others - len(running)):
                running.add(self._executor.submit(_called, call))
            own = next(left, None)
            if own is not None:
                yield _called(own)
            elif not running:
                return
            done, running = wait(running, 0.0 if own else None, FIRST_COMPLETED)
            yield from (each.result() for each in done)


def _called(call: Any) -> Any:
    """Return what a call returns that has one thread of BLAS."""
    function, given, named = call
    with one_blas_thread():
        return function(*given, **named)


@contextmanager
def _interrupts_here() -> Iterator[None]:
    """Leave Ctrl-C to this process, which ends those that begin now: they inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
