"""Where EM stands and ends, for one score or several."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Ended, Status

__all__ = ["EMResult", "EMState", "EMTrace"]


@dataclass(frozen=True)
class EMState:
    """A point of the iteration; shapes as for `EMResult`."""

    weight: Array
    bias: Any
    latent: Array
    width: Any
    log_posterior: float

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


@dataclass(frozen=True)
class EMTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_posterior: Array
    n_active: NDArray[np.int64]
    change: Array
    width: Array


@dataclass(frozen=True)
class EMResult(Ended):
    """The end point of a fit.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
        Signed weights, exactly zero where pruned.
    bias : float, or ndarray, shape (n_scores,)
    width : float or ndarray, shape (n_features,)
    latent : ndarray, shape (n_obs,) or (n_obs, n_scores)
        Latent function at the training inputs; empty where rows are in chunks.
    log_posterior : float
        Log posterior of weights and bias, precisions integrated out; from the bottom up, given the
        precisions.
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
    def support(self) -> NDArray[np.intp]:
        """Bases with a weight that is not zero in any score."""
        return np.flatnonzero(self.weight.reshape(len(self.weight), -1).any(axis=1))
