"""The moves of a sweep, compiled: sizes of one score given its responses, and moves without responses."""

import math
from typing import NamedTuple

import numpy as np

from pcvm_pymc.core.gibbs.responses import Augmented, Integers
from pcvm_pymc.core.gibbs.slices import (
    SMALLEST_SIZE,
    Parameters,
    slice_coordinate,
    slice_single,
    slice_transfer,
)
from pcvm_pymc.core.gibbs.vectors import (
    add_multiple,
    add_row,
    jit,
    multiply,
    part_of_caller,
    product,
    product_of_transposed,
    reordered,
    row_product,
    total,
)
from pcvm_pymc.core.pieces.probit import Array

_N_LARGEST = 6


class Columns(NamedTuple):
    """Basis functions as compiled code takes them; the same for all scores and sweeps.

    Attributes
    ----------
    left : ndarray, shape (n_obs, rank)
        Orthonormal columns.
    right : ndarray, shape (n_basis, rank)
        Phi = left right', to rounding: kernels are close to low rank, which a sweep's time follows.
    neighbours : ndarray of int, shape (n_basis, k)
        Nearest columns of Phi, with which a weight exchanges size.
    ones : ndarray, shape (rank,)
        left' 1.
    border : ndarray, shape (n_basis,)
        Phi' 1.
    norm : ndarray, shape (n_basis,)
        Squared norms of Phi's columns.
    Phi : ndarray, shape (n_obs, n_basis)
    peak : ndarray, shape (n_basis,)
        Largest values of Phi's columns, without their signs.
    """

    left: Array
    right: Array
    neighbours: Integers
    ones: Array
    border: Array
    norm: Array
    Phi: Array
    peak: Array


@jit
def write_latent(basis: Columns, sign: Array, size: Array, inside: Array, latent: Array) -> None:
    """Write ``right' w`` of one score into `inside`, its latent values but for the bias into `latent`."""
    weight = np.empty(len(size))
    for j in range(len(size)):
        weight[j] = sign[j] * size[j]
    product_of_transposed(basis.right, weight, inside)
    product(basis.left, inside, latent)


@reordered
def _transfer(
    first: int,
    second: int,
    floor: float,
    right: Array,
    ones: Array,
    border: Array,
    sign: Array,
    size: Array,
    slope: Array,
    spread: float,
    c: float,
    rate: float,
    rng: np.random.Generator,
) -> None:
    """Move weight from one basis to another, their signed sum kept: f changes by t (phi_1 - phi_2).

    Arrays one by one: to take them out of a tuple counts references, which is a tenth of its time.
    """
    rank = right.shape[1]
    inner, bend = 0.0, 0.0
    for k in range(rank):
        difference = right[first, k] - right[second, k]
        inner += difference * slope[k]
        bend += difference * difference
    edge = border[first] - border[second]
    bend = max(bend - edge * edge / spread, 0.0)
    s = sign[first]
    direction = -s * sign[second]
    t = slice_transfer(size[first], size[second], direction, floor, c, rate, s * inner, bend, rng)
    size[first] = max(size[first] + t, SMALLEST_SIZE)
    size[second] = max(size[second] + direction * t, SMALLEST_SIZE)
    shared = s * t * edge / spread
    for k in range(rank):
        slope[k] -= s * t * (right[first, k] - right[second, k]) - shared * ones[k]


@jit
def _largest(size: Array, number: int) -> tuple[Integers, float]:
    """Return where the `number` largest sizes are, in ascending places, and the next largest size.

    Fewer than `number` where some equal the next largest.
    """
    top = np.empty(number + 1)  # descending
    for i in range(number + 1):
        top[i] = 0.0
    for each in size:
        i = number
        if each > top[i]:
            while i > 0 and top[i - 1] < each:
                top[i] = top[i - 1]
                i -= 1
            top[i] = each
    which, n = np.empty(number, np.int64), 0
    for j in range(len(size)):
        if size[j] > top[number]:
            which[n] = j
            n += 1
    return which[:n], top[number]


