"""Projection of a reference's class probabilities onto sign-constrained submodels of few vectors.

The submodel f_S = Phi_S w_S + b nearest to a reference with probabilities p minimises the
Kullback-Leibler divergence of their Bernoulli distributions,

    KL = sum_i q_i { p_i log p_i / Phi(f_i) + (1 - p_i) log (1 - p_i) / Phi(-f_i) },   w_j sign_j >= 0,

a convex probit likelihood of fractional labels. What is hard is the choice of S.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, lapack
from scipy.special import entr, ndtri

from pcvm_pymc.core.em.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array, inverse_mills, log_ndtr

__all__ = [
    "ProjectionPath",
    "Scan",
    "SearchOptions",
    "Submodel",
    "Target",
    "best_additions",
    "best_exchanges",
    "default_sizes",
    "fit_submodel",
    "l1_supports",
    "probability_derivatives",
    "project_path",
    "scan",
]

type Columns = NDArray[np.intp]

_ROWS = 256  # rows squared at a time
_MAX_NEWTON = 100
_LEAST_SHARE = 1e-3  # of the divergence, for an exchange to be worth its refits
_ENTERING = (
    8  # to the L1 path's working set at a time: more, and near neighbours get in each other's way
)
_MAX_ROUNDS = 6  # additions at one size, where each drives another weight to zero
_LEAST_SCHUR = 1e-9  # share of a column that must be left outside the span of those chosen


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


@dataclass(frozen=True)
class SearchOptions:
    """How hard the search for each size tries.

    Attributes
    ----------
    candidates : int
        Additions with the largest score statistics that are refitted; the best one is taken.
    exchanges : int
        Exchanges of one vector with the largest predicted gain that are refitted at a time.
    max_exchanges : int
        Exchanges made at each size at most.
    l1 : bool
        Whether supports of an L1 path, refitted, compete at each size.
    backward : bool
        Whether backward elimination from the largest model competes.
    tol : float
        Nats per row: the search ends, and later sizes repeat its last model, once no addition gains
        more.
    """

    candidates: int = 5
    exchanges: int = 4
    max_exchanges: int = 20
    l1: bool = True
    backward: bool = True
    tol: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("candidates", 1), ("exchanges", 1), ("max_exchanges", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if not self.tol > 0:
            raise ValueError(f"tol={self.tol} must be positive")

    @classmethod
    def greedy(cls) -> "SearchOptions":
        """Return plain forward selection: the largest score statistic is added, and stays."""
        return cls(candidates=1, max_exchanges=0, l1=False, backward=False)


@dataclass(frozen=True)
class ProjectionPath:
    """The best submodel found of each size.

    Attributes
    ----------
    sizes : ndarray of int, shape (n_sizes,)
        Numbers of vectors asked for. A submodel has fewer where more do not lower the divergence.
    columns : tuple of ndarray of int
        Chosen columns of each.
    weights : tuple of ndarray
        Their weights.
    bias : ndarray, shape (n_sizes,)
    kl : ndarray, shape (n_sizes,)
        Mean divergence from the reference, nats per row.
    objective : ndarray, shape (n_sizes,)
        The same with the ridge, which is negligible unless weights are huge; never increases.
    """

    sizes: NDArray[np.int64]
    columns: tuple[Columns, ...]
    weights: tuple[Array, ...]
    bias: Array
    kl: Array
    objective: Array

    def dense_weight(self, i: int, n_basis: int) -> Array:
        """Return the weights of the i-th submodel among zeros, shape (n_basis,)."""
        weight = np.zeros(n_basis)
        weight[self.columns[i]] = self.weights[i]
        return weight

    def latent(self, Phi: Array) -> Array:
        """Return each submodel's latent function at rows of `Phi`, shape (n_sizes, n_obs)."""
        parts = zip(self.columns, self.weights, self.bias, strict=True)
        return np.stack([Phi[:, columns] @ weight + b for columns, weight, b in parts])


