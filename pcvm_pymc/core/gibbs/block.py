"""A joint Hamiltonian update of the large weights and the bias, responses integrated out; compiled.

Given responses, which are pinned to the latent function within their unit noise, large weights of opposite
sign that balance each other move little at a time. Here those weights that move some row's latent value by
more than one, and the bias, follow Hamilton's equations under the likelihood itself (Neal 2011, section
5.5.1.5: a wall is a mirror). Which weights these are does not change on the way, so that the move leaves the
posterior as it is; the other moves let weights in and out.
"""

import math
from typing import NamedTuple

import numpy as np

from pcvm_pymc.core.gibbs.moves import Columns
from pcvm_pymc.core.gibbs.responses import Augmented, Integers, log_label, slope_of_label
from pcvm_pymc.core.gibbs.slices import Parameters, log_size_density
from pcvm_pymc.core.gibbs.vectors import (
    add_multiple,
    add_row,
    copy_into,
    jit,
    part_of_caller,
    product,
    product_of_transposed,
    row_product,
)
from pcvm_pymc.core.pieces.probit import Array

_MOST = 30  # weights: of more, few are determined by the data, and the move would cost a sweep
_MOST_BOUNCES = 100  # of one step, then the move is given up: both ways alike
_CURVATURE = 0.1  # a row's, that of a probit being between 0 and 1 and, of most rows, small
_SOFTNESS = 0.04  # of the prior: a visible weight may be some five of its units from the others
_BIAS_SOFTNESS = 0.1
_STEP, _JITTER = 0.2, 0.4  # in units of the mass; up to 20 steps reach about a standard deviation
_MOST_STEPS = 20


class _Block(NamedTuple):
    """What moves together, in units in which a weight of one moves some row's latent value by one.

    Attributes
    ----------
    columns : ndarray, shape (k + 1, n_obs)
        Signed basis functions of the k weights, then ones for the bias; a row each.
    unit : ndarray, shape (k,)
    offset : ndarray, shape (n_obs,)
        The latent function without them.
    root : ndarray, shape (k + 1, k + 1)
        Of the inverse of the mass, which knows the set of weights but not their sizes. Momenta are in its
        units, in which they are standard normal.
    """

    columns: Array
    unit: Array
    offset: Array
    root: Array


class _Given(NamedTuple):
    """What the block moves under: labels, the hyperprior with d = `rate`, and the likelihood."""

    label: Integers
    prior: Parameters
    rate: float
    likelihood: Augmented


@jit
def _root_of_inverse(mass: Array) -> Array:
    """Return the lower triangle R with R mass R' = I; of the mass only the lower triangle is read.

    Unit vectors become orthonormal under the mass one after another (Gram and Schmidt).
    """
    root = np.empty(mass.shape)
    for a in range(len(mass)):
        for b in range(len(mass)):
            root[a, b] = 0.0
        root[a, a], square = 1.0, mass[a, a]
        for b in range(a):
            share = 0.0
            for j in range(b + 1):
                share += root[b, j] * mass[a, j]
            square -= share * share
            for j in range(b + 1):
                root[a, j] -= share * root[b, j]
        for b in range(a + 1):
            root[a, b] /= math.sqrt(square)
    return root


@part_of_caller
def _block(
    Phi: Array, sign: Array, unit: Array, which: Integers, place: Array, latent: Array
) -> _Block:
    k, offset = len(which), np.empty(len(latent))
    columns, mass = np.empty((k + 1, len(latent))), np.empty((k + 1, k + 1))
    copy_into(offset, latent)
    for a in range(k + 1):
        scale = sign[which[a]] * unit[a] if a < k else 0.0
        for i in range(len(latent)):
            columns[a, i] = scale * Phi[i, which[a]] if a < k else 1.0
        add_row(offset, -place[a], columns, a)
        for b in range(a + 1):
            mass[a, b] = _CURVATURE * row_product(columns, a, columns[b])
        mass[a, a] += _SOFTNESS if a < k else _BIAS_SOFTNESS
    return _Block(columns, unit, offset, _root_of_inverse(mass))


