r"""Unknown hyperparameters put where the data want them, and the mode of weights and bias given them.

Weights and an unknown scale have no joint mode: as both go to zero, their density grows without bound. So
weights of any sign are integrated out, by Laplace's approximation at their mode (w*, b*) given d,

.. math:: \log p(y, \log d) \approx \log p(y, w^*, b^* \mid d) + \log p(\log d)
    + \tfrac{n}{2} \log 2 \pi - \tfrac12 \log \det H,

and d stands where that is largest. H is minus the Hessian in the n weights and biases. The density is that of
log d, which does not depend on the unit: that of d itself has a pole at zero under a wide Gamma. An unknown
width is found with d, by the density of its logarithm.

Under signs of labels the posterior concentrates on many small weights that add up, and a mode at their scale
predicts nearly nothing. There the scale is the one whose mode predicts best the rows that are left out with
their own basis functions (`core.loo`), under the prior of the scale that `select` has.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from pcvm_pymc.core.em import EMOptions, EMState, Start, fit_em
from pcvm_pymc.core.em.own_terms import OwnProblem, OwnResult, OwnState, curvatures, fit_own_terms
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.core.pieces.priors import SCALE_SPREAD
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.core.quadratic import Index, QuadraticModel

_TOLERANCE = 1e-2  # of modes while hyperparameters are searched for
# of the search, in logarithms: first and last radius
_STEPS: Any = {"initial_tr_radius": 1.5, "final_tr_radius": 0.1}
# share of E[precision] that a prior's curvature counts as at least: that of a weight far out is negative
_LEAST_CURVATURE = 0.1
_HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))


def fit_hyperparameters(
    problem: Problem,
    start: Start | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, EMState], None] | None = None,
    *,
    basis_row: Index | None = None,
) -> EMResult:
    """Put an unknown d, and without signs an unknown width, where the data want them; find the mode there.

    Widths per feature, and a width under signs, EM moves with the weights.

    Parameters
    ----------
    problem, start, options, callback
        As for `fit_em`; the callback is of the last fit.
    basis_row : ndarray of int, shape (n_basis,), optional
        The row that each basis function is centred on, for weights with signs; -1 for none.

    Returns
    -------
    EMResult
        At the estimates, with its `criterion`.
    """
    options, prior = options or EMOptions(), problem.hyperprior
    marginal = not problem.is_signed and prior.penalty == 0 and prior.is_proper
    by_width = marginal and problem.moves is not None and np.ndim(problem.width) == 0
    first = [np.log(prior.d if marginal else prior.c)] if prior.learns_rate else []
    first += [np.log(problem.width)] if by_width else []
    if not first:
        return fit_em(problem, start, options, callback)
    rows = np.full(problem.Phi.shape[1], -1) if basis_row is None else basis_row

    def at(x: Array) -> Problem:
        d, width = np.exp(x)[[0, -1]].tolist()
        return problem.given(d=d, width=width if by_width else None)

    def fit(x: Array, near: EMResult | None, how: EMOptions, *report: Any) -> EMResult:
        begin = start or Start.default(problem)
        return fit_em(at(x), begin if near is None else Start(near.weight, near.bias), how, *report)

    def criterion(x: Array, mode: EMResult) -> tuple[str, float, float]:
        here = at(x)
        if marginal:
            return "log_marginal", log_marginal(here, mode) + float(x.sum()), 0.0
        here = here if here.moves is None else here.given(width=mode.width)
        held_out = leave_one_out(here, mode.weight, mode.bias, rows)
        away = 0.5 * (x[0] - first[0]) / SCALE_SPREAD  # the scale is the root of d / c
        return "elpd_loo", float(held_out.log_density.sum()), -0.5 * away**2

    return _estimated(fit, criterion, np.array(first), options, callback)


def fit_own_hyperparameters(
    problem: OwnProblem,
    values: Array,
    options: EMOptions,
    callback: Callable[[int, OwnState], None] | None = None,
) -> OwnResult:
    """Do the same for the unknown d of each latent function without signs in a user-defined log posterior.

    Weights and biases of these functions are integrated out, all else is at its mode. Under signs d stays at
    unit scale: which basis function a row has is not known here.

    Parameters
    ----------
    problem, values, options, callback
        As for `fit_own_terms`; the callback is of the last fit.

    Returns
    -------
    OwnResult
    """
    unknown = [k for k, block in enumerate(problem.blocks) if len(block.rate) and not block.signed]
    if not unknown:
        return fit_own_terms(problem, values, options, callback)

    def at(x: Array) -> OwnProblem:
        blocks = [*problem.blocks]
        for k, d in zip(unknown, np.exp(x).tolist(), strict=True):
            blocks[k] = replace(blocks[k], hyperprior=replace(blocks[k].hyperprior, d=d))
        return replace(problem, blocks=tuple(blocks))

    def fit(x: Array, near: OwnResult | None, how: EMOptions, *report: Any) -> OwnResult:
        here, begin = at(x), (values if near is None else near.values).copy()
        for k in unknown:
            begin[here.blocks[k].rate] = here.blocks[k].hyperprior.d
        return fit_own_terms(here, begin, how, *report)

    def criterion(x: Array, mode: OwnResult) -> tuple[str, float, float]:
        here = at(x)
        blocks = [here.blocks[k] for k in unknown]
        H, lifted = curvatures(here, mode.values, np.concatenate([b.values for b in blocks])), []
        for b in blocks:
            prior, weight, bias = b.hyperprior, mode.values[b.weight], mode.values[b.bias]
            short = np.maximum(_LEAST_CURVATURE - prior.weight_curvature_ratio(weight), 0.0)
            lifted += [short * prior.weight_precision(weight), np.zeros_like(bias)]
        H[np.diag_indices(len(H))] += np.concatenate(lifted)
        volume = _HALF_LOG_2PI * len(H) - 0.5 * float(np.linalg.slogdet(H)[1])
        return "log_marginal", mode.log_posterior + volume + float(x.sum()), 0.0

    first = np.log([problem.blocks[k].typical_rate for k in unknown])
    return _estimated(fit, criterion, first, options, callback)


def _estimated[T: (EMResult, OwnResult)](
    fit: Callable[..., T],
    criterion: Callable[[Array, T], tuple[str, float, float]],
    first: Array,
    options: EMOptions,
    callback: Any,
) -> T:
    """Return the mode at the hyperparameters whose criterion, with a prior that is not in it, is largest.

    One takes some seven modes, two take 17; each begins at the last one.
    """
    rough, near = replace(options, tol=max(options.tol, _TOLERANCE)), None

    def falling(x: Array) -> float:
        nonlocal near
        near = fit(x, near, rough)
        return -sum(criterion(x, near)[1:])

    x = minimize(falling, first, method="COBYQA", options=_STEPS).x
    mode = fit(x, near, options, callback)
    name, value, _ = criterion(x, mode)
    return replace(mode, criterion={name: value})


def log_marginal(problem: Problem, mode: EMResult) -> float:
    """Return Laplace's approximation of the log density of the labels, and of what the problem has given."""
    prior, shape = problem.hyperprior, (problem.Phi.shape[1], problem.n_scores)
    weight, bias = mode.weight.reshape(shape), np.atleast_1d(mode.bias)
    of_weight = np.maximum(prior.weight_curvature_ratio(weight), _LEAST_CURVATURE)
    of_bias = np.maximum(prior.bias_curvature_ratio(bias), _LEAST_CURVATURE)
    of_weight = of_weight * prior.weight_precision(weight)
    of_bias = of_bias * [problem.bias_precision(float(b)) for b in bias]
    model = QuadraticModel(weight, bias, of_weight, of_bias)
    H = model.over([(problem.Phi, problem.observed)])
    volume = _HALF_LOG_2PI * len(H.scale) - np.log(H.factor.diagonal() / H.scale).sum()
    return mode.log_posterior + float(volume)
