"""Bases that are computed when they are needed: candidates too many for their columns to be held."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.rows import BasisFunctions, row_blocks
from pcvm_pymc.core.evidence.posterior import Basis, Posterior, sum_of_squares
from pcvm_pymc.core.evidence.spanned import Span, span_of
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import blas_thread_count, one_blas_thread

__all__ = ["ComputedBases", "ComputedColumns"]

type Index = NDArray[np.int64]

_ROWS, _COLUMNS = 2048, 1024  # of a block: more at a time are no faster
_HELD = 3  # columns at hand, their weighted copy, and what LAPACK makes of them
_AT_HAND = 64  # columns at least
_FAINT = 1e-140  # whose square has lost digits
_NEAR = 1e-2  # least norm of a basis function whose digits its factors tell; at a row it is one
_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class ComputedBases:
    """Basis functions at rows that are never held whole, in the place of `EvidenceProblem.Phi`.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
        In memory, or mapped from a file.
    centres : ndarray, shape (n_basis, n_features)
    kernel : KernelPiece
    memory_limit : float
        Bytes for blocks of basis functions and the columns of 64 candidates; those in the model come
        beside.

    Raises
    ------
    ValueError
        If the limit is too small.
    """

    X: Array
    centres: Array
    kernel: KernelPiece
    memory_limit: float

    def __post_init__(self) -> None:
        needed = self.least_bytes(len(self.X))
        if not self.memory_limit >= needed:
            raise ValueError(
                f"memory_limit={self.memory_limit:.3g} bytes is too small for {len(self.X)} rows, of which "
                f"{_AT_HAND} candidate bases are held; needed at least {needed:.3g}: give a larger limit"
            )

    @staticmethod
    def least_bytes(n_obs: int) -> float:
        """Return the least limit for so many rows."""
        return 8.0 * (_HELD * _AT_HAND * n_obs + _AT_HAND**2)

    def span(self) -> Span | None:
        """Return factors of all bases, in at most half of the memory; None where few do not span them."""
        room = min(self.memory_limit / 2.0, self.memory_limit - self.least_bytes(len(self.X)))
        return span_of(self.X, self.centres, self.kernel, room)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_obs, n_basis)."""
        return len(self.X), len(self.centres)

    @property
    def n_rows(self) -> int:
        """How many rows are computed at a time."""
        return min(_ROWS, len(self.X))

    def n_columns(self, n_jobs: int) -> int:
        """Return how many columns are computed at a time by each of some threads."""
        # a block, its squares, and what is left over
        most = self.memory_limit / (32.0 * n_jobs * self.n_rows)
        return max(1, min(_COLUMNS, int(most)))


