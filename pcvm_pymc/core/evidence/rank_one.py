"""Changes of single precisions, one after the other, by rank-one updates (Tipping & Faul 2003), compiled.

The likelihood is normal here, or its quadratic model at the mode; all columns are candidates.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from pcvm_pymc.core.evidence.active_set import ActiveSet
from pcvm_pymc.core.evidence.result import Index
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["Kept", "NoiseRule", "at_noise", "change_precisions", "kept_arrays"]

# sums in any order, so that they are vectorised
jit = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})

_TINY = np.finfo(float).tiny
_HUGE = 1e100
_DIGITS = 0.05  # of the number by which a column is chosen: what may be lost
_FAINT = 1e-8


class Kept(NamedTuple):
    """The bases in the model, in arrays with room for more; see `ActiveSet`.

    Attributes
    ----------
    place : ndarray of int, shape (n_columns,)
        Where a column stands among those in the model; -1 outside.
    column, alpha, mean : ndarray, shape (n_columns,)
        Of those in the model, in the order of their coming; what follows is room.
    covariance : ndarray, shape (n_columns, n_columns)
    cross : ndarray, shape (n_columns, n_columns)
        Inner products of the kept columns with all, weighted.
    S, Q : ndarray, shape (n_columns,)
    """

    place: Index
    column: Index
    alpha: Array
    mean: Array
    covariance: Array
    cross: Array
    S: Array
    Q: Array


class NoiseRule(NamedTuple):
    """How the noise of a regression moves: every so many changes, never where `period` is zero.

    Attributes
    ----------
    period : int
    done : int
        Changes that there have been before.
    n_obs : float
    floor : float
        The least noise.
    anew : int
        Changes after which all is computed anew from inner products, as it is before there is said to be
        nothing to do; zero: not here.
    """

    period: int
    done: int
    n_obs: float
    floor: float
    anew: int = 0


def kept_arrays(state: ActiveSet, cross: Array) -> Kept:
    """Return the bases in the model in arrays of their own, with room for all columns.

    Parameters
    ----------
    state : ActiveSet
    cross : ndarray, shape (m, n_columns)
    """
    m, n_columns = cross.shape
    place = np.full(n_columns, -1, dtype=np.int64)
    place[state.index] = np.arange(m)
    kept = Kept(
        place,
        np.zeros(n_columns, dtype=np.int64),
        np.ones(n_columns),
        np.zeros(n_columns),
        np.empty((n_columns, n_columns)),
        np.empty((n_columns, n_columns)),
        state.S.copy(),
        state.Q.copy(),
    )
    kept.column[:m], kept.alpha[:m], kept.mean[:m] = state.index, state.alpha, state.mean
    kept.covariance[:m, :m], kept.cross[:m] = state.covariance, cross
    return kept


@jit
def _without(kept: Kept, k: int) -> tuple[float, float]:
    """Return s and q of a column: S and Q with the column itself taken out, see `leave_one_out`."""
    j = kept.place[k]
    if j < 0:
        return max(kept.S[k], _TINY), kept.Q[k]
    variance, alpha = kept.covariance[j, j], kept.alpha[j]
    s = 1.0 / variance - alpha
    if s <= _FAINT * alpha:
        left = alpha - kept.S[k]
        s = alpha * kept.S[k] / left if left > 0 else 0.0
    return max(s, _TINY), kept.mean[j] / variance


@jit
def _gain_of(kept: Kept, k: int) -> tuple[float, float]:
    """Return what a column's best change gains, and its new precision then, see `gains`."""
    s, q = _without(kept, k)
    excess = q * q - s
    alpha, gain = np.inf, 0.0
    if excess > 0:
        alpha = s * (s / excess)
        ratio = min(q * q / s, _HUGE)
        gain = 0.5 * (ratio - 1.0 - math.log(ratio))
    if alpha == np.inf:
        gain = 0.0
    j = kept.place[k]
    if j >= 0:
        now = kept.alpha[j]
        gain -= 0.5 * (math.log(now / (now + s)) + q * q / (now + s))
    return gain if alpha > 0.0 else -np.inf, alpha


