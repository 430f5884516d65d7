"""The class probabilities to match, the nearest submodel on given columns, and what others would gain."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import entr

from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.multinomial import FractionalTerms, fractional_terms
from pcvm_pymc.core.pieces.probit import Array, inverse_mills
from pcvm_pymc.core.quadratic import BorderedGram, Index, Mask, QuadraticModel, add_products

_LEAST_SHARE = 1e-15  # mean probability of a class, below which the class cannot be fitted
_MAX_NEWTON = 100  # steps, a guard: `tol` ends them
_MOST_HALVINGS = 20  # of a step that raises the objective, to a millionth: the rest is rounding
_DAMPING = 1e-12  # curvature added to the biases, where classes are never confused
_ROUNDING = 1e-15  # of the objective, nats per row
_LEAST_SCHUR = 1e-9  # share of a column that must be left outside the span of those chosen


@dataclass(frozen=True)
class Target:
    """The class probabilities that a submodel approximates, and the basis functions to choose from.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at the rows where the divergence is measured.
    sign : ndarray, shape (n_basis,), or (n_basis, n_classes) for several classes, or None
        Sign of each weight, -1. or +1.; for several classes +1. for the own class of each basis alone. None
        leaves the weights free.
    probability : ndarray, shape (n_obs,), or (n_obs, n_classes)
        The reference's probability of label +1, or of each class.
    row_weight : ndarray, shape (n_obs,), optional
        Relative weight of each row in the divergence, at least 0. Default: equal.
    ridge : float
        ``ridge / 2 * (w_j rms_j)^2`` is added for each weight, rms_j being the root mean square of its
        column: it makes weights finite and unique where columns coincide or p is 0 or 1 to
        rounding. The bias is not penalised.
    likelihood : Likelihood
        Of the submodel's labels; `MultinomialProbit` for several classes.

    Notes
    -----
    Several classes: a constant added to all scores does not change the probabilities. So the weight of
    each basis in its own class is fixed at zero, and those in the other classes are at most zero, which loses
    no submodel; the first bias is fixed at zero too. Free weights are fixed at zero in the first class.
    """

    Phi: Array
    sign: Array | None
    probability: Array
    row_weight: Array | None = None
    ridge: float = 1e-8
    likelihood: Likelihood = field(default_factory=Probit)

    def __post_init__(self) -> None:
        mean = self.mass @ self.probability
        share = np.array([1.0 - mean, mean]) if self.n_scores == 1 else mean
        if not (share > _LEAST_SHARE).all():
            fault = f"probability of class {int(share.argmin())} is 0 in every row"
            raise ValueError(f"{fault}; leave the class out: one class only is no reference")

    @property
    def n_scores(self) -> int:
        """Latent values of a row: 1, or the number of classes."""
        return self.likelihood.n_scores

    @cached_property
    def free(self) -> Mask:
        """Which weights are not fixed at zero, shape (n_basis, n_scores)."""
        if self.n_scores > 1 and self.sign is not None:
            return self.sign < 0
        free = np.ones((self.Phi.shape[1], self.n_scores), dtype=bool)
        free[:, 0] = self.n_scores == 1
        return free

    def allows(self, step: Array) -> Mask:
        """Return whether zero weights may move by `step`, shape (n_basis, n_scores)."""
        return step != 0 if self.sign is None else step * self.sign.reshape(step.shape) > 0

    @cached_property
    def mass(self) -> Array:
        """Relative weight of each row, sums to 1."""
        if self.row_weight is None:
            return np.full(len(self.Phi), 1.0 / len(self.Phi))
        return self.row_weight / self.row_weight.sum()

    @cached_property
    def penalty(self) -> Array:
        """Curvature of the ridge in each weight, shape (n_basis,); zero for columns of zeros."""
        return self.ridge * self.squared_columns(self.mass)

    @cached_property
    def entropy(self) -> float:
        """Mean entropy of the reference's labels, nats per row."""
        p = self.probability
        p = np.column_stack([p, 1 - p]) if self.n_scores == 1 else p
        return float(self.mass @ entr(p).sum(axis=1))

    def squared_columns(self, row_weight: Array) -> Array:
        """Return sum_i row_weight_i Phi_ij^2, shape (n_basis,), without a copy of Phi."""
        return np.einsum("i,ij,ij->j", row_weight, self.Phi, self.Phi)

    def terms(self, latent: Array) -> FractionalTerms:
        """Return what `row_terms` has of the rows at a latent function."""
        return row_terms(self.likelihood, latent, self.probability)

    def divergence(self, latent: Array, terms: FractionalTerms | None = None) -> float:
        """Return the mean Kullback-Leibler divergence from reference to `latent`, nats per row.

        `latent` has shape (n_obs,), or (n_obs, n_classes); `terms` are those of the rows, where known.
        """
        terms = self.terms(latent) if terms is None else terms
        return -float(self.mass @ terms.log_density) - self.entropy


