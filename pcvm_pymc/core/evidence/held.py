"""Bases that are held in memory, seen as columns of unit norm without a second matrix of their size."""

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.design import row_blocks
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["MOST_FEW", "FewColumns", "HeldColumns"]

type Index = NDArray[np.int64]

MOST_FEW = 128  # columns whose inner products are all taken at once
_SAFE = 1e-200, 1e200  # squares of norms between which no digit is lost
_VECTORS = (
    3  # up to which products with vectors take less time than with a matrix, which BLAS copies
)
_VALUES = 2**16  # of a block whose squares are taken: it stays in the cache


class HeldColumns:
    """All bases, and a constant before them, each to be divided by its norm where it is used.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        As it was given.
    constant : ndarray, shape (n_obs, first)
        The column before it, or none.
    norm : ndarray, shape (n_columns,)
        What columns are divided by; one for a column of zeros.
    square : ndarray, shape (n_columns,)
        Squared norms after that: ones, and zeros.
    """

    def __init__(self, Phi: Array, constant: Array, norm: Array, square: Array) -> None:
        self.Phi, self.constant, self.norm, self.square = Phi, constant, norm, square
        self._rows: dict[int, Array] = {}
        self._target: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, Phi: Array, constant: Array | None) -> "HeldColumns | None":
        """Return the columns; None where the square of a norm would overflow or vanish.

        Parameters
        ----------
        Phi : ndarray, shape (n_obs, n_basis)
        constant : ndarray, shape (n_obs,), optional
        """
        first = np.empty((len(Phi), 0)) if constant is None else constant[:, None]
        with np.errstate(over="ignore"):
            square = np.concatenate([np.einsum("ij,ij->j", each, each) for each in (first, Phi)])
        odd = np.flatnonzero(~((square > _SAFE[0]) & (square < _SAFE[1])))
        if len(odd):
            if square[odd].any() or Phi[:, odd - first.shape[1]].any():
                return None
            square[odd] = 1.0
        is_there = np.ones(len(square))
        is_there[odd] = 0.0
        kind = FewColumns if len(square) <= MOST_FEW else cls
        return kind(Phi, first, np.sqrt(square), is_there)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_obs, n_columns)."""
        return len(self.Phi), len(self.norm)

    def __getitem__(self, key: tuple[slice, Index]) -> Array:
        """Return some columns, shape (n_obs, n_some); all rows, and columns by their numbers."""
        _, number = key
        first = self.constant.shape[1]
        if not first:
            some = self.Phi[:, number]
        else:
            some = np.empty((len(self.Phi), len(number)))
            of_basis = number >= first
            some[:, of_basis] = self.Phi[:, number[of_basis] - first]
            some[:, ~of_basis] = self.constant
        return np.divide(some, self.norm[number], out=np.empty(some.shape, order="F"))

    def products(self, left: Array) -> Array:
        """Return inner products of some vectors with all columns, shape (n_some, n_columns).

        Parameters
        ----------
        left : ndarray, shape (n_obs, n_some)
        """
        if 0 < left.shape[1] <= _VECTORS:
            out = np.stack([each @ self.Phi for each in left.T])
        else:
            out = left.T @ self.Phi
        if self.constant.shape[1]:
            out = np.concatenate([left.T @ self.constant, out], axis=1)
        out /= self.norm
        return out

    def cross(self, number: Index) -> Array:
        """Return inner products of some columns with all; those asked for last time are known.

        Parameters
        ----------
        number : ndarray of int, shape (n_some,)
        """
        numbers = number.tolist()
        new = [each for each in numbers if each not in self._rows]
        if new:
            some = self.products(self[:, np.array(new)])
            self._rows.update(zip(new, some, strict=True))
        rows = {each: self._rows[each] for each in numbers}
        self._rows = rows
        return np.array(list(rows.values())).reshape(len(numbers), len(self.norm))

    def with_target(self, target: Array) -> Array:
        """Return inner products of the targets with all columns, shape (n_columns,); computed once."""
        if self._target is None or self._target[0] is not target:
            self._target = target, self.products(target[:, None])[0]
        return self._target[1]

    def weighted_squares(self, curvature: Array) -> Array:
        """Return phi' B phi of each column, B the rows' curvature."""
        if curvature.min() == curvature.max():
            return curvature[0] * self.square
        whole = np.zeros(self.Phi.shape[1])
        for rows in row_blocks(len(self.Phi), max(1, _VALUES // max(1, len(whole)))):
            whole += curvature[rows] @ np.square(self.Phi[rows])
        first = curvature @ np.square(self.constant)
        return np.concatenate([first, whole]) / self.norm**2


class FewColumns(HeldColumns):
    """So few columns that a copy of unit norm and all their inner products take less time than calls."""

    def __init__(self, Phi: Array, constant: Array, norm: Array, square: Array) -> None:
        super().__init__(Phi, constant, norm, square)
        columns = np.empty(self.shape, order="F")
        first = self.constant.shape[1]
        columns[:, :first] = self.constant
        columns[:, first:] = self.Phi
        columns /= self.norm
        self.columns, self.gram = columns, columns.T @ columns

    def __getitem__(self, key: tuple[slice, Index]) -> Array:
        """Return some columns, shape (n_obs, n_some)."""
        _, number = key
        return self.columns[:, number] if len(number) < len(self.norm) else self.columns

    def products(self, left: Array) -> Array:
        """Return inner products of some vectors with all columns, shape (n_some, n_columns)."""
        out: Array = left.T @ self.columns
        return out

    def cross(self, number: Index) -> Array:
        """Return inner products of some columns with all."""
        return self.gram[number]

    def among(self, number: Index) -> Array:
        """Return inner products of some columns with each other."""
        return self.gram[np.ix_(number, number)] if len(number) < len(self.norm) else self.gram
