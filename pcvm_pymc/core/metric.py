"""Relative widths of the features, learned from labels or targets.

A kernel with one width treats all features alike. Here the relative widths are those that maximise the
evidence of a Gaussian process on the labels as numbers, under a prior that draws them together. How far
predictions with them replace those with one width is decided on rows that had no part in learning them.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

from pcvm_pymc.core.pieces.probit import Array

SPREAD = 0.7  # prior standard deviation of a log width around the common one
MOST_ROWS = 400  # the cost of an evaluation grows with their cube
_ITERATIONS = 25  # of L-BFGS-B, at most
_PRECISION = 1e-6  # relative change of the log evidence at which to stop
_BOUND = 5.0  # of a log width from the median distance's: exponents stay finite
# prior mean of the log noise, prior deviation of log noise and log variance
_NOISE, _LOOSE = -1.5, 2.0
_LEAST_NOISE = -2.5  # of the log noise variance: targets are not to be interpolated
_JITTER = 1e-8  # added to the diagonal, in units of the kernel's variance
_CLEAR = 3.0  # standard errors of a correlation that chance hardly reaches


def negative_evidence(
    parameter: Array, *, X: Any, target: Any, unit: float, spread: float, number: Any, weight: Any
) -> tuple[float, Array]:
    """Return minus the log posterior density of the parameters of a Gaussian process, and its gradient.

    In the precision of `X` and `target`: single is twice as fast, and enough for a maximum.

    Parameters
    ----------
    parameter : ndarray, shape (n_widths + 3,)
        The log widths in units of the median distance, their common value, the log variance and the log
        noise.
    X : ndarray, shape (n_obs, n_columns)
    target : ndarray, shape (n_obs, n_targets)
    unit : float
        The median distance.
    spread : float
        Prior standard deviation of a log width around the common value.
    number : ndarray of int, shape (n_columns,)
        Of the width of each column.
    weight : float or ndarray, shape (n_obs,)
        How often each row counts: its noise is divided by that.
    """
    k, kind = target.shape[1], X.dtype
    log_width, (common, log_variance, log_noise) = parameter[:-3], parameter[-3:]
    d = len(log_width)
    potrf, potri = get_lapack_funcs(("potrf", "potri"), dtype=kind)
    symm = get_blas_funcs("symm", dtype=kind)
    Z = X * (np.exp(-log_width) / unit).astype(kind)[number]
    square = np.einsum("ij,ij->i", Z, Z)
    kernel = Z @ Z.T
    kernel -= 0.5 * (square[:, None] + square)
    np.minimum(kernel, 0.0, out=kernel)
    kernel += kind.type(log_variance)
    np.exp(kernel, out=kernel)
    noise = np.exp(log_noise)
    K = kernel.copy()
    K[np.diag_indices_from(K)] += noise / weight + _JITTER * np.exp(log_variance)
    # of a symmetric matrix as rows, LAPACK's upper triangle of columns is the lower one
    factor, failed = potrf(K.T, lower=0, clean=0, overwrite_a=1)
    if failed:
        return np.inf, np.zeros_like(parameter)
    log_root = float(np.log(factor.diagonal(), dtype=float).sum())
    inverse = potri(factor, lower=0, overwrite_c=1)[0]
    alpha = symm(1.0, inverse, target, lower=0)
    value = 0.5 * float(np.sum(target * alpha, dtype=float)) + k * log_root
    # d log evidence / dK, twice; the upper triangle counts
    kernel_slope = alpha @ alpha.T - k * inverse
    of_noise = float(np.sum(kernel_slope.diagonal() / weight, dtype=float))
    M = np.multiply(kernel_slope, kernel, out=kernel_slope)
    product = symm(1.0, M, np.column_stack([Z, np.ones(len(Z), kind)]), lower=0)
    total = product[:, -1]
    slope = np.empty_like(parameter)
    of_columns = np.einsum("ij,ij->j", Z, product[:, :-1]) - np.square(Z).T @ total
    slope[:d] = np.bincount(number, of_columns)
    slope[d + 1] = -0.5 * float(total.sum(dtype=float))
    slope[d + 2] = -0.5 * noise * of_noise
    apart = (log_width - common) / spread**2
    value += 0.5 * float(apart @ (log_width - common)) + 0.5 * common**2
    slope[:d] += apart
    slope[d] = common - float(apart.sum())
    for i, mean in ((d + 1, 0.0), (d + 2, _NOISE)):
        value += 0.5 * ((parameter[i] - mean) / _LOOSE) ** 2
        slope[i] += (parameter[i] - mean) / _LOOSE**2
    return value, slope


def first_log_widths(
    X: Array, target: Array, weight: Array | None = None, number: NDArray[np.intp] | None = None
) -> Array:
    """Return log widths from which to search, in units of the median distance of all features.

    Zero for all but the features that stand out: those that correlate with a target, or whose distance from
    their mean does, by more than three standard errors. They start at the distances among them alone. Where
    the features are many all distances are alike, and a search from one width for all has no slope.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    target : ndarray, shape (n_obs, n_columns)
    weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    number : ndarray of int, shape (n_features,), optional
        Of the width of each feature. Default: each has its own.

    Returns
    -------
    ndarray, shape (n_widths,)
    """
    number = np.arange(X.shape[1]) if number is None else number
    count = np.ones(len(X)) if weight is None else weight
    share = count / count.sum()

    def standard(columns: Array) -> tuple[Array, Array]:
        centred = columns - share @ columns
        variance = share @ np.square(centred)
        return centred / np.sqrt(np.where(variance > 0, variance, 1.0)), variance

    Z, variance = standard(X)
    weighted = share[:, None] * standard(target)[0]
    both = Z, standard(np.abs(Z))[0]
    correlation = [np.abs(columns.T @ weighted).max(axis=1) for columns in both]
    clear = np.maximum(*correlation) > _CLEAR / np.sqrt(count.sum())
    clear = np.isin(number, number[clear])  # all columns of a width, or none
    width = np.zeros(number.max() + 1)
    if clear.any():
        width[number[clear]] = 0.5 * np.log(variance[clear].sum() / variance.sum())
    return width


def relative_widths(
    X: Array,
    target: Array,
    weight: Array | None = None,
    *,
    spread: float = SPREAD,
    number: NDArray[np.intp] | None = None,
) -> Array:
    """Return widths of the features relative to each other, of geometric mean one.

    They maximise the evidence of a Gaussian process regression on `target`,
    ``K = a exp(-1/2 sum_j (x_j - z_j)^2 / l_j^2) + s I``, all columns of `target` sharing K, under
    ``log l_j ~ Normal(m, spread^2)`` with a weakly informed m, a and s. The search
    starts at `first_log_widths`.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    target : ndarray, shape (n_obs,) or (n_obs, n_columns)
        Labels as numbers, an indicator of each class, or targets; centred and scaled here.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    spread : float
        Smaller values draw the widths together.
    number : ndarray of int, shape (n_features,), optional
        Of the width of each feature: those of a category have one in common. Default: each has its own.

    Returns
    -------
    ndarray, shape (n_features,)
    """
    number = np.arange(X.shape[1]) if number is None else number
    d = int(number.max()) + 1
    target = np.asarray(target, dtype=float).reshape(len(X), -1)
    target = target - np.average(target, axis=0, weights=weight)
    deviation = np.sqrt(np.average(np.square(target).mean(axis=1), weights=weight))
    unit = float(np.median(pdist(X)))
    if d == 1 or deviation == 0 or unit == 0:
        return np.ones(X.shape[1])
    single: Any = np.float32
    rows = np.asfortranarray(X - X.mean(axis=0), single)
    column = np.asfortranarray(target / deviation, single)
    known: Any = {"X": rows, "target": column, "unit": unit, "spread": spread, "number": number}
    lost = partial(negative_evidence, **known, weight=1.0 if weight is None else weight)
    start = np.append(first_log_widths(X, target, weight, number), [0.0, 0.0, _NOISE])
    bounds = [(-_BOUND, _BOUND)] * (d + 1) + [(-3.0, 3.0), (_LEAST_NOISE, 3.0)]
    options: Any = {"maxiter": _ITERATIONS, "ftol": _PRECISION}
    maximum = minimize(lost, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    log_width = maximum.x[:d]
    return np.exp(log_width - log_width.mean())[number]


def class_targets(label: NDArray[Any], n_classes: int) -> Array:
    """Return the labels as numbers: one column for two classes, an indicator of each for several."""
    if n_classes == 2:
        return np.asarray(label, dtype=float)[:, None]
    return np.eye(n_classes)[np.asarray(label, dtype=int)]
