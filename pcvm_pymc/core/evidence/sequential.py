"""The fast RVM: one basis at a time by the largest gain in evidence (Tipping & Faul 2003)."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from pcvm_pymc.core.em.binary import Status
from pcvm_pymc.core.evidence.batch import (
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    Index,
    Posterior,
    Reached,
    inverse_triangle,
    noise_update,
    posterior,
    result_at,
    start_noise,
    unit_design,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "ActiveSet",
    "Basis",
    "empty_set",
    "fit_sequential",
    "gains",
    "leave_one_out",
    "orthogonal_basis",
    "refreshed",
    "sum_of_squares",
    "updated",
]

_TINY, _HUGE = np.finfo(float).tiny, 1e100
_LOST = 1e-6  # of phi' B phi: what is smaller has lost half of its digits in a difference
_SPOILT = 0.05
_BLOCK = 512  # columns at a time, so that no second matrix of the size of the design is held


@dataclass(frozen=True)
class ActiveSet:
    """The bases in the model, and what every basis would add to it.

    Attributes
    ----------
    index : ndarray of int, shape (m,)
        Columns of the design, in the order of their coming.
    alpha, mean : ndarray, shape (m,)
    covariance : ndarray, shape (m, m)
    cross : ndarray, shape (m, n_columns)
        Inner products of the kept columns with all; empty for classification, where it is not used.
    S, Q : ndarray, shape (n_columns,)
        ``phi' C^-1 phi`` and ``phi' C^-1 t`` of every column, with the whole of C (Chmielewski et
        al. 2019 eq. 13, corrected: its first line has C_-i for C).
    log_evidence : float
    n_updates : int
        Rank-one steps since everything was computed anew.
    """

    index: Index
    alpha: Array
    mean: Array
    covariance: Array
    cross: Array
    S: Array
    Q: Array
    log_evidence: float
    n_updates: int = 0


def leave_one_out(state: ActiveSet) -> tuple[Array, Array]:
    """Return s and q of every column: S and Q with the column itself taken out of C.

    In the model they are ``1 / Sigma_jj - alpha_j`` and ``mu_j / Sigma_jj``, which does not cancel as
    ``alpha S / (alpha - S)`` does; but for a column of so large an alpha that it is all but out.
    """
    s, q = state.S.copy(), state.Q.copy()
    variance, alpha = np.diag(state.covariance), state.alpha
    inside = 1.0 / variance - alpha
    faint = inside <= 1e-8 * alpha
    left = alpha[faint] - s[state.index[faint]]
    inside[faint] = alpha[faint] * s[state.index[faint]] / np.where(left > 0, left, np.inf)
    s[state.index] = inside
    q[state.index] = state.mean / variance
    return np.maximum(s, _TINY), q


def gains(state: ActiveSet) -> tuple[Array, Array]:
    """Return the gain in log evidence of each column's best change, and the precision it asks for.

    Chmielewski et al. (2019) eqs. 13-14: ``alpha = s^2 / (q^2 - s)`` where that is positive, else
    infinite. Columns that are outside and stay there gain nothing.
    """
    s, q = leave_one_out(state)
    excess = q * q - s
    better = excess > 0
    alpha = np.full(len(s), np.inf)
    with np.errstate(over="ignore"):
        alpha[better] = s[better] * (s[better] / excess[better])
        ratio = np.minimum(q[better] * (q[better] / s[better]), _HUGE)  # beyond: lost digits
    gain = np.zeros(len(s))
    gain[better] = 0.5 * (ratio - 1.0 - np.log(ratio))
    now, s, q = state.alpha, s[state.index], q[state.index]
    gain[state.index] -= 0.5 * (np.log(now / (now + s)) + q * q / (now + s))
    gain[better & ~((alpha > 0) & np.isfinite(alpha))] = 0.0
    return gain, alpha


def empty_set(design: Array, target: Array, likelihood: Likelihood) -> ActiveSet:
    """Return the model without any basis."""
    none = np.empty(0)
    return _set_at(
        design,
        np.empty(0, dtype=np.int64),
        posterior(design[:, :0], none, target, likelihood),
        np.empty((0, design.shape[1])),
    )


def refreshed(design: Array, target: Array, likelihood: Likelihood, state: ActiveSet) -> ActiveSet:
    """Return the state with everything but the precisions computed anew, to full precision."""
    Phi = design[:, state.index]
    end = posterior(Phi, state.alpha, target, likelihood, state.mean)
    return _set_at(design, state.index, end, state.cross)


def _set_at(design: Array, index: Index, end: Posterior, cross: Array) -> ActiveSet:
    return ActiveSet(
        index=index,
        alpha=end.alpha,
        mean=end.mean,
        covariance=end.covariance,
        cross=cross,
        S=_sparsity(design, index, end),
        Q=design.T @ end.score,  # C^-1 (Phi mu + B^-1 score) = score at the posterior mean
        log_evidence=end.log_evidence,
    )


@dataclass(frozen=True)
class Basis:
    """The factors of ``[sqrt(B) Phi D; I] = Q R``, Q in its upper and lower block.

    Attributes
    ----------
    upper : ndarray, shape (n_obs, m)
    lower, factor : ndarray, shape (m, m)
    """

    upper: Array
    lower: Array
    factor: Array


def orthogonal_basis(Phi: Array, alpha: Array, curvature: Array) -> Basis:
    """Return the factors for bases with precisions `alpha` and rows with curvature B."""
    weighted = np.sqrt(curvature)[:, None] * Phi / np.sqrt(alpha)
    Q, R = np.linalg.qr(np.vstack([weighted, np.eye(len(alpha))]))
    return Basis(Q[: len(Phi)], Q[len(Phi) :], R)


def sum_of_squares(basis: Basis, weighted: Array, U: Array) -> Array:
    """Return phi' C^-1 phi: the squared length of what Q leaves of ``[sqrt(B) phi; 0]``.

    Parameters
    ----------
    basis : Basis
    weighted : ndarray, shape (n_obs, n_columns)
        ``sqrt(B) phi``.
    U : ndarray, shape (m, n_columns)
        Its coordinates in Q.
    """
    left, below = weighted - basis.upper @ U, basis.lower @ U
    return np.einsum("ij,ij->j", left, left) + np.einsum("ij,ij->j", below, below)


def _sparsity(design: Array, index: Index, end: Posterior) -> Array:
    """Return S of every column, ``phi' B phi - |U|^2``, or as a sum of squares where digits are lost."""
    basis = orthogonal_basis(design[:, index], end.alpha, end.curvature)
    root = np.sqrt(end.curvature)
    U = (basis.upper * root[:, None]).T @ design
    whole = _weighted_norms(design, end.curvature)
    S = whole - np.einsum("ij,ij->j", U, U)
    lost = np.flatnonzero(S / whole.clip(_TINY) <= _LOST)
    for begin in range(0, len(lost), _BLOCK):
        some = lost[begin : begin + _BLOCK]
        S[some] = sum_of_squares(basis, root[:, None] * design[:, some], U[:, some])
    return S


