"""Moves of an unknown width between sweeps, responses integrated out."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState, make_columns
from pcvm_pymc.core.gibbs.slices import log_rate_density
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import WidthMoves

# standard deviations of steps in log(width), one drawn for each step: none suits all posteriors
_STEPS = 0.5 ** np.arange(5)


def move_width(
    problem: GibbsProblem, moves: WidthMoves, state: GibbsState, rng: np.random.Generator
) -> None:
    """Move the width twice by Metropolis' rule, the second time together with the weights' scale.

    Of several widths one moves at a time.

    Parameters
    ----------
    problem : GibbsProblem
    moves : WidthMoves
        The problem's.
    state : GibbsState
        Changed in place.
    rng : numpy.random.Generator
    """
    now = log_density(problem, moves, state, state.basis.Phi)
    for rescaled in (False, True):
        width = state.width * np.exp(_step(state.width, rng))
        Phi = moves.basis(width)
        proposed, volume = moved(problem, state, width, Phi, rescaled=rescaled)
        then = log_density(problem, moves, proposed, Phi)
        if np.log(rng.random()) < then - now + volume:
            state.size, state.log_rate, state.width = proposed.size, proposed.log_rate, width
            state.basis, now = make_columns(Phi, problem.basis.neighbours), then


def moved(
    problem: GibbsProblem, state: GibbsState, width: Any, Phi: Array, *, rescaled: bool
) -> tuple[GibbsState, float]:
    """Return a state of another width, and the log volume that its move adds to sizes, width and d.

    A kernel of another width adds up to another size of the latent function. Rescaled sizes make up for it:
    they go as the inverse norm of all basis functions, a learned d as their square, which leaves their prior
    as it is.

    Parameters
    ----------
    problem : GibbsProblem
    state : GibbsState
        With its `basis`.
    width : float or ndarray, shape (n_features,)
    Phi : ndarray, shape (n_obs, n_basis)
        Columns functions at that width.
    rescaled : bool
    """
    volume = float(np.sum(np.log(width / state.width)))
    norm = float(np.linalg.norm(Phi))
    if not rescaled or norm == 0.0:  # so narrow that no row sees a basis: nothing makes up for it
        return replace(state, width=width), volume
    log_factor = float(np.log(np.linalg.norm(state.basis.Phi) / norm))
    step = 2.0 * log_factor if problem.parameters.rate_shape > 0.0 else 0.0
    size = np.exp(log_factor) * state.size
    volume += state.size.size * log_factor + step
    return replace(state, width=width, size=size, log_rate=state.log_rate + step), volume


def log_density(problem: GibbsProblem, moves: WidthMoves, state: GibbsState, Phi: Array) -> float:
    """Return the log posterior density of sizes, width and d, responses integrated out.

    But for constants, and the density of the bias, which does not move here.
    """
    of_scale = log_rate_density(state.log_rate, state.size.reshape(1, -1), problem.parameters)
    of_scale -= state.log_rate  # it is the density of log d
    latent = Phi @ (state.size * problem.sign) + state.bias
    of_labels = float(np.sum(problem.likelihood.log_density(latent, problem.label)))
    return moves.log_density(state.width) + of_scale + of_labels


def _step(width: Any, rng: np.random.Generator) -> Any:
    """Return a step in log(width), of one of several."""
    step = rng.choice(_STEPS) * rng.standard_normal()
    if np.ndim(width) == 0:
        return step
    return step * (np.arange(len(width)) == rng.integers(len(width)))
