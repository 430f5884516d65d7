"""EM as in the program of Chen et al. (2009): clipped weights, weights and bias in turn, random starts.

An unconstrained solve, then wrong-signed and small weights are dropped: not monotone, and its end is not a
maximum of anything. The library's EM solves under the sign rule.
"""

from typing import Any

import numpy as np

from pcvm_pymc.core.em import EMOptions, Start, initial_state
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status
from pcvm_pymc.core.quadratic import BorderedGram
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.replicas.starts import authors_start

_PRUNED_BIAS = 1e-6  # the bias whose expected precision is 1e12


def clipped_em(
    problem: Problem,
    start: Start,
    *,
    max_iter: int = 500,
    tol: float = 1e-3,
    drop: float = 1e-3,
) -> EMResult:
    """Run the authors' EM for one score or several.

    Parameters
    ----------
    problem : Problem
        With signed weights, its `Phi` an array.
    start : Start
        For instance `authors_start`.
    max_iter : int
    tol : float
        It stops once no weight changes by more.
    drop : float
        Weights at most this large are dropped.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), eqs. 11 and 12, and their program; S. Lyu et al. (2020), eqs. 28-29.
    """
    if not problem.is_signed:
        raise ValueError("the problem has free weights; clipped_em is for signed ones: use fit_em")
    state, n_scores = initial_state(problem, start), problem.n_scores
    weight, bias = (
        state.weight.reshape(-1, n_scores).copy(),
        np.atleast_1d(state.bias).astype(float),
    )
    gram = BorderedGram.of(problem.Phi, problem.row_weight)
    own = np.ones((1, 1)) if problem.row_weight is None else problem.row_weight[:, None]
    bound, response = problem.likelihood.bound, start.response
    trace = [(state.log_posterior, state.n_active, np.nan, problem.width)]
    status = Status.ITERATION_LIMIT
    for _ in range(max_iter):
        latent = problem.Phi @ weight + bias
        if response is None:
            response = latent + problem.observed.terms(latent).slope / (own * bound)
        counted = own * np.asarray(response, dtype=float).reshape(latent.shape)
        new, bias = _in_turn(problem, gram, counted, (weight, bias), drop)
        change, weight, response = float(np.abs(new - weight).max(initial=0.0)), new, None
        latent = problem.Phi @ weight + bias
        value = problem.observed.log_likelihood(latent[:, 0] if n_scores == 1 else latent)
        value += problem.log_prior(weight, bias)
        trace.append((value, int(np.count_nonzero(weight)), change, problem.width))
        if change <= tol:
            status = Status.CONVERGED
            break
    status = status if weight.any() else Status.EMPTY_MODEL
    ends: Any = (weight, bias, latent)
    if n_scores == 1:
        ends = weight[:, 0], float(bias[0]), latent[:, 0]
    columns = EMTrace(*(np.asarray(column) for column in zip(*trace, strict=True)))
    return EMResult(
        ends[0], ends[1], problem.width, ends[2], trace[-1][0], status, len(trace) - 1, columns
    )


def _in_turn(
    problem: Problem, gram: BorderedGram, response: Array, old: tuple[Array, Array], drop: float
) -> tuple[Array, Array]:
    """Return the weights at the old bias (eq. 11), clipped, and then the bias (eq. 12)."""
    prior: Any = problem.hyperprior
    weight, bias = old
    unit, sign = problem.likelihood.bound, problem.weight_sign.reshape(weight.shape)
    slope, total = problem.Phi.T @ response, response.sum(axis=0)
    scale = np.sqrt(unit / prior.weight_precision(weight))
    new, new_bias = np.zeros_like(weight), np.zeros_like(bias)
    for c in range(weight.shape[1]):
        kept = np.flatnonzero(scale[:, c])  # others have an infinite precision
        part = gram.take(kept)
        goal = slope[kept, c] - bias[c] * part.matrix[-1, :-1]
        every = np.ones(len(kept), dtype=bool)
        solved, _ = solve_nonnegative(
            part, scale[kept, c], 0.0, (goal, 0.0), every, constrained=False
        )
        stays = (np.abs(solved) > drop) & (solved * sign[kept, c] >= 0)
        new[kept, c] = np.where(stays, solved, 0.0)
        precision = problem.bias_precision(float(bias[c])) / unit
        new_bias[c] = (total[c] - gram.matrix[-1, :-1] @ new[:, c]) / (
            precision + gram.matrix[-1, -1]
        )
    new = prior.pruned(new, shared=problem.shared)
    if problem.bias == "prior" and prior.holds_zero_bias:
        new_bias = np.where(np.abs(new_bias) <= _PRUNED_BIAS, 0.0, new_bias)
    return new, new_bias


class AuthorsPCVM(PCVMClassifier):
    """A PCVM by the authors' program; arguments of `PCVMClassifier`."""

    def _solved(self, problem: Problem) -> EMResult:
        start = authors_start(problem, np.random.default_rng(self.random_state))
        return clipped_em(problem, start, max_iter=(self.options or EMOptions()).max_iter)
