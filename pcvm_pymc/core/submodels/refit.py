"""The nearest submodel on given columns: constrained Newton steps for one score or several."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lapack, lstsq

from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.multinomial import FractionalTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import BorderedGram
from pcvm_pymc.core.submodels.target import Columns, Mask, Target

__all__ = ["Moving", "Submodel", "fit_submodel", "minimise", "null_model"]

_MAX_NEWTON = 100
_DAMPING = 1e-12  # of the biases' steps, for where all curvature is gone


@dataclass(frozen=True)
class Submodel:
    """The nearest model on some columns.

    Attributes
    ----------
    columns : ndarray of int, shape (n_vectors,)
        Ascending; those whose weights the sign constraint holds at zero are left out.
    weight : ndarray, shape (n_vectors,), or (n_vectors, n_classes) for several classes
        There those of a vector's own class are zero, and the others are not positive; free ones are zero
        in the first class.
    bias : float, or ndarray, shape (n_classes,)
    latent : ndarray, shape (n_obs,) or (n_obs, n_classes)
    objective : float
        Divergence and ridge.
    """

    columns: Columns
    weight: Array
    bias: Any
    latent: Array = field(repr=False)
    objective: float

    @property
    def n_vectors(self) -> int:
        """Number of columns with a weight that is not zero."""
        return len(self.columns)


def null_model(target: Target) -> Submodel:
    """Return the bias alone: its probabilities are the mean ones."""
    several = () if target.n_scores == 1 else (target.n_scores,)
    empty = np.empty(0, dtype=np.intp)
    bias: Any = np.zeros(several) if several else 0.0
    weight, bias, _, _ = minimise(target, empty, np.empty((0, *several)), bias, tol=1e-15)
    free = Moving(target, empty)
    # the slope tells the last digits, which the objective does not
    _, bias = free.newton_point(free.at(weight, bias))
    here = free.at(weight, bias)
    return Submodel(empty, weight, bias, here.latent, here.objective)


class Moving:
    """The weights and biases that move, in one vector: score after score, the biases last."""

    def __init__(self, target: Target, columns: Columns) -> None:
        self.target, self.A = target, target.Phi[:, columns]
        self.free = target.free[columns].T
        self.designs = [self.A if each.all() else self.A[:, each] for each in self.free]
        self.ends = np.cumsum([0, *self.free.sum(axis=1)])
        self.n_weights = int(self.ends[-1])
        self.biases = slice(0, None) if target.n_scores == 1 else slice(1, None)
        self.own_penalty = target.penalty[columns]
        self.penalty = np.broadcast_to(self.own_penalty, self.free.shape)[self.free]
        self.sign = None if target.sign is None else self.packed(target.sign[columns])

    def packed(self, weight: Array) -> Array:
        """Return weights, shape (n_vectors,) or (n_vectors, n_scores), as a vector."""
        return weight.reshape(len(weight), self.target.n_scores).T[self.free]

    def unpacked(self, vector: Array) -> tuple[Array, Any]:
        """Return weights and biases of a vector."""
        weight = np.zeros(self.free.shape)
        weight[self.free] = vector[: self.n_weights]
        if self.target.n_scores == 1:
            return weight[0], float(vector[-1])
        return weight.T.copy(), np.append(0.0, vector[self.n_weights :])

    def weighted(self, row_weight: Array) -> Array:
        """Return the columns of all that moves times the row weights of their scores.

        Shape (n_obs, n_moving); `row_weight` has shape (n_obs, n_scores).
        """
        parts = [w[:, None] * each for w, each in zip(row_weight.T, self.designs, strict=True)]
        return np.column_stack([*parts, row_weight[:, self.biases]])

    def quadratic(self, latent: Array, terms: FractionalTerms) -> tuple[Array, Array]:
        """Return H and t of the divergence's model ``v'Hv / 2 - t'v`` at a latent function."""
        target, n = self.target, self.n_weights
        _, score, bend = terms
        row_weight = target.mass[:, None, None] * bend
        response = np.einsum("icd,id->ic", row_weight, latent.reshape(len(latent), -1))
        response += target.mass[:, None] * score
        total = response.sum(axis=0)[self.biases]
        H = np.empty((n + len(total), n + len(total)))
        for c, one in enumerate(self.designs):
            rows = slice(self.ends[c], self.ends[c + 1])
            for d, other in enumerate(self.designs[: c + 1]):
                block = (row_weight[:, c, d, None] * one).T @ other
                at = slice(self.ends[d], self.ends[d + 1])
                H[rows, at] = block
                H[at, rows] = block.T
            H[n:, rows] = row_weight[:, c, self.biases].T @ one
            H[rows, n:] = H[n:, rows].T
        H[n:, n:] = row_weight.sum(axis=0)[self.biases, self.biases]
        pull = [values @ one for values, one in zip(response.T, self.designs, strict=True)]
        return H, np.concatenate([*pull, total])

    def newton_point(self, at: "_At", tilt: Array | None = None) -> tuple[Array, Any]:
        """Return weights and biases that minimise the quadratic model under the sign rule."""
        H, goal = self.quadratic(at.latent, at.terms)
        n = self.n_weights
        if tilt is not None:
            goal[:n] -= self.packed(tilt)
        own = np.diag_indices(n)
        H[own] += self.penalty
        for i, b in enumerate(np.reshape(at.bias, -1)[self.biases], start=n):
            H[i, i] += _DAMPING
            goal[i] += _DAMPING * b
        factor, info = lapack.dpotrf(H, lower=1)
        if (
            info == 0
        ):  # where the sign rule does not bind, the plain solution is the constrained one
            solution = lapack.dpotrs(factor, goal[:, None], lower=1)[0][:, 0]
            right = self.sign is None or (solution[:n] * self.sign > 0).all()
            if np.isfinite(solution).all() and right:
                return self.unpacked(solution)
        if self.sign is None:
            return self.unpacked(lstsq(H, goal)[0])
        H[own] -= self.penalty
        passive = self.packed(at.weight) * self.sign > 0
        return self.unpacked(self._constrained(H, goal, self.sign, passive))

    def _constrained(self, H: Array, goal: Array, sign: Array, passive: Mask) -> Array:
        """Return the constrained minimiser: the biases, which are free, follow the weights.

        `passive` are the weights that are expected not to be zero.
        """
        n = self.n_weights
        follow = np.linalg.solve(H[n:, n:], np.column_stack([H[n:, :n], goal[n:]]))
        gram = BorderedGram(
            np.asfortranarray(H[:n, :n] - H[:n, n:] @ follow[:, :n]), np.zeros(n), 1.0
        )
        pull = goal[:n] - H[:n, n:] @ follow[:, n]
        scale = sign / np.sqrt(self.penalty)
        weight, _ = solve_nonnegative(gram, scale, 1.0, (pull, 0.0), passive)
        return np.append(weight, follow[:, n] - follow[:, :n] @ weight)

    def at(self, weight: Array, bias: Any, tilt: Array | None = None) -> "_At":
        """Return the latent function, what the rows say of it, and the objective."""
        latent = self.A @ weight + bias
        terms = self.target.terms(latent)
        value = self.target.divergence_of(terms)
        value += 0.5 * float((self.own_penalty @ np.square(weight)).sum())
        if tilt is not None:
            value += float(np.vdot(tilt, weight))
        return _At(weight, bias, latent, terms, value)


