"""The fast RVM: one basis at a time by the largest gain in evidence (Tipping & Faul 2003)."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from pcvm_pymc.core.evidence.active_set import (
    ActiveSet,
    empty_set,
    gains,
    probe_square,
    refreshed,
    updated,
    with_precision,
)
from pcvm_pymc.core.evidence.posterior import inverse_triangle
from pcvm_pymc.core.evidence.problem import (
    Design,
    EvidenceOptions,
    EvidenceProblem,
    start_noise,
    unit_design,
)
from pcvm_pymc.core.evidence.result import EvidenceResult, Index, Reached, result_at
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["fit_random", "fit_sequential", "improved"]

_SPOILT = 0.05


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
    Where the likelihood is not quadratic, all is computed anew at each step, and since Laplace's evidence
    can fall the best state is kept, and the search stops after 30 steps without a better one: the status is
    then `BEST_OF_CYCLE`, as it is where the search comes to rest at a lower evidence than it has seen.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 13-15, corrected (see `ActiveSet`; for their
    random choice of the basis `fit_random`).
    """
    return _fitted(problem, options, noise_start, None)


def fit_random(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence one basis at a time, each drawn at random (Chmielewski-Anders et al. 2019).

    As `fit_sequential`, but of the bases whose change gains evidence any may be next. The paper draws among
    all and passes over those that gain nothing, which takes the same steps.

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
    seed = None if options is None else options.random_state
    return _fitted(problem, options, noise_start, np.random.default_rng(seed))


def _fitted(
    problem: EvidenceProblem,
    options: EvidenceOptions | None,
    noise_start: float | None,
    rng: np.random.Generator | None,
) -> EvidenceResult:
    """Return where the search from the empty model ends; a generator draws its bases."""
    options = options or EvidenceOptions()
    design = unit_design(problem)
    search = _search(problem, design, options, start_noise(problem, options, noise_start))
    search.rng = rng
    return result_at(problem, design, search.run())


def improved(
    problem: EvidenceProblem, design: Design, reached: Reached, options: EvidenceOptions
) -> Reached:
    """Return where the search goes on to from where another one ended; there, where nothing gains."""
    search = _search(problem, design, options, reached.noise)
    search.begin_at(reached)
    return search.run()


def _search(
    problem: EvidenceProblem, design: Design, options: EvidenceOptions, noise: float
) -> "_Search":
    kind = _RankOneSearch if problem.likelihood.is_quadratic else _Search
    return kind(problem, design.columns, options, noise)


class _Search:
    """The search under Laplace's approximation: everything is computed anew after each change."""

    patience: ClassVar[int] = 1  # times that of the options

    def __init__(
        self, problem: EvidenceProblem, columns: Array, options: EvidenceOptions, noise: float
    ) -> None:
        self.problem, self.columns, self.options = problem, columns, options
        self.noise_moves = False
        self.rng: np.random.Generator | None = None
        self._set_noise(noise)
        self.state = empty_set(columns, problem.target, self.likelihood)
        self.rows = [self._row()]
        self.best, self.since = (self.state, noise), 0

    def begin_at(self, reached: Reached) -> None:
        """Begin where another search ended."""
        index, alpha, mean = reached.index, reached.alpha, reached.mean
        self.state = replace(
            self.state, index=index, alpha=alpha, mean=mean, cross=self._cross(index)
        )
        self.refresh()
        self.rows, self.noise_moves = reached.rows, self.problem.noise_is_estimated
        self.best = (self.state, self.noise)

    def run(self) -> Reached:
        """Search until nothing gains, or nothing has for a while."""
        status = Status.ITERATION_LIMIT
        while len(self.rows) <= self.options.max_iter:
            gain, alpha = gains(self.state)
            column = self._choice(gain)
            if gain[column] < self.options.tol:
                if self.state.n_updates:
                    self.refresh()
                elif self._noise_has_settled():
                    status = Status.CONVERGED
                    break
                continue
            if self._has_lost_digits(column):
                self.refresh()
                continue
            self._step(column, float(alpha[column]), float(gain[column]))
            if self.since >= self.patience * self.options.patience:
                status = Status.BEST_OF_CYCLE
                break
        state, noise = self._kept()
        if status is Status.CONVERGED and state is not self.state:
            status = Status.BEST_OF_CYCLE  # the search came to rest elsewhere, and lower
        return Reached(state.index, state.alpha, state.mean, noise, status, self.rows)

    def _choice(self, gain: Array) -> int:
        """Return the basis that gains most; or, with a generator, any that gains enough."""
        enough = np.flatnonzero(gain >= self.options.tol) if self.rng is not None else ()
        if self.rng is None or len(enough) == 0:
            return int(gain.argmax())
        return int(self.rng.choice(enough))

    def refresh(self) -> None:
        """Compute everything but the precisions anew."""
        self.state = refreshed(self.columns, self.problem.target, self.likelihood, self.state)

    def _row(self) -> tuple[float, int, float]:
        return self.state.log_evidence, len(self.state.index), self.noise

    def _step(self, column: int, alpha: float, gain: float) -> None:
        """Change one precision, and whatever else is due."""
        self._change(column, alpha, gain)
        if self.noise_moves and len(self.rows) % self.options.noise_period == 0:
            self._move_noise(self._next_noise())
        elif self.state.n_updates >= self.options.refresh_period:
            self.refresh()
        self._record()

    def _record(self) -> None:
        """Add to the history, and note whether this is the best state so far."""
        self.rows.append(self._row())
        self.since += 1
        if self.state.log_evidence > self.best[0].log_evidence + self.options.tol:
            self.best, self.since = (self.state, self.noise), 0

    def _change(self, column: int, alpha: float, gain: float) -> None:
        self.state = with_precision(self.state, column, alpha)
        self.refresh()

    def _has_lost_digits(self, column: int) -> bool:
        return False

    def _cross(self, index: Index) -> Array:
        """Return the inner products of columns with all that the steps use: none."""
        return np.empty((0, self.columns.shape[1]))

    def _kept(self) -> tuple[ActiveSet, float]:
        """Return the state to end with, and its noise: the best, since steps may lose evidence."""
        if self.state.log_evidence < self.best[0].log_evidence:
            return self.best
        return self.state, self.noise

    def _noise_has_settled(self) -> bool:
        """Update the noise now that the precisions have converged; whether it does not move."""
        if not self.problem.noise_is_estimated:
            return True
        noise = self._next_noise()
        settled = abs(np.log(noise / self.noise)) < self.options.noise_tol
        self.noise_moves = True
        if not settled:
            self._move_noise(noise)
            self._record()
        return bool(settled)

    def _next_noise(self) -> float:
        state = self.state
        latent = self.columns[:, state.index] @ state.mean
        determined = len(state.index) - float(state.alpha @ np.diag(state.covariance))
        return self.problem.noise_at(latent, determined, self.noise)

    def _set_noise(self, noise: float) -> None:
        self.noise, self.likelihood = noise, self.problem.likelihood_at(noise)

    def _move_noise(self, noise: float) -> None:
        self._set_noise(noise)
        self.refresh()


class _RankOneSearch(_Search):
    """The search for a quadratic likelihood: rank-one steps, refreshed now and then."""

    # only rounding can make it cycle
    patience: ClassVar[int] = 4

    def __init__(
        self, problem: EvidenceProblem, columns: Array, options: EvidenceOptions, noise: float
    ) -> None:
        super().__init__(problem, columns, options, noise)
        self.norms = np.einsum("ij,ij->j", columns, columns)
        self.products = problem.target @ columns

    def _change(self, column: int, alpha: float, gain: float) -> None:
        state = updated(self.columns, self.state, column, alpha, self.likelihood.bound)
        self.state = replace(state, log_evidence=state.log_evidence + gain)

    def _cross(self, index: Index) -> Array:
        return self.columns[:, index].T @ self.columns

    def _kept(self) -> tuple[ActiveSet, float]:
        return self.state, self.noise

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
            exact = probe_square(self.columns, state, column, self.likelihood.bound)[2]
            return not abs(state.S[column] - exact) < _SPOILT * exact
        if not state.covariance[place[0], place[0]] > 0:
            return True
        error = state.Q[column] - (state.alpha * state.mean)[place[0]]
        return not abs(error) < _SPOILT * np.sqrt(max(state.S[column], 0.0))

    def _move_noise(self, noise: float) -> None:
        """Set the noise and compute the state from the inner products that are kept.

        They make no use of the rows, so that a refresh by QR stays due.
        """
        self._set_noise(noise)
        state, beta = self.state, self.likelihood.bound
        scale = 1.0 / np.sqrt(state.alpha)
        inner = beta * np.outer(scale, scale) * state.cross[:, state.index]
        try:
            factor = cholesky(np.eye(len(scale)) + inner, check_finite=False)
        except LinAlgError:  # too ill-conditioned to be squared
            self.refresh()
            return
        half = scale[:, None] * inverse_triangle(factor)
        covariance = half @ half.T
        mean = beta * (covariance @ self.products[state.index])
        U = beta * (half.T @ state.cross)
        latent = self.columns[:, state.index] @ mean
        value = self.likelihood.log_likelihood(latent, self.problem.target)
        value -= 0.5 * float(mean @ (state.alpha * mean))
        self.state = replace(
            state,
            mean=mean,
            covariance=covariance,
            S=beta * self.norms - np.einsum("ij,ij->j", U, U),
            Q=beta * (self.products - mean @ state.cross),
            log_evidence=value - float(np.log(np.diag(factor)).sum()),
            n_updates=state.n_updates + 1,
        )
