"""Exact solution of the sign-constrained M-step: a strictly convex non-negative quadratic programme."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "BorderedGram",
    "Gram",
    "Index",
    "Mask",
    "PartialGram",
    "lower_block",
    "solve_nonnegative",
]

type Index = NDArray[np.intp]
type Mask = NDArray[np.bool_]

_ROWS = 256  # weighted at a time: what is held beside Phi, its Gram matrix and the factor
_MOST_EXCHANGES = 100  # and ten for each weight: far more than exact arithmetic was seen to need
# a row counts again once its weight is off by this share
_STALE = 0.1
# scaled problems have unit diagonal curvature from the prior: smaller slopes are rounding
_SLOPE_TOLERANCE = 1e-10
# of the diagonal, one after the other where a matrix is not positive definite for rounding
_INFLATIONS = (0.0, 1e-14, 1e-12, 1e-10, 1e-8)


class Gram(Protocol):
    """What the solver asks of a Gram matrix of [Phi, 1] under row weights."""

    @property
    def border(self) -> Array:
        """Phi' W 1, shape (n_basis,)."""
        ...

    @property
    def corner(self) -> float:
        """1' W 1."""
        ...

    def block(self, passive: Mask, scale: Array, bias_scale: float) -> tuple[Index, Array]:
        """Return the passive columns in some order, and their Gram matrix in units of the scales.

        Its last row is the border; only the lower triangle is set, in a matrix of its own.
        """
        ...

    def product(self, weight: Array, bias: float) -> tuple[Array, float]:
        """Return the product with (weight, bias)."""
        ...


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

    def block(self, passive: Mask, scale: Array, bias_scale: float) -> tuple[Index, Array]:
        """Return the passive columns and their Gram matrix in units of the scales, see `Gram`."""
        columns = passive.nonzero()[0]
        return columns, _bordered(self, self.gram, (columns, columns), scale, bias_scale)

    def take(self, columns: Index) -> "BorderedGram":
        """Return the Gram matrix of some columns, in ascending order."""
        gram = lower_block(self.gram, columns, np.ones(len(columns)), 0)
        return BorderedGram(gram, self.border[columns], self.corner)

    def product(self, weight: Array, bias: float) -> tuple[Array, float]:
        """Return the product with (weight, bias)."""
        if len(weight) == 0:
            return weight, self.corner * bias
        inner = blas.dsymv(1.0, self.gram, weight, lower=1)
        return inner + self.border * bias, float(self.border @ weight) + self.corner * bias


