"""The quadratic model of the log posterior at a point: H = Phi' W Phi + A, its factor and its inverse.

W has minus the second derivatives of the rows' log likelihoods in their latent values (or a bound of them),
A the prior's precisions: diagonal. Around a point v0 with slope t, minus the log posterior is
``1/2 (v - v0)' H (v - v0) - t' (v - v0)`` up to a constant. Its minimum is a Newton step, its
inverse the covariance of Laplace's approximation (Tipping 2001, eqs. 25-27).

`BorderedGram` and `PartialGram` are ``[Phi, 1]' W [Phi, 1]`` of one score, the latter in single precision
where the slopes, in double precision, decide where steps end: EM, the bottom-up search and the projection
solve it under the sign rule (`core.nonnegative`).
`QuadraticModel` is H at a mode, for one score or several: leave-one-out and intervals.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import jit
from pcvm_pymc.core.problem import ObservedRows

type Index = NDArray[np.intp]
type Mask = NDArray[np.bool_]

# by precision; SciPy's look-up takes as long as a factor of 30 columns
_GEMM: Any = {"f": blas.sgemm, "d": blas.dgemm}
_SYRK: Any = {"f": blas.ssyrk, "d": blas.dsyrk}
POTRF: Any = {"f": lapack.spotrf, "d": lapack.dpotrf}
POTRS: Any = {"f": lapack.spotrs, "d": lapack.dpotrs}
_ROWS = 256  # weighted at a time: what is in memory besides Phi, its Gram matrix and the factor
# a row counts again once its weight is off by this share
_STALE = 0.1
_SINGLE_FROM = 256  # columns: fewer cost more in conversions than single precision saves
SINGLE_ROUNDING = float(np.finfo(np.float32).eps)
# of a basis function: in single precision products of less come to subnormals, which are slow
LEAST_SINGLE = 1e-10
# curvature of a bias with a flat prior, in units of H's diagonal of ones
_FLAT = 1e-10
_INFLATION = 1e-8  # of the diagonal, where rounding has made a matrix singular


@dataclass(frozen=True)
class BorderedGram:
    """The Gram matrix of [Phi, 1] under row weights.

    Attributes
    ----------
    matrix : ndarray, shape (n_basis + 1, n_basis + 1)
        ``[Phi, 1]' W [Phi, 1]`` in column order; only the lower triangle counts.
    """

    matrix: Array

    @classmethod
    def of(cls, Phi: Array, row_weight: Array | None = None) -> "BorderedGram":
        """Return the Gram matrix of `Phi`, shape (n_obs, n_basis), by symmetric rank-k products."""
        weight = np.ones(len(Phi)) if row_weight is None else row_weight
        matrix = np.zeros((Phi.shape[1] + 1, Phi.shape[1] + 1), order="F")
        gram, root = np.zeros((Phi.shape[1], Phi.shape[1]), order="F"), np.sqrt(weight)
        for start in range(0, len(Phi), _ROWS):
            rows = slice(start, start + _ROWS)
            gram = cross_product(Phi[rows] * root[rows, None], gram)
        matrix[:-1, :-1], matrix[-1, :-1], matrix[-1, -1] = gram, weight @ Phi, weight.sum()
        return cls(matrix)

    def block(self, passive: Mask, scale: Array) -> tuple[Index, Array]:
        """Return the passive columns in some order, and their Gram matrix in units of the scales.

        Its last row is the bias, as is the last of the scales; only the lower triangle is set, in a matrix of
        its own.
        """
        columns = passive.nonzero()[0]
        every = with_bias(columns, len(passive), columns.dtype)
        return columns, lower_block(self.matrix, every, scale[every])

    def take(self, columns: Index, Phi: Any = None) -> "BorderedGram":
        """Return the Gram matrix of some columns, in ascending order."""
        every = np.append(columns, len(self.matrix) - 1)
        return BorderedGram(lower_block(self.matrix, every, np.ones(len(every))))

    def product(self, value: Array) -> Array:
        """Return the matrix times weights and bias, shape (n_basis + 1,)."""
        return blas.dsymv(1.0, self.matrix, value, lower=1)

    def widen(self) -> bool:
        """Return False: it is in double precision, see `PartialGram`."""
        return False


class PartialGram:
    """The Gram matrix of [Phi, 1] under row weights that change, on the columns that are needed.

    A step with the probit's curvature needs the Gram matrix of the weights that stay positive alone,
    and not to the last digit: its fixed point is given by the slopes, which are computed apart. So
    a row is updated only where its weight has changed by more than a tenth; `row_weight` has the weights
    that the matrix was computed with. For the same reason it may be in single precision, which halves
    the time of its products and of the factor. The methods are those of `BorderedGram`.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    single : bool
        Whether many columns are taken in single precision, as long as that suffices.
    """

    def __init__(self, Phi: Array, *, single: bool = False) -> None:
        self.Phi = Phi
        self._kind: type = np.float32 if single and Phi.shape[1] >= _SINGLE_FROM else np.float64
        self.row_weight = np.zeros(len(Phi))
        self.border = np.zeros(Phi.shape[1] + 1)
        self._forget()

    def _forget(self) -> None:
        self._columns: Index = np.empty(0, dtype=np.intp)
        self._gram: Array = np.zeros((0, 0), order="F", dtype=self._kind)

    def widen(self) -> bool:
        """Compute it again in double precision; return False where that is what it is in."""
        if self._kind is np.float64:
            return False
        self._kind = np.float64
        self._forget()
        return True

    def follow(self, row_weight: Array, passive: Mask) -> None:
        """Change to other row weights; `passive` are the columns expected to be needed."""
        change = row_weight - self.row_weight
        stale = (np.abs(change) > _STALE * row_weight).nonzero()[0]
        if len(stale) == 0:
            return
        # taking away most of what there is would leave its rounding
        if len(stale) > len(change) // 2 or self.row_weight.sum() > 10.0 * row_weight.sum():
            self._forget()
            self.row_weight = row_weight.copy()
        else:
            place = passive[self._columns].nonzero()[0]
            if len(place) < 0.9 * len(self._columns):  # leaving out the others saves real work
                self._narrow(place)
            for rows, sign in ((stale[change[stale] > 0], 1.0), (stale[change[stale] < 0], -1.0)):
                for some in np.split(rows, range(_ROWS, len(rows), _ROWS)):
                    part = self._weighted(some, self._columns, np.abs(change))
                    self._gram = cross_product(part, self._gram, sign)
            self.row_weight[stale] = row_weight[stale]
        self.border = with_bias(self.row_weight @ self.Phi, self.row_weight.sum())

    def take(self, columns: Index, Phi: Array) -> "PartialGram":
        """Keep some columns, in ascending order; `Phi` are theirs."""
        self._narrow(np.flatnonzero(np.isin(self._columns, columns)))
        self._columns = np.searchsorted(columns, self._columns)
        self.Phi, self.border = Phi, self.border[np.append(columns, -1)]
        return self

    def block(self, passive: Mask, scale: Array) -> tuple[Index, Array]:
        """Return the passive columns and their Gram matrix in units of the scales."""
        new = passive.copy()
        new[self._columns] = False
        self._extend(new.nonzero()[0])
        place = passive[self._columns].nonzero()[0]
        columns = self._columns[place]
        # relative to a diagonal of at least one these are rounding, and products of subnormals are slow
        least = SINGLE_ROUNDING if self._kind is np.float32 else 0.0
        out = lower_block(self._gram, place, scale[columns], room=1, least=least)
        every = with_bias(columns, len(passive), columns.dtype)
        out[-1] = self.border[every] * scale[every] * scale[-1]
        return columns, out

    def product(self, value: Array) -> Array:
        """Return the matrix times weights and bias, shape (n_basis + 1,)."""
        out = self.border * value[-1]
        out[-1] += self.border[:-1] @ value[:-1]
        out[:-1] += (self.row_weight * (self.Phi @ value[:-1])) @ self.Phi
        return out

    def _narrow(self, place: Index) -> None:
        self._gram = lower_block(self._gram, place, np.ones(len(place)))
        self._columns = self._columns[place]

    def _extend(self, new: Index) -> None:
        """Add columns: rows at the bottom of the lower triangle."""
        if len(new) == 0:
            return
        k, n = len(self._columns), len(self._columns) + len(new)
        below: Array = np.zeros((n - k, k), order="F", dtype=self._kind)
        corner: Array = np.zeros((n - k, n - k), order="F", dtype=self._kind)
        gemm = _GEMM[below.dtype.char]
        for start in range(0, len(self.Phi), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(self.Phi)))
            part = self._weighted(rows, new, self.row_weight)
            corner = cross_product(part, corner)
            if k:
                old = self._weighted(rows, self._columns, self.row_weight)
                below = gemm(1.0, part.T, old.T, trans_b=1, beta=1.0, c=below, overwrite_c=1)
        if k:
            out: Array = np.zeros((n, n), order="F", dtype=self._kind)
            out[:k, :k], out[k:, :k], out[k:, k:] = self._gram, below, corner
            corner = out
        self._gram, self._columns = corner, np.append(self._columns, new)

    def _weighted(self, rows: Index, columns: Index, weight: Array) -> Array:
        """Return some rows and columns times the roots of the rows' weights."""
        out: Array = np.empty((len(rows), len(columns)), dtype=self._kind)
        least = LEAST_SINGLE if self._kind is np.float32 else 0.0
        _fill_rows(out, self.Phi, (rows, columns), np.sqrt(weight[rows]), least)
        return out


