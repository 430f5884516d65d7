"""Moves of an unknown width that take the weights along, so that the latent function changes little.

While the weights stay, a width has hardly any room. Here a size is written as ``exp(m + s x)``, with mean and
deviation of its logarithm given the sizes before it, under a normal approximation of the likelihood and given
precisions. The width moves while every x stays, as if most of the weights were integrated out. What is
approximate decides how far it moves, not what is drawn: moves are judged by the posterior density itself.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState, make_columns
from pcvm_pymc.core.gibbs.responses import log_likelihood
from pcvm_pymc.core.gibbs.vectors import Integers
from pcvm_pymc.core.pieces.class_integrals import gap_of, jit, log_ndtr_and_mills
from pcvm_pymc.core.pieces.probit import Array

_WIDTH = 1.5  # of the interval in log(width) that a slice is sought in
_NARROWEST = 1e-6  # then the width stays
_MOST = 60  # sizes that go along, those of the least precisions; the others are rescaled
_FARTHEST = 1e100  # beyond, or not a number, a place has density zero
_MEAN, _VARIANCE = math.sqrt(2.0 / math.pi), 1.0 - 2.0 / math.pi  # of a half-normal


class Fixed(NamedTuple):
    """What stays while the width moves, and where the move began.

    Attributes
    ----------
    places : ndarray of int
        Of the sizes that go along.
    precision : ndarray, shape (n_basis,)
        Of the sizes where the move began; they go as the inverse square of the factor.
    share : float
        Power of the norm of the basis functions that sizes and sqrt(d) make up for, from 0 to 1.
    size : ndarray, shape (n_basis,)
    bias, rate, norm : float
        The bias, d, and the norm of the basis functions.
    """

    places: Integers
    precision: Array
    share: float
    size: Array
    bias: float
    rate: float
    norm: float


class Place(NamedTuple):
    """Where a move leads to: sizes, bias, the factor of the scale, coordinates x and log density."""

    size: Array
    bias: float
    factor: float
    x: tuple[Array, float]
    log_density: float


def move_width(problem: GibbsProblem, state: GibbsState, rng: Generator) -> None:
    """Move the width by a slice sampler, with sizes, bias and a learned d; of several widths one.

    Parameters
    ----------
    problem : GibbsProblem
    state : GibbsState
        With its `basis`; changed in place.
    rng : numpy.random.Generator

    References
    ----------
    I. Murray and R. P. Adams (2010), "Slice sampling covariance hyperparameters of latent Gaussian models",
    NeurIPS 23, for moves that take the latent function along; R. M. Neal (2003), "Slice sampling".
    """
    Phi = state.basis.Phi
    fixed = fixed_parts(problem, state, Phi, rng)
    direction: Any = 1.0
    if np.ndim(state.width):
        direction = np.eye(len(state.width))[rng.integers(len(state.width))]
    here = place(problem, fixed, state.width, Phi)
    level = here.log_density - rng.standard_exponential()
    low = -_WIDTH * rng.random()
    high = low + _WIDTH
    while high - low > _NARROWEST:
        t = low + (high - low) * rng.random()
        width = state.width * np.exp(t * direction)
        Phi = problem.moves.basis(width)
        there = place(problem, fixed, width, Phi, here.x)
        if there.log_density > level:
            state.size, state.bias, state.width = there.size, there.bias, width
            state.log_rate += 2.0 * math.log(there.factor)
            state.basis = make_columns(Phi, problem.basis.neighbours)
            return
        low, high = (t, high) if t < 0.0 else (low, t)


def fixed_parts(problem: GibbsProblem, state: GibbsState, Phi: Array, rng: Generator) -> Fixed:
    """Draw what stays while the width moves, precisions among it, given a state and its basis functions."""
    prior, rate, size = problem.parameters, math.exp(state.log_rate), state.size
    precision = rng.gamma(prior.c + 0.5, 1.0, size.shape) / (rate + 0.5 * size * size)
    places = np.ascontiguousarray(np.argsort(precision, kind="stable")[:_MOST])
    share = rng.random() if prior.rate_shape > 0.0 else 0.0
    return Fixed(places, precision, share, size, state.bias, rate, centred_norm(Phi))


def centred_norm(Phi: Array) -> float:
    """Return the norm of basis functions without their means, which a bias makes up for."""
    mean = Phi.mean(axis=0)
    return math.sqrt(max(float(np.vdot(Phi, Phi) - len(Phi) * (mean @ mean)), 1e-200))


def place(
    problem: GibbsProblem,
    fixed: Fixed,
    width: Any,
    Phi: Array,
    x: tuple[Array, float] | None = None,
) -> Place:
    """Return the place with these coordinates at a width, or the coordinates of where the move began.

    Parameters
    ----------
    problem : GibbsProblem
    fixed : Fixed
    width : float or ndarray, shape (n_features,)
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at that width.
    x : tuple of ndarray and float, optional
        Coordinates of the sizes that go along, and of the bias. Default: those of where the move began, whose
        width `width` is then.

    Returns
    -------
    Place
        Its log density is that of labels, sizes, precisions, bias, d and width, by the volume of
        coordinates and log(width); but for constants.
    """
    prior, (curvature, target), places = problem.parameters, problem.normal_rows, fixed.places
    t = 0.0 if x is None else fixed.share * math.log(fixed.norm / centred_norm(Phi))
    factor = math.exp(t)
    size, rest = factor * fixed.size, factor * fixed.size * problem.sign
    rest[places] = 0.0
    of_rest, some = Phi @ rest, Phi[:, places]
    weighted, spread = some.T * curvature, curvature.sum() + prior.e / prior.f
    residual = target - of_rest
    normal = weighted @ some, weighted.sum(axis=1), weighted @ residual
    sign, precision = problem.sign[places], fixed.precision[places] / (factor * factor)
    given, is_start = (size[places], True) if x is None else (x[0], False)
    pull = float(curvature @ residual)
    coordinates, size[places], volume, middle = through(
        *normal, pull, spread, sign, precision, given, is_start
    )
    offset = fixed.bias - middle if x is None else x[1]
    bias = middle + offset
    total = problem.moves.log_density(width) + float(np.sum(np.log(width))) + volume
    total -= (prior.e + 0.5) * math.log1p(bias * bias / (2.0 * prior.f))
    if prior.rate_shape > 0.0:
        total += 2.0 * prior.rate_shape * t - prior.rate_rate * fixed.rate * factor * factor
    if abs(total) < np.inf:
        latent = of_rest + some @ (sign * size[places]) + bias
        total += log_likelihood(problem.flip, 1.0, latent, problem.label)
    return Place(size, bias, factor, (coordinates, offset), total)


@jit
def through(
    gram: Array,
    edge: Array,
    linear: Array,
    pull: float,
    spread: float,
    sign: Array,
    precision: Array,
    given: Array,
    forward: bool,
) -> tuple[Array, Array, float, float]:
    """Return the coordinates of sizes (`forward`), or the sizes of coordinates.

    A size given those before it is normal above zero, with those after it, as normal variables of a
    half-normal's mean and variance, integrated out: `log(size)` has nearly that distribution's mean and
    deviation.

    Parameters
    ----------
    gram, edge, linear : ndarray, shape (k, k), (k,) and (k,)
        Products of the columns with each other, with a bias and with the targets, by the weights of the rows.
    pull, spread : float
        Of the bias: its product with the targets, and its precision.
    sign, precision : ndarray, shape (k,)
        Of the sizes; precisions of their half-normal prior.
    given : ndarray, shape (k,)
        Sizes or coordinates.
    forward : bool

    Returns
    -------
    x, size : ndarray, shape (k,)
    log_density : float
        Of the prior of the sizes by the volume of coordinates.
    middle : float
        Mean of the bias given these sizes.
    """
    k, x, size = len(given), given.copy(), given.copy()
    left, slope, log_density = np.empty((k, k)), np.sqrt(precision) * _MEAN / _VARIANCE, 0.0
    mean, root = np.empty(k), np.empty(k)
    for j in range(k):
        slope[j] += sign[j] * (linear[j] - edge[j] * pull / spread)
        for i in range(j + 1):
            left[j, i] = sign[i] * sign[j] * (gram[j, i] - edge[j] * edge[i] / spread)
        left[j, j] += precision[j] / _VARIANCE
    for j in range(k - 1, -1, -1):  # integrated out, from the last on
        own = precision[j] / _VARIANCE
        mean[j] = slope[j] - math.sqrt(precision[j]) * _MEAN / _VARIANCE
        root[j] = math.sqrt(max(left[j, j] - own, 0.0) + precision[j])
        for i in range(j):
            share = left[j, i] / left[j, j]
            slope[i] -= share * slope[j]
            for n in range(i + 1):
                left[i, n] -= share * left[j, n]
    for j in range(k):
        for i in range(j):
            mean[j] -= left[j, i] * size[i]
        at = mean[j] / root[j]
        if not abs(at) < _FARTHEST:
            return x, size, -np.inf, 0.0
        mills = log_ndtr_and_mills(at)[1]
        gap = gap_of(at, mills)  # the mean above zero, in units of 1 / root
        variance = math.log1p(max(1.0 - mills * gap, 0.5 * gap * gap) / (gap * gap))
        middle, deviation = math.log(gap / root[j]) - 0.5 * variance, math.sqrt(variance)
        if forward:
            x[j] = (math.log(size[j]) - middle) / deviation
        else:
            size[j] = math.exp(middle + deviation * x[j])
        log_density += 0.5 * (math.log(precision[j]) - precision[j] * size[j] * size[j])
        log_density += math.log(deviation * size[j])
        pull -= sign[j] * size[j] * edge[j]
    return x, size, log_density, pull / spread
