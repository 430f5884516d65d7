"""EM over chunks of rows: the basis functions are never held whole (Chen et al. 2009, Algorithm 1).

At a fixed width EM needs nothing of the rows but sums over them: the log likelihood, ``Phi' g`` with g the
score of each row, and the Gram matrix ``Phi' W Phi``. They are computed chunk by chunk, wherever the rows
lie, so that memory holds one chunk and matrices of the number of bases.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.bases import Kernel, design_matrix
from pcvm_pymc.core.em import EMOptions, EMResult, EMTrace, Status
from pcvm_pymc.core.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.priors import PRUNING_PRECISION, Hyperprior
from pcvm_pymc.core.probit import Array, curvature, log_likelihood, score

__all__ = [
    "ArrayRows",
    "ChunkedProblem",
    "Request",
    "Rows",
    "Sums",
    "chunk_rows",
    "fit_chunked",
    "latent_in_blocks",
    "row_blocks",
]

_SETTLED = 0.05  # as in `fit_em`
_NEAR = 0.1  # no row's curvature moves by more than a tenth: the Gram matrix at hand will do
# rounding of ||x||^2 + ||z||^2 - 2 x'z in the exponent beyond which distances are taken one by one
_ROUNDING = {np.float64: 1e-11, np.float32: 1e-4}
_LARGEST_CHUNK = 2048  # more rows at a time are no faster


@dataclass(frozen=True)
class Request:
    """Which sums over the rows are wanted, and where.

    Attributes
    ----------
    centres : ndarray, shape (n_basis, n_features)
    kernel : str or callable
    width : float
    weight, old_weight : ndarray, shape (n_basis,)
        Where the sums are taken, and the weights that the latent function is compared with.
    bias, old_bias : float
    gram : {"none", "unit", "curvature"}
        Which row weights a Gram matrix is wanted under.
    single : bool
        Compute the basis functions in single precision.
    """

    centres: Array
    kernel: Kernel
    width: float
    weight: Array
    bias: float
    old_weight: Array
    old_bias: float
    gram: str = "none"
    single: bool = False


@dataclass(frozen=True)
class Sums:
    """Sums over rows; those of parts are added by ``+``.

    Attributes
    ----------
    log_likelihood : float
    pull : ndarray, shape (n_basis,)
        Phi' g, g the slope of each row's log likelihood in its latent value.
    total : float
        1' g.
    change : float
        The largest change of a latent value.
    gram : BorderedGram, optional
    """

    log_likelihood: float
    pull: Array
    total: float
    change: float
    gram: BorderedGram | None = None

    def __add__(self, other: "Sums") -> "Sums":
        gram = None
        if self.gram is not None and other.gram is not None:
            gram = BorderedGram(
                self.gram.gram + other.gram.gram,
                self.gram.border + other.gram.border,
                self.gram.corner + other.gram.corner,
            )
        return Sums(
            self.log_likelihood + other.log_likelihood,
            self.pull + other.pull,
            self.total + other.total,
            max(self.change, other.change),
            gram,
        )


class Rows(Protocol):
    """Where rows and labels lie; all that a fit asks of them is sums."""

    n_obs: int

    def sums(self, request: Request) -> Sums:
        """Return sums over all rows."""
        ...


def row_blocks(n_obs: int, size: int) -> Iterator[slice]:
    """Yield the slices of at most `size` rows that make up `n_obs`."""
    for start in range(0, n_obs, size):
        yield slice(start, min(start + size, n_obs))


def chunk_rows(memory_limit: float, n_basis: int, n_features: int, n_jobs: int = 1) -> int:
    """Return how many rows at a time stay within a limit.

    Parameters
    ----------
    memory_limit : float
        Bytes for what the fit itself holds: chunks, one per job, and matrices of the size of the
        basis. The inputs are not counted.
    n_basis, n_features : int
    n_jobs : int

    Raises
    ------
    ValueError
        If not even a chunk of a single row fits.
    """
    # per job a Gram matrix and a chunk's; the kept one, the solver's copy, and a sum of two
    square = 8.0 * n_basis**2 * (3 + 2 * n_jobs)
    per_row = 8.0 * (n_basis + 2 * n_features + 16) * n_jobs
    rows = (memory_limit - square) / per_row
    if rows < 1:
        raise ValueError(
            f"memory_limit={memory_limit:.3g} bytes is too small for {n_basis} bases; needed at least "
            f"{square + per_row:.3g}: give a larger limit or fewer bases (basis=...)"
        )
    return int(min(rows, _LARGEST_CHUNK))


class _BasisFunctions:
    """Basis functions at chunk after chunk, the RBF's by one matrix product each."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.type: Any = np.float32 if request.single else np.float64
        self.origin = request.centres.mean(axis=0) if len(request.centres) else 0.0
        centred = (request.centres - self.origin) / request.width
        self.square = np.einsum("ij,ij->i", centred, centred)
        self.centres = centred.astype(self.type)

    def __call__(self, X: Array) -> Any:
        """Return Phi of a chunk, shape (n_rows, n_basis), in a new array."""
        request = self.request
        if request.kernel != "rbf" or not len(request.centres):
            return design_matrix(request.kernel, X, request.centres, request.width).astype(
                self.type, copy=False
            )
        x = (X - self.origin) / request.width
        square = np.einsum("ij,ij->i", x, x)
        largest = square.max(initial=0.0) + self.square.max()
        if not largest * np.finfo(self.type).eps < _ROUNDING[self.type]:
            return design_matrix("rbf", X, request.centres, request.width).astype(
                self.type, copy=False
            )
        Phi = x.astype(self.type, copy=False) @ self.centres.T
        Phi *= 2.0
        Phi -= square.astype(self.type)[:, None]
        Phi -= self.square.astype(self.type)
        np.minimum(Phi, 0.0, out=Phi)  # rounding makes a row's distance to itself negative
        return np.exp(Phi, out=Phi)


