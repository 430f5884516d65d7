"""EM for weights and biases in a user-defined log posterior, with gradient steps for all else in it.

What is known of the log posterior is its value, gradient and products with its Hessian, and for each latent
function f = Phi w + b slope and curvature of every row. A round is three steps, each shortened until the log
posterior does not fall:

1. For each latent function an E-step, E[alpha | w] (chen2009 eqs. 23-28), and an M-step under the sign rule,
   in which a quadratic in f takes the place of the likelihood.
2. L-BFGS for the other values, weights and biases as they are.
3. One Newton step for all values at once, but for the weights that stay at zero: where terms can replace one
   another (a bias and the intercepts of groups) steps in turn would take thousands of rounds. Where it
   promises nothing, a step along a direction in which the log posterior bends upwards, if there is one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import fmin_l_bfgs_b

from pcvm_pymc.core.em.options import EMOptions
from pcvm_pymc.core.em.rows import expected
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.problem import EMTrace, Ended, Status
from pcvm_pymc.core.quadratic import BorderedGram, Index, Mask

# added to the rows' curvatures, in units of the largest, one after the other: where a log likelihood is not
# concave, or far from quadratic, an M-step without goes too far
_DAMPINGS = (0.0, 0.1, 10.0, 1e3, 1e5)
_HALVINGS = 3  # of an M-step, for each damping
_MOST_HALVINGS = 40  # of a Newton step
_GRADIENT_STEPS = 20  # of L-BFGS in a round
_EXCHANGES = 20  # of a Newton step: sets of weights that it would take across zero
# of a direction, in units of the diagonal: flatter ones are taken as if of this
_LEAST_CURVATURE = 1e-7
_PROMISED = 1e-10  # share of the log posterior that a Newton step must promise to go on
_SLOPE_TOLERANCE = 1e-7  # of a weight at zero that would rather grow, in units of the prior's
# of values on a transformed scale (a log, log odds), and of others: beyond, what still rises has no maximum
_FAR_AWAY = (30.0, 1e10)
_FAR = (12.0, 1e6)  # the same where rounding has ended the steps before they came so far
_RISES = 1e-3  # nats for each unit of such a value


@dataclass(frozen=True)
class LatentRows:
    """Design, latent values, slopes and curvatures of a latent function's rows, at some values.

    Attributes
    ----------
    design : ndarray, shape (n_obs, n_basis)
        Derivatives of the latent values by the weights, or by sizes of signed ones.
    latent, slope, curvature : ndarray, shape (n_obs,)
        Latent values; the log density's derivative by each, and minus the second one.
    """

    design: Array
    latent: Array
    slope: Array
    curvature: Array


@dataclass(frozen=True)
class Block:
    """Weights and bias of a latent function: where they are among the values, and their prior.

    Attributes
    ----------
    weight : ndarray of int, shape (n_basis,)
        Of signed weights the values are sizes.
    bias : ndarray of int, shape (1,), or (0,) without one
    signed : bool
    hyperprior : Hyperprior or Laplace
    bias_kind : {"prior", "free", "none"}
    rate : ndarray of int, shape (1,), or (0,) where d is known
        Where d is among the values, which no step moves.
    typical_rate : float
        Mean or median of an unknown d.
    """

    weight: Index
    bias: Index
    signed: bool
    hyperprior: Any
    bias_kind: Literal["prior", "free", "none"]
    rate: Index
    typical_rate: float

    @property
    def values(self) -> Index:
        """Where the weights and the bias are."""
        return np.append(self.weight, self.bias)


@dataclass(frozen=True)
class OwnProblem:
    """A log posterior with latent functions in it.

    Attributes
    ----------
    blocks : tuple of Block
    others : ndarray of int
        Which values are moved by their gradient. Values of neither stay as they are.
    transformed : ndarray of bool, shape (n_values,)
        Which are on a scale that takes an interval or a half-line to the whole line.
    penalty : ndarray, shape (n_values,)
        The rate of a Laplace density, which has a kink at zero; zero for others.
    names : list of str, one for each value
        Of its variable, for messages.
    slopes : callable
        The log posterior and its gradient at values, shape (n_values,).
    rows : callable
        `LatentRows` of each block.
    product : callable
        At values, its Hessian times a direction.
    """

    blocks: tuple[Block, ...]
    others: Index
    transformed: Mask
    penalty: Array
    names: list[str]
    slopes: Callable[[Array], Any]
    rows: Callable[[Array], list[LatentRows]]
    product: Callable[[Array, Array], Array]


@dataclass(frozen=True)
class OwnState:
    """A point of the rounds.

    Attributes
    ----------
    values : ndarray, shape (n_values,)
    log_posterior : float
    latent : ndarray, shape (n_values,)
        Of all latent functions, one after the other.
    n_active : int
        Weights that are not zero.
    change, moved : float
        The largest change of a latent value, and of one of the other values, in the last round.
    promised : float
        What the last Newton step promised to gain, in nats.
    """

    values: Array
    log_posterior: float
    latent: Array
    n_active: int
    change: float = np.nan
    moved: float = np.nan
    promised: float = np.inf


@dataclass(frozen=True)
class OwnResult(Ended):
    """The end point: see `OwnState`."""

    values: Array
    log_posterior: float
    n_active: int
    status: Status
    n_iter: int
    trace: EMTrace
    criterion: dict[str, float] = field(default_factory=dict)


def fit_own_terms(
    problem: OwnProblem,
    values: Array,
    options: EMOptions,
    callback: Callable[[int, OwnState], None] | None = None,
) -> OwnResult:
    """Make rounds until they converge.

    Parameters
    ----------
    problem : OwnProblem
    values : ndarray, shape (n_values,)
        Where to begin.
    options : EMOptions
        Its `update` is for models of the family.
    callback : callable, optional
        Called with the round's number and state after each round.

    Returns
    -------
    OwnResult
        At a stationary point: no slope of a value that is moved, and of weights at zero none upwards. Nor
        does the log posterior bend upwards there, as at a saddle point.

    Raises
    ------
    ValueError
        If the log posterior is not finite at the start, or has no maximum.
    """
    state = start_of(problem, values)
    trace, status = [state], Status.ITERATION_LIMIT
    going_on = rounds(problem, state)
    for n_iter in range(1, options.max_iter + 1):
        state = next(going_on)
        trace.append(state)
        PROGRESS.debug("EM round %d, log posterior %.6g", n_iter, state.log_posterior)
        if callback is not None:
            callback(n_iter, state)
        small = state.promised <= _PROMISED * (1.0 + abs(state.log_posterior))
        stuck = state.log_posterior == trace[-2].log_posterior
        if (small and max(state.change, state.moved) <= options.tol) or stuck:
            status = Status.CONVERGED if small else Status.STUCK
            if not small:
                _check_bounded(problem, state, _FAR)
            break
    if state.n_active == 0:
        status = Status.EMPTY_MODEL
    columns = ("log_posterior", "n_active", "change")
    histories = {name: np.array([vars(state)[name] for state in trace]) for name in columns}
    ends = EMTrace(**histories, width=np.full(len(trace), np.nan))
    return OwnResult(state.values, state.log_posterior, state.n_active, status, n_iter, ends)


def start_of(problem: OwnProblem, values: Array) -> OwnState:
    """Return the state at some values; raise where the log posterior is not finite there."""
    slopes = problem.slopes(values)
    if not all(np.isfinite(slope).all() for slope in slopes):
        fault = f"the log posterior is {slopes[0]} at the start, or has no slopes there"
        raise ValueError(f"{fault}; give another initval=")
    return _state(problem, values, slopes[0])


def rounds(problem: OwnProblem, state: OwnState) -> Iterator[OwnState]:
    """Yield the state after each round, without end; the caller stops."""
    while True:
        old = state
        for k in range(len(problem.blocks)):
            state = _em_step(problem, state, k)
        state = _gradient_steps(problem, state)
        _check_bounded(problem, state, _FAR_AWAY)
        state, promised = _newton_step(problem, state)
        new = _state(problem, state.values, state.log_posterior)
        change = np.abs(new.latent - old.latent).max()
        others = problem.others
        moved = np.abs(state.values[others] - old.values[others]).max(initial=0.0)
        state = replace(new, change=float(change), moved=float(moved), promised=promised)
        yield state


def _state(problem: OwnProblem, values: Array, log_posterior: float) -> OwnState:
    active = sum(int(np.count_nonzero(values[block.weight])) for block in problem.blocks)
    latent = np.concatenate([rows.latent for rows in problem.rows(values)])
    return OwnState(values, float(log_posterior), latent, active)


def _raised(
    problem: OwnProblem, old: OwnState, where: Index, new: Array, halvings: int
) -> OwnState | None:
    """Return the first point that is higher, of a step halved so often; None if there is none."""
    for share in 0.5 ** np.arange(halvings):
        values, before = old.values.copy(), old.values[where]
        values[where] = new if share == 1.0 else before + share * (new - before)
        log_posterior = float(problem.slopes(values)[0])
        if log_posterior > old.log_posterior:  # not where it is no number
            return replace(old, values=values, log_posterior=log_posterior)
    return None


def _em_step(problem: OwnProblem, state: OwnState, k: int) -> OwnState:
    """Return the state after one E and one M-step for a latent function's weights and bias."""
    block, rows = problem.blocks[k], problem.rows(state.values)[k]
    prior, weight = block.hyperprior, state.values[block.weight]
    bias = float(state.values[block.bias].sum())  # zero without one
    scale, bias_scale = 1.0 / np.sqrt(prior.weight_precision(weight)), 0.0
    if block.bias_kind != "none":
        bias_scale = np.inf if block.bias_kind == "free" else prior.bias_precision(bias) ** -0.5
    scales = scale, float(bias_scale)
    target = rows.slope @ rows.design, float(rows.slope.sum())
    size = np.abs(rows.curvature).max()
    for damping in _DAMPINGS:
        gram = BorderedGram.of(rows.design, np.maximum(rows.curvature, 0.0) + damping * size)
        new_weight, new_bias = solve_nonnegative(
            gram, *scales, target, expected(weight), start=(weight, bias), constrained=block.signed
        )
        values = np.append(new_weight, new_bias)[: len(block.values)]
        new = _raised(problem, state, block.values, values, _HALVINGS)
        if new is not None:
            return new
    return state


