"""Newton's step for several scores at once, by preconditioned conjugate gradients under the sign rule.

The likelihood couples the scores of a row by a matrix of second derivatives. One score at a time, or under a
bound of it, hundreds of steps are needed; the coupled system is solved by products with Phi alone,
preconditioned by a factor of it or of what is near it.
"""

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from pcvm_pymc.core.em.mstep import bias_precision
from pcvm_pymc.core.em.nonnegative import Mask
from pcvm_pymc.core.em.points import Point, WholeRows
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["CoupledNewton"]

_ROUNDS = 4  # exchanges between the weights that are free to move and those at zero
_MOST_PRODUCTS = 80
_RELATIVE = 0.03  # of the residual, at which conjugate gradients stop
_SLOPE_TOLERANCE = 1e-8
_CENTRE = 20.0  # a star's own entry over the sum of the others
_SLOW = 60  # products, after which the factors are made anew


class _Quadratic:
    """The quadratic model at a point, in units u of the prior's standard deviations.

    Minus the log posterior is ``1/2 u'u - t'u + 1/2 |H^(1/2) (Phi s u - ...)|^2``; a sign rule says u >= 0.
    """

    def __init__(self, rows: WholeRows, point: Point) -> None:
        problem = rows.problem
        prior: Any = problem.hyperprior
        self.Phi = rows.Phi
        self.hessian = problem.likelihood.hessian(point.latent, problem.label)
        old = point.weight[rows.index]
        sign = problem.weight_sign[rows.index]
        self.scale = sign / np.sqrt(prior.weight_precision(old))
        precision = np.array([bias_precision(problem, float(b)) for b in point.bias])
        self.bias_ridge = (precision > 0).astype(float)
        with np.errstate(divide="ignore"):
            own = np.sqrt(np.einsum("icc->c", self.hessian).clip(1e-300))
            self.bias_scale = np.where(precision > 0, 1.0 / np.sqrt(precision), 1.0 / own)
        usable = self.scale != 0
        self.start = np.zeros((len(old) + 1, old.shape[1]))
        np.divide(old, self.scale, out=self.start[:-1], where=usable)
        np.divide(point.bias, self.bias_scale, out=self.start[-1], where=self.bias_scale > 0)
        self.usable = np.vstack([usable, self.bias_scale > 0])
        self.signed = np.vstack([np.full(usable.shape, problem.is_signed), self.bias_scale < 0])
        self.pull = self.pulled(point.terms.slope)

    def _scaled(self, v: Array) -> Array:
        return np.vstack([self.scale * v[:-1], self.bias_scale * v[-1]])

    @cached_property
    def diagonal(self) -> Array:
        """The matrix' own."""
        own = np.einsum("icc->ic", self.hessian)
        squares = np.vstack([np.square(self.Phi).T @ own, own.sum(axis=0)])
        scale = np.vstack([self.scale, self.bias_scale])
        return np.square(scale) * squares + 1.0

    def latent(self, u: Array) -> Array:
        """Return the change of the scores, shape (n_obs, n_scores)."""
        return self.Phi @ (self.scale * u[:-1]) + self.bias_scale * u[-1]

    def pulled(self, slope: Array) -> Array:
        """Return s times Phi' (and 1') of values of the rows."""
        return self._scaled(np.vstack([(slope.T @ self.Phi).T, slope.sum(axis=0)]))

    def product(self, u: Array) -> Array:
        """Return the matrix times u: s Phi' H Phi s u + u."""
        out = self.pulled(np.einsum("icd,id->ic", self.hessian, self.latent(u)))
        out[:-1] += u[:-1]
        out[-1] += self.bias_ridge * u[-1]
        return out

    def natural(self, u: Array) -> tuple[Array, Array]:
        """Return weights and biases of u."""
        return self.scale * u[:-1], self.bias_scale * u[-1]


class CoupledNewton:
    """Newton steps for several scores; factors are kept as long as they serve as a preconditioner."""

    def __init__(self, rows: WholeRows) -> None:
        self.rows = rows
        self._factors: _Whole | _Woodbury
        self._known = np.zeros((0, 0), dtype=bool)
        self._products = _SLOW + 1

    def step(self, point: Point) -> tuple[Array, Array]:
        """Return weights and biases that minimise the quadratic model at a point under the sign rule."""
        model = _Quadratic(self.rows, point)
        u = model.start.copy()
        residual = model.pull - _prior_part(model, u)  # minus the gradient at the point
        inward = residual > _SLOPE_TOLERANCE
        free = model.usable & ((u != 0) | ~model.signed | inward)
        if self._products > _SLOW:
            self._factorise(model, free)
        goal, self._products = float(np.linalg.norm(residual[free])), 0
        for _ in range(_ROUNDS):
            change, residual = self._solve(model, free, residual, goal)
            u = u + change
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
        weight[self.rows.index], bias = model.natural(np.where(model.signed, np.maximum(u, 0.0), u))
        return weight, bias

    def _solve(
        self, model: _Quadratic, free: Mask, residual: Array, goal: float
    ) -> tuple[Array, Array]:
        """Return a change of the free values that (nearly) zeroes their residual, and all residuals."""
        change = np.zeros_like(residual)
        r = np.where(free, residual, 0.0)
        z = self._preconditioned(model, r, free)
        p, inner = z, float(np.vdot(r, z))
        for _ in range(_MOST_PRODUCTS):
            if float(np.linalg.norm(r)) <= _RELATIVE * goal or inner <= 0:
                break
            bent = model.product(p)
            self._products += 1
            alpha = inner / float(np.vdot(p, bent))
            change = change + alpha * p
            residual = residual - alpha * bent
            r = np.where(free, residual, 0.0)
            z = self._preconditioned(model, r, free)
            last, inner = inner, float(np.vdot(r, z))
            p = z + (inner / last) * p
        return change, residual

    def _factorise(self, model: _Quadratic, free: Mask) -> None:
        """Make the preconditioner anew, on the values that are free to move."""
        small = free.sum() <= len(self.rows.Phi)
        self._known = free.copy()
        self._factors = _Whole(model, free) if small else _Woodbury(model, free)

    def _preconditioned(self, model: _Quadratic, r: Array, free: Mask) -> Array:
        """Return the preconditioner times r: the factors on what they know, else the diagonal."""
        z = r / model.diagonal
        z.T[self._known.T] = self._factors.solve(np.where(free, r, 0.0).T[self._known.T])
        return np.where(free, z, 0.0)


