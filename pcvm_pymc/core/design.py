"""The design matrix Phi of basis functions at rows: a dense array, or streamed in chunks of rows.

A dense design is an ndarray, shape (n_obs, n_basis). A `StreamedDesign` computes
``Phi[i, j] = k(x_i, z_j)`` one chunk of rows at a time, from an array, a memory map or Dask, and is never
in memory as a whole: a pass over the rows gives the log likelihood, ``Phi' g`` with g the slope of each row's
log likelihood, and the Gram matrix ``Phi' W Phi``. Memory is one chunk and matrices of the size of the basis.

Used by EM, the evidence (bottom-up and computed candidates), leave-one-out, and by the estimators, whose
`Rows` may lie in arrays or on the workers of a cluster.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.kernels import RBF, KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood, RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import LARGEST_CHUNK, one_blas_thread
from pcvm_pymc.core.pieces.row_weights import against_rest, times_weight
from pcvm_pymc.core.problem import ObservedRows, Problem
from pcvm_pymc.core.quadratic import add_products, with_constant

#: where rows and labels lie: `ArrayRows`, or any class with its `n_obs`, `sums` and `against_rest`
type Rows = Any
#: inputs, targets and weights of some rows; None for weights of one
type Chunk = tuple[Array, NDArray[Any], Array | None]
#: a slice of rows, their basis functions, and what was observed
type Block = tuple[slice, Array, ObservedRows]

# rounding of ||x||^2 + ||z||^2 - 2 x'z in the exponent beyond which distances are taken one by one
_ROUNDING = {np.float64: 1e-11, np.float32: 1e-4}
# of a basis function, such that products of two are no denormal numbers
_LEAST_EXPONENT = {np.float64: -350.0, np.float32: -40.0}
_BLOCK = 4096  # rows of a dense design at a time


@dataclass(frozen=True)
class SumsRequest:
    """Sums asked of one pass over the rows, in memory or distributed: at which weights, and of which terms.

    With f = Phi w + b and g the slopes of the log likelihood in f these are log p(y | f), Phi' g, 1' g and,
    where `gram` asks for it, ``[Phi, 1]' W [Phi, 1]``.

    Attributes
    ----------
    centres : ndarray, shape (n_basis, n_features)
    kernel : KernelPiece
    weight, old_weight : ndarray, shape (n_basis, n_scores)
        Where the sums are taken, and the weights that the latent values are compared with.
    bias, old_bias : ndarray, shape (n_scores,)
    terms : callable
        ``(latent, label) -> RowTerms``, the likelihood of rows that count once.
    gram : {"none", "unit", "curvature", "coupled"}
        Which row weights a Gram matrix is wanted under; coupled: the second derivatives of `hessian`.
    single : bool
        Compute the basis functions in single precision.
    hessian : callable, optional
        ``(latent, label) -> ndarray, shape (n_rows, n_scores, n_scores)``, minus the second derivatives.
    every : int
        Of so many chunks one enters the matrix, which is scaled to represent all; every one enters the rest.
    """

    centres: Array
    kernel: KernelPiece
    weight: Array
    bias: Array
    old_weight: Array
    old_bias: Array
    terms: Callable[[Array, Any], RowTerms]
    gram: str = "none"
    single: bool = False
    hessian: Callable[[Array, Any], Array] | None = None
    every: int = 1

    def over(self, chunks: Iterable[Chunk]) -> "Sums":
        """Return the sums over chunks of rows."""
        n_basis, n_scores = self.weight.shape
        basis = BasisFunctions(self.centres, self.kernel, self.single)
        both = np.hstack([self.weight, self.old_weight]).astype(basis.type)
        log_likelihood = change = curvature = of_matrix = 0.0
        gradient, total, gram = np.zeros((n_basis, n_scores)), np.zeros(n_scores), None
        if self.gram != "none":
            size = (n_scores if self.gram == "coupled" else 1) * (n_basis + 1)
            gram = np.zeros((size, size), order="F")
        for k, (X, label, row_weight) in enumerate(chunks):
            Phi = basis(X)
            latent, old = np.split((Phi @ both).astype(float), 2, axis=1)
            latent = latent + self.bias
            change = max(change, float(np.abs(latent - old - self.old_bias).max(initial=0.0)))
            terms = self.terms(latent, label).weighted(row_weight)
            log_likelihood += terms.log_likelihood
            total += terms.slope.sum(axis=0)
            gradient += (terms.slope.T.astype(Phi.dtype) @ Phi).T
            chunk_curvature = float(terms.curvature.sum())
            curvature += chunk_curvature
            if gram is None or k % self.every:
                continue
            of_matrix += chunk_curvature
            if self.hessian is not None:
                Z = with_constant(Phi)
                hessian = times_weight(row_weight, self.hessian(latent, label))
                add_products(gram, [Z] * n_scores, hessian)
                continue
            weight = terms.curvature if self.gram == "curvature" else row_weight
            weight = np.ones(len(X)) if weight is None else weight
            gram[-1, :-1] += weight.astype(Phi.dtype) @ Phi
            gram[-1, -1] += float(weight.sum())
            Phi *= np.sqrt(weight).astype(Phi.dtype)[:, None]
            Phi[np.abs(Phi) < np.sqrt(np.finfo(Phi.dtype).tiny)] = 0.0  # products would be denormal
            # NumPy takes a symmetric rank-k product here, and unlike SciPy's it lets other threads run; in
            # single precision chunks are summed in double. Transposed: in column order
            gram[:-1, :-1] += (Phi.T @ Phi).T
        if gram is not None and curvature > of_matrix > 0:
            gram *= curvature / of_matrix
        return Sums(log_likelihood, gradient, total, change, gram)


@dataclass(frozen=True)
class Sums:
    """Sums over rows; those of parts are added by ``+``.

    Attributes
    ----------
    log_likelihood : float
    gradient : ndarray, shape (n_basis, n_scores)
        Phi' g, g the slopes of the rows' log likelihoods in their latent values: in the weights.
    total : ndarray, shape (n_scores,)
        1' g.
    change : float
        The largest change of a latent value.
    gram : ndarray, shape (n_basis + 1, n_basis + 1), optional
        ``[Phi, 1]' W [Phi, 1]`` in column order; only the lower triangle counts. Where coupled, the curvature
        of all scores' weights and biases: score by score, its bias last.
    """

    log_likelihood: float
    gradient: Array
    total: Array
    change: float
    gram: Any = None

    def __add__(self, other: "Sums") -> "Sums":
        value, gradient = self.log_likelihood + other.log_likelihood, self.gradient + other.gradient
        total, change = self.total + other.total, max(self.change, other.change)
        gram = None if self.gram is None else self.gram + other.gram
        return Sums(value, gradient, total, change, gram)


def row_blocks(n_obs: int, size: int) -> Iterator[slice]:
    """Yield the slices of at most `size` rows that make up `n_obs`."""
    for start in range(0, n_obs, size):
        yield slice(start, min(start + size, n_obs))


class BasisFunctions:
    """Basis functions at chunk after chunk, the RBF's by one matrix product each."""

    def __init__(self, centres: Array, kernel: KernelPiece, single: bool = False) -> None:
        self.given = (kernel, centres)
        self.is_fast = isinstance(kernel, RBF) and len(centres) > 0
        self.type: Any = np.float32 if single else np.float64
        if self.is_fast:
            self.origin = centres.mean(axis=0)
            centred = (centres - self.origin) / kernel.width
            self.square = np.einsum("ij,ij->i", centred, centred)
            # 2 x'z - ||x||^2 - ||z||^2 as one product, of [x, ||x||^2, 1]
            exponent = np.vstack([2.0 * centred.T, -np.ones(len(centres)), -self.square])
            self.exponent = exponent.astype(self.type)

    def __call__(self, X: Array) -> Any:
        """Return Phi of a chunk, shape (n_rows, n_basis), in a new array."""
        kernel, centres = self.given
        if self.is_fast:
            x = (X - self.origin) / kernel.width
            square = np.einsum("ij,ij->i", x, x)
            largest = square.max(initial=0.0) + self.square.max()
            if largest * np.finfo(self.type).eps < _ROUNDING[self.type]:
                extended = np.column_stack([x, square, np.ones(len(x))])
                Phi = extended.astype(self.type, copy=False) @ self.exponent
                # rounding makes a row's distance to itself negative; denormal products take ten times as long
                np.clip(Phi, _LEAST_EXPONENT[self.type], 0.0, out=Phi)
                return np.exp(Phi, out=Phi)
        return kernel(X, centres).astype(self.type, copy=False)


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array in memory, or of one mapped from a file.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
    label : ndarray, shape (n_obs,)
        What the likelihood knows them by: -1. and +1., or numbers of classes.
    chunk : int
        Rows whose basis functions are in memory at a time.
    n_jobs : int
        Threads. With more than one, each has a chunk of its own and BLAS one thread in each.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts; None for once.
    """

    X: Array
    label: Array
    chunk: int
    n_jobs: int = 1
    weight: Array | None = None

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return len(self.X)

    def some(self, rows: slice) -> Chunk:
        """Return inputs, targets and weights of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return np.asarray(self.X[rows], dtype=float), self.label[rows], weight

    def sums(self, request: Any) -> Any:
        """Return the sums of a request over all rows, added chunk by chunk."""

        def part(job: int) -> Any:  # of every n_jobs-th chunk
            places = islice(row_blocks(self.n_obs, self.chunk), job, None, self.n_jobs)
            return request.over(map(self.some, places))

        return reduce(add, _in_threads(part, self.n_jobs))

    def against_rest(self, number: int) -> "ArrayRows":
        """Return the same rows, labelled by one class against the rest."""
        return replace(self, label=against_rest(self.label, number))


