"""Newton's step for several scores at once under the sign rule.

The likelihood couples the scores of a row by a matrix H of second derivatives. Score by score, or under a
bound of H, EM needs hundreds of steps. With a dense design the coupled system is solved by conjugate
gradients: products with Phi alone, preconditioned by a factor of the system projected onto the few
directions of the rows in which the basis functions mostly vary. With a streamed design one pass sums the
whole matrix, and its Cholesky factor solves the system.
"""

from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from pcvm_pymc.core.design import row_blocks, times, transposed_times
from pcvm_pymc.core.em.rows import DenseRows, Point, StreamedRows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import Mask, lower_block

# the least that the prior's curvature may be in units of its bound, the expected precision
BOUND, CONVEX, OWN = 1.0, 0.1, -1.0

_SETTLING = 0.001  # nats per row: once steps gain less, the local maximum no longer depends on them
_ROUNDS = 6  # exchanges between free weights and those at zero, in one step
_SLOPE_TOLERANCE = 1e-8  # of a weight at zero that would rather grow, in units of the slopes
# curvature of a bias without a prior, in units of its own: a shift of all scores changes nothing
_DAMPING = 1e-4
# share of the residual at which conjugate gradients stop; slopes decide where steps end
_RESIDUAL = 0.05
_LEAST_PRODUCTS = 12  # of conjugate gradients between two factors
_MOST_PRODUCTS = 80  # after the last factor
_NARROW = 16  # scores: a product with fewer takes no less time, which goes into reading Phi
_MOVED = 0.05  # share of the free values in which they may differ from those of the factor
_LARGEST_SINGLE = 1e5  # of the diagonal: above, single precision loses a hundredth of the prior
# values of a block of rows: a megabyte in single precision, which stays in the cache
_BLOCK = 2**18
# sum of squares of what the directions leave of a column of Phi, in units of the prior's precision
_NEGLIGIBLE = 2.0
_DEAREST = 20.0  # products that a factor may cost: of more directions only the first are taken
_JITTER = 1e-12  # of a Gram matrix of the directions, in units of its trace


class CoupledModel:
    """The quadratic model of minus the log posterior, in units u of the prior's standard deviations.

    Its matrix is ``s [Phi, 1]' H [Phi, 1] s + R``; R, the prior's curvature, is the identity where its
    bound is taken, the expected precision. A sign rule says u >= 0.

    Parameters
    ----------
    rows : DenseRows or StreamedRows
    point : Point
    least_bend : float
        `BOUND`, `CONVEX` or `OWN`: the least that R may be.
    """

    def __init__(self, rows: Any, point: Point, least_bend: float) -> None:
        problem = rows.problem
        prior = problem.hyperprior
        old = point.weight[rows.index]
        precision = np.array([problem.bias_precision(float(b)) for b in point.bias])
        self.has_bias_prior = precision > 0
        with np.errstate(divide="ignore"):
            unit = np.where(self.has_bias_prior, precision, self.squares[-1].clip(1e-300))
            scale = problem.weight_sign[rows.index] / np.sqrt(prior.weight_precision(old))
            self.scale = np.vstack([scale, 1.0 / np.sqrt(unit)])
        self.is_convex = least_bend > 0
        self.ridge = np.ones(self.scale.shape)
        self.ridge[-1] = np.where(self.has_bias_prior, 1.0, _DAMPING)
        if least_bend < BOUND:
            self.ridge[:-1] = np.maximum(prior.weight_bend(old), least_bend)
            if problem.bias == "prior":
                self.ridge[-1] *= np.maximum(prior.bias_bend(point.bias), least_bend)
        self.usable = self.scale != 0
        self.signed = np.full(self.scale.shape, problem.is_signed)
        self.signed[-1] = False
        self.start = np.zeros(self.scale.shape)
        np.divide(np.vstack([old, point.bias]), self.scale, out=self.start, where=self.usable)
        self.pull = self.scale * np.vstack([point.pull, point.total])

    @property
    def squares(self) -> Array:
        """The diagonal of [Phi, 1]' H [Phi, 1], shape (n_columns + 1, n_scores)."""
        raise NotImplementedError

    def curved(self, values: Array) -> Array:
        """Return [Phi, 1]' H [Phi, 1] times weights and biases, shape (n_columns + 1, n_scores)."""
        raise NotImplementedError

    def solve(self, free: Mask, residual: Array) -> tuple[Array, Array] | None:
        """Return a change of the free values that (nearly) solves for their residual, and what is left.

        None where the model is unbounded below.
        """
        raise NotImplementedError

    def product(self, u: Array) -> Array:
        """Return the model's matrix times u."""
        return self.scale * self.curved(self.scale * u) + self.ridge * u

    @cached_property
    def convex_ridge(self) -> Array:
        """The prior's curvature, made positive: for diagonals and factors."""
        out = np.maximum(self.ridge, CONVEX)
        out[-1, ~self.has_bias_prior] = _DAMPING
        return out

    def step(self) -> tuple[Array, Array] | None:
        """Return weights and biases at the model's minimum under the sign rule; None if it has none."""
        u = self.start.copy()
        slope = u.copy()  # of the prior
        slope[-1] *= self.has_bias_prior
        residual = self.pull - slope
        free = self.usable & ((u != 0) | ~self.signed)
        for _ in range(_ROUNDS):
            solution = self.solve(free, residual)
            if solution is None:
                return None
            u, residual = u + solution[0], solution[1]
            wrong = free & self.signed & (u < 0)
            if wrong.any():
                back = np.where(wrong, -u, 0.0)
                u, residual = u + back, residual - self.product(back)
                free &= ~wrong
                continue
            least = _SLOPE_TOLERANCE * (1 + np.abs(self.pull))
            entering = self.usable & ~free & (residual > least)
            if not entering.any():
                break
            free |= entering
        values = self.scale * np.where(self.signed, np.maximum(u, 0.0), u)
        return values[:-1], values[-1]


