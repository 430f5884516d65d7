"""Exact solution of the sign-constrained M-step: a strictly convex non-negative quadratic programme."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pcvm_pymc.core.probit import Array

__all__ = ["BorderedGram", "solve_nonnegative"]

type Mask = NDArray[np.bool_]

# columns copied, and rows weighted, at a time: what is held beside Phi, its Gram matrix and the factor
_COLUMNS = 64
_ROWS = 128
# scaled problems have unit diagonal curvature from the prior: smaller slopes are rounding
_SLOPE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class BorderedGram:
    """The Gram matrix of [Phi, 1] under row weights, without a copy of Phi for its last column.

    Attributes
    ----------
    gram : ndarray, shape (n_basis, n_basis)
        Phi' W Phi; only the lower triangle is set.
    border : ndarray, shape (n_basis,)
        Phi' W 1.
    corner : float
        1' W 1.
    """

    gram: Array
    border: Array
    corner: float

    @classmethod
    def of(cls, Phi: Array, row_weight: Array | None = None) -> "BorderedGram":
        """Return the Gram matrix of `Phi`, shape (n_obs, n_basis), by one symmetric rank-k product."""
        if row_weight is None:
            return cls(_cross_product(Phi), Phi.sum(axis=0), float(len(Phi)))
        root = np.sqrt(row_weight)[:, None]
        gram = np.zeros((Phi.shape[1], Phi.shape[1]), order="F")
        for start in range(0, len(Phi), _ROWS):
            rows = slice(start, start + _ROWS)
            gram = _cross_product(Phi[rows] * root[rows], gram)
        return cls(gram, row_weight @ Phi, float(row_weight.sum()))

    def take(self, columns: NDArray[np.intp]) -> "BorderedGram":
        """Return the Gram matrix of some columns, in ascending order."""
        return BorderedGram(
            _lower_block(self.gram, columns, len(columns)), self.border[columns], self.corner
        )

    def product(self, weight: Array, bias: float) -> tuple[Array, float]:
        """Return the product with (weight, bias)."""
        if len(weight) == 0:
            return weight, self.corner * bias
        inner = blas.dsymv(1.0, self.gram, weight, lower=1)
        return inner + self.border * bias, float(self.border @ weight) + self.corner * bias


def _cross_product(A: Array, total: Array | None = None) -> Array:
    """Return the lower triangle of A'A, added to `total` in place (either memory order, no copy)."""
    if A.shape[1] == 0:
        return np.zeros((0, 0), order="F")
    operand, trans = (A.T, 0) if A.flags.c_contiguous else (A, 1)
    if total is None:
        return blas.dsyrk(1.0, operand, trans=trans, lower=1)
    return blas.dsyrk(1.0, operand, trans=trans, lower=1, beta=1.0, c=total, overwrite_c=1)


def _lower_block(gram: Array, columns: NDArray[np.intp], size: int) -> Array:
    """Return gram[columns, columns] (lower triangle) in the corner of a (size, size) matrix."""
    out = np.zeros((size, size), order="F")
    n = len(columns)
    if n == len(gram):
        out[:n, :n] = gram
        return out
    for start in range(0, n, _COLUMNS):
        stop = min(start + _COLUMNS, n)
        # transposed, since the matrices are in column order
        block = gram.T[np.ix_(columns[start:stop], columns[start:])]
        out.T[start:stop, start:n] = block
    return out


def _solve_passive(
    gram: BorderedGram, scale: Array, bias_scale: float, rhs: Array, passive: Mask
) -> Array:
    """Solve the scaled normal equations on the passive weights and the bias."""
    columns = np.flatnonzero(passive)
    n = len(columns)
    s = scale[columns]
    H = _lower_block(gram.gram, columns, n + 1)
    H[n, :n] = gram.border[columns]
    H[n, n] = gram.corner
    full = np.append(s, bias_scale)
    H *= full
    H *= full[:, None]
    H[np.diag_indices(n + 1)] += 1.0
    factor, info = lapack.dpotrf(H, lower=1, overwrite_a=1)
    if info != 0:  # I + positive semi-definite: only a product that is not finite gets here
        raise FloatingPointError("the M-step's matrix is not finite; standardise the inputs")
    solution, _ = lapack.dpotrs(factor, np.append(rhs[:-1][columns], rhs[-1]), lower=1)
    out = np.zeros(len(scale) + 1)
    out[columns] = solution[:-1]
    out[-1] = solution[-1]
    return out


def solve_nonnegative(
    gram: BorderedGram,
    scale: Array,
    bias_scale: float,
    target: tuple[Array, float],
    passive: Mask,
    *,
    constrained: bool = True,
) -> tuple[Array, float]:
    r"""Minimise 1/2 v' G v - t' v + 1/2 (w / scale)^2 + 1/2 (b / bias_scale)^2 over v = (w, b).

    In u = v / scale this is strictly convex with matrix ``D G D + I`` (the stable form
    ``M (M Phi'Phi M + I)^-1 M`` of Chen et al. 2009, appendix C), so that a scale of zero simply
    removes a weight. Block principal pivoting with Murty's single exchange as the fallback
    that makes it finite.

    Parameters
    ----------
    gram : BorderedGram
        G, of [Phi, 1].
    scale : ndarray, shape (n_basis,)
        Prior standard deviation of each weight times its sign: w / scale >= 0 is the constraint.
    bias_scale : float
        Prior standard deviation of the bias, which is free of constraints.
    target : tuple of ndarray, shape (n_basis,), and float
        t = [Phi, 1]' (working response).
    passive : ndarray of bool, shape (n_basis,)
        Weights expected to be non-zero; the solution does not depend on it, the time does.
    constrained : bool
        False solves without the sign constraint.

    Returns
    -------
    weight : ndarray, shape (n_basis,)
    bias : float

    References
    ----------
    J. J. Judice and F. M. Pires (1994), "A block principal pivoting algorithm for large-scale
    strictly monotone linear complementarity problems", Computers & Operations Research 21.
    """
    rhs = np.append(scale * target[0], bias_scale * target[1])
    usable = scale != 0
    if not constrained:
        u = _solve_passive(gram, scale, bias_scale, rhs, usable)
        return scale * u[:-1], bias_scale * float(u[-1])
    passive = passive & usable
    fewest, patience = len(scale) + 1, 3
    while True:
        u = _solve_passive(gram, scale, bias_scale, rhs, passive)
        wrong = passive & (u[:-1] < 0)
        if not passive[usable].all():
            inner, _ = gram.product(scale * u[:-1], bias_scale * float(u[-1]))
            slope = scale * inner + u[:-1] - rhs[:-1]
            wrong |= usable & ~passive & (slope < -_SLOPE_TOLERANCE * (1.0 + np.abs(rhs[:-1])))
        count = int(wrong.sum())
        if count == 0:
            return scale * u[:-1], bias_scale * float(u[-1])
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        passive = passive ^ wrong
