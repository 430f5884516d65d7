"""Fitting a relevance vector machine by either search, from one or several starts of the noise."""

from collections.abc import Callable, Sequence

from pcvm_pymc.core.evidence.batch import fit_batch
from pcvm_pymc.core.evidence.problem import EvidenceOptions, EvidenceProblem
from pcvm_pymc.core.evidence.result import EvidenceResult
from pcvm_pymc.core.evidence.sequential import fit_random, fit_sequential
from pcvm_pymc.core.pieces.resources import threads_by_size

__all__ = ["METHODS", "fit_rvm"]

METHODS: dict[str, Callable[..., EvidenceResult]] = {
    "sequential": fit_sequential,
    "batch": fit_batch,
    "random": fit_random,
}


@threads_by_size
def fit_rvm(
    problem: EvidenceProblem,
    *,
    method: str = "sequential",
    options: EvidenceOptions | None = None,
) -> EvidenceResult:
    """Maximise the evidence; of several starts of the noise the best evidence wins.

    Parameters
    ----------
    problem : EvidenceProblem
    method : {"sequential", "batch", "random"}
    options : EvidenceOptions, optional

    Returns
    -------
    EvidenceResult

    Raises
    ------
    ValueError
        If the method is unknown.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; use one of {tuple(METHODS)}")
    options = options or EvidenceOptions()
    starts: Sequence[float | None] = options.noise_starts if problem.noise_is_estimated else (None,)
    fits = [METHODS[method](problem, options, noise_start=start) for start in starts]
    return max(fits, key=lambda fit: fit.log_evidence)
