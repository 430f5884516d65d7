"""The relevance vector machine: one basis at a time, that of the largest gain, or all precisions at once.

The former is Tipping's & Faul's (2003), from the empty model upwards; the latter Tipping's (2001), from all
bases downwards, which ends with steps of the former.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.evidence.active_set import ActiveSet, Model, gains, scanned
from pcvm_pymc.core.evidence.columns import Columns, DenseColumns
from pcvm_pymc.core.evidence.problem import (
    NOISE_FLOOR,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    NoisePrior,
    columns_of,
    result_at,
    start_noise,
)
from pcvm_pymc.core.evidence.rank_one import TINY, Quadratic, Schedule, Swept, change_precisions
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, threads_by_size
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.pieces.validation import check_choice
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.quadratic import Index

_CANDIDATES = 64  # columns, besides those in the model, among which changes are made
_NO_SCHEDULE = Schedule(0, 0, 0, 0.0)
_AT_ONCE = 1000  # changes of a regression between computations from the rows
_DIGITS = 0.1  # share of tol by which the log evidence may then differ from theirs
_QUADRATIC_PATIENCE = 4  # times that of the options, where only rounding can make a search cycle
_MOST_NOISES = 100  # values of a noise with a prior, each with a search of its own
_HALVINGS = 3  # of a re-estimation that lowers Laplace's evidence
_ROUNDING = 1e-9  # relative error of the log evidence
# alpha / beta of a basis of unit norm: its weight explains a millionth of the noise
_PRUNING_RATIO = 1e6
# A search of two classes that ends with at most so many bases, and more than this share of the empty model's
# log evidence, is repeated from 64 bases that share the best of these precisions (of columns of unit norm);
# the result is taken where it has more log evidence by so many nats.
_TRAPPED, _UNEXPLAINED, _WORTHWHILE = 2, 0.8, 1.0
_SHARED = 10.0 ** np.arange(-4.0, 2.0)  # precisions of weights of columns of unit norm


def fit_sequential(
    problem: EvidenceProblem, options: EvidenceOptions | None = None
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
        An unknown noise starts at the first of its `noise_starts`.

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
    noise, none = start_noise(problem, options), np.empty(0)
    empty = none.astype(np.int64), none, none
    result = SequentialSearch(problem, columns, options, noise).result(empty)
    # a search of two classes may end with almost nothing although there are many columns
    few = np.count_nonzero(result.weight) <= _TRAPPED < columns.shape[1]
    is_poor = result.log_evidence < _UNEXPLAINED * result.trace.log_evidence[0]
    ended = np.isnan(result.noise) and result.status is not Status.ITERATION_LIMIT
    if not (few and is_poor and ended):
        return result
    index = np.unique(np.linspace(0, columns.shape[1] - 1, _CANDIDATES).astype(np.int64))
    zero = np.zeros(len(index))
    ends = [columns.posterior((index, zero + a, zero), problem.observed(noise)) for a in _SHARED]
    best = max(ends, key=lambda end: end.log_evidence)
    again = SequentialSearch(problem, columns, options, noise).result(
        (index, best.alpha, best.mean)
    )
    return again if again.log_evidence > result.log_evidence + _WORTHWHILE else result


class SequentialSearch:
    """The search by single changes that gain: its noise, its history, and the best state so far."""

    def __init__(
        self,
        problem: EvidenceProblem,
        columns: Columns,
        options: EvidenceOptions,
        noise: float,
        trace: Sequence[tuple[float, int, float]] = (),
    ) -> None:
        self.problem, self.columns, self.options, self.noise = problem, columns, options, noise
        self.trace, self.since = list(trace), 0
        self.noise_moves = bool(trace) and problem.noise_is_estimated
        self.is_quadratic = problem.likelihood.is_quadratic
        self.patience = options.patience * (_QUADRATIC_PATIENCE if self.is_quadratic else 1)
        self.n_at_once, self.is_careful = 1, False

    def result(self, model: Model) -> EvidenceResult:
        """Return where single changes that gain lead to from a model; the model itself where none does."""
        columns, state = self.columns, self._scanned(self.columns, model)
        self.best = state, state.index, self.noise
        self.trace = self.trace or [(state.log_evidence, len(state.index), self.noise)]
        status = Status.ITERATION_LIMIT
        while self._may_go_on():
            gain, before = gains(state)[0], len(self.trace)
            if gain.max(initial=0.0) >= self.options.tol:
                some = _promising(gain, state.index, self.options.tol)
                state = self._among(columns.among(some), state.among(some), some)
                if len(some) < columns.shape[1]:
                    state = self._scanned(columns, (some[state.index], state.alpha, state.mean))
            if len(self.trace) > before:
                continue
            self.noise_moves = self.problem.noise_is_estimated
            moved = self._at_next_noise(columns, state, state.index) if self.noise_moves else None
            if moved is None:
                status = Status.CONVERGED
                break
            state = moved
        index, noise = state.index, self.noise
        if not self.is_quadratic and _is_lower(state, self.best[0]):
            state, index, noise = self.best
            status = Status.BEST_OF_CYCLE if status is Status.CONVERGED else status
        if self.since >= self.patience:
            status = Status.BEST_OF_CYCLE
        model = index, state.alpha, state.mean
        return result_at(
            self.problem, self.columns, model, noise=noise, status=status, trace=self.trace
        )

    def _among(self, columns: Any, state: ActiveSet, number: Index) -> ActiveSet:
        """Search until none of some columns gains; `number` are theirs among all."""
        inner = None
        if self.is_quadratic:
            observed, Phi = self.problem.observed(self.noise), columns.Phi
            root = None if observed.weight is None else np.sqrt(observed.weight)
            Phi, target = times_weight(root, Phi), times_weight(root, observed.target)
            none, square = np.empty((len(number), 0)), float(target @ target)
            inner = Quadratic(none, Phi.T @ Phi, target @ Phi, square, float(observed.n_obs))
        is_converged, moved = False, None
        while self._may_go_on():
            if not is_converged:
                moved, is_converged = self._step(columns, state, number, inner)
            if moved is None and self.noise_moves:
                moved = self._at_next_noise(columns, state, number[state.index])
                is_converged = False
            if moved is None:
                break
            state, moved = moved, None
        return state

    def _step(
        self, columns: Any, state: ActiveSet, number: Index, inner: Any
    ) -> tuple[ActiveSet | None, bool]:
        """Return the state after changes that gain, None where none is made, and whether none gains any more.

        Each change of a regression raises the evidence in exact arithmetic: many are made by updates alone.
        Where the evidence computed from the rows then is another, the search is careful from there on.
        """
        if not self.is_quadratic or self.is_careful:
            return self._careful_step(columns, state, number, inner)
        period = self.options.noise_period if self.noise_moves else 0
        floor = NOISE_FLOOR * self.problem.target_scale
        schedule = Schedule(self.options.refresh_period, period, len(self.trace) - 1, floor)
        model, history, is_converged = self._changed(inner, state, _AT_ONCE, schedule)
        if len(history) == 0:
            return None, True
        noise, self.noise = self.noise, float(history[-1, 2]) ** -0.5
        new = self._scanned(columns, model)
        error = abs(new.log_evidence - history[-1, 0])
        if error < _DIGITS * self.options.tol and not _is_lower(new, state):
            self._record(new, number[new.index], history)
            return new, is_converged
        self.noise, self.is_careful = noise, True
        return self._careful_step(columns, state, number, inner)

    def _careful_step(
        self, columns: Any, state: ActiveSet, number: Index, inner: Any
    ) -> tuple[ActiveSet | None, bool]:
        """Return the same after a few changes, of the quadratic model at the mode where there is no other.

        A change of a regression that does not raise the evidence is an effect of rounding, and others would
        follow until all columns are in: it is not made. Where the likelihood is not quadratic, a single
        change that lowers Laplace's evidence is made, by less if it re-estimates.
        """
        if not self.is_quadratic:
            weighted, index = state.triangle, state.index
            if weighted is None:
                latent = columns.Phi[:, index] @ state.mean
                curvature = self.problem.observed(self.noise).curvature(latent)
                weighted = np.sqrt(curvature)[:, None] * columns.Phi
            gram = np.empty((weighted.shape[1], weighted.shape[1]))
            np.fill_diagonal(gram, np.nan)  # columns outside the model: computed when needed
            gram[index] = weighted[:, index].T @ weighted
            inner = Quadratic(np.ascontiguousarray(weighted.T), gram, np.empty(len(gram)), 0.0, 0.0)
        period = self.options.noise_period if self.noise_moves else 0
        for at_once in dict.fromkeys((min(self.n_at_once, period or _AT_ONCE), 1)):
            model, history, _ = self._changed(inner, state, at_once, _NO_SCHEDULE)
            if len(history) == 0:
                return None, True
            new = self._scanned(columns, model)
            is_lower = _is_lower(new, state)
            if not is_lower:
                break
        if is_lower and self.is_quadratic:
            return None, True
        self.n_at_once = 1 if is_lower else min(2 * at_once, self.options.refresh_period)
        for _ in range(_HALVINGS):
            if not _is_lower(new, state) or len(new.index) != len(state.index):
                break
            alpha = np.sqrt(state.alpha * new.alpha)
            new = self._scanned(columns, (new.index, alpha, new.mean))
        # what rounding may have spoilt on the way lies between the two values computed from the rows
        highest = max(state.log_evidence, new.log_evidence)
        history[:, 0] = history[:, 0].clip(state.log_evidence, highest)
        if period and len(self.trace) % period < len(history):
            self.noise = self._next_noise(columns, new)
            new = self._scanned(columns, new.model)
        history[-1] = new.log_evidence, len(new.index), self.noise**-2.0
        self._record(new, number[new.index], history if self.is_quadratic else history[-1:])
        return new, False

    def _changed(
        self, inner: Quadratic, state: ActiveSet, at_once: int, schedule: Schedule
    ) -> tuple[Model, Array, bool]:
        """Return (index, alpha, mean) after at most so many changes, their history, and if no more gains."""
        index, m, n_columns = state.index, len(state.index), len(state.S)
        beta = self.noise**-2.0 if self.is_quadratic else 1.0
        out, members = np.full(n_columns, np.inf), np.zeros(n_columns, dtype=np.int64)
        rows = np.empty((n_columns, n_columns))
        swept = Swept(out, rows, state.S.copy(), state.Q.copy(), members)
        swept.alpha[index], swept.members[:m] = state.alpha, index
        swept.rows[index] = beta * (state.covariance @ inner.gram[index])
        swept.rows[index[:, None], index] = -state.covariance
        swept.S[index], swept.Q[index] = -state.covariance.diagonal(), state.mean
        history = np.empty((min(at_once, self.options.max_iter + 1 - len(self.trace)), 3))
        m, n_changes, is_converged = change_precisions(
            inner, swept, m, beta, state.log_evidence, self.options.tol, schedule, history
        )
        index = swept.members[:m]
        return (index, swept.alpha[index], swept.Q[index]), history[:n_changes], is_converged

    def _scanned(self, columns: Columns, model: Model) -> ActiveSet:
        return scanned(columns, self.problem.observed(self.noise), model)

    def _next_noise(self, columns: Any, state: ActiveSet) -> float:
        latent = columns.take(state.index) @ state.mean
        determined = len(state.index) - float(state.alpha @ state.covariance.diagonal())
        return self.problem.noise_at(latent, determined, self.noise)

    def _at_next_noise(self, columns: Columns, state: ActiveSet, number: Index) -> ActiveSet | None:
        """Return the state at the next noise; None where it has converged."""
        noise = self._next_noise(columns, state)
        if abs(np.log(noise / self.noise)) < self.options.noise_tol:
            return None
        self.noise = noise
        state = self._scanned(columns, state.model)
        self._record(state, number)
        return state

    def _may_go_on(self) -> bool:
        return len(self.trace) <= self.options.max_iter and self.since < self.patience

    def _record(self, state: ActiveSet, number: Index, history: Array | None = None) -> None:
        """Add changes to the trace, one by default, and note whether this is the best state so far."""
        if history is None:
            history = np.array([[state.log_evidence, len(number), self.noise**-2.0]])
        self.trace += [(value, int(m), beta**-0.5) for value, m, beta in history.tolist()]
        self.since += len(history)
        PROGRESS.debug(
            "%d changes of precisions, log evidence %.6g", len(self.trace), history[-1, 0]
        )
        if state.log_evidence > self.best[0].log_evidence + self.options.tol:
            self.best, self.since = (state, number, self.noise), 0


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


# --- from all bases downwards, all precisions at once -----------------------------------------------


def fit_batch(problem: EvidenceProblem, options: EvidenceOptions | None = None) -> EvidenceResult:
    """Maximise the evidence from all bases downwards, by MacKay's updates of all precisions at once.

    The sweeps cannot add a pruned basis again; once they have converged, single changes that gain follow, as
    in `fit_sequential`. Both searches end at a local maximum, where no single change gains more than the
    options' ``tol``; neither always ends at the higher one.

    Parameters
    ----------
    problem, options
        As for `fit_sequential`.

    Returns
    -------
    EvidenceResult

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; A. Chmielewski-Anders et al. (2019), "The relevance vector machine and sparsity of
    Bayesian learning", eqs. 6-12. Corrected: eq. 12, see `posterior`. Bases are pruned at a relative
    threshold, alpha / beta > 1e6 for a basis of unit norm, and the stop is on the change of evidence.
    The single changes at the end: M. E. Tipping and A. C. Faul (2003).
    """
    options, columns = options or EvidenceOptions(), columns_of(problem)
    if not isinstance(columns, DenseColumns):
        fault = "method='batch' needs all basis functions; found computed ones (memory_limit)"
        raise ValueError(f"{fault}: use 'sequential'")
    noise, free = start_noise(problem, options), problem.noise_is_estimated
    # all bases with equal precisions, the latent function varying as the targets do
    index: Any = np.flatnonzero(columns.square)
    variance = problem.target_scale**2 if problem.likelihood.targets == "numbers" else 1.0
    alpha = np.full(len(index), max(len(index), 1) / (problem.total * variance))
    trace: list[tuple[float, int, float]] = []
    mean: Any = None
    last, since, noise_moves = -np.inf, 0, False
    while len(trace) <= options.max_iter:
        observed = problem.observed(noise)
        end = columns.posterior((index, alpha, mean), observed)
        trace.append((end.log_evidence, len(index), noise))
        PROGRESS.debug("sweep %d, log evidence %.6g", len(trace), end.log_evidence)
        model = index, alpha, end.mean
        is_still = abs(end.log_evidence - last) < 0.01 * options.tol
        last = end.log_evidence
        determined = np.clip(1.0 - alpha * end.variance, TINY, 1.0)
        next_noise = problem.noise_at(end.latent, determined.sum(), noise) if free else noise
        if is_still and (not free or abs(np.log(next_noise / noise)) < options.noise_tol):
            return SequentialSearch(problem, columns, options, noise, trace).result(model)
        # the noise waits until the precisions have converged once, and then is updated now and then
        noise_moves, since = noise_moves or is_still, since + 1
        if is_still or (noise_moves and since >= options.noise_period):
            noise, since = next_noise, 0
        with np.errstate(divide="ignore", over="ignore"):
            alpha = determined / end.mean**2  # eq. 8
        bound = observed.likelihood.bound
        keep = alpha < _PRUNING_RATIO * (bound if np.isfinite(bound) else end.curvature.max())
        index, alpha, mean = index[keep], alpha[keep], end.mean[keep]
    return result_at(
        problem, columns, model, noise=noise, status=Status.ITERATION_LIMIT, trace=trace
    )


METHODS = {"sequential": fit_sequential, "batch": fit_batch}


@threads_by_size
def fit_rvm(
    problem: EvidenceProblem,
    *,
    method: str = "sequential",
    options: EvidenceOptions | None = None,
    noise_prior: NoisePrior | None = None,
) -> EvidenceResult:
    """Maximise the evidence of a relevance vector machine; of several starts of the noise the best wins.

    Parameters
    ----------
    problem : EvidenceProblem
    method : {"sequential", "batch"}
    options : EvidenceOptions, optional
    noise_prior : NoisePrior, optional
        Of an unknown noise, which then is where evidence times density is largest; default: flat on its
        logarithm.

    Returns
    -------
    EvidenceResult

    Raises
    ------
    ValueError
        If the method is unknown.
    """
    check_choice("method", method, tuple(METHODS))
    options = options or EvidenceOptions()
    starts = options.noise_starts[: None if problem.noise_is_estimated else 1]
    fits = [METHODS[method](problem, replace(options, noise_starts=(start,))) for start in starts]
    best = max(fits, key=lambda fit: fit.log_evidence)
    if noise_prior is None:
        return best
    for _ in range(_MOST_NOISES):  # precisions given the noise, and the noise given these
        latent = best.latent - problem.origin * problem.constant
        precision = np.append(best.alpha[best.active], best.bias_alpha)
        variance = best.covariance.diagonal()
        kept = variance > 0
        determined = float((1.0 - precision[kept] * variance[kept]).sum())
        noise = problem.noise_at(latent, determined, best.noise, noise_prior)
        if abs(np.log(noise / best.noise)) < options.noise_tol:
            return best
        known = replace(problem, likelihood=problem.likelihood.with_noise(noise))
        best = METHODS[method](known, options)
    return replace(best, status=Status.ITERATION_LIMIT)
