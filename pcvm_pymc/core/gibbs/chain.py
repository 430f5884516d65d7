"""A chain: compiled sweeps, and moves of an unknown width between them."""

import math
import time
from collections.abc import Callable

import numpy as np

from pcvm_pymc.core.gibbs import moves
from pcvm_pymc.core.gibbs.block import move_visible_ones
from pcvm_pymc.core.gibbs.moves import Columns, Given, Parameters, Score, sliced
from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState
from pcvm_pymc.core.gibbs.responses import OF_CLASSES, Augmented, augmented, draw_responses
from pcvm_pymc.core.gibbs.vectors import Integers, copy_into, jit
from pcvm_pymc.core.gibbs.widths import move_width
from pcvm_pymc.core.pieces.probit import Array

_WIDTH_PERIOD = 10  # sweeps, which take about as long as one move of the width
_CHUNK_SECONDS = 0.3  # of compiled sweeps, after which a chain can be interrupted
_SCALE_PERIOD = 5  # sweeps, of several scores: their integrals would take most of a sweep's time


def advance(
    problem: GibbsProblem,
    state: GibbsState,
    rng: np.random.Generator,
    *,
    draws: int,
    thin: int = 1,
    between: Callable[[], None] = lambda: None,
) -> tuple[Array, ...]:
    """Run ``draws * thin`` sweeps; an unknown width is updated after every tenth, and after the last.

    Parameters
    ----------
    problem : GibbsProblem
    state : GibbsState
        Changed in place.
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    draws : int
        States kept, one every `thin` sweeps.
    thin : int
    between : callable
        Called several times a second; what it raises ends the sweeps.

    Returns
    -------
    size : ndarray, shape (draws, n_basis), or (draws, n_basis, n_scores) for several scores
    bias : ndarray, shape (draws,) or (draws, n_scores)
    rate : ndarray, shape (draws,)
        d, which does not move where it is not learned.
    width : ndarray, shape (draws,) or (draws, n_features)
        Where it is unknown; else there are three arrays.

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data", JASA 88.
    R. M. Neal (2003), "Slice sampling", Annals of Statistics 31(3).
    J. S. Liu and C. Sabatti (2000), "Generalised Gibbs sampler and multigrid Monte Carlo", Biometrika 87.
    """
    if problem.moves is None:
        return _sweep(problem, problem.basis, state, rng, draws, thin, between)
    if state.basis is None:
        state.basis = problem.columns(problem.distinct.basis(state.width))
    kept = []
    for _ in range(draws):
        for done in range(0, thin, _WIDTH_PERIOD):
            sweeps = min(_WIDTH_PERIOD, thin - done)
            _sweep(problem, state.basis, state, rng, 1, sweeps, between)
            move_width(problem, state, rng)
        kept.append((state.size, state.bias, np.exp(state.log_rate), state.width))
    return tuple(map(np.array, zip(*kept, strict=True)))


def _sweep(
    problem: GibbsProblem,
    basis: Columns,
    state: GibbsState,
    rng: np.random.Generator,
    draws: int,
    thin: int,
    between: Callable[[], None],
) -> tuple[Array, Array, Array]:
    """Run sweeps at one width; return sizes, biases and d.

    Compiled code cannot be interrupted: it returns after every chunk of sweeps. Draws do not depend on the
    chunks, since what a sweep takes from the one before is the state alone.
    """
    both = problem.sign, state.size
    sign, size = (np.array(each.T, dtype=float, order="C", ndmin=2) for each in both)
    bias = np.array(state.bias, dtype=float, ndmin=1)
    kept = np.empty((draws, *size.shape)), np.empty((draws, len(bias))), np.empty(draws)
    known = basis, augmented(problem.likelihood), problem.parameters, sign, problem.label
    done, log_rate = 0, float(state.log_rate)
    while done < draws * thin:
        began, end = time.perf_counter(), min(done + state.chunk, draws * thin)
        log_rate = run(*known, size, bias, log_rate, kept, done, end, thin, rng)
        wanted = (end - done) * _CHUNK_SECONDS / max(time.perf_counter() - began, 1e-6)
        state.chunk = int(np.clip(wanted, 1, 2 * state.chunk))
        done = end
        between()
    state.log_rate = log_rate
    sizes, biases, rates = kept
    if problem.sign.ndim == 1:
        state.size, state.bias = size[0], float(bias[0])
        return sizes[:, 0], biases[:, 0], rates
    state.size, state.bias = size.T, bias
    return sizes.transpose(0, 2, 1), biases, rates


@jit
def run(
    basis: Columns,
    likelihood: Augmented,
    prior: Parameters,
    sign: Array,
    label: Integers,
    size: Array,
    bias: Array,
    log_rate: float,
    kept: tuple[Array, Array, Array],
    first: int,
    end: int,
    thin: int,
    rng: np.random.Generator,
) -> float:
    """Run the sweeps from `first` to `end`, and write sizes, biases and d after one in `thin` into `kept`.

    `sign` and `size` have shape (n_scores, n_basis), `bias` (n_scores,); `size` and `bias` move along, and
    the last log d is returned.
    """
    n_scores, n_obs = len(size), len(label)
    latent, response = np.empty((n_scores, n_obs)), np.empty((n_scores, n_obs))
    for sweep in range(first, end):
        # recomputed in each sweep: the state of a chain is its sizes, biases and d alone
        for k in range(n_scores):
            moves.write_latent(basis, sign[k], size[k], bias[k], latent[k])
        draw_responses(likelihood, latent, label, response, rng)
        given = Given(label, prior, math.exp(log_rate), likelihood)
        for k in range(n_scores):
            score = Score(sign[k], size[k], bias[k : k + 1], latent[k], response[k])
            moves.update_score(basis, given, score, rng)
        # from here on the responses are integrated out, until the next sweep draws new ones
        if len(likelihood) != OF_CLASSES:
            moves.update_a_large_one(basis, given, score, rng)
            move_visible_ones(basis, given, score, rng)
        if len(likelihood) != OF_CLASSES or rng.random() * _SCALE_PERIOD < 1.0:
            low = -moves.SCALE_WIDTH * rng.random()
            known = (size, bias, latent, given)
            t = sliced(moves.scale_density, known, 0.0, low, low + moves.SCALE_WIDTH, rng)
            size *= math.exp(t)
            bias *= math.exp(t)
            if prior.rate_shape > 0.0:
                log_rate += 2.0 * t
        if prior.rate_shape > 0.0:
            low = log_rate - moves.RATE_WIDTH * rng.random()
            high = low + moves.RATE_WIDTH
            log_rate = sliced(moves.log_rate_density, (size, prior), log_rate, low, high, rng)
        if len(likelihood) == OF_CLASSES:
            moves.shift_biases(bias, prior, rng)
        if (sweep + 1) % thin == 0:
            n = sweep // thin
            for k in range(n_scores):
                copy_into(kept[0][n, k], size[k])
            copy_into(kept[1][n], bias)
            kept[2][n] = math.exp(log_rate)
    return log_rate