def _designs(model: _Quadratic, free: Mask) -> Iterator[Array]:
    """Yield each score's scaled columns that are free to move, the bias among them."""
    for c in range(free.shape[1]):
        columns = np.flatnonzero(free[:-1, c])
        design = model.Phi[:, columns] * model.scale[columns, c]
        if free[-1, c]:
            design = np.column_stack([design, np.full(len(design), model.bias_scale[c])])
        yield design


def _ridges(model: _Quadratic, free: Mask) -> Array:
    """Return the prior's curvature of each free value, score by score; a trace of it for free biases."""
    ridge = np.ones(free.shape)
    ridge[-1] = np.maximum(model.bias_ridge, 1e-8)
    return ridge.T[free.T]


class _Whole:
    """The factor of the whole matrix, for few values."""

    def __init__(self, model: _Quadratic, free: Mask) -> None:
        designs = list(_designs(model, free))
        ends = np.cumsum([0, *(each.shape[1] for each in designs)])
        H = np.zeros((ends[-1], ends[-1]), order="F")
        for c, one in enumerate(designs):
            for k, other in enumerate(designs[: c + 1]):
                block = (one * model.hessian[:, c, k, None]).T @ other
                H[ends[c] : ends[c + 1], ends[k] : ends[k + 1]] = block
        H[np.diag_indices(len(H))] += _ridges(model, free)
        self._factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)

    def solve(self, r: Array) -> Array:
        """Return the inverse times r."""
        return lapack.dpotrs(self._factor, r, lower=1)[0]


class _Woodbury:
    """The factors of an approximation whose scores are coupled through one value for each row.

    A row's second derivatives are all but those of a star, its own class tied to each of the others: for
    the differences to the own score they are nearly diagonal. A star is ``D - d d' / 1'd`` with an own
    entry of d far above the others. The scores' blocks are factored one by one and their coupling through
    a matrix of the size of the rows (as Rasmussen & Williams 2006, Algorithm 3.3, for the softmax), in
    single precision: it is a preconditioner.
    """

    def __init__(self, model: _Quadratic, free: Mask) -> None:
        d = _star(model.hessian)
        share = d / np.sqrt(np.maximum(d.sum(axis=1), 1e-30))[:, None]
        ridge = _ridges(model, free)
        self._free, self._model, self._share, self._factors = free.copy(), model, share, []
        self._ends = np.cumsum([0, *free.sum(axis=0)])
        coupling = np.eye(len(d), order="F", dtype=np.float32)
        for c, design in enumerate(_designs(model, free)):
            H = np.asfortranarray((design * d[:, c, None]).T @ design)
            H[np.diag_indices(len(H))] += ridge[self._ends[c] : self._ends[c + 1]]
            factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)
            self._factors.append(np.asfortranarray(factor, dtype=np.float32))
            side = np.asfortranarray((design * share[:, c, None]).T)
            half = blas.dtrsm(1.0, factor, side, lower=1, overwrite_b=1).astype(np.float32)
            coupling -= half.T @ half
        coupling[np.diag_indices(len(coupling))] += 1e-4
        self._coupling, _ = lapack.spotrf(coupling, lower=1, overwrite_a=1)

    def _blocks_solve(self, r: Array) -> Array:
        parts = [
            lapack.spotrs(factor, r[a:b].astype(np.float32), lower=1)[0]
            for factor, (a, b) in zip(self._factors, itertools.pairwise(self._ends), strict=True)
        ]
        return np.concatenate(parts).astype(float)

    def solve(self, r: Array) -> Array:
        """Return the inverse times r."""
        first, model = self._blocks_solve(r), self._model
        u = np.zeros(self._free.shape)
        u.T[self._free.T] = first
        rows = np.einsum("ic,ic->i", self._share, model.latent(u)).astype(np.float32)
        rows = lapack.spotrs(self._coupling, rows, lower=1)[0].astype(float)
        back = model.pulled(self._share * rows[:, None])
        return first + self._blocks_solve(back.T[self._free.T])


def _star(hessian: Array) -> Array:
    """Return d of a star for each row, shape (n_obs, n_scores)."""
    diagonal = np.einsum("icc->ic", hessian).clip(1e-30)
    own = diagonal.argmax(axis=1)
    rows = np.arange(len(own))
    d = diagonal * (1.0 + 1.0 / _CENTRE)
    d[rows, own] = 0.0
    d[rows, own] = _CENTRE * d.sum(axis=1)
    return d


def _prior_part(model: _Quadratic, u: Array) -> Array:
    """Return the prior's slope at u."""
    out = u.copy()
    out[-1] *= model.bias_ridge
    return out
