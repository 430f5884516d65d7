"""Chains of the Gibbs sampler, run in rounds until they converge."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.convergence import GATED, judge, keeping
from pcvm_pymc.inference.progress import progress_bars

_JUDGED = 2000  # states of all chains: r-hat of fewer, even independent ones, is seldom below 1.01
_BLOCKS = 20  # of a round, after each of which a chain may be stopped
_PROGRESS = (
    "Gibbs, chain {task.fields[number]}",
    "sweep {task.completed}/{task.total}, a draw in {task.fields[thin]}, round {task.fields[round]}",
)
_DRAWN = ("size", "bias", "rate", "width")


@dataclass(frozen=True)
class GibbsRun:
    """Settings of a Gibbs run: the arguments of `sample` of the same names."""

    draws: int
    tune: int
    chains: int
    cores: int
    thin: int
    max_sweeps: int
    progressbar: bool = False
    quiet: bool = True

    @property
    def enough(self) -> int:
        """States that each chain needs before convergence can be judged."""
        return self.draws * -(-_JUDGED // (self.chains * self.draws))


@dataclass(frozen=True)
class Drawn:
    """States that all chains have drawn.

    Attributes
    ----------
    states : dict of str to ndarray, shape (n_chains, n_states, ...)
        ``size``, ``bias``, ``rate``, ``latent`` and, where it is unknown, ``width``.
    every : int
        States for each draw: where few draws are asked for, convergence is judged on more states.
    step : int
        Sweeps for each state.
    sweeps : int
        Of each chain, up to its last state.
    is_whole : bool
        False where an interrupt ended the chains.
    """

    states: dict[str, Array]
    every: int
    step: int
    sweeps: int
    is_whole: bool = True

    @property
    def n_states(self) -> int:
        """States of each chain."""
        return self.states["latent"].shape[1] if self.states else 0


@dataclass
class Chain:
    """One chain of the Gibbs sampler: its current state, and the states kept in this round.

    Attributes
    ----------
    task : int
        Of its progress.
    state : GibbsState
    rng : numpy.random.Generator
    every : int
        Sweeps for each state that is kept.
    n_states : int
        States of a round.
    sweeps : int
        Sweeps so far.
    drawn : tuple of ndarray
        Sizes, biases, d and unknown widths of the round's states; empty before its first.
    """

    task: Any
    state: GibbsState
    rng: np.random.Generator
    every: int
    n_states: int
    sweeps: int = 0
    drawn: tuple[Array, ...] = ()

    @property
    def round(self) -> int:
        """Sweeps in a round."""
        return self.every * self.n_states

    @property
    def n_drawn(self) -> int:
        """States that the round has so far."""
        return len(self.drawn[0]) if self.drawn else 0

    @property
    def end(self) -> int:
        """The sweep at which the round ends."""
        return self.sweeps + self.every * (self.n_states - self.n_drawn)

    def next_round(self, run: GibbsRun) -> None:
        """Begin a round of twice the sweeps, with twice the states until these are enough.

        The first round becomes warm-up; the states of later ones stay, or every other one.
        """
        step = 1 if self.n_states < run.enough else 2
        kept = tuple(each[::-1][::step][::-1] for each in self.drawn)
        self.drawn = kept if self.round > run.draws * run.thin else ()
        self.every, self.n_states = self.every * step, self.n_states * 2 // step


def compile_sweeps(problem: GibbsProblem, n_times: int) -> float:
    """Compile what chains run, so that they need not wait for one another.

    Return the seconds of a sweep: the median of so many times ten, whose first ones compile.
    """
    throwaway, times = np.random.default_rng(0), [time.perf_counter()]
    given = problem, problem.start(throwaway), throwaway
    with threadpool_limits(1):  # as of the chains
        for _ in range(n_times):
            advance(*given, draws=1, thin=10)
            times.append(time.perf_counter())
    return float(np.median(np.diff(times))) / 10


def run_chains(problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator) -> Drawn:
    """Run chains, in rounds of ever more sweeps a draw, until they converge or reach ``max_sweeps``.

    An interrupt (Ctrl-C) ends them: what was drawn by then is returned, of the last whole round if that is
    more; before any draw it is raised.
    """
    # the first round keeps enough states to judge convergence, if `thin` allows
    least = min(run.enough // run.draws, run.thin)
    share = next(n for n in range(least, run.thin + 1) if run.thin % n == 0)
    size = run.thin // share, run.draws * share
    with progress_bars(run.progressbar and not run.quiet, *_PROGRESS) as progress:
        rngs = rng.spawn(run.chains)
        chains = []
        for i, each in enumerate(rngs):
            task = progress.add_task("", total=None, number=i, thin=run.thin, round=1)
            chains.append(Chain(task, problem.start(each), each, *size))
        n_round, one = 1, chains[0]
        rounds: list[Drawn] = []  # the last whole one

        def after_block(chain: Chain) -> None:
            now: dict[str, Any] = {"thin": chain.round // run.draws, "round": n_round}
            progress.update(chain.task, completed=chain.sweeps, total=chain.end, **now)

        try:
            while True:
                _run_round(problem, chains, run, after_block)
                rounds = [_drawn(chains, problem, run)]
                more = one.round * (2 if one.round == run.draws * run.thin else 1)
                if _is_enough(rounds[0].states) or one.sweeps + more > run.max_sweeps:
                    return rounds[0]
                n_round += 1
                for chain in chains:
                    chain.next_round(run)
        except KeyboardInterrupt:
            if len({chain.every for chain in chains}) == 1:  # not between two rounds
                rounds.append(_drawn(chains, problem, run))
            rounds = [each for each in rounds if each.n_states > 0]
            if not rounds:
                raise
            return replace(max(rounds, key=lambda each: each.n_states), is_whole=False)


def _drawn(chains: list[Chain], problem: GibbsProblem, run: GibbsRun) -> Drawn:
    """Return the states that all chains have in this round, as many as make draws."""
    one, every = chains[0], chains[0].n_states // run.draws
    n = min(chain.n_drawn for chain in chains) // every * every
    drawn = zip(*([each[:n] for each in chain.drawn] for chain in chains if n > 0), strict=True)
    states = dict(zip(_DRAWN, map(np.stack, drawn), strict=False))
    if n > 0:
        of_chains = zip(*(states[name] for name in states if name != "rate"), strict=True)
        states["latent"] = np.stack([problem.latent(*each) for each in of_chains])
    return Drawn(states, every, one.every, one.sweeps - one.every * (one.n_drawn - n))


def _run_round(
    problem: GibbsProblem, chains: list[Chain], run: GibbsRun, after_block: Callable[[Chain], None]
) -> None:
    """Run all chains to the end of their round, in threads: the compiled sweeps release the lock."""
    stop = threading.Event()

    def between() -> None:
        if stop.is_set():
            raise InterruptedError

    def finish(chain: Chain) -> None:
        given = problem, chain.state, chain.rng
        if chain.sweeps == 0:  # warm-up, of which no draw is kept
            chain.sweeps = max(run.tune, 1)
            advance(*given, draws=1, thin=chain.sweeps, between=between)
        block = -(-chain.n_states // _BLOCKS)
        while chain.n_drawn < chain.n_states:
            n = min(block, chain.n_states - chain.n_drawn)
            new = advance(*given, draws=n, thin=chain.every, between=between)
            pairs = zip(chain.drawn or (each[:0] for each in new), new, strict=True)
            chain.drawn = tuple(map(np.concatenate, pairs))
            chain.sweeps += n * chain.every
            after_block(chain)

    with threadpool_limits(1), ThreadPoolExecutor(run.cores) as pool:
        futures = [pool.submit(finish, chain) for chain in chains]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _is_enough(states: dict[str, Array]) -> bool:
    """Whether what predictions are made of has converged, or there are too few states to judge."""
    n_chains, n_states = states["latent"].shape[:2]
    if n_chains < 2 or n_states < 50:
        return True
    with keeping(states):
        return judge({name: states[name] for name in GATED if name in states}).ok