class _Accumulator:
    """Sums over the chunks that it has been given."""

    def __init__(self, request: Request) -> None:
        n_basis = len(request.centres)
        self.request = request
        self.basis = _BasisFunctions(request)
        self.both = np.column_stack([request.weight, request.old_weight]).astype(self.basis.type)
        self.log_likelihood = self.total = self.change = self.corner = 0.0
        self.pull, self.border = np.zeros(n_basis), np.zeros(n_basis)
        self.gram = None if request.gram == "none" else np.zeros((n_basis, n_basis))

    def add(self, X: Array, label: Array) -> None:
        """Add a chunk."""
        request = self.request
        Phi = self.basis(X)
        latent, old = (Phi @ self.both).astype(float).T
        latent, old = latent + request.bias, old + request.old_bias
        self.change = max(self.change, float(np.abs(latent - old).max(initial=0.0)))
        self.log_likelihood += log_likelihood(latent, label)
        slope = score(latent, label)
        self.total += float(slope.sum())
        self.pull += slope.astype(Phi.dtype) @ Phi
        if self.gram is not None:
            weight = curvature(latent, label) if request.gram == "curvature" else np.ones(len(X))
            self._add_gram(Phi, weight)

    def _add_gram(self, Phi: Any, row_weight: Array) -> None:
        """Add Phi' W Phi; `Phi` is overwritten."""
        self.border += row_weight.astype(Phi.dtype) @ Phi
        self.corner += float(row_weight.sum())
        Phi *= np.sqrt(row_weight).astype(Phi.dtype)[:, None]
        # NumPy takes a symmetric rank-k product here, and unlike SciPy's it lets other threads run; in
        # single precision chunks are summed in double
        self.gram += Phi.T @ Phi

    def sums(self) -> Sums:
        """Return what has been added up."""
        # symmetric: in column order without a copy
        gram = None if self.gram is None else BorderedGram(self.gram.T, self.border, self.corner)
        return Sums(self.log_likelihood, self.pull, self.total, self.change, gram)


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array in memory, or of one mapped from a file.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
    label : ndarray, shape (n_obs,)
        Labels, -1. or +1.
    chunk : int
        Rows whose basis functions are held at a time.
    n_jobs : int
        Threads. With more than one, each has a chunk of its own and BLAS one thread in each.
    """

    X: Array
    label: Array
    chunk: int
    n_jobs: int = 1

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return len(self.X)

    def sums(self, request: Request) -> Sums:
        """Return sums over all rows."""
        if self.n_jobs == 1:
            return self._part(request, 0)
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(self.n_jobs) as pool:
            parts = list(pool.map(lambda k: self._part(request, k), range(self.n_jobs)))
        out = parts[0]
        for part in parts[1:]:
            out = out + part
        return out

    def _part(self, request: Request, job: int) -> Sums:
        """Return sums over every n_jobs-th chunk."""
        accumulator = _Accumulator(request)
        for k, rows in enumerate(row_blocks(self.n_obs, self.chunk)):
            if k % self.n_jobs == job:
                accumulator.add(np.asarray(self.X[rows], dtype=float), self.label[rows])
        return accumulator.sums()


def latent_in_blocks(
    X: Array,
    centres: Array,
    weight: Array,
    bias: float,
    *,
    kernel: Kernel,
    width: float,
    n_jobs: int = 1,
) -> Array:
    """Return ``sum_j w_j k(x, z_j) + b`` at each row, shape (n_obs,), some rows at a time.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_basis, n_features)
    weight : ndarray, shape (n_basis,)
    bias : float
    kernel : str or callable
    width : float
    n_jobs : int
        Threads.
    """
    # a block's basis functions stay in the cache
    size = max(64, min(_LARGEST_CHUNK, 2**17 // max(1, len(centres))))
    basis = _BasisFunctions(Request(centres, kernel, width, weight, bias, weight, bias))
    out = np.empty(len(X))

    def fill(job: int) -> None:
        for k, rows in enumerate(row_blocks(len(X), size)):
            if k % n_jobs == job:
                out[rows] = basis(X[rows]) @ weight

    if n_jobs == 1:
        fill(0)
    else:
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(n_jobs) as pool:
            list(pool.map(fill, range(n_jobs)))
    out += bias
    return out


@dataclass(frozen=True)
class ChunkedProblem:
    """What a chunked fit is given beside the rows.

    Attributes
    ----------
    centres : ndarray, shape (n_basis, n_features)
    sign : ndarray, shape (n_basis,), or None
        Sign of each weight; None leaves them free.
    hyperprior : Hyperprior
    width : float
    kernel : str or callable
    majority : float
        -1. or +1., the larger class: where EM starts the bias under an improper prior.
    single : bool
        Compute the basis functions in single precision; everything else stays double.
    """

    centres: Array
    sign: Array | None
    hyperprior: Hyperprior
    width: float
    kernel: Kernel = "rbf"
    majority: float = 1.0
    single: bool = False

    @property
    def weight_sign(self) -> Array:
        """Signs as numbers, ones for free weights."""
        return np.ones(len(self.centres)) if self.sign is None else self.sign

    def log_prior(self, weight: Array, bias: float) -> float:
        """Return log p(w) + log p(b), precisions integrated out."""
        log_weight = self.hyperprior.log_weight_density(weight)
        if self.sign is None and self.hyperprior.d > 0:
            log_weight = log_weight - np.log(2.0)
        return float(log_weight.sum()) + self.hyperprior.log_bias_density(bias)


@dataclass(frozen=True)
class _State:
    """A point of the iteration with the sums over the rows there."""

    weight: Array
    bias: float
    sums: Sums = field(repr=False)
    log_posterior: float

    @property
    def n_active(self) -> int:
        return int(np.count_nonzero(self.weight))


class _Machine:
    """EM's steps over rows that it sees only through their sums."""

    def __init__(self, rows: Rows, problem: ChunkedProblem) -> None:
        self.rows, self.problem = rows, problem
        self.index = np.arange(len(problem.centres))
        self._unit: BorderedGram | None = None
        self._curved: BorderedGram | None = None

    def at(self, weight: Array, bias: float, old: _State | None, gram: str) -> _State:
        """Return the state at weights and bias: one pass over the rows."""
        previous = (weight, bias) if old is None else (old.weight, old.bias)
        request = Request(
            self.problem.centres[self.index],
            self.problem.kernel,
            self.problem.width,
            weight[self.index],
            bias,
            previous[0][self.index],
            previous[1],
            gram,
            self.problem.single,
        )
        sums = self.rows.sums(request)
        if gram == "unit":
            self._unit = sums.gram
        elif gram == "curvature":
            self._curved = sums.gram
        sums = replace(sums, gram=None)
        value = sums.log_likelihood + self.problem.log_prior(weight, bias)
        return _State(weight, bias, sums, value)

    def step(self, state: _State, *, newton: bool) -> tuple[Array, float]:
        """Return weights and bias of the M-step under the latest curvature's Gram matrix, or unit weights."""
        gram = self._curved if newton else self._unit
        assert gram is not None
        prior = self.problem.hyperprior
        old = state.weight[self.index]
        bias_scale = 1.0 / np.sqrt(prior.bias_precision(state.bias))
        inner, corner = gram.product(old, state.bias)
        active, bias = solve_nonnegative(
            gram,
            self.problem.weight_sign[self.index] / np.sqrt(prior.weight_precision(old)),
            bias_scale,
            (inner + state.sums.pull, corner + state.sums.total),
            old != 0 if old.any() else np.ones(len(old), dtype=bool),
            constrained=self.problem.sign is not None,
        )
        weight = np.zeros(len(state.weight))
        weight[self.index] = active
        return np.where(prior.weight_precision(weight) > PRUNING_PRECISION, 0.0, weight), bias

    def shrink(self, state: _State) -> _State:
        """Leave out columns that are zero for good (d = 0), from sums and Gram matrices as well."""
        kept = np.flatnonzero(state.weight[self.index])
        if self.problem.hyperprior.d > 0 or len(kept) == len(self.index):
            return state
        self.index = self.index[kept]
        self._unit = None if self._unit is None else self._unit.take(kept)
        self._curved = None if self._curved is None else self._curved.take(kept)
        return replace(state, sums=replace(state.sums, pull=state.sums.pull[kept]))

    def next(self, state: _State, *, newton: bool) -> _State:
        """Return the state after one iteration; never one of lower log posterior."""
        gram = "curvature" if newton and not state.sums.change < _NEAR else "none"
        if newton and self._curved is not None:
            new = self.at(*self.step(state, newton=True), state, gram)
            if new.log_posterior >= state.log_posterior:
                return new
        if self._unit is None:
            self.at(state.weight, state.bias, state, "unit")
        return self.at(*self.step(state, newton=False), state, gram)


