"""The moves of a sweep, compiled: sizes given the responses, and moves without responses.

Each is a slice sampler along a line (Neal 2003). The slice is sought in an interval around the point at hand,
of a width that does not depend on where in it the point is. One wider than the slice shrinks to it in a few
steps; stepping out of a narrower one would cost two densities at least.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from pcvm_pymc.core.gibbs import vectors
from pcvm_pymc.core.gibbs.responses import log_label
from pcvm_pymc.core.gibbs.vectors import Integers, jit, part_of_caller
from pcvm_pymc.core.pieces.probit import Array

# widths of the intervals, of log sizes and of logarithms of factors: some times a slice's usual one
_LOG_SIZE_WIDTH = 12.0
_SINGLE_WIDTH = 6.0
SCALE_WIDTH = 2.0
RATE_WIDTH = 4.0
_SMALLEST_SIZE = 1e-300  # of a weight: its logarithm is finite
_LEAST_LOG_SIZE = math.log(_SMALLEST_SIZE)
_MOST_SHRINKS = 1000  # then the point stays: a density that is all rounding has no slice around it
_LARGE = 1e100  # a product beyond gives way to its logarithm
_N_LARGEST = 6  # sizes, one of which moves with the responses integrated out


# --- what the moves are given --------------------------------------------------------------------


class Columns(NamedTuple):
    """Basis functions as compiled code takes them; the same for all sweeps.

    Attributes
    ----------
    left : ndarray, shape (n_obs, rank)
        Orthonormal columns.
    right : ndarray, shape (n_basis, rank)
        Phi = left right', to rounding: kernels are close to low rank, which a sweep's time follows.
    ones : ndarray, shape (rank,)
        left' 1.
    border : ndarray, shape (n_basis,)
        Phi' 1.
    norm : ndarray, shape (n_basis,)
        Squared norms of Phi's columns.
    """

    left: Array
    right: Array
    ones: Array
    border: Array
    norm: Array


class Parameters(NamedTuple):
    """A `Hyperprior` as compiled code takes it.

    Attributes
    ----------
    c, e, f : float
        See `Hyperprior`; d belongs to the chain's state.
    rate_shape, rate_rate : float
        Shape and rate of the hyperprior of d, zeros where d is fixed.
    """

    c: float
    e: float
    f: float
    rate_shape: float
    rate_rate: float


class Given(NamedTuple):
    """Constants of a Gibbs sweep: labels, the hyperprior, d = `rate`, the share flipped."""

    label: Integers
    prior: Parameters
    rate: float
    flip: float


class Score(NamedTuple):
    """A state: signs, sizes and bias, shape (1,), and the rows' latent values and responses.

    Moves change sizes, bias and latent values in place.
    """

    sign: Array
    size: Array
    bias: Array
    latent: Array
    response: Array


# --- log densities along the moves, precisions integrated out ------------------------------------


@jit
def log_size_density(size: float, c: float, rate: float) -> float:
    """Return the half-Student-t's log density in the size, without its constant (chen2009 eq. 21)."""
    return -(c + 0.5) * math.log(1.0 + size * size / (2.0 * rate))


@jit
def log_sizes_density(size: Array, c: float, rate: float) -> float:
    """Return the sum of `log_size_density` over sizes of shape (n_basis,).

    Logarithms are taken of products: one for many sizes in place of one each.
    """
    log_product, product, half = 0.0, 1.0, 0.5 / rate
    for value in size:
        product *= 1.0 + half * value * value
        if product > _LARGE:
            log_product += math.log(product)
            product = 1.0
    return -(c + 0.5) * (log_product + math.log(product))


@jit
def coordinate_density(x: float, c: float, rate: float, linear: float, curvature: float) -> float:
    """Return the log density of x = log size given all else: prior, Jacobian, Gaussian in the size."""
    size = math.exp(x)
    return x + log_size_density(size, c, rate) + linear * size - 0.5 * curvature * size * size


@jit
def scale_density(t: float, size: Array, bias: Array, latent: Array, given: Given) -> float:
    """Return the log density along (sizes, bias) -> e^t (sizes, bias), responses integrated out.

    A learned d goes along as e^2t d, which leaves the prior of the sizes as it is; a fixed d
    does not.
    """
    factor, prior, of_labels = math.exp(t), given.prior, 0.0
    for i in range(len(latent)):
        of_labels += log_label(given.flip, given.label[i] * factor * latent[i])
    total = t + of_labels
    total += log_size_density(factor * bias[0], prior.e, prior.f)
    if prior.rate_shape > 0.0:
        return total + 2.0 * prior.rate_shape * t - prior.rate_rate * given.rate * factor * factor
    return total + t * size.size + log_sizes_density(size, prior.c, given.rate / (factor * factor))


@jit
def single_density(t: float, size: float, move: Array, latent: Array, given: Given) -> float:
    """Return the log density along size -> e^t size of one weight, z integrated out.

    `move` is what the weight adds to the latent function now, `latent` the whole of it.
    """
    factor, label, flip = math.exp(t), given.label, given.flip
    total = t + log_size_density(size * factor, given.prior.c, given.rate)
    for i in range(len(label)):
        total += log_label(flip, label[i] * (latent[i] + (factor - 1.0) * move[i]))
    return total