@jit
def _best_change(kept: Kept, m: int) -> tuple[int, float, float]:
    """Return the column whose change gains most, its new precision, and the gain.

    Outside the model the gain grows with q^2 / s: one logarithm for all of them.
    """
    # negative for none; a literal would have what follows compiled once more
    column, ratio = -1 - len(kept.S), 1.0
    for k in range(len(kept.S)):
        square, s = kept.Q[k] * kept.Q[k], max(kept.S[k], _TINY)
        if square > ratio * s and kept.place[k] < 0:
            column, ratio = k, square / s
    best, precision = 0.0, np.inf
    if column >= 0:
        best, precision = _gain_of(kept, column)
    for j in range(m):
        gain, alpha = _gain_of(kept, kept.column[j])
        if gain > best:
            column, best, precision = kept.column[j], gain, alpha
    return column, precision, best


@jit
def _drawn_change(kept: Kept, tol: float, draw: float) -> tuple[int, float, float]:
    """Return the same of a column drawn among those that gain enough, by a number in [0, 1)."""
    gain = np.empty(len(kept.S))
    n_gaining = 0
    for k in range(len(gain)):
        gain[k] = _gain_of(kept, k)[0]
        n_gaining += gain[k] >= tol
    left = int(draw * n_gaining)
    for k in range(len(gain)):
        if gain[k] >= tol:
            if left == 0:
                return k, _gain_of(kept, k)[1], gain[k]
            left -= 1
    return 0, np.inf, -np.inf


@jit
def _probe(rows: Array, beta: float, kept: Kept, m: int, k: int) -> tuple[Array, Array, float]:
    """Return ``p = beta Sigma Phi' phi``, ``e = phi - Phi p`` and S of a column, see `probe_square`."""
    n = rows.shape[1]
    pull, left, products = np.empty(m), np.empty(n), np.empty(m)
    S = 0.0
    for i in range(n):
        left[i] = rows[k, i]
    for j in range(m):
        products[j] = beta * kept.cross[j, k]
    for j in range(m):
        value, column = 0.0, kept.column[j]
        for i in range(m):
            value += kept.covariance[j, i] * products[i]
        pull[j] = value
        S += kept.alpha[j] * value * value
        for i in range(len(left)):
            left[i] -= value * rows[column, i]
    for i in range(len(left)):
        S += beta * left[i] * left[i]
    return pull, left, S


@jit
def _has_lost_digits(rows: Array, beta: float, kept: Kept, m: int, k: int) -> bool:
    """Whether rank-one steps have spoilt the numbers by which a column was chosen.

    Outside the model S is compared with a sum of squares; inside, Q with ``alpha mu``, which it
    equals, in the unit sqrt(S) in which it decides.
    """
    j = kept.place[k]
    if j < 0:
        exact = _probe(rows, beta, kept, m, k)[2]
        return not abs(kept.S[k] - exact) < _DIGITS * exact
    if not kept.covariance[j, j] > 0:
        return True
    error = kept.Q[k] - kept.alpha[j] * kept.mean[j]
    return not abs(error) < _DIGITS * math.sqrt(max(kept.S[k], 0.0))


@jit
def _add(rows: Array, gram: Array, beta: float, kept: Kept, m: int, k: int, alpha: float) -> None:
    """Take a column into the model (Tipping & Faul 2003, appendix)."""
    pull, left, S = _probe(rows, beta, kept, m, k)
    variance = 1.0 / (alpha + S)
    mean = variance * kept.Q[k]
    for j in range(m):
        kept.mean[j] -= mean * pull[j]
        kept.covariance[j, m] = kept.covariance[m, j] = -variance * pull[j]
        for i in range(m):
            kept.covariance[j, i] += variance * pull[j] * pull[i]
    kept.covariance[m, m] = variance
    kept.place[k], kept.column[m], kept.alpha[m], kept.mean[m] = m, k, alpha, mean
    for i in range(len(rows)):
        product, overlap = 0.0, 0.0
        for n in range(rows.shape[1]):
            overlap += rows[i, n] * left[n]
        if len(gram):
            product = gram[k, i]
        else:
            for n in range(rows.shape[1]):
                product += rows[i, n] * rows[k, n]
        overlap *= beta
        kept.cross[m, i] = product
        kept.S[i] -= variance * overlap * overlap
        kept.Q[i] -= mean * overlap


@jit
def _add_products(out: Array, factor: float, cross: Array) -> None:
    """Add a row's multiple: in the innermost loop nothing else, so that it is vectorised."""
    for k in range(len(out)):
        out[k] += factor * cross[k]