def row_terms(likelihood: Likelihood, latent: Array, probability: Array) -> FractionalTerms:
    """Return the expected log density of each row's label, and its derivatives in the latent values.

    The expectation is over labels drawn from the reference. Its curvature is exact for probit and multinomial
    probit. Other likelihoods need not be concave: they get Fisher's information, which is never
    negative and equal to the curvature where ``p = P(+1 | f)``.

    Parameters
    ----------
    likelihood : Likelihood
    latent, probability : ndarray, shape (n_obs,), or (n_obs, n_classes) for several classes
        The latter: of label +1, or of each class.

    Returns
    -------
    log_density : ndarray, shape (n_obs,)
    score : ndarray, shape (n_obs, n_scores)
    hessian : ndarray, shape (n_obs, n_scores, n_scores)
        Minus the second derivatives.
    """
    if likelihood.n_scores > 1:
        return fractional_terms(latent, probability)
    up, p, q = np.ones(len(latent)), probability, 1 - probability
    log_density = p * likelihood.log_density(latent, up) + q * likelihood.log_density(latent, -up)
    if isinstance(likelihood, Probit):  # phi / Phi computed once for slope and curvature
        above, below = inverse_mills(latent), -inverse_mills(-latent)
        curvature = p * np.clip(above * (above + latent), 0.0, 1.0)
        curvature += q * np.clip(below * (below + latent), 0.0, 1.0)
    else:
        above, below = likelihood.score(latent, up), likelihood.score(latent, -up)
        fitted = likelihood.probability(latent)
        curvature = fitted * above**2 + (1 - fitted) * below**2
    return FractionalTerms(log_density, (p * above + q * below)[:, None], curvature[:, None, None])


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

    columns: Index
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


class _Newton:
    """Newton's equations for the weights on some columns, and the biases, in units of the ridge."""

    def __init__(self, target: Target, columns: Index, weight: Array, bias: Any) -> None:
        self.target, free, n_scores = target, target.free[columns], target.n_scores
        flat = np.zeros(n_scores)
        flat[: n_scores > 1] = np.inf  # of several biases the first is zero
        ridge = np.where(free, target.penalty[columns, None], np.inf)
        at = np.reshape(weight, free.shape), np.broadcast_to(bias, (n_scores,))
        self.model = QuadraticModel(*at, ridge, flat)
        self.designs = self.model.designs(target.Phi[:, columns])
        self.is_weight = self.model.is_ridged
        sign = np.ones(free.shape) if target.sign is None else target.sign[columns]
        self.sign = self.model.pack(sign.reshape(free.shape), flat)[self.is_weight]

    def point(self, value: Array) -> _Point:
        """Return the objective at some values."""
        parts = [design @ value[self.model.part(c)] for c, design in enumerate(self.designs)]
        latent = np.column_stack(parts)
        terms = self.target.terms(latent[:, 0] if len(parts) == 1 else latent)
        ridge = 0.5 * float(np.square(value[self.is_weight]).sum())
        return _Point(value, latent, terms, self.target.divergence(latent, terms) + ridge)

    def hessian(self, terms: FractionalTerms) -> Array:
        """Return the divergence's second derivatives in all values."""
        H = np.zeros((len(self.model.value), len(self.model.value)), order="F")
        add_products(H, self.designs, self.target.mass[:, None, None] * terms.hessian)
        H[np.diag_indices(len(H))] += np.where(self.is_weight, 0.0, _DAMPING)
        return np.tril(H) + np.tril(H, -1).T

    def minimiser(self, here: _Point) -> Array:
        """Return the minimiser of the quadratic model under the sign constraint.

        Biases are unconstrained: they are eliminated first.
        """
        H, w, b = self.hessian(here.terms), self.is_weight, ~self.is_weight
        score = self.target.mass[:, None] * here.terms.score
        slope = np.concatenate([score[:, c] @ design for c, design in enumerate(self.designs)])
        goal = H @ here.value + slope
        follow = np.linalg.solve(H[np.ix_(b, b)], np.column_stack([H[np.ix_(b, w)], goal[b]]))
        cross = H[np.ix_(w, b)]
        matrix = np.eye(int(w.sum()) + 1, order="F")  # of the solver's own bias, which is not there
        matrix[:-1, :-1] = H[np.ix_(w, w)] - cross @ follow[:, :-1]
        out = np.empty(len(H))
        out[w], _ = solve_nonnegative(
            BorderedGram(matrix),
            self.sign,
            1.0,
            (goal[w] - cross @ follow[:, -1], 0.0),
            (here.value[w] != 0) | (slope[w] * self.sign > 0),
            constrained=self.target.sign is not None,
        )
        out[b] = follow[:, -1] - follow[:, :-1] @ out[w]
        return out


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
    weight, bias = np.zeros((len(chosen), target.n_scores)), np.zeros(target.n_scores)
    if start is not None:
        _, here, there = np.intersect1d(chosen, start.columns, return_indices=True)
        weight[here] = start.weight.reshape(-1, target.n_scores)[there]
        bias[:] = start.bias
    system = _Newton(target, chosen, weight, bias)
    at = system.point(system.model.value)
    for _ in range(_MAX_NEWTON):
        step, share = system.minimiser(at) - at.value, 1.0
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
    weight, bias = np.zeros_like(weight), np.zeros_like(bias)
    system.model.unpack(system.model.scale * at.value, weight, bias)
    kept = weight.any(axis=1)
    chosen, weight = chosen[kept], weight[kept]
    if target.n_scores == 1:
        return Submodel(chosen, weight[:, 0], float(bias[0]), at.latent[:, 0], at.objective)
    return Submodel(chosen, weight, bias, at.latent, at.objective)


