"""EM for the maximum a posteriori point of one score or several, the design dense or streamed.

Missing data are the weights' precisions alpha and, of the papers' EM, the latent responses. The E-step gives
E[alpha | w] (chen2009 eqs. 23-28), so that the prior is a normal around zero, and the likelihood is replaced
by a quadratic: its bound, which latent responses amount to, or its own curvature (Newton's step). The M-step
maximises it exactly under the sign rule. An iteration that would lower the log posterior is shortened.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pcvm_pymc.core.em.coupled import BOUND, CONVEX, OWN, CoupledNewton
from pcvm_pymc.core.em.options import EMOptions, Start
from pcvm_pymc.core.em.rows import DenseRows, Point, StreamedRows, expected, rows_of
from pcvm_pymc.core.em.widths import improved_width
from pcvm_pymc.core.family import check_mode
from pcvm_pymc.core.nonnegative import ridge_solve, solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.pieces.validation import as_numbers
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status

# of a latent value: under an improper prior EM has chosen its vectors once it prunes nothing and changes by
# less; on the probit's scale no probability then changes by more than 0.02
SETTLED = 0.05
_LEAST_GAIN = 0.01  # nats: what a Newton step must promise for EM to go on after it has converged
# share of the log posterior by which rounding may lower it, with bases in double and in single precision
_ROUNDING, _SINGLE_ROUNDING = 1e-10, 3e-8
_HALVINGS = 4  # of a Newton step, before the bound's is taken
_MOST_HALVINGS = 30  # of the bound's step, which only rounding spoils
_MOST_DOUBLINGS = 20  # of a step near a saddle, where slopes are small and the way is long
# While latent values change by more than _FAR, Newton's steps are solved until no more than a share of _SLACK
# of the weights violates the sign rule.
_FAR, _SLACK = 0.3, 0.1
_LEAST_CURVATURE = 1e-12  # of a row in a ridge step, whose weights must be positive
_PRUNED_BIAS = 1e-6  # the bias whose expected precision is 1e12, where weights are pruned too
# L1 penalty: share in the latent function of a weight that is tried at zero, or released from it
_NEGLIGIBLE = 1e-4
_NOTHING = 1e-20  # such a share that is rounding
_SHORTER = 1e-3  # factors of a release that went too far
_MOST_SHORTENINGS = 4


@dataclass(frozen=True)
class EMState:
    """A point of the iteration; shapes as for `EMResult`."""

    weight: Array
    bias: Any
    latent: Array
    width: Any
    log_posterior: float

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


@threads_by_size
def fit_em(
    problem: Problem,
    start: Start | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, EMState], None] | None = None,
) -> EMResult:
    """Run EM until it converges.

    Parameters
    ----------
    problem : Problem
        Of one score or several; its `Phi` an array, or a `StreamedDesign`.
    start : Start, optional
        Default: `Start.default`.
    options : EMOptions, optional
    callback : callable, optional
        Called with the iteration's number and state after each iteration.

    Returns
    -------
    EMResult

    Raises
    ------
    ValueError
        If start, options or prior cannot be used.

    Notes
    -----
    The log posterior never decreases (for a start with latent responses, which are not those of its weights,
    from the first iteration on). Under an improper prior EM is a local search: the result depends on the
    start. Under the Laplace prior the end point is the L1-penalised maximum.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), 901-914, Algorithm 1; M. Figueiredo and A. Jain (2001),
    "Bayesian learning of sparse classifiers", CVPR, section 3; S. Lyu, X. Tian, Y. Li, B. Jiang and H.
    Chen (2020), "Multiclass probabilistic classification vector machine", IEEE Transactions on Neural
    Networks and Learning Systems 31(10), Algorithm 1; mRVM2: I. Psorakis, T. Damoulas and M. A. Girolami
    (2010), IEEE Transactions on Neural Networks 21(10). All corrected: weights and bias solved for
    together, the sign rule exact, tails stable.
    """
    options = options or EMOptions()
    machine = _Machine(problem, options, start or Start.default(problem))
    first = point = machine.first
    trace = [(first.log_posterior, first.n_active, np.nan, first.width)]
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        point, change = machine.next(point)
        trace.append((point.log_posterior, point.n_active, change, point.width))
        if callback is not None:
            callback(n_iter, _state(problem, point))
        if change <= options.tol or machine.is_rounding:
            is_short = machine.stops_short(point)
            if is_short and machine.takes_newton:
                continue
            # in single precision no step need raise the log posterior at the end
            is_lost = machine.is_stuck and not machine.is_rounding
            end = Status.ROUNDING if is_lost else Status.CONVERGED
            status = Status.SHORT_STEPS if is_short else end
            break
    if point.n_active == 0:
        status = Status.EMPTY_MODEL
    state = _state(problem, point)
    columns = EMTrace(*(np.asarray(column) for column in zip(*trace, strict=True)))
    return EMResult(**vars(state), status=status, n_iter=len(trace) - 1, trace=columns)


def iterate(
    problem: Problem, start: Start | EMState, options: EMOptions | None = None
) -> Iterator[EMState]:
    """Yield the state after each EM iteration, without end; the caller stops."""
    if isinstance(start, EMState):
        start = Start(start.weight, start.bias)
    machine = _Machine(problem, options or EMOptions(), start)
    point = machine.first
    while True:
        point, _ = machine.next(point)
        yield _state(problem, point)


def initial_state(problem: Problem, start: Start) -> EMState:
    """Return the state at a start, tiny weights pruned.

    Raises
    ------
    ValueError
        If the start has another shape than the problem, is not finite, or has a weight of the wrong sign.
    """
    return _state(problem, _first_point(rows_of(problem), start))


def log_posterior(
    problem: Problem, weight: Array, bias: Any, latent: Array, width: Any = None
) -> float:
    """Return log p(y | w, b) + log p(w) + log p(b), precisions integrated out (chen2009 eqs. 21-22).

    A width with a prior adds its log density; `width` defaults to the problem's.
    """
    value = problem.likelihood.log_likelihood(latent, problem.label)
    if problem.moves is not None:
        value += problem.moves.log_density(problem.width if width is None else width)
    return value + problem.log_prior(weight, bias)


class _Machine:
    """The iteration: which step is taken next, and what follows it."""

    def __init__(self, problem: Problem, options: EMOptions, start: Start) -> None:
        check_mode(problem)
        if problem.moves is not None and problem.n_scores > 1:
            raise ValueError("EM moves the width of one score only; give a number as width")
        self.problem, self.options = problem, options
        self.rows = rows_of(problem)
        self.coupled = CoupledNewton(self.rows) if self.rows.couples else None
        prior = problem.hyperprior
        self.prior = prior
        # under an improper prior Newton's longer steps would end in poorer local maxima
        self.is_careful = options.update == "auto" and prior.holds_zeros and prior.penalty == 0
        self.is_stuck = False  # whether rounding leaves no step that raises the log posterior
        self.is_rounding = False  # whether the last step is as small as single precision's rounding
        self.is_bound = False  # whether the last step was the bound's
        self.first = _first_point(self.rows, start)
        # slopes of a start with responses are not those of its weights
        streamed = isinstance(self.rows, StreamedRows)
        self.is_first = start.response is not None or (streamed and problem.n_scores > 1)

    @property
    def takes_newton(self) -> bool:
        """Whether the next step takes the likelihood's own curvature."""
        return self.options.update != "em" and not self.is_careful

    def next(self, point: Point) -> tuple[Point, float]:
        """Return the point after one iteration, and the largest change of a latent value."""
        rows, is_first = self.rows, self.is_first
        self.is_first = False
        new = self._newton(point) if self.takes_newton and not is_first else None
        self.is_bound = new is None
        if new is None:
            new = rows.at(*_m_step(rows, point), point, curved=self.takes_newton)
            new = new if is_first else self._not_below(point, new)
        has_settled = new.n_active == point.n_active and new.change < SETTLED
        if self.is_careful and has_settled:
            self.is_careful = False
            if (
                isinstance(rows, StreamedRows) and self.takes_newton
            ):  # its Gram matrix is still to come
                new = replace(rows.at(new.weight, new.bias, None, curved=True), change=new.change)
        if isinstance(rows, StreamedRows):
            gain = abs(new.log_posterior - point.log_posterior)
            is_small = gain <= _SINGLE_ROUNDING * abs(point.log_posterior)
            self.is_rounding = rows.design.single and has_settled and is_small
        new = rows.shrink(new)
        if self.prior.penalty > 0:
            new = _mended_zeros(rows, new)
        if isinstance(rows, StreamedRows) or (
            self.problem.moves is None and not self.prior.penalty
        ):
            return new, new.change
        new = improved_width(rows, new)
        return new, float(np.abs(new.latent - point.latent).max())

    def stops_short(self, point: Point) -> bool:
        """Whether a Newton step would still gain: the bound's are short where the likelihood is flat."""
        if self.is_stuck or not self.is_bound:
            return False
        self.is_careful = False
        if isinstance(self.rows, StreamedRows):  # the Gram matrix of the curvature
            point = self.rows.at(point.weight, point.bias, None, curved=True)
        new = self._newton(point)
        return new is not None and new.log_posterior > point.log_posterior + _LEAST_GAIN

    def _newton(self, point: Point) -> Point | None:
        """Return the point after a Newton step; None if it does not raise the log posterior."""
        rows = self.rows
        if isinstance(rows, StreamedRows) and not rows.grams.keys() - {"unit"}:
            return None
        if self.coupled is not None:
            return self._coupled_newton(point, self.coupled)
        # A rough step has only to raise the log posterior. Not under a prior that prunes, whose zeros would
        # be others, nor at the start, whose change is NaN.
        is_near = point.change <= max(_FAR, self.options.tol)
        slacks = (0.0,) if self.prior.holds_zeros or is_near else (_SLACK, 0.0)
        for slack in slacks:
            new = self._shortened(point, *_m_step(rows, point, newton=True, slack=slack))
            if new is not None:
                return new
        return None

    def _coupled_newton(self, point: Point, coupled: CoupledNewton) -> Point | None:
        """Return the point after a Newton step for all scores at once.

        First under the bound of the prior's curvature, as in EM, which decides the local maximum; then under
        the curvature itself, for near the end the bound's steps are too short, by hundreds of steps in all.
        """
        if coupled.is_settling(point):
            new = self._coupled_step(point, coupled, OWN)
            if new is not None:
                return new
            new = self._coupled_step(point, coupled, CONVEX)
            if new is not None:  # near a saddle, doubled as long as that rises
                weight, bias = new.weight, new.bias
                for doubling in range(1, _MOST_DOUBLINGS):
                    farther = self._toward(point, weight, bias, 2.0**doubling)
                    if not farther.log_posterior > new.log_posterior:
                        break
                    new = farther
                return new
        return self._coupled_step(point, coupled, BOUND)

    def _coupled_step(
        self, point: Point, coupled: CoupledNewton, least_bend: float
    ) -> Point | None:
        with np.errstate(over="ignore", invalid="ignore"):  # then another step is taken
            step = coupled.step(point, least_bend)
        if step is None:
            return None
        weight = self.prior.pruned(step[0], shared=self.problem.shared)
        return self._shortened(point, weight, step[1])

    def _shortened(self, point: Point, weight: Array, bias: Array) -> Point | None:
        """Return the point after a Newton step, or on the way there; None if all lie below."""
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return None
        halvings = 1 if self.prior.holds_zeros else _HALVINGS
        return self._on_the_way(point, weight, bias, range(halvings))

    def _not_below(self, old: Point, new: Point) -> Point:
        """Return a point that is not below the old one: nearer to it where rounding has spoilt the step."""
        slack = _ROUNDING * max(1.0, abs(old.log_posterior))
        if new.log_posterior >= old.log_posterior - slack:
            return new
        nearer = self._on_the_way(old, new.weight, new.bias, range(1, _MOST_HALVINGS))
        self.is_stuck |= nearer is None
        return replace(old, change=0.0) if nearer is None else nearer

    def _on_the_way(
        self, old: Point, weight: Array, bias: Array, halvings: Iterable[int]
    ) -> Point | None:
        """Return the first point that is not below the old one, of steps halved so often; None if all are."""
        for halving in halvings:
            new = self._toward(old, weight, bias, 0.5**halving)
            if new.log_posterior >= old.log_posterior:
                return new
        return None

    def _toward(self, old: Point, weight: Array, bias: Array, share: float) -> Point:
        """Return the point at a share of a step; beyond the whole, weights of the wrong sign are zero."""
        tried = old.weight + share * (weight - old.weight)
        if share > 1.0 and self.problem.is_signed:
            tried = np.where(tried * self.problem.weight_sign > 0, tried, 0.0)
        bias = old.bias + share * (bias - old.bias)
        return self.rows.at(tried, bias, old, curved=self.takes_newton)


