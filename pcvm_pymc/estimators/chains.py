"""Chains of the posterior at several widths, run until those of their mixture agree."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from pcvm_pymc.core.family import sampler_of
from pcvm_pymc.core.gibbs import GibbsChains, GibbsProblem
from pcvm_pymc.core.hamiltonian import HamiltonianChains, LogPosterior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, threads
from pcvm_pymc.core.problem import Problem, Values

#: sweeps of a Gibbs sampler that are worth a trajectory: both are a transition here
_SWEEPS = 10
#: chains; transitions before the first state that is kept; states of a chain to judge by
N_CHAINS, WARM_UP, N_STATES = 4, 300, 500
#: of the latent function of the mixture, at which chains have converged; see `mixture_diagnostics`
MOST_RHAT, LEAST_ESS = 1.01, 400.0
_LEAST_STATES = 100  # of a chain at a width, whatever its share
_JUDGED = 200  # values of the latent function, at most, by which convergence is judged
_MOST_STATES = 2000  # of a chain in memory: beyond, every other is kept


def agree(rhat: float, ess: float) -> bool:
    """Return whether the chains of a mixture agree."""
    return rhat <= MOST_RHAT and ess >= LEAST_ESS


def by_time(sizes: Sequence[int]) -> NDArray[np.intp]:
    """Return the order in which draws of several widths are those of one chain: by their time in it."""
    times = np.concatenate([(np.arange(n) + 0.5) / n for n in sizes])
    return np.argsort(times, kind="stable")


def mixture_diagnostics(latent: Sequence[Array], shares: Sequence[float]) -> tuple[float, float]:
    """Return the largest r-hat and the least effective sample size of the latent function of a mixture.

    Each chain of the mixture has as many states of each width as its share says, evenly spaced, in the order
    of their time: its averages are those that predict.

    Parameters
    ----------
    latent : sequence of ndarray, shape (n_chains, n_states, n_values)
        At each width.
    shares : sequence of float
    """
    from arviz_stats.base import array_stats  # slow to import

    n_states = min(each.shape[1] / share for each, share in zip(latent, shares, strict=True))
    sizes = [max(int(n_states * share), 1) for share in shares]
    parts = [spaced(each, n) for each, n in zip(latent, sizes, strict=True)]
    mixed, axes = np.concatenate(parts, axis=1), {"chain_axis": 0, "draw_axis": 1}
    mixed = mixed[:, by_time(sizes)]
    return float(array_stats.rhat(mixed, **axes).max()), float(array_stats.ess(mixed, **axes).min())


def spaced(states: Array, n: int) -> Array:
    """Return some states of each chain, evenly spaced."""
    return states[:, np.arange(n) * states.shape[1] // n]


class Chains:
    """Chains of the posterior at one width, by the sampler of the problem, which can be continued.

    Parameters
    ----------
    problem : Problem
    rng : numpy.random.Generator
    n_states : int
        Of each chain to begin with, if `max_iter` leaves room for them after the warm-up.
    max_iter : int

    Attributes
    ----------
    drawn : Values
        Shapes begin with (n_chains, n_states).
    known : dict of str to ndarray, shape (n_chains, n_states)
        Statistics of the trajectories that end there; none of a Gibbs sampler.
    n_iter : int
        Transitions of each chain, warm-up included.
    """

    def __init__(
        self, problem: Problem, rng: np.random.Generator, n_states: int, max_iter: int
    ) -> None:
        self.problem, self._max_iter, self._thin = problem, max_iter, 1
        self._chains: Any = None
        if sampler_of(problem)[0] == "gibbs":
            self._chains = GibbsChains(GibbsProblem.of(problem), rng, N_CHAINS)
            self._thin = _SWEEPS
        else:
            self._chains = HamiltonianChains(LogPosterior(problem), rng, N_CHAINS)
        self._n_warm_up = min(WARM_UP, max_iter // 2)
        self._n_states = min(max(n_states, _LEAST_STATES), max_iter - self._n_warm_up)
        self.n_iter, self.drawn = 0, Values(*[np.empty((N_CHAINS, 0))] * 4)
        self.known: dict[str, Array] = {}

    def run(self) -> bool:
        """Take as many transitions again, if `max_iter` leaves room for them; return whether it does."""
        if not self.n_iter:
            self._chains.warm_up(self._n_warm_up * self._thin)
            self.drawn, self.known = self._chains.draw(self._n_states, self._thin)
            self.n_iter = self._n_warm_up + self._n_states
            return True
        more = self.n_iter - self._n_warm_up
        if self.n_iter + more > self._max_iter:
            return False
        n_states = self.drawn.rate.shape[1]
        drawn, known = self._chains.draw(n_states, self._thin * (more // n_states))
        step = 2 if 2 * n_states >= _MOST_STATES else 1

        def both(old: Array, new: Array) -> Array:
            return np.concatenate([old, new], axis=1)[:, step - 1 :: step]

        self.drawn = Values(*map(both, self.drawn[:4], drawn[:4]))
        self.known = {name: both(x, known[name]) for name, x in self.known.items()}
        self.n_iter += more
        return True

    def values(self, n: int) -> Values:
        """Return the values of some states of each chain, chains one after the other."""
        return Values(*(np.concatenate(spaced(x, n)) for x in self.drawn[:4]))

    def latent(self) -> Array:
        """Return the latent function by which they are judged, shape (n_chains, n_states, n_values)."""
        Phi, n_states = self.problem.Phi, self.drawn.rate.shape[1]
        rows = Phi[:: -(-len(Phi) * self.problem.n_scores // _JUDGED)]
        latent = self.values(n_states).latent(rows)
        if latent.shape[2] > 1:  # a common shift of all scores does not show
            latent -= latent.mean(axis=2, keepdims=True)
        return latent.reshape(N_CHAINS, n_states, -1)


def joint_statistics(chains: list[Chains], n: int) -> dict[str, Array]:
    """Return statistics of some states of chains of several classes as those of one chain for all of them.

    Shape (n_chains * n,) each, of the states that `Chains.values` returns. Log densities, energies and steps
    add up; it diverges where one does.
    """
    of_all: dict[str, Any] = dict.fromkeys(("lp", "energy", "n_steps"), np.sum)
    of_all |= {"diverging": np.any, "acceptance_rate": np.mean, "step_size": np.mean}
    each = {name: [spaced(one.known[name], n) for one in chains] for name in chains[0].known}
    return {name: np.concatenate(of_all[name](one, axis=0)) for name, one in each.items()}


def run_until_agreed(
    kernels: Sequence[Any], shares: Sequence[float], chains: list[list[Chains]]
) -> tuple[float, float]:
    """Run chains of each width and label until the mixture's agree for each label, or `max_iter` ends them.

    Returns the largest r-hat and the least effective sample size over the labels, see `mixture_diagnostics`.
    """

    def longer(kernel: Any, each: list[Chains], some: Sequence[int]) -> list[bool]:
        PROGRESS.info("posterior at width %.3g", np.mean(kernel.width))
        return [each[i].run() for i in some]

    run, some = Parallel(threads(), require="sharedmem"), list(range(len(chains[0])))
    found = dict[int, tuple[float, float]]()
    while some:
        each = zip(kernels, chains, strict=True)
        ran = np.all(run(delayed(longer)(*one, some) for one in each), axis=0)
        for i in some:
            found[i] = mixture_diagnostics([one[i].latent() for one in chains], shares)
        some = [i for i, more in zip(some, ran, strict=True) if more and not agree(*found[i])]
    rhat, ess = np.transpose(list(found.values()))
    return float(rhat.max()), float(ess.min())
