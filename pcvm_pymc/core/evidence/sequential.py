"""The fast RVM: one basis at a time by the largest gain in evidence (Tipping & Faul 2003)."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.evidence.active_set import ActiveSet, at_products, empty_set, gains, refreshed
from pcvm_pymc.core.evidence.computed import ComputedColumns
from pcvm_pymc.core.evidence.posterior import posterior
from pcvm_pymc.core.evidence.problem import (
    NOISE_FLOOR,
    Design,
    EvidenceOptions,
    EvidenceProblem,
    check_held,
    problem_among,
    start_noise,
    unit_design,
)
from pcvm_pymc.core.evidence.rank_one import NoiseRule, change_precisions, kept_arrays
from pcvm_pymc.core.evidence.result import EvidenceResult, Index, Reached, result_at
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["fit_random", "fit_sequential", "improved"]

_CANDIDATES = 64  # columns that changes are made among, beside those in the model
_MANY = 16_384  # columns above which a look at all is dear
_LIVE = 2048  # columns that candidates are looked for among then
_COARSE = 0.01  # of the largest gain of all: what columns among these gain at the least
_QUADRATIC_PATIENCE = 4  # times that of the options, where only rounding can make a search cycle
_NOISY_PERIODS = 20  # while the noise moves, which computes all anew (if from inner products)
_FEW = 32  # columns up to which compiled loops beat LAPACK
_HALVINGS = 3  # of a re-estimation that lowers Laplace's evidence
_FALL = 1e-9  # of Laplace's evidence, relative: rounding
# a search that ends with no more bases, and more than this share of the empty model's log evidence left,
# begins once more, from many
_TRAPPED, _UNEXPLAINED = 2, 0.8
_BEGINNERS = 64  # bases that it begins with then
# precisions that all of them may have, of columns of unit norm
_SHARED = 10.0 ** np.arange(-4.0, 2.0)
_OFFERED = 1024  # columns that they are chosen among
_SPANNED = 1e-6  # of a column's square: it adds nothing to those before it, nor tells two apart


def fit_sequential(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from the empty model upwards, one basis at a time.

    Each step adds, re-estimates or deletes the basis that gains most, of those in the model and some
    candidates; where none of these gains any more, all bases are looked at for new candidates. Wide bases
    may gain together where none does alone: a search of two classes that ends with two at most, and more
    than four fifths of the empty model's log evidence, begins once more, from 64 that span the others, and
    the better evidence is kept.

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
    declared. A regression's candidates are rotated to as few rows as there are columns. The noise is first
    updated when the precisions have converged, then every five steps.
    Of more than 16,384 columns the 2048 that promise most are searched among until none of them gains a
    hundredth of what the best of all did; so all are looked at a few times only, which is what counts where
    they are computed when needed (`ComputedBases`).
    Where the likelihood is not quadratic, the steps are those of its quadratic model at the mode: as many
    as do not lower Laplace's evidence, at the least one, after which all is computed anew. Since Laplace's
    evidence can fall even so, the best state is kept, and the search stops after 30 models without a better
    one: the status is then `BEST_OF_CYCLE`, as it is where the search comes to rest at a lower evidence
    than it has seen.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 13-15, corrected (see `ActiveSet`; for their
    random choice of the basis `fit_random`).
    """
    options = options or EvidenceOptions()
    design = unit_design(problem)
    result = result_at(problem, design, _from_empty(_Search, problem, design, options, noise_start))
    if not _is_trapped(result, design):
        return result
    again = result_at(problem, design, _from_many(problem, design, options, result.noise))
    return again if again.log_evidence > result.log_evidence + options.tol else result


def _is_trapped(result: EvidenceResult, design: Design) -> bool:
    """Whether a search of two classes has ended with next to nothing where there are many columns.

    A regression comes to like errors from either side, and from many columns by paths that rounding turns.
    """
    is_regression, n_columns = not np.isnan(result.noise), design.columns.shape[1]
    few = np.count_nonzero(result.weight) <= _TRAPPED < n_columns <= _MANY
    left = result.log_evidence < _UNEXPLAINED * result.trace.log_evidence[0]
    return few and left and not is_regression and result.status is not Status.ITERATION_LIMIT


