"""Candidate basis functions as columns of unit norm: in memory, streamed in blocks, or of rows elsewhere."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pcvm_pymc.core.design import BasisFunctions, Chunk, StreamedDesign, row_blocks
from pcvm_pymc.core.evidence.active_set import (
    Index,
    Model,
    Place,
    WeightPosterior,
    half_log_det_of,
    newton,
    posterior,
    sum_of_squares,
)
from pcvm_pymc.core.evidence.rank_one import TINY
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import blas_thread_count, one_blas_thread
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.problem import ObservedRows

_LEAST_SQUARE = 1e-280  # norm of a column that counts: below, variances of weights overflow
_VALUES = 2**16  # of a block that is squared: it fits into the cache
_ROWS, _COLUMNS = 2048, 1024  # of a streamed block: larger ones are no faster
_COPIES = 3  # of the candidates' columns: themselves, weighted, and LAPACK's
_CANDIDATES = 64  # columns that a memory limit has to have room for
_LOST = 1e-4  # share of phi' B phi: a difference that is smaller has lost four digits or more
_BLOCK = 512  # columns whose values at all rows are in memory at a time


@dataclass(frozen=True)
class ComputedBases:
    """Basis functions that are computed when needed, given as `EvidenceProblem.Phi` in place of an array.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
        In memory, or mapped from a file.
    centres : ndarray, shape (n_basis, n_features)
    kernel : KernelPiece
    memory_limit : float
        Bytes for blocks of basis functions and the columns of 64 candidates; the columns of the relevance
        vectors are not counted.

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
                f"{_CANDIDATES} candidate bases are kept; needed at least {1.005 * needed:.3g}: give that"
            )

    @staticmethod
    def least_bytes(n_obs: int) -> float:
        """Return the smallest limit for so many rows."""
        return 8.0 * (_COPIES * _CANDIDATES * n_obs + _CANDIDATES**2)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_obs, n_basis)."""
        return len(self.X), len(self.centres)


def squares(Phi: Array, row_weight: Array | None) -> Array:
    """Return the squared norm of each column, rows counting by their weights."""
    return np.einsum("ij,ij->j", times_weight(row_weight, Phi), Phi)


def norms(square: Array) -> Array:
    """Return the roots of squared norms, infinite where they are too small."""
    return np.where(square > _LEAST_SQUARE, np.sqrt(square), np.inf)


class RowColumns:
    """Columns of unit norm of rows at hand: the posterior of some, and a scan of all.

    Subclasses have `shape`, (n_obs, n_columns), and the methods `take`, `products` and `for_each_block`.
    """

    shape: tuple[int, int]
    row_weight: Array | None
    take: Any
    products: Any
    for_each_block: Any

    def among(self, some: Index) -> "DenseColumns":
        """Return some of the columns, in memory."""
        return DenseColumns(self.take(some), None, self.row_weight)

    def posterior(self, model: Model, observed: ObservedRows) -> WeightPosterior:
        """Return the posterior of the columns in a model, by Newton's method from its mean."""
        index, alpha, mean = model
        return posterior(self.take(index), alpha, observed, mean)

    def scan(self, index: Index, end: WeightPosterior) -> tuple[Array, Array, Array | None]:
        """Return S and Q of all columns at a posterior of some of them, see `ActiveSet`."""
        Phi, root = self.take(index), np.sqrt(end.curvature)
        S, Q = np.empty(self.shape[1]), np.empty(self.shape[1])
        upper, lower = end.orthogonal(Phi)
        left = np.column_stack([root[:, None] * upper, end.score])

        def scan(place: Index) -> None:
            U, square = self.products(left, end.curvature, place)
            S_here = square - np.einsum("ij,ij->j", U[:-1], U[:-1])
            lost = np.flatnonzero(_LOST * np.maximum(square, TINY) >= S_here)
            for some in row_blocks(len(lost), _BLOCK):
                weighted = root[:, None] * self.take(place[lost[some]])
                S_here[lost[some]] = sum_of_squares((upper, lower), weighted)
            S[place], Q[place] = S_here, U[-1]

        self.for_each_block(scan)
        return S, Q, None


