"""The reference that is to be approximated, and the nearest submodel on given columns."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.special import entr, ndtri

from pcvm_pymc.core.em.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array, inverse_mills, log_ndtr

__all__ = [
    "Columns",
    "Submodel",
    "Target",
    "fit_submodel",
    "minimise",
    "null_model",
    "probability_derivatives",
]

type Columns = NDArray[np.intp]

_ROWS = 256  # rows squared at a time
_MAX_NEWTON = 100


def probability_derivatives(latent: Array, probability: Array) -> tuple[Array, Array]:
    """Return d/df and -d^2/df^2 of p log Phi(f) + (1 - p) log Phi(-f), shape (n_obs,) each.

    The latter lies in [0, 1] (see `curvature` of the probit, of which this is the mean over labels).
    """
    up, down = inverse_mills(latent), inverse_mills(-latent)
    upper = np.clip(up * (up + latent), 0.0, 1.0)
    lower = np.clip(down * (down - latent), 0.0, 1.0)
    rest = 1 - probability
    return probability * up - rest * down, probability * upper + rest * lower


@dataclass(frozen=True)
class Target:
    """What is to be approximated, and by what.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions to choose from, at the rows where the divergence is measured.
    sign : ndarray, shape (n_basis,)
        Sign of each weight, -1. or +1.
    probability : ndarray, shape (n_obs,)
        The reference's probability of label +1.
    row_weight : ndarray, shape (n_obs,), optional
        Weight of each row in the divergence, at least 0; taken in proportion. Default: equal.
    ridge : float
        ``ridge / 2 * (w_j rms_j)^2`` is added for each weight, rms_j being the root mean square of its
        column: it keeps weights finite and unique where columns coincide or p is 0 or 1 to
        rounding. The bias is not penalised.
    """

    Phi: Array
    sign: Array
    probability: Array
    row_weight: Array | None = None
    ridge: float = 1e-8

    def __post_init__(self) -> None:
        n_obs, n_basis = self.Phi.shape
        for name, size in (("probability", n_obs), ("row_weight", n_obs), ("sign", n_basis)):
            value = getattr(self, name)
            if value is not None and value.shape != (size,):
                raise ValueError(f"{name} has shape {value.shape}; needed ({size},), as Phi has it")
        if not ((self.probability >= 0) & (self.probability <= 1)).all():
            raise ValueError("probability has values outside [0, 1] or NaN; needed probabilities")
        if self.row_weight is not None and not (
            (self.row_weight >= 0).all() and 0 < self.row_weight.sum() < np.inf
        ):
            raise ValueError("row_weight must be finite, not negative, and not zero everywhere")
        if not self.ridge > 0:
            raise ValueError(f"ridge={self.ridge} must be positive; 1e-8 is negligible")
        if not 1e-15 < self.mass @ self.probability < 1 - 1e-15:
            raise ValueError(
                "probability is 0 or 1 in every row: the reference knows one class only, and "
                "there is nothing to project"
            )

    @cached_property
    def mass(self) -> Array:
        """Share of each row, sums to 1."""
        if self.row_weight is None:
            return np.full(len(self.Phi), 1.0 / len(self.Phi))
        return self.row_weight / self.row_weight.sum()

    @cached_property
    def penalty(self) -> Array:
        """Curvature of the ridge in each weight, shape (n_basis,); columns of zeros have none."""
        return self.ridge * self.squared_columns(self.mass)

    @cached_property
    def entropy(self) -> float:
        """Mean entropy of the reference's labels: what no model can fall below, nats per row."""
        return float(self.mass @ (entr(self.probability) + entr(1 - self.probability)))

    def squared_columns(self, row_weight: Array) -> Array:
        """Return sum_i row_weight_i Phi_ij^2, shape (n_basis,), without a copy of Phi."""
        total = np.zeros(self.Phi.shape[1])
        for start in range(0, len(self.Phi), _ROWS):
            rows = slice(start, start + _ROWS)
            total += row_weight[rows] @ np.square(self.Phi[rows])
        return total

    def divergence(self, latent: Array) -> float:
        """Return the mean Kullback-Leibler divergence from reference to `latent`, nats per row."""
        p = self.probability
        cross = p * log_ndtr(latent) + (1 - p) * log_ndtr(-latent)
        return -float(self.mass @ cross) - self.entropy


