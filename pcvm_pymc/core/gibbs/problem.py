"""The problem of a Gibbs sampler and the state of its chains; `chain.advance` updates the state."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import qr

from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.gibbs.moves import Columns, Parameters
from pcvm_pymc.core.gibbs.responses import AUGMENTED, augmented
from pcvm_pymc.core.gibbs.vectors import Integers
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

# columns of Phi below this share of the largest pivot are rounding: latent values keep nine digits
_RANK_TOLERANCE = 1e-11
_N_NEIGHBOURS = 10  # nearest columns of each, one of which it exchanges weight with in a sweep
_NEWTON_STEPS = 10  # to the mode that a normal approximation of the rows is made at
_LEAST_CURVATURE = 0.02  # of a row in it: far from the boundary it would be zero
_SPREAD = 0.5  # of the chains' first widths around the problem's, in log(width)


def check_gibbs(problem: Problem) -> None:
    """Raise unless the Gibbs sampler draws from the posterior of a problem.

    Raises
    ------
    ValueError
        If no row of the family allows it, the likelihood's responses cannot be drawn or a parameter of it
        is unknown, the prior is not one of Gamma precisions or is improper, or the bias is not under it.
    """
    check_solver(problem, "gibbs")
    likelihood, prior = problem.likelihood, problem.hyperprior
    words = ""
    if likelihood.name not in AUGMENTED:
        words = f"a {likelihood.name} likelihood has no responses to draw"
    elif np.isnan(augmented(likelihood)).any():
        words = f"likelihood={likelihood} has an unknown parameter, which Gibbs does not draw"
    elif not isinstance(prior, Hyperprior):
        words = f"a {prior.name} prior suits NUTS and is not what Gibbs draws from"
    elif problem.bias != "prior":
        words = f"bias={problem.bias!r}, and Gibbs needs bias='prior'"
    elif prior.rate_spread is not None:
        words = (
            f"rate_spread={prior.rate_spread}: Gibbs draws an unknown d under a Gamma, rate_shape"
        )
    if words:
        raise ValueError(f"{words}; use method='nuts'")
    if not prior.is_proper:
        raise ValueError(f"hyperprior {prior} is improper: no draws; needed all positive")


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
            As `check_gibbs`.
        """
        check_gibbs(problem)
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
        """Curvatures and targets of a normal approximation of the likelihood, (n_obs, n_scores) each.

        It is made near the mode of weights without signs at `width`, and thus the same in all states.
        """
        prior, n_scores = self.hyperprior, self.n_scores
        A = np.column_stack([self.Phi, np.ones(len(self.Phi))])
        ridge = np.append(np.full(self.Phi.shape[1], prior.c / prior.d), prior.e / prior.f)
        latent = np.zeros((len(A), n_scores))
        for _ in range(_NEWTON_STEPS):
            terms = self.likelihood.terms(latent, self.label)
            curved = A.T * np.maximum(terms.curvature, _LEAST_CURVATURE)
            pull = curved @ latent + A.T @ terms.slope
            latent = A @ np.linalg.solve(curved @ A + np.diag(ridge), pull)
        terms = self.likelihood.terms(latent, self.label)
        curvature = np.maximum(terms.curvature, _LEAST_CURVATURE)[:, None]
        return np.repeat(curvature, n_scores, axis=1), latent + terms.slope / curvature

    @cached_property
    def copies(self) -> tuple[Integers, Integers]:
        """The first of all equal columns, and which of these each column is."""
        return np.unique(self.Phi, axis=1, return_index=True, return_inverse=True)[1:]

    @cached_property
    def distinct(self) -> Any:
        """The moves of the width, of columns no two of which are equal."""
        return self.moves.take(self.copies[0])

    def columns(self, Phi: Array) -> Columns:
        """Return distinct basis functions, shape (n_obs, n_distinct), as compiled code takes them."""
        return make_columns(Phi, self.basis.neighbours, self.copies[1])

    def start(self, rng: np.random.Generator) -> "GibbsState":
        """Return sizes uniform up to the prior's scale, biases zero: overdispersed but not wild."""
        prior = self.hyperprior
        size = np.sqrt(prior.d / prior.c) * rng.uniform(0.05, 2.0, self.sign.shape)
        state = GibbsState(size, np.zeros(self.sign.shape[1:])[()], float(np.log(prior.d)))
        if self.moves is not None:
            width = self.width * np.exp(rng.uniform(-_SPREAD, _SPREAD, np.shape(self.width)))
            state.width = width if np.isfinite(self.moves.log_density(width)) else self.width
        return state

    def latent(self, size: Array, bias: Array, width: Array | None = None) -> Array:
        """Return the rows' latent values in draws, shape (draws, n_obs) or (draws, n_obs, n_scores)."""
        if width is None or self.moves is None:
            latent = np.tensordot(size * self.sign, self.Phi, axes=(1, 1))
            return np.moveaxis(latent, -1, 1) + bias[:, None]
        each = zip(size, bias, width, strict=True)
        return np.stack([self.moves.basis(at) @ (w * self.sign) + b for w, b, at in each])

    def log_likelihood(self, latent: Array) -> Array:
        """Return log probabilities of the labels at latent values of draws, shape (..., n_obs)."""
        row = latent.shape[latent.ndim - self.sign.ndim + 1 :]
        shape = latent.shape[: latent.ndim - len(row)]
        label = np.broadcast_to(self.label, shape).ravel()
        return self.likelihood.log_density(latent.reshape(-1, *row), label).reshape(shape)


@dataclass
class GibbsState:
    """State of a chain.

    Attributes
    ----------
    size : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
        Sizes of the weights.
    bias : float, or ndarray of shape (n_scores,)
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


def make_columns(
    Phi: Array, neighbours: Integers | None = None, copies: Integers | None = None
) -> Columns:
    """Return basis functions as compiled code takes them.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    neighbours : ndarray of int, optional
        Those of `Columns`, by default the nearest columns.
    copies : ndarray of int, shape (n_basis,), optional
        Which of the columns of `Phi` each basis function is. Default: there are no two that are equal.
    """
    left, right = factorise(Phi)
    if copies is not None:
        Phi, right = Phi[:, copies], right[copies]
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