type Gram = BorderedGram | PartialGram


def with_bias(value: NDArray[Any], bias: Any, dtype: Any = float) -> NDArray[Any]:
    """Return values of the weights and that of the bias: `np.append`, in a third of its time."""
    out = np.empty(len(value) + 1, dtype)
    out[:-1], out[-1] = value, bias
    return out


def cross_product(A: Array, total: Array, sign: float = 1.0) -> Array:
    """Add the lower triangle of A'A to `total`, in place (either memory order, no copy), and return it."""
    if A.shape[1] == 0:
        return total
    operand, trans = (A.T, 0) if A.flags.c_contiguous else (A, 1)
    syrk = _SYRK[A.dtype.char]
    return syrk(sign, operand, trans=trans, lower=1, beta=1.0, c=total, overwrite_c=1)


def with_constant(Phi: Array) -> Array:
    """Return [Phi, 1], shape (n_obs, n_basis + 1): basis functions, and the column of a bias."""
    return np.column_stack([Phi, np.ones(len(Phi), Phi.dtype)])


def add_products(H: Array, designs: list[Any], hessian: Array) -> None:
    """Add J' W J to the lower triangle of H.

    `designs` has the columns of J for each score, `hessian` minus the rows' second derivatives W, shape
    (n_rows, n_scores, n_scores).
    """
    ends = np.cumsum([0, *(design.shape[1] for design in designs)])
    for c, design in enumerate(designs):
        for k, other in enumerate(designs[: c + 1]):
            block = H[ends[c] : ends[c + 1], ends[k] : ends[k + 1]]
            weight = hessian[:, c, k, None].astype(design.dtype, copy=False)
            if c == k and weight.min(initial=0.0) >= 0.0:  # NumPy takes a symmetric product here
                root = design * np.sqrt(weight)
                block += (root.T @ root).T
            else:
                block += (design * weight).T @ other