@dataclass(frozen=True)
class ComputedColumns:
    """Some of the bases, and a constant, as columns of unit norm that are computed when needed.

    Attributes
    ----------
    bases : ComputedBases
    bias : bool
        Whether column 0 is the constant, and column j basis j - 1.
    number : ndarray of int, shape (n_columns,)
        Which of all columns these are, ascending.
    norm : ndarray, shape (n_columns,)
        What they are divided by, infinite for zeros.
    span : Span or None
        Factors of all bases, where few span them to rounding: a look then computes none.
    """

    bases: ComputedBases
    bias: bool
    number: Index
    norm: Array
    span: Span | None = None

    @classmethod
    def of(cls, bases: ComputedBases, bias: bool) -> "ComputedColumns":
        """Return all columns, each divided by its norm."""
        n_columns = bases.shape[1] + int(bias)
        raw = cls(bases, bias, np.arange(n_columns), np.ones(n_columns))
        return raw._spanned() or replace(raw, norm=raw._norms())

    @property
    def shape(self) -> tuple[int, int]:
        """(n_obs, n_columns)."""
        return len(self.bases.X), len(self.number)

    def __getitem__(self, key: tuple[slice, Index]) -> Array:
        """Return some columns whole, shape (n_obs, n_some); all rows, and columns by their numbers."""
        _, place = key
        out = np.empty((self.shape[0], len(place)), order="F")
        for rows, Phi in self.tiles(place):
            np.divide(Phi, self.norm[place], out=out[rows])
        return out

    def taken(self, place: Index) -> "ComputedColumns":
        """Return some of the columns, not computed."""
        return replace(self, number=self.number[place], norm=self.norm[place])

    def tiles(self, place: Index) -> Iterator[tuple[slice, Array]]:
        """Yield some columns, not divided by their norms, block after block of rows."""
        number, first = self.number[place], int(self.bias)
        of_basis = number >= first
        basis = BasisFunctions(self.bases.centres[number[of_basis] - first], self.bases.kernel)
        for rows in row_blocks(self.shape[0], self.bases.n_rows):
            X = np.asarray(self.bases.X[rows], dtype=float)
            if of_basis.all() and len(number):
                Phi = basis(X)
            else:
                Phi = np.ones((len(X), len(number)))
                if of_basis.any():
                    Phi[:, of_basis] = basis(X)
            yield rows, Phi

    def prices(self, basis: Basis, end: Posterior, lost: float) -> tuple[Array, Array]:
        """Return S and Q of every column, as for a design that is held.

        Parameters
        ----------
        basis : Basis
        end : Posterior
        lost : float
            Share of ``phi' B phi`` below which S is a sum of squares.
        """
        if self.span is not None:
            return self._spanned_prices(self.span, basis, end)
        S, Q = np.empty(self.shape[1]), np.empty(self.shape[1])
        root = np.sqrt(end.curvature)
        left = np.column_stack([basis.upper * root[:, None], end.score])
        even = end.curvature.min() == end.curvature.max()  # all norms are one

        def price(place: Index) -> None:
            U, whole = np.zeros((left.shape[1], len(place))), np.zeros(len(place))
            for rows, Phi in self.tiles(place):
                U += left[rows].T @ Phi
                whole += end.curvature[rows] @ np.square(Phi, out=Phi) if not even else 0.0
            U /= self.norm[place]
            whole /= self.norm[place] ** 2
            if even:
                whole = end.curvature[0] * np.isfinite(self.norm[place])
            S[place], Q[place] = whole - np.einsum("ij,ij->j", U[:-1], U[:-1]), U[-1]
            spoilt = np.flatnonzero(S[place] / whole.clip(_TINY) <= lost)
            for some in self._few(spoilt):
                weighted = root[:, None] * self[:, place[some]]
                S[place[some]] = sum_of_squares(basis, weighted, U[:-1, some])

        self._for_each_block(price)
        return S, Q

    def _few(self, place: Index) -> Iterator[Index]:
        """Yield some columns at a time, which may be held whole."""
        size = max(1, int(self.bases.memory_limit / (32.0 * self.shape[0])))
        for some in row_blocks(len(place), size):
            yield place[some]

    def _for_each_block(self, function: Callable[[Index], None]) -> None:
        """Call a function with the places of some columns at a time, on as many threads as BLAS has."""
        n_jobs = blas_thread_count()
        size = self.bases.n_columns(n_jobs)
        places = [np.arange(some.start, some.stop) for some in row_blocks(self.shape[1], size)]
        if n_jobs == 1:
            for place in places:
                function(place)
            return
        with one_blas_thread(), ThreadPoolExecutor(n_jobs) as pool:
            list(pool.map(function, places))

    def _spanned_prices(self, span: Span, basis: Basis, end: Posterior) -> tuple[Array, Array]:
        """Return S, a sum of squares, and Q of every column by the columns' factors."""
        S, Q = np.empty(self.shape[1]), np.empty(self.shape[1])
        root = np.sqrt(end.curvature)
        R = span.triangle(root, basis.upper)
        shared = span.shared(np.column_stack([basis.upper * root[:, None], end.score]))
        for some, columns in self._factors(span):
            every = shared @ columns
            U, Q[some] = every[:-1], every[-1]
            S[some] = np.square(R @ np.vstack([columns, -U])).sum(axis=0)
            S[some] += np.square(basis.lower @ U).sum(axis=0)
        return S, Q

    def _spanned(self) -> "ComputedColumns | None":
        """Return all columns with factors, each divided by its norm; None where few do not span them.

        Nor where a centre is far from all rows, of whose values the factors tell too few digits.
        """
        span = self.bases.span()
        if span is None:
            return None
        n_obs = self.shape[0]
        R = span.triangle(np.ones(n_obs), np.empty((n_obs, 0)))
        norm = np.concatenate(
            [np.linalg.norm(R @ columns, axis=0) for _, columns in self._factors(span)]
        )
        if not norm.min() > _NEAR:
            return None
        bases = replace(self.bases, memory_limit=self.bases.memory_limit - span.nbytes)
        return replace(self, bases=bases, norm=norm, span=span)

    def _factors(self, span: Span) -> Iterator[tuple[slice, Array]]:
        """Yield the factors of some columns at a time, divided by the columns' norms."""
        for some in row_blocks(self.shape[1], _ROWS):
            number = self.number[some] - int(self.bias)
            yield some, span.factors(number) / self.norm[some]

    def _norms(self) -> Array:
        """Return the columns' norms, infinite for one of zeros."""
        square, size = np.zeros(self.shape[1]), np.zeros(self.shape[1])

        def add(place: Index) -> None:
            for _, Phi in self.tiles(place):
                largest = np.maximum(Phi.max(axis=0), -Phi.min(axis=0))
                size[place] = np.maximum(size[place], largest)
                square[place] += np.einsum("ij,ij->j", Phi, Phi)

        self._for_each_block(add)
        faint = np.flatnonzero((size > 0) & (size < _FAINT))
        if len(faint):
            raise ValueError(
                f"basis {faint[0] - int(self.bias)} is {size[faint[0]]:.3g} at the most, at all rows: too "
                "small for its square; needed a wider kernel, other centres, or no memory_limit"
            )
        return np.where(size > 0, np.sqrt(square), np.inf)