def _m_step(
    rows: DenseRows | StreamedRows, point: Point, *, newton: bool = False, slack: float = 0.0
) -> tuple[Array, Array]:
    """Return the M-step's weights (all of them) and biases, score by score, under the sign rule.

    Chen et al. (2009) eqs. 11-12, Figueiredo & Jain (2001) eq. 16, Lyu et al. (2020) eqs. 28-29. With
    `newton` the likelihood's own curvature takes the place of its bound. `slack` is that of
    `solve_nonnegative`.
    """
    problem = rows.problem
    prior = problem.hyperprior
    weight, bias = np.zeros(point.weight.shape), np.zeros(point.bias.shape)
    if isinstance(rows, DenseRows) and not problem.is_signed and problem.n_scores == 1:
        weight[rows.index, 0], bias[0] = _ridge_step(rows, point, newton)
    else:
        gram = rows.gram(point, newton=newton)
        unit = 1.0 if newton else problem.likelihood.bound  # that the matrix is in
        pull, total = point.pull, point.total
        old = point.weight[rows.index]
        expected_precision = prior.weight_precision(old)  # of all scores, which may share it
        for c in range(problem.n_scores):
            own: Any = gram
            play = np.arange(len(rows.index))
            if (
                problem.n_scores > 1 and prior.holds_zeros
            ):  # the work follows the number that can move
                play = np.flatnonzero(old[:, c])
                own = own.take(play)
            precision = problem.bias_precision(float(point.bias[c])) / unit
            weight[rows.index[play], c], bias[c] = solve_nonnegative(
                own,
                rows.sign[play, c] * np.sqrt(unit / expected_precision[play, c]),
                np.inf if precision == 0 else float(1.0 / np.sqrt(precision)),
                (pull[play, c] / unit, float(total[c]) / unit),
                expected(old[play, c]),
                start=(old[play, c], float(point.bias[c])),
                constrained=problem.is_signed,
                slack=slack,
            )
    weight = prior.pruned(weight, shared=problem.shared, size=rows.size)
    if problem.bias == "prior" and prior.holds_zero_bias and prior.penalty == 0:
        bias = np.where(np.abs(bias) <= _PRUNED_BIAS, 0.0, bias)
    return weight, bias


