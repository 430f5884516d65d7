"""Where a point estimate ends, and the history of its iterations."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["EMResult", "EMTrace"]


@dataclass(frozen=True)
class EMTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_posterior: Array
    n_active: NDArray[np.int64]
    change: Array
    width: Array


@dataclass(frozen=True)
class EMResult:
    """The end point of EM, or of a search from the bottom up.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
        Signed weights, exactly zero where pruned.
    bias : float, or ndarray, shape (n_scores,)
    width : float
    latent : ndarray, shape (n_obs,), or (n_obs, n_scores)
        Latent function at the training inputs.
    log_posterior : float
        Log posterior of weights and bias, precisions integrated out; from the bottom up, given them.
    status : Status
    n_iter : int
    trace : EMTrace
    """

    weight: Array
    bias: Any
    width: Any
    latent: Array
    log_posterior: float
    status: Status
    n_iter: int
    trace: EMTrace = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether the iteration came to rest (an empty model included)."""
        return self.status is not Status.ITERATION_LIMIT

    @property
    def support(self) -> NDArray[np.intp]:
        """Relevance vectors: bases with a weight that is not zero in any score."""
        return np.flatnonzero(self.weight.reshape(len(self.weight), -1).any(axis=1))
