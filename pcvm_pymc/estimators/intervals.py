"""Intervals of class probabilities, from normal posteriors of the latent function."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["LatentNormal", "of_machines", "probability_interval"]

_DRAWS = 1000
_HALVINGS = 60
_ROUNDING = 1e-14  # of the largest eigenvalue: below, an eigenvalue is zero


class LatentNormal(NamedTuple):
    """A part of the latent function's posterior at new rows.

    Attributes
    ----------
    share : float
        Its weight in the mixture.
    mean : ndarray, shape (n_new, n_scores)
    covariance : ndarray, shape (n_new, n_scores, n_scores)
    """

    share: float
    mean: Array
    covariance: Array


def of_machines(moments: list[tuple[Array, Array]]) -> LatentNormal:
    """Return the posterior of independent scores, from the mean and variance of each, shape (n_new,)."""
    mean, variance = (np.column_stack(each) for each in zip(*moments, strict=True))
    return LatentNormal(1.0, mean, variance[:, :, None] * np.eye(len(moments)))


def probability_interval(
    class_probability: Callable[[Array], Array], parts: list[LatentNormal], probability: float
) -> Array:
    """Return equal-tailed intervals of class probabilities, shape (n_new, n_classes, 2).

    Of one score exact. Of several by draws, the same standard normals at all rows and in all calls.

    Parameters
    ----------
    class_probability : callable
        From latent values, shape (n,) or (n, n_scores), to probabilities, shape (n, n_classes).
    parts : list of LatentNormal
        Of a mixture.
    probability : float
        That the interval holds.
    """
    tails = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    n_scores = parts[0].mean.shape[1]
    if n_scores == 1:  # one class' probability rises with the latent function, the other's falls
        ends = np.stack([class_probability(_quantile(parts, tail)) for tail in tails], axis=-1)
        return np.sort(ends, axis=-1)
    ends = np.round(_DRAWS * np.cumsum([0.0, *(each.share for each in parts)])).astype(int)
    normals = np.split(np.random.default_rng(0).standard_normal((ends[-1], n_scores)), ends[1:-1])
    draws = np.concatenate([_draws(each, z) for each, z in zip(parts, normals, strict=True)])
    flat = class_probability(draws.reshape(-1, n_scores))
    found = np.quantile(flat.reshape(draws.shape), tails, axis=0)
    return np.moveaxis(found, 0, -1)


def _draws(part: LatentNormal, normal: Array) -> Array:
    """Return latent values, shape (n_draws, n_new, n_scores).

    By the symmetric root of the covariance: signs and order of eigenvectors are those of rounding, which
    differs with the rows beside.
    """
    values, vectors = np.linalg.eigh(part.covariance)
    values = np.where(values > _ROUNDING * values[:, -1:], values, 0.0)
    root = (vectors * np.sqrt(values)[:, None, :]) @ vectors.swapaxes(1, 2)
    return part.mean + np.einsum("ncd,sd->snc", root, normal)


def _quantile(parts: list[LatentNormal], tail: float) -> Array:
    """Return quantiles of mixtures of normals, shape (n_new,), by bisection."""
    shares = np.array([each.share for each in parts])
    mean = np.column_stack([each.mean[:, 0] for each in parts])
    sd = np.sqrt(np.column_stack([each.covariance[:, 0, 0] for each in parts]))
    ends = mean + ndtri(tail) * sd
    low, high = ends.min(axis=1), ends.max(axis=1)
    for _ in range(_HALVINGS if len(parts) > 1 else 0):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            below = ndtr((middle[:, None] - mean) / sd) @ shares < tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