def _from_many(
    problem: EvidenceProblem, design: Design, options: EvidenceOptions, noise: float
) -> Reached:
    """Return where a search ends that begins with many bases, at the best precision that all may share."""
    n_columns = design.columns.shape[1]
    offered = np.unique(np.linspace(0, n_columns - 1, min(n_columns, _OFFERED)).astype(np.int64))
    index = offered[_spanning(design.columns[:, offered], _BEGINNERS)]
    Phi, likelihood = design.columns[:, index], problem.likelihood_at(noise)
    starts = [
        posterior(Phi, np.full(len(index), alpha), problem.target, likelihood) for alpha in _SHARED
    ]
    best = max(starts, key=lambda each: each.log_evidence)
    rows = [(best.log_evidence, len(index), noise)]
    start = Reached(index, best.alpha, best.mean, noise, Status.CONVERGED, rows)
    return improved(problem, design, start, options)


def _spanning(columns: Array, most: int) -> Index:
    """Return columns that span the others: the pivots of a QR factorisation that is cut off, ascending.

    Of pivots that rounding alone tells apart the first is taken.
    """
    left = np.einsum("ij,ij->j", columns, columns)
    Q = np.empty((len(columns), min(most, *columns.shape)), order="F")
    chosen: list[int] = []
    while len(chosen) < Q.shape[1] and left.max() > _SPANNED:
        k, n = len(chosen), int((left >= left.max() - _SPANNED).argmax())
        rest = columns[:, n] - Q[:, :k] @ (columns[:, n] @ Q[:, :k])
        Q[:, k] = rest / np.linalg.norm(rest)
        left = left - np.square(Q[:, k] @ columns)
        left[n] = 0.0
        chosen.append(n)
    return np.sort(np.array(chosen, dtype=np.int64))


