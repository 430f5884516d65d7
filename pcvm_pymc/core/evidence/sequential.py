"""The fast relevance vector machine: one basis at a time, that of the largest gain (Tipping & Faul 2003)."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.evidence.columns import Columns, DenseColumns, Index
from pcvm_pymc.core.evidence.posterior import ActiveSet, Model, gains, posterior, scanned
from pcvm_pymc.core.evidence.problem import (
    NOISE_FLOOR,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    Reached,
    columns_of,
    result_at,
    start_noise,
)
from pcvm_pymc.core.evidence.rank_one import Quadratic, Schedule, Swept, change_precisions
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

_CANDIDATES = 64  # columns, besides those in the model, among which changes are made
_NO_SCHEDULE = Schedule(0, 0, 0, 0.0)
_AT_ONCE = 1000  # changes of a regression between computations from the rows
_DIGITS = 0.1  # share of tol by which the log evidence may then differ from theirs
_QUADRATIC_PATIENCE = 4  # times that of the options, where only rounding can make a search cycle
_HALVINGS = 3  # of a re-estimation that lowers Laplace's evidence
_ROUNDING = 1e-9  # relative error of the log evidence
# A search of two classes that ends with at most so many bases, and more than this share of the empty model's
# log evidence, is repeated from 64 bases that share the best of these precisions (of columns of unit norm);
# the result is taken where it has more log evidence by so many nats.
_TRAPPED, _UNEXPLAINED, _WORTHWHILE = 2, 0.8, 1.0
_SHARED = 10.0 ** np.arange(-4.0, 2.0)


def fit_sequential(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from the empty model upwards, one basis at a time.

    Each step adds, re-estimates or deletes the basis that gains most, of those in the model and 64
    candidates; where none of these gains any more, a full scan of all bases finds new candidates. Wide bases
    may gain together where none gains alone: a search of two classes that ends with two at most, and
    more than four fifths of the empty model's log evidence, is repeated from 64 bases, and the better
    evidence is kept.

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
    Columns have unit norm. A regression is changed by rank-one updates of inner products, computed afresh
    every 50 changes; where the log evidence computed from the rows (by QR where necessary) is not the same,
    or is lower, fewer changes are made between such computations. The noise is first updated when the
    precisions have converged, then every five changes.
    Where the likelihood is not quadratic, the changes are those of its quadratic model at the mode: as many
    as do not lower Laplace's evidence, but at least one. Since Laplace's evidence can fall even so, the
    best state is kept, and the search stops after 30 models without a better one: the status is then
    `BEST_OF_CYCLE`, as it is where the search converges at a lower evidence than it has seen.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 13-15, corrected (see `ActiveSet`).
    """
    options, columns = options or EvidenceOptions(), columns_of(problem)
    noise = start_noise(problem, options, noise_start)
    none = np.empty(0)
    empty = Reached(none.astype(np.int64), none, none, noise, Status.CONVERGED, [])
    result = result_at(problem, columns, improved(problem, columns, empty, options))
    # a search of two classes may end with almost nothing although there are many columns
    few = np.count_nonzero(result.weight) <= _TRAPPED < columns.shape[1]
    is_poor = result.log_evidence < _UNEXPLAINED * result.trace.log_evidence[0]
    ended = np.isnan(result.noise) and result.status is not Status.ITERATION_LIMIT
    if not (few and is_poor and ended):
        return result
    index = np.unique(np.linspace(0, columns.shape[1] - 1, _CANDIDATES).astype(np.int64))
    Phi, likelihood = columns.take(index), problem.likelihood_at(noise)
    ends = [posterior(Phi, np.full(len(index), a), problem.target, likelihood) for a in _SHARED]
    best = max(ends, key=lambda end: end.log_evidence)
    start = Reached(index, best.alpha, best.mean, noise, Status.CONVERGED, [])
    again = result_at(problem, columns, improved(problem, columns, start, options))
    return again if again.log_evidence > result.log_evidence + _WORTHWHILE else result


