"""The relevance vector machine whose bases are drawn at random (Chmielewski-Anders et al. 2019)."""

from typing import Any

import numpy as np

from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, EvidenceResult
from pcvm_pymc.core.evidence.active_set import gains, scanned
from pcvm_pymc.core.evidence.problem import (
    columns_of,
    result_at,
    start_noise,
)
from pcvm_pymc.core.problem import Status
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor


def fit_random(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    random_state: int | np.random.Generator | None = None,
) -> EvidenceResult:
    """Maximise the evidence one basis at a time, drawn at random among those whose change gains.

    The paper draws among all and passes over those that gain nothing, which takes the same steps. `fit_rvm`
    takes the basis that gains most; a random choice needs several times as many steps, and ends at a local
    maximum of its own.

    Parameters
    ----------
    problem : EvidenceProblem
        Its bases in memory.
    options : EvidenceOptions, optional
    random_state : int, numpy.random.Generator or None
    """
    columns: Any = columns_of(problem)
    options = options or EvidenceOptions()
    rng = np.random.default_rng(random_state)
    noise, noise_moves = start_noise(problem, options), False
    none = np.empty(0)
    model = none.astype(np.int64), none, none
    status, since = Status.ITERATION_LIMIT, 0
    trace: list[tuple[float, int, float]] = []
    best: Any = None
    while len(trace) <= options.max_iter:
        state = scanned(columns, problem.observed(noise), model)
        trace.append((state.log_evidence, len(state.index), noise))
        since += 1
        if best is None or state.log_evidence > best[0].log_evidence + options.tol:
            best, since = (state, noise), 0
        gain, alpha = gains(state)
        gaining = np.flatnonzero(gain >= options.tol)
        index, precision, mean = model = state.model
        if noise_moves or len(gaining) == 0:
            noise_moves, last = problem.noise_is_estimated, noise
            if noise_moves and (len(gaining) == 0 or len(trace) % options.noise_period == 0):
                determined = len(index) - float(precision @ state.covariance.diagonal())
                noise = problem.noise_at(columns.take(index) @ mean, determined, noise)
            if len(gaining) == 0:
                if not noise_moves or abs(np.log(noise / last)) < options.noise_tol:
                    status = Status.CONVERGED
                    break
                continue
        if since >= options.patience and not problem.likelihood.is_quadratic:
            status = Status.BEST_OF_CYCLE
            break
        k = int(rng.choice(gaining))
        others = index != k
        model = index[others], precision[others], mean[others]
        if np.isfinite(alpha[k]):
            model = np.append(model[0], k), np.append(model[1], alpha[k]), np.append(model[2], 0.0)
    if not problem.likelihood.is_quadratic and state.log_evidence < best[0].log_evidence:
        state, noise = best
    return result_at(problem, columns, state.model, noise=noise, status=status, trace=trace)


class _RandomChoice:
    """An estimator whose fits are those of `fit_random`."""

    random_state: Any
    _estimation: Any

    def _solved(self, problem: EvidenceProblem) -> EvidenceResult:
        return fit_random(problem, self._estimation.how, random_state=self.random_state)


class RandomRVMClassifier(_RandomChoice, RVMClassifier):
    """`RVMClassifier` with bases drawn at random."""


class RandomRVMRegressor(_RandomChoice, RVMRegressor):
    """`RVMRegressor` with bases drawn at random."""