class StreamedModel(CoupledModel):
    """The model from the sums of a pass near the point: its whole matrix."""

    def __init__(self, rows: StreamedRows, point: Point, least_bend: float) -> None:
        self.matrix = rows.grams["coupled"]
        self._shape = (point.weight.shape[1], len(rows.index) + 1)
        super().__init__(rows, point, least_bend)

    @cached_property
    def squares(self) -> Array:
        """See `CoupledModel`."""
        return self.matrix.diagonal().reshape(self._shape).T

    def curved(self, values: Array) -> Array:
        """See `CoupledModel`."""
        flat = blas.dsymv(1.0, self.matrix, values.T.ravel(), lower=1)
        return flat.reshape(self._shape).T

    def solve(self, free: Mask, residual: Array) -> tuple[Array, Array] | None:
        """See `CoupledModel`."""
        columns = free.T.ravel().nonzero()[0]
        H = lower_block(self.matrix, columns, self.scale.T.ravel()[columns])
        H[np.diag_indices(len(H))] += self.ridge.T.ravel()[columns]
        factor, failed = lapack.dpotrf(H, lower=1, overwrite_a=1)
        if failed:
            return None
        change = np.zeros(free.T.shape)
        change[free.T] = lapack.dpotrs(factor, residual.T[free.T], lower=1)[0]
        return change.T, residual - self.product(change.T)


