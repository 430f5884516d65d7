"""Calls in several processes of this machine, by joblib."""

import signal
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker as loky_tracker

from pcvm_pymc.core.pieces.resources import one_blas_thread


def in_processes(calls: Iterable[Any], n_processes: int) -> Generator[Any]:
    """Yield what calls return, as they end; those of one process run here and in their order.

    BLAS has one thread in each, so that results do not depend on the number of processes.

    Parameters
    ----------
    calls : iterable
        From `joblib.delayed`.
    n_processes : int
    """
    with processes(n_processes) as results:
        yield from results(calls)


@contextmanager
def processes(
    n_processes: int, module: str = ""
) -> Iterator[Callable[[Iterable[Any]], Iterator[Any]]]:
    """Begin processes, which import a module if one is named; yield a function as `in_processes`, for once.

    This one imports it, too, if there are others: an interrupt that ends an import would leave their files.
    Name one that most of the memory is for: joblib ends a process that has grown since its first task.
    """
    if n_processes == 1:
        yield lambda calls: map(_called, calls)
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        run = Parallel(n_processes, return_as="generator_unordered", pre_dispatch="2*n_jobs")
    begun: list[Any] = []

    def results(calls: Iterable[Any]) -> Iterator[Any]:
        for each in begun:  # imports
            list(each)
        with _interrupts_here():
            begun.append(run(calls))
        return begun[-1]

    try:
        if module:
            with _interrupts_here():
                begun.append(run(delayed(_imported)(module) for _ in range(n_processes)))
                import_module(module)
        yield results
    finally:
        with warnings.catch_warnings(action="ignore"):  # joblib's, of calls stopped on purpose
            for each in begun[-1:]:
                each.close()
        get_reusable_executor().shutdown(kill_workers=True)


def _imported(module: str) -> None:
    import_module(module)


def _called(call: Any) -> Any:
    """Return what a call returns that has one thread of BLAS."""
    function, given, named = call
    with one_blas_thread():
        return function(*given, **named)


@contextmanager
def _interrupts_here() -> Iterator[None]:
    """Leave Ctrl-C to this process, which ends those that begin now: they inherit that it is blocked.

    One that comes meanwhile counts at the end of this.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where nothing of this is inherited
        yield
        return
    for tracker in (resource_tracker, loky_tracker):  # which would end what is blocked
        tracker.ensure_running()
    noted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if noted:
        signal.raise_signal(signal.SIGINT)
