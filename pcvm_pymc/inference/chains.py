"""Markov chains by Gibbs sampling or Hamiltonian Monte Carlo, run in rounds until they converge."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pcvm_pymc.core.gibbs import GibbsChains, GibbsProblem
from pcvm_pymc.core.hamiltonian import HamiltonianChains, LogPosterior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem, Values
from pcvm_pymc.inference.convergence import judge, keeping
from pcvm_pymc.inference.progress import progress_bars

_JUDGED = 2000  # states of all chains: r-hat of fewer, even independent ones, is seldom below 1.01
_BLOCKS = 20  # of a round, after each of which the chains may be stopped
_TIMED = 10  # iterations, several times, by which the seconds of one are judged
_PROGRESS = (
    "{task.fields[name]}",
    "iteration {task.completed}/{task.total}, a draw in {task.fields[thin]}",
)


type Chains = GibbsChains | HamiltonianChains


@dataclass(frozen=True)
class Run:
    """Settings of a run: the sampler, and the arguments of `sample` of the same names."""

    method: str
    draws: int
    tune: int
    chains: int
    cores: int
    thin: int
    max_iter: int
    progressbar: bool = False
    quiet: bool = True

    @property
    def enough(self) -> int:
        """States that each chain needs before convergence can be judged."""
        return self.draws * -(-_JUDGED // (self.chains * self.draws))

    def start(self, problem: Problem, rng: np.random.Generator) -> GibbsChains | HamiltonianChains:
        """Initialise the chains of the sampler."""
        if self.method == "gibbs":
            return GibbsChains(GibbsProblem.of(problem), rng, self.chains, self.cores)
        return HamiltonianChains(LogPosterior(problem), rng, self.chains)


@dataclass(frozen=True)
class Drawn:
    """States of all chains after warm-up; shapes begin with (n_chains, n_states).

    Attributes
    ----------
    values : Values
    latent : ndarray, shape (n_chains, n_states, n_obs) or (n_chains, n_states, n_obs, n_scores)
    statistics : dict of str to ndarray
    every : int
        States for each draw: where few draws are asked for, convergence is judged on more states.
    step : int
        Iterations for each state.
    n_iter : int
        Of each chain, up to its last state.
    is_whole : bool
        False where an interrupt ended the chains.
    """

    values: Values
    latent: Array
    statistics: dict[str, Array]
    every: int
    step: int
    n_iter: int
    is_whole: bool = True


def seconds_of(problem: Problem, run: Run, n_times: int) -> float:
    """Time some iterations; return the median seconds of one iteration of all chains."""
    chains, times = run.start(problem, np.random.default_rng(0)), [time.perf_counter()]
    for _ in range(n_times):
        chains.draw(1, _TIMED)
        times.append(time.perf_counter())
    return float(np.median(np.diff(times))) / _TIMED


def run_chains(problem: Problem, run: Run, rng: np.random.Generator) -> Drawn:
    """Run chains, in rounds of ever more iterations a draw, until they converge or reach ``max_iter``.

    The first round becomes warm-up where it is not enough; states of later ones stay, or every other one. An
    interrupt (Ctrl-C) ends the chains: the last whole round is returned, or what was drawn of the first;
    before any draw it is raised.
    """
    # the first round keeps enough states to judge convergence, if `thin` allows
    least = min(run.enough // run.draws, run.thin)
    share = next(n for n in range(least, run.thin + 1) if run.thin % n == 0)
    step, n_states, n_iter = run.thin // share, run.draws * share, run.tune
    kept: list[tuple[Values, dict[str, Array]]] = []
    whole: Drawn | None = None
    with progress_bars(run.progressbar and not run.quiet, *_PROGRESS) as progress:
        task = progress.add_task("", total=None, name=run.method, thin=run.thin)
        try:
            chains = run.start(problem, rng)
            chains.warm_up(max(run.tune, 1))
            while True:
                missing = n_states - sum(values.rate.shape[1] for values, _ in kept)
                thin = n_states * step // run.draws
                size = max(-(-missing // _BLOCKS), 1)
                for n in [min(size, missing - k) for k in range(0, missing, size)]:
                    kept.append(chains.draw(n, step))
                    n_iter += n * step
                    missing -= n
                    left = missing * step
                    progress.update(task, completed=n_iter, total=n_iter + left, thin=thin)
                every = n_states // run.draws
                whole = drawn = _drawn(problem, kept, every, step=step, n_iter=n_iter)
                more = n_states * step * (2 if thin == run.thin else 1)
                with keeping(drawn):
                    few, width = run.chains < 2 or n_states < 50, drawn.values.width
                    judged = {"latent": drawn.latent} | ({} if width is None else {"width": width})
                    if few or n_iter + more > run.max_iter or judge(judged).ok:
                        return drawn
                if thin == run.thin:  # the first round
                    kept = []
                if n_states < run.enough:
                    n_states *= 2
                else:
                    step, kept = 2 * step, [_joined(kept, lambda x: x[:, 1::2])] if kept else []
        except KeyboardInterrupt:
            if whole is not None:
                return replace(whole, is_whole=False)
            if not kept:
                raise
            every = n_states // run.draws
            return _drawn(problem, kept, every, step=step, n_iter=n_iter, is_whole=False)


def _joined(
    kept: list[tuple[Values, dict[str, Array]]], some: Callable[[Array], Array] = lambda x: x
) -> tuple[Values, dict[str, Array]]:
    """Concatenate the states of all blocks, or some states of each."""
    values, statistics = zip(*kept, strict=True)
    fields: Any = zip(*values, strict=True)
    joined: Any = (None if x[0] is None else some(np.concatenate(x, axis=1)) for x in fields)
    known = {
        name: some(np.concatenate([x[name] for x in statistics], axis=1)) for name in statistics[0]
    }
    return Values(*joined), known


def _drawn(
    problem: Problem, kept: list[Any], every: int, *, step: int, n_iter: int, is_whole: bool = True
) -> Drawn:
    """Return the states of all blocks as `Drawn`, a whole number of states for each draw."""
    n = sum(values.rate.shape[1] for values, _ in kept)
    some = max(n // every * every, min(n, 1))
    values, statistics = _joined(kept, lambda x: x[:, :some])
    latent, left = problem.latent(values), n_iter - (n - some) * step
    latent = latent if problem.n_scores > 1 else latent[..., 0]
    return Drawn(values, latent, statistics, every, step, left, is_whole)