def _ridge_step(rows: DenseRows, point: Point, newton: bool) -> tuple[Array, float]:
    """Return free weights and bias of one score, by the smaller of the two systems of equations."""
    problem = rows.problem
    prior = problem.hyperprior
    if newton:
        row_weight = np.maximum(point.terms.curvature, _LEAST_CURVATURE)
    else:
        own = np.ones(len(point.latent)) if problem.row_weight is None else problem.row_weight
        row_weight = own * problem.likelihood.bound
    return ridge_solve(
        rows.Phi,
        point.latent[:, 0] + point.terms.slope[:, 0] / row_weight,
        prior.weight_precision(point.weight[rows.index, 0]),
        problem.bias_precision(float(point.bias[0])),
        row_weight=row_weight,
    )


def _mended_zeros(rows: DenseRows | StreamedRows, point: Point) -> Point:
    """Return the point with negligible weights at zero, and zeros released that violate the KKT conditions.

    Under the L1 penalty EM brings a weight to zero in the limit only, and a weight that is zero does not come
    back. Either change is made only where it raises the log posterior.
    """
    problem = rows.problem
    prior = problem.hyperprior
    penalised = problem.bias == "prior"
    pull, total = point.pull, point.total
    slope = np.vstack([pull, total if penalised else 0.0 * total])
    size = np.vstack([np.broadcast_to(rows.size, pull.shape), np.ones(len(total))])
    value = np.vstack([point.weight, point.bias])
    allowed = np.ones(value.shape, dtype=bool)
    allowed[:-1] = (rows.sign * pull > 0) | (not problem.is_signed)
    changeable = value != 0
    changeable[-1] &= penalised
    share, steepness = np.abs(value) * size, np.abs(slope)
    small = (share <= _NEGLIGIBLE) & (steepness <= prior.penalty) & changeable
    away = (value == 0) & allowed & (steepness > prior.penalty * (1 + 1e-9))
    release = np.sign(slope) * _NEGLIGIBLE / np.maximum(size, 1e-12)
    # shorter ones where many together, or of large basis functions, go too far
    releases = [_SHORTER**k * release for k in range(_MOST_SHORTENINGS)]
    zeros = [np.zeros_like(value)]
    for chosen, tried in ((small & (share <= _NOTHING), zeros), (small, zeros), (away, releases)):
        for new_value in tried:
            value = np.vstack([point.weight, point.bias])
            changed = np.where(chosen, new_value, value)
            if (changed == value).all():
                break
            new = rows.at(changed[:-1], changed[-1], point, curved=True)
            gain = new.log_posterior - point.log_posterior
            if gain > 0 or (gain == 0 and tried is zeros):
                point = replace(new, change=point.change + new.change)  # a bound of both
                break
    return point


