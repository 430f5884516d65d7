"""The quadratic model of the log posterior of several scores at a point, from rows or from their sums."""

from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import blas

from pcvm_pymc.core.design import CoupledGram, row_blocks, times, transposed_times
from pcvm_pymc.core.em.points import ChunkedRows, Point, WholeRows
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["BOUND", "CONVEX", "OWN", "Quadratic", "RowsQuadratic", "SummedQuadratic"]

# how small the prior's curvature may be in units of its bound, the expected precision
BOUND, CONVEX, OWN = 1.0, 0.1, -1.0

# curvature of a bias without a prior, in units of its own: a shift of all scores bends nothing, and rounding
# would send them anywhere; the slopes, where the steps end, know nothing of it
_DAMPING = 1e-4

# of the diagonal in units of the prior: single precision takes a hundredth of the prior then
_LARGEST_SINGLE = 1e5

_BLOCK = 2**18  # values of a block of rows: a megabyte in single precision


class Quadratic:
    """The quadratic model at a point, in units u of the prior's standard deviations.

    Minus the log posterior is ``1/2 u'Ru - t'u + 1/2 |H^(1/2) (Phi s u - ...)|^2``; a sign rule says u >= 0.
    R, the prior's curvature, is the identity where its bound is taken, the expected precision.

    Parameters
    ----------
    rows : WholeRows or ChunkedRows
    point : Point
    least_bend : float
        `BOUND`, `CONVEX` or `OWN`: the least that R may be.
    own : ndarray, shape (n_scores,)
        The likelihood's curvature in each bias.
    """

    def __init__(
        self, rows: WholeRows | ChunkedRows, point: Point, least_bend: float, own: Array
    ) -> None:
        problem = rows.problem
        prior: Any = problem.hyperprior
        old = point.weight[rows.index]
        sign = problem.weight_sign[rows.index]
        self.scale = sign / np.sqrt(prior.weight_precision(old))
        precision = np.array([problem.bias_precision(float(b)) for b in point.bias])
        self.has_bias_prior = precision > 0
        self.is_convex = least_bend > 0
        self.ridge = np.ones((len(old) + 1, old.shape[1]))
        self.ridge[-1] = np.where(self.has_bias_prior, 1.0, _DAMPING)
        if least_bend < BOUND:
            self.ridge[:-1] = np.maximum(prior.weight_bend(old), least_bend)
            if problem.bias == "prior":
                self.ridge[-1] *= np.maximum(prior.bias_bend(point.bias), least_bend)
        with np.errstate(divide="ignore"):
            unit = np.sqrt(own.clip(1e-300))
            self.bias_scale = np.where(precision > 0, 1.0 / np.sqrt(precision), 1.0 / unit)
        usable = self.scale != 0
        self.start = np.zeros((len(old) + 1, old.shape[1]))
        np.divide(old, self.scale, out=self.start[:-1], where=usable)
        np.divide(point.bias, self.bias_scale, out=self.start[-1], where=self.bias_scale > 0)
        self.usable = np.vstack([usable, self.bias_scale > 0])
        self.signed = np.vstack([np.full(usable.shape, problem.is_signed), self.bias_scale < 0])
        self.pull = self.scaled(np.vstack(rows.gradient(point)))

    def scaled(self, values: Array) -> Array:
        """Return values of weights and biases times their units."""
        return np.vstack([self.scale * values[:-1], self.bias_scale * values[-1]])

    def curved(self, values: Array) -> Array:
        """Return [Phi, 1]' H [Phi, 1] times weights and biases, shape (n_columns + 1, n_scores)."""
        raise NotImplementedError

    @cached_property
    def squares(self) -> Array:
        """The diagonal of the same matrix, shape (n_columns + 1, n_scores)."""
        raise NotImplementedError

    @cached_property
    def diagonal(self) -> Array:
        """That of the model's matrix, made positive."""
        scale = np.vstack([self.scale, self.bias_scale])
        return np.square(scale) * self.squares + np.maximum(self.ridge, CONVEX)

    @cached_property
    def convex_ridge(self) -> Array:
        """The prior's curvature for factors, which must be positive."""
        out = np.maximum(self.ridge, CONVEX)
        out[-1, ~self.has_bias_prior] = _DAMPING
        return out

    def product(self, u: Array) -> Array:
        """Return the matrix times u: s Phi' H Phi s u, and the prior's curvature times u."""
        return self.scaled(self.curved(self.scaled(u))) + self.ridge * u

    def prior_slope(self, u: Array) -> Array:
        """Return the slope of minus the log prior at u."""
        out = u.copy()
        out[-1] *= self.has_bias_prior
        return out


