"""Moves of the kernel's width within EM (Chen et al. 2009 eq. 10, corrected)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.rows import DenseRows, Point
from pcvm_pymc.core.pieces.kernels import rbf
from pcvm_pymc.core.pieces.probit import Array

_LONGEST = 0.5  # step in log(width)
_HALVINGS = 6  # of a step that would lower the log posterior


@dataclass(frozen=True)
class ScalarRBFMoves:
    """The RBF's width.

    Attributes
    ----------
    squared_distance : ndarray, shape (n_obs, n_basis)
    bounds : tuple of float
        Between which EM moves the width.
    prior : callable, optional
        Log prior density of the width; None is flat.
    """

    squared_distance: Array
    bounds: tuple[float, float]
    prior: Callable[[Any], float] | None = None

    def basis(self, width: Any) -> Array:
        """Return Phi at a width."""
        return rbf(self.squared_distance, float(width))

    def latent_slope(self, Phi: Array, width: Any, weight: Array) -> Array:
        """Return d (Phi w) / d log(width), shape (n_obs, 1)."""
        slope = 2.0 * (self.squared_distance / width / width) * Phi
        return (slope @ weight)[:, None]

    def log_density(self, width: Any) -> float:
        """Return the log prior density of the width or widths."""
        return 0.0 if self.prior is None else self.prior(width)

    def take(self, columns: NDArray[np.intp]) -> "ScalarRBFMoves":
        """Return the same for some of the basis functions."""
        return replace(self, squared_distance=self.squared_distance[..., columns])


@dataclass(frozen=True)
class FeatureRBFMoves(ScalarRBFMoves):
    """The RBF's widths, one for each feature (the vector theta of chen2009 eq. 10).

    Attributes
    ----------
    squared_distance : ndarray, shape (n_features, n_obs, n_basis)
        Along each feature.
    """

    def basis(self, width: Any) -> Array:
        """Return Phi at widths."""
        return np.exp(-np.tensordot(width**-2.0, self.squared_distance, 1))

    def latent_slope(self, Phi: Array, width: Any, weight: Array) -> Array:
        """Return d (Phi w) / d log(width), shape (n_obs, n_features)."""
        each = [
            2.0 / w**2 * ((D * Phi) @ weight)
            for w, D in zip(width, self.squared_distance, strict=True)
        ]
        return np.stack(each, axis=1)


def improved_width(rows: DenseRows, point: Point) -> Point:
    """Return the point after one damped Gauss-Newton step on log(width); never a worse one.

    The slope is eq. 10 of Chen et al. (2009), corrected: the printed form has the sign reversed and lacks b.
    """
    moves = rows.moves
    if moves is None or point.n_active == 0:
        return point
    weight = point.weight[rows.index, 0]
    derivative = moves.latent_slope(rows.Phi, point.width, weight)
    slope, bend = _log_prior_derivatives(moves, point.width)
    slope = slope + point.terms.slope[:, 0] @ derivative
    bend = np.diag(bend) + (derivative.T * point.terms.curvature) @ derivative
    step = np.linalg.solve(bend + (1e-12 + 1e-9 * np.trace(bend)) * np.eye(len(slope)), slope)
    step = np.clip(step, -_LONGEST, _LONGEST)
    for _ in range(_HALVINGS):
        width = np.clip(point.width * np.exp(_like(point.width, step)), *moves.bounds)
        if np.all(width == point.width):
            return point
        Phi = moves.basis(width)
        moved = rows.at_width(point.weight, point.bias, point, width, Phi)
        if moved.log_posterior >= point.log_posterior:
            rows.set_basis(Phi)
            return moved
        step = step / 2
    return point


def _like(width: Any, step: Array) -> Any:
    """Return a step in the form of the width, a number or one for each feature."""
    return float(step[0]) if np.ndim(width) == 0 else step


def _log_prior_derivatives(moves: Any, width: Any) -> tuple[Array, Array]:
    """Return slope and (non-negative) downward curvature of the log prior in each log(width)."""
    h, here = 1e-4, moves.log_density(width)
    directions = [_like(width, each) for each in np.eye(np.size(width))]
    above = np.array([moves.log_density(width * np.exp(h * each)) for each in directions])
    below = np.array([moves.log_density(width * np.exp(-h * each)) for each in directions])
    return (above - below) / (2 * h), np.maximum(0.0, (2 * here - above - below) / h**2)