def default_sizes(largest: int) -> NDArray[np.int64]:
    """Return 0, 1, 2, 3, ... in steps that grow with the size, up to `largest`."""
    sizes, size = {0, largest}, 1
    while size < largest:
        sizes.add(size)
        size = max(size + 1, round(1.2 * size))
    return np.array(sorted(sizes))


def _null_model(target: Target) -> Submodel:
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


def _minimise(
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
    start = start or _null_model(target)
    known = dict(zip(start.columns.tolist(), start.weight.tolist(), strict=True))
    weight = np.array([known.get(j, 0.0) for j in chosen.tolist()])
    weight, bias, latent, value = _minimise(target, chosen, weight, start.bias, tol=tol)
    kept = weight != 0
    return Submodel(chosen[kept], weight[kept], bias, latent, value)


@dataclass(frozen=True)
class Scan:
    """What the quadratic model at a submodel says of every column.

    Attributes
    ----------
    score : ndarray, shape (n_basis,)
        Derivative of minus the objective in each weight.
    schur : ndarray, shape (n_basis,)
        Curvature of each weight once those of the submodel and the bias follow.
    response : ndarray, shape (n_vectors, n_basis)
        How far each member's weight falls per unit of the new weight.
    variance : ndarray, shape (n_vectors,)
        Diagonal of the inverse Hessian for the members.
    """

    score: Array
    schur: Array
    response: Array
    variance: Array


def scan(target: Target, submodel: Submodel) -> Scan:
    """Return slopes and curvatures of all columns at a submodel, by one product with Phi."""
    columns = submodel.columns
    score, bend = probability_derivatives(submodel.latent, target.probability)
    row_weight = target.mass * bend
    A = np.column_stack([target.Phi[:, columns], np.ones(len(target.Phi))])
    weighted = row_weight[:, None] * A
    H = A.T @ weighted
    H[np.diag_indices(len(columns))] += target.penalty[columns]
    inverse = cho_solve(cho_factor(H + 1e-14 * np.diag(np.diag(H))), np.eye(len(H)))
    both = target.Phi.T @ np.column_stack([weighted, target.mass * score])
    cross = np.ascontiguousarray(both[:, :-1].T)
    response = inverse @ cross
    own = target.squared_columns(row_weight) + target.penalty
    schur = own - np.einsum("ij,ij->j", cross, response)
    schur[schur < _LEAST_SCHUR * own] = np.inf  # in the span of the members: nothing to gain
    schur[columns] = np.inf
    schur[own == 0] = np.inf
    return Scan(both[:, -1], schur, response[:-1], np.diag(inverse)[:-1])


def addition_gains(target: Target, found: Scan) -> Array:
    """Return half of Rao's score statistic of each column, zero where the sign rule forbids it."""
    gain = 0.5 * found.score**2 / found.schur
    gain[found.score * target.sign <= 0] = 0.0
    return gain


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


def l1_supports(
    target: Target, largest: int, *, ratio: float = 0.85, tol: float = 1e-6
) -> dict[int, Columns]:
    """Return a support of each size 1 to `largest` along an L1 path.

    The path minimises divergence + lambda sum_j c_j |w_j| (c_j the column's standard deviation under the
    curvature at the null model) for lambda falling by `ratio`, by Newton steps on a working set
    that takes in every column which violates the optimality conditions. A size
    that the path jumps over is made of the largest c_j |w_j| of the next support.

    Parameters
    ----------
    target : Target
    largest : int
    ratio : float
        Of successive penalties.
    tol : float
        The path ends once the divergence falls below this, in nats per row.
    """
    null = _null_model(target)
    start = scan(target, null)
    spread = np.sqrt(np.where(np.isfinite(start.schur), start.schur, np.inf))
    upward = np.maximum(start.score * target.sign, 0.0) / spread
    penalty = float(upward.max(initial=0.0))
    least, working, weight, bias = 1e-4 * penalty, null.columns, null.weight, null.bias
    latent = null.latent
    supports: dict[int, Columns] = {}
    while penalty > least and len(supports) < largest:
        penalty *= ratio
        for _ in range(10):  # the next penalty mends what is not at rest by then
            residual = target.mass * probability_derivatives(latent, target.probability)[0]
            excess = (residual @ target.Phi) * target.sign / spread
            excess[working] = 0.0
            entering = np.flatnonzero(excess > penalty * (1 + 1e-3))
            if supports and len(entering) == 0:
                break
            entering = entering[np.argsort(-excess[entering])][:_ENTERING]
            weight = np.append(weight, np.zeros(len(entering)))
            working = np.append(working, entering)
            tilt = penalty * spread[working] * target.sign[working]
            weight, bias, latent, _ = _minimise(target, working, weight, bias, tilt=tilt, tol=1e-8)
            working, weight = working[weight != 0], weight[weight != 0]
            if len(entering) == 0:
                break
        order = working[np.argsort(-spread[working] * np.abs(weight))]
        for size in range(1, min(len(order), largest) + 1):
            supports.setdefault(size, order[:size])
        if target.divergence(latent) < tol:
            break
    return supports


def _ranking_tolerance(model: Submodel, options: SearchOptions) -> float:
    """Return at which gain Newton stops for a rival of `model`: the best one is refitted to the end."""
    return max(0.1 * options.tol, 0.01 * model.objective)


def _grow(target: Target, model: Submodel, size: int, options: SearchOptions) -> Submodel:
    """Return the model with vectors added until it has `size`, or none lowers the objective.

    An addition may drive another weight to zero; after a few of these the model stays smaller.
    """
    for _ in range(max(size - model.n_vectors, 0) + _MAX_ROUNDS):
        if model.n_vectors >= size:
            break
        fits = [
            fit_submodel(target, [*model.columns, j], model, tol=_ranking_tolerance(model, options))
            for j in best_additions(target, scan(target, model), options.candidates)
        ]
        best = min(fits, key=lambda each: each.objective, default=model)
        if not best.objective < model.objective - options.tol:
            break
        model = fit_submodel(target, best.columns, best)
    return model


def _exchange(target: Target, model: Submodel, options: SearchOptions) -> Submodel:
    """Return the model after exchanges of single vectors, as long as one lowers the objective."""
    for _ in range(options.max_exchanges):
        fits = []
        for leaving, entering in best_exchanges(
            target, model, scan(target, model), options.exchanges
        ):
            columns = [*(j for j in model.columns if j != leaving), entering]
            fits.append(
                fit_submodel(target, columns, model, tol=_ranking_tolerance(model, options))
            )
        best = min(fits, key=lambda each: each.objective, default=model)
        least = max(options.tol, _LEAST_SHARE * model.objective)
        if not best.objective < model.objective - least:
            break
        model = fit_submodel(target, best.columns, best)
    return model


def _shrink(target: Target, model: Submodel, options: SearchOptions) -> Submodel:
    """Return the model without the vector that is missed least."""
    found = scan(target, model)
    loss = model.weight**2 / found.variance
    fits = []
    for i in np.argsort(loss, kind="stable")[: options.candidates]:
        fits.append(
            fit_submodel(
                target, np.delete(model.columns, i), model, tol=_ranking_tolerance(model, options)
            )
        )
    best = min(fits, key=lambda each: each.objective)
    return fit_submodel(target, best.columns, best)


def _is_complete(target: Target, model: Submodel, options: SearchOptions) -> bool:
    """Whether no column promises to lower the objective by more than the tolerance."""
    return bool(addition_gains(target, scan(target, model)).max(initial=0.0) <= options.tol)


def _best(models: Iterable[Submodel]) -> Submodel:
    return min(models, key=lambda each: each.objective)


def _exchanged(target: Target, starts: list[Submodel], options: SearchOptions) -> Submodel:
    """Return the best of what exchanges make of each distinct start."""
    distinct = {each.columns.tobytes(): each for each in starts}
    return _best(_exchange(target, each, options) for each in distinct.values())


def _ascend(target: Target, sizes: Sequence[int], options: SearchOptions) -> dict[int, Submodel]:
    """Return a submodel of each size by forward selection.

    Plain selection goes on beside the one that exchanges have changed: earlier improvements need not
    help later. The L1 path's supports are a third start.
    """
    supports = l1_supports(target, max(sizes), tol=options.tol) if options.l1 else {}
    model = plain = _null_model(target)
    models = {0: model}
    for size in range(1, max(sizes) + 1):
        if model.n_vectors < size - 1 and _is_complete(target, model, options):
            models[size] = model
            continue
        same = np.array_equal(plain.columns, model.columns)
        model = _grow(target, model, size, options)
        plain = model if same else _grow(target, plain, size, options)
        if size in sizes:
            starts = [model, plain]
            if size in supports:
                start = fit_submodel(target, supports[size], model)
                starts.append(_grow(target, start, size, options))
            model = _exchanged(target, starts, options)
        models[size] = _best([model, plain])
    return models


def _descend(
    target: Target, models: dict[int, Submodel], sizes: Sequence[int], options: SearchOptions
) -> None:
    """Let what backward elimination from the largest model finds compete at each size."""
    model = models[max(models)]
    for size in range(max(models) - 1, 0, -1):
        if model.n_vectors <= size:
            continue
        model = _shrink(target, model, options)
        if size in sizes:
            model = _exchange(target, model, options)
        model = models[size] = _best([models[size], model])


def _never_worse(
    target: Target, models: dict[int, Submodel], options: SearchOptions
) -> list[Submodel]:
    """Return the models in order of size, each at least as near as the one before."""
    path = [models[0]]
    for size in range(1, max(models) + 1):
        best = models[size]
        if best.objective > path[-1].objective:
            best = _grow(target, path[-1], size, options)
        path.append(best)
    return path


def project_path(
    target: Target, sizes: Sequence[int] | None = None, options: SearchOptions | None = None
) -> ProjectionPath:
    """Find the submodels of given sizes that lose least in Kullback-Leibler divergence.

    Forward selection by Rao's score statistic, where the best of several candidates is found by
    refitting; then exchanges of single vectors by the exact gain of the quadratic model,
    accepted when a refit confirms them; the same from the support of an L1 path; then backward
    elimination from the largest model. The best submodel of each size is kept, so that none is worse than
    forward selection's. It is a local optimum, not a certificate: the best subset is NP-hard.

    Parameters
    ----------
    target : Target
    sizes : sequence of int, optional
        Numbers of vectors, 0 being the bias alone. Default: `default_sizes` up to 30.
    options : SearchOptions, optional

    Returns
    -------
    ProjectionPath

    Raises
    ------
    ValueError
        If `sizes` is empty, or one is negative or exceeds the number of columns.

    References
    ----------
    J. Piironen, M. Paasiniemi and A. Vehtari (2020), "Projective inference in high-dimensional problems:
    prediction and feature selection", Electronic Journal of Statistics 14(1).
    """
    options = options or SearchOptions()
    n_basis = target.Phi.shape[1]
    if sizes is None:
        sizes = default_sizes(min(30, n_basis)).tolist()
    wanted = sorted({int(size) for size in sizes})
    if not wanted or wanted[0] < 0 or wanted[-1] > n_basis:
        raise ValueError(f"sizes={wanted}; needed whole numbers from 0 to {n_basis}, the bases")
    models = _ascend(target, [size for size in wanted if size] or [0], options)
    if wanted[-1] == n_basis:  # nothing to choose: the constrained optimum on all columns
        models[n_basis] = _best([models[n_basis], fit_submodel(target, range(n_basis))])
    if options.backward:
        _descend(target, models, wanted, options)
    path = _never_worse(target, models, options)
    chosen = [path[size] for size in wanted]
    return ProjectionPath(
        sizes=np.array(wanted),
        columns=tuple(model.columns for model in chosen),
        weights=tuple(model.weight for model in chosen),
        bias=np.array([model.bias for model in chosen]),
        kl=np.array([target.divergence(model.latent) for model in chosen]),
        objective=np.array([model.objective for model in chosen]),
    )
