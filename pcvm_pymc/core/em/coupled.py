"""Newton's step for several scores at once, by preconditioned conjugate gradients under the sign rule.

The likelihood couples the scores of a row by a matrix of second derivatives. One score at a time, or under a
bound of it, hundreds of steps are needed; the coupled system is solved by products with Phi alone,
preconditioned by factors of what is near it.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from pcvm_pymc.core.em.points import ChunkedRows, Point, WholeRows
from pcvm_pymc.core.em.quadratic import BOUND, Quadratic, RowsQuadratic, SummedQuadratic
from pcvm_pymc.core.pieces.likelihood import plain_target, row_weight
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import Mask, lower_block

__all__ = ["CoupledNewton", "RowsNewton", "SummedNewton"]

_ROUNDS = 6  # exchanges between the weights that are free to move and those at zero
_MOST_PRODUCTS = 80
_RELATIVE = 0.05  # of the residual, at which conjugate gradients stop
_SLOPE_TOLERANCE = 1e-8
_SLOW = 12  # products of one solve, after which factors made anew are cheaper than going on
_CHEAP = 3e7  # operations: so small factors are made at once
_NARROW = 16  # scores: a product with fewer takes no less time, memory being what is waited for
_MOVED = 0.05  # share of the free values by which they differ from those that the factors know
# sum of squares of what is left of a row of Phi, in units of the prior; the rows' curvature is well below one
_NEGLIGIBLE = 4.0
# ... where that leaves many directions of all scores, whose factor is the work
_NEGLIGIBLE_OF_MANY, _MANY = 16.0, 1000
_SETTLING = 0.001  # nats a row: of steps that gain less the local maximum is no longer open
_JITTER = 1e-12  # of the coupling, whose smallest values are the prior's share of the curvature


class CoupledNewton:
    """Newton steps for several scores; factors are kept as long as they serve as a preconditioner."""

    def __init__(self, rows: WholeRows | ChunkedRows) -> None:
        self.rows = rows
        self._factors: Any = None
        self._known: Mask = np.zeros((1, 1), dtype=bool)
        self._is_hard = False
        self._before = -np.inf

    def _model(self, point: Point, least_bend: float) -> Any:
        """Return the quadratic model at a point."""
        raise NotImplementedError

    def _patience(self, model: Any, free: Mask) -> int:
        """Return how many products are tried before factors are made: what these would cost, at most."""
        raise NotImplementedError

    def _factorise(self, model: Any, free: Mask) -> None:
        """Make the preconditioner anew on the values that are free to move."""
        raise NotImplementedError

    def is_settling(self, point: Point) -> bool:
        """Whether the log posterior has hardly risen since this was asked last."""
        gain, self._before = point.log_posterior - self._before, point.log_posterior
        return gain < _SETTLING * self.rows.problem.Phi.shape[0]

    def step(self, point: Point, *, least_bend: float = BOUND) -> tuple[Array, Array] | None:
        """Return weights and biases that minimise the quadratic model at a point under the sign rule.

        `least_bend` is `BOUND` for the bound of the prior's curvature, `OWN` for the curvature itself,
        `CONVEX` for as much of it as leaves the model convex. None where the model has no minimum.
        """
        model = self._model(point, least_bend)
        u = model.start.copy()
        residual = model.pull - model.prior_slope(u)  # minus the gradient at the point
        free = model.usable & ((u != 0) | ~model.signed)
        r = np.where(free, residual, 0.0)
        goal = _RELATIVE * float(np.linalg.norm(r)), _RELATIVE * _scaled_length(model, r)
        for n_rounds in range(_ROUNDS):
            solution = self._solve(model, free, residual, goal, is_first=n_rounds == 0)
            if solution is None:
                return None
            u, residual = u + solution[0], solution[1]
            wrong = free & model.signed & (u < 0)
            if wrong.any():
                back = np.where(wrong, -u, 0.0)
                u = u + back
                residual = residual - model.product(back)
                free &= ~wrong
                continue
            entering = (
                model.usable & ~free & (residual > _SLOPE_TOLERANCE * (1 + np.abs(model.pull)))
            )
            if not entering.any():
                break
            free |= entering
        weight = np.zeros_like(point.weight)
        some = model.scaled(np.where(model.signed, np.maximum(u, 0.0), u))
        weight[self.rows.index] = some[:-1]
        return weight, some[-1]

    def _solve(
        self,
        model: Quadratic,
        free: Mask,
        residual: Array,
        goal: tuple[float, float],
        *,
        is_first: bool,
    ) -> tuple[Array, Array] | None:
        """Return a change of the free values that (nearly) zeroes their residual, and all residuals.

        None where the model turns out to fall without end.
        """
        change, r = np.zeros_like(residual), np.where(free, residual, 0.0)
        if (free ^ self._known).sum() > _MOVED * free.sum():
            self._factors = None  # others than these are free by now
        at_once = is_first and self._is_hard and self._factors is None
        patience = 0 if at_once else self._patience(model, free)
        for n_products in range(patience + _MOST_PRODUCTS):
            if self._is_solved(model, r, goal):
                break
            if n_products == patience:
                self._factorise(model, free)
                self._is_hard |= is_first  # products in vain: next time factors at once
            if n_products in (0, patience):
                p = z = self._preconditioned(model, r, free)
                inner = float(np.vdot(r, z))
            if not inner > 0:
                break
            bent = model.product(p)
            bend = float(np.vdot(p, bent))
            if bend < 0 and not model.is_convex:
                return None
            if not bend > 0:  # rounding, or too small to have a square
                break
            alpha = inner / bend
            change = change + alpha * p
            residual = residual - alpha * bent
            r = np.where(free, residual, 0.0)
            z = self._preconditioned(model, r, free)
            last, inner = inner, float(np.vdot(r, z))
            p = z + (inner / last) * p
        return change, residual

    def _is_solved(self, model: Quadratic, r: Array, goal: tuple[float, float]) -> bool:
        """Whether little is left; without factors also where curvatures are small beside the others."""
        if not float(np.linalg.norm(r)) <= goal[0]:
            return False
        return self._factors is not None or _scaled_length(model, r) <= goal[1]

    def _preconditioned(self, model: Quadratic, r: Array, free: Mask) -> Array:
        """Return the preconditioner times r: the factors on what they know, else the diagonal."""
        z = r / model.diagonal
        if self._factors is not None:
            z = np.where(self._known, self._factors.solve(r), z)
        return np.where(free, z, 0.0)


class RowsNewton(CoupledNewton):
    """Steps from rows in memory."""

    rows: WholeRows

    def __init__(self, rows: WholeRows) -> None:
        super().__init__(rows)
        self._basis: _RowBasis | None = None
        self._seen: tuple[Point, Array] | None = None

    def _model(self, point: Point, least_bend: float) -> RowsQuadratic:
        if (
            self._seen is None or self._seen[0] is not point
        ):  # else another step is tried from there
            self._seen = None  # not both in memory
            problem = self.rows.problem
            self._seen = point, problem.likelihood.hessian(point.latent, problem.label)
        return RowsQuadratic(self.rows, point, least_bend, self._seen[1])

    def _patience(self, model: RowsQuadratic, free: Mask) -> int:
        if self._factors is not None:
            return _SLOW
        work = min(self._work(model, free))
        if work < _CHEAP:
            return 0
        n_obs, n_scores = model.latent_shape
        product = 4.0 * n_obs * len(model.Phi.T) * max(n_scores, _NARROW)
        return max(_SLOW, int(work / product))

    def _work(self, model: RowsQuadratic, free: Mask) -> tuple[float, float]:
        """Return the operations that `_Reduced` and `_Factors` would take."""
        size = float(np.square(model.scale).mean())
        if self._basis is None or size > 4.0 * self._basis.size:
            self._basis = _RowBasis(model.Phi, size, model.latent_shape[1])
        n_obs, n_scores = model.latent_shape
        rank, columns = len(self._basis.coefficients), free.sum(axis=0).astype(float)
        reduced = n_obs * (rank * n_scores) ** 2 + (rank * n_scores) ** 3 / 3
        whole = float((n_obs * columns * (2 * columns + n_obs)).sum()) + n_obs**3 / 3
        return reduced, whole

    def _factorise(self, model: RowsQuadratic, free: Mask) -> None:
        reduced, whole = self._work(model, free)
        self._known = free.copy()
        if reduced < whole:
            assert self._basis is not None
            self._factors = _Reduced(model, free, self._basis)
        else:
            self._factors = _Factors(model, free)


class SummedNewton(CoupledNewton):
    """Steps from sums over rows in chunks: one pass gives the whole matrix."""

    rows: ChunkedRows

    def _model(self, point: Point, least_bend: float) -> SummedQuadratic:
        return SummedQuadratic(self.rows, point, least_bend)

    def _patience(self, model: SummedQuadratic, free: Mask) -> int:
        return 0 if self._factors is None else _SLOW

    def _factorise(self, model: SummedQuadratic, free: Mask) -> None:
        self._known = free.copy()
        self._factors = _Exact(model, free)


class _Exact:
    """The factor of the model's matrix on what is free to move, made convex."""

    def __init__(self, model: SummedQuadratic, free: Mask) -> None:
        self._free = free.T.copy()
        columns = self._free.ravel().nonzero()[0]
        scale = np.vstack([model.scale, model.bias_scale]).T.ravel()
        H = lower_block(model.gram.matrix, columns, scale[columns], 0)
        H[np.diag_indices(len(H))] += _ridges(model, free)
        self._factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)

    def solve(self, r: Array) -> Array:
        """Return the inverse times r, zero but for the free values."""
        u = np.zeros(self._free.shape)
        u[self._free] = lapack.dpotrs(self._factor, r.T[self._free], lower=1)[0]
        return u.T