def _weighted_norms(design: Array, curvature: Array) -> Array:
    """Return phi' B phi of each column."""
    if curvature.min() == curvature.max():  # regression: one pass with two factors is much faster
        return curvature[0] * np.einsum("ij,ij->j", design, design)
    out = np.empty(design.shape[1])
    for begin in range(0, len(out), _BLOCK):
        some = design[:, begin : begin + _BLOCK]
        out[begin : begin + _BLOCK] = np.einsum("ij,ij,i->j", some, some, curvature)
    return out


def updated(
    design: Array, state: ActiveSet, column: int, alpha: float, precision: float
) -> ActiveSet:
    """Return the state after one column's precision has become `alpha`, by a rank-one update.

    Regression only, since the curvature is taken as constant (Tipping & Faul 2003, appendix).

    Parameters
    ----------
    design : ndarray, shape (n_obs, n_columns)
    state : ActiveSet
    column : int
    alpha : float
        Infinite deletes the column; one that is not in the model is added.
    precision : float
        Of one observation, 1 / noise^2.
    """
    place = np.flatnonzero(state.index == column)
    if len(place) == 0:
        return _added(design, state, column, alpha, precision)
    if np.isfinite(alpha):
        return _reestimated(state, int(place[0]), alpha, precision)
    return _deleted(state, int(place[0]), precision)