@dataclass(frozen=True)
class Submodel:
    """The nearest model on some columns.

    Attributes
    ----------
    columns : ndarray of int, shape (n_vectors,)
        Ascending; weights that the sign constraint holds at zero are left out.
    weight : ndarray, shape (n_vectors,)
    bias : float
    latent : ndarray, shape (n_obs,)
    objective : float
        Divergence and ridge.
    """

    columns: Columns
    weight: Array
    bias: float
    latent: Array = field(repr=False)
    objective: float

    @property
    def n_vectors(self) -> int:
        """Number of weights that are not zero."""
        return len(self.columns)


def null_model(target: Target) -> Submodel:
    """Return the bias alone: Phi(b) is the mean probability."""
    bias = float(ndtri(target.mass @ target.probability))
    latent = np.full(len(target.Phi), bias)
    empty = np.empty(0, dtype=np.intp)
    return Submodel(empty, np.empty(0), bias, latent, target.divergence(latent))


def _newton_point(
    target: Target, A: Array, columns: Columns, weight: Array, bias: float, *, tilt: Array | None
) -> tuple[Array, float]:
    """Return the constrained minimiser of the quadratic model at (weight, bias).

    `tilt` is the slope of a linear term in the weights (the L1 penalty under the sign rule).
    """
    latent = A @ weight + bias
    score, bend = probability_derivatives(latent, target.probability)
    row_weight = target.mass * bend
    response = row_weight * latent + target.mass * score
    penalty = target.penalty[columns]
    goal = response @ A if tilt is None else response @ A - tilt
    total = float(response.sum())
    n = len(columns)
    H = np.empty((n + 1, n + 1))
    weighted = row_weight[:, None] * A
    H[:n, :n] = A.T @ weighted
    H[:n, n] = H[n, :n] = weighted.sum(axis=0)
    H[n, n] = row_weight.sum()
    H[np.diag_indices(n)] += penalty
    sign = target.sign[columns]
    factor, info = lapack.dpotrf(H, lower=1)
    if info == 0:  # where the sign rule does not bind, the plain solution is the constrained one
        solution = lapack.dpotrs(factor, np.append(goal, total)[:, None], lower=1)[0][:, 0]
        if np.isfinite(solution).all() and (solution[:-1] * sign > 0).all():
            return solution[:-1], float(solution[-1])
    H[np.diag_indices(n)] -= penalty
    scale = sign / np.sqrt(penalty)
    return solve_nonnegative(
        BorderedGram(np.asfortranarray(H[:n, :n]), H[:n, n].copy(), float(H[n, n])),
        scale,
        1e4 * float(np.abs(scale).max(initial=1.0)),
        (goal, total),
        weight * sign > 0,
    )


def _value(target: Target, latent: Array, columns: Columns, weight: Array) -> float:
    return target.divergence(latent) + 0.5 * float(target.penalty[columns] @ weight**2)


def minimise(
    target: Target,
    columns: Columns,
    weight: Array,
    bias: float,
    *,
    tilt: Array | None = None,
    tol: float,
) -> tuple[Array, float, Array, float]:
    """Return weights, bias, latent function and objective by damped constrained Newton steps."""
    A = target.Phi[:, columns]
    slope = np.zeros(len(columns)) if tilt is None else tilt

    def value_at(w: Array, b: float) -> tuple[Array, float]:
        latent = A @ w + b
        return latent, _value(target, latent, columns, w) + float(slope @ w)

    latent, value = value_at(weight, bias)
    for _ in range(_MAX_NEWTON):
        to_weight, to_bias = _newton_point(target, A, columns, weight, bias, tilt=tilt)
        step = 1.0
        while True:
            new = weight + step * (to_weight - weight), bias + step * (to_bias - bias)
            new_latent, new_value = value_at(*new)
            if new_value <= value or step < 1e-6:
                break
            step /= 2
        if not new_value < value:
            break
        gain, value, latent = value - new_value, new_value, new_latent
        weight, bias = new
        if gain <= tol:
            break
    return weight, bias, latent, value


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
    known = dict(zip(start.columns.tolist(), start.weight.tolist(), strict=True))
    weight = np.array([known.get(j, 0.0) for j in chosen.tolist()])
    weight, bias, latent, value = minimise(target, chosen, weight, start.bias, tol=tol)
    kept = weight != 0
    return Submodel(chosen[kept], weight[kept], bias, latent, value)
