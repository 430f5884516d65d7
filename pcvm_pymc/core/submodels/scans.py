"""Which columns promise to bring a submodel nearer to the reference, by its quadratic model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.submodels.refit import Moving, Submodel
from pcvm_pymc.core.submodels.target import Target

__all__ = [
    "Scan",
    "addition_gains",
    "best_additions",
    "best_exchanges",
    "exchange_gains",
    "scan",
]

_LEAST_SCHUR = 1e-9  # share of a column that must be left outside the span of those chosen


@dataclass(frozen=True)
class Scan:
    """What the quadratic model at a submodel says of every column.

    Attributes
    ----------
    score : ndarray, shape (n_basis,), or (n_basis, n_classes) for several classes
        Derivative of minus the objective in each weight.
    schur : ndarray, shape of `score`
        Curvature of each weight once those of the submodel and the biases follow; infinite for what is not
        to be added.
    response : ndarray, shape (n_vectors, n_basis)
        How far each member's weight falls per unit of the new weight; empty for several classes.
    variance : ndarray, shape (n_vectors,)
        Diagonal of the inverse Hessian for the members; empty for several classes.
    """

    score: Array
    schur: Array
    response: Array
    variance: Array


def scan(target: Target, submodel: Submodel) -> Scan:
    """Return slopes and curvatures of all columns at a submodel, by a product with Phi for each score."""
    free = Moving(target, submodel.columns)
    terms = target.terms(submodel.latent)
    H, _ = free.quadratic(submodel.latent, terms)
    n = free.n_weights
    H[np.diag_indices(n)] += free.penalty
    inverse = cho_solve(cho_factor(H + 1e-14 * np.diag(np.diag(H))), np.eye(len(H)))
    parts = []
    for c in range(target.n_scores):
        weighted = free.weighted(target.mass[:, None] * terms.hessian[:, c])
        both = target.Phi.T @ np.column_stack([weighted, target.mass * terms.score[:, c]])
        cross = np.ascontiguousarray(both[:, :-1].T)
        response = inverse @ cross
        own = target.squared_columns(target.mass * terms.hessian[:, c, c]) + target.penalty
        schur = own - np.einsum("ij,ij->j", cross, response)
        schur[schur < _LEAST_SCHUR * own] = np.inf  # in the span of the members: nothing to gain
        schur[submodel.columns] = np.inf
        schur[(own == 0) | ~target.free[:, c]] = np.inf
        parts.append(Scan(both[:, -1], schur, response[:n], np.diag(inverse)[:n]))
    if target.n_scores == 1:
        return parts[0]
    both = (np.column_stack([getattr(each, name) for each in parts]) for name in ("score", "schur"))
    return Scan(*both, np.empty((0, len(target.sign))), np.empty(0))


def addition_gains(target: Target, found: Scan) -> Array:
    """Return half of Rao's score statistic of each column, zero where the sign rule forbids it.

    For several classes the sum over a column's weights.
    """
    gain = 0.5 * found.score**2 / found.schur
    gain[found.score * target.sign <= 0] = 0.0
    return gain if gain.ndim == 1 else gain.sum(axis=1)


def exchange_gains(target: Target, submodel: Submodel, found: Scan) -> Array:
    """Return what the quadratic model gains by each member leaving for each column.

    Shape (n_vectors, n_basis). With t = score / schur the step of the new weight, member j would go
    to w_j - response_j t at the variance v = variance_j + response_j^2 / schur; to hold it at zero
    instead costs (w_j - response_j t)^2 / 2 v.
    """
    step = found.score / found.schur
    left = submodel.weight[:, None] - found.response * step
    variance = found.variance[:, None] + found.response**2 / found.schur
    gain = 0.5 * (found.score * step - left**2 / variance)
    gain[:, np.isinf(found.schur)] = -np.inf
    new = step + found.response / found.schur * left / variance
    gain[new * target.sign <= 0] = -np.inf
    return gain


def _top(gain: Array, count: int) -> NDArray[np.intp]:
    """Return the positions of the `count` largest positive gains, the largest first."""
    flat = gain.ravel()
    count = min(count, flat.size)
    best = np.argpartition(-flat, count - 1)[:count] if count else np.empty(0, dtype=np.intp)
    best = best[np.lexsort((best, -flat[best]))]
    return best[flat[best] > 0]


def best_additions(target: Target, found: Scan, count: int) -> list[int]:
    """Return the columns whose addition promises most, at most `count`."""
    return [int(j) for j in _top(addition_gains(target, found), count)]


def best_exchanges(
    target: Target, submodel: Submodel, found: Scan, count: int
) -> list[tuple[int, int]]:
    """Return the exchanges (member that leaves, column that enters) that promise most."""
    if submodel.n_vectors == 0:
        return []
    gain = exchange_gains(target, submodel, found)
    rows, columns = np.unravel_index(_top(gain, count), gain.shape)
    return [(int(submodel.columns[i]), int(j)) for i, j in zip(rows, columns, strict=True)]
