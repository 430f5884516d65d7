"""Changes of single precisions by rank-one updates (Tipping & Faul 2003), compiled.

The likelihood is normal here, or its quadratic model at the mode, with curvature B. Take the inner products
``[Phi, z]' B [Phi, z]`` of columns and targets, add the precision alpha_j to the diagonal of each column in
the model, and sweep the matrix on these columns. It then contains all that decides: ``-Sigma`` in the model,
``Sigma Phi' B phi`` between the model and the other columns, S = ``phi' C^-1 phi`` and Q = ``phi' C^-1 z`` of
these, and in the column of the targets the mean of the weights. A change of one precision adds a multiple of
a a', where a is one of its columns.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import reordered

TINY = np.finfo(float).tiny
HUGE = 1e100  # q^2 / s above which s has lost its digits
_FAINT = 1e-8  # share of alpha below which s, a difference with it, has lost half of its digits
_DRIFT = 0.05  # relative error of s from which on the best column may be another


class Quadratic(NamedTuple):
    """Inner products of columns and targets under the curvature of the rows.

    Attributes
    ----------
    rows : ndarray, shape (n_columns, n_rows)
        The columns, as rows, times the root of the curvature: needed where `gram` is not complete.
    gram : ndarray, shape (n_columns, n_columns)
        A row with a NaN on the diagonal is computed when needed.
    products : ndarray, shape (n_columns,)
        Inner products of the columns with the targets.
    square, n_obs : float
        Squared norm of the targets, and how many there are.
    """

    rows: Array
    gram: Array
    products: Array
    square: float
    n_obs: float


class Swept(NamedTuple):
    """The swept matrix, but for its rows outside the model; changed in place.

    Attributes
    ----------
    alpha : ndarray, shape (n_columns,)
        Precisions, infinite outside the model.
    rows : ndarray, shape (n_columns, n_columns)
        Valid for columns in the model.
    S, Q : ndarray, shape (n_columns,)
        Its diagonal, and its column of the targets.
    members : ndarray of int, shape (n_columns,)
        The first are the columns in the model.
    """

    alpha: Array
    rows: Array
    S: Array
    Q: Array
    members: NDArray[np.int64]


class Schedule(NamedTuple):
    """When everything is computed afresh, and the noise updated.

    Attributes
    ----------
    refresh_period : int
        Changes after which all is computed afresh from inner products, as it is after each update of the
        noise and before convergence is declared. 0: not here; `change_precisions` returns where that is due.
    noise_period : int
        Changes between updates of the noise; 0 for none.
    n_before : int
        Changes so far.
    floor : float
        Smallest noise.
    """

    refresh_period: int
    noise_period: int
    n_before: int
    floor: float


@reordered
def _add_square(swept: Swept, m: int, a: Array, k: int, factor: float) -> None:
    """Add factor times a a' to the swept matrix; `a` is its column k."""
    of_target = factor * swept.Q[k]
    for n in range(m):
        row, multiple = swept.rows[swept.members[n]], factor * a[swept.members[n]]
        for i in range(len(a)):
            row[i] += multiple * a[i]
    for i in range(len(a)):
        swept.S[i] += factor * a[i] * a[i]
        swept.Q[i] += of_target * a[i]


@reordered
def _change(gram: Array, beta: float, swept: Swept, m: int, k: int, new: float) -> int:
    """Give column k another precision, infinite to delete it; return how many are in the model then."""
    alpha, T, S, Q, members = swept
    a = np.empty(len(S))
    if alpha[k] == np.inf:
        for i in range(len(a)):
            a[i] = beta * gram[k, i]
        for n in range(m):
            coefficient, row = beta * gram[k, members[n]], T[members[n]]
            for i in range(len(a)):
                a[i] -= coefficient * row[i]
        for n in range(m):
            a[members[n]] = T[members[n], k]
        a[k] = S[k]
        pivot, mean = new + S[k], Q[k] / (new + S[k])
        _add_square(swept, m, a, k, -1.0 / pivot)
        for i in range(len(a)):
            T[k, i] = a[i] / pivot
        for n in range(m):
            T[members[n], k] = a[members[n]] / pivot
        T[k, k], S[k], Q[k] = -1.0 / pivot, -1.0 / pivot, mean
        members[m], alpha[k] = k, new
        return m + 1
    for i in range(len(a)):
        a[i] = T[k, i]
    variance, mean = -S[k], Q[k]
    if new < np.inf:
        change = new - alpha[k]
        _add_square(swept, m, a, k, change / (1.0 + change * variance))
        alpha[k] = new
        return m
    _add_square(swept, m, a, k, 1.0 / variance)
    S[k], Q[k], alpha[k] = 1.0 / variance - alpha[k], mean / variance, np.inf
    left = 0
    for n in range(m):
        if members[n] != k:
            members[left] = members[n]
            T[members[n], k] = a[members[n]] / variance
            left += 1
    return left


