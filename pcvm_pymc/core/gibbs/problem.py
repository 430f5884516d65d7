"""The problem of a Gibbs sampler and the state of its chains; `chain.advance` updates the state."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import qr

from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.gibbs.moves import Columns
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

# columns of Phi below this share of the largest pivot are rounding: latent values keep nine digits
_RANK_TOLERANCE = 1e-11


@dataclass(frozen=True)
class GibbsProblem(Problem):
    """A problem prepared for the Gibbs sampler, shared by all chains.

    Attributes
    ----------
    basis : Columns
        The basis functions, with what else the sweeps need of them.
    """

    sign: Array
    basis: Any = None

    @classmethod
    def of(cls, problem: Problem) -> "GibbsProblem":
        """Prepare a problem whose `Phi` is an array.

        Raises
        ------
        ValueError
            If the Gibbs sampler does not draw from its posterior, see `sampler_of`.
        """
        check_solver(problem, "gibbs")
        Phi = np.asarray(problem.Phi, dtype=float)
        label = np.asarray(problem.label).astype(np.int64)
        return cls(**vars(problem) | {"Phi": Phi, "label": label, "basis": make_columns(Phi)})

    def start(self, rng: np.random.Generator) -> "GibbsState":
        """Return sizes uniform up to the prior's scale, the bias zero: overdispersed but not wild."""
        prior = self.hyperprior
        size = np.sqrt(prior.d / prior.c) * rng.uniform(0.05, 2.0, len(self.sign))
        return GibbsState(size, 0.0, float(np.log(prior.d)))


@dataclass
class GibbsState:
    """State of a chain.

    Attributes
    ----------
    size : ndarray, shape (n_basis,)
        Sizes of the weights.
    bias : float
    log_rate : float
        log d, of the rate of the weights' Gamma hyperprior.
    chunk : int
        Sweeps between two returns from compiled code; it follows their speed.
    """

    size: Array
    bias: Any
    log_rate: float
    chunk: int = 16


def make_columns(Phi: Array) -> Columns:
    """Return basis functions as compiled code takes them.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    """
    left, right = factorise(Phi)
    ones = left.sum(axis=0)
    norm = np.einsum("jk,jk->j", right, right)
    return Columns(left, right, ones, right @ ones, norm)


def factorise(Phi: Array, tolerance: float = _RANK_TOLERANCE) -> tuple[Array, Array]:
    """Return (left, right) with Phi = left right' and left' left = I, of numerical rank.

    Pivoted QR, cut off where the pivots fall below `tolerance` times the largest.
    """
    Q, R, order = qr(Phi, mode="economic", pivoting=True)
    pivots = np.abs(np.diag(R))
    rank = max(1, int(np.sum(pivots > tolerance * pivots[0])))
    right = np.zeros((Phi.shape[1], rank))
    right[order] = R[:rank].T
    return np.ascontiguousarray(Q[:, :rank]), right
