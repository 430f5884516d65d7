"""Bases that a few of them span to rounding, as kernels of few features have: a look computes none."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpstrf

from pcvm_pymc.core.design import BasisFunctions, row_blocks
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["Span", "span_of"]

type Index = NDArray[np.int64]

_ERROR = 1e-12  # of a value of a basis function, of which the largest are one
_OFFERED = 512  # points at a time that pivots are chosen among: where these need one each, so do the others
_LEAST = 1e-13  # of the diagonal that is left: below, rounding tells no pivots apart
_ROUNDS = 10  # of pivots: an outlier may need one of its own
_ROWS = 2048  # of a block
_WORTH = 8  # columns for each that spans them, at the least


@dataclass(frozen=True)
class Span:
    """Factors of the bases at all rows, ``Phi = rows @ columns'`` to 1e-12 in each value.

    Attributes
    ----------
    rows : ndarray, shape (n_obs, rank)
    columns : ndarray, shape (n_columns, rank)
    """

    rows: Array
    columns: Array

    @property
    def nbytes(self) -> int:
        """Bytes that the factors take."""
        own = 0 if np.shares_memory(self.rows, self.columns) else self.columns.nbytes
        return self.rows.nbytes + own

    def factors(self, number: Index) -> Array:
        """Return what bases are of `rows` and a constant after them, shape (rank + 1, n_some).

        Parameters
        ----------
        number : ndarray of int, shape (n_some,)
            -1 for the constant itself.
        """
        out = np.zeros((self.rows.shape[1] + 1, len(number)))
        of_basis = number >= 0
        out[:-1, of_basis] = self.columns[number[of_basis]].T
        out[-1, ~of_basis] = 1.0
        return out

    def shared(self, left: Array) -> Array:
        """Return inner products of vectors with `rows` and a constant, shape (n_left, rank + 1)."""
        return np.column_stack([left.T @ self.rows, left.sum(axis=0)])

    def triangle(self, root: Array, beside: Array) -> Array:
        """Return the triangular factor of ``[diag(root) [rows, 1], beside]``, block after block of rows."""
        R = np.empty((0, self.rows.shape[1] + 1 + beside.shape[1]))
        for some in row_blocks(len(self.rows), _ROWS):
            weighted = root[some, None] * self.rows[some]
            R = np.linalg.qr(
                np.vstack([R, np.column_stack([weighted, root[some], beside[some]])]), mode="r"
            )
        return R


def span_of(X: Array, centres: Array, kernel: KernelPiece, memory: float) -> Span | None:
    """Return the factors of all bases at all rows; None where too many would be needed to span them.

    The kernel is a correlation, so that what a pivoted Cholesky factorisation leaves of its diagonal bounds
    what it leaves of every value: ``|k(x, z) - l_x' l_z| <= sqrt(d_x d_z)``.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_basis, n_features)
    kernel : KernelPiece
    memory : float
        Bytes that the factors may take.
    """
    is_same = X is centres or np.array_equal(X, centres)
    points = np.asarray(centres if is_same else np.vstack([centres, X]), dtype=float)
    most = min(int(memory / (8.0 * len(points))), len(centres) // _WORTH, _OFFERED - 1)
    if not kernel.is_correlation or not 0 < most < len(points) or len(points) < _OFFERED:
        return None
    factor = _factor(points, kernel, most)
    if factor is None:
        return None
    return Span(factor if is_same else factor[len(centres) :], factor[: len(centres)])


def _factor(points: Array, kernel: KernelPiece, most: int) -> Array | None:
    """Return L with ``k(x, z) = l_x' l_z``, shape (n_points, rank); None where the rank is above that.

    Pivots come from points spread over all, then from those that they leave most of.
    """
    offered = np.linspace(0, len(points) - 1, _OFFERED).astype(np.int64)
    chosen: Index = np.empty(0, dtype=np.int64)
    for _ in range(_ROUNDS):
        offered = np.union1d(chosen, offered)
        R, pivot, rank, _ = dpstrf(kernel(points[offered], points[offered]), tol=_LEAST)
        if rank > most:
            return None
        chosen = offered[pivot[:rank] - 1]
        factor = _solved(points, points[chosen], kernel, R[:rank, :rank])
        left = 1.0 - np.einsum("ij,ij->i", factor, factor)
        worst = np.flatnonzero(left > _ERROR)
        if len(worst) == 0:
            return factor
        offered = worst[np.argsort(-left[worst], kind="stable")[:_OFFERED]]
    return None


def _solved(points: Array, pivots: Array, kernel: KernelPiece, R: Array) -> Array:
    """Return ``K(points, pivots) R^-1``."""
    out, basis = np.empty((len(points), len(R))), BasisFunctions(pivots, kernel)
    for rows in row_blocks(len(points), _ROWS):
        out[rows] = dtrsm(1.0, R, basis(points[rows]).T, trans_a=True).T
    return out
