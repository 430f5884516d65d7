"""What a chain is given and where it stands; `advance` moves it."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.linalg import qr

from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.gibbs.densities import Parameters
from pcvm_pymc.core.gibbs.moves import Basis
from pcvm_pymc.core.gibbs.responses import AUGMENTED, Integers, augmented
from pcvm_pymc.core.gibbs.sweep import run
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

__all__ = ["GibbsProblem", "GibbsState", "advance", "check_gibbs", "factorise", "make_basis"]

# columns of Phi below this share of the largest pivot are rounding: latent values keep nine digits
_RANK_TOLERANCE = 1e-11
_N_NEIGHBOURS = 10


def check_gibbs(problem: Problem) -> None:
    """Raise unless the Gibbs sampler draws from the posterior of a problem.

    Raises
    ------
    ValueError
        If no row of the family allows it, the likelihood's responses cannot be drawn or a parameter of it
        is unknown, the prior is not one of Gamma precisions or is improper, the bias is not under it, or
        the width is unknown.
    """
    check_solver(problem, "gibbs")
    name, prior = problem.likelihood.name, problem.hyperprior
    if name not in AUGMENTED:
        raise ValueError(
            f"a {name} likelihood has no responses that could be drawn; needed one of "
            f"{sorted(AUGMENTED)}, or method='nuts'"
        )
    if np.isnan(augmented(problem.likelihood)).any():
        raise ValueError(
            f"likelihood={problem.likelihood} has an unknown parameter, which Gibbs does not draw; needed a "
            "number, or method='nuts'"
        )
    if not isinstance(prior, Hyperprior):
        raise ValueError(
            f"a {prior.name} prior suits NUTS and is not what Gibbs draws from; needed a Hyperprior, or "
            "method='nuts'"
        )
    if not prior.is_proper:
        raise ValueError(
            f"hyperprior {prior} is improper: its posterior cannot be sampled; needed all positive"
        )
    if problem.bias != "prior" or problem.shared or problem.moves is not None:
        raise ValueError(
            f"bias={problem.bias!r}, shared={problem.shared} and "
            f"{'a known' if problem.moves is None else 'an unknown'} width; Gibbs needs bias='prior', "
            "shared=False and a known width; or use method='nuts'"
        )


@dataclass(frozen=True)
class GibbsProblem:
    """What a chain needs; made once and shared by all chains.

    Attributes
    ----------
    basis : Basis
        The basis functions, with what else the sweeps need of them.
    sign : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
    label : ndarray of int, shape (n_obs,)
        -1 and 1, or numbers of classes.
    hyperprior : Hyperprior
        Proper; d is learned where its ``rate_shape`` is given.
    likelihood : Likelihood
        One of `AUGMENTED`.
    """

    basis: Basis
    sign: Array
    label: Integers
    hyperprior: Hyperprior
    likelihood: Likelihood

    @classmethod
    def of(cls, problem: Problem) -> "GibbsProblem":
        """Return what a chain needs of a problem, whose `Phi` is an array.

        Raises
        ------
        ValueError
            As `check_gibbs`.
        """
        check_gibbs(problem)
        return cls(
            make_basis(np.asarray(problem.Phi, dtype=float)),
            problem.weight_sign,
            np.asarray(problem.label).astype(np.int64),
            cast(Hyperprior, problem.hyperprior),
            problem.likelihood,
        )

    @property
    def Phi(self) -> Array:
        """Basis functions, shape (n_obs, n_basis)."""
        return self.basis.Phi

    @property
    def n_scores(self) -> int:
        """Latent values of a row."""
        return self.likelihood.n_scores

    @property
    def parameters(self) -> Parameters:
        """The hyperprior as compiled code takes it: whole numbers would be compiled for anew."""
        prior = self.hyperprior
        shape = prior.rate_shape or 0.0
        return Parameters(*map(float, (prior.c, prior.e, prior.f, shape, shape / prior.d)))

    def start(self, rng: np.random.Generator) -> "GibbsState":
        """Return sizes uniform up to the prior's scale, biases zero: overdispersed but not wild."""
        prior = self.hyperprior
        size = np.sqrt(prior.d / prior.c) * rng.uniform(0.05, 2.0, self.sign.shape)
        return GibbsState(size, np.zeros(self.sign.shape[1:])[()], float(np.log(prior.d)))

    def latent(self, size: Array, bias: Array) -> Array:
        """Return the rows' latent values in draws, shape (draws, n_obs) or (draws, n_obs, n_scores)."""
        latent = np.tensordot(size * self.sign, self.Phi, axes=(1, 1))
        return np.moveaxis(latent, -1, 1) + bias[:, None]

    def log_likelihood(self, latent: Array) -> Array:
        """Return log probabilities of the labels at latent values of draws, shape (..., n_obs)."""
        row = latent.shape[latent.ndim - self.sign.ndim + 1 :]
        shape = latent.shape[: latent.ndim - len(row)]
        label = np.broadcast_to(self.label, shape).ravel()
        return self.likelihood.log_density(latent.reshape(-1, *row), label).reshape(shape)


