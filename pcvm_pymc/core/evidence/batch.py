"""The batch RVM: all bases downwards, by updates of all precisions at once (Tipping 2001)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pcvm_pymc.core.evidence.posterior import Posterior, posterior
from pcvm_pymc.core.evidence.problem import (
    Design,
    EvidenceOptions,
    EvidenceProblem,
    check_held,
    start_noise,
    unit_design,
)
from pcvm_pymc.core.evidence.result import EvidenceResult, Index, Reached, result_at
from pcvm_pymc.core.evidence.sequential import improved
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["fit_batch"]

_PRUNING_RATIO = (
    1e6  # alpha / beta of a basis of unit norm: what it adds is a millionth of the noise
)


def fit_batch(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from all bases downwards, by MacKay's updates of all precisions at once.

    The sweeps can take no dropped basis back; where they rest, single changes that gain follow, as in
    `fit_sequential`. Both ways end at a local maximum, in which no single change gains more than the
    options' ``tol``, and neither at the higher one of the two always.

    Parameters
    ----------
    problem, options, noise_start
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
    check_held(problem, "batch")
    options = options or EvidenceOptions()
    design = unit_design(problem)
    rows: list[tuple[float, int, float]] = []
    status = Status.ITERATION_LIMIT
    first = _first_sweep(problem, design, start_noise(problem, options, noise_start))
    for sweep, end in _sweeps(problem, design, first, options):
        rows.append((end.log_evidence, len(end.mean), sweep.noise))
        if sweep.settled:
            status = Status.CONVERGED
            break
        if len(rows) > options.max_iter:
            break
    reached = Reached(sweep.index, sweep.alpha, end.mean, sweep.noise, status, rows)
    if status is Status.CONVERGED:
        reached = improved(problem, design, reached, options)
    return result_at(problem, design, reached)


@dataclass(frozen=True)
class _Sweep:
    """The batch search between two sweeps."""

    index: Index
    alpha: Array
    mean: Array | None
    noise: float
    noise_moves: bool = False
    settled: bool = False


def _first_sweep(problem: EvidenceProblem, design: Design, noise: float) -> _Sweep:
    """Return all bases with equal precisions, the latent function varying as the targets do."""
    index = np.flatnonzero(design.columns.any(axis=0))
    variance = problem.target_scale**2 if problem.likelihood.targets == "numbers" else 1.0
    alpha = np.full(len(index), max(len(index), 1) / (problem.n_obs * variance))
    return _Sweep(index, alpha, None, noise)


def _sweeps(
    problem: EvidenceProblem, design: Design, sweep: _Sweep, options: EvidenceOptions
) -> Iterator[tuple[_Sweep, Posterior]]:
    """Yield each point of the search with its posterior; the last is settled."""
    last, since = -np.inf, 0
    while True:
        likelihood = problem.likelihood_at(sweep.noise)
        Phi = design.columns[:, sweep.index]
        end = posterior(Phi, sweep.alpha, problem.target, likelihood, sweep.mean)
        still = abs(end.log_evidence - last) < 0.01 * options.tol
        last = end.log_evidence
        determined = np.clip(1.0 - sweep.alpha * end.variance, np.finfo(float).tiny, 1.0)
        free, noise = problem.noise_is_estimated, sweep.noise
        if free:
            noise = problem.noise_at(end.latent, determined.sum(), noise)
        quiet = not free or abs(np.log(noise / sweep.noise)) < options.noise_tol
        if still and quiet:
            yield replace(sweep, settled=True), end
            return
        yield sweep, end
        moves, since = sweep.noise_moves or still, since + 1
        due = still or (moves and since >= options.noise_period)
        since = 0 if due else since
        sweep = replace(sweep, noise=noise if due else sweep.noise, noise_moves=moves)
        sweep = _updated(sweep, end, determined, likelihood.bound)


def _updated(sweep: _Sweep, end: Posterior, determined: Array, beta: float) -> _Sweep:
    """Return the sweep after alpha = gamma / mu^2 (eq. 8), without bases that add nothing."""
    with np.errstate(divide="ignore", over="ignore"):
        alpha = determined / end.mean**2
    keep = alpha < _PRUNING_RATIO * beta
    return replace(sweep, index=sweep.index[keep], alpha=alpha[keep], mean=end.mean[keep])
