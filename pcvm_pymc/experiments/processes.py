"""Calls in several processes of this machine."""

import signal
import warnings
from collections.abc import Generator, Iterable
from typing import Any

from joblib import Parallel, parallel_config
from joblib.externals.loky import get_reusable_executor

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
    if n_processes == 1:
        for function, given, named in calls:
            with one_blas_thread():
                yield function(*given, **named)
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        run = Parallel(n_processes, return_as="generator_unordered", pre_dispatch="2*n_jobs")
        # Ctrl-C is for this process, which ends the others: they inherit that it is ignored
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            results = run(calls)
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            for result in results:  # noqa: UP028, which would close them before the filter is set
                yield result
        finally:
            with warnings.catch_warnings(action="ignore"):  # joblib's, of calls stopped on purpose
                results.close()
            get_reusable_executor().shutdown(kill_workers=True)