def _designs(model: RowsQuadratic, free: Mask) -> Iterator[Array]:
    """Yield each score's scaled columns that are free to move, the bias among them."""
    for c in range(free.shape[1]):
        columns = np.flatnonzero(free[:-1, c])
        design = model.Phi[:, columns] * model.scale[columns, c]
        if free[-1, c]:
            design = np.column_stack([design, np.full(len(design), model.bias_scale[c])])
        yield design


def _ridges(model: Quadratic, free: Mask) -> Array:
    """Return the prior's curvature of each free value, score by score."""
    return model.convex_ridge.T[free.T]


class _Factors:
    """The factors of an approximation whose scores are coupled through one value for each row.

    A row's second derivatives are nearly ``D - d d' / 1'd``, see `_rank_one`. The scores' blocks are
    factored one by one and their coupling through a matrix of the size of the rows (as Rasmussen &
    Williams 2006, Algorithm 3.3, for the softmax). In double precision: along a shift of all scores
    the coupling has next to nothing left.
    """

    def __init__(self, model: RowsQuadratic, free: Mask) -> None:
        d = _rank_one(model.hessian, model.label)
        share = d / np.sqrt(d.sum(axis=1))[:, None]
        ridge = _ridges(model, free)
        self._free, self._model, self._share = free.copy(), model, share
        self._ends = np.cumsum([0, *free.sum(axis=0)])
        self._blocks: list[Array] = []
        coupling = np.zeros((len(d), len(d)), order="F")
        coupling[np.diag_indices(len(d))] = 1.0 + _JITTER
        for c, design in enumerate(_designs(model, free)):
            if design.shape[1] == 0:
                self._blocks.append(np.zeros((0, 0)))
                continue
            H = blas.dsyrk(1.0, (design * np.sqrt(d[:, c, None])).T, lower=1)
            H[np.diag_indices(len(H))] += ridge[self._ends[c] : self._ends[c + 1]]
            factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)
            self._blocks.append(factor)
            side = (design * share[:, c, None]).T  # in column order, as BLAS has it
            half = blas.dtrsm(1.0, factor, side, lower=1, overwrite_b=1)
            coupling = blas.dsyrk(-1.0, half, trans=1, lower=1, beta=1.0, c=coupling, overwrite_c=1)
        self._coupling, _ = lapack.dpotrf(coupling, lower=1, overwrite_a=1)

    def _blocks_solve(self, r: Array) -> Array:
        parts = [
            lapack.dpotrs(factor, r[a:b], lower=1)[0] if b > a else r[a:b]
            for factor, (a, b) in zip(self._blocks, itertools.pairwise(self._ends), strict=True)
        ]
        return np.concatenate(parts)

    def solve(self, r: Array) -> Array:
        """Return the inverse times r, zero but for the free values."""
        first, model = self._blocks_solve(r.T[self._free.T]), self._model
        u = np.zeros(self._free.shape)
        u.T[self._free.T] = first
        rows = np.einsum("ic,ic->i", self._share, model.latent(model.scaled(u)))
        rows = lapack.dpotrs(self._coupling, rows, lower=1)[0]
        back = model.scaled(model.pulled(self._share * rows[:, None]))
        u.T[self._free.T] = first + self._blocks_solve(back.T[self._free.T])
        return u


