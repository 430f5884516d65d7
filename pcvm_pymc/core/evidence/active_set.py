"""The bases in a model: the weights' posterior at given precisions, and what each change would gain."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtri

from pcvm_pymc.core.evidence.rank_one import HUGE, TINY
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import ObservedRows
from pcvm_pymc.core.quadratic import Index

_NEWTON_STEPS = 100  # a guard: the decrement ends them
_NEWTON_DECREMENT = 1e-18  # gradient times step, nats: twice what the step promises
_QR_COLUMNS = 400  # above, always the Cholesky factor of the normal equations: a third of the work
_LEFT = 1e-5  # share of a column's square that the columns before it must leave

#: columns in a model, their precisions, and the mean of their weights
type Model = tuple[Index, Array, Array]


@dataclass(frozen=True)
class WeightPosterior:
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

    @cached_property
    def half(self) -> Array:
        """``D R^-1``, shape (n_basis, n_basis): the covariance is its product with its transpose."""
        return inverse_triangle(self.factor) / np.sqrt(self.alpha)[:, None]

    @property
    def covariance(self) -> Array:
        """``(Phi' B Phi + A)^-1``, shape (n_basis, n_basis)."""
        return self.half @ self.half.T

    @property
    def variance(self) -> Array:
        """Diagonal of `covariance`, shape (n_basis,)."""
        return np.square(self.half).sum(axis=1)

    def orthogonal(self, Phi: Array) -> tuple[Array, Array]:
        """Return orthonormal columns ``[sqrt(B) Phi; diag(alpha)^(1/2)] H``, in their two blocks.

        H is `half` but for rounding, which a second orthogonalisation removes where it tells.
        """
        R = self.factor
        upper, lower = np.sqrt(self.curvature)[:, None] * (Phi @ self.half), inverse_triangle(R)
        if (R.diagonal() ** 2 > _LEFT * np.square(R).sum(axis=0)).all():
            return upper, lower
        again = inverse_triangle(dpotrf(upper.T @ upper + lower.T @ lower)[0])
        return upper @ again, lower @ again


def sum_of_squares(orthogonal: tuple[Array, Array], weighted: Array) -> Array:
    """Return phi' C^-1 phi of columns: the squared norm of their residual after projection.

    Parameters
    ----------
    orthogonal : tuple of ndarray, shape (n_obs, m) and (m, m)
        As of `WeightPosterior.orthogonal`.
    weighted : ndarray, shape (n_obs, n_columns)
        ``sqrt(B) phi``.
    """
    upper, lower = orthogonal
    U = upper.T @ weighted
    left, below = weighted - upper @ U, lower @ U
    return np.einsum("ij,ij->j", left, left) + np.einsum("ij,ij->j", below, below)


def inverse_triangle(R: Array) -> Array:
    """Return the inverse of an upper triangular matrix."""
    if R.shape[0] == 0:
        return R
    inverse, info = dtrtri(R)
    if info:
        raise LinAlgError("the factor of the posterior precision is singular")
    return inverse


def factor_of(Z: Array, curvature: Array) -> Array:
    """Return upper triangular R with R'R = I + Z' B Z, where necessary from the QR of [sqrt(B) Z; I].

    The rounding of a Cholesky factor depends on the matrix with a unit diagonal, whatever the scales: it has
    lost half of its digits unless each column keeps a share of its square that those before do not explain.
    """
    m = Z.shape[1]
    if m == 0:
        return np.empty((0, 0))
    gram = (Z.T * curvature) @ Z
    square = gram.diagonal() + 1.0
    gram.flat[:: m + 1] = square
    R, failed = dpotrf(gram, overwrite_a=True)
    if failed or (m <= _QR_COLUMNS and not (R.diagonal() ** 2 > _LEFT * square).all()):
        R = np.linalg.qr(np.vstack([np.sqrt(curvature)[:, None] * Z, np.eye(m)]), mode="r")
    return R


class Place(NamedTuple):
    """A point v of Newton's method, with slopes and curvatures of rows Z, and the log posterior of v."""

    v: Array
    latent: Array
    Z: Array
    score: Array
    curvature: Array
    value: float


def newton(place: Place, moved: Callable[[Place, Array, float], Place]) -> tuple[Place, Array]:
    """Return the maximum under a standard normal prior, and the factor of minus the Hessian there.

    `moved` returns the place that a share of a step leads to. Steps are halved until one does not fall.
    """
    R, last = factor_of(place.Z, place.curvature), np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = place.Z.T @ place.score - place.v
        step = dpotrs(R, gradient)[0] if len(gradient) else gradient
        decrement = float(gradient @ step)
        if decrement <= _NEWTON_DECREMENT or (decrement < 1e-8 and decrement >= last):
            break
        last = decrement
        for halvings in range(30):
            new = moved(place, step, 0.5**halvings)
            if new.value >= place.value - 1e-13 * (1.0 + abs(place.value)):
                break
        else:
            break
        if new.Z is not place.Z or not np.array_equal(new.curvature, place.curvature):
            R = factor_of(new.Z, new.curvature)
        place = new
    return place, R


def posterior(
    Phi: Array, alpha: Array, observed: ObservedRows, start: Array | None = None
) -> WeightPosterior:
    """Return the posterior of the weights and the log evidence at given precisions.

    Newton's method with step halving, ``w += Sigma (Phi' score - A w)``: Chmielewski et al. (2019)
    eq. 12, corrected (its mean is right for the working response ``Phi w + B^-1 (t - y)``, not for
    t). For a normal likelihood the first step is exact and the second reduces its rounding error.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    alpha : ndarray, shape (n_basis,)
        Precisions, positive and finite.
    observed : ObservedRows
    start : ndarray, shape (n_basis,), optional
        Where Newton's method begins; zero by default.
    """
    scale = 1.0 / np.sqrt(alpha)
    Z = Phi * scale  # in v = w / scale the prior is standard normal and no eigenvalue is below one

    def at(v: Array, latent: Array) -> Place:
        value = observed.log_likelihood(latent) - 0.5 * float(v @ v)
        return Place(v, latent, Z, observed.score(latent), observed.curvature(latent), value)

    def moved(old: Place, step: Array, share: float) -> Place:
        return at(old.v + share * step, old.latent + share * (Z @ step))

    v = np.zeros(len(alpha)) if start is None else start / scale
    end, R = newton(at(v, Z @ v), moved)
    half_log_det = half_log_det_of(R)
    if not observed.likelihood.is_quadratic:
        second = observed.hessian(end.latent)[:, 0, 0]
        if not np.array_equal(second, end.curvature):  # not log-concave
            sign, log_det = np.linalg.slogdet(np.eye(len(v)) + (Z.T * second) @ Z)
            half_log_det = 0.5 * float(log_det) if sign > 0 else half_log_det
    value = end.value - half_log_det
    return WeightPosterior(scale * end.v, R, alpha, end.latent, end.score, end.curvature, value)


def half_log_det_of(R: Array) -> float:
    """Return half of log det R'R of a triangular factor."""
    return float(np.log(np.abs(np.diag(R))).sum())


@dataclass(frozen=True)
class ActiveSet:
    """Active set of a relevance vector machine: bases in the model, and the gain of every other one.

    Attributes
    ----------
    index : ndarray of int, shape (m,)
        Columns in the model, in the order in which they were added.
    alpha, mean : ndarray, shape (m,)
        Precisions and posterior mean of their weights.
    covariance : ndarray, shape (m, m)
        ``Sigma = (Phi' B Phi + A)^-1``.
    S, Q : ndarray, shape (n_columns,)
        ``phi' C^-1 phi`` and ``phi' C^-1 t`` of every column, with the whole of C = B^-1 + Phi A^-1 Phi'
        (Chmielewski et al. 2019 eq. 13, corrected: its first line has C_-i for C).
    log_evidence : float
    triangle : ndarray, shape (n_rows, n_columns), optional
        All columns in the triangular factor of distributed rows.
    """

    index: Index
    alpha: Array
    mean: Array
    covariance: Array
    S: Array
    Q: Array
    log_evidence: float
    triangle: Array | None = None

    @property
    def model(self) -> Model:
        """Columns in the model, their precisions, and the mean of their weights."""
        return self.index, self.alpha, self.mean

    def among(self, number: Index) -> "ActiveSet":
        """Return the state over some columns, ascending, those in the model among them."""
        index = np.searchsorted(number, self.index)
        triangle = None if self.triangle is None else self.triangle[:, number]
        return replace(self, index=index, S=self.S[number], Q=self.Q[number], triangle=triangle)


def scanned(columns: Any, observed: ObservedRows, model: Model) -> ActiveSet:
    """Return the state at given precisions, accurate to rounding: a full scan of all columns.

    S is the difference ``phi' B phi - |U|^2``, with U the column's coordinates in the orthogonal basis of the
    model, or where that has lost half of its digits the squared norm of what the projection leaves.

    Parameters
    ----------
    columns : DenseColumns, StreamedColumns or SummedColumns
    observed : ObservedRows
    model : tuple of ndarray, shape (m,) each
        Columns in the model, their precisions, and the mean of their weights: the start of Newton's method.
    """
    index, alpha, _ = model
    end = columns.posterior(model, observed)
    S, Q, triangle = columns.scan(index, end)
    return ActiveSet(index, alpha, end.mean, end.covariance, S, Q, end.log_evidence, triangle)


def leave_one_out(model: Model, variance: Array, S: Array, Q: Array) -> tuple[Array, Array]:
    """Return s and q of every column: S and Q with the column itself taken out of C.

    In the model they are ``1 / Sigma_jj - alpha_j`` and ``mu_j / Sigma_jj``, which does not cancel as
    ``alpha S / (alpha - S)`` does, unless the column is effectively pruned.

    Parameters
    ----------
    model : tuple of ndarray, shape (m,) each
        Columns in the model, their precisions, and the mean of their weights, or shape (m, n_responses).
    variance : ndarray, shape (m,)
        Diagonal of the covariance.
    S : ndarray, shape (n_columns,)
    Q : ndarray, shape (n_columns,) or (n_columns, n_responses)
    """
    index, alpha, mean = model
    s, q, inside = S.copy(), Q.copy(), 1.0 / variance - alpha
    # S / (1 - S / alpha): S itself where alpha is so large that the difference is rounding
    s[index] = np.where(inside <= 1e-8 * alpha, S[index], inside)
    q[index] = (mean.T / variance).T
    return np.maximum(s, TINY), q


def gains(state: ActiveSet) -> tuple[Array, Array]:
    """Return the gain in log evidence of each column's best change, and its precision after that.

    Chmielewski et al. (2019) eqs. 13-14: the best precision is ``s^2 / (q^2 - s)`` where that is positive,
    else infinite. Columns outside the model that stay there gain nothing.
    """
    s, q = leave_one_out(state.model, state.covariance.diagonal(), state.S, state.Q)
    alpha, gain = np.full(len(s), np.inf), np.zeros(len(s))
    better = np.flatnonzero(q * q > s)
    sparsity, square = s[better], q[better] ** 2
    with np.errstate(over="ignore"):
        precision = sparsity * (sparsity / (square - sparsity))
        ratio = np.minimum(square / sparsity, HUGE)
    # over being out of the model; members lose what they gain now
    gain[better] = 0.5 * (ratio - 1.0 - np.log(ratio)) * np.isfinite(precision)
    alpha[better] = precision
    now, s, q = state.alpha, s[state.index], q[state.index]
    gain[state.index] -= 0.5 * (np.log(now / (now + s)) + q * q / (now + s))
    gain[alpha == 0] = 0.0
    return gain, alpha
