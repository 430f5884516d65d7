"""Moments of a normal density times one factor of the posterior: what expectation propagation matches.

All functions take the cavity's means and variances, shape (n,) each.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv, gammaln, log_ndtr, logsumexp

from pcvm_pymc.core.pieces.probit import Array, curvature, inverse_mills

type Mask = NDArray[np.bool_]

_TAIL_MASS = 1e-16  # of the mixture over precisions that is left out on either side
# standard deviations below zero from where a half-line's moments are asymptotic series
_FAR = -60.0
# of the standard deviation to the mean: an exponential density, the limit, has one
_MOST_SPREAD = 0.95
_BISECTIONS = 80


class Tilted(NamedTuple):
    """Log mass, mean and variance of a tilted density, shape (n,) each."""

    log_mass: Array
    mean: Array
    variance: Array


def probit_tilted(mean: Array, variance: Array) -> Tilted:
    """Return the moments of N(x; mean, variance) Phi(x) (Rasmussen & Williams 2006, eqs. 3.82 to 3.86)."""
    root = np.sqrt(1.0 + variance)
    z, one = mean / root, np.ones_like(mean)
    slope, bend = inverse_mills(z) / root, curvature(z, one) / root**2
    return Tilted(log_ndtr(z), mean + variance * slope, variance * (1.0 - variance * bend))


def half_line_tilted(mean: Array, variance: Array) -> Tilted:
    """Return the moments of N(x; mean, variance) on x >= 0."""
    sd = np.sqrt(variance)
    z = np.asarray(mean / sd)
    near = np.maximum(z, _FAR)
    mills = inverse_mills(near)
    shift, spread = near + mills, 1.0 - mills * (near + mills)
    far = np.minimum(z, _FAR)
    x2 = 1.0 / np.square(far)
    far_shift = -(1.0 - x2 * (2.0 - x2 * (10.0 - 74.0 * x2))) / far
    far_spread = x2 * (1.0 - x2 * (6.0 - x2 * (50.0 - 518.0 * x2)))
    is_far = z < _FAR
    return Tilted(
        log_ndtr(z),
        sd * np.where(is_far, far_shift, shift),
        variance * np.where(is_far, far_spread, spread),
    )


def student_tilted(
    mean: Array, variance: Array, shape: float, rate: float, *, half: bool
) -> Tilted:
    """Return the moments of N(x; mean, variance) times a Student-t, on x >= 0 (twice as high) or everywhere.

    The Student-t is a mixture of normals with precisions from Gamma(shape, rate); given the precision the
    moments are exact. Over its logarithm the integrand is a mixture of log-Gamma densities, one for
    each x, whatever the cavity: the trapezoid rule's error is their Fourier transform, below 1e-11 here.

    Parameters
    ----------
    mean, variance : ndarray, shape (n,)
    shape, rate : float
        Of the precision's Gamma distribution: 2 shape degrees of freedom, scale sqrt(rate / shape).
    half : bool
        Whether x >= 0.
    """
    log_precision, log_weight = _precisions(mean, variance, shape, rate)
    precision = np.exp(log_precision)
    m, v = mean[:, None], variance[:, None]
    shrink = 1.0 + precision * v
    total = v + 1.0 / precision
    log_given = log_weight - 0.5 * (np.log(2.0 * np.pi * total) + m * m / total)
    inner = Tilted(np.zeros_like(log_given), m / shrink, v / shrink)
    if half:
        inner = half_line_tilted(m / shrink, v / shrink)
        log_given = log_given + inner.log_mass + np.log(2.0)
    log_mass = logsumexp(log_given, axis=1)
    share = np.exp(log_given - log_mass[:, None])
    centre = np.sum(share * inner.mean, axis=1)
    away = inner.mean - centre[:, None]
    return Tilted(log_mass, centre, np.sum(share * (inner.variance + away * away), axis=1))


def _precisions(mean: Array, variance: Array, shape: float, rate: float) -> tuple[Array, Array]:
    """Return nodes over the logarithm of the precision, shape (n, n_nodes), and their log weights."""
    spacing = min(0.25, 0.8 / np.sqrt(shape + 0.5))
    largest = np.maximum(mean, 0.0) - np.minimum(mean, 0.0) + 9.0 * np.sqrt(variance)
    least, most = gammaincinv(shape + 0.5, _TAIL_MASS), gammainccinv(shape + 0.5, _TAIL_MASS)
    low = np.log(least) - np.log(rate + 0.5 * largest**2)
    high = np.log(most) - np.log(rate)
    n_nodes = int(np.ceil((high - low.min()) / spacing)) + 1
    t = high - spacing * np.arange(n_nodes)[None, :]
    t = np.broadcast_to(t, (len(mean), n_nodes))
    log_density = shape * (np.log(rate) + t) - rate * np.exp(t) - gammaln(shape)
    return t, log_density + np.log(spacing)


def half_line_matching(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of the normals that have given moments on x >= 0.

    The standard deviation on a half-line is less than the mean: a greater one counts as 0.95 times the mean.

    Parameters
    ----------
    mean, variance : ndarray, shape (n,)
        Of the truncated density; means are positive.
    """
    ratio, one = np.minimum(np.sqrt(variance) / mean, _MOST_SPREAD), np.ones_like(mean)

    def is_left(score: Array) -> Mask:  # the ratio falls as the normal moves to the right
        found = half_line_tilted(score, one)
        return np.sqrt(found.variance) > ratio * found.mean

    score = _bisected(is_left, np.full_like(mean, _FAR), 1.0 / ratio)
    sd = mean / half_line_tilted(score, one).mean
    return score * sd, sd * sd


def half_line_location(mean: Array, variance: Array) -> Array:
    """Return locations of normals whose truncation to x >= 0 has the given means, shape (n,)."""
    sd, one = np.sqrt(variance), np.ones_like(mean)

    def is_left(score: Array) -> Mask:
        return sd * half_line_tilted(score, one).mean < mean

    return sd * _bisected(is_left, -2.0 * np.maximum(sd / mean, 1.0), mean / sd)


def _bisected(is_left: Callable[[Array], Mask], low: Array, high: Array) -> Array:
    """Return by bisection where a condition, true on the left, becomes false."""
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        left = is_left(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return 0.5 * (low + high)
