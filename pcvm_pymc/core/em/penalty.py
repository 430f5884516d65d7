"""The L1 penalty within EM: zeros are made and released as its optimality conditions ask."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.em.points import ChunkedRows, Point, WholeRows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import Mask

__all__ = ["mended_zeros"]

_NEGLIGIBLE = 1e-4  # largest share in the latent function of a weight that is tried at zero
_NOTHING = 1e-20  # a share that is rounding
_LEAST_SIZE = 1e-12
_SHORTER = 1e-3  # of a release that goes too far, as many together or of large basis functions do
_MOST_SHORTENINGS = 4


def mended_zeros(rows: WholeRows | ChunkedRows, point: Point) -> Point:
    """Return the point with negligible weights at zero, and zeros released that should not be.

    EM brings a Laplace weight to zero in the limit only, and a weight that is zero does not come
    back. Either change is made only where it raises the log posterior. Without a penalty nothing is
    changed.
    """
    problem = rows.problem
    prior: Any = problem.hyperprior
    penalty = prior.penalty
    if penalty == 0:
        return point
    pull, total = rows.gradient(point)
    penalised = problem.bias == "prior"
    gradient = np.vstack([pull, total if penalised else 0.0 * total])
    size = np.vstack([np.broadcast_to(rows.size, pull.shape), np.ones(len(total))])
    value = np.vstack([point.weight, point.bias])
    sign = problem.weight_sign.reshape(point.weight.shape)
    allowed = np.ones(value.shape, dtype=bool)
    allowed[:-1] = (sign * pull > 0) | (not problem.is_signed)
    changeable = value != 0
    changeable[-1] &= penalised
    steepness, share = np.abs(gradient), np.abs(value) * size
    small = (share <= _NEGLIGIBLE) & (steepness <= penalty) & changeable
    nothing = small & (share <= _NOTHING)
    away = (value == 0) & allowed & (steepness > penalty * (1 + 1e-9))
    for wanted, is_release in ((nothing, False), (small, False), (away, True)):
        if wanted.any():
            new_values = _releases(gradient, size) if is_release else [np.zeros_like(value)]
            chosen = wanted & (np.vstack([point.weight, point.bias]) != new_values[0])
            point = _first_better(rows, point, chosen, new_values) if chosen.any() else point
    return point


def _releases(gradient: Array, size: Array) -> list[Array]:
    """Return small values up the gradient, and shorter ones."""
    release = np.sign(gradient) * _NEGLIGIBLE / np.maximum(size, _LEAST_SIZE)
    return [_SHORTER**k * release for k in range(_MOST_SHORTENINGS)]


def _first_better(
    rows: WholeRows | ChunkedRows, point: Point, chosen: Mask, new_values: list[Array]
) -> Point:
    """Return the first point, of new values of the chosen weights and biases, that is not worse.

    A change that cannot be told from none is made where the new values are zero.
    """
    value = np.vstack([point.weight, point.bias])
    for new_value in new_values:
        tried = np.where(chosen, new_value, value)
        new = rows.at(tried[:-1], tried[-1], point, curved=True)
        gain = new.log_posterior - point.log_posterior
        if gain > 0 or (gain == 0 and not new_value.any()):
            return replace(new, change=point.change + new.change)  # a bound of both
    return point