def improved(
    problem: EvidenceProblem, columns: Columns, start: Reached, options: EvidenceOptions
) -> Reached:
    """Return where single changes that gain lead to from a model; the model itself where none does."""
    likelihood = problem.likelihood_at(start.noise)
    model = start.index, start.alpha, start.mean
    state = scanned(columns, problem.target, likelihood, model)
    search = _Search(problem, options, start, state)
    state, is_converged = search.run(columns, state)
    status = Status.CONVERGED if is_converged else Status.ITERATION_LIMIT
    index, noise = state.index, search.noise
    best, best_index, best_noise = search.best
    if not problem.likelihood.is_quadratic and _is_lower(state, best):
        state, index, noise = best, best_index, best_noise
        status = Status.BEST_OF_CYCLE if is_converged else status
    if search.since >= search.patience:
        status = Status.BEST_OF_CYCLE
    return Reached(index, state.alpha, state.mean, noise, status, search.trace)


class _Search:
    """The search: how it proceeds, its noise, its history, and the best state so far."""

    def __init__(
        self, problem: EvidenceProblem, options: EvidenceOptions, start: Reached, state: ActiveSet
    ) -> None:
        self.problem, self.options, self.noise = problem, options, start.noise
        self.trace = start.trace or [(state.log_evidence, len(state.index), start.noise)]
        self.best, self.since = (state, state.index, start.noise), 0
        self.noise_moves = bool(start.trace) and problem.noise_is_estimated
        self.is_quadratic = problem.likelihood.is_quadratic
        self.patience = options.patience * (_QUADRATIC_PATIENCE if self.is_quadratic else 1)
        self.floor = NOISE_FLOOR * problem.target_scale if problem.noise_is_estimated else 0.0
        self.n_at_once, self.is_careful = 1, False

    def run(self, columns: Columns, state: ActiveSet) -> tuple[ActiveSet, bool]:
        """Search until no column gains `tol`; return the state, and whether it came to that."""
        while self._may_go_on():
            gain, before = gains(state)[0], len(self.trace)
            if gain.max(initial=0.0) >= self.options.tol:
                some = _promising(gain, state.index, self.options.tol)
                state = self._among(columns.take(some), state.among(some), some)
                if len(some) < columns.shape[1]:
                    model = some[state.index], state.alpha, state.mean
                    state = self._scanned(columns, self.problem, model)
            if len(self.trace) > before:
                continue
            if not self.problem.noise_is_estimated:
                return state, True
            self.noise_moves = True
            moved = self._at_next_noise(columns, self.problem, state, state.index)
            if moved is None:
                return state, True
            state = moved
        return state, False

    def _among(self, Phi: Array, state: ActiveSet, number: Index) -> ActiveSet:
        """Search until none of some columns, shape (n_obs, n_some), gains; `number` are theirs."""
        given = _Candidates(self.problem, Phi, number, rotated=self.is_careful)
        is_converged, found = False, None
        while self._may_go_on():
            if not is_converged:
                found, is_converged = self._step(given, state)
            if found is None and self.noise_moves:
                number = given.number[state.index]
                found = self._at_next_noise(given.columns, given.problem, state, number)
                is_converged = False
            if found is None:
                break
            state, found = found, None
        return state

    def _step(self, given: "_Candidates", state: ActiveSet) -> tuple[ActiveSet | None, bool]:
        """Return the state after changes that gain, None where none is made, and whether none gains any more.

        Each change of a regression raises the evidence in exact arithmetic. One that does not is an effect of
        rounding, and others would follow until all columns are in: it is not made. Where the likelihood is
        not quadratic, changes are those of the quadratic model at the mode, and a single one that lowers
        Laplace's evidence is made, by less if it re-estimates.
        """
        columns, problem, options = given.columns, given.problem, self.options
        period = options.noise_period if self.noise_moves else 0
        if self.is_quadratic and not self.is_careful:
            schedule = Schedule(options.refresh_period, period, len(self.trace) - 1, self.floor)
            model, history, is_converged = self._changed(given, state, _AT_ONCE, schedule)
            if len(history) == 0:
                return None, True
            noise, self.noise = self.noise, float(history[-1, 2]) ** -0.5
            new = self._scanned(columns, problem, model)
            error = abs(new.log_evidence - history[-1, 0])
            if error < _DIGITS * options.tol and not _is_lower(new, state):
                self._record(new, given.number[new.index], history)
                return new, is_converged
            self.noise, self.is_careful = noise, True
        if not self.is_quadratic:
            given.at_mode(state, problem.likelihood_at(self.noise))
        most = min(self.n_at_once, period or _AT_ONCE) if self.is_quadratic else self.n_at_once
        for at_once in dict.fromkeys((most, 1)):
            model, history, _ = self._changed(given, state, at_once, _NO_SCHEDULE)
            if len(history) == 0:
                return None, True
            new = self._scanned(columns, problem, model)
            is_lower = _is_lower(new, state)
            if not is_lower:
                break
        if is_lower and self.is_quadratic:
            return None, True
        self.n_at_once = 1 if is_lower else min(2 * at_once, options.refresh_period)
        for _ in range(_HALVINGS):
            if not _is_lower(new, state) or len(new.index) != len(state.index):
                break
            alpha = np.sqrt(state.alpha * new.alpha)
            new = self._scanned(columns, problem, (new.index, alpha, new.mean))
        history = history if self.is_quadratic else history[-1:]
        # what rounding may have spoilt on the way lies between the two values computed from the rows
        history[:, 0] = history[:, 0].clip(
            state.log_evidence, max(state.log_evidence, new.log_evidence)
        )
        if period and len(self.trace) % period < len(history):
            self.noise = self._next_noise(columns, problem, new)
            new = self._scanned(columns, problem, new.model)
        history[-1] = new.log_evidence, len(new.index), self.noise**-2.0
        self._record(new, given.number[new.index], history)
        return new, False

    def _changed(
        self, given: "_Candidates", state: ActiveSet, at_once: int, schedule: Schedule
    ) -> tuple[Model, Array, bool]:
        """Return (index, alpha, mean) after at most so many changes, their history, and if no more gains."""
        index, m, n_columns = state.index, len(state.index), len(state.S)
        beta = self.noise**-2.0 if self.is_quadratic else 1.0
        swept = Swept(
            np.full(n_columns, np.inf),
            np.empty((n_columns, n_columns)),
            state.S.copy(),
            state.Q.copy(),
            np.zeros(n_columns, dtype=np.int64),
        )
        swept.alpha[index], swept.members[:m] = state.alpha, index
        swept.rows[index] = beta * (state.covariance @ given.inner.gram[index])
        swept.rows[index[:, None], index] = -state.covariance
        swept.S[index], swept.Q[index] = -state.covariance.diagonal(), state.mean
        history = np.empty((min(at_once, self.options.max_iter + 1 - len(self.trace)), 3))
        m, n_changes, is_converged = change_precisions(
            given.inner, swept, m, beta, state.log_evidence, self.options.tol, schedule, history
        )
        index = swept.members[:m]
        return (index, swept.alpha[index], swept.Q[index]), history[:n_changes], is_converged

    def _scanned(self, columns: Columns, among: EvidenceProblem, model: Model) -> ActiveSet:
        return scanned(columns, among.target, among.likelihood_at(self.noise), model)

    def _next_noise(self, columns: Columns, among: EvidenceProblem, state: ActiveSet) -> float:
        latent = columns.take(state.index) @ state.mean
        determined = len(state.index) - float(state.alpha @ state.covariance.diagonal())
        return among.noise_at(latent, determined, self.noise, self.floor)

    def _at_next_noise(
        self, columns: Columns, among: EvidenceProblem, state: ActiveSet, number: Index
    ) -> ActiveSet | None:
        """Return the state at the next noise; None where it has converged."""
        noise = self._next_noise(columns, among, state)
        if abs(np.log(noise / self.noise)) < self.options.noise_tol:
            return None
        self.noise = noise
        state = self._scanned(columns, among, state.model)
        self._record(state, number, np.array([[state.log_evidence, len(number), noise**-2.0]]))
        return state

    def _may_go_on(self) -> bool:
        return len(self.trace) <= self.options.max_iter and self.since < self.patience

    def _record(self, state: ActiveSet, number: Index, history: Array) -> None:
        """Add changes to the trace, and note whether they have led to the best state so far."""
        self.trace += [(value, int(m), beta**-0.5) for value, m, beta in history.tolist()]
        self.since += len(history)
        if state.log_evidence > self.best[0].log_evidence + self.options.tol:
            self.best, self.since = (state, number, self.noise), 0