class PartialGram:
    """The Gram matrix of [Phi, 1] under row weights that move, on the columns that are asked for.

    A step with the probit's curvature needs the Gram matrix of the weights that stay positive alone,
    and not to the last digit: its fixed point is given by the slopes, which are computed apart. So
    a row is taken anew only where its weight has moved by more than a tenth; `row_weight` tells
    which weights the matrix stands for.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    """

    def __init__(self, Phi: Array) -> None:
        self.Phi = Phi
        self.row_weight = np.zeros(len(Phi))
        self.border = np.zeros(Phi.shape[1])
        self.corner = 0.0
        self._forget()

    def _forget(self) -> None:
        self._columns: Index = np.empty(0, dtype=np.intp)
        self._gram = np.zeros((0, 0), order="F")

    def follow(self, row_weight: Array, passive: Mask) -> None:
        """Move to other row weights; `passive` are the columns expected to be asked for."""
        change = row_weight - self.row_weight
        stale = np.flatnonzero(np.abs(change) > _STALE * row_weight)
        if len(stale) == 0:
            return
        # taking away most of what there is would leave its rounding
        if len(stale) > len(change) // 2 or self.row_weight.sum() > 10.0 * row_weight.sum():
            self._forget()
            self.row_weight = row_weight.copy()
        else:
            self._narrow(passive)
            for rows, sign in ((stale[change[stale] > 0], 1.0), (stale[change[stale] < 0], -1.0)):
                self._add_rows(rows, np.abs(change[rows]), sign)
            self.row_weight[stale] = row_weight[stale]
        self.border = self.row_weight @ self.Phi
        self.corner = float(self.row_weight.sum())

    def take(self, columns: Index, Phi: Array) -> None:
        """Go on with some columns, in ascending order; `Phi` are theirs."""
        place = np.flatnonzero(np.isin(self._columns, columns))
        self._narrow_to(place)
        self._columns = np.searchsorted(columns, self._columns)
        self.Phi, self.border = Phi, self.border[columns]

    def block(self, passive: Mask, scale: Array, bias_scale: float) -> tuple[Index, Array]:
        """Return the passive columns and their Gram matrix in units of the scales, see `Gram`."""
        known = np.zeros(len(passive), dtype=bool)
        known[self._columns] = True
        self._extend(np.flatnonzero(passive & ~known))
        place = np.flatnonzero(passive[self._columns])
        columns = self._columns[place]
        return columns, _bordered(self, self._gram, (place, columns), scale, bias_scale)

    def product(self, weight: Array, bias: float) -> tuple[Array, float]:
        """Return the product with (weight, bias)."""
        inner = (self.row_weight * (self.Phi @ weight)) @ self.Phi
        return inner + self.border * bias, float(self.border @ weight) + self.corner * bias

    def _narrow(self, passive: Mask) -> None:
        """Leave out columns that are no longer expected, once that saves real work."""
        place = np.flatnonzero(passive[self._columns])
        if len(place) < 0.9 * len(self._columns):
            self._narrow_to(place)

    def _narrow_to(self, place: Index) -> None:
        self._gram = lower_block(self._gram, place, np.ones(len(place)), 0)
        self._columns = self._columns[place]

    def _add_rows(self, rows: Index, weight: Array, sign: float) -> None:
        root = np.sqrt(weight)[:, None]
        for start in range(0, len(rows), _ROWS):
            some = slice(start, start + _ROWS)
            part = self.Phi[np.ix_(rows[some], self._columns)] * root[some]
            self._gram = _cross_product(part, self._gram, sign)

    def _extend(self, new: Index) -> None:
        """Add columns: rows at the bottom of the lower triangle."""
        if len(new) == 0:
            return
        k, n = len(self._columns), len(self._columns) + len(new)
        below, corner = np.zeros((n - k, k), order="F"), np.zeros((n - k, n - k), order="F")
        for start in range(0, len(self.Phi), _ROWS):
            some = slice(start, start + _ROWS)
            root = np.sqrt(self.row_weight[some])[:, None]
            part = self.Phi[some][:, new] * root
            corner = _cross_product(part, corner)
            if k:
                old = self.Phi[some][:, self._columns] * root
                below = blas.dgemm(1.0, part.T, old.T, trans_b=1, beta=1.0, c=below, overwrite_c=1)
        self._gram = _stacked(self._gram, below, corner) if k else corner
        self._columns = np.append(self._columns, new)


def _stacked(above: Array, below: Array, corner: Array) -> Array:
    """Return the lower triangle whose blocks these are."""
    k, n = len(above), len(above) + len(corner)
    out = np.zeros((n, n), order="F")
    out[:k, :k], out[k:, :k], out[k:, k:] = above, below, corner
    return out


def _bordered(
    whole: Gram, gram: Array, where: tuple[Index, Index], scale: Array, bias_scale: float
) -> Array:
    """Return the scaled lower triangle of some columns: places in `gram`, numbers among the scales."""
    place, columns = where
    own = scale[columns]
    out = lower_block(gram, place, own, 1)
    out[-1, :-1] = whole.border[columns] * own * bias_scale
    out[-1, -1] = whole.corner * bias_scale**2
    return out


def _cross_product(A: Array, total: Array | None = None, sign: float = 1.0) -> Array:
    """Return the lower triangle of A'A, added to `total` in place (either memory order, no copy)."""
    if A.shape[1] == 0:
        return np.zeros((0, 0), order="F")
    operand, trans = (A.T, 0) if A.flags.c_contiguous else (A, 1)
    if total is None:
        return blas.dsyrk(1.0, operand, trans=trans, lower=1)
    return blas.dsyrk(sign, operand, trans=trans, lower=1, beta=1.0, c=total, overwrite_c=1)


def lower_block(gram: Array, columns: Index, scale: Array, room: int) -> Array:
    """Return scale gram[columns, columns] scale, with room for more rows and columns at the end.

    Columns ascend, matrices are in column order, and of both the lower triangle counts alone.
    """
    size = len(columns) + room
    out = np.zeros((size, size), order="F")
    _fill_lower(out, gram, columns, scale)
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_lower(out: Array, gram: Array, columns: Index, scale: Array) -> None:
    """Do it in one pass: NumPy's copies and products took as long as the factor of 400 columns."""
    for j in range(len(columns)):
        for i in range(j, len(columns)):
            out[i, j] = gram[columns[i], columns[j]] * scale[i] * scale[j]