def _default_start(problem: ChunkedProblem) -> tuple[Array, float]:
    """Return `Start.default`'s weights and bias."""
    prior = problem.hyperprior
    return (
        np.zeros(len(problem.centres)) if prior.d > 0 else problem.weight_sign.copy(),
        0.0 if prior.f > 0 else problem.majority,
    )


def fit_chunked(
    rows: Rows,
    problem: ChunkedProblem,
    options: EMOptions | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> EMResult:
    """Run EM to its end over rows that are only ever seen as sums.

    The iterations are those of `fit_em` at a fixed width from its default start.

    Parameters
    ----------
    rows : Rows
    problem : ChunkedProblem
    options : EMOptions, optional
        ``update="clip"`` and ``bias="alternating"``, the authors' recipe, are not available.
    callback : callable, optional
        Called with the iteration's number and log posterior after each iteration.

    Returns
    -------
    EMResult
        Its `latent` is empty.

    Raises
    ------
    ValueError
        For the authors' recipe.
    """
    options = options or EMOptions()
    if options.update == "clip" or options.bias != "joint":
        raise ValueError(
            f"update={options.update!r}, bias={options.bias!r}: rows in chunks need update 'auto', "
            "'newton' or 'em' and bias 'joint'"
        )
    machine = _Machine(rows, problem)
    careful = options.update == "auto" and problem.hyperprior.d == 0
    newton = options.update != "em" and not careful
    state = machine.at(*_default_start(problem), None, "curvature" if newton else "unit")
    trace = [(state.log_posterior, state.n_active, np.nan, problem.width)]
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        state = machine.shrink(state)
        new = machine.next(state, newton=newton)
        if careful and new.n_active == state.n_active and new.sums.change < _SETTLED:
            careful, newton = False, True
            new = machine.at(new.weight, new.bias, state, "curvature")
        state = new
        trace.append((state.log_posterior, state.n_active, state.sums.change, problem.width))
        if callback is not None:
            callback(n_iter, state.log_posterior)
        if state.sums.change <= options.tol:
            status = Status.CONVERGED
            break
    if state.n_active == 0:
        status = Status.EMPTY_MODEL
    columns = [np.asarray(column) for column in zip(*trace, strict=True)]
    return EMResult(
        weight=state.weight,
        bias=state.bias,
        width=problem.width,
        latent=np.empty(0),
        log_posterior=state.log_posterior,
        status=status,
        n_iter=len(trace) - 1,
        trace=EMTrace(*columns),
    )
