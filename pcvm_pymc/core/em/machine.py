"""EM for the maximum a posteriori point, of one score or several, rows in memory or in chunks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.em.coupled import CoupledNewton, RowsNewton, SummedNewton
from pcvm_pymc.core.em.mstep import maximised, may_be_rough
from pcvm_pymc.core.em.options import SETTLED, EMOptions
from pcvm_pymc.core.em.penalty import mended_zeros
from pcvm_pymc.core.em.points import ChunkedRows, Point, WholeRows, rows_of
from pcvm_pymc.core.em.quadratic import BOUND, CONVEX, OWN
from pcvm_pymc.core.em.results import EMState
from pcvm_pymc.core.em.starts import Start
from pcvm_pymc.core.em.widths import improved_width
from pcvm_pymc.core.family import check_mode
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.pieces.validation import as_numbers
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status

__all__ = ["fit_em", "initial_state", "iterate", "log_joint", "log_posterior", "relevance_start"]

_SLACK = 1e-10  # of the log posterior, which rounding may take
_SINGLE_SLACK = 3e-8  # the same of basis functions in single precision
_MOST_HALVINGS = 30  # of a step that rounding has spoilt
_MOST_DOUBLINGS = 20  # of a step beside a saddle
_HALVINGS = 4  # of a Newton step, before the bound's is taken
_LEAST_GAIN = 0.01  # nats of log posterior that a Newton step may still promise at the end


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


def log_joint(
    problem: Problem, weight: Array, bias: float, precision: Array, bias_precision: float
) -> float:
    """Return log p(y, w, b, alpha, beta) of signed weights: the precisions explicit."""
    prior = problem.hyperprior
    assert isinstance(prior, Hyperprior)
    return (
        problem.likelihood.log_likelihood(problem.Phi @ weight + bias, problem.label)
        + float(prior.log_joint_weight_density(weight, precision).sum())
        + prior.log_joint_bias_density(bias, bias_precision)
    )


def initial_state(problem: Problem, start: Start) -> EMState:
    """Return the state at a start, tiny weights pruned.

    Raises
    ------
    ValueError
        If the start has another shape than the problem, is not finite, or has a weight of the wrong sign.
    """
    return _state(problem, _first_point(rows_of(problem), start))


def _first_point(rows: WholeRows | ChunkedRows, start: Start) -> Point:
    problem = rows.problem
    weight, bias = _checked(problem, start)
    shape = (problem.Phi.shape[1], problem.n_scores)
    prior: Any = problem.hyperprior
    weight = prior.pruned(weight.reshape(shape), shared=problem.shared, size=rows.size)
    if isinstance(rows, ChunkedRows) and problem.likelihood.n_scores > 1:
        return rows.first(weight, bias)
    return rows.at(weight, bias, None, curved=True)


def _checked(problem: Problem, start: Start) -> tuple[Array, Array]:
    """Return a start's weights and biases; raise where they cannot be used."""
    weight = as_numbers(start.weight, "start.weight")
    bias = np.atleast_1d(as_numbers(start.bias, "start.bias"))
    n_obs = problem.Phi.shape[0]
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
            f"start has {wrong} weight(s) of the wrong sign; needed weight * sign >= 0 "
            "(Start.from_solution mends another machine's solution)"
        )
    return weight, bias


def _state(problem: Problem, point: Point) -> EMState:
    """Return a point in the shapes of the problem."""
    if problem.n_scores > 1:
        return EMState(point.weight, point.bias, point.latent, point.width, point.log_posterior)
    return EMState(
        point.weight[:, 0],
        float(point.bias[0]),
        point.latent[:, 0],
        point.width,
        point.log_posterior,
    )