@jit
def log_rate_density(x: float, size: Array, prior: Parameters) -> float:
    """Return the log density of x = log d given all sizes."""
    rate = math.exp(x)
    total = prior.rate_shape * x - prior.rate_rate * rate - 0.5 * size.size * x
    return total + log_sizes_density(size, prior.c, rate)


@part_of_caller
def sliced(
    density: Any, known: tuple[Any, ...], start: float, low: float, high: float, rng: Generator
) -> float:
    """Draw where ``density(x, *known)`` is above a level, from an interval that shrinks to the start."""
    level = density(start, *known) - rng.standard_exponential()
    for _ in range(_MOST_SHRINKS):
        new = low + (high - low) * rng.random()
        if density(new, *known) > level:
            return new
        if new < start:
            low = new
        else:
            high = new
    return start


# --- given the responses -------------------------------------------------------------------------


@jit
def write_latent(basis: Columns, sign: Array, size: Array, bias: float, latent: Array) -> None:
    """Write the latent values."""
    inside = np.empty(basis.right.shape[1])
    vectors.product_of_transposed(basis.right, sign * size, inside)
    vectors.product(basis.left, inside, latent)
    latent += bias


@part_of_caller
def slice_coordinate(
    size: float, c: float, rate: float, linear: float, curvature: float, rng: Generator
) -> float:
    """Draw a size given all else by a slice in its logarithm.

    Sizes are kept above 1e-300: far from the mode, as where basis functions are large and a chain begins,
    the slice reaches down to where the logarithm itself is the level, 1e17 and more below.
    """
    x, known = math.log(size), (c, rate, linear, curvature)
    low = x - _LOG_SIZE_WIDTH * rng.random()
    high, low = low + _LOG_SIZE_WIDTH, max(low, _LEAST_LOG_SIZE)
    return max(math.exp(sliced(coordinate_density, known, x, low, high, rng)), _SMALLEST_SIZE)


@jit
def _largest(size: Array) -> tuple[Integers, float]:
    """Return where the six largest sizes are, in ascending places, and the next largest size.

    Of fewer than seven sizes all but the least.
    """
    floor = np.inf
    for _ in range(min(_N_LARGEST + 1, len(size))):
        below = 0.0
        for value in size:
            if below < value < floor:
                below = value
        floor = below if below > 0.0 else floor  # where many are equally small
    places, n = np.empty(len(size), np.int64), 0
    for j in range(len(size)):
        if size[j] > floor:
            places[n] = j
            n += 1
    return places[:n], floor


@part_of_caller
def update_given_responses(basis: Columns, given: Given, score: Score, rng: Generator) -> None:
    """Draw sizes, bias and latent values given the responses z.

    The bias is integrated out of the updates of the sizes: Omega = I - 11' / spread. Each move keeps `slope`
    at left' Omega (z - Phi w).
    """
    right, ones, border, prior = basis.right, basis.ones, basis.border, given.prior
    sign, size, bias, latent, response = score
    c, rate = prior.c, given.rate
    precision = rng.gamma(prior.e + 0.5, 1.0) / (prior.f + 0.5 * bias[0] * bias[0])
    spread = len(response) + precision
    residual, slope = response - latent + bias[0], np.empty(len(ones))
    residual -= residual.sum() / spread
    vectors.product_of_transposed(basis.left, residual, slope)
    # each size in turn
    for j in range(len(size)):
        curvature = basis.norm[j] - border[j] * border[j] / spread
        linear = sign[j] * vectors.row_product(right, j, slope) + curvature * size[j]
        new = slice_coordinate(size[j], c, rate, linear, curvature, rng)
        delta = sign[j] * (new - size[j])
        size[j] = new
        vectors.add_row(slope, -delta, right, j)
        vectors.add_multiple(slope, delta * border[j] / spread, ones)
    write_latent(basis, sign, size, 0.0, latent)
    rest = response.sum() - latent.sum()
    bias[0] = rest / spread + rng.standard_normal() / math.sqrt(spread)
    latent += bias[0]


# --- responses integrated out --------------------------------------------------------------------


@part_of_caller
def update_a_large_one(basis: Columns, given: Given, score: Score, rng: Generator) -> None:
    """Draw one of the largest sizes, responses integrated out; the latent values follow.

    A weight far above the others' scale (that of a lonely row) moves by the responses' unit noise at a time
    where they are given. Which are the largest must not change, or the posterior would not be invariant.
    """
    size, latent = score.size, score.latent
    largest, floor = _largest(size)
    if len(largest) == 0:
        return
    j = largest[int(rng.random() * len(largest))]
    move = np.empty(len(latent))
    vectors.product(basis.left, basis.right[j], move)
    move *= score.sign[j] * size[j]
    low = -_SINGLE_WIDTH * rng.random()
    high, low = low + _SINGLE_WIDTH, max(low, math.log(floor / size[j]))
    t = sliced(single_density, (size[j], move, latent, given), 0.0, low, high, rng)
    vectors.add_multiple(latent, math.exp(t) - 1.0, move)
    size[j] *= math.exp(t)
