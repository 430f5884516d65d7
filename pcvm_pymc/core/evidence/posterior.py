"""Posterior of the weights and log evidence at given precisions, and the factors that tell both."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtri

from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "Basis",
    "Posterior",
    "inverse_triangle",
    "orthogonal_basis",
    "posterior",
    "sum_of_squares",
]

_NEWTON_STEPS = 100
_NEWTON_DECREMENT = 1e-18
_QR_COLUMNS = 400  # beyond, the Cholesky factor of the normal equations: a third of the work
_SQUARED = 1e5  # condition up to which the normal equations lose too little to matter


@dataclass(frozen=True)
class Posterior:
    """Normal posterior of the weights at given precisions (Laplace's for classification).

    Attributes
    ----------
    mean : ndarray, shape (n_basis,)
    factor : ndarray, shape (n_basis, n_basis)
        Upper triangular R with ``R'R = I + D Phi' B Phi D``, D = diag(alpha)^(-1/2).
    alpha : ndarray, shape (n_basis,)
    latent, score, curvature : ndarray, shape (n_obs,)
        Phi @ mean, and slope and curvature (the diagonal of B) of the log likelihood there.
    log_evidence : float
    """

    mean: Array
    factor: Array
    alpha: Array
    latent: Array
    score: Array
    curvature: Array
    log_evidence: float

    @property
    def _half_covariance(self) -> Array:
        """Return T with T T' the covariance (Phi' B Phi + A)^-1."""
        scale = 1.0 / np.sqrt(self.alpha)
        return scale[:, None] * inverse_triangle(self.factor)

    @property
    def covariance(self) -> Array:
        """``(Phi' B Phi + A)^-1``, shape (n_basis, n_basis)."""
        half = self._half_covariance
        return half @ half.T

    @property
    def variance(self) -> Array:
        """Diagonal of `covariance`, shape (n_basis,)."""
        return (self._half_covariance**2).sum(axis=1)


def inverse_triangle(R: Array) -> Array:
    """Return the inverse of an upper triangular matrix."""
    if R.shape[0] == 0:
        return R
    inverse, info = dtrtri(R)
    if info:
        raise LinAlgError("the factor of the posterior precision is singular")
    return inverse


def _cholesky(Z: Array, curvature: Array, condition: float = _SQUARED) -> Array | None:
    """Return upper triangular R with R'R = I + Z' B Z; None where its condition may be above that.

    No eigenvalue is below one, so that the trace bounds the condition.
    """
    m = Z.shape[1]
    if not m + curvature @ np.einsum("ij,ij->i", Z, Z) < condition:
        return None
    gram = (Z.T * curvature) @ Z
    gram.flat[:: m + 1] += 1.0
    R, failed = dpotrf(gram, overwrite_a=True)
    return None if failed else R


def _triangle(Z: Array, curvature: Array) -> Array:
    """Return upper triangular R with R'R = I + Z' B Z, if need be from the QR of [sqrt(B) Z; I]."""
    m = Z.shape[1]
    R = _cholesky(Z, curvature, _SQUARED if m <= _QR_COLUMNS else np.inf) if m else np.empty((0, 0))
    if R is None:
        R = np.linalg.qr(np.vstack([np.sqrt(curvature)[:, None] * Z, np.eye(m)]), mode="r")
    return R


def _solve_normal(R: Array, g: Array) -> Array:
    """Return (R'R)^-1 g."""
    return dpotrs(R, g)[0] if len(g) else g


def posterior(
    Phi: Array, alpha: Array, target: Array, likelihood: Likelihood, start: Array | None = None
) -> Posterior:
    """Return the posterior of the weights and the log evidence at given precisions.

    Newton's method with step halving, ``w += Sigma (Phi' score - A w)``: Chmielewski et al. (2019)
    eq. 12, corrected (its mean holds for the working response ``Phi w + B^-1 (t - y)``, not for
    t). For a normal likelihood the first step is exact and the second refines its rounding.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    alpha : ndarray, shape (n_basis,)
        Precisions, positive and finite.
    target : ndarray, shape (n_obs,)
    likelihood : Likelihood
    start : ndarray, shape (n_basis,), optional
        Where Newton's method begins; zero by default.
    """
    scale = 1.0 / np.sqrt(alpha)
    Z = Phi * scale  # in v = w / scale the prior is standard normal and no eigenvalue is below one
    v = np.zeros(len(alpha)) if start is None else start / scale
    v, R = _mode(Z, target, likelihood, v)
    latent = Z @ v
    value = likelihood.log_likelihood(latent, target) - 0.5 * float(v @ v)
    return Posterior(
        mean=scale * v,
        factor=R,
        alpha=alpha,
        latent=latent,
        score=likelihood.score(latent, target),
        curvature=likelihood.curvature(latent, target),
        log_evidence=value - float(np.log(np.abs(np.diag(R))).sum()),
    )


def _mode(Z: Array, target: Array, likelihood: Likelihood, v: Array) -> tuple[Array, Array]:
    """Return the maximum of log p(t | Z v) - v'v/2, and R of `_triangle` there."""
    latent = Z @ v
    value = likelihood.log_likelihood(latent, target) - 0.5 * float(v @ v)
    curvature = likelihood.curvature(latent, target)
    R = _triangle(Z, curvature)
    last = np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = Z.T @ likelihood.score(latent, target) - v
        step = _solve_normal(R, gradient)
        decrement = float(gradient @ step)
        if decrement <= _NEWTON_DECREMENT or (decrement < 1e-8 and decrement >= last):
            break
        last = decrement
        found = _halved_step(Z, target, likelihood, (v, latent, value), step)
        if found is None:
            break
        v, latent, value = found
        new = likelihood.curvature(latent, target)
        if not np.array_equal(new, curvature):
            curvature, R = new, _triangle(Z, new)
    return v, R


def _halved_step(
    Z: Array,
    target: Array,
    likelihood: Likelihood,
    at: tuple[Array, Array, float],
    step: Array,
) -> tuple[Array, Array, float] | None:
    """Return the first point of v + step, v + step/2, ... that does not lower the log posterior."""
    v, latent, value = at
    change = Z @ step
    rounding = 1e-13 * (1.0 + abs(value))
    for halvings in range(30):
        size = 0.5**halvings
        new, new_latent = v + size * step, latent + size * change
        new_value = likelihood.log_likelihood(new_latent, target) - 0.5 * float(new @ new)
        if new_value >= value - rounding:
            return new, new_latent, new_value
    return None


@dataclass(frozen=True)
class Basis:
    """The factors of ``[sqrt(B) Phi D; I] = Q R``, Q in its upper and lower block.

    Attributes
    ----------
    upper : ndarray, shape (n_obs, m)
    lower, factor : ndarray, shape (m, m)
    """

    upper: Array
    lower: Array
    factor: Array


def orthogonal_basis(Phi: Array, alpha: Array, curvature: Array) -> Basis:
    """Return the factors for bases with precisions `alpha` and rows with curvature B."""
    Z, root = Phi / np.sqrt(alpha), np.sqrt(curvature)[:, None]
    R = _cholesky(Z, curvature) if len(alpha) else None
    if R is not None:
        lower = inverse_triangle(R)
        return Basis((root * Z) @ lower, lower, R)
    Q, R = np.linalg.qr(np.vstack([root * Z, np.eye(len(alpha))]))
    return Basis(Q[: len(Phi)], Q[len(Phi) :], R)


def sum_of_squares(basis: Basis, weighted: Array, U: Array) -> Array:
    """Return phi' C^-1 phi: the squared length of what Q leaves of ``[sqrt(B) phi; 0]``.

    Parameters
    ----------
    basis : Basis
    weighted : ndarray, shape (n_obs, n_columns)
        ``sqrt(B) phi``.
    U : ndarray, shape (m, n_columns)
        Its coordinates in Q.
    """
    left, below = weighted - basis.upper @ U, basis.lower @ U
    return np.einsum("ij,ij->j", left, left) + np.einsum("ij,ij->j", below, below)