class _At(NamedTuple):
    """Where the descent stands."""

    weight: Array
    bias: Any
    latent: Array
    terms: FractionalTerms
    objective: float


def minimise(
    target: Target,
    columns: Columns,
    weight: Array,
    bias: Any,
    *,
    tilt: Array | None = None,
    tol: float,
) -> tuple[Array, Any, Array, float]:
    """Return weights, bias, latent function and objective by damped constrained Newton steps.

    Shapes as for `Submodel`; `tilt`, the slope of a linear term in the weights (the L1 penalty under the
    sign rule), has that of the weights.
    """
    free = Moving(target, columns)
    here = free.at(weight, bias, tilt)
    for _ in range(_MAX_NEWTON):
        to_weight, to_bias = free.newton_point(here, tilt)
        step = 1.0
        while True:
            there = free.at(
                here.weight + step * (to_weight - here.weight),
                here.bias + step * (to_bias - here.bias),
                tilt,
            )
            if there.objective <= here.objective or step < 1e-6:
                break
            step /= 2
        gain = here.objective - there.objective
        if gain > 0:
            here = there
        if not gain > tol:
            break
    return here.weight, here.bias, here.latent, here.objective


def fit_submodel(
    target: Target, columns: Iterable[int], start: Submodel | None = None, *, tol: float = 1e-14
) -> Submodel:
    """Return the submodel on some columns that is nearest to the reference.

    Parameters
    ----------
    target : Target
    columns : iterable of int
    start : Submodel, optional
        Where to begin: its weights on columns that are not in it count as zero.
    tol : float
        Newton's steps stop once one lowers the objective (nats per row) by no more than this.

    Returns
    -------
    Submodel
    """
    chosen = np.unique(np.fromiter(columns, dtype=np.intp))
    chosen = chosen[target.penalty[chosen] > 0]  # a column of zeros has no weight
    start = start or null_model(target)
    weight = np.zeros((len(chosen), *start.weight.shape[1:]))
    _, here, there = np.intersect1d(chosen, start.columns, assume_unique=True, return_indices=True)
    weight[here] = start.weight[there]
    weight, bias, latent, value = minimise(target, chosen, weight, start.bias, tol=tol)
    kept = weight.reshape(len(weight), target.n_scores).any(axis=1)
    return Submodel(chosen[kept], weight[kept], bias, latent, value)
