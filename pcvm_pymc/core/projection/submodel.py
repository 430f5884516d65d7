"""The nearest submodel on given columns, and what each further column would gain."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.multinomial import FractionalTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.projection.target import Columns, Target
from pcvm_pymc.core.quadratic import BorderedGram

_MAX_NEWTON = 100
_MOST_HALVINGS = 20
_DAMPING = 1e-12  # curvature added to the biases, where classes are never confused
_ROUNDING = 1e-15  # of the objective, nats per row
_LEAST_SCHUR = 1e-9  # share of a column that must be left outside the span of those chosen


@dataclass(frozen=True)
class Submodel:
    """The nearest model on some columns.

    Attributes
    ----------
    columns : ndarray of int, shape (n_vectors,)
        Ascending; columns whose weights the sign constraint fixes at zero are left out.
    weight : ndarray, shape (n_vectors,), or (n_vectors, n_classes) for several classes
        There the weight in a vector's own class is zero and the others are at most zero; free weights are
        zero in the first class.
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
        """Number of columns whose weights are not all zero."""
        return len(self.columns)


class _Point(NamedTuple):
    """Values of weights and biases, latent values, shape (n_obs, n_scores), and the objective there."""

    value: Array
    latent: Array
    terms: FractionalTerms
    objective: float


class _System:
    """Newton's equations for the weights on some columns, score by score, and the biases, last."""

    def __init__(self, target: Target, columns: Columns) -> None:
        self.target, self.columns, n_scores = target, columns, target.n_scores
        free = self.free = target.free[columns]
        self.n_weights = n = int(free.sum())
        ends = np.cumsum([0, *free.sum(axis=0)])
        first = int(n_scores > 1)  # of several biases the first is zero
        self.n_values = n + n_scores - first
        one, A = np.ones((len(target.Phi), 1)), target.Phi[:, columns]
        #: columns of Phi and 1 of each score, and the positions of their values
        self.designs: list[Array] = []
        self.at: list[Columns] = []
        for c in range(n_scores):
            bias = [n + c - first] if c >= first else []
            self.designs.append(np.hstack([A[:, free[:, c]], one[:, : len(bias)]]))
            self.at.append(np.array([*range(ends[c], ends[c + 1]), *bias], dtype=np.intp))
        self.ridge = np.full(self.n_values, _DAMPING)
        self.ridge[:n] = np.broadcast_to(target.penalty[columns], free.T.shape)[free.T]
        self.sign = np.ones(n)
        if target.sign is not None:
            self.sign = target.sign[columns].reshape(free.shape).T[free.T]

    def packed(self, weight: Array, bias: Any) -> Array:
        """Return weights and biases as one vector."""
        biases = np.reshape(bias, -1)
        flat = weight.reshape(self.free.shape).T[self.free.T]
        return np.append(flat, biases[len(biases) - (self.n_values - self.n_weights) :])

    def unpacked(self, value: Array) -> tuple[Array, Any]:
        """Return weights and biases of a vector."""
        weight, biases = np.zeros(self.free.shape), value[self.n_weights :]
        weight.T[self.free.T] = value[: self.n_weights]
        if self.target.n_scores == 1:
            return weight[:, 0], float(biases[0])
        return weight, np.append(0.0, biases)

    def point(self, value: Array) -> _Point:
        """Return the objective at some values."""
        target, n = self.target, self.n_weights
        parts = zip(self.designs, self.at, strict=True)
        latent = np.column_stack([one @ value[at] for one, at in parts])
        terms = target.terms(latent[:, 0] if target.n_scores == 1 else latent)
        ridge = 0.5 * float(self.ridge[:n] @ np.square(value[:n]))
        return _Point(value, latent, terms, target.divergence_of(terms) + ridge)

    def hessian(self, terms: FractionalTerms) -> Array:
        """Return the divergence's second derivatives in all values."""
        row_weight = self.target.mass[:, None, None] * terms.hessian
        H = np.zeros((self.n_values, self.n_values))
        for c, one in enumerate(self.designs):
            for d, other in enumerate(self.designs[: c + 1]):
                block = (row_weight[:, c, d, None] * one).T @ other
                H[np.ix_(self.at[c], self.at[d])] = block
                H[np.ix_(self.at[d], self.at[c])] = block.T
        return H

    def newton(self, here: _Point) -> Array:
        """Return the minimiser of the quadratic model under the sign constraint.

        Biases are unconstrained: they are eliminated first.
        """
        n, H, ridge = self.n_weights, self.hessian(here.terms), self.ridge[: self.n_weights]
        H[n:, n:] += np.diag(self.ridge[n:])
        slope = np.zeros(len(H))
        for c, one in enumerate(self.designs):
            slope[self.at[c]] = (self.target.mass * here.terms.score[:, c]) @ one
        goal = H @ here.value + slope
        follow = np.linalg.solve(H[n:, n:], np.column_stack([H[n:, :n], goal[n:]]))
        gram = BorderedGram(
            np.asfortranarray(H[:n, :n] - H[:n, n:] @ follow[:, :n]), np.zeros(n), 1.0
        )
        weight, _ = solve_nonnegative(
            gram,
            self.sign / np.sqrt(ridge),
            1.0,
            (goal[:n] - H[:n, n:] @ follow[:, n], 0.0),
            (here.value[:n] != 0) | (slope[:n] * self.sign > 0),
            constrained=self.target.sign is not None,
        )
        return np.append(weight, follow[:, n] - follow[:, :n] @ weight)


