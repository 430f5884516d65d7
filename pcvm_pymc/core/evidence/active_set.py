"""The bases in a model, the full scan of all bases, and what each of their changes would gain."""

from dataclasses import dataclass, replace

import numpy as np

from pcvm_pymc.core.design import row_blocks
from pcvm_pymc.core.evidence.columns import Columns, DenseColumns, Index, LowRankColumns
from pcvm_pymc.core.evidence.posterior import (
    OrthogonalBasis,
    inverse_triangle,
    orthogonal_basis,
    posterior,
    sum_of_squares,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array

_TINY = np.finfo(float).tiny
_HUGE = 1e100  # q^2 / s above which s has lost its digits
_LOST = 1e-6  # share of phi' B phi: a difference that is smaller has lost half of its digits
_SQUARED = 1e6  # condition number up to which S is computed from inner products of all rows
_BLOCK = 512  # columns at a time

#: columns in a model, their precisions, and the mean of their weights
type Model = tuple[Index, Array, Array]


@dataclass(frozen=True)
class ActiveSet:
    """The bases in a model, and what every basis would add to it (Laplace's approximation, if not quadratic).

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
    """

    index: Index
    alpha: Array
    mean: Array
    covariance: Array
    S: Array
    Q: Array
    log_evidence: float

    @property
    def model(self) -> Model:
        """Columns in the model, their precisions, and the mean of their weights."""
        return self.index, self.alpha, self.mean

    def among(self, number: Index) -> "ActiveSet":
        """Return the state over some columns, ascending, those in the model among them."""
        index = np.searchsorted(number, self.index)
        return replace(self, index=index, S=self.S[number], Q=self.Q[number])


def scanned(columns: Columns, target: Array, likelihood: Likelihood, model: Model) -> ActiveSet:
    """Return the state at given precisions, accurate to rounding: a full scan of all columns.

    S is the difference ``phi' B phi - |U|^2``, with U the column's coordinates in the orthogonal basis of the
    model, or where that has lost half of its digits the squared norm of what the projection leaves.

    Parameters
    ----------
    columns : DenseColumns or StreamedColumns
    target : ndarray, shape (n_obs,)
    likelihood : Likelihood
    model : tuple of ndarray, shape (m,) each
        Columns in the model, their precisions, and the mean of their weights: the start of Newton's method.
    """
    index, alpha, mean = model
    Phi = columns.take(index)
    end = posterior(Phi, alpha, target, likelihood, mean)
    half, root = inverse_triangle(end.factor) / np.sqrt(alpha)[:, None], np.sqrt(end.curvature)
    covariance = half @ half.T
    S, Q = np.empty(columns.shape[1]), np.empty(columns.shape[1])

    def write(place: Index, whole: Array, U: Array, basis: OrthogonalBasis | None = None) -> None:
        own = whole - np.einsum("ij,ij->j", U, U)
        lost = np.flatnonzero(_LOST * np.maximum(whole, _TINY) >= own)
        for rows in row_blocks(len(lost), _BLOCK):
            basis = basis or orthogonal_basis(Phi, alpha, end.curvature)
            weighted = root[:, None] * columns.take(place[lost[rows]])
            own[lost[rows]] = sum_of_squares(basis, weighted, basis.upper.T @ weighted)
        S[place] = own

    condition = (alpha + likelihood.bound) @ covariance.diagonal()
    if (
        isinstance(columns, DenseColumns) and likelihood.is_quadratic and condition < _SQUARED
    ):  # inner products of the columns in the model with all are known from one scan to the next
        beta, cross = likelihood.bound, columns.cross(index)
        write(np.arange(len(S)), beta * columns.square, beta * (half.T @ cross))
        Q = beta * (columns.inner(target[:, None])[0] - end.mean @ cross)
        return ActiveSet(index, alpha, end.mean, covariance, S, Q, end.log_evidence)
    basis = orthogonal_basis(Phi, alpha, end.curvature)
    left = np.column_stack([root[:, None] * basis.upper, end.score])

    def scan(place: Index) -> None:
        U, whole = columns.products(left, end.curvature, place)
        write(place, whole, U[:-1], basis)
        Q[place] = U[-1]

    if isinstance(columns, LowRankColumns):  # the same in as many rows as the rank
        left = np.column_stack([basis.upper, end.score / root.clip(_TINY)])
        R = columns.triangle(root, left)
        n_rows = columns.L.shape[1] + 1
        basis = basis._replace(upper=R[:, n_rows:-1])
        for some in row_blocks(columns.shape[1], _BLOCK):
            weighted = R[:, :n_rows] @ columns.coordinates(some)
            Q[some] = R[:, -1] @ weighted
            S[some] = sum_of_squares(basis, weighted, basis.upper.T @ weighted)
    else:
        columns.for_each_block(scan)
    return ActiveSet(index, alpha, end.mean, covariance, S, Q, end.log_evidence)


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
    faint = inside <= 1e-8 * alpha
    if faint.any():
        left = alpha[faint] - S[index[faint]]
        inside[faint] = alpha[faint] * S[index[faint]] / np.where(left > 0, left, np.inf)
    s[index], q[index] = inside, (mean.T / variance).T
    return np.maximum(s, _TINY), q


def best_change(s: Array, q: Array) -> tuple[Array, Array]:
    """Return the best precision of each column, and what it gains in log evidence over being out.

    Chmielewski et al. (2019) eqs. 13-14: ``alpha = s^2 / (q^2 - s)`` where that is positive, else infinite,
    which gains nothing.

    Parameters
    ----------
    s, q : ndarray, shape (n_columns,)
        With the column itself taken out.
    """
    square = q * q
    better = np.flatnonzero(square > s)
    alpha, gain = np.full(len(s), np.inf), np.zeros(len(s))
    s, square = s[better], square[better]
    with np.errstate(over="ignore"):
        precision, ratio = s * (s / (square - s)), np.minimum(square / s, _HUGE)
    gain[better] = 0.5 * (ratio - 1.0 - np.log(ratio)) * np.isfinite(precision)
    alpha[better] = precision
    return alpha, gain


def gains(state: ActiveSet) -> tuple[Array, Array]:
    """Return the gain in log evidence of each column's best change, and its precision after that.

    Columns outside the model that stay there gain nothing.
    """
    variance = state.covariance.diagonal()
    s, q = leave_one_out(state.model, variance, state.S, state.Q)
    alpha, gain = best_change(s, q)
    now, s, q = state.alpha, s[state.index], q[state.index]
    gain[state.index] -= 0.5 * (np.log(now / (now + s)) + q * q / (now + s))
    gain[alpha == 0] = 0.0
    return gain, alpha
