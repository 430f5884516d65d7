"""Newton's step for several scores at once under the sign rule.

The likelihood couples the scores of a row by a matrix H of second derivatives. Score by score, or under a
bound of H, EM needs hundreds of steps. With a dense design the coupled system is solved by conjugate
gradients: products with Phi alone, preconditioned by a factor of the system projected onto the few
directions of the rows in which the basis functions mostly vary. With a streamed design one pass sums the
whole matrix, and its Cholesky factor solves the system.
"""

import numpy as np
from scipy.linalg import blas, lapack

from pcvm_pymc.core.design import row_blocks, times, transposed_times
from pcvm_pymc.core.em.rows import DenseRows, Point, StreamedRows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import POTRF, POTRS, Mask, add_products, lower_block

_ROUNDS = 20  # exchanges between free weights and those at zero: of fewer, steps need not rise
_SLOPE_TOLERANCE = 1e-8  # of a weight at zero that would rather grow, in units of the slopes
_LEAST_RIDGE = 0.1  # of R, one at the bound, in preconditioners, which are positive
# curvature of a bias without a prior, in units of its own: a shift of all scores changes nothing
_DAMPING = 1e-4
# share of the residual at which conjugate gradients stop; slopes decide where steps end
_RESIDUAL = 0.05
_LEAST_PRODUCTS = 12  # of conjugate gradients before a factor is made, however cheap that is
_MOST_PRODUCTS = 80  # of conjugate gradients after the last factor; then the step is taken as it is
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
    problem : Problem
    point : Point
    squares : ndarray, shape (n_basis + 1, n_scores)
        The diagonal of [Phi, 1]' H [Phi, 1].
    """

    def __init__(self, problem: Problem, point: Point, squares: Array) -> None:
        self.problem, self.point = problem, point
        precision = np.array([self.problem.bias_precision(float(b)) for b in point.bias])
        self.has_bias_prior = precision > 0
        with np.errstate(divide="ignore"):
            unit = np.where(self.has_bias_prior, precision, squares[-1].clip(1e-300))
            known = self.problem.hyperprior.weight_precision(point.weight)
            scale = self.problem.weight_sign / np.sqrt(known)
            self.scale = np.vstack([scale, 1.0 / np.sqrt(unit)])
        self.usable = self.scale != 0
        self.signed = np.full(self.scale.shape, self.problem.is_signed)
        self.signed[-1] = False
        self.gradient = self.scale * np.vstack([point.gradient, point.total])

    def curved(self, values: Array) -> Array:
        """Return [Phi, 1]' H [Phi, 1] times weights and biases, shape (n_basis + 1, n_scores)."""
        raise NotImplementedError

    def solve(self, free: Mask, residual: Array) -> tuple[Array, Array] | None:
        """Return a change of the free values that (nearly) solves for their residual, and what is left.

        None where the model is unbounded below.
        """
        raise NotImplementedError

    def product(self, u: Array) -> Array:
        """Return the product of the scaled, regularised Hessian and u."""
        return self.scale * self.curved(self.scale * u) + self.ridge * u

    def step(self, *, bound: bool) -> tuple[Array, Array] | None:
        """Return weights and biases at the model's minimum under the sign rule; None if it has none.

        `bound` takes the bound of the prior's curvature in place of the curvature itself.
        """
        prior, point = self.problem.hyperprior, self.point
        self.goal: Array | None = None  # of the first solution's residual
        self.ridge = np.ones(self.scale.shape)
        self.ridge[-1] = np.where(self.has_bias_prior, 1.0, _DAMPING)
        if not bound:
            self.ridge[:-1] = prior.weight_curvature_ratio(point.weight)
            if self.problem.bias == "prior":
                self.ridge[-1] = prior.bias_curvature_ratio(point.bias)
        self.root = np.sqrt(np.maximum(self.ridge, _LEAST_RIDGE))
        u = np.zeros(self.scale.shape)
        np.divide(np.vstack([point.weight, point.bias]), self.scale, out=u, where=self.usable)
        slope = u.copy()  # of the prior
        slope[-1] *= self.has_bias_prior
        residual = self.gradient - slope
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
            least = _SLOPE_TOLERANCE * (1 + np.abs(self.gradient))
            entering = ~free & (residual > least)
            if not entering.any():
                break
            free |= entering
        values = self.scale * np.where(self.signed, np.maximum(u, 0.0), u)
        return values[:-1], values[-1]


