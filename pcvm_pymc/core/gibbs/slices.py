"""Slice sampling along the moves of a sweep (Neal 2003), compiled.

Each slice is sought in an interval around the point at hand, of a width that does not depend on where in it
the point is. One wider than the slice shrinks to it in a few steps; stepping out of a narrower one would cost
two densities at least. The routines repeat each other: numba does not take the density as an argument without
cost.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.gibbs.responses import (
    AnyAugmented,
    Augmented,
    Integers,
    log_label,
    log_likelihood,
)
from pcvm_pymc.core.gibbs.vectors import jit, part_of_caller
from pcvm_pymc.core.pieces.probit import Array

# widths of the intervals, of log sizes and of logarithms of factors: some times a slice's usual one
_LOG_SIZE_WIDTH = 12.0
_SCALE_WIDTH = 2.0
_RATE_WIDTH = 4.0
_SINGLE_WIDTH = 6.0
_DEVIATIONS = 6.0  # of a transfer given the responses alone
_PRIOR_SCALES = 1e4
SMALLEST_SIZE = 1e-300
_LEAST_LOG_SIZE = math.log(SMALLEST_SIZE)
_MOST_SHRINKS = 1000  # then the point stays: a density that is all rounding has no slice around it
_LARGE = 1e100  # a product beyond gives way to its logarithm


# --- log densities along the moves, precisions integrated out ------------------------------------


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


@jit
def log_size_density(size: float, c: float, rate: float) -> float:
    """Return the half-Student-t's log density in the size, without its constant (chen2009 eq. 21)."""
    return -(c + 0.5) * math.log(1.0 + size * size / (2.0 * rate))


@jit
def log_sizes_density(size: Array, c: float, rate: float) -> float:
    """Return the sum of `log_size_density` over sizes of shape (n_scores, n_basis).

    Logarithms are taken of products: one for many sizes in place of one each.
    """
    log_product, product, half = 0.0, 1.0, 0.5 / rate
    for k in range(size.shape[0]):
        for j in range(size.shape[1]):
            product *= 1.0 + half * size[k, j] * size[k, j]
            if product > _LARGE:
                log_product += math.log(product)
                product = 1.0
    return -(c + 0.5) * (log_product + math.log(product))


@jit
def coordinate_density(x: float, c: float, rate: float, linear: float, bend: float) -> float:
    """Return the log density of x = log size given all else: prior, Jacobian, Gaussian in the size."""
    size = math.exp(x)
    return x + log_size_density(size, c, rate) + linear * size - 0.5 * bend * size * size


@jit
def transfer_density(
    t: float,
    first: float,
    second: float,
    direction: float,
    c: float,
    rate: float,
    linear: float,
    bend: float,
) -> float:
    """Return the log density along sizes (first + t, second + direction t)."""
    first, second = first + t, second + direction * t
    half = 0.5 / rate
    factors = (1.0 + half * first * first) * (1.0 + half * second * second)
    return linear * t - 0.5 * bend * t * t - (c + 0.5) * math.log(factors)


@jit
def scale_density(
    t: float,
    size: Array,
    bias: Array,
    latent: Array,
    label: Integers,
    log_rate: float,
    prior: Parameters,
    likelihood: AnyAugmented,
) -> float:
    """Return the log density along (sizes, biases) -> e^t (sizes, biases), responses integrated out.

    A learned d goes along as e^2t d, which leaves the prior of the sizes as it is; a fixed d does not.
    """
    factor = math.exp(t)
    total = 0.0
    for each in bias:
        scaled = each * factor
        total += t - (prior.e + 0.5) * math.log1p(scaled * scaled / (2.0 * prior.f))
    if prior.rate_shape > 0.0:
        moved = log_rate + 2.0 * t
        total += prior.rate_shape * moved - prior.rate_rate * math.exp(moved)
    else:
        rate = math.exp(log_rate - 2.0 * t)
        total += t * size.size + log_sizes_density(size, prior.c, rate)
    return total + log_likelihood(likelihood, factor, latent, label)


@jit
def single_density(
    t: float,
    size: float,
    move: Array,
    latent: Array,
    label: Integers,
    c: float,
    rate: float,
    likelihood: Augmented,
) -> float:
    """Return the log density along size -> e^t size of one weight of one score, z integrated out.

    `move` is what the weight adds to the latent function now, `latent` the whole of it.
    """
    factor = math.exp(t)
    total = t + log_size_density(size * factor, c, rate)
    for i in range(len(label)):
        total += log_label(likelihood, label[i] * (latent[i] + (factor - 1.0) * move[i]))
    return total