def fit_random(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence one basis at a time, each drawn at random (Chmielewski-Anders et al. 2019).

    As `fit_sequential`, but of the bases whose change gains evidence any may be next. The paper draws among
    all and passes over those that gain nothing, which takes the same steps. Of more than 2048 bases so many
    are drawn first, and searched among until none of them gains.

    Parameters
    ----------
    problem : EvidenceProblem
    options : EvidenceOptions, optional
        With the `random_state` of the draws.
    noise_start : float, optional
        Multiple of the targets' standard deviation; default: the first of the options' starts.

    Returns
    -------
    EvidenceResult
    """
    check_held(problem, "random")
    options = options or EvidenceOptions()
    design = unit_design(problem)
    return result_at(
        problem, design, _from_empty(_RandomSearch, problem, design, options, noise_start)
    )


def _from_empty(
    kind: "type[_Search]",
    problem: EvidenceProblem,
    design: Design,
    options: EvidenceOptions,
    noise_start: float | None,
) -> Reached:
    """Return where a search from the empty model ends."""
    noise = start_noise(problem, options, noise_start)
    return kind(problem, design.columns, options, noise).run()


def improved(
    problem: EvidenceProblem, design: Design, reached: Reached, options: EvidenceOptions
) -> Reached:
    """Return where the search goes on to from where another one ended; there, where nothing gains."""
    search = _Search(problem, design.columns, options, reached.noise)
    search.begin_at(reached)
    return search.run()


class _Search:
    """The search: its state over all columns, the best one, and its history."""

    def __init__(
        self, problem: EvidenceProblem, columns: Any, options: EvidenceOptions, noise: float
    ) -> None:
        self.problem, self.columns, self.options = problem, columns, options
        self.is_quadratic = problem.likelihood.is_quadratic
        self.patience = options.patience * (_QUADRATIC_PATIENCE if self.is_quadratic else 1)
        self.noise, self.noise_moves = noise, False
        self.state = empty_set(columns, problem.target, problem.likelihood_at(noise))
        self.rows = [(self.state.log_evidence, 0, noise)]
        self.best, self.since = (self.state, noise), 0
        self.number: Index = np.empty(0, dtype=np.int64)  # of the candidates, among all columns
        self.least = options.tol  # gain for which a change is made
        self.live: Index | None = None  # numbers of the columns at hand, where they are not all
        self.n_changes = 1  # at a time, under Laplace's approximation
        # of a regression's candidates, and how many updates there were since all was computed anew
        self.gram, self.stale = np.empty((0, 0)), 0

    def begin_at(self, reached: Reached) -> None:
        """Begin where another search ended."""
        self._move_to(reached.index, reached.alpha, reached.mean)
        self.rows, self.noise_moves = reached.rows, self.problem.noise_is_estimated
        self.best = (self.state, self.noise)

    def run(self) -> Reached:
        """Search until nothing gains, or nothing has for a while."""
        status = Status.CONVERGED if self._comes_to_rest() else Status.ITERATION_LIMIT
        state, noise = self._kept()
        if status is Status.CONVERGED and state is not self.state:
            status = Status.BEST_OF_CYCLE  # the search came to rest elsewhere, and lower
        if self.since >= self.patience:
            status = Status.BEST_OF_CYCLE
        return Reached(state.index, state.alpha, state.mean, noise, status, self.rows)

    def _comes_to_rest(self) -> bool:
        """Search until nothing gains; whether it came to that."""
        while self._may_go_on():
            gain, before = gains(self.state)[0], len(self.rows)
            if gain.max(initial=0.0) >= self.least:
                self._change_some(gain)
            if len(self.rows) == before and self._noise_has_settled():
                return True
        return False

    def _may_go_on(self) -> bool:
        return len(self.rows) <= self.options.max_iter and self.since < self.patience

    def _change_some(self, gain: Array) -> None:
        """Search among the columns in the model and those that promise most."""
        index, tol = self.state.index, self.options.tol
        if self.live is not None or len(gain) <= _MANY:
            self._search_among(_promising(gain, index, tol, _CANDIDATES))
            return
        every, live = self.columns, _promising(gain, index, tol, _LIVE)
        computed = isinstance(every, ComputedColumns)
        self.live, self.columns = live, every.taken(live) if computed else every[:, live]
        self.state = _among(self.state, live)
        self.least = max(tol, _COARSE * float(gain.max()))
        self._comes_to_rest()
        self.live, self.columns, self.least = None, every, tol
        self._move_to(live[self.state.index], self.state.alpha, self.state.mean)

    def _search_among(self, number: Index) -> None:
        """Search until none of some columns gains; those in the model have to be among them."""
        among, state = problem_among(self.problem, self.columns, number), _among(self.state, number)
        self.number = number if self.live is None else self.live[number]
        change = self._by_models
        if self.is_quadratic:
            change, self.gram, self.stale = self._by_updates, among.Phi.T @ among.Phi, 0
        while self._may_go_on():
            found = change(among, state)
            if found is None and self.noise_moves:
                found = self._with_next_noise(among, state)
            if found is None:
                break
            state = found
        self._move_to(number[state.index], state.alpha, state.mean)

    def _by_updates(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state after some rank-one updates, computed anew; None where nothing gains."""
        period, noise_period = self.options.refresh_period, 0
        due = self.options.noise_period - (len(self.rows) - 1) % self.options.noise_period
        if self.noise_moves and len(state.index) <= _FEW:
            period, noise_period = period * _NOISY_PERIODS, self.options.noise_period
        elif self.noise_moves:
            period = due
        cross = self.gram[state.index]
        new, history = self._changed(among, state, period, (among.Phi, cross), noise_period)
        if len(history) == 0:
            return self._without_rounding(among, state) if self.stale else None
        if self.noise_moves and noise_period == 0 and len(history) == due:
            history[-1, 2] = _next_noise(among, new, self.noise) ** -2.0
        self.noise = float(history[-1, 2]) ** -0.5
        self.stale += len(history)
        moved = self.noise_moves and noise_period == 0 and self.stale < self.options.refresh_period
        found = at_products(self.gram, among, new, self.noise) if moved else None
        new = found or self._without_rounding(among, new)
        history[-1, 0] = new.log_evidence  # without the updates' rounding
        for log_evidence, m, beta in history:
            self._record(log_evidence, int(m), float(beta) ** -0.5)
        self._keep_best(new)
        return new

    def _without_rounding(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet:
        """Return all but the precisions computed anew."""
        self.stale = 0
        return refreshed(among.Phi, among.target, among.likelihood_at(self.noise), state)

    def _by_models(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state after changes that the quadratic model at the mode asks for.

        As many as do not lower Laplace's evidence, but one at the least; None where nothing gains.
        """
        likelihood = self.problem.likelihood_at(self.noise)
        root = np.sqrt(likelihood.curvature(among.Phi[:, state.index] @ state.mean, among.target))
        weighted = root[:, None] * among.Phi
        cross = weighted[:, state.index].T @ weighted
        new, history = self._changed(among, state, self.n_changes, (weighted, cross))
        del weighted  # as large as all that follows
        if len(history) == 0:
            return None
        new = refreshed(among.Phi, among.target, likelihood, new)
        fell = _is_lower(new, state)
        if fell and len(history) > 1:
            self.n_changes = 1
            return self._by_models(among, state)
        for _ in range(_HALVINGS):
            if not _is_lower(new, state) or len(new.index) != len(state.index):
                break
            new = replace(new, alpha=np.sqrt(state.alpha * new.alpha))
            new = refreshed(among.Phi, among.target, likelihood, new)
        self.n_changes = 1 if fell else min(2 * self.n_changes, self.options.refresh_period)
        if self.noise_moves and len(self.rows) % self.options.noise_period == 0:
            self.noise = _next_noise(among, new, self.noise)
            new = refreshed(among.Phi, among.target, among.likelihood_at(self.noise), new)
        self._record(new.log_evidence, len(new.index), self.noise)
        self._keep_best(new)
        return new

    def _changed(
        self,
        among: EvidenceProblem,
        state: ActiveSet,
        most: int,
        weighted: tuple[Array, Array],
        noise_period: int = 0,
    ) -> tuple[ActiveSet, Array]:
        """Return the state after at most so many changes, without S and Q, and the changes' history.

        `weighted` are the columns, times the root of the curvature, and the products with all of those in
        the model.
        """
        columns, cross = weighted
        most = min(most, self.options.max_iter + 1 - len(self.rows))
        kept = kept_arrays(state, cross)
        history = np.empty((most, 3))
        noise = NoiseRule(
            noise_period,
            len(self.rows) - 1,
            float(self.problem.n_obs),
            NOISE_FLOOR * self.problem.target_scale,
        )
        beta = self.noise**-2.0 if self.is_quadratic else 1.0
        m, n_changes = change_precisions(
            columns.T,
            among.target if noise_period else np.empty(0),
            kept,
            len(state.index),
            beta,
            state.log_evidence,
            self.least,
            self._draws(most),
            noise,
            history,
        )
        new = replace(
            state,
            index=kept.column[:m],
            alpha=kept.alpha[:m],
            mean=kept.mean[:m],
            covariance=kept.covariance[:m, :m],
        )
        return new, history[:n_changes]

    def _draws(self, most: int) -> Array:
        """Return what the next changes are drawn by; nothing: the best is taken."""
        return np.empty(0)

    def _with_next_noise(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state at the noise that follows; None where it has settled."""
        noise = _next_noise(among, state, self.noise)
        if abs(np.log(noise / self.noise)) < self.options.noise_tol:
            return None
        self.noise = noise
        state = refreshed(among.Phi, among.target, among.likelihood_at(noise), state)
        self._record(state.log_evidence, len(state.index), noise)
        return state

    def _record(self, log_evidence: float, n_active: int, noise: float) -> None:
        """Add to the history."""
        self.rows.append((log_evidence, n_active, noise))
        self.since += 1

    def _keep_best(self, state: ActiveSet) -> None:
        """Note whether this state among the candidates is the best so far."""
        if state.log_evidence > self.best[0].log_evidence + self.options.tol:
            self.best, self.since = (replace(state, index=self.number[state.index]), self.noise), 0

    def _move_to(self, index: Index, alpha: Array, mean: Array) -> None:
        """Compute the state over all columns anew."""
        at = replace(self.state, index=index, alpha=alpha, mean=mean)
        likelihood = self.problem.likelihood_at(self.noise)
        self.state = refreshed(self.columns, self.problem.target, likelihood, at)

    def _kept(self) -> tuple[ActiveSet, float]:
        """Return the state to end with, and its noise: the best where steps may lose evidence."""
        if not self.is_quadratic and _is_lower(self.state, self.best[0]):
            return self.best
        return self.state, self.noise

    def _noise_has_settled(self) -> bool:
        """Update the noise now that the precisions have converged; whether it does not move."""
        if not self.problem.noise_is_estimated:
            return True
        if self.live is not None and not self.noise_moves:  # what is still to come is noise so far
            return True
        self.noise_moves = True
        every = replace(self.problem, Phi=self.columns, bias=False)
        found = self._with_next_noise(every, self.state)
        self.state = found or self.state
        return found is None


def _is_lower(new: ActiveSet, state: ActiveSet) -> bool:
    return new.log_evidence < state.log_evidence - _FALL * abs(state.log_evidence)


def _next_noise(problem: EvidenceProblem, state: ActiveSet, noise: float) -> float:
    latent = problem.Phi[:, state.index] @ state.mean
    determined = len(state.index) - float(state.alpha @ np.diag(state.covariance))
    return problem.noise_at(latent, determined, noise)


class _RandomSearch(_Search):
    """The search that draws a basis before each change."""

    def __init__(
        self, problem: EvidenceProblem, columns: Any, options: EvidenceOptions, noise: float
    ) -> None:
        super().__init__(problem, columns, options, noise)
        self.rng = np.random.default_rng(options.random_state)

    def _change_some(self, gain: Array) -> None:
        """Search among all columns, or those in the model and many of those that gain, drawn."""
        if len(gain) <= _LIVE:
            self._search_among(np.arange(len(gain)))
            return
        gaining = np.setdiff1d(np.flatnonzero(gain >= self.options.tol), self.state.index)
        drawn = self.rng.choice(gaining, min(_LIVE, len(gaining)), replace=False)
        self._search_among(np.union1d(self.state.index, drawn))

    def _draws(self, most: int) -> Array:
        return self.rng.random(most)


def _among(state: ActiveSet, number: Index) -> ActiveSet:
    """Return the state over some columns, those in the model among them."""
    index = np.searchsorted(number, state.index)
    return replace(state, index=index, S=state.S[number], Q=state.Q[number])


def _promising(gain: Array, index: Index, tol: float, most: int) -> Index:
    """Return the columns in the model and candidates: those that gain most, and some of the others.

    Neighbours gain alike, and all but one of them lose it with the first that comes: half of the
    candidates are spread evenly over the rest of those that gain.
    """
    outside = gain.copy()
    outside[index] = 0.0
    number = np.flatnonzero(outside >= tol)
    if len(number) > most:
        order = number[np.argsort(-outside[number], kind="stable")]
        half = most // 2
        spread = np.linspace(half, len(order) - 1, most - half).astype(np.int64)
        number = np.concatenate([order[:half], order[spread]])
    return np.union1d(index, number)
