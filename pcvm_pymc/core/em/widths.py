"""Moves of the kernel's width within EM (Chen et al. 2009 eq. 10, corrected)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.rows import DenseRows, Point, StreamedRows
from pcvm_pymc.core.pieces.kernels import RBF, Laplacian
from pcvm_pymc.core.pieces.probit import Array

_LONGEST = 0.5  # step in log(width): a factor of 1.6
_HALVINGS = 6  # of a step that would lower the log posterior; then the width stays
_DIFFERENCE = 1e-4  # in log(width): second differences of the log prior keep eight digits


@dataclass(frozen=True)
class WidthMoves:
    """The width of ``exp(-distance / width^order)``: of the RBF, order 2, or the Laplacian, 1.

    Attributes
    ----------
    distance : ndarray, shape (n_obs, n_basis)
    bounds : tuple of float
        Between which EM moves the width.
    prior : callable, optional
        Log prior density of the width; None is flat.
    """

    distance: Array
    bounds: tuple[float, float]
    prior: Callable[[Any], float] | None = None
    order: int = 2

    def basis(self, width: Any) -> Array:
        """Return Phi at a width."""
        kernel = RBF if self.order > 1 else Laplacian
        return kernel(float(width)).of_distances(self.distance.copy())

    def latent_slope(self, Phi: Array, width: Any, weight: Array) -> Array:
        """Return d (Phi w) / d log(width), shape (n_obs, 1)."""
        exponent = self.distance / width if self.order == 1 else self.distance / width / width
        return self.order * ((exponent * Phi) @ weight)[:, None]

    def log_density(self, width: Any) -> float:
        """Return the log prior density of the width or widths."""
        return 0.0 if self.prior is None else self.prior(width)

    def take(self, columns: NDArray[np.intp]) -> "WidthMoves":
        """Return the same for some of the basis functions."""
        return replace(self, distance=self.distance[..., columns])


@dataclass(frozen=True)
class FeatureWidthMoves(WidthMoves):
    """Widths of the same kernels, one for each feature (the vector theta of chen2009 eq. 10).

    Attributes
    ----------
    distance : ndarray, shape (n_features, n_obs, n_basis)
        Along each feature.
    """

    def basis(self, width: Any) -> Array:
        """Return Phi at widths."""
        return np.exp(-np.tensordot(width ** -float(self.order), self.distance, 1))

    def latent_slope(self, Phi: Array, width: Any, weight: Array) -> Array:
        """Return d (Phi w) / d log(width), shape (n_obs, n_features)."""
        slopes = [(D * Phi) @ weight for D in self.distance]
        return self.order / width**self.order * np.column_stack(slopes)


def improved_width(rows: DenseRows | StreamedRows, point: Point) -> Point:
    """Return the point after one damped Gauss-Newton step on log(width); never a worse one.

    The slope is eq. 10 of Chen et al. (2009), corrected: the printed form has the sign reversed and lacks b.
    """
    moves = rows.moves
    if moves is None or point.n_active == 0:
        return point
    weight = point.weight[rows.index, 0]
    derivative = moves.latent_slope(rows.Phi, point.width, weight)
    # of the log prior by differences, its downward curvature not negative
    directions = np.eye(np.size(point.width)).reshape(-1, *np.shape(point.width))
    here, above, below = (
        np.array(
            [moves.log_density(point.width * np.exp(h * direction)) for direction in directions]
        )
        for h in (0.0, _DIFFERENCE, -_DIFFERENCE)
    )
    slope = (above - below) / (2 * _DIFFERENCE) + point.terms.slope[:, 0] @ derivative
    hessian = np.diag(np.maximum(0.0, (2 * here - above - below) / _DIFFERENCE**2))
    hessian += (derivative.T * point.terms.curvature) @ derivative
    step = np.linalg.solve(hessian + (1e-12 + 1e-9 * np.trace(hessian)) * np.eye(len(slope)), slope)
    step = np.clip(step, -_LONGEST, _LONGEST).reshape(np.shape(point.width))
    before = rows.Phi, rows.width
    for _ in range(_HALVINGS):
        width = np.clip(point.width * np.exp(step), *moves.bounds)
        if np.all(width == point.width):
            break
        rows.Phi, rows.width = moves.basis(width), width
        moved = rows.at(point.weight, point.bias, point)
        if moved.log_posterior >= point.log_posterior:
            rows.grams.clear()
            return moved
        step = step / 2
    rows.Phi, rows.width = before
    return point
