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

_JITTER = 1e-12  # for groups of classes that the reference never takes for each other
_LEAST_SCHUR = 1e-9  # share of a column that must be left outside the span of those chosen


@dataclass(frozen=True)
class Scan:
    """What the quadratic model at a submodel says of every column.

    Attributes
    ----------
    score : ndarray, shape (n_basis,), or (n_basis, n_classes) for several classes
        Derivative of minus the objective in each weight.
    schur : ndarray, shape (n_basis,), or (n_basis, n_classes, n_classes) for several classes
        Curvature of each weight, or of a column's weights, once those of the submodel and the biases follow;
        infinite (on the diagonal) for what is not to be added.
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
    moving = Moving(target, submodel.columns)
    terms = target.terms(submodel.latent)
    H, _ = moving.quadratic(submodel.latent, terms)
    n = moving.n_weights
    H[np.diag_indices(n)] += moving.penalty
    inverse = cho_solve(cho_factor(H + _JITTER * np.diag(np.diag(H))), np.eye(len(H)))
    n_scores, n_basis = target.n_scores, target.Phi.shape[1]
    score, schur = np.empty((n_basis, n_scores)), np.empty((n_basis, n_scores, n_scores))
    cross: list[Array] = []
    for c in range(n_scores):
        weighted = moving.weighted(target.mass[:, None] * terms.hessian[:, c])
        both = target.Phi.T @ np.column_stack([weighted, target.mass * terms.score[:, c]])
        score[:, c] = both[:, -1]
        cross.append(np.ascontiguousarray(both[:, :-1].T))
        response = inverse @ cross[c]
        for d in range(c + 1):
            own = target.squared_columns(target.mass * terms.hessian[:, c, d])
            if c == d:
                own += target.penalty
            schur[:, c, d] = schur[:, d, c] = own - np.einsum("ij,ij->j", cross[d], response)
            if c == d:  # in the span of the members there is nothing to gain
                barred = (own == 0) | (schur[:, c, c] < _LEAST_SCHUR * own) | ~target.free[:, c]
                barred[submodel.columns] = True
                schur[barred, c, c] = np.inf
    if n_scores > 1:
        return Scan(score, schur, np.empty((0, n_basis)), np.empty(0))
    return Scan(score[:, 0], schur[:, 0, 0], response[:n], np.diag(inverse)[:n])


def addition_gains(target: Target, found: Scan) -> Array:
    """Return half of Rao's score statistic of each column, zero where the sign rule forbids it.

    For several classes that of a column's weights together, those that would go the wrong way being left
    at zero, or of its best weight alone: what is gained at least.
    """
    right = target.allows(found.score)
    if found.score.ndim == 1:
        return np.where(right, 0.5 * found.score**2 / found.schur, 0.0)
    own = np.einsum("jcc->jc", found.schur)
    alone = np.where(right, 0.5 * found.score**2 / own, 0.0)
    moves = np.isfinite(own)
    eye = np.eye(own.shape[1])
    for _ in range(own.shape[1]):
        both = moves[:, :, None] & moves[:, None, :]
        pull = np.where(moves, found.score, 0.0)
        step = np.linalg.solve(np.where(both, found.schur, eye), pull[..., None])[..., 0]
        wrong = moves & (step != 0) & ~target.allows(step)
        if not wrong.any():
            break
        moves &= ~wrong
    together = np.where(moves, 0.5 * found.score * step, 0.0).sum(axis=1)
    return np.maximum(together, alone.max(axis=1))


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
    gain[~target.allows(new)] = -np.inf
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
