"""Threads of BLAS by the size of a problem: small ones are slower with several, and spin."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any, Concatenate, Protocol

from threadpoolctl import ThreadpoolController

__all__ = ["blas_thread_count", "blas_threads", "one_blas_thread", "threads_by_size"]

_WORTH_THREADS = 1e10  # multiplications of one Gram product: some seconds of one core


@cache
def _controller() -> ThreadpoolController:
    """Return what limits the threads of BLAS; it reads every mapped file to find it: once, not each time."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread.

    Where its pool is that of the whole process, one Python thread sets its size and the others change
    nothing: threadpoolctl sees to that.
    """
    return _controller().limit(limits=1, user_api="blas")


def blas_thread_count() -> int:
    """Return how many threads BLAS has here and now, one where there is none that can be asked."""
    found = [each.num_threads for each in _controller().lib_controllers if each.user_api == "blas"]
    return max(found, default=1)


def blas_threads(n_obs: float, n_basis: float) -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread where a Gram product is small; else as many as it has.

    Small products and factorisations cost two threads twice the time and more of one, and five times where
    other work runs besides: a thread of BLAS waits in a loop.

    Parameters
    ----------
    n_obs, n_basis : float
        Rows and columns of the basis functions.
    """
    return one_blas_thread() if n_obs * n_basis**2 < _WORTH_THREADS else nullcontext()


class _HasPhi(Protocol):
    @property
    def Phi(self) -> Any: ...


def threads_by_size[Q: _HasPhi, **P, R](
    function: Callable[Concatenate[Q, P], R],
) -> Callable[Concatenate[Q, P], R]:
    """Return a function of a problem, run with as many threads of BLAS as its basis functions are worth."""

    @wraps(function)
    def run(problem: Q, /, *args: P.args, **kwargs: P.kwargs) -> R:
        shape = getattr(
            problem.Phi, "shape", (float("inf"), 1.0)
        )  # rows in chunks have their own rule
        with blas_threads(*shape):
            return function(problem, *args, **kwargs)

    return run
