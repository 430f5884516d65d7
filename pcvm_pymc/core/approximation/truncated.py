"""Exact draws from a normal distribution truncated to an orthant; compiled."""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky

from pcvm_pymc.core.pieces.class_integrals import jit
from pcvm_pymc.core.pieces.probit import Array

_WARM_UP = 100  # trajectories before the first draw
_PER_DRAW = 4  # trajectories for each draw
_JUST_HIT = 1e-9  # a wall just left is not hit again sooner


def truncated_normal_draws(
    mean: Array,
    covariance: Array,
    n_signed: int,
    start: Array,
    rng: np.random.Generator,
    *,
    draws: int,
) -> Array:
    """Return draws of N(mean, covariance) with the first values at least zero, shape (draws, n).

    Hamiltonian dynamics are solved exactly between the walls and reflected at them (Pakman & Paninski 2014):
    no step size, nothing is rejected, and correlations of the normal do not slow it down. The draws
    are a Markov chain, four quarter turns from one to the next, begun after a hundred.

    Parameters
    ----------
    mean : ndarray, shape (n,)
        Before truncation.
    covariance : ndarray, shape (n, n)
    n_signed : int
        How many values, the first ones, are at least zero.
    start : ndarray, shape (n,)
        Where to begin.
    rng : numpy.random.Generator
    draws : int

    References
    ----------
    A. Pakman and L. Paninski (2014), "Exact Hamiltonian Monte Carlo for truncated multivariate Gaussians",
    JCGS 23(2).
    """
    sd = np.sqrt(np.diag(covariance))
    inside = start.copy()
    inside[:n_signed] = np.maximum(start[:n_signed], 1e-3 * sd[:n_signed])
    root = np.ascontiguousarray(cholesky(covariance, lower=True))
    normal = _Normal(mean, np.ascontiguousarray(covariance), root, n_signed)
    return _run(normal, inside - mean, rng, draws)


class _Normal(NamedTuple):
    """The normal distribution before truncation, and the Cholesky factor of its covariance."""

    mean: Array
    covariance: Array
    root: Array
    n_signed: int


@jit
def _run(normal: _Normal, away: Array, rng: np.random.Generator, draws: int) -> Array:
    out = np.empty((draws, len(away)))
    for _ in range(_WARM_UP):
        _quarter_turn(normal, away, rng)
    for i in range(draws):
        for _ in range(_PER_DRAW):
            _quarter_turn(normal, away, rng)
        out[i] = normal.mean + away
        for j in range(normal.n_signed):
            out[i, j] = max(out[i, j], 0.0)
    return out


@jit
def _quarter_turn(normal: _Normal, away: Array, rng: np.random.Generator) -> None:
    """Move the distance from the mean along ``away cos t + speed sin t``, reflected at the walls."""
    mean, covariance, root, n_signed = normal
    speed = np.dot(root, rng.standard_normal(len(mean)))
    left, last = 0.5 * math.pi, -1
    while True:
        time, wall = left, -1
        cosine, sine = math.cos(time), math.sin(time)
        for j in range(n_signed):
            # no arc cosine for most: up now, or still on the way down then, and not below zero then
            if mean[j] + away[j] * cosine + speed[j] * sine >= 0.0 and (
                speed[j] >= 0.0 or speed[j] * cosine <= away[j] * sine
            ):
                continue
            each = _time_to_wall(mean[j], away[j], speed[j], j == last)
            if each < time:
                time, wall = each, j
                cosine, sine = math.cos(time), math.sin(time)
        for k in range(len(mean)):
            place = away[k]
            away[k] = place * cosine + speed[k] * sine
            speed[k] = speed[k] * cosine - place * sine
        if wall < 0:
            return
        away[wall] = -mean[wall]
        push = 2.0 * speed[wall] / covariance[wall, wall]
        for k in range(len(mean)):
            speed[k] -= push * covariance[k, wall]
        left, last = left - time, wall


@jit
def _time_to_wall(mean: float, away: float, speed: float, just_hit: bool) -> float:
    """Return when ``mean + away cos t + speed sin t`` falls below zero; infinite where it does not."""
    radius = math.hypot(away, speed)
    if radius <= mean:
        return math.inf
    time = math.atan2(speed, away) + math.acos(min(-mean / radius, 1.0))
    if just_hit and abs(time) < _JUST_HIT:
        return math.inf
    return max(time, 0.0)