@dataclass(frozen=True)
class StreamedDesign:
    """A design matrix computed in chunks of rows; given as `Problem.Phi` in place of an array.

    Attributes
    ----------
    rows : Rows
        Inputs and labels.
    centres : ndarray, shape (n_basis, n_features)
    kernel : KernelPiece
    single : bool
        Compute the basis functions in single precision; everything else stays double.
    majority : float
        -1. or +1., the larger of two classes: where EM starts the bias under an improper prior.
    coupled : bool
        Whether Newton steps of several scores may use a matrix of (bases times scores) squared.
    """

    rows: Rows
    centres: Array
    kernel: KernelPiece
    single: bool = False
    majority: float = 1.0
    coupled: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and bases."""
        return self.rows.n_obs, len(self.centres)

    def against_rest(self, number: int) -> "StreamedDesign":
        """Return the design with rows that are labelled by one class against the rest."""
        return replace(self, rows=self.rows.against_rest(number))

    def sums(
        self,
        at: tuple[Array, Array],
        terms: Callable[[Array, Any], RowTerms],
        *,
        old: tuple[Array, Array] | None = None,
        **more: Any,
    ) -> Sums:
        """Return sums over the rows at weights and biases; see `SumsRequest`.

        Parameters
        ----------
        at : tuple of ndarray
            Weights, shape (n_basis, n_scores), and biases, shape (n_scores,).
        terms : callable
        old : tuple of ndarray, optional
            Weights and biases whose latent values `Sums.change` compares with. Default: those of `at`.
        **more
            Other fields of the `SumsRequest`: gram, hessian, every.
        """
        where = (*at, *(at if old is None else old))
        more["single"] = self.single
        return self.rows.sums(SumsRequest(self.centres, self.kernel, *where, terms, **more))


def blocks_of(problem: Problem, most: int = _BLOCK) -> Iterator[Block]:
    """Yield a problem's design in blocks of at most so many rows: slice, basis functions and observed rows.

    Raises
    ------
    ValueError
        If the rows of a streamed design are not in an array.
    """
    Phi = problem.Phi
    if not isinstance(Phi, StreamedDesign):
        for rows in row_blocks(len(Phi), most):
            yield rows, Phi[rows], problem.observed[rows]
        return
    source = Phi.rows
    if not isinstance(source, ArrayRows):
        raise ValueError(f"rows are {type(source).__name__}; needed an array, or chunks of one")
    basis = BasisFunctions(Phi.centres, Phi.kernel)
    for rows in row_blocks(source.n_obs, min(most, source.chunk)):
        yield rows, basis(source.some(rows)[0]), problem.observed[rows]


@dataclass(frozen=True)
class FirstResponses:
    """A likelihood's terms with slopes ``r - f``: r its first responses (or the targets), f the latent."""

    likelihood: Likelihood

    def __call__(self, latent: Array, target: NDArray[Any]) -> RowTerms:
        """Return the terms of some rows."""
        response = self.likelihood.response(target)
        if response is None:
            response = np.asarray(target, dtype=float)[:, None]
        density = self.likelihood.terms(latent, target).log_density
        return RowTerms(density, response - latent, np.ones(len(target)))


