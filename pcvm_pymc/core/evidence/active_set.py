"""The bases in a model, rank-one updates of their covariance, and what every basis would add."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.linalg.lapack import dpotrf

from pcvm_pymc.core.evidence.computed import ComputedColumns
from pcvm_pymc.core.evidence.held import HeldColumns
from pcvm_pymc.core.evidence.posterior import (
    Basis,
    Posterior,
    inverse_triangle,
    orthogonal_basis,
    posterior,
    sum_of_squares,
)
from pcvm_pymc.core.evidence.problem import EvidenceProblem
from pcvm_pymc.core.evidence.result import Index
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Normal
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "WELL_CONDITIONED",
    "ActiveSet",
    "Probe",
    "Selection",
    "at_products",
    "best_change",
    "empty_set",
    "gains",
    "is_well_conditioned",
    "leave_one_out",
    "refreshed",
]

_TINY, _HUGE = np.finfo(float).tiny, 1e100
_LOST = 1e-6  # of phi' B phi: what is smaller has lost half of its digits in a difference
# condition up to which a regression's inner products tell enough, whose rounding it multiplies
WELL_CONDITIONED = 1e6
_BLOCK = 512  # columns at a time, so that no second matrix of the size of the design is held

type Columns = Array | ComputedColumns | HeldColumns


class Probe(NamedTuple):
    """A column outside the model, beside those within.

    Attributes
    ----------
    pull : ndarray, shape (m,)
        ``p = beta Sigma Phi' phi``.
    S : float
        ``phi' C^-1 phi``.
    products : ndarray, shape (n_columns,)
        Its inner products with all columns.
    overlap : ndarray, shape (n_columns,)
        The same under C^-1.
    """

    pull: Array
    S: float
    products: Array
    overlap: Array


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The bases in a model whose rows all have one precision beta, and the covariance of their weights.

    Attributes
    ----------
    index : ndarray of int, shape (m,)
        Columns of the design, in the order of their coming.
    alpha : ndarray, shape (m,)
        Precisions of their weights.
    covariance : ndarray, shape (m, m)
        ``Sigma = (beta Phi' Phi + A)^-1``.
    cross : ndarray, shape (m, n_columns)
        Inner products of the kept columns with all.
    S : ndarray, shape (n_columns,)
        ``phi' C^-1 phi`` of every column, with the whole of C = 1 / beta + Phi A^-1 Phi' (Chmielewski et
        al. 2019 eq. 13, corrected: its first line has C_-i for C).
    n_updates : int
        Rank-one steps since everything was computed anew.
    """

    index: Index
    alpha: Array
    covariance: Array
    cross: Array
    S: Array
    n_updates: int = 0

    def extended(self, column: int, alpha: float, probe: Probe) -> Self:
        """Return it with one column more (Tipping & Faul 2003, appendix)."""
        variance = 1.0 / (alpha + probe.S)
        corner = variance * probe.pull
        return replace(
            self,
            index=np.append(self.index, column),
            alpha=np.append(self.alpha, alpha),
            covariance=np.block(
                [
                    [self.covariance + np.outer(corner, probe.pull), -corner[:, None]],
                    [-corner[None], np.array([[variance]])],
                ]
            ),
            cross=np.vstack([self.cross, probe.products]),
            S=self.S - variance * probe.overlap**2,
            n_updates=self.n_updates + 1,
        )

    def reestimated(self, place: int, alpha: float, beta: float) -> Self:
        """Return it with another precision of the column at a place."""
        change = alpha - self.alpha[place]
        kappa = change / (1.0 + change * self.covariance[place, place])
        new = self.alpha.copy()
        new[place] = alpha
        return self._shrunk(place, kappa, self._left(place, beta), alpha=new)

    def without(self, place: int, beta: float) -> Self:
        """Return it without the column at a place."""
        kappa = 1.0 / self.covariance[place, place]
        out = self._shrunk(place, kappa, self._left(place, beta))
        return replace(
            out,
            index=np.delete(out.index, place),
            alpha=np.delete(out.alpha, place),
            covariance=np.delete(np.delete(out.covariance, place, 0), place, 1),
            cross=np.delete(out.cross, place, 0),
        )

    def _left(self, place: int, beta: float) -> Array:
        return beta * (self.covariance[:, place] @ self.cross)

    def _shrunk(self, place: int, kappa: float, left: Array, **more: Any) -> Self:
        """Return it after Sigma has lost kappa times the square of its column at a place."""
        column = self.covariance[:, place]
        return replace(
            self,
            covariance=self.covariance - kappa * np.outer(column, column),
            S=self.S + kappa * left**2,
            n_updates=self.n_updates + 1,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class ActiveSet:
    """The bases in a model, and what every basis would add to it.

    Where the likelihood is not quadratic the covariance is Laplace's.

    Attributes
    ----------
    index, alpha, covariance, S
        As for `Selection`.
    mean : ndarray, shape (m,)
        Of the weights.
    Q : ndarray, shape (n_columns,)
        ``phi' C^-1 t`` of every column.
    log_evidence : float
    """

    index: Index
    alpha: Array
    mean: Array
    covariance: Array
    S: Array
    Q: Array
    log_evidence: float


def leave_one_out(selection: Selection | ActiveSet, mean: Array, Q: Array) -> tuple[Array, Array]:
    """Return s and q of every column: S and Q with the column itself taken out of C.

    In the model they are ``1 / Sigma_jj - alpha_j`` and ``mu_j / Sigma_jj``, which does not cancel as
    ``alpha S / (alpha - S)`` does; but for a column of so large an alpha that it is all but out.

    Parameters
    ----------
    selection : Selection or ActiveSet
    mean : ndarray, shape (m,) or (m, n_responses)
        Of the weights in the model.
    Q : ndarray, shape (n_columns,) or (n_columns, n_responses)
        ``phi' C^-1 t`` of every column.
    """
    index, alpha = selection.index, selection.alpha
    s, q = selection.S.copy(), Q.copy()
    variance = selection.covariance.diagonal()
    inside = 1.0 / variance - alpha
    faint = inside <= 1e-8 * alpha
    if faint.any():
        left = alpha[faint] - s[index[faint]]
        inside[faint] = alpha[faint] * s[index[faint]] / np.where(left > 0, left, np.inf)
    s[index] = inside
    q[index] = (mean.T / variance).T
    return np.maximum(s, _TINY), q


def best_change(s: Array, square: Array, n_responses: int = 1) -> tuple[Array, Array]:
    """Return the best precision of each column, and what it gains in log evidence over being out.

    Chmielewski et al. (2019) eqs. 13-14: ``alpha = s^2 / (q^2 - s)`` where that is positive, else infinite,
    which gains nothing. For several responses whose weights share the precision, ``n s^2 / (q'q - n s)``.

    Parameters
    ----------
    s, square : ndarray, shape (n_columns,)
        s, and q^2 or q'q, with the column itself taken out.
    n_responses : int
    """
    excess = square - n_responses * s
    better = np.flatnonzero(excess > 0)
    alpha, gain = np.full(len(s), np.inf), np.zeros(len(s))
    s, excess = s[better], excess[better]
    with np.errstate(over="ignore"):
        precision = n_responses * s * (s / excess)
        ratio = np.minimum(square[better] / s / n_responses, _HUGE)  # beyond: lost digits
    gain[better] = 0.5 * n_responses * (ratio - 1.0 - np.log(ratio)) * np.isfinite(precision)
    alpha[better] = precision
    return alpha, gain


def gains(state: ActiveSet) -> tuple[Array, Array]:
    """Return the gain in log evidence of each column's best change, and the precision it asks for.

    Columns that are outside and stay there gain nothing.
    """
    s, q = leave_one_out(state, state.mean, state.Q)
    alpha, gain = best_change(s, q * q)
    now, s, q = state.alpha, s[state.index], q[state.index]
    gain[state.index] -= 0.5 * (np.log(now / (now + s)) + q * q / (now + s))
    gain[alpha == 0] = 0.0
    return gain, alpha


def empty_set(design: Columns, target: Array, likelihood: Likelihood) -> ActiveSet:
    """Return the model without any basis."""
    none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
    bare = ActiveSet(
        index=none,
        alpha=nothing,
        mean=nothing,
        covariance=np.empty((0, 0)),
        S=nothing,
        Q=nothing,
        log_evidence=0.0,
    )
    return refreshed(design, target, likelihood, bare)


def refreshed(
    design: Columns, target: Array, likelihood: Likelihood, state: ActiveSet
) -> ActiveSet:
    """Return the state with everything but the precisions computed anew, to full precision."""
    if isinstance(design, HeldColumns) and isinstance(likelihood, Normal):
        known = _Products(
            design, design.cross(state.index), design.with_target(target), design.square
        )
        found = _of_products(known, target, likelihood, state, WELL_CONDITIONED)
        if found is not None:
            return found
    Phi = design[:, state.index]
    end = posterior(Phi, state.alpha, target, likelihood, state.mean)
    return _set_at(design, state.index, Phi, end)


def is_well_conditioned(state: ActiveSet, square: Array, beta: float) -> bool:
    """Whether inner products tell a regression's state to the digits that count.

    The condition is that of the posterior precision with a unit diagonal: what decides, whatever the scales
    of the weights; and S, a difference, has to have kept its digits outside the model.

    Parameters
    ----------
    state : ActiveSet
    square : ndarray, shape (n_columns,)
        Squared norms of the columns, one or zero.
    beta : float
    """
    variance = state.covariance.diagonal()
    if not (variance > 0).all() or not float((state.alpha + beta) @ variance) < WELL_CONDITIONED:
        return False
    kept = (_LOST * beta) * square < state.S
    kept[state.index] = True
    return bool(np.count_nonzero(kept) >= np.count_nonzero(square))


class _Products(NamedTuple):
    """A regression's columns, inner products of those in the model and of the targets with all, squares."""

    columns: Any
    cross: Array
    target: Array
    square: Array


def at_products(
    gram: Array, problem: EvidenceProblem, state: ActiveSet, noise: float, limit: float = np.inf
) -> ActiveSet | None:
    """Return the state of a regression at another noise, computed from inner products.

    None where they are too ill-conditioned. Without a limit a computation by QR stays due.

    Parameters
    ----------
    gram : ndarray, shape (n_columns, n_columns)
        Inner products of the columns.
    problem : EvidenceProblem
    state : ActiveSet
    noise : float
    limit : float
        On the condition of the posterior precision.
    """
    products = problem.target @ problem.Phi
    known = _Products(problem.Phi, gram[state.index], products, np.diag(gram))
    return _of_products(known, problem.target, problem.likelihood_at(noise), state, limit)


def _of_products(
    known: _Products, target: Array, likelihood: Any, state: ActiveSet, limit: float
) -> ActiveSet | None:
    """Return the state of a regression, its precisions kept; None where it is too ill-conditioned.

    The mean is corrected once by the residual, as a second step of Newton's method does.
    """
    index, alpha, beta = state.index, state.alpha, likelihood.bound
    scale, cross = 1.0 / np.sqrt(alpha), known.cross
    inner = cross[:, index] * scale
    inner *= (beta * scale)[:, None]
    inner.flat[:: len(index) + 1] += 1.0
    factor, failed = dpotrf(inner, overwrite_a=True) if len(index) else (inner, 0)
    if failed:
        return None
    half = scale[:, None] * inverse_triangle(factor)
    covariance = half @ half.T
    variance = covariance.diagonal()
    # times the diagonal of the precision: what decides, whatever the scales of the weights
    if not float((alpha + beta) @ variance) < limit:
        return None
    Phi = known.columns[:, index]
    mean = beta * (covariance @ known.target[index])
    mean += covariance @ (beta * ((target - Phi @ mean) @ Phi) - alpha * mean)
    U = half.T @ cross
    S = known.square - beta * np.einsum("ij,ij->j", U, U)
    lost = S <= _LOST
    S *= beta
    held = alpha * variance
    S[index] = np.where(held < 0.5, alpha * (1.0 - held), S[index])
    lost[index] = False
    if lost.any():
        _mend(S, np.flatnonzero(lost), known, Phi, (alpha, beta * covariance, beta))
    value = likelihood.log_likelihood(Phi @ mean, target) - 0.5 * float(mean @ (alpha * mean))
    return ActiveSet(
        index=index,
        alpha=alpha,
        mean=mean,
        covariance=covariance,
        S=S,
        Q=beta * (known.target - mean @ cross),
        log_evidence=value - float(np.log(factor.diagonal()).sum()),
    )


def _mend(
    S: Array, lost: Index, known: _Products, Phi: Array, at: tuple[Array, Array, float]
) -> None:
    """Compute S as a sum of squares where a difference has lost digits; `at` has A, beta Sigma and beta."""
    alpha, pulled, beta = at
    lost = lost[known.square[lost] > 0]
    for begin in range(0, len(lost), _BLOCK):
        some = lost[begin : begin + _BLOCK]
        pull = pulled @ known.cross[:, some]
        left = known.columns[:, some] - Phi @ pull
        S[some] = beta * np.einsum("ij,ij->j", left, left) + alpha @ (pull * pull)


def _set_at(design: Columns, index: Index, Phi: Array, end: Posterior) -> ActiveSet:
    """Return the state at a posterior; `Phi` are the columns in the model."""
    basis = orthogonal_basis(Phi, end.alpha, end.curvature)
    if isinstance(design, ComputedColumns):
        S, Q = design.prices(basis, end, _LOST)
    elif isinstance(design, HeldColumns):
        S, Q = _prices(design, basis, end)
    else:  # C^-1 (Phi mu + B^-1 score) = score at the posterior mean
        S, Q = _sparsity(design, basis, end), design.T @ end.score
    return ActiveSet(
        index=index,
        alpha=end.alpha,
        mean=end.mean,
        covariance=end.covariance,
        S=S,
        Q=Q,
        log_evidence=end.log_evidence,
    )


def _prices(design: HeldColumns, basis: Basis, end: Posterior) -> tuple[Array, Array]:
    """Return S and Q of every column in one pass over the bases, but for those that lose digits."""
    root = np.sqrt(end.curvature)
    every = design.products(np.column_stack([basis.upper * root[:, None], end.score]))
    U, whole = every[:-1], design.weighted_squares(end.curvature)
    S = whole - np.einsum("ij,ij->j", U, U)
    lost = np.flatnonzero(S / whole.clip(_TINY) <= _LOST)
    for begin in range(0, len(lost), _BLOCK):
        some = lost[begin : begin + _BLOCK]
        S[some] = sum_of_squares(basis, root[:, None] * design[:, some], U[:, some])
    return S, every[-1]


def _sparsity(design: Array, basis: Basis, end: Posterior) -> Array:
    """Return S of every column, ``phi' B phi - |U|^2``, or as a sum of squares where digits are lost."""
    root = np.sqrt(end.curvature)
    U = (basis.upper * root[:, None]).T @ design
    whole = _weighted_norms(design, end.curvature)
    S = whole - np.einsum("ij,ij->j", U, U)
    lost = np.flatnonzero(S / whole.clip(_TINY) <= _LOST)
    for begin in range(0, len(lost), _BLOCK):
        some = lost[begin : begin + _BLOCK]
        S[some] = sum_of_squares(basis, root[:, None] * design[:, some], U[:, some])
    return S


def _weighted_norms(design: Array, curvature: Array) -> Array:
    """Return phi' B phi of each column."""
    if curvature.min() == curvature.max():  # regression: one pass with two factors is much faster
        return curvature[0] * np.einsum("ij,ij->j", design, design)
    out = np.empty(design.shape[1])
    for begin in range(0, len(out), _BLOCK):
        out[begin : begin + _BLOCK] = curvature @ np.square(design[:, begin : begin + _BLOCK])
    return out