class DenseColumns(RowColumns):
    """All basis functions in memory, after a constant if there is one, each divided by its norm when used.

    Attributes
    ----------
    norm : ndarray, shape (n_columns,)
        What columns are divided by, infinite where they count as zeros.
    square : ndarray, shape (n_columns,)
        Squared norms after that: ones and zeros.
    """

    def __init__(self, Phi: Array, constant: Array | None, row_weight: Array | None = None) -> None:
        first = np.empty((len(Phi), 0)) if constant is None else constant[:, None]
        square = np.append(*(squares(part, row_weight) for part in (first, Phi)))
        self.Phi, self.constant, self.norm = Phi, first, norms(square)
        self.row_weight = row_weight
        self.shape, self.square = (len(Phi), len(square)), np.isfinite(self.norm).astype(float)

    def take(self, place: Index) -> Array:
        """Return the columns at given places, shape (n_obs, n_some)."""
        first = self.constant.shape[1]
        out, of_basis = np.empty((self.shape[0], len(place)), order="F"), place >= first
        out[:, of_basis] = self.Phi[:, place[of_basis] - first]
        out[:, ~of_basis] = self.constant
        out /= self.norm[place]
        return out

    def products(self, left: Array, weight: Array, place: Index) -> tuple[Array, Array]:
        """Return inner products with vectors, and ``phi' diag(weight) phi``, of all columns."""
        U = np.hstack([left.T @ self.constant, left.T @ self.Phi]) / self.norm
        if self.row_weight is None and weight.min() == weight.max():
            return U, weight[0] * self.square
        square = np.zeros(self.Phi.shape[1])
        for rows in row_blocks(len(self.Phi), max(1, _VALUES // max(1, len(square)))):
            square += weight[rows] @ np.square(self.Phi[rows])
        return U, np.append(weight @ np.square(self.constant), square) / self.norm**2

    def for_each_block(self, function: Callable[[Index], None]) -> None:
        """Call a function with the places of all columns."""
        function(np.arange(self.shape[1]))


class StreamedColumns(RowColumns):
    """Columns of unit norm that are computed in blocks when needed, of `ComputedBases` and a constant.

    Attributes
    ----------
    norm : ndarray, shape (n_columns,)
        What they are divided by, infinite where they count as zeros.
    """

    def __init__(self, bases: ComputedBases, bias: bool, row_weight: Array | None = None) -> None:
        self.bases, self.first, self.row_weight = bases, int(bias), row_weight
        self.shape = len(bases.X), bases.shape[1] + self.first
        square = np.zeros(self.shape[1])

        def add(place: Index) -> None:
            for rows, Phi in self.tiles(place):
                square[place] += squares(Phi, None if row_weight is None else row_weight[rows])

        self.for_each_block(add)
        self.norm = norms(square)

    def take(self, place: Index) -> Array:
        """Return the columns of given indices, shape (n_obs, n_some)."""
        out = np.empty((self.shape[0], len(place)), order="F")
        for rows, Phi in self.tiles(place):
            np.divide(Phi, self.norm[place], out=out[rows])
        return out

    def tiles(self, place: Index) -> Iterator[tuple[slice, Array]]:
        """Yield some columns, not divided by their norms, in blocks of rows."""
        number = place - self.first
        of_basis = number >= 0
        basis = BasisFunctions(self.bases.centres[number[of_basis]], self.bases.kernel)
        for rows in row_blocks(self.shape[0], min(_ROWS, self.shape[0])):
            X = np.asarray(self.bases.X[rows], dtype=float)
            if len(number) and of_basis.all():
                Phi = basis(X)
            else:
                Phi = np.ones((len(X), len(number)))
                if of_basis.any():
                    Phi[:, of_basis] = basis(X)
            yield rows, Phi

    def products(self, left: Array, weight: Array, place: Index) -> tuple[Array, Array]:
        """Return inner products with vectors, and ``phi' diag(weight) phi``, of some columns."""
        U, square = np.zeros((left.shape[1], len(place))), np.zeros(len(place))
        for rows, Phi in self.tiles(place):
            U += left[rows].T @ Phi
            square += weight[rows] @ np.square(Phi, out=Phi)
        return U / self.norm[place], square / self.norm[place] ** 2

    def for_each_block(self, function: Callable[[Index], None]) -> None:
        """Call a function with the places of some columns at a time, on as many threads as BLAS has."""
        n_jobs = blas_thread_count()
        # a block, its squares, and what is left over
        most = self.bases.memory_limit / (32.0 * n_jobs * min(_ROWS, self.shape[0]))
        size = max(1, min(_COLUMNS, int(most)))
        places = [np.arange(some.start, some.stop) for some in row_blocks(self.shape[1], size)]
        with one_blas_thread(), ThreadPoolExecutor(n_jobs) as pool:
            list(pool.map(function, places))


# --- distributed rows -----------------------------------------------------------------------


@dataclass(frozen=True)
class Triangle:
    """Log likelihood and triangular factor of rows at given weights; those of parts are added by ``+``.

    Attributes
    ----------
    log_likelihood : float
    factor : ndarray, shape (n_columns + 1 at most, n_columns + 1)
        Triangular factor of ``[sqrt(B) Phi, g / sqrt(B)]``, with g and B the slopes and curvatures of the
        rows' log likelihoods: it has all inner products under B, with the digits of the rows.
    """

    log_likelihood: float
    factor: Array

    def __add__(self, other: "Triangle") -> "Triangle":
        factor = np.linalg.qr(np.vstack([self.factor, other.factor]), mode="r")
        return Triangle(self.log_likelihood + other.log_likelihood, factor)


@dataclass(frozen=True)
class SummedColumns:
    """Columns of unit norm of distributed rows, as on Dask: each pass over them returns a `Triangle`.

    Attributes
    ----------
    design : StreamedDesign
    likelihood : Likelihood
    number : ndarray of int, shape (n_columns,)
        Of the centres; -1 is a constant.
    norm : ndarray, shape (n_columns,)
        What columns are divided by, infinite where they count as zeros.
    weight : ndarray, shape (n_columns,)
        Where a pass is asked for the triangle.
    """

    design: StreamedDesign
    likelihood: Likelihood
    number: Index
    norm: Array
    weight: Array

    @classmethod
    def of(cls, design: StreamedDesign, likelihood: Likelihood, bias: bool) -> "SummedColumns":
        """Return all columns, after a constant if there is one; a pass over the rows gives their norms."""
        n_basis = len(design.centres)
        at = np.zeros((n_basis, 1)), np.zeros(1)
        square = design.sums(at, likelihood.terms, gram="unit").gram.diagonal()
        number = np.arange(-int(bias), n_basis)
        return cls(design, likelihood, number, norms(square[number]), np.zeros(len(number)))

    @property
    def shape(self) -> tuple[int, int]:
        """(n_obs, n_columns)."""
        return self.design.shape[0], len(self.number)

    def among(self, some: Index) -> "SummedColumns":
        """Return some of the columns."""
        number, norm, weight = self.number[some], self.norm[some], self.weight[some]
        return replace(self, number=number, norm=norm, weight=weight)

    def posterior(self, model: Model, observed: ObservedRows) -> WeightPosterior:
        """Return the posterior of the columns in a model: Newton's method, a pass over the rows each point.

        Latent values stay where the rows are: the posterior has none, and as slopes and curvatures those of
        the triangular factor.
        """
        index, alpha, mean = model
        some, scale = self.among(index), 1.0 / np.sqrt(alpha)

        def at(v: Array) -> Place:
            triangle = some.triangle(scale * v)
            T, value = triangle.factor, triangle.log_likelihood - 0.5 * float(v @ v)
            return Place(v, np.empty(0), T[:, :-1] * scale, T[:, -1], np.ones(len(T)), value)

        end, R = newton(at(mean / scale), lambda old, step, share: at(old.v + share * step))
        value = end.value - half_log_det_of(R)
        return WeightPosterior(scale * end.v, R, alpha, end.latent, end.score, end.curvature, value)

    def scan(self, index: Index, end: WeightPosterior) -> tuple[Array, Array, Array | None]:
        """Return S and Q of all columns at a posterior of some of them, and all in the triangular factor."""
        weight = np.zeros(self.shape[1])
        weight[index] = end.mean
        T = self.triangle(weight).factor
        rows, end = T[:, :-1], replace(end, curvature=np.ones(len(T)))
        return sum_of_squares(end.orthogonal(rows[:, index]), rows), T[:, -1] @ rows, rows

    def triangle(self, weight: Array) -> Triangle:
        """Return log likelihood and triangular factor of the rows at given weights of the columns."""
        some = self.number[self.number >= 0]
        number = np.where(self.number < 0, -1, np.cumsum(self.number >= 0) - 1)
        design = replace(self.design, rows=None, centres=self.design.centres[some])
        asked = replace(self, design=design, number=number, weight=weight)
        triangle: Triangle = self.design.rows.sums(asked)
        return triangle

    def over(self, chunks: Iterable[Chunk]) -> Triangle:
        """Return the triangle of chunks of rows."""
        basis, of_basis = BasisFunctions(self.design.centres, self.design.kernel), self.number >= 0
        value, R = 0.0, np.empty((0, len(self.number) + 1))
        for X, label, row_weight in chunks:
            both = np.vstack([R, np.ones((len(X), R.shape[1]))])
            Phi, slope = both[len(R) :, :-1], both[len(R) :, -1]
            if of_basis.any():
                Phi[:, of_basis] = basis(X)
            Phi /= self.norm
            latent, observed = Phi @ self.weight, ObservedRows(self.likelihood, label, row_weight)
            root = np.sqrt(observed.curvature(latent))
            value += observed.log_likelihood(latent)
            slope[:] = observed.score(latent) / root.clip(TINY)
            Phi *= root[:, None]
            R = np.linalg.qr(both, mode="r")
        return Triangle(value, R)


type Columns = DenseColumns | StreamedColumns | SummedColumns