@jit
def _shrink(beta: float, kept: Kept, m: int, j: int, kappa: float) -> None:
    """Let Sigma lose kappa times the square of its column at a place, and all else follow."""
    shift = kappa * kept.mean[j]
    column, left = np.empty(m), np.empty(len(kept.S))
    for k in range(len(left)):
        left[k] = 0.0
    for i in range(m):
        column[i] = kept.covariance[j, i]
        _add_products(left, beta * column[i], kept.cross[i])
    for k in range(len(left)):
        kept.S[k] += kappa * left[k] * left[k]
        kept.Q[k] += shift * left[k]
    for i in range(m):
        kept.mean[i] -= shift * column[i]
        for other in range(m):
            kept.covariance[i, other] -= kappa * column[i] * column[other]


@jit
def _take_out(kept: Kept, m: int, j: int) -> None:
    """Close the gap that a column leaves."""
    kept.place[kept.column[j]] = -1
    for i in range(j, m - 1):
        kept.column[i], kept.alpha[i] = kept.column[i + 1], kept.alpha[i + 1]
        kept.mean[i] = kept.mean[i + 1]
        kept.place[kept.column[i]] = i
        for k in range(len(kept.S)):
            kept.cross[i, k] = kept.cross[i + 1, k]
        for k in range(m):
            kept.covariance[i, k] = kept.covariance[i + 1, k]
    for i in range(m - 1):
        for k in range(j, m - 1):
            kept.covariance[i, k] = kept.covariance[i, k + 1]


@jit
def _change(rows: Array, gram: Array, beta: float, kept: Kept, m: int, k: int, alpha: float) -> int:
    """Give one column another precision, infinite to delete it; return how many there are then."""
    j = kept.place[k]
    if j < 0:
        _add(rows, gram, beta, kept, m, k, alpha)
        return m + 1
    if alpha == np.inf:
        _shrink(beta, kept, m, j, 1.0 / kept.covariance[j, j])
        _take_out(kept, m, j)
        return m - 1
    change = alpha - kept.alpha[j]
    _shrink(beta, kept, m, j, change / (1.0 + change * kept.covariance[j, j]))
    kept.alpha[j] = alpha
    return m


@jit
def _residual_square(rows: Array, target: Array, kept: Kept, m: int) -> float:
    """Return the squared length of the residual."""
    left, square = np.empty(len(target)), 0.0
    for i in range(len(left)):
        left[i] = target[i]
    for j in range(m):
        _add_products(left, -kept.mean[j], rows[kept.column[j]])
    for i in range(len(left)):
        square += left[i] * left[i]
    return square


@jit
def _next_noise(rows: Array, target: Array, kept: Kept, m: int, noise: NoiseRule) -> float:
    """Return the noise of eqs. 8 and 15 of Chmielewski et al. (2019), see `EvidenceProblem.noise_at`."""
    free = noise.n_obs
    for j in range(m):
        free -= 1.0 - kept.alpha[j] * kept.covariance[j, j]
    square = _residual_square(rows, target, kept, m)
    return max(math.sqrt(square / max(free, 1e-3)), noise.floor)


@jit
def _inverse_factor(beta: float, kept: Kept, m: int) -> tuple[Array, float]:
    """Return T with ``T T' = (beta Phi'Phi + A)^-1``, upper triangular, and the log of det(I + ...)/2.

    NaN where that is too ill-conditioned to be squared.
    """
    L, half = np.zeros((m, m)), np.zeros((m, m))
    log_root = 0.0
    for i in range(m):
        for j in range(i + 1):
            value = beta * kept.cross[i, kept.column[j]] / math.sqrt(kept.alpha[i] * kept.alpha[j])
            value += 1.0 if i == j else 0.0
            for n in range(j):
                value -= L[i, n] * L[j, n]
            L[i, j] = math.sqrt(value) if i == j else value / L[j, j]
        log_root += math.log(L[i, i])
    for i in range(m):  # half = D L'^-1
        half[i, i] = 1.0 / L[i, i]
        for j in range(i + 1, m):
            value = 0.0
            for n in range(i, j):
                value -= L[j, n] * half[i, n]
            half[i, j] = value / L[j, j]
    for i in range(m):
        for j in range(i, m):
            half[i, j] /= math.sqrt(kept.alpha[i])
    return half, log_root