def _solve_passive(
    gram: Gram, scale: Array, bias_scale: float, rhs: Array, passive: Mask, *, ridge: float = 1.0
) -> Array:
    """Solve the scaled normal equations on the passive weights and the bias.

    The matrix is I + positive semi-definite; where bases are so large that rounding takes the I away, its
    diagonal grows by what rounding may have taken.
    """
    for inflation in _INFLATIONS:
        columns, H = gram.block(passive, scale, bias_scale)
        n = len(columns)
        goal = np.empty((n + 1, 1))
        goal[:n, 0], goal[n] = rhs[columns], rhs[-1]
        diagonal = H.T.ravel()[:: n + 2]  # a view, the matrix being in column order
        diagonal[:n] += 1.0
        diagonal[n] += ridge
        diagonal *= 1.0 + inflation
        factor, info = lapack.dpotrf(H, lower=1, overwrite_a=1)
        if info == 0:
            solution, _ = lapack.dpotrs(factor, goal, lower=1)
            out = np.zeros(len(scale) + 1)
            out[columns], out[-1] = solution[:n, 0], solution[n, 0]
            return out
    raise ValueError(
        "kernel: the squares of its values are too large to be solved for; standardise the features, or "
        "scale the kernel"
    )


def solve_nonnegative(
    gram: Gram,
    scale: Array,
    bias_scale: float,
    target: tuple[Array, float],
    passive: Mask,
    *,
    constrained: bool = True,
    slack: float = 0.0,
) -> tuple[Array, float]:
    r"""Minimise 1/2 v' G v - t' v + 1/2 (w / scale)^2 + 1/2 (b / bias_scale)^2 over v = (w, b).

    In u = v / scale this is strictly convex with matrix ``D G D + I`` (the stable form
    ``M (M Phi'Phi M + I)^-1 M`` of Chen et al. 2009, appendix C), so that a scale of zero simply
    removes a weight. Block principal pivoting with Murty's single exchange as the fallback
    that makes it finite.

    Parameters
    ----------
    gram : Gram
        G, of [Phi, 1].
    scale : ndarray, shape (n_basis,)
        Prior standard deviation of each weight times its sign: w / scale >= 0 is the constraint.
    bias_scale : float
        Prior standard deviation of the bias, which is free of constraints; infinite: a flat prior.
    target : tuple of ndarray, shape (n_basis,), and float
        t = [Phi, 1]' (working response).
    passive : ndarray of bool, shape (n_basis,)
        Weights expected to be non-zero; the solution does not depend on it, the time does.
    constrained : bool
        False solves without the sign constraint.
    slack : float
        Be content once at most this share of the passive weights is on the wrong side of zero, or should
        not be zero; the former are set to zero then. 0 solves to the end.

    Returns
    -------
    weight : ndarray, shape (n_basis,)
    bias : float

    References
    ----------
    J. J. Judice and F. M. Pires (1994), "A block principal pivoting algorithm for large-scale
    strictly monotone linear complementarity problems", Computers & Operations Research 21.
    """
    ridge = 1.0
    if bias_scale == np.inf:  # any unit will do where the prior gives none
        bias_scale, ridge = 1.0 / np.sqrt(gram.corner), 0.0
    rhs = np.empty(len(scale) + 1)
    rhs[:-1], rhs[-1] = scale * target[0], bias_scale * target[1]
    usable = scale != 0
    if not constrained:
        u = _solve_passive(gram, scale, bias_scale, rhs, usable, ridge=ridge)
        return scale * u[:-1], bias_scale * float(u[-1])
    passive = passive & usable
    fewest, patience = len(scale) + 1, 3
    for _ in range(_MOST_EXCHANGES + 10 * len(scale)):
        u = _solve_passive(gram, scale, bias_scale, rhs, passive, ridge=ridge)
        wrong = passive & (u[:-1] < 0)
        if not passive[usable].all():
            inner, _ = gram.product(scale * u[:-1], bias_scale * float(u[-1]))
            slope = scale * inner - rhs[:-1]  # of weights at zero, whose prior does not pull
            wrong |= usable & ~passive & (slope < -_SLOPE_TOLERANCE * (1.0 + np.abs(rhs[:-1])))
        count = int(wrong.sum())
        if count == 0 or (slack and count <= slack * passive.sum()):
            return scale * np.maximum(u[:-1], 0.0), bias_scale * float(u[-1])
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        passive = passive ^ wrong
    # rounding has made it go in circles: what is left of the sign rule's violations is rounding, too
    return scale * np.maximum(u[:-1], 0.0), bias_scale * float(u[-1])