@jit
def _potential(block: _Block, place: Array, latent: Array, given: _Given) -> float:
    """Return minus the log density of the block, z integrated out."""
    label, prior, rate, likelihood = given
    k = len(block.unit)
    bias = place[k]
    total = (prior.e + 0.5) * math.log1p(bias * bias / (2.0 * prior.f))
    for a in range(k):
        total -= log_size_density(place[a] * block.unit[a], prior.c, rate)
    for i in range(len(label)):
        total -= log_label(likelihood, label[i] * latent[i])
    return total


@jit
def _push(
    momentum: Array, step: float, block: _Block, place: Array, latent: Array, given: _Given
) -> None:
    """Take `step` times the gradient of `_potential` from the momentum."""
    label, prior, rate, likelihood = given
    k, pull, slope = len(block.unit), np.empty(len(label)), np.empty(len(place))
    for i in range(len(label)):
        pull[i] = -label[i] * slope_of_label(likelihood, label[i] * latent[i])
    product(block.columns, pull, slope)
    for a in range(k):
        size = place[a] * block.unit[a]
        slope[a] += (2.0 * prior.c + 1.0) * size * block.unit[a] / (size * size + 2.0 * rate)
    bias = place[k]
    slope[k] += (2.0 * prior.e + 1.0) * bias / (bias * bias + 2.0 * prior.f)
    for a in range(k + 1):
        momentum[a] -= step * row_product(block.root, a, slope)


@part_of_caller
def _drift(place: Array, momentum: Array, root: Array, time: float) -> bool:
    """Move on, reflected where a weight would fall to one unit; return whether that came to an end."""
    k, velocity = len(place) - 1, np.empty(len(place))
    for _ in range(_MOST_BOUNCES):
        product_of_transposed(root, momentum, velocity)
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
        square = 0.0
        for a in range(wall, k + 1):
            square += root[a, wall] * root[a, wall]
        for a in range(wall, k + 1):
            momentum[a] -= 2.0 * velocity[wall] / square * root[a, wall]
    return False


@part_of_caller
def _visible(size: Array, peak: Array) -> Integers:
    """Return the weights that move some row's latent value by more than one."""
    which, n = np.empty(len(size), np.int64), 0
    for j in range(len(size)):
        if size[j] * peak[j] > 1.0:
            which[n] = j
            n += 1
    return which[:n]


@part_of_caller
def move_visible_ones(
    basis: Columns,
    sign: Array,
    label: Integers,
    size: Array,
    bias: float,
    latent: Array,
    prior: Parameters,
    rate: float,
    likelihood: Augmented,
    rng: np.random.Generator,
) -> float:
    """Move the visible weights of one score (`size` and `latent` in place); return the bias.

    References
    ----------
    R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo.
    """
    peak = basis.peak
    which = _visible(size, peak)
    k = len(which)
    if k == 0 or k > _MOST:
        return bias
    unit, place, momentum = np.empty(k), np.empty(k + 1), np.empty(k + 1)
    for a in range(k):
        unit[a] = 1.0 / peak[which[a]]
        place[a] = size[which[a]] * peak[which[a]]
    place[k] = bias
    block = _block(basis.Phi, sign, unit, which, place, latent)
    given = _Given(label, prior, rate, likelihood)
    moved = np.empty(len(latent))
    copy_into(moved, latent)
    rise = -_potential(block, place, moved, given)
    for a in range(k + 1):
        momentum[a] = rng.standard_normal()
        rise -= 0.5 * momentum[a] * momentum[a]
    step = _STEP * (1.0 + _JITTER * (2.0 * rng.random() - 1.0))
    n_steps = 1 + int(rng.random() * _MOST_STEPS)
    for n in range(n_steps + 1):
        if n > 0:
            if not _drift(place, momentum, block.root, step):
                return bias
            copy_into(moved, block.offset)
            for a in range(k + 1):
                add_row(moved, place[a], block.columns, a)
        share = 1.0 if 0 < n < n_steps else 0.5
        _push(momentum, share * step, block, place, moved, given)
    rise += _potential(block, place, moved, given)
    for a in range(k + 1):
        rise += 0.5 * momentum[a] * momentum[a]
    if not rng.standard_exponential() > rise:  # nor where it is not a number
        return bias
    copy_into(latent, moved)
    for a in range(k):
        size[which[a]] = place[a] * unit[a]
    return place[k]