def _gradient_steps(problem: OwnProblem, state: OwnState) -> OwnState:
    """Return the state after some steps of L-BFGS for the values that are no weights or biases."""
    others = problem.others
    if not len(others):
        return state

    def objective(x: Array) -> tuple[float, Array]:
        values = state.values.copy()
        values[others] = x
        value, slope = problem.slopes(values)
        if not (np.isfinite(value) and np.isfinite(slope[others]).all()):
            return 1e100, np.zeros(len(x))  # the line search goes back
        return -value, -slope[others]

    limits: Any = {"maxiter": _GRADIENT_STEPS, "factr": 0.0, "pgtol": 1e-8}
    end = fmin_l_bfgs_b(objective, state.values[others], **limits)[0]
    new = _raised(problem, state, others, end, 1)
    return state if new is None else new


def _newton_step(problem: OwnProblem, state: OwnState) -> tuple[OwnState, float]:
    """Return the state after a Newton step for all values, and what it promised to gain.

    Weights at zero stay there where the conditions of Karush, Kuhn and Tucker say so. Weights that would
    cross zero end at it. Directions in which the log posterior bends upwards are taken as if it bent
    downwards as much, so that a step always rises at first.
    """
    movable, half_line, slope = _half_lines(problem, state.values)
    stays = (state.values[movable] == 0) & (half_line[movable] != 0)
    stays &= slope[movable] * half_line[movable] <= _SLOPE_TOLERANCE
    where = movable[~stays]
    H = curvatures(problem, state.values, where)
    if not np.isfinite(H).all():
        return state, np.inf
    x, step, free = state.values[where], np.zeros(len(where)), np.ones(len(where), dtype=bool)
    for _ in range(_EXCHANGES):
        step = np.where(free, 0.0, -x)
        rest = slope[where] - H @ step
        step[free] = _ascent(H[np.ix_(free, free)], rest[free])
        crosses = free & ((x + step) * half_line[where] < 0)
        if not crosses.any():
            break
        free &= ~crosses
    new = x + step
    new[~free | (new * half_line[where] < 0)] = 0.0
    step = new - x
    promised = abs(float(slope[where] @ step - 0.5 * step @ H @ step))
    state = _raised(problem, state, where, new, _MOST_HALVINGS) or state
    if promised > _PROMISED * (1.0 + abs(state.log_posterior)):
        return state, promised
    higher = _from_saddle(problem, state) or state
    return higher, max(promised, higher.log_posterior - state.log_posterior)