def _first_point(rows: DenseRows | StreamedRows, start: Start) -> Point:
    """Return the start's point, tiny weights pruned; raise where it cannot be used."""
    problem = rows.problem
    weight = as_numbers(start.weight, "start.weight")
    bias = np.atleast_1d(as_numbers(start.bias, "start.bias"))
    n_obs, n_basis = problem.Phi.shape
    latent_shape = (n_obs,) if problem.n_scores == 1 else (n_obs, problem.n_scores)
    for name, value, needed in (
        ("weight", weight, problem.weight_shape),
        ("bias", bias, (problem.n_scores,)),
        ("response", start.response, latent_shape),
    ):
        if value is not None and np.shape(value) != needed:
            raise ValueError(f"start.{name} has shape {np.shape(value)}; needed {needed}")
        if value is not None and not np.isfinite(value).all():
            raise ValueError(f"start.{name} has values that are NaN or infinite; needed numbers")
    wrong = int(np.sum(weight * problem.weight_sign < 0)) if problem.is_signed else 0
    if wrong:
        raise ValueError(
            f"start has {wrong} weight(s) of the wrong sign; needed weight * sign >= 0"
        )
    prior = problem.hyperprior
    weight = weight.reshape(n_basis, problem.n_scores)
    weight = prior.pruned(weight, shared=problem.shared, size=rows.size)
    return rows.first(weight, bias, start.response)


def _state(problem: Problem, point: Point) -> EMState:
    """Return a point in the shapes of the problem."""
    if problem.n_scores > 1:
        return EMState(point.weight, point.bias, point.latent, point.width, point.log_posterior)
    weight, bias, latent = point.weight[:, 0], float(point.bias[0]), point.latent[:, 0]
    return EMState(weight, bias, latent, point.width, point.log_posterior)
