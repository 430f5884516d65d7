"""Posterior of the weights at given precisions, and the log evidence there."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtri

from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array

_NEWTON_STEPS = 100
_NEWTON_DECREMENT = 1e-18  # of the log posterior
_QR_COLUMNS = 400  # above, always the Cholesky factor of the normal equations: a third of the work
_LEFT = 1e-5  # share of a column's square that the columns before it must leave


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
        Exact for a normal likelihood, else Laplace's approximation, with the second derivative of the
        likelihood, where the covariance has its curvature (they differ under Student-t noise alone).
    """

    mean: Array
    factor: Array
    alpha: Array
    latent: Array
    score: Array
    curvature: Array
    log_evidence: float

    @property
    def covariance(self) -> Array:
        """``(Phi' B Phi + A)^-1``, shape (n_basis, n_basis)."""
        half = inverse_triangle(self.factor) / np.sqrt(self.alpha)[:, None]
        return half @ half.T

    @property
    def variance(self) -> Array:
        """Diagonal of `covariance`, shape (n_basis,)."""
        return np.square(inverse_triangle(self.factor)).sum(axis=1) / self.alpha


def inverse_triangle(R: Array) -> Array:
    """Return the inverse of an upper triangular matrix."""
    if R.shape[0] == 0:
        return R
    inverse, info = dtrtri(R)
    if info:
        raise LinAlgError("the factor of the posterior precision is singular")
    return inverse


def _cholesky(Z: Array, curvature: Array) -> Array | None:
    """Return upper triangular R with R'R = I + Z' B Z; None where that loses more than half of the digits.

    The rounding of a Cholesky factor depends on the matrix with a unit diagonal, whatever the scales: each
    column must keep a share of its square that the columns before it do not explain.
    """
    gram = (Z.T * curvature) @ Z
    square = gram.diagonal() + 1.0
    gram.flat[:: len(gram) + 1] = square
    R, failed = dpotrf(gram, overwrite_a=True)
    if failed or (len(R) <= _QR_COLUMNS and not (R.diagonal() ** 2 > _LEFT * square).all()):
        return None
    return R


def _triangle(Z: Array, curvature: Array) -> Array:
    """Return upper triangular R with R'R = I + Z' B Z, where necessary from the QR of [sqrt(B) Z; I]."""
    m = Z.shape[1]
    R = _cholesky(Z, curvature) if m else np.empty((0, 0))
    if R is None:
        R = np.linalg.qr(np.vstack([np.sqrt(curvature)[:, None] * Z, np.eye(m)]), mode="r")
    return R


def posterior(
    Phi: Array, alpha: Array, target: Array, likelihood: Likelihood, start: Array | None = None
) -> Posterior:
    """Return the posterior of the weights and the log evidence at given precisions.

    Newton's method with step halving, ``w += Sigma (Phi' score - A w)``: Chmielewski et al. (2019)
    eq. 12, corrected (its mean is right for the working response ``Phi w + B^-1 (t - y)``, not for
    t). For a normal likelihood the first step is exact and the second reduces its rounding error.

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
    latent = Z @ v
    value = likelihood.log_likelihood(latent, target) - 0.5 * float(v @ v)
    curvature = likelihood.curvature(latent, target)
    R, last = _triangle(Z, curvature), np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = Z.T @ likelihood.score(latent, target) - v
        step = dpotrs(R, gradient)[0] if len(v) else gradient
        decrement = float(gradient @ step)
        if decrement <= _NEWTON_DECREMENT or (decrement < 1e-8 and decrement >= last):
            break
        last, change = decrement, Z @ step
        for halvings in range(30):
            size = 0.5**halvings
            point, there = v + size * step, latent + size * change
            found = likelihood.log_likelihood(there, target) - 0.5 * float(point @ point)
            if found >= value - 1e-13 * (1.0 + abs(value)):
                break
        else:
            break
        v, latent, value = point, there, found
        new = likelihood.curvature(latent, target)
        if not np.array_equal(new, curvature):
            curvature, R = new, _triangle(Z, new)
    half_log_det = float(np.log(np.abs(np.diag(R))).sum())
    if not likelihood.is_quadratic:
        second = likelihood.hessian(latent, target)[:, 0, 0]
        if not np.array_equal(second, curvature):  # not log-concave
            sign, log_det = np.linalg.slogdet(np.eye(len(v)) + (Z.T * second) @ Z)
            half_log_det = 0.5 * float(log_det) if sign > 0 else half_log_det
    return Posterior(
        mean=scale * v,
        factor=R,
        alpha=alpha,
        latent=latent,
        score=likelihood.score(latent, target),
        curvature=curvature,
        log_evidence=value - half_log_det,
    )


class OrthogonalBasis(NamedTuple):
    """The factors of ``[sqrt(B) Phi D; I] = Q R``, D = diag(alpha)^(-1/2), Q in two blocks.

    Attributes
    ----------
    upper : ndarray, shape (n_obs, m)
    lower, factor : ndarray, shape (m, m)
        The lower block of Q is the inverse of R.
    """

    upper: Array
    lower: Array
    factor: Array


def orthogonal_basis(Phi: Array, alpha: Array, curvature: Array) -> OrthogonalBasis:
    """Return the factors for bases with precisions `alpha` and rows with curvature B."""
    Z, root = Phi / np.sqrt(alpha), np.sqrt(curvature)[:, None]
    R = _cholesky(Z, curvature) if len(alpha) else None
    if R is not None:
        lower = inverse_triangle(R)
        return OrthogonalBasis((root * Z) @ lower, lower, R)
    Q, R = np.linalg.qr(np.vstack([root * Z, np.eye(len(alpha))]))
    return OrthogonalBasis(Q[: len(Phi)], Q[len(Phi) :], R)


def sum_of_squares(basis: OrthogonalBasis, weighted: Array, U: Array) -> Array:
    """Return phi' C^-1 phi of columns: the squared norm of their residual after projection on Q.

    Parameters
    ----------
    basis : OrthogonalBasis
    weighted : ndarray, shape (n_obs, n_columns)
        ``sqrt(B) phi``.
    U : ndarray, shape (m, n_columns)
        Its coordinates in Q.
    """
    left, below = weighted - basis.upper @ U, basis.lower @ U
    return np.einsum("ij,ij->j", left, left) + np.einsum("ij,ij->j", below, below)