def _from_saddle(problem: OwnProblem, state: OwnState) -> OwnState | None:
    """Return a higher point along the direction that bends upwards most; None at a maximum.

    Where there is no slope, as of a product of two zeros, no other step leaves. Weights at zero that gain
    nothing at first may grow here, too.
    """
    values = state.values
    movable, half_line, slope = _half_lines(problem, values)
    kept = (values == 0) & ((problem.penalty > 0) | (slope * half_line < -_SLOPE_TOLERANCE))
    where = movable[~kept[movable]]
    H = curvatures(problem, values, where)
    if not (len(where) and np.isfinite(H).all()):
        return None
    unit = 1.0 / np.sqrt(np.maximum(np.abs(H.diagonal()), 1e-12))
    size, turn = eigh(unit[:, None] * H * unit, subset_by_index=(0, 0))
    for along in (unit * turn[:, 0], -unit * turn[:, 0]) if size[0] < -_LEAST_CURVATURE else ():
        new = values[where] + along
        new[new * half_line[where] < 0] = 0.0
        higher = _raised(problem, state, where, new, _MOST_HALVINGS)
        least = state.log_posterior + _PROMISED * (1.0 + abs(state.log_posterior))
        if higher is not None and higher.log_posterior > least:
            return higher
    return None


def curvatures(problem: OwnProblem, values: Array, where: Index) -> Array:
    """Return minus the Hessian in some of the values, shape (n, n).

    Of the latent function with most weights it is the quadratic model of its rows; else by products.
    """
    k = int(np.argmax([len(block.weight) for block in problem.blocks]))
    block, rows = problem.blocks[k], problem.rows(values)[k]
    prior, weight, bias = block.hyperprior, values[block.weight], values[block.bias]
    bend = np.zeros(len(block.values))
    if prior.penalty == 0:
        bend[: len(weight)] = prior.weight_precision(weight) * prior.weight_curvature_ratio(weight)
        if block.bias_kind == "prior":
            bend[len(weight) :] = prior.bias_precision(bias) * prior.bias_curvature_ratio(bias)
    place = np.full(len(values), -1)
    place[block.values] = np.arange(len(block.values))
    own, H = place[where] >= 0, np.empty((len(where), len(where)))
    columns = place[where[own]]
    design = np.column_stack([rows.design, np.ones((len(rows.latent), len(bias)))])[:, columns]
    of_rows = design.T @ (rows.curvature[:, None] * design)
    H[np.ix_(own, own)] = of_rows + np.diag(bend[columns])
    for i in np.flatnonzero(~own):
        direction = np.zeros(len(values))
        direction[where[i]] = 1.0
        H[:, i] = H[i] = -problem.product(values, direction)[where]
    return H


