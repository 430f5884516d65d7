"""Loops over vectors in place of array expressions: each of those is compiled for a fifth of a second.

An assigned slice compiles the texts of its errors, a product by a scalar the rules of broadcasting, and a new
array for its result; the sampler is compiled at its first use, while somebody waits.
"""

from numba import njit

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["add_multiple", "copy_into", "jit", "multiply", "part_of_caller", "total"]

jit = njit(nogil=True, cache=True, error_model="numpy")
# for what is called at one place of a sweep: compiled as a part of its caller, and not by itself before
part_of_caller = njit(nogil=True, cache=True, error_model="numpy", inline="always")


@jit
def copy_into(target: Array, values: Array) -> None:
    """Write values."""
    for i in range(len(values)):
        target[i] = values[i]


@jit
def add_multiple(target: Array, factor: float, values: Array) -> None:
    """Add `factor` times the values."""
    for i in range(len(values)):
        target[i] += factor * values[i]


@jit
def multiply(target: Array, factor: float) -> None:
    """Multiply by `factor`."""
    for i in range(len(target)):
        target[i] *= factor


@jit
def total(values: Array) -> float:
    """Return the sum."""
    out = 0.0
    for each in values:
        out += each
    return out