@jit
def _mean_and_pull(products: Array, beta: float, kept: Kept, m: int) -> None:
    """Compute mean and Q from the covariance and the targets' inner products with all columns."""
    for k in range(len(products)):
        kept.Q[k] = beta * products[k]
    for j in range(m):
        mean = 0.0
        for i in range(m):
            mean += kept.covariance[j, i] * beta * products[kept.column[i]]
        kept.mean[j] = mean
        _add_products(kept.Q, -beta * mean, kept.cross[j])


@jit
def at_noise(
    rows: Array,
    gram: Array,
    products: Array,
    target: Array,
    beta: float,
    kept: Kept,
    m: int,
    n: float,
) -> float:
    """Compute all but the precisions from inner products, under another noise; return the log evidence.

    NaN where a factorisation fails. `n` is the number of observations.
    """
    half, log_root = _inverse_factor(beta, kept, m)
    if not math.isfinite(log_root):
        return np.nan
    for i in range(m):
        for j in range(i + 1):
            value = 0.0
            for k in range(i, m):
                value += half[i, k] * half[j, k]
            kept.covariance[i, j] = kept.covariance[j, i] = value
    _mean_and_pull(products, beta, kept, m)
    square = _residual_square(rows, target, kept, m)
    for k in range(len(kept.S)):
        kept.S[k] = beta * gram[k, k]
    overlap = np.empty(len(kept.S))
    for j in range(m):
        for k in range(len(overlap)):
            overlap[k] = 0.0
        for i in range(j + 1):
            _add_products(overlap, beta * half[i, j], kept.cross[i])
        for k in range(len(overlap)):
            kept.S[k] -= overlap[k] * overlap[k]
    penalty = 0.0
    for j in range(m):
        penalty += kept.alpha[j] * kept.mean[j] * kept.mean[j]
    value = 0.5 * n * math.log(beta / (2.0 * math.pi)) - 0.5 * beta * square
    return value - 0.5 * penalty - log_root


@jit
def change_precisions(
    rows: Array,
    gram: Array,
    products: Array,
    target: Array,
    kept: Kept,
    m: int,
    beta: float,
    log_evidence: float,
    tol: float,
    draws: Array,
    noise: NoiseRule,
    history: Array,
) -> tuple[int, int, bool]:
    """Change one precision after the other: that which gains most, or one that is drawn.

    Parameters
    ----------
    rows : ndarray, shape (n_columns, n_rows)
        The columns, as rows; times the root of the curvature where the model is a quadratic one.
    gram : ndarray, shape (n_columns, n_columns) or (0, 0)
        Inner products of the columns; needed where the noise moves, elsewhere they are computed when needed.
    products, target : ndarray, shape (n_columns,) and (n_rows,)
        Inner products of the columns with the targets, and these; used for the noise only.
    kept : Kept
        Changed in place.
    m : int
        How many columns are in the model.
    beta : float
        Precision of a row.
    log_evidence : float
    tol : float
        Gain below which there is nothing to do.
    draws : ndarray, shape (most,) or (0,)
        Numbers in [0, 1) by which each change is drawn among those that gain enough; none: the best.
    noise : NoiseRule
    history : ndarray, shape (most, 3)
        Written: log evidence, columns in the model and beta after each change, of which there are at most
        so many.

    Returns
    -------
    m : int
    n_changes : int
        Fewer than the most where nothing gains any more, or digits are lost: all has to be computed anew.
    at_rest : bool
        Whether nothing gains any more.
    """
    done = since = 0
    while done < len(history):
        if len(draws):
            k, alpha, gain = _drawn_change(kept, tol, draws[done])
        else:
            k, alpha, gain = _best_change(kept, m)
        at_rest = not gain >= tol
        anew = at_rest or (since > 0 and _has_lost_digits(rows, beta, kept, m, k))
        if anew and (since == 0 or noise.anew == 0):
            return m, done, at_rest
        if not anew:
            m = _change(rows, gram, beta, kept, m, k, alpha)
            log_evidence += gain
            since, done = since + 1, done + 1
            anew = since == noise.anew
        if not anew and noise.period > 0 and (noise.done + done) % noise.period == 0:
            beta = _next_noise(rows, target, kept, m, noise) ** -2.0
            anew = True
        if anew:
            since, log_evidence = (
                0,
                at_noise(rows, gram, products, target, beta, kept, m, noise.n_obs),
            )
        history[done - 1, 0], history[done - 1, 1], history[done - 1, 2] = log_evidence, m, beta
        if not math.isfinite(log_evidence):
            return m, done, False
    return m, done, False