@part_of_caller
def update_score(
    basis: Columns,
    prior: Parameters,
    rate: float,
    sign: Array,
    inside: Array,
    response: Array,
    size: Array,
    bias: float,
    latent: Array,
    rng: np.random.Generator,
) -> float:
    """Draw one score's sizes, bias and latent values given its responses z; return the bias.

    The bias is integrated out of the updates of the sizes: Omega = I - 11' / spread. Each move keeps `slope`
    at left' Omega (z - Phi w). `inside` is ``right' w``: of the old weights, of the new ones in the end.
    Sizes and latent values are written where the old ones were.
    """
    right, ones, border, c = basis.right, basis.ones, basis.border, prior.c
    precision = rng.gamma(prior.e + 0.5, 1.0) / (prior.f + 0.5 * bias * bias)
    spread = len(response) + precision
    whole = total(response)
    slope, common = np.empty(len(inside)), whole / spread
    product_of_transposed(basis.left, response, slope)
    for k in range(len(slope)):
        slope[k] -= inside[k]
        common -= ones[k] * inside[k] / spread
    add_multiple(slope, -common, ones)
    # each size in turn
    for j in range(len(size)):
        bend = basis.norm[j] - border[j] * border[j] / spread
        linear = sign[j] * row_product(right, j, slope) + bend * size[j]
        new = max(slice_coordinate(size[j], c, rate, linear, bend, rng), SMALLEST_SIZE)
        delta = sign[j] * (new - size[j])
        size[j] = new
        add_row(slope, -delta, right, j)
        add_multiple(slope, delta * border[j] / spread, ones)
    # exchanges with a neighbour, drawn without regard to the state
    n_near = basis.neighbours.shape[1]
    for j in range(len(size) if n_near else 0):
        k = basis.neighbours[j, int(rng.random() * n_near)]
        _transfer(j, k, 0.0, right, ones, border, sign, size, slope, spread, c, rate, rng)
    # Exchanges among the largest, along ridges that single updates climb slowly. Which these are depends on
    # the state: a size that would fall below the next largest is refused, so that the posterior is invariant.
    # In ascending places: the moves' order must not depend on the sizes either.
    if len(size) > 2:
        largest, floor = _largest(size, min(_N_LARGEST, len(size) - 1))
        for i in range(len(largest)):
            for n in range(i):
                j, k = largest[i], largest[n]
                _transfer(j, k, floor, right, ones, border, sign, size, slope, spread, c, rate, rng)
    write_latent(basis, sign, size, inside, latent)
    bias = (whole - total(latent)) / spread + rng.standard_normal() / math.sqrt(spread)
    for i in range(len(latent)):
        latent[i] += bias
    return bias


@part_of_caller
def update_a_large_one(
    basis: Columns,
    sign: Array,
    label: Integers,
    size: Array,
    latent: Array,
    c: float,
    rate: float,
    likelihood: Augmented,
    rng: np.random.Generator,
) -> None:
    """Draw one of the largest sizes of one score, responses integrated out; `latent` follows.

    A weight far above the others' scale (that of a lonely row) moves by the responses' unit noise at a time
    where they are given. Which are the largest must not change, as in the transfers between them.
    """
    n_largest = min(_N_LARGEST, len(size) - 1)
    if n_largest < 1:
        return
    largest, floor = _largest(size, n_largest)
    if len(largest) == 0:
        return
    j = largest[int(rng.random() * len(largest))]
    column = np.empty(len(latent))
    product(basis.left, basis.right[j], column)
    multiply(column, sign[j] * size[j])
    t = slice_single(size[j], floor, column, latent, label, c, rate, likelihood, rng)
    add_multiple(latent, math.exp(t) - 1.0, column)
    size[j] *= math.exp(t)


@jit
def shift_biases(bias: Array, prior: Parameters, rng: np.random.Generator) -> None:
    """Move all biases together, which several scores' likelihood does not see: a Metropolis step."""
    t, ratio = rng.standard_normal(), 0.0
    for each in bias:
        ratio += math.log1p(each * each / (2.0 * prior.f))
        ratio -= math.log1p((each + t) ** 2 / (2.0 * prior.f))
    if rng.standard_exponential() > -(prior.e + 0.5) * ratio:
        for k in range(len(bias)):
            bias[k] += t