class StreamedModel(CoupledModel):
    """The model from the sums of a pass at or near the point: its whole matrix."""

    def __init__(self, rows: StreamedRows, point: Point) -> None:
        self.matrix = rows.gram(point, "coupled")
        self._shape = (point.weight.shape[1], len(point.weight) + 1)
        super().__init__(rows.problem, point, self.matrix.diagonal().reshape(self._shape).T)

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
    rows, point
        See `CoupledModel`.
    preconditioner : Preconditioner
        Kept from one model to the next.
    """

    def __init__(self, rows: DenseRows, point: Point, preconditioner: "Preconditioner") -> None:
        self.Phi, self.double, self.preconditioner = rows.Phi, rows.Phi, preconditioner
        self.hessian = rows.problem.observed.hessian(point.latent)
        diagonal = np.einsum("icc->ic", self.hessian)
        squares = np.zeros((self.Phi.shape[1], diagonal.shape[1]))
        for block in row_blocks(len(diagonal), max(1, _BLOCK // len(squares))):
            squares += transposed_times(np.square(self.Phi[block]), diagonal[block])
        squares = np.vstack([squares, diagonal.sum(axis=0)])
        super().__init__(rows.problem, point, squares)
        self.curvature = np.square(self.scale) * squares
        if self.curvature.max() < _LARGEST_SINGLE:  # half of what a product has to read
            self.Phi, self.hessian = rows.single, self.hessian.astype(np.float32)

    def curved(self, values: Array) -> Array:
        """See `CoupledModel`."""
        values = values.astype(self.hessian.dtype)
        out = np.zeros_like(values.T)
        for block in row_blocks(len(self.Phi), max(1, _BLOCK // len(values))):
            Phi = self.Phi[block]
            latent = times(Phi, values[:-1]) + values[-1]
            slope = np.einsum("icd,id->ic", self.hessian[block], latent)
            out[:, :-1] += slope.T @ Phi
            out[:, -1] += slope.sum(axis=0)
        return out.T.astype(float)

    def solve(self, free: Mask, residual: Array) -> tuple[Array, Array] | None:
        """See `CoupledModel`; by preconditioned conjugate gradients."""
        change, r, P = np.zeros_like(residual), np.where(free, residual, 0.0), self.preconditioner
        if self.goal is None:
            self.goal = _RESIDUAL * self._lengths(r)
        patience = P.patience(self, free)
        for n_products in range(patience + _MOST_PRODUCTS):
            small, small_in_diagonal = self._lengths(r) <= self.goal
            # without a factor also where curvatures are small compared with the others
            if small and (P.known is not None or small_in_diagonal):
                break
            if n_products == patience:
                P.factorise(self, free)
            if n_products in (0, patience):
                p = z = P.solve(self, r, free)
                inner = float(np.vdot(r, z))
            image = self.product(p)
            curvature = float(np.vdot(p, image))
            if curvature < 0 and self.ridge.min() < 0:
                return None
            if not (inner > 0 and curvature > 0):  # rounding, or too small to have a square
                break
            alpha = inner / curvature
            change, residual = change + alpha * p, residual - alpha * image
            r = np.where(free, residual, 0.0)
            z = P.solve(self, r, free)
            last, inner = inner, float(np.vdot(r, z))
            p = z + (inner / last) * p
        return change, residual

    def diagonal(self) -> Array:
        """Return the matrix' diagonal, R made positive."""
        return self.curvature + np.square(self.root)

    def _lengths(self, residual: Array) -> Array:
        """Return how large a residual is, as it is and in the metric of the diagonal."""
        both = residual, residual / np.sqrt(self.diagonal())
        return np.array([np.linalg.norm(values) for values in both])