class _Machine:
    """The iteration: which step is taken next, and the plug-ins after it."""

    def __init__(self, problem: Problem, options: EMOptions) -> None:
        self.problem, self.options = problem, options
        self.rows = rows_of(problem)
        _check_options(self.rows, options)
        prior: Any = problem.hyperprior
        self.careful = options.update == "auto" and prior.holds_zeros and prior.penalty == 0
        self.is_stuck = False  # whether rounding leaves no step that raises the log posterior
        self.is_at_rest = False  # whether the last step is as small as single precision's rounding
        self.is_bound = False  # whether the last step was the bound's
        self.is_plain = problem.moves is None and prior.penalty == 0  # no plug-in moves a point
        self.coupled = _coupled_steps(self.rows)

    @property
    def bends(self) -> bool:
        """Whether the next step takes the likelihood's own curvature."""
        return self.options.update in ("auto", "newton") and not self.careful

    def next(self, point: Point, response: Array | None) -> Point:
        """Return the point after one E-step, one M-step and the plug-ins."""
        rows = self.rows
        is_first = response is not None or (
            isinstance(rows, ChunkedRows) and self.problem.n_scores > 1 and np.isnan(point.change)
        )
        if is_first and response is None:
            response = np.empty(0)  # the sums of the first pass are the responses'
        new = None if is_first or not self.bends else self._newton(point)
        self.is_bound = new is None and self.options.update != "clip"
        if new is None:
            step = maximised(rows, point, self.options, response=response)
            new = rows.at(*step, point, curved=self.bends)
            if not is_first and self.options.update != "clip":
                new = self._not_below(point, new)
        if self.careful and self._has_settled(point, new):
            self.careful = False
            if isinstance(rows, ChunkedRows) and self.bends:  # its Gram matrix is still to come
                new = replace(rows.at(new.weight, new.bias, None, curved=True), change=new.change)
        is_single = isinstance(rows, ChunkedRows) and rows.chunks.single
        self.is_at_rest = is_single and self._is_rounding(point, new)
        new = rows.shrink(new)
        if self.is_plain:
            return new
        new = mended_zeros(rows, new)
        return improved_width(rows, new) if isinstance(rows, WholeRows) else new

    def _not_below(self, old: Point, new: Point) -> Point:
        """Return a point that is not below the old one: nearer to it where rounding has spoilt the step."""
        slack = _SLACK * max(1.0, abs(old.log_posterior))
        if new.log_posterior >= old.log_posterior - slack:
            return new
        nearer = self._on_the_way(old, new.weight, new.bias, range(1, _MOST_HALVINGS))
        if nearer is not None:
            return nearer
        self.is_stuck = True
        return replace(old, change=0.0)

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
        return self.rows.at(tried, old.bias + share * (bias - old.bias), old, curved=self.bends)

    def _newton(self, point: Point) -> Point | None:
        """Return the point after a Newton step, shortened where the whole would lower the log posterior."""
        rows = self.rows
        if isinstance(rows, ChunkedRows) and not rows.has_curvature:
            return None
        if self.coupled is not None:
            return self._coupled_newton(point, self.coupled)
        # where a rough step does not climb, one that is solved for to the end does
        for rough in (True, False) if may_be_rough(self.problem, point, self.options) else (False,):
            step = maximised(rows, point, self.options, newton=True, rough=rough)
            new = self._shortened(point, *step)
            if new is not None:
                return new
        return None

    def _coupled_newton(self, point: Point, coupled: CoupledNewton) -> Point | None:
        """Return the point after a Newton step for all scores at once.

        First under the bound of the prior's curvature, as EM, which decides the local maximum; then under the
        curvature itself, for near the end the bound's steps are too short, by hundreds of steps in all.
        """
        if not coupled.is_settling(point):
            return self._coupled_step(point, coupled, BOUND)
        new = self._coupled_step(point, coupled, OWN)
        if new is not None:
            return new
        new = self._coupled_step(point, coupled, CONVEX)
        if new is not None:
            return self._stretched(point, new)
        return self._coupled_step(point, coupled, BOUND)

    def _coupled_step(
        self, point: Point, coupled: CoupledNewton, least_bend: float
    ) -> Point | None:
        with np.errstate(over="ignore", invalid="ignore"):  # then another step is taken
            step = coupled.step(point, least_bend=least_bend)
        if step is None:
            return None
        prior: Any = self.problem.hyperprior
        return self._shortened(point, prior.pruned(step[0], shared=self.problem.shared), step[1])

    def _stretched(self, old: Point, new: Point) -> Point:
        """Return the highest point found farther on: beside a saddle the slope is small and the way long."""
        weight, bias = new.weight, new.bias
        for doubling in range(1, _MOST_DOUBLINGS):
            farther = self._toward(old, weight, bias, 2.0**doubling)
            if not farther.log_posterior > new.log_posterior:
                break
            new = farther
        return new

    def _shortened(self, point: Point, weight: Array, bias: Array) -> Point | None:
        """Return the point after a step to these, or on the way there; None if all lie below."""
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            return None
        prior: Any = self.problem.hyperprior
        halvings = 1 if prior.holds_zeros else _HALVINGS
        return self._on_the_way(point, weight, bias, range(halvings))

    def stops_short(self, point: Point) -> bool:
        """Whether a Newton step would still gain: the bound's steps creep where the likelihood is flat."""
        if self.is_stuck or not self.is_bound:
            return False
        self.careful = False
        if isinstance(self.rows, ChunkedRows):  # the Gram matrix of the curvature
            point = self.rows.at(point.weight, point.bias, None, curved=True)
        new = self._newton(point)
        return new is not None and new.log_posterior > point.log_posterior + _LEAST_GAIN

    @staticmethod
    def _has_settled(old: Point, new: Point) -> bool:
        """Whether EM has chosen its vectors: nothing was pruned and the latent function hardly moves."""
        return new.n_active == old.n_active and new.change < SETTLED

    def _is_rounding(self, old: Point, new: Point) -> bool:
        """Whether a short step has changed what basis functions in single precision leave open anyway."""
        change = abs(new.log_posterior - old.log_posterior)
        return self._has_settled(old, new) and change <= _SINGLE_SLACK * abs(old.log_posterior)

    def change(self, old: Point, new: Point) -> float:
        """Return the largest change of the latent function (of the weights for the authors' recipe)."""
        if self.options.update == "clip":
            return float(np.abs(new.weight - old.weight).max(initial=0.0))
        if isinstance(self.rows, ChunkedRows) or self.is_plain:
            return new.change
        return float(
            np.abs(new.latent - old.latent).max()
        )  # of the step and of what follows upon it