def fit_submodel(
    target: Target, columns: Iterable[int], start: Submodel | None = None, *, tol: float = 1e-14
) -> Submodel:
    """Return the submodel on some columns that is nearest to the reference.

    Newton steps under the sign constraint, halved until the objective does not rise.

    Parameters
    ----------
    target : Target
    columns : iterable of int
    start : Submodel, optional
        Its weights and bias are where Newton's steps start. Default: zeros.
    tol : float
        The steps stop once one lowers the objective (nats per row) by no more than this.

    Returns
    -------
    Submodel
    """
    chosen = np.unique(np.fromiter(columns, dtype=np.intp))
    chosen = chosen[target.penalty[chosen] > 0]  # a column of zeros has no weight
    system = _System(target, chosen)
    weight, bias = np.zeros(system.free.shape), np.zeros(target.n_scores)
    if start is not None:
        _, here, there = np.intersect1d(chosen, start.columns, return_indices=True)
        weight[here] = start.weight.reshape(-1, target.n_scores)[there]
        bias = start.bias
    at = system.point(system.packed(weight, bias))
    for _ in range(_MAX_NEWTON):
        step, share = system.newton(at) - at.value, 1.0
        new = system.point(at.value + step)
        for _ in range(_MOST_HALVINGS):
            if new.objective <= at.objective + _ROUNDING:
                break
            share /= 2
            new = system.point(at.value + share * step)
        else:
            break
        gain, at = at.objective - new.objective, new
        if gain <= tol:
            break
    weight, bias = system.unpacked(at.value)
    kept = weight.reshape(system.free.shape).any(axis=1)
    latent = at.latent[:, 0] if target.n_scores == 1 else at.latent
    return Submodel(chosen[kept], weight[kept], bias, latent, at.objective)


@dataclass(frozen=True)
class Scan:
    """Slopes and curvatures of all columns at a submodel.

    Attributes
    ----------
    score : ndarray, shape (n_basis, n_scores)
        Derivative of minus the objective in each weight.
    schur : ndarray, shape (n_basis, n_scores, n_scores)
        Curvature in a column's weights, once those of the submodel and the biases are optimised;
        infinite on the diagonal for columns that cannot be added.
    """

    score: Array
    schur: Array

    @cached_property
    def own(self) -> Array:
        """Curvature in each weight alone, shape (n_basis, n_scores)."""
        return np.einsum("jcc->jc", self.schur)


def scan(target: Target, submodel: Submodel) -> Scan:
    """Return slopes and curvatures of all columns, by one product with Phi for each score."""
    system, terms = _System(target, submodel.columns), target.terms(submodel.latent)
    H = system.hessian(terms) + np.diag(system.ridge)
    factor = cho_factor(H + _DAMPING * np.diag(np.diag(H)))
    n_scores, n_basis = target.n_scores, target.Phi.shape[1]
    score, schur = np.empty((n_basis, n_scores)), np.empty((n_basis, n_scores, n_scores))
    cross: list[Array] = []  # second derivatives in new weights and the values of the submodel
    for c in range(n_scores):
        row_weight = target.mass[:, None] * terms.hessian[:, c]
        weighted = np.empty((len(row_weight), system.n_values + 1))
        for d, one in enumerate(system.designs):
            weighted[:, system.at[d]] = row_weight[:, d, None] * one
        weighted[:, -1] = target.mass * terms.score[:, c]
        both = target.Phi.T @ weighted
        score[:, c] = both[:, -1]
        cross.append(np.ascontiguousarray(both[:, :-1].T))
        response = cho_solve(factor, cross[c])
        for d in range(c + 1):
            own = target.squared_columns(row_weight[:, d]) + (c == d) * target.penalty
            schur[:, c, d] = schur[:, d, c] = own - np.einsum("ij,ij->j", cross[d], response)
        spanned = (own == 0) | (schur[:, c, c] < _LEAST_SCHUR * own)
        schur[spanned | ~target.free[:, c], c, c] = np.inf
        schur[submodel.columns, c, c] = np.inf
    return Scan(score, schur)


def addition_gains(target: Target, found: Scan) -> Array:
    """Return half of Rao's score statistic of each column, zero where the sign rule forbids it.

    For several classes the larger of two lower bounds: that of its best weight alone, and that of all its
    weights together, those of the wrong sign being left at zero one round after the other.
    """
    alone = np.where(target.allows(found.score), 0.5 * found.score**2 / found.own, 0.0).max(axis=1)
    if target.n_scores == 1:
        return alone
    moves, eye = np.isfinite(found.own), np.eye(target.n_scores)
    for _ in range(target.n_scores):
        both = moves[:, :, None] & moves[:, None, :]
        pull = np.where(moves, found.score, 0.0)
        step = np.linalg.solve(np.where(both, found.schur, eye), pull[..., None])[..., 0]
        wrong = moves & (step != 0) & ~target.allows(step)
        if not wrong.any():
            break
        moves &= ~wrong
    together = np.where(moves, 0.5 * found.score * step, 0.0).sum(axis=1)
    return np.maximum(together, alone)
