"""Rows whose removal moves them far: the objective without each of them, maximised for all at once.

Conjugate gradients in Polak and Ribiere's directions, the quadratic model's inverse as the metric of the
weights that are active at the mode and the diagonal for those that may enter, under the sign rule. Two
products with the basis functions a step serve all rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.loo.mode import Index, Mode
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["carried_on"]

_REST = 0.01  # a held-out latent value is at rest once it moves by no more
_STEPS = 12
_GAIN = 1e-3  # nats that a step would bring a row that is followed to its end: what creeps moves little too
_STEPS_TO_THE_END = 20


@dataclass(frozen=True)
class _Ends:
    """Weights without each row, shape (n_basis, n_scores, n_rows), and biases, (n_scores, n_rows)."""

    weight: Array
    bias: Array

    def dot(self, other: "_Ends") -> Array:
        """Return inner products, shape (n_rows,)."""
        product = np.einsum("bcj,bcj->j", self.weight, other.weight)
        return product + np.einsum("cj,cj->j", self.bias, other.bias)

    def plus(self, step: Any, other: "_Ends") -> "_Ends":
        """Return this and `step` times another."""
        return _Ends(self.weight + step * other.weight, self.bias + step * other.bias)

    def take(self, columns: Index) -> "_Ends":
        """Return some of the columns."""
        return _Ends(self.weight[:, :, columns], self.bias[:, columns])

    def where(self, chosen: NDArray[np.bool_], other: "_Ends") -> "_Ends":
        """Return these columns where they are chosen, else the other's."""
        return _Ends(
            np.where(chosen, self.weight, other.weight), np.where(chosen, self.bias, other.bias)
        )


def carried_on(
    mode: Mode, rows: Index, moved: Array, *, to_the_end: bool
) -> tuple[Array, NDArray[np.bool_]]:
    """Return held-out latent values of rows, shape (n_rows, n_scores), and which did not come to rest.

    Parameters
    ----------
    mode : Mode
    rows : ndarray of int, shape (n_rows,)
    moved : ndarray, shape (n_rows, n_scores)
        How far the quadratic model moves their latent values.
    to_the_end : bool
        Whether rows that creep are followed, which takes several times as long: one in a hundred would
        have moved on by half a unit and more.
    """
    task, live = _Removals(mode, rows), np.arange(len(rows))
    point = task.start(moved)
    value, slope, latent = task.at(point)
    held = latent.copy()
    metric = task.metric(point, slope)
    direction, inner = metric, slope.dot(metric)
    for _ in range(_STEPS_TO_THE_END if to_the_end else _STEPS):
        point, value, new_slope, new_latent = task.searched(point, direction, value, slope)
        held[live] = new_latent
        moving = np.abs(new_latent - latent).max(axis=1) > _REST
        if to_the_end:
            still = np.flatnonzero(~moving)
            ends, pull = point.take(still), new_slope.take(still)
            gain = pull.dot(_Removals(mode, rows[live[still]]).metric(ends, pull))
            moving[still] = gain > _GAIN
        keep = np.flatnonzero(moving)
        live, latent = live[keep], new_latent[keep]
        if len(live) == 0:
            break
        task, value, inner = _Removals(mode, rows[live]), value[keep], inner[keep]
        point, slope, new_slope = point.take(keep), slope.take(keep), new_slope.take(keep)
        metric = task.metric(point, new_slope)
        fresh = new_slope.dot(metric)
        turned = np.maximum((fresh - slope.dot(metric)) / np.maximum(inner, 1e-300), 0.0)
        direction = task.feasible(point, metric.plus(turned, direction.take(keep)))
        uphill = new_slope.dot(direction) > 0
        direction, slope, inner = direction.where(uphill, metric), new_slope, fresh
    moving = np.zeros(len(rows), dtype=bool)
    moving[live] = True
    return held, moving