@dataclass
class GibbsState:
    """Where a chain stands.

    Attributes
    ----------
    size : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
        Sizes of the weights.
    bias : float, or ndarray of shape (n_scores,)
    log_rate : float
        log d, of the rate of the weights' Gamma hyperprior.
    """

    size: Array
    bias: Any
    log_rate: float


def advance(
    problem: GibbsProblem,
    state: GibbsState,
    rng: np.random.Generator,
    *,
    draws: int,
    thin: int = 1,
) -> tuple[Array, Array, Array]:
    """Run ``draws * thin`` sweeps; `state` moves along.

    Parameters
    ----------
    problem : GibbsProblem
    state : GibbsState
        Changed in place.
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    draws : int
        States kept, one every `thin` sweeps.
    thin : int

    Returns
    -------
    size : ndarray, shape (draws, n_basis), or (draws, n_basis, n_scores) for several scores
    bias : ndarray, shape (draws,) or (draws, n_scores)
    rate : ndarray, shape (draws,)
        d, which does not move where it is not learned.

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data", JASA 88.
    R. M. Neal (2003), "Slice sampling", Annals of Statistics 31(3).
    J. S. Liu and C. Sabatti (2000), "Generalised Gibbs sampler and multigrid Monte Carlo", Biometrika 87.
    """
    size, bias = _by_score(state.size), np.array(state.bias, dtype=float, ndmin=1)
    sizes, biases, rate, state.log_rate = run(
        problem.basis,
        augmented(problem.likelihood),
        problem.parameters,
        _by_score(problem.sign),
        problem.label,
        size,
        bias,
        float(state.log_rate),
        rng,
        draws,
        thin,
    )
    if problem.sign.ndim == 1:
        state.size, state.bias = size[0], float(bias[0])
        return sizes[:, 0], biases[:, 0], rate
    state.size, state.bias = size.T, bias
    return sizes.transpose(0, 2, 1), biases, rate


def _by_score(array: Array) -> Array:
    """Return a copy of sizes or signs, one row for each score."""
    return np.array(array.T, dtype=float, order="C", ndmin=2)


def make_basis(Phi: Array) -> Basis:
    """Return basis functions, shape (n_obs, n_basis), as compiled code takes them."""
    left, right = factorise(Phi)
    ones = left.sum(axis=0)
    norm = np.einsum("jk,jk->j", right, right)
    whole, peak = np.ascontiguousarray(Phi), np.abs(Phi).max(axis=0)
    return Basis(left, right, _nearest_columns(right, norm), ones, right @ ones, norm, whole, peak)


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


def _nearest_columns(right: Array, squared: Array) -> Integers:
    """Return for each basis the nearest others, of either sign, shape (n_basis, k)."""
    n_basis = len(right)
    k = min(_N_NEIGHBOURS, n_basis - 1)
    out = np.zeros((n_basis, k), dtype=np.int64)
    for j in range(n_basis if k else 0):
        distance = squared - 2.0 * (right @ right[j])
        distance[j] = np.inf
        out[j] = np.argpartition(distance, k - 1)[:k]
    return out
