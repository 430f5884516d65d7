"""The mode under an L1 penalty, or under given precisions, by Newton steps of the non-zero weights.

Under the Laplace prior EM brings a weight to zero in the limit only, and near the end takes hundreds of times
as many steps: it bounds the penalty, whose own curvature is zero, by a parabola.
"""

from typing import Any

import numpy as np
from scipy.linalg import cho_solve

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import QuadraticModel, with_constant

_MOST_STEPS = 500  # of Newton, at most: some bring one value to zero and end there
_HALVINGS = 20  # of a step that lowers the objective, to a millionth: the rest is rounding
_LEAST_GAIN = 1e-10  # nats of one Newton step, below which they end
_LEAST_EXCESS = 1e-6  # of a slope over the penalty, for a zero weight to enter


def penalised_mode(
    problem: Problem, weight: Array, bias: Any, *, precision: Array | None = None
) -> tuple[Array, Any, bool]:
    """Return weights and bias of the nearest maximum, and whether it was reached.

    Newton steps: whole where the objective does not fall then, else until a weight would change its sign, or
    shorter. Weights that would change their sign become zero. Where nothing is gained any more, the steepest
    of the zeros whose slope exceeds the penalty enters.

    Parameters
    ----------
    problem : Problem
        Its design dense; its prior Laplace's, or `precision` is given.
    weight : ndarray, shape (n_basis,) or (n_basis, n_scores)
        Where the steps start.
    bias : float or ndarray, shape (n_scores,)
    precision : ndarray, shape of `weight`, optional
        Of a normal prior of the weights, in place of the problem's prior; the bias has none then.

    Returns
    -------
    weight : ndarray
    bias : float or ndarray
    converged : bool
    """
    state = _Penalised(problem, precision)
    n_scores = problem.n_scores
    # the bias is the last weight, that of a column of ones
    value = np.vstack([np.reshape(weight, (-1, n_scores)), np.broadcast_to(bias, (1, n_scores))])
    height, enters, converged = state.objective(value), False, False
    for _ in range(_MOST_STEPS):
        side, step = state.step(value, enters)
        # share of the step at which a penalised value would change its sign
        share = np.where((value * side > 0) & (step * side < 0) & (state.penalty > 0), 0.0, np.inf)
        np.divide(-value, step, out=share, where=share == 0)
        first = min(1.0, float(share.min()))
        for length in (1.0, *first * 0.5 ** np.arange(_HALVINGS)):
            new = np.where(share <= length, 0.0, value + length * step)
            new_height = state.objective(new)
            if new_height >= height:
                break
        else:
            new, new_height = value, height
        rests = new_height - height <= _LEAST_GAIN and not ((new == 0) & (value != 0)).any()
        height, value = new_height, new
        if rests and enters:
            converged = True
            break
        enters = rests
    if n_scores == 1:
        return value[:-1, 0], float(value[-1, 0]), converged
    return value[:-1], value[-1], converged


class _Penalised:
    """Log likelihood less a penalty on sizes and a ridge, of values of shape (n_basis + 1, n_scores)."""

    def __init__(self, problem: Problem, precision: Array | None) -> None:
        prior = problem.hyperprior
        n_scores, n_basis = problem.n_scores, problem.Phi.shape[1]
        self.problem = problem
        self.Phi = with_constant(problem.Phi)
        self.sign = np.zeros((n_basis + 1, n_scores))
        if problem.is_signed:
            self.sign[:-1] = np.reshape(problem.weight_sign, (n_basis, n_scores))
        self.penalty, self.ridge = np.zeros(self.sign.shape), np.zeros(self.sign.shape)
        if precision is None:
            self.penalty[:] = prior.penalty
        else:
            self.ridge[:-1] = np.reshape(precision, (n_basis, n_scores))
        if problem.bias != "prior":
            self.penalty[-1] = 0.0
        if problem.bias == "none":
            self.ridge[-1] = np.inf

    def objective(self, value: Array) -> float:
        """Return the log posterior up to a constant."""
        latent = self.Phi @ (value[:, 0] if self.problem.n_scores == 1 else value)
        log_likelihood = self.problem.observed.log_density(latent).sum()
        used = value != 0
        ridge = 0.5 * float((self.ridge[used] * value[used] ** 2).sum())
        return float(log_likelihood) - float((self.penalty * np.abs(value)).sum()) - ridge

    def step(self, value: Array, enters: bool) -> tuple[Array, Array]:
        """Return the side of zero on which each value may be, and the Newton step.

        If `enters`, one zero has a side, too.
        """
        observed = self.problem.observed
        slope = self.Phi.T @ observed.terms(self.Phi @ value).slope
        side = np.sign(value)
        excess = np.abs(slope) - self.penalty
        excess[(value != 0) | (slope * self.sign < 0) | np.isinf(self.ridge)] = 0.0
        steepest = np.unravel_index(excess.argmax(), excess.shape)
        if enters and self.penalty[steepest] and excess[steepest] > _LEAST_EXCESS:
            side[steepest] = np.sign(slope[steepest])
        ridge = np.where((side != 0) | (self.penalty == 0), self.ridge, np.inf)
        nothing = np.zeros(value.shape[1])
        model = QuadraticModel(value, nothing, ridge, np.full(len(nothing), np.inf))
        model.over([(self.Phi, observed)])
        slope -= self.penalty * side + np.where(np.isfinite(ridge), ridge, 0.0) * value
        step = cho_solve((model.factor, True), model.scale * model.pack(slope, nothing))
        out = np.zeros(value.shape)
        model.unpack(model.scale * step, out, nothing)
        return side, out
