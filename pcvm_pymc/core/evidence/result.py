"""Where type-II maximum likelihood ends, in the units of the bases."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.evidence.columns import Columns, Index
from pcvm_pymc.core.evidence.posterior import posterior
from pcvm_pymc.core.evidence.problem import EvidenceProblem
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Ended, Status


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
        Log marginal likelihood: exact for normal noise, else Laplace's approximation.
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
    """Where a search ended: kept columns, their precisions and mean, noise, status, and its history."""

    index: Index
    alpha: Array
    mean: Array
    noise: float
    status: Status
    trace: list[tuple[float, int, float]]


def result_at(problem: EvidenceProblem, columns: Columns, reached: Reached) -> EvidenceResult:
    """Return the result at the end of a search, computed afresh, in the units of the bases."""
    order = np.argsort(reached.index)
    index, first = reached.index[order], int(problem.bias)
    likelihood, norm = problem.likelihood_at(reached.noise), columns.norm[index]
    end = posterior(
        columns.take(index), reached.alpha[order], problem.target, likelihood, reached.mean[order]
    )
    weight, alpha = np.zeros(columns.shape[1]), np.full(columns.shape[1], np.inf)
    weight[index], alpha[index] = end.mean / norm, end.alpha * norm * norm
    has_bias = int(first and len(index) > 0 and index[0] == 0)
    active = index[has_bias:] - first
    covariance = np.zeros((len(active) + 1, len(active) + 1))
    places = np.arange(len(index)) - has_bias  # the bias, -1, goes last
    covariance[np.ix_(places, places)] = end.covariance / np.outer(norm, norm)
    trace = [np.asarray(column) for column in zip(*reached.trace, strict=True)]
    return EvidenceResult(
        weight=weight[first:],
        bias=float(weight[0]) if first else 0.0,
        alpha=alpha[first:],
        bias_alpha=float(alpha[0]) if first else np.inf,
        active=active,
        covariance=covariance,
        noise=reached.noise,
        latent=end.latent,
        log_evidence=end.log_evidence,
        status=Status.EMPTY_MODEL if len(active) == 0 else reached.status,
        n_iter=len(reached.trace) - 1,
        trace=EvidenceTrace(*trace),
    )