def _probe(
    design: Array, state: ActiveSet, column: int, precision: float
) -> tuple[Array, Array, float]:
    """Return ``p = beta Sigma Phi' phi``, ``e = phi - Phi p``, and S of a column outside the model.

    p minimises ``beta |phi - Phi p|^2 + p' A p``, and S is the minimum: a sum of squares in
    which an error of p counts but squared, so that it needs no refresh.
    """
    pull = precision * (state.covariance @ state.cross[:, column])
    left = design[:, column] - design[:, state.index] @ pull
    return pull, left, float(precision * (left @ left) + pull @ (state.alpha * pull))


def _added(
    design: Array, state: ActiveSet, column: int, alpha: float, precision: float
) -> ActiveSet:
    pull, left, S = _probe(design, state, column, precision)
    products, overlap = np.column_stack([design[:, column], precision * left]).T @ design
    variance = 1.0 / (alpha + S)
    mean = variance * state.Q[column]
    corner = variance * pull
    return replace(
        state,
        index=np.append(state.index, column),
        alpha=np.append(state.alpha, alpha),
        mean=np.append(state.mean - mean * pull, mean),
        covariance=np.block(
            [
                [state.covariance + np.outer(corner, pull), -corner[:, None]],
                [-corner[None], np.array([[variance]])],
            ]
        ),
        cross=np.vstack([state.cross, products]),
        S=state.S - variance * overlap**2,
        Q=state.Q - mean * overlap,
        n_updates=state.n_updates + 1,
    )


def _shrunk(state: ActiveSet, place: int, kappa: float, precision: float) -> ActiveSet:
    """Return the state after Sigma has lost kappa times the square of its column at `place`."""
    column = state.covariance[:, place]
    shift = kappa * state.mean[place]
    left = precision * (column @ state.cross)
    return replace(
        state,
        mean=state.mean - shift * column,
        covariance=state.covariance - kappa * np.outer(column, column),
        S=state.S + kappa * left**2,
        Q=state.Q + shift * left,
        n_updates=state.n_updates + 1,
    )


def _reestimated(state: ActiveSet, place: int, alpha: float, precision: float) -> ActiveSet:
    change = alpha - state.alpha[place]
    kappa = change / (1.0 + change * state.covariance[place, place])
    new = state.alpha.copy()
    new[place] = alpha
    return replace(_shrunk(state, place, kappa, precision), alpha=new)


def _deleted(state: ActiveSet, place: int, precision: float) -> ActiveSet:
    out = _shrunk(state, place, 1.0 / state.covariance[place, place], precision)
    return replace(
        out,
        index=np.delete(out.index, place),
        alpha=np.delete(out.alpha, place),
        mean=np.delete(out.mean, place),
        covariance=np.delete(np.delete(out.covariance, place, 0), place, 1),
        cross=np.delete(out.cross, place, 0),
    )


def _with_precision(state: ActiveSet, column: int, alpha: float) -> ActiveSet:
    """Return index, precisions and start of the mean after a change; the rest is to be refreshed."""
    place = np.flatnonzero(state.index == column)
    if len(place) == 0:
        return replace(
            state,
            index=np.append(state.index, column),
            alpha=np.append(state.alpha, alpha),
            mean=np.append(state.mean, 0.0),
        )
    if np.isfinite(alpha):
        new = state.alpha.copy()
        new[place] = alpha
        return replace(state, alpha=new)
    return replace(
        state,
        index=np.delete(state.index, place),
        alpha=np.delete(state.alpha, place),
        mean=np.delete(state.mean, place),
    )