class _RowBasis:
    """An orthonormal basis Q of what [Phi, 1] does to the rows; less curvature than the prior's is left out.

    Wide basis functions act on few directions: 1279 rows, at the median distance, have 15 to 160,
    as the weights' scale goes from 1 to 10.

    Attributes
    ----------
    rows : ndarray, shape (n_obs, rank)
        Q, by a pivoted Cholesky factor of Phi Phi'.
    coefficients : ndarray, shape (rank, n_columns + 1)
        Q' [Phi, 1].
    size : float
        The squared scale of the weights that it was made for.
    """

    def __init__(self, Phi: Array, size: float, n_scores: int) -> None:
        few = Phi.shape[1] < len(Phi)
        factor = (_pivoted_by_columns if few else _pivoted_by_rows)(Phi, _NEGLIGIBLE / size)
        if n_scores * factor.shape[1] > _MANY:
            left = np.square(factor).max(axis=0)  # of the row that each is taken by, which fall
            factor = factor[:, left > _NEGLIGIBLE_OF_MANY / size]
        self.rows = np.linalg.qr(np.column_stack([factor, np.ones(len(Phi))]))[0]
        self.coefficients = self.rows.T @ np.column_stack([Phi, np.ones(len(Phi))])
        self.size = size


def _pivoted_by_rows(Phi: Array, least: float) -> Array:
    """Return a factor L of ``Phi Phi'``, less what leaves at most `least` of any row, shape (n_obs, rank)."""
    gram = blas.dsyrk(1.0, Phi.T, trans=1, lower=1)
    factor, order, rank, _ = lapack.dpstrf(gram, tol=least, lower=1, overwrite_a=1)
    out = np.zeros((len(Phi), rank))
    out[order - 1] = np.tril(factor[:, :rank])
    return out