class _Removals:
    """The objectives without each of some rows."""

    def __init__(self, mode: Mode, rows: Index) -> None:
        self.mode, self.rows, problem = mode, rows, mode.problem
        prior: Any = problem.hyperprior
        #: weights that may not move at all, shape (n_basis, n_scores, n_rows)
        self.fixed = mode.own[:, None, None] == rows[None, None, :]
        self.fixed = np.repeat(self.fixed, problem.n_scores, axis=1)
        if mode.is_fixed or prior.holds_zeros:
            self.fixed |= (mode.weight == 0)[:, :, None]
        sign = problem.weight_sign.reshape(mode.weight.shape) if problem.is_signed else 0.0
        self.sign = np.broadcast_to(sign, mode.weight.shape)[:, :, None]

    def start(self, moved: Array) -> _Ends:
        """Return where the quadratic model ends, within the sign rule."""
        mode, n_rows = self.mode, len(self.rows)
        weight = np.zeros((*mode.weight.shape, n_rows))
        bias = np.repeat(mode.bias[:, None], n_rows, axis=1)
        values = mode.scale[:, None] * mode.ends_without(self.rows, moved)
        mode.scatter(values, weight, bias)
        return _Ends(self._allowed(weight), bias)

    def _allowed(self, weight: Array) -> Array:
        return np.where(weight * self.sign < 0, 0.0, weight)

    def at(self, point: _Ends) -> tuple[Array, _Ends, Array]:
        """Return the objectives' values and slopes, and the held-out latent values."""
        mode, n_scores, n_rows = self.mode, self.mode.problem.n_scores, len(self.rows)
        likelihood = mode.problem.likelihood
        value, pull = self._prior_terms(point)
        held = np.empty((n_rows, n_scores))
        n_basis = len(point.weight)
        flat = point.weight.reshape(n_basis, -1)
        for block, Phi, label in mode.blocks():
            latent = (Phi @ flat).reshape(len(Phi), n_scores, n_rows) + point.bias
            by_row = latent.transpose(0, 2, 1).reshape(-1, n_scores)
            target = np.repeat(label, n_rows, axis=0)
            own_shape = mode.shaped(by_row)
            density = likelihood.log_density(own_shape, target).reshape(-1, n_rows)
            slope = likelihood.score(own_shape, target).reshape(len(Phi), n_rows, n_scores)
            slope = slope.transpose(0, 2, 1).copy()
            inside = np.flatnonzero((self.rows >= block.start) & (self.rows < block.stop))
            own = self.rows[inside] - block.start
            held[inside] = latent[own, :, inside]
            density[own, inside], slope[own, :, inside] = 0.0, 0.0
            value += density.sum(axis=0)
            pull.weight[:] += (slope.reshape(len(Phi), -1).T @ Phi).T.reshape(point.weight.shape)
            pull.bias[:] += slope.sum(axis=0)
        pull.bias[~mode.has_bias] = 0.0
        return value, pull, held

    def _prior_terms(self, point: _Ends) -> tuple[Array, _Ends]:
        """Return log prior densities and their slopes."""
        mode = self.mode
        problem, prior = mode.problem, mode.problem.hyperprior
        known: Any = mode.precision[:, :, None]
        if mode.is_fixed:
            finite = np.where(np.isfinite(known), known, 0.0)
            value = -0.5 * np.einsum("bcj,bcj->j", finite * point.weight, point.weight)
        else:
            known = prior.weight_precision(point.weight)  # type: ignore[union-attr]
            density = prior.log_weight_density(point.weight)  # type: ignore[union-attr]
            value = np.where(self.fixed, 0.0, density).sum(axis=(0, 1))
        with np.errstate(invalid="ignore"):
            weight = np.where(point.weight == 0, 0.0, -known * point.weight)
        bias = np.zeros_like(point.bias)
        if problem.bias == "prior":
            bias = -prior.bias_precision(point.bias) * point.bias  # type: ignore[union-attr]
            value = value + prior.log_bias_density(point.bias).sum(axis=0)  # type: ignore[union-attr]
        return value, _Ends(weight, bias)

    def metric(self, point: _Ends, slope: _Ends) -> _Ends:
        """Return directions uphill: slopes in the metric of the mode."""
        mode = self.mode
        free = self._free(point, slope.weight)
        pull = np.where(free, slope.weight, 0.0)
        weight, bias = pull / mode.diagonal[:, :, None], np.zeros_like(slope.bias)
        values = mode.scale[:, None] * mode.gathered(pull, slope.bias)
        mode.scatter(mode.scale[:, None] * mode.applied(self.rows, values), weight, bias)
        return _Ends(np.where(free, weight, 0.0), bias)

    def _free(self, point: _Ends, towards: Array) -> NDArray[np.bool_]:
        """Return which weights may go the way that is given."""
        held = (point.weight == 0) & (towards * self.sign <= 0) & (self.sign != 0)
        return ~(held | self.fixed)

    def feasible(self, point: _Ends, direction: _Ends) -> _Ends:
        """Return directions that do not leave the sign rule at once."""
        free = self._free(point, direction.weight)
        return _Ends(np.where(free, direction.weight, 0.0), direction.bias)

    def searched(
        self, point: _Ends, direction: _Ends, value: Array, slope: _Ends
    ) -> tuple[_Ends, Array, _Ends, Array]:
        """Return points along directions that are not lower, by the secant and by shorter steps."""
        ahead = slope.dot(direction)
        best = self._try(point, 1.0, direction)
        step = ahead / np.maximum(ahead - best[2].dot(direction), 1e-12)
        if (np.abs(step - 1.0) < 0.2).all() and (best[1] >= value).all():
            return best
        step = np.clip(step, 0.02, 4.0)
        for _ in range(3):
            tried = self._try(point, step, direction)
            better = tried[1] > best[1]
            best = (
                tried[0].where(better, best[0]),
                np.where(better, tried[1], best[1]),
                tried[2].where(better, best[2]),
                np.where(better[:, None], tried[3], best[3]),
            )
            if (best[1] >= value).all():
                return best
            step = np.where(best[1] >= value, step, 0.2 * step)
        stays = (point, value, slope, self.at(point)[2])
        lower = best[1] < value
        return (
            stays[0].where(lower, best[0]),
            np.where(lower, value, best[1]),
            stays[2].where(lower, best[2]),
            np.where(lower[:, None], stays[3], best[3]),
        )

    def _try(self, point: _Ends, step: Any, direction: _Ends) -> tuple[_Ends, Array, _Ends, Array]:
        new = point.plus(step, direction)
        new = _Ends(self._allowed(new.weight), new.bias)
        return new, *self.at(new)
