"""What a fit may use of the machine: memory, asked for before it is taken, threads of BLAS, compiled code."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from threadpoolctl import ThreadpoolController

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# what coupled matrices may take of a limit, and, in bytes, each worker's where there is none
_COUPLED_SHARE, _WITHOUT_LIMIT = 0.5, 2.0**28
LARGEST_CHUNK = 2048  # more rows at a time are no faster

_SMALL = 2.0**24  # bytes: less is not worth asking, which takes as long as a small fit
_COPIES = 3.0  # basis functions, their Gram matrix, and a factor of it
_WORTH_THREADS = 1e10  # multiplications of one Gram product: some seconds of one core
#: what solvers say of their progress; shown by estimators with ``verbose=True``
PROGRESS = logging.getLogger("pcvm_pymc.progress")
PROGRESS.propagate = False  # messages of every iteration are not for other handlers


# --- memory -------------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of the system; none where there is no such file."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def available_bytes() -> float:
    """Return the bytes that this process may still take, infinite where the system does not say.

    The least of what is unused, of what a limit of the address space (``ulimit -v``) leaves, and of what a
    container's limit does (version 2 of Linux' control groups).
    """
    limits = [np.inf]
    meminfo = _lines(Path("/proc/meminfo"))
    limits += [1024.0 * float(line.split()[1]) for line in meminfo if "MemAvailable:" in line]
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [float(limit)] if limit != resource.RLIM_INFINITY else []
    group = Path("/sys/fs/cgroup")
    most = "".join(_lines(group / "memory.max")).strip()
    used = [line.split()[1] for line in _lines(group / "memory.stat") if line.startswith("anon ")]
    limits += [float(most) - float(used[0])] if most.isdigit() and used else []
    return min(limits)


def check_room(n_obs: int, n_basis: int) -> None:
    """Raise where basis functions of so many rows and bases, and their Gram matrix, do not fit.

    Raises
    ------
    MemoryError
        With what is needed, what there is, and the arguments that help.
    """
    needed = 8.0 * n_basis * max(n_obs, n_basis) * _COPIES
    if needed > _SMALL and needed > (there := available_bytes()):
        sizes = f"{needed / 2**30:.3g} GiB, and {there / 2**30:.3g} GiB are free"
        fault = f"{n_obs} rows and {n_basis} bases need about {sizes}"
        raise MemoryError(f"{fault}; give fewer bases (basis=) or a memory_limit=")


# --- threads ------------------------------------------------------------------------------------


@cache
def _controller() -> ThreadpoolController:
    """Return threadpoolctl's controller, made once: it reads every mapped file to find BLAS."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread.

    Where its pool is that of the whole process, one Python thread sets its size and the others change
    nothing: threadpoolctl sees to that.
    """
    return _controller().limit(limits=1, user_api="blas")


def blas_thread_count() -> int:
    """Return how many threads BLAS has now, one where there is none that can be asked."""
    counts = [
        library.num_threads
        for library in _controller().lib_controllers
        if library.user_api == "blas"
    ]
    return max(counts, default=1)


def threads() -> int:
    """Return how many threads ``joblib.parallel_config(n_jobs=...)`` asks for; one without it."""
    return int(joblib.effective_n_jobs(None))


def blas_threads(n_obs: float, n_basis: float) -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread where a Gram product is small; else as many as it has.

    With two threads small products and factorisations take twice the time and more, and five times where
    other work runs: a thread of BLAS waits in a loop.

    Parameters
    ----------
    n_obs, n_basis : float
        Rows and columns of the basis functions.
    """
    return one_blas_thread() if n_obs * n_basis**2 < _WORTH_THREADS else nullcontext()


def threads_by_size[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of a problem: BLAS gets as many threads as the basis functions are worth."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        problem: Any = args[0]
        # rows in chunks have their own rule
        with blas_threads(*getattr(problem.Phi, "shape", (float("inf"), 1.0))):
            return function(*args, **kwargs)

    return run


def chunk_rows(
    memory_limit: float,
    n_basis: int,
    n_features: int,
    n_jobs: int = 1,
    n_scores: int = 1,
    *,
    copies: int = 1,
    coupled: bool = False,
) -> int:
    """Return how many rows at a time stay within a limit.

    Parameters
    ----------
    memory_limit : float
        Bytes for what the fit itself keeps: chunks, one per job, and matrices of the size of the
        basis. The inputs are not counted.
    n_basis, n_features : int
    n_jobs, n_scores : int
    copies : int
        How many copies of a chunk and the matrices are in memory.
    coupled : bool
        Whether a share of the limit is kept for `has_room_for_coupled`.

    Raises
    ------
    ValueError
        If not even a chunk of a single row fits.
    """
    # per job a Gram matrix and a chunk's; the kept one, the solver's copy, and a sum of two
    square = 8.0 * n_basis**2 * (3 + 2 * n_jobs)
    per_row = 8.0 * (n_basis + 2 * n_features + 16 * n_scores) * n_jobs
    share = 1.0 - _COUPLED_SHARE if coupled else 1.0
    rows = (share * memory_limit / copies - square) / per_row
    if rows < 1:  # the number that is printed is not rounded down
        least = 1.005 * copies * (square + per_row) / share
        fault = f"memory_limit={memory_limit:.3g} bytes is too small for {n_basis} bases"
        remedy = "give that, or fewer bases (basis=...)"
        raise ValueError(f"{fault}; needed at least {least:.3g}: {remedy}")
    return int(min(rows, LARGEST_CHUNK))


def has_room_for_coupled(
    memory_limit: float | None, n_basis: int, n_scores: int, n_jobs: int = 1
) -> bool:
    """Return whether the matrix that couples several scores may be summed, see `Sums`.

    One per job, a sum of two and the factor may take half of the limit, see `chunk_rows`.
    """
    matrix = 8.0 * (n_scores * (n_basis + 1)) ** 2
    limit = _WITHOUT_LIMIT if memory_limit is None else _COUPLED_SHARE * memory_limit
    return (3 + n_jobs) * matrix <= limit


# --- compiled functions -------------------------------------------------------------------------

_warn_once = cache(logging.getLogger(__name__).warning)
_UNCACHED = (
    "compiled functions cannot be kept on disk. Set NUMBA_CACHE_DIR to a folder that can be written"
)


class _Cache(FunctionCache):
    """numba's folder of compiled functions; a full disk ends no fit."""

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled, or say that it cannot be written."""
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn_once(_UNCACHED)


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function that numba compiles at its first call, and keeps on disk where that can be written.

    Parameters
    ----------
    function : callable
    **options
        Of ``numba.njit``.
    """
    compiled = njit(nogil=True, error_model="numpy", **options)(function)
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # neither the package nor the user's folder can be written
        _warn_once(_UNCACHED)
    return compiled


#: sums in any order, so that they are vectorised
reordered = partial(jit, fastmath={"reassoc", "contract"})
