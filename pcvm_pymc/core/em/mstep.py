"""The M-step: weights and biases given expected precisions and a quadratic model of the likelihood."""

from typing import Any

import numpy as np

from pcvm_pymc.core.em.options import EMOptions
from pcvm_pymc.core.em.points import ChunkedRows, Point, WholeRows, expected
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import Gram, PartialGram, ridge_solve

__all__ = ["maximised", "may_be_rough"]

_LEAST_CURVATURE = 1e-12
_PRUNED_BIAS = 1e-6  # the value of an expected precision of 1e12, as in pieces.priors
_FAR = 0.3  # of a latent value: while steps are longer, which weights are zero is not settled
_SLACK = 0.1  # share of the weights that may be on the wrong side until then


def maximised(
    rows: WholeRows | ChunkedRows,
    point: Point,
    options: EMOptions,
    *,
    newton: bool = False,
    rough: bool = False,
    response: Array | None = None,
) -> tuple[Array, Array]:
    """Return the M-step's weights (all of them) and biases, score by score, under the sign rule.

    Chen et al. (2009) eqs. 11-12, Figueiredo & Jain (2001) eq. 16, Lyu et al. (2020) eqs. 28-29. With
    `newton` the likelihood's own curvature takes the place of its bound; a `rough` step is solved for until
    few weights are wrong. `response` are latent responses in place of the E-step's.
    """
    problem = rows.problem
    if isinstance(rows, WholeRows) and _is_ridge(problem, options):
        weight, bias = _ridge_step(rows, point, newton, response)
    else:
        weight, bias = _score_by_score(
            rows, point, options, newton, response, slack=_SLACK if rough else 0.0
        )
    prior: Any = problem.hyperprior
    weight = prior.pruned(weight, shared=problem.shared, size=rows.size)
    if problem.bias == "prior" and prior.holds_zero_bias and prior.penalty == 0:
        bias = np.where(np.abs(bias) <= _PRUNED_BIAS, 0.0, bias)
    return weight, bias


def _is_ridge(problem: Problem, options: EMOptions) -> bool:
    """Whether the weights are a ridge regression's: free, of one score, all at once."""
    return (
        not problem.is_signed
        and problem.n_scores == 1
        and options.update != "clip"
        and options.bias == "joint"
    )


def _ridge_step(
    rows: WholeRows, point: Point, newton: bool, response: Array | None
) -> tuple[Array, Array]:
    """Return free weights and bias, by the smaller of the two systems of equations."""
    problem = rows.problem
    prior: Any = problem.hyperprior
    if newton:
        row_weight = np.maximum(point.terms.curvature, _LEAST_CURVATURE)
    else:
        own = np.ones(len(point.latent)) if problem.row_weight is None else problem.row_weight
        row_weight = own * problem.likelihood.bound
    working = point.latent[:, 0] + point.terms.slope[:, 0] / row_weight
    some, bias = ridge_solve(
        rows.Phi,
        working if response is None else response[:, 0],
        prior.weight_precision(point.weight[rows.index, 0]),
        problem.bias_precision(float(point.bias[0])),
        row_weight=row_weight,
    )
    weight = np.zeros_like(point.weight)
    weight[rows.index, 0] = some
    return weight, np.array([bias])


def _score_by_score(
    rows: WholeRows | ChunkedRows,
    point: Point,
    options: EMOptions,
    newton: bool,
    response: Array | None,
    *,
    slack: float,
) -> tuple[Array, Array]:
    """Return weights and biases by the Gram matrix, which all scores share."""
    gram, unit = rows.curved_gram(point) if newton else _unit_gram(rows, point)
    if options.bias == "alternating":  # eq. 11 holds the bias, which a change would move
        gram.widen()
    # where the matrix is not known to the last digit it is the change that is solved for
    by_change = isinstance(gram, PartialGram) and gram.is_single
    if by_change:
        pull, total = rows.gradient(point)
    else:
        pull, total = rows.target(point, gram, response, newton=newton)
    weight, bias = np.zeros(point.weight.shape), np.zeros(point.bias.shape)
    for c in range(rows.problem.n_scores):
        own = (pull[:, c], float(total[c]))
        weight[rows.index, c], bias[c] = _maximised_score(
            rows,
            point,
            gram,
            own,
            c=c,
            unit=unit,
            options=options,
            slack=slack,
            by_change=by_change,
        )
    return weight, bias


def may_be_rough(problem: Problem, point: Point, options: EMOptions) -> bool:
    """Whether a Newton step may be solved for roughly: it has to climb only, and the last are exact.

    Not where zeros are for good, for they would be others.
    """
    prior: Any = problem.hyperprior
    is_near = point.change <= max(_FAR, options.tol)  # not at the start, whose change is NaN
    return not prior.holds_zeros and not is_near


def _unit_gram(rows: WholeRows | ChunkedRows, point: Point) -> tuple[Gram, float]:
    """Return the Gram matrix of the bound's step, and the row weight that it is in units of."""
    return rows.unit_gram(point), rows.problem.likelihood.bound


def _maximised_score(
    rows: WholeRows | ChunkedRows,
    point: Point,
    gram: Gram,
    target: tuple[Array, float],
    *,
    c: int,
    unit: float,
    options: EMOptions,
    slack: float,
    by_change: bool,
) -> tuple[Array, float]:
    """Return one score's weights on the columns in play, and its bias."""
    problem = rows.problem
    prior: Any = problem.hyperprior
    some = point.weight[rows.index]
    old, sign = some[:, c], rows.sign[:, c]
    expected_precision = prior.weight_precision(some)[:, c]  # of all scores, which may share it
    pull, total = target
    play = None
    if problem.n_scores > 1 and prior.holds_zeros:  # the work follows the number that can move
        play = np.flatnonzero(old)
        gram, old, sign, pull = gram.take(play), old[play], sign[play], pull[play]  # type: ignore[attr-defined]
        expected_precision = expected_precision[play]
    precision = problem.bias_precision(float(point.bias[c])) / unit
    alternating = options.bias == "alternating"
    if alternating:  # eq. 11: the weights at the old bias, then eq. 12
        pull = pull - float(point.bias[c]) * gram.border
    active, bias = solve_nonnegative(
        gram,
        sign * np.sqrt(unit / expected_precision),
        0.0 if alternating else _scale(precision),
        (pull, total),
        expected(old),
        start=(old, float(point.bias[c])) if by_change else None,
        constrained=options.update != "clip" and problem.is_signed,
        slack=slack,
    )
    if options.update == "clip":
        kept = np.abs(active) > options.drop
        if problem.is_signed:
            kept &= active * sign >= 0
        active = np.where(kept, active, 0.0)
    if alternating:
        bias = (total - float(gram.border @ active)) / (precision + gram.corner)
    if play is None:
        return active, bias
    out = np.zeros(len(rows.index))
    out[play] = active
    return out, bias


def _scale(precision: float) -> float:
    """Return the standard deviation, infinite for a precision of zero."""
    return np.inf if precision == 0 else float(1.0 / np.sqrt(precision))
