"""The problem of a Gibbs sampler and the state of its chains; `chain.advance` updates the state."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import qr

from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.gibbs.moves import Columns, Parameters
from pcvm_pymc.core.gibbs.vectors import Integers
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

# columns of Phi below this share of the largest pivot are rounding: latent values keep nine digits
_RANK_TOLERANCE = 1e-11
_N_NEIGHBOURS = 10  # nearest columns of each, one of which it exchanges weight with in a sweep
_NEWTON_STEPS = 10  # to the mode that a normal approximation of the rows is made at
_LEAST_CURVATURE = 0.02  # of a row in it: far from the boundary it would be zero
_SPREAD = 0.5  # of the chains' first widths around the problem's, in log(width)


@dataclass(frozen=True)
class GibbsProblem(Problem):
    """A problem prepared for the Gibbs sampler, shared by all chains.

    Attributes
    ----------
    basis : Columns
        The basis functions, with what else the sweeps need of them; of an unknown width those at `width`,
        around which chains begin.
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

    @cached_property
    def parameters(self) -> Parameters:
        """The hyperprior for compiled code, as floats: integers would be compiled for once more."""
        prior = self.hyperprior
        shape = prior.rate_shape or 0.0
        return Parameters(*map(float, (prior.c, prior.e, prior.f, shape, shape / prior.d)))

    @cached_property
    def normal_rows(self) -> tuple[Array, Array]:
        """Curvatures and targets of a normal approximation of the likelihood, shape (n_obs,) each.

        It is made near the mode of weights without signs at `width`, and thus the same in all states.
        """
        prior = self.hyperprior
        A = np.column_stack([self.Phi, np.ones(len(self.Phi))])
        ridge = np.append(np.full(self.Phi.shape[1], prior.c / prior.d), prior.e / prior.f)
        latent = np.zeros((len(A), 1))
        for _ in range(_NEWTON_STEPS):
            terms = self.likelihood.terms(latent, self.label)
            curved = A.T * np.maximum(terms.curvature, _LEAST_CURVATURE)
            pull = curved @ latent + A.T @ terms.slope
            latent = A @ np.linalg.solve(curved @ A + np.diag(ridge), pull)
        terms = self.likelihood.terms(latent, self.label)
        curvature = np.maximum(terms.curvature, _LEAST_CURVATURE)
        return curvature, latent[:, 0] + terms.slope[:, 0] / curvature

    @property
    def flip(self) -> float:
        """The share of the labels that is flipped."""
        return float(getattr(self.likelihood, "flip", 0.0))

    def start(self, rng: np.random.Generator) -> "GibbsState":
        """Return sizes uniform up to the prior's scale, the bias zero: overdispersed but not wild."""
        prior = self.hyperprior
        size = np.sqrt(prior.d / prior.c) * rng.uniform(0.05, 2.0, len(self.sign))
        state = GibbsState(size, 0.0, float(np.log(prior.d)))
        if self.moves is not None:
            width = self.width * np.exp(rng.uniform(-_SPREAD, _SPREAD, np.shape(self.width)))
            state.width = width if np.isfinite(self.moves.log_density(width)) else self.width
        return state


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
    width : float or ndarray, shape (n_features,), optional
        Where it is unknown.
    basis : Columns, optional
        The basis functions at that width, once they are needed.
    chunk : int
        Sweeps between two returns from compiled code; it follows their speed.
    """

    size: Array
    bias: Any
    log_rate: float
    width: Any = None
    basis: Any = None
    chunk: int = 16


def make_columns(Phi: Array, neighbours: Integers | None = None) -> Columns:
    """Return basis functions as compiled code takes them.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    neighbours : ndarray of int, optional
        Those of `Columns`, by default the nearest columns.
    """
    left, right = factorise(Phi)
    ones = left.sum(axis=0)
    norm = np.einsum("jk,jk->j", right, right)
    near, dense = neighbours, np.ascontiguousarray(Phi)
    if near is None:
        distance = norm - 2.0 * (right @ right.T)  # but for a part that is the same in a row
        np.fill_diagonal(distance, np.inf)
        k = min(_N_NEIGHBOURS, len(right) - 1)
        near = np.ascontiguousarray(np.argpartition(distance, k - 1, axis=1)[:, :k])
    return Columns(left, right, near, ones, right @ ones, norm, dense, np.abs(Phi).max(axis=0))


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
