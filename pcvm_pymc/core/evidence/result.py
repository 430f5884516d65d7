"""Where type-II maximum likelihood ends, in the bases' own units."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.evidence.posterior import Posterior, posterior
from pcvm_pymc.core.evidence.problem import Design, EvidenceProblem
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Ended, Status

__all__ = ["EvidenceResult", "EvidenceTrace", "Index", "Reached", "result_at"]

type Index = NDArray[np.int64]


@dataclass(frozen=True)
class EvidenceTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_evidence: Array
    n_active: NDArray[np.int64]
    noise: Array


@dataclass(frozen=True)
class EvidenceResult(Ended):
    """The end point of type-II maximum likelihood.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,)
        Posterior mean (mode for classification), exactly zero where pruned.
    bias : float
    alpha : ndarray, shape (n_basis,)
        ARD precisions, infinite where pruned.
    bias_alpha : float
    active : ndarray of int, shape (n_active,)
        Bases that were kept.
    covariance : ndarray, shape (n_active + 1, n_active + 1)
        Posterior covariance of the kept weights and, last, the bias; the bias' row is zero
        where it is not in the model.
    noise : float
        Standard deviation of the targets; NaN for classification.
    latent : ndarray, shape (n_obs,)
        Mean latent function at the training inputs.
    log_evidence : float
        Log marginal likelihood; Laplace's approximation for classification.
    status : Status
    n_iter : int
    trace : EvidenceTrace
    """

    weight: Array
    bias: float
    alpha: Array
    bias_alpha: float
    active: Index
    covariance: Array
    noise: float
    latent: Array
    log_evidence: float
    status: Status
    n_iter: int
    trace: EvidenceTrace = field(repr=False)


@dataclass(frozen=True)
class Reached:
    """Where a search ended: kept columns of the design, their precisions, noise, and its history."""

    index: Index
    alpha: Array
    mean: Array
    noise: float
    status: Status
    rows: list[tuple[float, int, float]]


def result_at(problem: EvidenceProblem, design: Design, reached: Reached) -> EvidenceResult:
    """Return the result at the end of a search, everything computed anew there."""
    order = np.argsort(reached.index)
    index, alpha = reached.index[order], reached.alpha[order]
    likelihood = problem.likelihood_at(reached.noise)
    end = posterior(
        design.columns[:, index], alpha, problem.target, likelihood, reached.mean[order]
    )
    return _packed(problem, design, index, end, reached)


def _packed(
    problem: EvidenceProblem, design: Design, index: Index, end: Posterior, reached: Reached
) -> EvidenceResult:
    """Return a posterior over columns of unit norm as a result in the bases' own units."""
    norm = design.norm[index]
    weight, alpha = np.zeros(len(design.norm)), np.full(len(design.norm), np.inf)
    weight[index], alpha[index] = end.mean / norm, end.alpha * norm * norm
    first = int(problem.bias)
    covariance = end.covariance / np.outer(norm, norm)
    has_bias = bool(first and len(index) and index[0] == 0)
    active = index[int(has_bias) :] - first
    full = np.zeros((len(active) + 1, len(active) + 1))
    places = np.arange(len(index)) - 1 if has_bias else np.arange(len(index))  # the bias goes last
    full[np.ix_(places, places)] = covariance
    trace = [np.asarray(column) for column in zip(*reached.rows, strict=True)]
    empty = len(active) == 0
    return EvidenceResult(
        weight=weight[first:],
        bias=float(weight[0]) if first else 0.0,
        alpha=alpha[first:],
        bias_alpha=float(alpha[0]) if first else np.inf,
        active=active,
        covariance=full,
        noise=reached.noise,
        latent=end.latent,
        log_evidence=end.log_evidence,
        status=Status.EMPTY_MODEL if empty else reached.status,
        n_iter=len(reached.rows) - 1,
        trace=EvidenceTrace(*trace),
    )
