"""Relative widths of the features, learned from labels or targets, and how far to trust them.

A kernel with one width treats all features alike. Here the relative widths are those that maximise the
evidence of a Gaussian process on the labels as numbers, under a prior that draws them together. Degrees
between one width (0) and these widths (1) are weighed on rows that had no part in learning them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

from pcvm_pymc.core.pieces.probit import Array

SPREAD = 0.7  # prior standard deviation of a log width around the common one
DEGREES = (0.0, 0.35, 0.7, 1.0)  # exponents of the relative widths that are compared
PENALTY = 4.0  # nats against degree 1
MOST_ROWS = 400  # the cost of an evaluation grows with their cube
_ITERATIONS = 25
_PRECISION = 1e-4  # relative change of the log evidence at which to stop
_BOUND = 5.0  # of a log width from the median distance's: exponents stay finite
_NOISE, _LOOSE = (
    -1.5,
    2.0,
)  # prior mean of the log noise, prior deviation of log noise and log variance
_JITTER = 1e-8


@dataclass(frozen=True)
class Evidence:
    """Log evidence of a Gaussian process with one width per feature, and its log priors."""

    X: Array
    target: Array
    unit: float
    spread: float
    weight: Array | float = 1.0  # how often each row counts: its noise is divided by that

    def negative(self, parameter: Array) -> tuple[float, Array]:
        """Return minus the log posterior density of the parameters, and its gradient.

        Parameters are the log widths in units of the median distance, their common value, the log
        variance and the log noise.
        """
        d, k = self.X.shape[1], self.target.shape[1]
        log_width, (common, log_variance, log_noise) = parameter[:d], parameter[d:]
        Z = self.X * np.exp(-log_width) / self.unit
        square = np.einsum("ij,ij->i", Z, Z)
        distance = np.maximum(square[:, None] + square - 2.0 * Z @ Z.T, 0.0)
        kernel = np.exp(log_variance - 0.5 * distance)
        noise = np.exp(log_noise)
        K = kernel.copy()
        K[np.diag_indices_from(K)] += noise / self.weight + _JITTER * np.exp(log_variance)
        factor, failed = lapack.dpotrf(K, lower=1, clean=1)
        if failed:
            return np.inf, np.zeros_like(parameter)
        inverse = lapack.dpotri(factor, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        alpha = inverse @ self.target
        value = 0.5 * float(np.sum(self.target * alpha))
        value += k * float(np.log(factor.diagonal()).sum())
        pull = alpha @ alpha.T - k * inverse  # d log evidence / dK, twice
        M = pull * kernel
        slope = np.empty_like(parameter)
        slope[:d] = -(np.square(Z).T @ M.sum(axis=1) - np.einsum("ij,ij->j", Z, M @ Z))
        slope[d + 1] = -0.5 * float(M.sum())
        slope[d + 2] = -0.5 * noise * float(np.sum(pull.diagonal() / self.weight))
        apart = (log_width - common) / self.spread**2
        value += 0.5 * float(apart @ (log_width - common)) + 0.5 * common**2
        slope[:d] += apart
        slope[d] = common - float(apart.sum())
        for i, mean in ((d + 1, 0.0), (d + 2, _NOISE)):
            value += 0.5 * ((parameter[i] - mean) / _LOOSE) ** 2
            slope[i] += (parameter[i] - mean) / _LOOSE**2
        return value, slope


def relative_widths(
    X: Array, target: Array, weight: Array | None = None, *, spread: float = SPREAD
) -> Array:
    """Return widths of the features relative to each other, of geometric mean one.

    They maximise the evidence of a Gaussian process regression on `target`,
    ``K = a exp(-1/2 sum_j (x_j - z_j)^2 / l_j^2) + s I``, all columns of `target` sharing K, under
    ``log l_j ~ Normal(m, spread^2)`` with a weakly informed m, a and s.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    target : ndarray, shape (n_obs,) or (n_obs, n_columns)
        Labels as numbers, an indicator of each class, or targets; centred and scaled here.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    spread : float
        Smaller values draw the widths together.

    Returns
    -------
    ndarray, shape (n_features,)
    """
    d = X.shape[1]
    target = np.asarray(target, dtype=float).reshape(len(X), -1)
    target = target - np.average(target, axis=0, weights=weight)
    deviation = np.sqrt(np.average(np.square(target).mean(axis=1), weights=weight))
    unit = float(np.median(pdist(X)))
    if d == 1 or deviation == 0 or unit == 0:
        return np.ones(d)
    evidence = Evidence(
        X - X.mean(axis=0), target / deviation, unit, spread, 1.0 if weight is None else weight
    )
    start = np.append(np.zeros(d + 1), [0.0, _NOISE])
    bounds = [(-_BOUND, _BOUND)] * (d + 1) + [(-8.0, 8.0)] * 2
    found = minimize(
        evidence.negative,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _ITERATIONS, "ftol": _PRECISION},
    )
    log_width = found.x[:d]
    return np.exp(log_width - log_width.mean())


def class_targets(label: NDArray[Any], n_classes: int) -> Array:
    """Return the labels as numbers: one column for two classes, an indicator of each for several."""
    if n_classes == 2:
        return np.asarray(label, dtype=float)[:, None]
    return np.eye(n_classes)[np.asarray(label, dtype=int)]


def degree_weights(
    log_density: Array,
    degrees: Array,
    row_weight: Array | None = None,
    *,
    penalty: float = PENALTY,
) -> Array:
    """Return stacking weights of the degrees (Yao et al. 2018) under a pull towards one width.

    Parameters
    ----------
    log_density : ndarray, shape (n_degrees, n_obs)
        Of rows that had no part in learning the widths.
    degrees : ndarray, shape (n_degrees,)
    row_weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    penalty : float
        Nats against all of the weight on degree 1.

    Returns
    -------
    ndarray, shape (n_degrees,)
    """
    degrees = np.asarray(degrees, dtype=float)
    count = np.ones(log_density.shape[1]) if row_weight is None else row_weight
    top = log_density.max(axis=0)
    likelihood = np.exp(log_density - top)

    def negative(free: Array) -> tuple[float, Array]:
        weight = np.exp(free - free.max())
        weight /= weight.sum()
        mixed = weight @ likelihood
        slope = likelihood @ (count / mixed) - penalty * degrees
        value = -float(count @ np.log(mixed)) + penalty * float(weight @ degrees)
        return value + 0.01 * float(free @ free), -weight * (slope - weight @ slope) + 0.02 * free

    found = minimize(negative, np.zeros(len(degrees)), jac=True, method="L-BFGS-B")
    weight = np.exp(found.x - found.x.max())
    return weight / weight.sum()