class RowsQuadratic(Quadratic):
    """The model from rows in memory: by products with Phi.

    Parameters
    ----------
    rows, point, least_bend
        See `Quadratic`.
    hessian : ndarray, shape (n_obs, n_scores, n_scores)
        Minus the rows' second derivatives at the point.

    Attributes
    ----------
    kind : type
        Of products, and of factors that tell nearly where to go: single precision where it suffices.
    """

    def __init__(self, rows: WholeRows, point: Point, least_bend: float, hessian: Array) -> None:
        # labels beside their weights, where rows have any
        self.Phi, self.label, self.hessian = rows.Phi, rows.problem.label, hessian
        self.latent_shape = point.latent.shape
        super().__init__(rows, point, least_bend, np.einsum("icc->c", self.hessian))
        # half of what a product reads, and that is what it waits for; where the steps end, the slopes decide
        single = self.diagonal.max() < _LARGEST_SINGLE
        self.kind: Any = np.float32 if single else np.float64
        self._hessian: Any = self.hessian.astype(self.kind)
        self._basis: Array = rows.single if single else rows.Phi

    @cached_property
    def squares(self) -> Array:
        """See `Quadratic`."""
        own = np.einsum("icc->ic", self.hessian)
        out = np.zeros((own.shape[1], self.Phi.shape[1]))
        for block in row_blocks(len(own), max(1, _BLOCK // self.Phi.shape[1])):
            out += own[block].T @ np.square(self.Phi[block])
        return np.vstack([out.T, own.sum(axis=0)])

    def latent(self, values: Array) -> Array:
        """Return the scores of weights and biases, shape (n_obs, n_scores)."""
        return times(self.Phi, values[:-1]) + values[-1]

    def pulled(self, slope: Array) -> Array:
        """Return [Phi, 1]' times values of the rows."""
        return np.vstack([transposed_times(self.Phi, slope), slope.sum(axis=0)])

    def curved(self, values: Array) -> Array:
        """See `Quadratic`; rows by blocks, which stay in the cache from the one product to the other."""
        values = values.astype(self.kind)
        out = np.zeros(values.shape[::-1], dtype=self.kind)
        for block in row_blocks(len(self._basis), max(1, _BLOCK // len(values))):
            Phi = self._basis[block]
            latent = times(Phi, values[:-1]) + values[-1]
            slope = np.einsum("icd,id->ic", self._hessian[block], latent)
            out[:, :-1] += slope.T @ Phi
            out[:, -1] += slope.sum(axis=0)
        return out.T.astype(float)


class SummedQuadratic(Quadratic):
    """The model from sums over the rows, made where they were last asked for: near the point."""

    def __init__(self, rows: ChunkedRows, point: Point, least_bend: float) -> None:
        assert rows.coupled is not None
        self.gram: CoupledGram = rows.coupled
        self._shape = (point.weight.shape[1], len(rows.index) + 1)
        super().__init__(rows, point, least_bend, self.squares[-1])

    @cached_property
    def squares(self) -> Array:
        """See `Quadratic`."""
        return self.gram.matrix.diagonal().reshape(self._shape).T

    def curved(self, values: Array) -> Array:
        """See `Quadratic`."""
        flat = blas.dsymv(1.0, self.gram.matrix, values.T.ravel(), lower=1)
        return flat.reshape(self._shape).T