def latent_in_blocks(
    X: Array,
    centres: Array,
    weight: Array,
    bias: Array | float,
    *,
    kernel: KernelPiece,
    n_jobs: int = 1,
) -> Array:
    """Return ``sum_j w_j k(x, z_j) + b`` at each row, some rows at a time.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_basis, n_features)
    weight : ndarray, shape (n_basis,) or (n_basis, n_scores)
    bias : float or ndarray, shape (n_scores,)
    kernel : KernelPiece
    n_jobs : int
        Threads.

    Returns
    -------
    ndarray, shape (n_obs,) or (n_obs, n_scores)
    """
    # a block's basis functions stay in the cache
    size = max(64, min(LARGEST_CHUNK, 2**17 // max(1, len(centres))))
    basis = BasisFunctions(centres, kernel)
    out = np.empty((len(X), *weight.shape[1:]))

    def fill(job: int) -> None:
        for rows in islice(row_blocks(len(X), size), job, None, n_jobs):
            out[rows] = basis(X[rows]) @ weight

    _in_threads(fill, n_jobs)
    out += bias
    return out


def _in_threads(work: Callable[[int], Any], n_jobs: int) -> list[Any]:
    """Return what the work returns for each job."""
    if n_jobs == 1:
        return [work(0)]
    with one_blas_thread(), ThreadPoolExecutor(n_jobs) as pool:
        return list(pool.map(work, range(n_jobs)))


def times(Phi: Array, weight: Array) -> Array:
    """Return Phi w, shape (n_obs, n_scores); several scores transposed, which BLAS does in half the time."""
    return (Phi @ weight[:, 0])[:, None] if weight.shape[1] == 1 else (weight.T @ Phi.T).T


def transposed_times(Phi: Array, values: Array) -> Array:
    """Return Phi' r, shape (n_columns, n_scores); one score as a product with a vector."""
    return (values[:, 0] @ Phi)[:, None] if values.shape[1] == 1 else (values.T @ Phi).T