class DenseModel(CoupledModel):
    """The model from rows in memory: by products with Phi, in single precision where that suffices.

    Parameters
    ----------
    rows, point, least_bend
        See `CoupledModel`.
    hessian : ndarray, shape (n_obs, n_scores, n_scores)
        Minus the rows' second derivatives at the point.
    preconditioner : Preconditioner
        Kept from one model to the next.
    """

    def __init__(
        self,
        rows: DenseRows,
        point: Point,
        least_bend: float,
        hessian: Array,
        preconditioner: "Preconditioner",
    ) -> None:
        self.Phi, self.hessian, self.preconditioner = rows.Phi, hessian, preconditioner
        super().__init__(rows, point, least_bend)
        self.diagonal = np.square(self.scale) * self.squares + np.maximum(self.ridge, CONVEX)
        # half of what a product has to read
        single = self.diagonal.max() < _LARGEST_SINGLE
        self.kind: Any = np.float32 if single else np.float64
        self._hessian: Any = hessian.astype(self.kind)
        self._basis: Array = rows.single if single else rows.Phi
        self._goal: tuple[float, float] | None = None

    @cached_property
    def squares(self) -> Array:
        """See `CoupledModel`."""
        own = np.einsum("icc->ic", self.hessian)
        out = np.zeros((self.Phi.shape[1], own.shape[1]))
        for block in row_blocks(len(own), max(1, _BLOCK // self.Phi.shape[1])):
            out += transposed_times(np.square(self.Phi[block]), own[block])
        return np.vstack([out, own.sum(axis=0)])

    def curved(self, values: Array) -> Array:
        """See `CoupledModel`."""
        values = values.astype(self.kind)
        out = np.zeros(values.shape[::-1], dtype=self.kind)
        for block in row_blocks(len(self._basis), max(1, _BLOCK // len(values))):
            Phi = self._basis[block]
            latent = times(Phi, values[:-1]) + values[-1]
            slope = np.einsum("icd,id->ic", self._hessian[block], latent)
            out[:, :-1] += slope.T @ Phi
            out[:, -1] += slope.sum(axis=0)
        return out.T.astype(float)

    def solve(self, free: Mask, residual: Array) -> tuple[Array, Array] | None:
        """See `CoupledModel`; by preconditioned conjugate gradients."""
        change, r = np.zeros_like(residual), np.where(free, residual, 0.0)
        if self._goal is None:
            self._goal = _RESIDUAL * float(np.linalg.norm(r)), _RESIDUAL * self._length(r)
        P = self.preconditioner
        P.forget_unless_near(free)
        patience = P.patience(self, free)
        for n_products in range(patience + _MOST_PRODUCTS):
            # without a factor also where curvatures are small beside the others
            if np.linalg.norm(r) <= self._goal[0] and (
                P.is_there or self._length(r) <= self._goal[1]
            ):
                break
            if n_products == patience:
                P.factorise(self, free)
            if n_products in (0, patience):
                p = z = P.solve(self, r, free)
                inner = float(np.vdot(r, z))
            if not inner > 0:
                break
            bent = self.product(p)
            bend = float(np.vdot(p, bent))
            if bend < 0 and not self.is_convex:
                return None
            if not bend > 0:  # rounding, or too small to have a square
                break
            alpha = inner / bend
            change, residual = change + alpha * p, residual - alpha * bent
            r = np.where(free, residual, 0.0)
            z = P.solve(self, r, free)
            last, inner = inner, float(np.vdot(r, z))
            p = z + (inner / last) * p
        return change, residual

    def _length(self, residual: Array) -> float:
        """Return how large a residual is in the metric of the diagonal."""
        return float(np.linalg.norm(residual / np.sqrt(self.diagonal)))


class Preconditioner:
    """The diagonal, and once products have cost as much, a factor of the system on few directions.

    With Q an orthonormal basis of the directions and Y = Q' [Phi, 1] s the matrix is nearly
    ``I + Y' (Q' H Q) Y``. For ``Y Y' = J J'``, score by score, the rows of ``J^-1 Y`` are orthonormal,
    and on them it is ``I + J' Q' H Q J``. Wide basis functions vary in few directions: 1279 rows, at
    the median distance, have 15 to 160, as the weights' scale goes from 1 to 10.
    """

    def __init__(self) -> None:
        self._size = 0.0  # the squared scale of the weights that Q was made for
        self._known: Mask | None = None  # the free values that the factor was made for

    @property
    def is_there(self) -> bool:
        """Whether there is a factor."""
        return self._known is not None

    def forget_unless_near(self, free: Mask) -> None:
        """Drop the factor where other values are free by now."""
        if self._known is not None and (free ^ self._known).sum() > _MOVED * free.sum():
            self._known = None

    def patience(self, model: DenseModel, free: Mask) -> int:
        """Return how many products are tried before a factor is made: as many as cost the same."""
        size = float(np.square(model.scale[:-1]).mean())
        if not size <= 4.0 * self._size:
            self._span(model.Phi, size, free.shape[1])
        return max(_LEAST_PRODUCTS, int(self._products))

    def _span(self, Phi: Array, size: float, n_scores: int) -> None:
        """Find Q and Q' [Phi, 1], by a pivoted Cholesky factor of Phi' Phi."""
        gram = blas.dsyrk(1.0, Phi.T, lower=1)
        _, order, rank, _ = lapack.dpstrf(gram, tol=_NEGLIGIBLE / size, lower=1, overwrite_a=1)
        k = n_scores * np.arange(1, rank + 2)
        # what a factor costs by its rank, in products
        products = (len(Phi) * k**2 + k**3 / 3) / (4.0 * Phi.size * max(n_scores, _NARROW))
        rank = max(0, int(np.searchsorted(products, _DEAREST)) - 1)
        self._products = products[rank]
        ones = np.ones((len(Phi), 1))
        self._directions = np.linalg.qr(np.hstack([Phi[:, order[:rank] - 1], ones]))[0]
        self._coefficients = self._directions.T @ np.hstack([Phi, ones])
        self._size = size

    def factorise(self, model: DenseModel, free: Mask) -> None:
        """Make the factor on the values that are free."""
        self._known = free.copy()
        self._root = np.sqrt(model.convex_ridge)
        self._scale = model.scale * free / self._root
        self._factors = []
        for scale in self._scale.T:
            Y = self._coefficients * scale
            gram = blas.dsyrk(1.0, Y.T, trans=1, lower=1)
            gram[np.diag_indices(len(gram))] += _JITTER * np.trace(gram) + 1e-300
            self._factors.append(lapack.dpotrf(gram, lower=1, overwrite_a=1)[0])
        parts = [(self._directions @ np.tril(J)).astype(model.kind) for J in self._factors]
        hessian, k = model.hessian.astype(model.kind), len(self._coefficients)
        H: Array = np.empty((k * len(parts), k * len(parts)), order="F", dtype=model.kind)
        for c, one in enumerate(parts):
            for e, other in enumerate(parts[: c + 1]):
                block = (one * hessian[:, c, e, None]).T @ other
                H[c * k : (c + 1) * k, e * k : (e + 1) * k] = block
        H[np.diag_indices(len(H))] += 1.0
        potrf, self._potrs = lapack.get_lapack_funcs(("potrf", "potrs"), (H,))
        self._whole, _ = potrf(H, lower=1, overwrite_a=1)

    def solve(self, model: DenseModel, r: Array, free: Mask) -> Array:
        """Return the preconditioner times r: by the factor on what it knows, else by the diagonal."""
        z = r / model.diagonal
        if self._known is not None:
            own = np.where(self._known, r, 0.0) / self._root
            inner = self._each(self._coefficients @ (self._scale * own), transposed=False)
            flat = inner.T.reshape(-1, 1)
            flat = self._potrs(self._whole, flat, lower=1)[0] - flat
            inner = self._each(flat.reshape(inner.T.shape).T, transposed=True)
            own = (own + self._scale * (self._coefficients.T @ inner)) / self._root
            z = np.where(self._known, own, z)
        return np.where(free, z, 0.0)

    def _each(self, values: Array, *, transposed: bool) -> Array:
        """Return J^-1, or its transpose, times values of shape (rank, n_scores)."""
        parts = [
            lapack.dtrtrs(factor, values[:, c], lower=1, trans=int(transposed))[0]
            for c, factor in enumerate(self._factors)
        ]
        return np.column_stack(parts)


class CoupledNewton:
    """Newton steps for several scores; the preconditioner is kept from step to step."""

    def __init__(self, rows: DenseRows | StreamedRows) -> None:
        self.rows = rows
        self._preconditioner = Preconditioner()
        self._seen: tuple[Point, Array] | None = None
        self._before = -np.inf

    def is_settling(self, point: Point) -> bool:
        """Whether the log posterior has hardly risen since the last call."""
        gain, self._before = point.log_posterior - self._before, point.log_posterior
        return gain < _SETTLING * self.rows.problem.Phi.shape[0]

    def step(self, point: Point, least_bend: float) -> tuple[Array, Array] | None:
        """Return weights and biases after a step; None where the model has no minimum.

        `least_bend` is `BOUND` for the bound of the prior's curvature, `OWN` for the curvature itself,
        `CONVEX` for as much of it as leaves the model convex.
        """
        rows = self.rows
        if isinstance(rows, StreamedRows):
            found = StreamedModel(rows, point, least_bend).step()
        else:
            if self._seen is None or self._seen[0] is not point:
                self._seen = None  # not both in memory
                likelihood, label = rows.problem.likelihood, rows.problem.label
                self._seen = point, likelihood.hessian(point.latent, label)
            bend, preconditioner = self._seen[1], self._preconditioner
            found = DenseModel(rows, point, least_bend, bend, preconditioner).step()
        if found is None:
            return None
        weight = np.zeros_like(point.weight)
        weight[self.rows.index] = found[0]
        return weight, found[1]