class _Candidates:
    """Some columns, those in the model among them, between which changes are made.

    Attributes
    ----------
    problem : EvidenceProblem
        If `rotated`, a regression of many rows is that of its triangular factor.
    columns : DenseColumns
    number : ndarray of int, shape (n_columns,)
        Which of all columns they are.
    inner : Quadratic
        Their inner products: of a regression, or of the quadratic model at the mode.
    """

    def __init__(
        self, problem: EvidenceProblem, Phi: Array, number: Index, *, rotated: bool
    ) -> None:
        if problem.likelihood.is_quadratic:
            target, n_obs = problem.target, problem.n_obs
            if rotated and len(Phi) > Phi.shape[1] + 1:
                R = np.linalg.qr(np.column_stack([Phi, target]), mode="r")
                Phi, target = R[:, :-1], R[:, -1].copy()
                likelihood: Any = problem.likelihood
                likelihood = replace(likelihood, n_obs=n_obs)
                problem = EvidenceProblem(Phi, target, likelihood, bias=False)
            none, square = np.empty((len(number), 0)), float(target @ target)
            self.inner = Quadratic(none, Phi.T @ Phi, target @ Phi, square, float(n_obs))
        self.problem, self.number, self.columns = problem, number, DenseColumns(Phi, None)

    def at_mode(self, state: ActiveSet, likelihood: Likelihood) -> None:
        """Take the inner products under the curvature at a mode: of columns in the model with all."""
        Phi, index = self.columns.Phi, state.index
        curvature = likelihood.curvature(Phi[:, index] @ state.mean, self.problem.target)
        weighted = np.sqrt(curvature)[:, None] * Phi
        gram = np.empty((Phi.shape[1], Phi.shape[1]))
        np.fill_diagonal(gram, np.nan)  # columns outside the model: computed when needed
        gram[index] = weighted[:, index].T @ weighted
        self.inner = Quadratic(weighted.T, gram, np.empty(len(gram)), 0.0, 0.0)


def _is_lower(new: ActiveSet, state: ActiveSet) -> bool:
    return new.log_evidence < state.log_evidence - _ROUNDING * abs(state.log_evidence)


def _promising(gain: Array, index: Index, tol: float) -> Index:
    """Return the columns in the model and candidates: those that gain most, and some of the others.

    Neighbours gain alike, and all but one of them lose it once the first is added: half of the
    candidates are spread evenly over the rest of those that gain.
    """
    outside = gain.copy()
    outside[index] = 0.0
    taken = outside >= tol
    if np.count_nonzero(taken) > _CANDIDATES:
        number = np.flatnonzero(taken)
        order = number[np.argsort(-outside[number], kind="stable")]
        half = _CANDIDATES // 2
        spread = np.linspace(half, len(order) - 1, _CANDIDATES - half).astype(np.int64)
        taken[:] = False
        taken[order[:half]] = taken[order[spread]] = True
    taken[index] = True
    return np.flatnonzero(taken)