@reordered
def _best_change(swept: Swept) -> tuple[int, float, float]:
    """Return the column whose change gains most, its new precision, and the gain (see `gains`)."""
    alpha, _, S, Q, _ = swept
    column, best, precision, ratio = 0, 0.0, np.inf, 1.0
    for k in range(len(S)):  # outside the gain grows with q^2 / s: one logarithm for all of them
        square, s = Q[k] * Q[k], max(S[k], TINY)
        if alpha[k] == np.inf and square > ratio * s:
            column, ratio = k, square / s
    if ratio > 1.0:
        s = max(S[column], TINY)
        precision = s * (s / (Q[column] * Q[column] - s))
        ratio = min(ratio, HUGE)
        best = 0.5 * (ratio - 1.0 - math.log(ratio)) if 0.0 < precision < np.inf else 0.0
    for k in range(len(S)):
        now, variance = alpha[k], -S[k]
        if now == np.inf or not variance > 0.0:
            continue
        # of being out: as what it gains to be in the model, with a minus
        gain, new = -0.5 * (math.log(now * variance) + Q[k] * Q[k] / variance), np.inf
        s, q = 1.0 / variance - now, Q[k] / variance
        if s > _FAINT * now and q * q > s:
            new = s * (s / (q * q - s))
            gain += 0.5 * (q * q / s - 1.0 - math.log(q * q / s))
        if gain > best and new > 0.0:
            column, best, precision = k, gain, new
    return column, precision, best


@reordered
def _at_noise(quadratic: Quadratic, beta: float, swept: Swept, m: int) -> float:
    """Compute everything but the precisions from inner products; return the log evidence."""
    _, gram, products, square, n_obs = quadratic
    alpha, _, S, Q, members = swept
    value = 0.5 * (n_obs * math.log(beta / (2.0 * math.pi)) - beta * square)
    for i in range(len(S)):
        S[i], Q[i] = beta * gram[i, i], beta * products[i]
    for n in range(m):
        k = members[n]
        precision, alpha[k] = alpha[k], np.inf
        value += 0.5 * (math.log(precision / (precision + S[k])) + Q[k] * Q[k] / (precision + S[k]))
        _change(gram, beta, swept, n, k, precision)
    return value


@reordered
def _has_drifted(quadratic: Quadratic, beta: float, swept: Swept, m: int, k: int) -> bool:
    """Whether updates have spoilt S of a column outside the model; its inner products are known then."""
    rows, gram, _, _, _ = quadratic
    if math.isnan(gram[k, k]):
        for i in range(len(gram)):
            value = 0.0
            for n in range(rows.shape[1]):
                value += rows[i, n] * rows[k, n]
            gram[k, i] = value
    exact = beta * gram[k, k]
    for n in range(m):
        exact -= beta * gram[k, swept.members[n]] * swept.rows[swept.members[n], k]
    return not abs(swept.S[k] - exact) < _DRIFT * exact


@reordered
def _next_noise(quadratic: Quadratic, swept: Swept, m: int, floor: float) -> float:
    """Return the noise of eqs. 8 and 15 of Chmielewski et al. (2019), see `EvidenceProblem.noise_at`."""
    _, gram, products, left, free = quadratic
    for n in range(m):
        j, fitted = swept.members[n], 0.0
        for other in range(m):
            fitted += gram[j, swept.members[other]] * swept.Q[swept.members[other]]
        left += swept.Q[j] * (fitted - 2.0 * products[j])
        free -= 1.0 + swept.alpha[j] * swept.S[j]
    return max(math.sqrt(max(left, 0.0) / max(free, 1e-3)), floor)


@reordered
def change_precisions(
    quadratic: Quadratic,
    swept: Swept,
    m: int,
    beta: float,
    log_evidence: float,
    tol: float,
    schedule: Schedule,
    history: Array,
) -> tuple[int, int, bool]:
    """Change one precision at a time, always the one that raises the evidence most.

    Parameters
    ----------
    quadratic : Quadratic
    swept : Swept
        Changed in place.
    m : int
        How many columns are in the model.
    beta : float
        Precision of a row.
    log_evidence : float
    tol : float
        Smallest gain for which a change is made.
    schedule : Schedule
    history : ndarray, shape (most, 3)
        Written: log evidence, columns in the model and beta after each of at most so many changes.

    Returns
    -------
    m, n_changes : int
    is_converged : bool
        Whether no change gains any more.
    """
    done = since = 0
    while done < len(history):
        k, new, gain = _best_change(swept)
        is_converged = not gain >= tol
        is_due = is_converged
        if not is_converged and swept.alpha[k] == np.inf:
            is_due = _has_drifted(quadratic, beta, swept, m, k) and since > 0
        if is_due and (since == 0 or schedule.refresh_period == 0):
            return m, done, is_converged
        if not is_due:
            m = _change(quadratic.gram, beta, swept, m, k, new)
            log_evidence += gain
            since, done = since + 1, done + 1
            is_due = since == schedule.refresh_period
            if schedule.noise_period and (schedule.n_before + done) % schedule.noise_period == 0:
                beta, is_due = _next_noise(quadratic, swept, m, schedule.floor) ** -2.0, True
        if is_due:
            since, log_evidence = 0, _at_noise(quadratic, beta, swept, m)
        history[done - 1, 0], history[done - 1, 1], history[done - 1, 2] = log_evidence, m, beta
        if not math.isfinite(log_evidence):
            return m, done, False
    return m, done, False
