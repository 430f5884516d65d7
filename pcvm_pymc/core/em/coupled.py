"""Newton's step for several scores at once, by preconditioned conjugate gradients under the sign rule.

The likelihood couples the scores of a row by a matrix of second derivatives. One score at a time, or under a
bound of it, hundreds of steps are needed; the coupled system is solved by products with Phi alone,
preconditioned by each score's own factor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from pcvm_pymc.core.em.mstep import bias_precision
from pcvm_pymc.core.em.nonnegative import BorderedGram
from pcvm_pymc.core.em.points import Point, WholeRows
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["CoupledNewton"]

type Mask = NDArray[np.bool_]

_ROUNDS = 12  # exchanges between the weights that are free to move and those at zero
_MOST_PRODUCTS = 80
_RELATIVE = 1e-3  # of the residual, at which conjugate gradients stop
_SLOPE_TOLERANCE = 1e-8
_SLOW = 25  # products, after which the factors are made anew


class _Quadratic:
    """The quadratic model at a point, in units u of the prior's standard deviations.

    Minus the log posterior is ``1/2 u'u - t'u + 1/2 |H^(1/2) (Phi s u - ...)|^2``; a sign rule says u >= 0.
    """

    def __init__(self, rows: WholeRows, point: Point) -> None:
        problem = rows.problem
        prior: Any = problem.hyperprior
        self.Phi, self.terms = rows.Phi, point.terms
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
        pull = np.vstack([(point.terms.slope.T @ self.Phi).T, point.terms.slope.sum(axis=0)])
        self.pull = self._scaled(pull)

    def _scaled(self, v: Array) -> Array:
        return np.vstack([self.scale * v[:-1], self.bias_scale * v[-1]])

    def product(self, u: Array) -> Array:
        """Return the matrix times u: s Phi' H Phi s u + u."""
        latent = self.Phi @ (self.scale * u[:-1]) + self.bias_scale * u[-1]
        bent = np.einsum("icd,id->ic", self.hessian, latent)
        out = self._scaled(np.vstack([(bent.T @ self.Phi).T, bent.sum(axis=0)]))
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
        self._factors: list[tuple[NDArray[np.intp], Array]] = []
        self._index = rows.index
        self._products = _SLOW + 1

    def step(self, point: Point) -> tuple[Array, Array]:
        """Return weights and biases that minimise the quadratic model at a point under the sign rule."""
        model = _Quadratic(self.rows, point)
        u = model.start.copy()
        residual = model.pull - _prior_part(model, u)  # minus the gradient at the point
        inward = residual > _SLOPE_TOLERANCE
        free = model.usable & ((u != 0) | ~model.signed | inward)
        if self._products > _SLOW or self._index is not self.rows.index:
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
        z = self._preconditioned(r, free)
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
            z = self._preconditioned(r, free)
            last, inner = inner, float(np.vdot(r, z))
            p = z + (inner / last) * p
        return change, residual

    def _factorise(self, model: _Quadratic, free: Mask) -> None:
        """Factor each score's own block on the weights that are free to move, and its bias."""
        self._factors, self._index = [], self.rows.index
        for c in range(free.shape[1]):
            columns = np.flatnonzero(free[:-1, c])
            gram = BorderedGram.of(self.rows.Phi[:, columns], model.hessian[:, c, c])
            _, H = gram.block(np.ones(len(columns), dtype=bool))
            full = np.append(model.scale[columns, c], model.bias_scale[c])
            H *= full
            H *= full[:, None]
            H[np.diag_indices(len(columns))] += 1.0
            H[-1, -1] += max(model.bias_ridge[c], 1e-8)
            factor, _ = lapack.dpotrf(H, lower=1, overwrite_a=1)
            self._factors.append((np.append(columns, len(free) - 1), factor))

    def _preconditioned(self, r: Array, free: Mask) -> Array:
        """Return the preconditioner times r: the factors on what they know, else the identity."""
        z = r.copy()
        for c, (columns, factor) in enumerate(self._factors):
            z[columns, c] = lapack.dpotrs(factor, r[columns, c], lower=1)[0]
        return np.where(free, z, 0.0)


def _prior_part(model: _Quadratic, u: Array) -> Array:
    """Return the prior's slope at u."""
    out = u.copy()
    out[-1] *= model.bias_ridge
    return out
