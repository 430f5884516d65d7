"""EM for the maximum a posteriori point of one score or several, the design dense or streamed.

Missing data are the weights' precisions alpha and, of the papers' EM, the latent responses. The E-step gives
E[alpha | w] (chen2009 eqs. 23-28), so that the prior is a normal around zero, and the likelihood is replaced
by a quadratic: its bound, which latent responses amount to, or its own curvature (Newton's step). The M-step
maximises it exactly under the sign rule. An iteration that would lower the log posterior is shortened.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.em.coupled import DenseModel, Preconditioner, StreamedModel
from pcvm_pymc.core.em.options import EMOptions, Start
from pcvm_pymc.core.em.rows import DenseRows, Point, StreamedRows, expected, rows_of
from pcvm_pymc.core.em.widths import improved_width
from pcvm_pymc.core.family import check_mode
from pcvm_pymc.core.nonnegative import ridge_solve, solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, threads_by_size
from pcvm_pymc.core.pieces.validation import as_numbers
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status

# of a latent value: under an improper prior EM has chosen its vectors once it prunes nothing and changes by
# less; on the probit's scale no probability then changes by more than 0.02
_VECTORS_CONVERGED = 0.05
_LEAST_GAIN = 0.01  # nats: what a Newton step must promise for EM to go on after it has converged
# share of the log posterior by which rounding may lower it, with bases in double and in single precision
_ROUNDING, _SINGLE_ROUNDING = 1e-10, 3e-8
_HALVINGS = 4  # of a Newton step, before the bound's is taken
_MOST_HALVINGS = 30  # of the bound's step, which only rounding spoils
_NEAR_MAXIMUM = 0.001  # nats per row: gain of a step, below which the local maximum is decided
# While latent values change by more than _FAR, Newton's steps are solved until no more than a share of _SLACK
# of the weights violates the sign rule.
_FAR, _SLACK = 0.3, 0.1
_LEAST_CURVATURE = 1e-12  # of a row in a ridge step, whose weights must be positive
_PRUNED_BIAS = 1e-6  # the bias whose expected precision is 1e12, where weights are pruned too
# L1 penalty: share in the latent function of a weight that is tried at zero, or released from it
_NEGLIGIBLE = 1e-4
_NOTHING = 1e-20  # such a share that is rounding: these weights go to zero first
# factors of a release, each taken where those before went too far
_SHORTER = (1.0, 1e-3, 1e-6, 1e-9)


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
    solver = _EMSolver(problem, options, start or Start.default(problem))
    first = point = solver.first
    trace = [(first.log_posterior, first.n_active, np.nan, first.width)]
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        step = solver.next(point)
        point = step.point
        trace.append((point.log_posterior, point.n_active, point.change, point.width))
        PROGRESS.debug("EM iteration %d, log posterior %.6g", n_iter, point.log_posterior)
        if callback is not None:
            callback(n_iter, _state(problem, point))
        if point.change <= options.tol or step.is_rounding:
            is_short = step.kind == "bound" and solver.newton_gains(point)
            if is_short and solver.takes_newton:
                continue
            status = Status.SHORT_STEPS if is_short else Status.CONVERGED
            # in single precision no step need raise the log posterior at the end
            if step.kind == "none" and not step.is_rounding:
                status = Status.ROUNDING
            break
    if point.n_active == 0:
        status = Status.EMPTY_MODEL
    state = _state(problem, point)
    columns = EMTrace(*(np.asarray(column) for column in zip(*trace, strict=True)))
    rate = getattr(problem.hyperprior, "d", np.nan)
    return EMResult(**vars(state), status=status, n_iter=len(trace) - 1, trace=columns, rate=rate)


def iterate(problem: Problem, start: Start, options: EMOptions | None = None) -> Iterator[EMState]:
    """Yield the state after each EM iteration, without end; the caller stops."""
    solver = _EMSolver(problem, options or EMOptions(), start)
    point = solver.first
    while True:
        point = solver.next(point).point
        yield _state(problem, point)


def initial_state(problem: Problem, start: Start) -> EMState:
    """Return the state at a start, tiny weights pruned.

    Raises
    ------
    ValueError
        If the start has another shape than the problem, is not finite, or has a weight of the wrong sign.
    """
    return _state(problem, _first_point(rows_of(problem), start))


def log_posterior(problem: Problem, weight: Array, bias: Any, latent: Array) -> float:
    """Return log p(y | w, b) + log p(w) + log p(b), precisions integrated out (chen2009 eqs. 21-22).

    A width with a prior adds its log density.
    """
    value = problem.observed.log_likelihood(latent)
    if problem.moves is not None:
        value += problem.moves.log_density(problem.width)
    return value + problem.log_prior(weight, bias)


class _Step(NamedTuple):
    """An iteration of EM.

    Attributes
    ----------
    point : Point
        Where it led.
    kind : {"newton", "bound", "none"}
        Which step was taken; none where rounding leaves no step that raises the log posterior.
    is_rounding : bool
        Whether it is as small as single precision's rounding.
    """

    point: Point
    kind: str
    is_rounding: bool


class _EMSolver:
    """EM's iteration from point to point: Newton's step or that of the likelihood's bound.

    Attributes
    ----------
    is_careful : bool
        Whether only steps of the bound are taken: under an improper prior, until the vectors are chosen, for
        Newton's longer steps would end in poorer local maxima.
    before : float
        Log posterior before the last step of several scores at once.
    """

    def __init__(self, problem: Problem, options: EMOptions, start: Start) -> None:
        check_mode(problem)
        if problem.moves is not None and problem.n_scores > 1:
            raise ValueError("EM moves the width of one score only; give a number as width")
        self.problem, self.options, self.prior = problem, options, problem.hyperprior
        self.rows = rows_of(problem)
        holds_zeros = self.prior.holds_zeros and self.prior.penalty == 0
        self.is_careful, self.before = options.update == "auto" and holds_zeros, -np.inf
        of_dense = partial(DenseModel, preconditioner=Preconditioner())
        self.model: Any = of_dense if isinstance(self.rows, DenseRows) else StreamedModel
        self.first = _first_point(self.rows, start)

    @property
    def takes_newton(self) -> bool:
        """Whether the next step takes the likelihood's own curvature."""
        return self.options.update != "em" and not self.is_careful

    def next(self, point: Point) -> _Step:
        """Return the step that one iteration takes from a point."""
        rows, new, kind = self.rows, None, "newton"
        # slopes of given responses are not those of the start's weights
        is_given = rows.is_given and point is self.first
        if self.takes_newton and not is_given:
            new = self._newton(point)
        if new is None:
            weight, bias = _m_step(rows, point)
            slack = np.inf if is_given else _ROUNDING * max(1.0, abs(point.log_posterior))
            new, kind = self._raised(point, weight, bias, _MOST_HALVINGS, slack), "bound"
        if new is None:
            new, kind = replace(point, change=0.0), "none"
        vectors_converged = new.n_active == point.n_active and new.change < _VECTORS_CONVERGED
        if self.is_careful and vectors_converged:
            self._take_newton()
        gain = abs(new.log_posterior - point.log_posterior)
        is_small = vectors_converged and gain <= _SINGLE_ROUNDING * abs(point.log_posterior)
        new = rows.shrink(new)
        end = improved_width(rows, _zeros_by_kkt(rows, new) if self.prior.penalty > 0 else new)
        if end is not new and len(end.latent):  # none of a streamed design
            end = replace(end, change=float(np.abs(end.latent - point.latent).max()))
        return _Step(end, kind, rows.is_single and is_small)

    def newton_gains(self, point: Point) -> bool:
        """Whether a Newton step would still gain: the bound's are short where the likelihood is flat."""
        self._take_newton()
        new = self._newton(point)
        return new is not None and new.log_posterior > point.log_posterior + _LEAST_GAIN

    def _take_newton(self) -> None:
        """Take Newton's steps from here on; Gram matrices of curvatures are of points far away."""
        self.is_careful = False
        self.rows.grams.clear()

    def _newton(self, point: Point) -> Point | None:
        """Return the point after a Newton step; None if it does not raise the log posterior."""
        if self.rows.couples:
            return self._coupled_newton(point)
        # A rough step has only to raise the log posterior. Not under a prior that prunes, whose zeros would
        # be others, nor at the start, whose change is NaN.
        is_exact = self.prior.holds_zeros or point.change <= max(_FAR, self.options.tol)
        for slack in (0.0,) if is_exact else (_SLACK, 0.0):
            step = _m_step(self.rows, point, newton=True, slack=slack)
            new = self._raised(point, *step, 1 if self.prior.holds_zeros else _HALVINGS)
            if new is not None:
                break
        return new

    def _coupled_newton(self, point: Point) -> Point | None:
        """Return the point after a Newton step for all scores at once; None if it does not rise.

        First under the bound of the prior's curvature, as in EM, which decides the local maximum; then under
        the curvature itself, for near the end the bound's steps are too short, by hundreds of steps in all.
        """
        rows = self.rows
        gain, self.before = point.log_posterior - self.before, point.log_posterior
        count = self.problem.row_weight
        near = gain < _NEAR_MAXIMUM * (self.problem.Phi.shape[0] if count is None else count.sum())
        with np.errstate(over="ignore", invalid="ignore"):  # then another step is taken
            model = self.model(rows, point)
            for bound in (False, True) if near else (True,):
                step = model.step(bound=bound)
                if step is None:
                    continue
                weight = self.prior.pruned(step[0], shared=self.problem.shared)
                new = self._raised(point, weight, step[1], 3 * _HALVINGS)
                if new is not None:
                    return new
        return None

    def _raised(
        self, old: Point, weight: Array, bias: Array, halvings: int, slack: float = 0.0
    ) -> Point | None:
        """Return the first point that is not below the old one, of a step halved so often; None if all are.

        The whole step may lower the log posterior by the slack.
        """
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return None
        for halving in range(halvings):
            share = 0.5**halving
            tried = weight if halving == 0 else old.weight + share * (weight - old.weight)
            at = old.bias + share * (bias - old.bias)
            new = self.rows.at(tried, at, old, curved=self.takes_newton)
            if new.log_posterior >= old.log_posterior - slack * (halving == 0):
                return new
        return None


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
        # by the smaller of the two systems of equations
        row_weight = np.full(len(point.latent), problem.likelihood.bound)
        if newton:
            row_weight = np.maximum(point.terms.curvature, _LEAST_CURVATURE)
        elif problem.row_weight is not None:
            row_weight *= problem.row_weight
        response = point.latent[:, 0] + point.terms.slope[:, 0] / row_weight
        known = prior.weight_precision(point.weight[rows.index, 0])
        of_bias = problem.bias_precision(float(point.bias[0]))
        ridge = ridge_solve(rows.Phi, response, known, of_bias, row_weight=row_weight)
        weight[rows.index, 0], bias[0] = ridge
    else:
        gram = rows.gram(point, "curvature" if newton else "unit")
        unit = 1.0 if newton else problem.likelihood.bound  # that the matrix is in
        old = point.weight[rows.index]
        scale = rows.sign * np.sqrt(unit / prior.weight_precision(old))
        for c, old_bias in enumerate(point.bias.tolist()):
            precision = problem.bias_precision(old_bias) / unit
            weight[rows.index, c], bias[c] = solve_nonnegative(
                gram,
                scale[:, c],
                np.inf if precision == 0 else float(1.0 / np.sqrt(precision)),
                (point.gradient[:, c] / unit, float(point.total[c]) / unit),
                expected(old[:, c]),
                start=(old[:, c], old_bias),
                constrained=problem.is_signed,
                slack=slack,
            )
    weight = prior.pruned(weight, shared=problem.shared, size=rows.size)
    if problem.bias == "prior" and prior.holds_zero_bias and prior.penalty == 0:
        bias = np.where(np.abs(bias) <= _PRUNED_BIAS, 0.0, bias)
    return weight, bias


