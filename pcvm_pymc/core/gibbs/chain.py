"""Chains of compiled sweeps."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs import moves
from pcvm_pymc.core.gibbs.moves import Columns, Given, Parameters, Score, sliced
from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState
from pcvm_pymc.core.gibbs.responses import draw_responses
from pcvm_pymc.core.gibbs.vectors import jit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Values

_LARGE_ONES = 3  # moved in a sweep with the responses integrated out: the others' noise hides them
_CHUNK_SECONDS = 0.3  # of compiled sweeps, after which a chain can be interrupted


class GibbsChains:
    """Chains of the Gibbs sampler, which run in threads: the compiled sweeps release the lock.

    Parameters
    ----------
    problem : GibbsProblem
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    n_chains, cores : int
    """

    def __init__(
        self, problem: GibbsProblem, rng: np.random.Generator, n_chains: int = 4, cores: int = 1
    ) -> None:
        self.problem, self._rngs, self._cores = problem, rng.spawn(n_chains), cores
        self._states = [problem.start(stream) for stream in self._rngs]

    def warm_up(self, n: int) -> None:
        """Run `n` sweeps, of which no draw is kept."""
        self.draw(1, n)

    def draw(self, n: int, thin: int = 1) -> tuple[Values, dict[str, Array]]:
        """Return `n` states of each chain, one in `thin`; shapes begin with (n_chains, n)."""
        stop = threading.Event()

        def between() -> None:
            if stop.is_set():
                raise InterruptedError

        run_one = partial(advance, self.problem, draws=n, thin=thin, between=between)
        with threadpool_limits(1), ThreadPoolExecutor(self._cores) as pool:
            futures = [
                pool.submit(run_one, *pair) for pair in zip(self._states, self._rngs, strict=True)
            ]
            try:
                drawn = [future.result() for future in futures]
            except BaseException:
                stop.set()
                raise
        size, bias, rate = map(np.stack, zip(*drawn, strict=True))
        weight = (size * self.problem.sign)[..., None]
        return Values(weight, bias[..., None], rate, np.ones_like(rate)), {}


def advance(
    problem: GibbsProblem,
    state: GibbsState,
    rng: np.random.Generator,
    *,
    draws: int,
    thin: int = 1,
    between: Callable[[], None] = lambda: None,
) -> tuple[Array, Array, Array]:
    """Run ``draws * thin`` sweeps.

    Compiled code cannot be interrupted: it returns after every chunk of sweeps. Draws do not depend on the
    chunks, since what a sweep takes from the one before is the state alone.

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
    size : ndarray, shape (draws, n_basis)
    bias, rate : ndarray, shape (draws,)
        d, which does not move where it is not learned.

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data", JASA 88.
    R. M. Neal (2003), "Slice sampling", Annals of Statistics 31(3).
    J. S. Liu and C. Sabatti (2000), "Generalised Gibbs sampler and multigrid Monte Carlo", Biometrika 87.
    """
    size, bias = np.array(state.size, dtype=float), np.array([state.bias], dtype=float)
    kept = np.empty((draws, len(size))), np.empty(draws), np.empty(draws)
    flip = float(getattr(problem.likelihood, "flip", 0.0))
    prior, shape = problem.hyperprior, problem.hyperprior.rate_shape or 0.0
    # as floats: integers would be compiled for once more
    numbers = map(float, (prior.c, prior.e, prior.f, shape, shape / prior.d))
    given = Given(problem.label, Parameters(*numbers), 0.0, flip)
    latent, response = np.empty((2, len(problem.label)))
    score = Score(problem.sign, size, bias, latent, response)
    done, log_rate = 0, float(state.log_rate)
    while done < draws * thin:
        began, end = time.perf_counter(), min(done + state.chunk, draws * thin)
        log_rate = run(problem.basis, given, score, log_rate, kept, (done, end, thin), rng)
        wanted = (end - done) * _CHUNK_SECONDS / max(time.perf_counter() - began, 1e-6)
        state.chunk = int(np.clip(wanted, 1, 2 * state.chunk))
        done = end
        between()
    state.size, state.bias, state.log_rate = size, float(bias[0]), log_rate
    return kept


@jit
def run(
    basis: Columns,
    given: Given,
    state: Score,
    log_rate: float,
    kept: tuple[Array, Array, Array],
    sweeps: tuple[int, int, int],
    rng: np.random.Generator,
) -> float:
    """Run sweeps from a first to an end, and write sizes, biases and d after one in so many into `kept`.

    The state moves along, and the last log d is returned; that of `given` does not count.
    """
    sign, size, bias, latent, response = state
    label, prior, _, flip = given
    first, end, thin = sweeps
    for sweep in range(first, end):
        # recomputed in each sweep: the state of a chain is its sizes, bias and d alone
        moves.write_latent(basis, sign, size, bias[0], latent)
        draw_responses(flip, latent, label, response, rng)
        given = Given(label, prior, math.exp(log_rate), flip)
        moves.update_given_responses(basis, given, state, rng)
        # from here on the responses are integrated out, until the next sweep draws new ones
        for _ in range(_LARGE_ONES):
            moves.update_a_large_one(basis, given, state, rng)
        low = -moves.SCALE_WIDTH * rng.random()
        known = (size, bias, latent, given)
        t = sliced(moves.scale_density, known, 0.0, low, low + moves.SCALE_WIDTH, rng)
        size *= math.exp(t)
        bias *= math.exp(t)
        if prior.rate_shape > 0.0:
            log_rate += 2.0 * t
            low = log_rate - moves.RATE_WIDTH * rng.random()
            high = low + moves.RATE_WIDTH
            log_rate = sliced(moves.log_rate_density, (size, prior), log_rate, low, high, rng)
        if (sweep + 1) % thin == 0:
            n = sweep // thin
            for j in range(len(size)):
                kept[0][n, j] = size[j]
            kept[1][n], kept[2][n] = bias[0], math.exp(log_rate)
    return log_rate