def _pivoted_by_columns(Phi: Array, least: float) -> Array:
    """Return the same without the matrix of rows by rows, where the bases are fewer."""
    left = np.einsum("ij,ij->i", Phi, Phi)
    factor = np.empty((Phi.shape[1], len(Phi)))
    for rank in range(Phi.shape[1]):
        pivot = int(left.argmax())
        if left[pivot] <= least:
            return factor[:rank].T
        known = factor[:rank]
        factor[rank] = (Phi @ Phi[pivot] - known[:, pivot] @ known) / np.sqrt(left[pivot])
        left -= np.square(factor[rank])
        left[pivot] = 0.0
    return factor.T


class _Reduced:
    """The factor of the whole matrix, Phi projected on few directions of the rows; see `_RowBasis`.

    With Q the directions and Y = Q' Phi s the matrix is ``I + Y' (Q' H Q) Y``. For ``Y Y' = J J'``, score by
    score, the rows of ``J^-1 Y`` are orthonormal, and on them it is ``I + J' Q' H Q J``.
    """

    def __init__(self, model: RowsQuadratic, free: Mask, basis: _RowBasis) -> None:
        self._root = np.sqrt(model.convex_ridge)
        self._scale = np.vstack([model.scale, model.bias_scale]) * free / self._root
        self._coefficients, self._free = basis.coefficients, free.copy()
        self._factors = [self._factor_of(scale) for scale in self._scale.T]
        directions = [(basis.rows @ np.tril(factor)).astype(model.kind) for factor in self._factors]
        hessian = model.hessian.astype(model.kind)
        k, n_scores = len(basis.coefficients), free.shape[1]
        H: Array = np.empty((k * n_scores, k * n_scores), order="F", dtype=model.kind)
        for c, one in enumerate(directions):
            for e, other in enumerate(directions[: c + 1]):
                block = (one * hessian[:, c, e, None]).T @ other
                H[c * k : (c + 1) * k, e * k : (e + 1) * k] = block
        H[np.diag_indices(len(H))] += 1.0
        potrf, self._potrs = lapack.get_lapack_funcs(("potrf", "potrs"), (H,))
        self._whole, _ = potrf(H, lower=1, overwrite_a=1)

    def _factor_of(self, scale: Array) -> Array:
        """Return J of one score."""
        Y = self._coefficients * scale
        gram = blas.dsyrk(1.0, Y.T, trans=1, lower=1)
        gram[np.diag_indices(len(gram))] += 1e-12 * np.trace(gram) + 1e-300
        return lapack.dpotrf(gram, lower=1, overwrite_a=1)[0]

    def _each(self, values: Array, *, transposed: bool) -> Array:
        """Return J^-1, or its transpose, times values of shape (rank, n_scores)."""
        parts = [
            lapack.dtrtrs(factor, values[:, c], lower=1, trans=int(transposed))[0]
            for c, factor in enumerate(self._factors)
        ]
        return np.column_stack(parts)

    def solve(self, r: Array) -> Array:
        """Return the inverse times r, zero but for the free values."""
        r = np.where(self._free, r, 0.0) / self._root
        inner = self._each(self._coefficients @ (self._scale * r), transposed=False)
        flat = inner.T.reshape(-1, 1)
        flat = self._potrs(self._whole, flat, lower=1)[0] - flat
        inner = self._each(flat.reshape(inner.T.shape).T, transposed=True)
        return (r + self._scale * (self._coefficients.T @ inner)) / self._root


def _rank_one(hessian: Array, label: Array) -> Array:
    """Return d of ``D - d d' / 1'd`` near each row's second derivatives, shape (n_obs, n_scores).

    The noise e of the own score integrated out by Laplace's method, they have this form with d one at the own
    class: the curvature of ``e^2 / 2``. The own row of the second derivatives then gives the others. It
    is never above them, nor (2 to 20 classes) below two thirds of them, in any direction.
    """
    rows, number, weight = np.arange(len(label)), plain_target(label).astype(int), row_weight(label)
    own = hessian[rows, number]
    if weight is not None:
        own = own / weight[:, None]
    d = np.maximum(-own, 0.0) / (1.0 - own[rows, number])[:, None]
    d[rows, number] = 1.0
    return d if weight is None else weight[:, None] * d


def _scaled_length(model: Quadratic, residual: Array) -> float:
    """Return how large a residual is in the metric of the matrix' diagonal."""
    return float(np.linalg.norm(residual / np.sqrt(model.diagonal)))