def _zeros_by_kkt(rows: DenseRows | StreamedRows, point: Point) -> Point:
    """Return the point with its zeros set by the KKT conditions of the L1 penalty.

    With g the slopes of the rows, w_j = 0 at a mode only if ``|Phi_j' g| <= penalty`` (under a sign rule only
    the slope in the sign's direction counts); likewise 1' g and a penalised bias. EM brings a weight to zero
    in the limit only, and never away from it. So negligible values that satisfy this go to zero, and zeros
    that violate it are released, where either raises the log posterior.
    """
    problem, penalty = rows.problem, rows.problem.hyperprior.penalty
    shape, penalised = point.gradient.shape, problem.bias == "prior"
    slope = np.vstack([point.gradient, point.total * penalised])
    size = np.vstack([np.broadcast_to(rows.size, shape), np.ones(shape[1])])
    value = np.vstack([point.weight, point.bias])
    allowed = np.vstack([(rows.sign * slope[:-1] > 0) | (not problem.is_signed), np.ones(shape[1])])
    small = (np.abs(value) * size <= _NEGLIGIBLE) & (np.abs(slope) <= penalty) & (value != 0)
    small[-1] &= penalised
    away = (value == 0) & (allowed > 0) & (np.abs(slope) > penalty * (1 + 1e-9))
    release = np.sign(slope) * _NEGLIGIBLE / np.maximum(size, 1e-12)
    # shorter ones where many together, or of large basis functions, go too far
    shorter = [(away, factor * release) for factor in _SHORTER]
    tries = [(small & (np.abs(value) * size <= _NOTHING), 0.0), (small, 0.0), *shorter]
    for chosen, new_value in tries:
        value = np.vstack([point.weight, point.bias])
        changed = np.where(chosen, new_value, value)
        if (changed == value).all():
            continue
        new = rows.at(changed[:-1], changed[-1], point, curved=True)
        gain = new.log_posterior - point.log_posterior
        if gain > 0 or (gain == 0 and chosen is not away):
            point = replace(new, change=point.change + new.change)  # a bound of both
            if chosen is away:
                break
    return point