@jit
def lower_block(
    gram: Array, columns: Index, scale: Array, room: int = 0, least: float = 0.0
) -> Array:
    """Return scale gram[columns, columns] scale, with room for more rows and columns at the end.

    Columns ascend, matrices are in column order, and of both the lower triangle counts alone. Values below
    `least` are zeros. In one pass: NumPy's copies and products took as long as the factor of 400 columns.
    """
    size = len(columns) + room
    out = np.zeros((size, size), gram.dtype).T
    for j in range(len(columns)):
        column, column_scale = columns[j], scale[j]
        for i in range(j, len(columns)):
            # unsigned spares a test whether a number counts from the end: a third of the time
            value = gram[np.uintp(columns[i]), column] * scale[i] * column_scale
            out[i, j] = value if abs(value) >= least else 0.0
    return out


@jit
def _fill_rows(
    out: Array, Phi: Array, where: tuple[Index, Index], root: Array, least: float
) -> None:
    """Take rows and columns times the roots of the rows' weights, in one pass."""
    rows, columns = where
    for i in range(len(rows)):
        for j in range(len(columns)):
            value = Phi[rows[i], np.uintp(columns[j])] * root[i]
            out[i, j] = value if abs(value) >= least else 0.0


class QuadraticModel:
    """H = Phi' W Phi + A at a mode, over the weights in the model and the biases.

    The values are those of finite precision, score by score, each score's bias last, in units of the
    prior's standard deviations: H has the identity in place of A there. `over` gives the rows.

    Parameters
    ----------
    weight : ndarray, shape (n_basis, n_scores)
    bias : ndarray, shape (n_scores,)
    precision : ndarray, shape (n_basis, n_scores)
        Of the weights' normal prior, for instance E[precision | weight]; infinite leaves a weight out.
    bias_precision : ndarray, shape (n_scores,)
        Zero for a flat prior, infinite leaves the bias out.

    Attributes
    ----------
    columns : list of ndarray of int
        Bases in the model, for each score.
    has_bias : ndarray of bool, shape (n_scores,)
    ends : ndarray of int, shape (n_scores + 1,)
        Where each score's values begin, and the end of the last.
    scale : ndarray, shape (n_values,)
        The prior's standard deviations, ones where it is flat.
    value : ndarray, shape (n_values,)
        The mode in units of `scale`.
    factor : ndarray, shape (n_values, n_values)
        Lower triangular L with L L' = H; set by `over`.
    """

    factor: Array

    def __init__(self, weight: Array, bias: Array, precision: Array, bias_precision: Array) -> None:
        self.weight, self.bias = weight, bias
        self.columns = [np.flatnonzero(np.isfinite(column)) for column in precision.T]
        self.has_bias = np.isfinite(bias_precision)
        self.ends = np.cumsum([0, *(np.isfinite(precision).sum(axis=0) + self.has_bias)])
        ridge = self.pack(precision, bias_precision)
        self.is_ridged = ridge > 0
        self.scale = 1.0 / np.sqrt(np.where(self.is_ridged, ridge, 1.0))
        self.value = self.pack(weight, bias) / self.scale

    def over(self, blocks: Iterable[tuple[Array, ObservedRows]]) -> Self:
        """Return the model itself, factored, with the curvature of the rows in blocks: bases and targets."""
        H = np.zeros((len(self.value), len(self.value)), order="F")
        self.factor = H
        if not len(H):  # an empty model without a bias
            return self
        for Phi, observed in blocks:
            latent = Phi @ self.weight + self.bias
            latent = latent[:, 0] if latent.shape[1] == 1 else latent
            add_products(H, self.designs(Phi), observed.hessian(latent))
        H[np.diag_indices(len(H))] += np.where(self.is_ridged, 1.0, _FLAT)
        self.factor, failed = lapack.dpotrf(H, lower=1)
        if failed:  # a flat bias where every row is certain, and rounding
            H[np.diag_indices(len(H))] += _INFLATION * max(1.0, float(H.diagonal().max()))
            self.factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)
        return self

    def part(self, c: int) -> slice:
        """Return which values are a score's."""
        return slice(int(self.ends[c]), int(self.ends[c + 1]))

    def pack(self, weight: Array, bias: Array) -> Array:
        """Return the values, shape (n_values, ...), of arrays (n_basis, n_scores, ...), (n_scores, ...)."""
        parts = []
        for c, columns in enumerate(self.columns):
            parts += [weight[columns, c], bias[c][None][: int(self.has_bias[c])]]
        return np.concatenate(parts)

    def unpack(self, values: Array, weight: Array, bias: Array) -> None:
        """Write values into arrays of shape (n_basis, n_scores, ...) and (n_scores, ...)."""
        for c, columns in enumerate(self.columns):
            part = values[self.part(c)]
            weight[columns, c] = part[: len(columns)]
            if self.has_bias[c]:
                bias[c] = part[-1]

    def designs(self, Phi: Array) -> list[Array]:
        """Return the design of each score at some rows, times `scale`; the last column is the bias'."""
        out = []
        for c, columns in enumerate(self.columns):
            design = np.column_stack([Phi[:, columns], np.ones((len(Phi), int(self.has_bias[c])))])
            design *= self.scale[self.part(c)]
            out.append(design)
        return out

    @cached_property
    def root(self) -> Array:
        """L^-1, lower triangular; L^-1' L^-1 is the covariance in units of `scale`."""
        return lapack.dtrtri(self.factor, lower=1)[0] if len(self.factor) else self.factor

    @cached_property
    def inverse(self) -> Array:
        """H^-1, shape (n_values, n_values)."""
        lower = np.tril(lapack.dlauum(self.root, lower=1)[0])
        return lower + np.tril(lower, -1).T

    def solved(self, c: int, design: Array) -> Array:
        """Return L^-1 J' of some rows' columns of a score, without the zeros above."""
        part = self.part(c)
        top = blas.dtrmm(1.0, self.root[part, part], design.T, lower=1)
        if part.stop == len(self.root):
            return top
        return np.concatenate([top, self.root[part.stop :, part] @ design.T])

    def latent(self, Phi: Array) -> tuple[Array, Array]:
        """Return mean, shape (n, n_scores), and covariance, shape (n, n_scores, n_scores), at new rows."""
        columns = [self.solved(c, design) for c, design in enumerate(self.designs(Phi))]
        out = np.empty((len(Phi), len(columns), len(columns)))
        for i, column in enumerate(columns):
            for j, other in enumerate(columns[: i + 1]):
                n = min(len(column), len(other))  # without the zeros above
                parts = column[len(column) - n :], other[len(other) - n :]
                out[:, i, j] = out[:, j, i] = np.einsum("ij,ij->j", *parts)
        return Phi @ self.weight + self.bias, out
