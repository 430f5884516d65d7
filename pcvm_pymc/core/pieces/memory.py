"""Whether what a fit holds has room, asked before any of it is made."""

from pathlib import Path

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["available_bytes", "check_room"]

_SMALL = (
    2.0**24
)  # bytes that a process that has come so far has: asking would take as long as a small fit
_COPIES = 3.0  # basis functions, their Gram matrix, and a factor of it


def available_bytes() -> float:
    """Return the bytes that this process may still take, infinite where the system does not say."""
    return min(_unused(), _below_limit(), _in_group())


def _unused() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return np.inf
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024.0 * float(found[0]) if found else np.inf


def _below_limit() -> float:
    """Return what a limit of the address space (``ulimit -v``) leaves."""
    if resource is None:
        return np.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return np.inf if limit == resource.RLIM_INFINITY else float(limit)


def _in_group() -> float:
    """Return what a container's limit leaves (version 2 of Linux' control groups)."""
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return np.inf
    held = [float(line.split()[1]) for line in lines if line.startswith("anon ")]
    return float(most) - held[0] if most.isdigit() and held else np.inf


def check_room(n_obs: int, n_basis: int) -> None:
    """Raise where basis functions of so many rows and bases, and their Gram matrix, do not fit.

    Raises
    ------
    MemoryError
        With what is needed, what there is, and the arguments that help.
    """
    needed = 8.0 * n_basis * max(n_obs, n_basis) * _COPIES
    if needed <= _SMALL:
        return
    there = available_bytes()
    if needed > there:
        raise MemoryError(
            f"{n_obs} rows and {n_basis} bases need about {needed / 2**30:.3g} GiB, and "
            f"{there / 2**30:.3g} GiB are free; give fewer bases (basis=), or rows in "
            "chunks to an estimator (memory_limit=)"
        )