def _first_point(rows: DenseRows | StreamedRows, start: Start) -> Point:
    """Return the start's point, tiny weights pruned; raise where it cannot be used."""
    problem, n_scores = rows.problem, rows.problem.n_scores
    weight = as_numbers(start.weight, "start.weight")
    bias = np.atleast_1d(as_numbers(start.bias, "start.bias"))
    n_obs, n_basis = problem.Phi.shape
    for name, value, needed in (
        ("weight", weight, problem.weight_shape),
        ("bias", bias, (n_scores,)),
        ("response", start.response, (n_obs,) if n_scores == 1 else (n_obs, n_scores)),
    ):
        if value is not None and np.shape(value) != needed:
            raise ValueError(f"start.{name} has shape {np.shape(value)}; needed {needed}")
        if value is not None and not np.isfinite(value).all():
            raise ValueError(f"start.{name} has values that are NaN or infinite; needed numbers")
    n = int(np.sum(weight * problem.weight_sign < 0)) if problem.is_signed else 0
    if n:
        raise ValueError(f"start has {n} weight(s) of the wrong sign; needed weight * sign >= 0")
    weight = weight.reshape(n_basis, n_scores)
    weight = problem.hyperprior.pruned(weight, shared=problem.shared, size=rows.size)
    return rows.first(weight, bias, start.response)


def _state(problem: Problem, point: Point) -> EMState:
    """Return a point in the shapes of the problem."""
    if problem.n_scores > 1:
        return EMState(point.weight, point.bias, point.latent, point.width, point.log_posterior)
    weight, bias, latent = point.weight[:, 0], float(point.bias[0]), point.latent[:, 0]
    return EMState(weight, bias, latent, point.width, point.log_posterior)