def _half_lines(problem: OwnProblem, x: Array) -> tuple[Index, Array, Array]:
    """Return which values move, their signs that a Newton step must not change, and slopes on that side.

    Sizes are positive. Under an L1 penalty a value is on one side of zero, and one at zero leaves it only
    where the slope exceeds the penalty.
    """
    slope, penalty = problem.slopes(x)[1], problem.penalty
    at_kink = (penalty > 0) & (x == 0)
    half_line = np.where(at_kink, np.sign(slope), (penalty > 0) * np.sign(x))
    for block in problem.blocks:
        if block.signed:
            half_line[block.weight] = 1.0
    beyond = np.sign(slope) * np.maximum(np.abs(slope) - penalty, 0.0)
    movable = np.concatenate([*(block.values for block in problem.blocks), problem.others])
    return movable, half_line, np.where(at_kink, beyond, slope)


def _ascent(H: Array, slope: Array) -> Array:
    """Return the Newton step of a maximum, H minus the Hessian, with the size of H's curvatures alone."""
    if not len(slope):
        return slope
    unit = 1.0 / np.sqrt(np.maximum(np.abs(H.diagonal()), 1e-12))
    size, turn = eigh(unit[:, None] * H * unit)
    size = np.maximum(np.abs(size), _LEAST_CURVATURE)
    return unit * (turn @ ((turn.T @ (unit * slope)) / size))


def _check_bounded(problem: OwnProblem, state: OwnState, far: tuple[float, float]) -> None:
    """Raise where the log posterior goes on to rise as one of the other values goes to infinity."""
    others, (value, slope) = problem.others, problem.slopes(state.values)
    x, least = state.values[others], np.where(problem.transformed[others], *far)
    runs = (np.abs(x) > least) & (slope[others] * np.sign(x) > _RISES)
    if runs.any() or not value < np.inf:
        where = {problem.names[i]: float(state.values[i]) for i in others[runs]}
        rises = f"it goes on to rise with {where} (transformed, as a log)"
        raise ValueError(f"the log posterior has no maximum: {rises}; needed a number or prior")