def _coupled_steps(rows: WholeRows | ChunkedRows) -> CoupledNewton | None:
    """Return what makes Newton steps of several scores at once; None where they are not taken."""
    if not rows.couples:
        return None
    return RowsNewton(rows) if isinstance(rows, WholeRows) else SummedNewton(rows)


def _check_options(rows: WholeRows | ChunkedRows, options: EMOptions) -> None:
    problem = rows.problem
    check_mode(problem)
    if options.update == "clip" and not problem.is_signed and problem.n_scores == 1:
        raise ValueError("update='clip' is for signed weights; use 'auto', 'newton' or 'em'")
    if isinstance(rows, ChunkedRows) and (options.update == "clip" or options.bias != "joint"):
        raise ValueError(
            f"update={options.update!r}, bias={options.bias!r}: rows in chunks need update 'auto', "
            "'newton' or 'em' and bias 'joint'"
        )
    if problem.moves is not None and problem.n_scores > 1:
        raise ValueError("EM moves the width of one score only; give a number as width")


def iterate(
    problem: Problem, start: Start | EMState, options: EMOptions | None = None
) -> Iterator[EMState]:
    """Yield the state after each EM iteration, without end; the caller stops."""
    machine = _Machine(problem, options or EMOptions())
    if isinstance(start, EMState):
        start = Start(start.weight, start.bias)
    for point, _ in _points(machine, _first_point(machine.rows, start), start):
        yield _state(problem, point)


def _points(machine: _Machine, point: Point, start: Start) -> Iterator[tuple[Point, float]]:
    """Yield each point after the start's with its change."""
    response = start.response
    if response is not None:
        response = np.asarray(response, dtype=float).reshape(len(response), -1)
    while True:
        new = machine.next(point, response)
        change = machine.change(point, new)
        point, response = new, None
        yield point, change


@threads_by_size
def fit_em(
    problem: Problem,
    start: Start | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, EMState], None] | None = None,
) -> EMResult:
    """Run EM to its end.

    Parameters
    ----------
    problem : Problem
        Of one score or several; its `Phi` in memory, or a `StreamedDesign`.
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
    Unless ``update`` is ``"clip"`` the log posterior never decreases (for a start with latent responses,
    which are not those of its weights, from the first iteration on). Under an improper prior EM is a
    local search: the result depends on the start. Under the Laplace prior the end point is the
    L1-penalised maximum.

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
    machine = _Machine(problem, options)
    start = start or Start.default(problem)
    first = _first_point(machine.rows, start)
    trace = [(first.log_posterior, first.n_active, np.nan, first.width)]
    status = Status.ITERATION_LIMIT
    for n_iter, (point, change) in enumerate(_points(machine, first, start), 1):
        trace.append((point.log_posterior, point.n_active, change, point.width))
        if callback is not None:
            callback(n_iter, _state(problem, point))
        if change <= options.tol or machine.is_at_rest:
            short = machine.stops_short(point)
            if not (short and machine.bends):  # else a Newton step is next
                at_rest = Status.ROUNDING if machine.is_stuck else Status.CONVERGED
                status = Status.SHORT_STEPS if short else at_rest
                break
        if n_iter == options.max_iter:
            break
    if point.n_active == 0:
        status = Status.EMPTY_MODEL
    end = _state(problem, point)
    return EMResult(
        end.weight,
        end.bias,
        end.width,
        end.latent,
        end.log_posterior,
        status,
        len(trace) - 1,
        EMTrace(*(np.asarray(column) for column in zip(*trace, strict=True))),
    )


def relevance_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an RVM-like start: a few steps of the same EM without the sign rule (footnote 9).

    Without signs the model is a sparse Bayesian (ARD) machine; its zero and wrong-signed weights
    become small random values.
    """
    free = replace(problem, sign=None, hyperprior=Hyperprior.jeffreys(), moves=None)
    machine = fit_em(free, Start(problem.weight_sign.copy(), 0.1), EMOptions(max_iter=50))
    return Start.from_solution(problem, machine.weight, machine.bias, rng)