class Preconditioner:
    """The diagonal, and once products have cost as much, a factor of the system on few directions.

    With Q an orthonormal basis of the directions and Y = Q' [Phi, 1] s the matrix is nearly
    ``I + Y' (Q' H Q) Y``. For ``Y Y' = J J'``, score by score, the rows of ``J^-1 Y`` are orthonormal,
    and on them it is ``I + J' Q' H Q J``. Wide basis functions vary in few directions: 1279 rows, at
    the median distance, have 15 to 160, as the weights' scale goes from 1 to 10.
    """

    def __init__(self) -> None:
        self._size, self._patience = 0.0, 0  # the squared scale of the weights that Q was made for
        self.known: Mask | None = None  # the free values that the factor was made for

    def patience(self, model: DenseModel, free: Mask) -> int:
        """Return how many products are tried before a factor is made: as many as cost the same.

        The last factor is dropped where other values are free by now.
        """
        if self.known is not None and (free ^ self.known).sum() > _MOVED * free.sum():
            self.known = None
        size, n_scores = float(np.square(model.scale[:-1]).mean()), free.shape[1]
        row_weight = model.problem.row_weight
        size *= 1.0 if row_weight is None else float(row_weight.mean())
        if not size <= 4.0 * self._size:
            # Q and Q' [Phi, 1], by a pivoted Cholesky factor of Phi' Phi
            Phi, tol = model.double, _NEGLIGIBLE / size
            gram = blas.dsyrk(1.0, Phi.T, lower=1)
            _, order, rank, _ = lapack.dpstrf(gram, tol=tol, lower=1, overwrite_a=1)
            k = n_scores * np.arange(1, rank + 2)
            # what a factor costs by its rank, in products
            products = (len(Phi) * k**2 + k**3 / 3) / (4.0 * Phi.size * max(n_scores, _NARROW))
            rank = max(0, int(np.searchsorted(products, _DEAREST)) - 1)
            ones = np.ones((len(Phi), 1))
            self._directions = np.linalg.qr(np.hstack([Phi[:, order[:rank] - 1], ones]))[0]
            self._coefficients = self._directions.T @ np.hstack([Phi, ones])
            self._size, self.known = size, None  # a factor was of other directions
            self._patience = max(_LEAST_PRODUCTS, int(products[rank]))
        return self._patience

    def factorise(self, model: DenseModel, free: Mask) -> None:
        """Make the factor on the values that are free."""
        self.known, kind = free.copy(), model.hessian.dtype
        self._scale = model.scale * free / model.root
        inverses, parts = [], []
        for scale in self._scale.T:
            Y = self._coefficients * scale
            gram = blas.dsyrk(1.0, Y.T, trans=1, lower=1)
            gram[np.diag_indices(len(gram))] += _JITTER * np.trace(gram) + 1e-300
            J = np.tril(lapack.dpotrf(gram, lower=1)[0])
            inverses.append(lapack.dtrtri(J, lower=1)[0])
            parts.append((self._directions @ J).astype(kind))
        size = len(parts) * len(J)
        H: Array = np.zeros((size, size), order="F", dtype=kind)
        add_products(H, parts, model.hessian)
        H[np.diag_indices(size)] += 1.0
        self._inverse = np.stack(inverses)
        self._factor = POTRF[H.dtype.char](H, lower=1, overwrite_a=1)[0]

    def solve(self, model: DenseModel, r: Array, free: Mask) -> Array:
        """Return the preconditioner times r: of the factorised weights by their factor, else r / diagonal."""
        z = r / model.diagonal()
        if self.known is not None:
            on_known = np.where(self.known, r / model.root, 0.0)
            inner = self._inverse @ (self._coefficients @ (self._scale * on_known)).T[:, :, None]
            flat = inner.reshape(-1, 1)
            flat = POTRS[self._factor.dtype.char](self._factor, flat, lower=1)[0] - flat
            inner = self._inverse.transpose(0, 2, 1) @ flat.reshape(inner.shape)
            on_known = on_known + self._scale * (self._coefficients.T @ inner[:, :, 0].T)
            z = np.where(self.known, on_known / model.root, z)
        return np.where(free, z, 0.0)
