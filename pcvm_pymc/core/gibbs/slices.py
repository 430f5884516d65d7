"""Slice sampling along the moves of a sweep (Neal 2003), compiled.

The routines repeat each other: numba does not take the density as an argument without cost.
"""

import math

import numpy as np

from pcvm_pymc.core.gibbs.densities import (
    Parameters,
    coordinate_density,
    log_rate_density,
    scale_density,
    single_density,
    transfer_density,
)
from pcvm_pymc.core.gibbs.responses import AnyAugmented, Augmented, Integers
from pcvm_pymc.core.gibbs.vectors import part_of_caller
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "SMALLEST_SIZE",
    "slice_coordinate",
    "slice_log_rate",
    "slice_scale",
    "slice_single",
    "slice_transfer",
]

_LOG_SIZE_WIDTH = 2.0  # slice width for log sizes: the marginal prior's own spread is of order one
_SCALE_WIDTH = 0.3
_SINGLE_WIDTH = 1.0
_MOST_STEPS = 30
SMALLEST_SIZE = 1e-300
_LEAST_LOG_SIZE = math.log(SMALLEST_SIZE)
_MOST_SHRINKS = 1000  # then the point stays: a density that is all rounding has no slice around it


@part_of_caller
def slice_coordinate(
    size: float, c: float, rate: float, linear: float, bend: float, rng: np.random.Generator
) -> float:
    """Draw a size given all else by a slice in its logarithm, stepping out.

    Sizes are kept above 1e-300: far from the mode, as where basis functions are large and a chain begins,
    the slice reaches down to where the logarithm itself is the level, 1e17 and more below.
    """
    x = math.log(size)
    level = coordinate_density(x, c, rate, linear, bend) - rng.standard_exponential()
    low = x - _LOG_SIZE_WIDTH * rng.random()
    high = low + _LOG_SIZE_WIDTH
    while low > _LEAST_LOG_SIZE and coordinate_density(low, c, rate, linear, bend) > level:
        low -= _LOG_SIZE_WIDTH
    while coordinate_density(high, c, rate, linear, bend) > level:
        high += _LOG_SIZE_WIDTH
    low = max(low, _LEAST_LOG_SIZE)
    for _ in range(_MOST_SHRINKS):
        new = low + (high - low) * rng.random()
        if coordinate_density(new, c, rate, linear, bend) > level:
            return math.exp(new)
        if new < x:
            low = new
        else:
            high = new
    return size


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
    level = transfer_density(0.0, first, second, direction, c, rate, linear, bend)
    level -= rng.standard_exponential()
    least = floor - first
    if direction < 0.0:  # what one gains the other loses: the slice is within a bounded interval
        low, high = least, second - floor
    else:
        least = max(least, floor - second)
        width = math.exp(math.log(1e-3) + rng.random() * math.log(1e4))
        low = -width * rng.random()
        high = low + width
        left = int(_MOST_STEPS * rng.random())
        right = _MOST_STEPS - 1 - left
        while (
            left > 0
            and low > least
            and transfer_density(low, first, second, direction, c, rate, linear, bend) > level
        ):
            low -= width
            left -= 1
        while (
            right > 0
            and transfer_density(high, first, second, direction, c, rate, linear, bend) > level
        ):
            high += width
            right -= 1
        low = max(low, least)
    for _ in range(_MOST_SHRINKS):
        t = low + (high - low) * rng.random()
        if transfer_density(t, first, second, direction, c, rate, linear, bend) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t
    return 0.0


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
    level = scale_density(0.0, size, bias, latent, label, log_rate, prior, likelihood)
    level -= rng.standard_exponential()
    low = -_SCALE_WIDTH * rng.random()
    high = low + _SCALE_WIDTH
    left = int(_MOST_STEPS * rng.random())  # bounded: the target can be flat
    right = _MOST_STEPS - 1 - left
    while (
        left > 0
        and scale_density(low, size, bias, latent, label, log_rate, prior, likelihood) > level
    ):
        low -= _SCALE_WIDTH
        left -= 1
    while (
        right > 0
        and scale_density(high, size, bias, latent, label, log_rate, prior, likelihood) > level
    ):
        high += _SCALE_WIDTH
        right -= 1
    for _ in range(_MOST_SHRINKS):
        t = low + (high - low) * rng.random()
        if scale_density(t, size, bias, latent, label, log_rate, prior, likelihood) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t
    return 0.0


@part_of_caller
def slice_log_rate(x: float, size: Array, prior: Parameters, rng: np.random.Generator) -> float:
    """Draw log d given all sizes."""
    level = log_rate_density(x, size, prior) - rng.standard_exponential()
    low = x - _SCALE_WIDTH * rng.random()
    high = low + _SCALE_WIDTH
    while log_rate_density(low, size, prior) > level:
        low -= _SCALE_WIDTH
    while log_rate_density(high, size, prior) > level:
        high += _SCALE_WIDTH
    for _ in range(_MOST_SHRINKS):
        new = low + (high - low) * rng.random()
        if log_rate_density(new, size, prior) > level:
            return new
        if new < x:
            low = new
        else:
            high = new
    return x


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
    level = single_density(0.0, size, move, latent, label, c, rate, likelihood)
    level -= rng.standard_exponential()
    least = math.log(max(floor, SMALLEST_SIZE) / size)
    low = -_SINGLE_WIDTH * rng.random()
    high = low + _SINGLE_WIDTH
    while (
        low > least and single_density(low, size, move, latent, label, c, rate, likelihood) > level
    ):
        low -= _SINGLE_WIDTH
    while single_density(high, size, move, latent, label, c, rate, likelihood) > level:
        high += _SINGLE_WIDTH
    low = max(low, least)
    for _ in range(_MOST_SHRINKS):
        t = low + (high - low) * rng.random()
        if single_density(t, size, move, latent, label, c, rate, likelihood) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t
    return 0.0