@jit
def log_rate_density(x: float, size: Array, prior: Parameters) -> float:
    """Return the log density of x = log d given all sizes."""
    rate = math.exp(x)
    total = prior.rate_shape * x - prior.rate_rate * rate - 0.5 * size.size * x
    return total + log_sizes_density(size, prior.c, rate)


# --- slices --------------------------------------------------------------------------------------


@part_of_caller
def _shrunk(
    density: Any,
    given: tuple[Any, ...],
    start: float,
    level: float,
    low: float,
    high: float,
    rng: np.random.Generator,
) -> float:
    """Draw where ``density(x, *given)`` is above a level, from an interval that shrinks to the start."""
    for _ in range(_MOST_SHRINKS):
        new = low + (high - low) * rng.random()
        if density(new, *given) > level:
            return new
        if new < start:
            low = new
        else:
            high = new
    return start


@part_of_caller
def _sliced(
    density: Any,
    given: tuple[Any, ...],
    start: float,
    width: float,
    least: float,
    rng: np.random.Generator,
) -> float:
    """Draw from ``density(x, *given)`` above `least`, by an interval of a width around the start."""
    level = density(start, *given) - rng.standard_exponential()
    low = start - width * rng.random()
    high = low + width
    return _shrunk(density, given, start, level, max(low, least), high, rng)


@part_of_caller
def slice_coordinate(
    size: float, c: float, rate: float, linear: float, bend: float, rng: np.random.Generator
) -> float:
    """Draw a size given all else by a slice in its logarithm.

    Sizes are kept above 1e-300: far from the mode, as where basis functions are large and a chain begins,
    the slice reaches down to where the logarithm itself is the level, 1e17 and more below.
    """
    x, given = math.log(size), (c, rate, linear, bend)
    return math.exp(_sliced(coordinate_density, given, x, _LOG_SIZE_WIDTH, _LEAST_LOG_SIZE, rng))


@part_of_caller
def slice_transfer(
    first: float,
    second: float,
    direction: float,
    floor: float,
    c: float,
    rate: float,
    linear: float,
    bend: float,
    rng: np.random.Generator,
) -> float:
    """Draw t along (first + t, second + direction t), both sizes kept above `floor`."""
    given = (first, second, direction, c, rate, linear, bend)
    if direction > 0.0:  # both gain or both lose
        width = min(_DEVIATIONS / math.sqrt(bend), _PRIOR_SCALES * math.sqrt(rate))
        least = max(floor - first, floor - second)
        return _sliced(transfer_density, given, 0.0, width, least, rng)
    # what one gains the other loses
    level = transfer_density(0.0, *given) - rng.standard_exponential()
    return _shrunk(transfer_density, given, 0.0, level, floor - first, second - floor, rng)


@part_of_caller
def slice_scale(
    size: Array,
    bias: Array,
    latent: Array,
    label: Integers,
    log_rate: float,
    prior: Parameters,
    likelihood: AnyAugmented,
    rng: np.random.Generator,
) -> float:
    """Draw the logarithm of a common factor of sizes and biases (and of d, where that is learned)."""
    given = (size, bias, latent, label, log_rate, prior, likelihood)
    return _sliced(scale_density, given, 0.0, _SCALE_WIDTH, -math.inf, rng)


@part_of_caller
def slice_log_rate(x: float, size: Array, prior: Parameters, rng: np.random.Generator) -> float:
    """Draw log d given all sizes."""
    return _sliced(log_rate_density, (size, prior), x, _RATE_WIDTH, -math.inf, rng)


@part_of_caller
def slice_single(
    size: float,
    floor: float,
    move: Array,
    latent: Array,
    label: Integers,
    c: float,
    rate: float,
    likelihood: Augmented,
    rng: np.random.Generator,
) -> float:
    """Draw the logarithm of a factor of one size, which is kept above `floor`."""
    given = (size, move, latent, label, c, rate, likelihood)
    least = math.log(max(floor, SMALLEST_SIZE) / size)
    return _sliced(single_density, given, 0.0, _SINGLE_WIDTH, least, rng)
