"""The batch relevance vector machine: from all bases downwards, all precisions at once (Tipping 2001)."""

import numpy as np

from pcvm_pymc.core.evidence.columns import DenseColumns
from pcvm_pymc.core.evidence.posterior import posterior
from pcvm_pymc.core.evidence.problem import (
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    columns_of,
    result_at,
    start_noise,
)
from pcvm_pymc.core.evidence.sequential import Search, fit_sequential
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.pieces.validation import check_choice
from pcvm_pymc.core.problem import Status

# alpha / beta of a basis of unit norm: its weight explains a millionth of the noise
_PRUNING_RATIO = 1e6


def fit_batch(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from all bases downwards, by MacKay's updates of all precisions at once.

    The sweeps cannot add a pruned basis again; once they have converged, single changes that gain follow, as
    in `fit_sequential`. Both searches end at a local maximum, where no single change gains more than the
    options' ``tol``; neither always ends at the higher one.

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
    options, columns = options or EvidenceOptions(), columns_of(problem)
    if not isinstance(columns, DenseColumns):
        raise ValueError(
            "method='batch' needs all basis functions at every step; found bases that are computed when "
            "needed (a memory_limit): use method='sequential', or fewer bases (basis=)"
        )
    noise, free = start_noise(problem, options, noise_start), problem.noise_is_estimated
    # all bases with equal precisions, the latent function varying as the targets do
    index = np.flatnonzero(columns.square)
    variance = problem.target_scale**2 if problem.likelihood.targets == "numbers" else 1.0
    alpha = np.full(len(index), max(len(index), 1) / (problem.n_obs * variance))
    trace: list[tuple[float, int, float]] = []
    mean, last, since, noise_moves = None, -np.inf, 0, False
    while len(trace) <= options.max_iter:
        likelihood = problem.likelihood_at(noise)
        end = posterior(columns.take(index), alpha, problem.target, likelihood, mean)
        trace.append((end.log_evidence, len(index), noise))
        model = index, alpha, end.mean
        is_still = abs(end.log_evidence - last) < 0.01 * options.tol
        last = end.log_evidence
        determined = np.clip(1.0 - alpha * end.variance, np.finfo(float).tiny, 1.0)
        found = problem.noise_at(end.latent, determined.sum(), noise) if free else noise
        if is_still and (not free or abs(np.log(found / noise)) < options.noise_tol):
            return Search(problem, columns, options, noise, trace).result(model)
        # the noise waits until the precisions have converged once, and then is updated now and then
        noise_moves, since = noise_moves or is_still, since + 1
        if is_still or (noise_moves and since >= options.noise_period):
            noise, since = found, 0
        with np.errstate(divide="ignore", over="ignore"):
            alpha = determined / end.mean**2  # eq. 8
        bound = likelihood.bound
        keep = alpha < _PRUNING_RATIO * (bound if np.isfinite(bound) else end.curvature.max())
        index, alpha, mean = index[keep], alpha[keep], end.mean[keep]
    return result_at(
        problem, columns, model, noise=noise, status=Status.ITERATION_LIMIT, trace=trace
    )


def check_method(method: str) -> None:
    """Raise unless a search of that name exists."""
    if isinstance(method, str) and method == "random":
        raise ValueError(
            "method='random', a paper's, is now pcvm_pymc.experiments.replicas.chmielewski2019_random; "
            "use it, or 'sequential'"
        )
    check_choice("method", method, tuple(METHODS))


METHODS = {"sequential": fit_sequential, "batch": fit_batch}


@threads_by_size
def fit_rvm(
    problem: EvidenceProblem, *, method: str = "sequential", options: EvidenceOptions | None = None
) -> EvidenceResult:
    """Maximise the evidence of a relevance vector machine; of several starts of the noise the best wins.

    Parameters
    ----------
    problem : EvidenceProblem
    method : {"sequential", "batch"}
    options : EvidenceOptions, optional

    Returns
    -------
    EvidenceResult

    Raises
    ------
    ValueError
        If the method is unknown.
    """
    check_method(method)
    options = options or EvidenceOptions()
    starts = options.noise_starts if problem.noise_is_estimated else (None,)
    fits = [METHODS[method](problem, options, noise_start=start) for start in starts]
    return max(fits, key=lambda fit: fit.log_evidence)
