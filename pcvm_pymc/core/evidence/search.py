"""The search of the fast RVM: changes among some candidates, and looks at all columns for new ones."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.evidence.active_set import (
    WELL_CONDITIONED,
    ActiveSet,
    at_products,
    empty_set,
    gains,
    is_well_conditioned,
    refreshed,
)
from pcvm_pymc.core.evidence.computed import ComputedColumns
from pcvm_pymc.core.evidence.held import FewColumns
from pcvm_pymc.core.evidence.problem import (
    NOISE_FLOOR,
    EvidenceOptions,
    EvidenceProblem,
    problem_among,
)
from pcvm_pymc.core.evidence.rank_one import (
    Kept,
    NoiseRule,
    at_noise,
    change_precisions,
    kept_arrays,
)
from pcvm_pymc.core.evidence.result import Index, Reached
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["MANY", "MOST_LIVE", "Search"]

MANY = 16_384  # columns above which a look at all is dear
MOST_LIVE = 2048  # columns that candidates are looked for among then
_CANDIDATES = 64  # columns that changes are made among, beside those in the model
_COARSE = 0.01  # of the largest gain of all: what columns among these gain at the least
_QUADRATIC_PATIENCE = 4  # times that of the options, where only rounding can make a search cycle
_LONGER = 20  # periods at a time, where all is computed anew within
_FEW = 32  # columns up to which compiled loops beat LAPACK
_ROUGH = 1e10  # condition up to which inner products do for a few changes
_HALVINGS = 3  # of a re-estimation that lowers Laplace's evidence
_FALL = 1e-9  # of Laplace's evidence, relative: rounding
_NONE = np.empty(0)


class Search:
    """The search: its state over all columns, the best one, and its history."""

    def __init__(
        self, problem: EvidenceProblem, columns: Any, options: EvidenceOptions, noise: float
    ) -> None:
        self.problem, self.columns, self.options = problem, columns, options
        self.floor = NOISE_FLOOR * problem.target_scale  # of the noise
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
        # of a regression's candidates and the targets with them, and how many updates there were since all
        # was computed anew
        self.gram, self.products, self.stale = np.empty((0, 0)), _NONE, 0
        self.at_rest = False  # whether none of the candidates gains
        self.is_careful = False  # whether inner products alone do not tell enough

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
        if self.live is not None or not _is_dear(self.columns):
            self._search_among(_promising(gain, index, tol, _CANDIDATES))
            return
        every, live = self.columns, _promising(gain, index, tol, MOST_LIVE)
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
            few, Phi = isinstance(self.columns, FewColumns), among.Phi
            self.gram = self.columns.among(number) if few else Phi.T @ Phi
            change, self.products, self.stale = self._by_updates, among.target @ Phi, 0
        self.at_rest = False
        while self._may_go_on():
            found = None if self.at_rest else change(among, state)
            if found is None and self.noise_moves:
                found = self._with_next_noise(among, state)
            if found is None:
                break
            state = found
        knows_all = len(number) == self.columns.shape[1] and not self.is_careful
        if knows_all and self.at_rest:
            self.state = state
        else:
            self._move_to(number[state.index], state.alpha, state.mean)

    def _by_updates(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state after some rank-one updates, computed anew; None where nothing gains."""
        if len(state.index) <= _FEW and not self.is_careful:
            return self._by_compiled(among, state)
        due = self.options.noise_period - (len(self.rows) - 1) % self.options.noise_period
        period = due if self.noise_moves else self.options.refresh_period
        new, history = self._changed(among, state, period, (among.Phi, self.gram[state.index]))
        if len(history) == 0:
            return self._without_rounding(among, state) if self.stale else None
        if not is_well_conditioned(new, self.gram.diagonal(), self.noise**-2.0):
            new, history = self._sound(among, state, new, history)
            if len(history) == 0:
                self.at_rest = True
                return None
        if self.noise_moves and len(history) == due:
            history[-1, 2] = _next_noise(among, new, self.noise, self.floor) ** -2.0
        self.noise = float(history[-1, 2]) ** -0.5
        self.stale, self.at_rest = self.stale + len(history), False
        moved = self.noise_moves and self.stale < self.options.refresh_period
        found = at_products(self.gram, among, new, self.noise, _ROUGH) if moved else None
        return self._recorded(found or self._without_rounding(among, new), history)

    def _sound(
        self, among: EvidenceProblem, state: ActiveSet, new: ActiveSet, history: Array
    ) -> tuple[ActiveSet, Array]:
        """Return changes that raise the evidence computed anew: all of them, else the first, else none.

        In exact arithmetic each does: one that does not is told by rounding, and others would follow, until
        all columns are in and the noise is beyond the targets.
        """
        for most in dict.fromkeys((len(history), 1)):
            if most < len(history):
                new, history = self._changed(among, state, 1, (among.Phi, self.gram[state.index]))
            new = self._without_rounding(among, new)
            if not _is_lower(new, state):
                return new, history
        return state, history[:0]

    def _by_compiled(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state after all changes that gain; None where there is none.

        All is computed anew within, from inner products: where they do not tell enough, nothing of it counts,
        and the search goes on more carefully.
        """
        most = _LONGER * self.options.refresh_period
        new, history = self._changed(
            among, state, most, (among.Phi, self.gram[state.index]), few=True
        )
        if len(history) == 0:
            return None
        well = is_well_conditioned(new, self.gram.diagonal(), float(history[-1, 2]))
        if not well or _is_lower(new, state):
            self.is_careful, self.at_rest = True, False
            return self._by_updates(among, state)
        self.noise, self.stale = float(history[-1, 2]) ** -0.5, 0
        return self._recorded(new, history)

    def _recorded(self, new: ActiveSet, history: Array) -> ActiveSet:
        """Add changes to the history; return the state that they lead to."""
        history[-1, 0] = new.log_evidence  # without the updates' rounding
        for log_evidence, m, beta in history.tolist():
            self._record(log_evidence, int(m), beta**-0.5)
        self._keep_best(new)
        return new

    def _without_rounding(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet:
        """Return all but the precisions computed anew."""
        self.stale, found = 0, None
        if self.is_quadratic and len(state.index) <= _FEW:
            found = self._by_products(among.Phi, self.gram, self.products, among.target, state)
        elif self.is_quadratic:
            found = at_products(self.gram, among, state, self.noise, WELL_CONDITIONED)
        return found or refreshed(among.Phi, among.target, among.likelihood_at(self.noise), state)

    def _by_products(
        self, columns: Array, gram: Array, products: Array, target: Array, state: ActiveSet
    ) -> ActiveSet | None:
        """Return the same of a regression with few vectors, compiled; None where digits are lost."""
        m, beta = len(state.index), self.noise**-2.0
        room = np.empty((m, m)), np.empty(len(gram))
        bare = ActiveSet(
            index=state.index,
            alpha=state.alpha,
            mean=state.mean,
            covariance=room[0],
            S=room[1],
            Q=room[1],
            log_evidence=0.0,
        )
        kept = kept_arrays(bare, gram[state.index])
        log_evidence = at_noise(
            columns.T, gram, products, target, beta, kept, m, float(self.problem.n_obs)
        )
        new = _state_of(kept, m, log_evidence)
        return new if is_well_conditioned(new, gram.diagonal(), beta) else None

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
        self.at_rest = False  # of the quadratic model, not of the likelihood
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
            self.noise = _next_noise(among, new, self.noise, self.floor)
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
        few: bool = False,
    ) -> tuple[ActiveSet, Array]:
        """Return the state after at most so many changes, and the changes' history.

        `weighted` are the columns, times the root of the curvature, and the products with all of those in
        the model; where these are few, the noise moves and all is computed anew on the way.
        """
        (columns, cross), options = weighted, self.options
        most = min(most, options.max_iter + 1 - len(self.rows))
        kept, history = kept_arrays(state, cross), np.empty((most, 3))
        noise = NoiseRule(
            options.noise_period if few and self.noise_moves else 0,
            len(self.rows) - 1,
            float(self.problem.n_obs),
            self.floor,
            options.refresh_period if few else 0,
        )
        m, n_changes, self.at_rest = change_precisions(
            columns.T,
            self.gram,
            self.products,
            among.target if few else _NONE,
            kept,
            len(state.index),
            self.noise**-2.0 if self.is_quadratic else 1.0,
            state.log_evidence,
            self.least,
            self._draws(most),
            noise,
            history,
        )
        value = float(history[n_changes - 1, 0]) if n_changes else state.log_evidence
        new = _state_of(kept, m, value)
        return new, history[:n_changes]

    def _draws(self, most: int) -> Array:
        """Return what the next changes are drawn by; nothing: the best is taken."""
        return np.empty(0)

    def _with_next_noise(self, among: EvidenceProblem, state: ActiveSet) -> ActiveSet | None:
        """Return the state at the noise that follows; None where it has settled."""
        noise = _next_noise(among, state, self.noise, self.floor)
        if abs(np.log(noise / self.noise)) < self.options.noise_tol:
            return None
        self.noise, self.at_rest = noise, False
        if among.Phi is self.columns:
            self._move_to(state.index, state.alpha, state.mean)
            state = self.state
        else:
            state = self._without_rounding(among, state)
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
        few = self.columns
        if self.is_quadratic and isinstance(few, FewColumns) and len(index) <= _FEW:
            target = self.problem.target
            products = few.with_target(target)
            found = self._by_products(few.columns, few.gram, products, target, at)
            if found is not None:
                self.state = found
                return
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
        every = self.problem.with_bases(self.columns)
        found = self._with_next_noise(every, self.state)
        self.state = found or self.state
        return found is None


def _state_of(kept: Kept, m: int, log_evidence: float) -> ActiveSet:
    """Return the state that compiled changes have left."""
    return ActiveSet(
        index=kept.column[:m],
        alpha=kept.alpha[:m],
        mean=kept.mean[:m],
        covariance=kept.covariance[:m, :m],
        S=kept.S,
        Q=kept.Q,
        log_evidence=log_evidence,
    )


def _is_dear(columns: Any) -> bool:
    """Whether a look at all columns takes so long that few are had."""
    is_spanned = isinstance(columns, ComputedColumns) and columns.span is not None
    return bool(columns.shape[1] > MANY) and not is_spanned


def _is_lower(new: ActiveSet, state: ActiveSet) -> bool:
    return new.log_evidence < state.log_evidence - _FALL * abs(state.log_evidence)


def _next_noise(problem: EvidenceProblem, state: ActiveSet, noise: float, floor: float) -> float:
    latent = problem.Phi[:, state.index] @ state.mean
    determined = len(state.index) - float(state.alpha @ state.covariance.diagonal())
    return problem.noise_at(latent, determined, noise, floor)


def _among(state: ActiveSet, number: Index) -> ActiveSet:
    """Return the state over some columns, those in the model among them."""
    return ActiveSet(
        index=np.searchsorted(number, state.index),
        alpha=state.alpha,
        mean=state.mean,
        covariance=state.covariance,
        S=state.S[number],
        Q=state.Q[number],
        log_evidence=state.log_evidence,
    )


def _promising(gain: Array, index: Index, tol: float, most: int) -> Index:
    """Return the columns in the model and candidates: those that gain most, and some of the others.

    Neighbours gain alike, and all but one of them lose it with the first that comes: half of the
    candidates are spread evenly over the rest of those that gain.
    """
    outside = gain.copy()
    outside[index] = 0.0
    taken = outside >= tol
    if np.count_nonzero(taken) > most:
        number = np.flatnonzero(taken)
        order = number[np.argsort(-outside[number], kind="stable")]
        half = most // 2
        spread = np.linspace(half, len(order) - 1, most - half).astype(np.int64)
        taken[:] = False
        taken[order[:half]] = taken[order[spread]] = True
    taken[index] = True
    return np.flatnonzero(taken)