def addition_gains(target: Target, submodel: Submodel) -> Array:
    """Return half of Rao's score statistic of each column, zero where the sign rule forbids it.

    For several classes the larger of two lower bounds: that of its best weight alone, and that of all its
    weights together, those of the wrong sign being left at zero one round after the other. It takes one
    product with Phi for each score.
    """
    system = _Newton(target, submodel.columns, submodel.weight, submodel.bias)
    terms = target.terms(submodel.latent)
    H = system.hessian(terms) + np.diag(system.is_weight.astype(float))
    factor = cho_factor(H + _DAMPING * np.diag(np.diag(H)))
    n_scores, n_basis = target.n_scores, target.Phi.shape[1]
    # slopes; curvatures once the values of the submodel are optimised, infinite where nothing can be added
    score, schur = np.empty((n_basis, n_scores)), np.empty((n_basis, n_scores, n_scores))
    cross: list[Array] = []  # second derivatives in new weights and the values of the submodel
    for c in range(n_scores):
        row_weight = target.mass[:, None] * terms.hessian[:, c]
        weighted = [row_weight[:, d, None] * design for d, design in enumerate(system.designs)]
        both = target.Phi.T @ np.column_stack([*weighted, target.mass * terms.score[:, c]])
        score[:, c] = both[:, -1]
        cross.append(np.ascontiguousarray(both[:, :-1].T))
        response = cho_solve(factor, cross[c])
        for d in range(c + 1):
            square = target.squared_columns(row_weight[:, d]) + (c == d) * target.penalty
            schur[:, c, d] = schur[:, d, c] = square - np.einsum("ij,ij->j", cross[d], response)
        spanned = (square == 0) | (schur[:, c, c] < _LEAST_SCHUR * square)
        schur[spanned | ~target.free[:, c], c, c] = np.inf
        schur[submodel.columns, c, c] = np.inf
    single = np.einsum("jcc->jc", schur)
    alone = np.where(target.allows(score), 0.5 * score**2 / single, 0.0).max(axis=1)
    if n_scores == 1:
        return alone
    moves = np.isfinite(single)
    for _ in range(n_scores):
        both = moves[:, :, None] & moves[:, None, :]
        slope = np.where(moves, score, 0.0)
        step = np.linalg.solve(np.where(both, schur, np.eye(n_scores)), slope[..., None])[..., 0]
        wrong = moves & ~target.allows(step)
        if not wrong.any():
            break
        moves &= ~wrong
    return np.maximum(np.where(moves, 0.5 * score * step, 0.0).sum(axis=1), alone)
