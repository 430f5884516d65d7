"""Loops over vectors in place of array expressions where these take longer to compile.

An assigned slice compiles the texts of its errors, a product of matrices its checks of shapes; the sampler is
compiled at its first use, while somebody waits. Sums may be taken in another order (`reordered`): vectorised,
they are as fast as BLAS.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import jit, reordered

type Integers = NDArray[np.int64]

# for what is called at one place of a sweep: compiled as a part of its caller, and not by itself before
part_of_caller = partial(jit, inline="always")


@jit
def add_multiple(target: Array, factor: float, values: Array) -> None:
    """Add `factor` times the values."""
    for i in range(len(values)):
        target[i] += factor * values[i]


@reordered
def row_product(matrix: Array, row: int, vector: Array) -> float:
    """Return the product of a row and a vector."""
    out = 0.0
    for k in range(len(vector)):
        out += matrix[row, k] * vector[k]
    return out


@reordered
def add_row(target: Array, factor: float, matrix: Array, row: int) -> None:
    """Add `factor` times a row."""
    for k in range(len(target)):
        target[k] += factor * matrix[row, k]


@jit
def product(matrix: Array, vector: Array, out: Array) -> None:
    """Write the product of a matrix and a vector."""
    for i in range(len(out)):
        out[i] = row_product(matrix, i, vector)


@jit
def product_of_transposed(matrix: Array, vector: Array, out: Array) -> None:
    """Write the product of a transposed matrix and a vector."""
    for k in range(len(out)):
        out[k] = 0.0
    for i in range(len(vector)):
        add_row(out, vector[i], matrix, i)