def fit_sequential(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from the empty model upwards, one basis at a time.

    Each step adds, re-estimates or deletes the basis that gains most.

    Parameters
    ----------
    problem : EvidenceProblem
    options : EvidenceOptions, optional
    noise_start : float, optional
        Multiple of the targets' standard deviation; default: the first of the options' starts.

    Returns
    -------
    EvidenceResult

    Notes
    -----
    Columns have unit norm; states are computed anew by a QR factorisation of ``[sqrt(B) Phi D; I]``
    every 50 rank-one steps, where a chosen column has lost its digits, and before convergence is
    declared. The noise is first updated when the precisions have converged, then every five steps.
    Classification recomputes at each step, and since its approximate evidence can fall it keeps the best
    state and stops after 30 steps without a better one.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 13-15, corrected (see `ActiveSet`; their
    random choice of the basis takes four to eight times the steps).
    """
    options = options or EvidenceOptions()
    design = unit_design(problem)
    if problem.is_regression:
        noise = start_noise(problem, options, noise_start)
        reached = _Regression(problem, design.columns, options, noise).run()
    else:
        reached = _classify(problem, design.columns, options)
    return result_at(problem, design, reached)


class _Regression:
    """The search for a normal likelihood: rank-one steps, refreshed now and then."""

    def __init__(
        self, problem: EvidenceProblem, columns: Array, options: EvidenceOptions, noise: float
    ) -> None:
        self.problem, self.columns, self.options = problem, columns, options
        self.noise, self.noise_moves = noise, False
        self.norms = _weighted_norms(columns, np.ones(len(columns)))
        self.products = problem.target @ columns
        self.state = empty_set(columns, problem.target, problem.likelihood_at(noise))
        self.rows = [self._row()]
        self.best, self.since = -np.inf, 0

    def run(self) -> Reached:
        status = Status.ITERATION_LIMIT
        while len(self.rows) <= self.options.max_iter:
            gain, alpha = gains(self.state)
            best = int(gain.argmax())
            if gain[best] < self.options.tol:
                if self.state.n_updates:
                    self.refresh()
                    continue
                if self._noise_has_settled():
                    status = Status.CONVERGED
                    break
                continue
            if self._has_lost_digits(best):
                self.refresh()
                continue
            self._change(best, float(alpha[best]), float(gain[best]))
            if self._does_not_improve():
                status = Status.BEST_OF_CYCLE
                break
        state = self.state
        return Reached(state.index, state.alpha, state.mean, self.noise, status, self.rows)

    def refresh(self) -> None:
        likelihood = self.problem.likelihood_at(self.noise)
        self.state = refreshed(self.columns, self.problem.target, likelihood, self.state)

    def _row(self) -> tuple[float, int, float]:
        return self.state.log_evidence, len(self.state.index), self.noise

    def _has_lost_digits(self, column: int) -> bool:
        """Whether the rank-one steps have spoilt the numbers by which a column was chosen.

        Outside the model S is compared with a sum of squares; inside, Q with ``alpha mu``,
        which it equals, in the unit sqrt(S) in which it decides.
        """
        state = self.state
        if state.n_updates == 0:
            return False
        place = np.flatnonzero(state.index == column)
        if len(place) == 0:
            exact = _probe(self.columns, state, column, self.noise**-2)[2]
            return not abs(state.S[column] - exact) < _SPOILT * exact
        if not state.covariance[place[0], place[0]] > 0:
            return True
        error = state.Q[column] - (state.alpha * state.mean)[place[0]]
        return not abs(error) < _SPOILT * np.sqrt(max(state.S[column], 0.0))

    def _change(self, column: int, alpha: float, gain: float) -> None:
        state = updated(self.columns, self.state, column, alpha, self.noise**-2)
        self.state = replace(state, log_evidence=state.log_evidence + gain)
        if self.noise_moves and len(self.rows) % self.options.noise_period == 0:
            self._move_noise(self._next_noise())
        elif self.state.n_updates >= self.options.refresh_period:
            self.refresh()
        self.rows.append(self._row())

    def _does_not_improve(self) -> bool:
        """Whether many steps, each said to gain, gained nothing: what they gain is rounding."""
        found = self.state.log_evidence
        if found > self.best + self.options.tol:
            self.best, self.since = found, 0
        self.since += 1
        return self.since > 4 * self.options.patience

    def _noise_has_settled(self) -> bool:
        """Update the noise now that the precisions have converged; whether it does not move."""
        if self.problem.noise is not None:
            return True
        noise = self._next_noise()
        settled = abs(np.log(noise / self.noise)) < self.options.noise_tol
        self.noise_moves = True
        if not settled:
            self._move_noise(noise)
            self.rows.append(self._row())
        return bool(settled)

    def _next_noise(self) -> float:
        state = self.state
        latent = self.columns[:, state.index] @ state.mean
        determined = len(state.index) - float(state.alpha @ np.diag(state.covariance))
        return noise_update(self.problem, latent, determined)

    def _move_noise(self, noise: float) -> None:
        """Set the noise and compute the state from the inner products that are kept.

        They make no use of the rows, so that a refresh by QR stays due.
        """
        self.noise = noise
        state, precision = self.state, noise**-2
        scale = 1.0 / np.sqrt(state.alpha)
        inner = precision * np.outer(scale, scale) * state.cross[:, state.index]
        try:
            factor = cholesky(np.eye(len(scale)) + inner, check_finite=False)
        except LinAlgError:  # too ill-conditioned to be squared
            self.refresh()
            return
        half = scale[:, None] * inverse_triangle(factor)
        covariance = half @ half.T
        mean = precision * (covariance @ self.products[state.index])
        U = precision * (half.T @ state.cross)
        residual = (self.problem.target - self.columns[:, state.index] @ mean) / noise
        quadratic = residual @ residual + mean @ (state.alpha * mean)
        log_normal = -self.problem.n_obs * (0.5 * np.log(2 * np.pi) + np.log(noise))
        self.state = replace(
            state,
            mean=mean,
            covariance=covariance,
            S=precision * self.norms - np.einsum("ij,ij->j", U, U),
            Q=precision * (self.products - mean @ state.cross),
            log_evidence=float(log_normal - 0.5 * quadratic - np.log(np.diag(factor)).sum()),
            n_updates=state.n_updates + 1,
        )


def _classify(problem: EvidenceProblem, columns: Array, options: EvidenceOptions) -> Reached:
    """Search under Laplace's approximation: everything is computed anew after each change."""
    likelihood = problem.likelihood_at(np.nan)
    state = best = empty_set(columns, problem.target, likelihood)
    rows = [(state.log_evidence, 0, np.nan)]
    status, since = Status.ITERATION_LIMIT, 0
    while len(rows) <= options.max_iter:
        gain, alpha = gains(state)
        column = int(gain.argmax())
        if gain[column] < options.tol:
            status = Status.CONVERGED
            break
        state = refreshed(
            columns,
            problem.target,
            likelihood,
            _with_precision(state, column, float(alpha[column])),
        )
        rows.append((state.log_evidence, len(state.index), np.nan))
        since += 1
        if state.log_evidence > best.log_evidence + options.tol:
            best, since = state, 0
        if since >= options.patience:
            status = Status.BEST_OF_CYCLE
            break
    if state.log_evidence < best.log_evidence:
        state = best
    return Reached(state.index, state.alpha, state.mean, np.nan, status, rows)
