"""A joint Hamiltonian update of the large weights and the bias, responses integrated out; compiled.

Given responses, which are pinned to the latent function within their unit noise, large weights of opposite
sign that balance each other move little at a time. Here those weights that move some row's latent value by
more than one, and the bias, follow Hamilton's equations under the likelihood itself (Neal 2011, section
5.5.1.5: a wall is a mirror). Which weights these are does not change on the way, so that the move leaves the
posterior as it is; the other moves let weights in and out.
"""

import math

import numpy as np
from numpy.random import Generator

from pcvm_pymc.core.gibbs.moves import Columns, Given, Score, log_size_density
from pcvm_pymc.core.gibbs.responses import log_label
from pcvm_pymc.core.gibbs.vectors import (
    Integers,
    add_multiple,
    add_row,
    copy_into,
    jit,
    part_of_caller,
    places_above,
    product,
    product_of_transposed,
    row_product,
)
from pcvm_pymc.core.pieces.probit import Array

_MOST = 30  # weights: of more, few are determined by the data, and the move would cost a sweep
_MOST_BOUNCES = 100  # of one step, then the move is given up: both ways alike
_CURVATURE = 0.1  # a row's, that of a probit being between 0 and 1 and, of most rows, small
_SOFTNESS = 0.04  # of the prior: a visible weight may be some five of its units from the others
_BIAS_SOFTNESS = 0.1  # mass of the bias for its prior, as above
_STEP, _JITTER = 0.2, 0.4  # in units of the mass; up to 20 steps reach about a standard deviation
_MOST_STEPS = 20  # of a trajectory, whose number is drawn from 1 to this


@jit
def _root_of_inverse(mass: Array) -> Array:
    """Return the upper triangle R with R' mass R = I; of the mass only the lower triangle is read.

    Unit vectors become orthonormal under the mass one after another (Gram and Schmidt).
    """
    root = np.zeros(mass.shape)
    for a in range(len(mass)):
        root[a, a], square = 1.0, mass[a, a]
        for b in range(a):
            share = 0.0
            for j in range(b + 1):
                share += root[j, b] * mass[a, j]
            square -= share * share
            for j in range(b + 1):
                root[j, a] -= share * root[j, b]
        for j in range(a + 1):
            root[j, a] /= math.sqrt(square)
    return root


@part_of_caller
def _block(Phi: Array, sign: Array, which: Integers, unit: Array) -> tuple[Array, Array]:
    """Return what moves together, and in which units.

    Places are in units in which a weight of one moves some row's latent value by one: `unit`, shape (k + 1,),
    the bias last.

    Returns
    -------
    columns : ndarray, shape (k + 1, n_obs)
        Signed basis functions of the k weights, then ones for the bias; a row each.
    root : ndarray, shape (k + 1, k + 1)
        Of the inverse of the mass, which knows the set of weights but not their sizes. Momenta are in its
        units, in which they are standard normal.
    """
    k, n_obs = len(which), len(Phi)
    columns, mass = np.empty((k + 1, n_obs)), np.empty((k + 1, k + 1))
    for a in range(k + 1):
        for i in range(n_obs):
            columns[a, i] = sign[which[a]] * unit[a] * Phi[i, which[a]] if a < k else 1.0
        for b in range(a + 1):
            mass[a, b] = _CURVATURE * row_product(columns, a, columns[b])
        mass[a, a] += _SOFTNESS if a < k else _BIAS_SOFTNESS
    return columns, _root_of_inverse(mass)


@jit
def _log_density(
    columns: Array, unit: Array, place: Array, latent: Array, given: Given, slope: Array
) -> float:
    """Return the log density of the block, z integrated out, and write its gradient into `slope`."""
    label, prior, rate, flip = given
    total, score = 0.0, np.empty(len(label))
    for i in range(len(label)):
        value, of_label = log_label(flip, label[i] * latent[i])
        total += value
        score[i] = label[i] * of_label
    product(columns, score, slope)
    for a in range(len(place)):
        c, d = (prior.c, rate) if a < len(place) - 1 else (prior.e, prior.f)
        size = place[a] * unit[a]
        total += log_size_density(size, c, d)
        slope[a] -= (2.0 * c + 1.0) * size * unit[a] / (size * size + 2.0 * d)
    return total


@part_of_caller
def _drift(place: Array, momentum: Array, root: Array, time: float) -> bool:
    """Move on, reflected where a weight would fall to one unit; return whether that came to an end."""
    k, velocity = len(place) - 1, np.empty(len(place))
    for _ in range(_MOST_BOUNCES):
        product(root, momentum, velocity)
        wall, when = -1, time
        for a in range(k):
            if velocity[a] < 0.0:
                until = max((1.0 - place[a]) / velocity[a], 0.0)
                if until < when:
                    wall, when = a, until
        add_multiple(place, when, velocity)
        if wall < 0:
            return True
        time -= when
        place[wall] = 1.0
        bounce = 2.0 * velocity[wall] / row_product(root, wall, root[wall])
        add_row(momentum, -bounce, root, wall)
    return False


@part_of_caller
def move_visible_ones(basis: Columns, given: Given, score: Score, rng: Generator) -> None:
    """Move the visible weights and the bias; the latent values follow.

    References
    ----------
    R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo.
    """
    size, peak = score.size, basis.peak
    which = places_above(size * peak, 1.0)
    k = len(which)
    if k == 0 or k > _MOST:
        return
    unit, place = np.ones(k + 1), np.empty(k + 1)
    momentum, slope, push = np.empty(k + 1), np.empty(k + 1), np.empty(k + 1)
    for a in range(k):
        unit[a] = 1.0 / peak[which[a]]
        place[a] = size[which[a]] * peak[which[a]]
    place[k] = score.bias[0]
    columns, root = _block(basis.Phi, score.sign, which, unit)
    begun, moved = place.copy(), score.latent.copy()
    value = _log_density(columns, unit, place, moved, given, slope)
    rise = value
    for a in range(k + 1):
        momentum[a] = rng.standard_normal()
        rise -= 0.5 * momentum[a] * momentum[a]
    step = _STEP * (1.0 + _JITTER * (2.0 * rng.random() - 1.0))
    n_steps = 1 + int(rng.random() * _MOST_STEPS)
    for n in range(n_steps + 1):
        if n > 0:
            if not _drift(place, momentum, root, step):
                return
            product_of_transposed(columns, place - begun, moved)
            moved += score.latent
            value = _log_density(columns, unit, place, moved, given, slope)
        share = 1.0 if 0 < n < n_steps else 0.5
        product_of_transposed(root, slope, push)
        add_multiple(momentum, share * step, push)
    rise -= value
    for a in range(k + 1):
        rise += 0.5 * momentum[a] * momentum[a]
    if not rng.standard_exponential() > rise:  # nor where it is not a number
        return
    copy_into(score.latent, moved)
    for a in range(k):
        size[which[a]] = place[a] * unit[a]
    score.bias[0] = place[k]
