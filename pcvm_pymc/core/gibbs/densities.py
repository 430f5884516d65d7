"""Log densities along the moves of a sweep, precisions integrated out; compiled."""

import math
from typing import NamedTuple

from pcvm_pymc.core.gibbs.responses import (
    AnyAugmented,
    Augmented,
    Integers,
    log_label,
    log_likelihood,
)
from pcvm_pymc.core.gibbs.vectors import jit
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "Parameters",
    "coordinate_density",
    "log_rate_density",
    "log_size_density",
    "log_sizes_density",
    "scale_density",
    "single_density",
    "transfer_density",
]


_LARGE = 1e100  # a product beyond gives way to its logarithm


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
