"""Chains of the Gibbs sampler, in rounds until they have converged."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.checkpoints import Chain, Checkpoints
from pcvm_pymc.inference.progress import progress_bars

__all__ = ["GibbsDraws", "GibbsRun", "run_chains"]

_JUDGED = 2000  # states of all chains: r-hat of fewer, even independent ones, is seldom below 1.01
_BLOCKS = 20  # of a round, after each of which a chain is written down and may be stopped
_PROGRESS = (
    "Gibbs, chain {task.fields[number]}",
    "sweep {task.completed}/{task.total}, a draw in {task.fields[thin]}, round {task.fields[round]}",
)


@dataclass(frozen=True)
class GibbsRun:
    """How long and where a Gibbs sampler runs; the arguments of `sample` of the same names."""

    draws: int
    tune: int
    chains: int
    cores: int
    thin: int
    max_sweeps: int
    checkpoint: Path | None = None
    progressbar: bool = False

    @property
    def wanted(self) -> int:
        """States for each draw with which those of all chains are enough to judge convergence by."""
        return -(-_JUDGED // (self.chains * self.draws))

    def first_judged(self) -> int:
        """Return the states to keep for each draw of the first round, a divisor of `thin`."""
        least = min(self.wanted, self.thin)
        return next(each for each in range(least, self.thin + 1) if self.thin % each == 0)


@dataclass(frozen=True)
class GibbsDraws:
    """What the last round drew.

    Attributes
    ----------
    size, bias, rate : ndarray, shape (n_chains, n_states, ...)
        As from `pcvm_pymc.core.gibbs.advance`.
    latent : ndarray, shape (n_chains, n_states, n_obs) or (..., n_scores)
    width : ndarray, shape (n_chains, n_states) or (..., n_features), or None
        Where it is unknown.
    judged : int
        States for each draw that is asked for, the last of which is the draw.
    thin : int
        Sweeps for each state.
    sweeps : int
        Sweeps of each chain, with its warm-up.
    seconds : float
    """

    size: Array
    bias: Array
    rate: Array
    latent: Array
    width: Array | None
    judged: int
    thin: int
    sweeps: int
    seconds: float

    @property
    def sweep(self) -> Array:
        """The sweep of each state, counted from the chain's start, shape (n_chains, n_draws)."""
        back = self.thin * np.arange(self.latent.shape[1] - 1, -1, -1)
        return np.tile(self.sweeps - back, (len(self.latent), 1))

    def thinned(self) -> "GibbsDraws":
        """Return the draws that were asked for, without the states between them."""
        last = slice(self.judged - 1, None, self.judged)
        states = {name: getattr(self, name)[:, last] for name in ("size", "bias", "rate", "latent")}
        width = None if self.width is None else self.width[:, last]
        return replace(self, **states, width=width, judged=1, thin=self.thin * self.judged)


def run_chains(problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator) -> GibbsDraws:
    """Run chains, in rounds of ever more sweeps a draw, until they agree or reach ``max_sweeps``.

    Parameters
    ----------
    problem : GibbsProblem
    run : GibbsRun
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        If a checkpoint is damaged, of another run, or in use by one.
    """
    throwaway = np.random.default_rng(0)  # compiled before the clock and the threads start
    advance(problem, problem.start(throwaway), throwaway, draws=1)
    settings = (run.draws, run.tune, run.chains, run.thin)
    checkpoints = Checkpoints.of(run.checkpoint, problem, settings, rng)
    with checkpoints.held():
        return _resumed(problem, run, rng, checkpoints)


def _resumed(
    problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator, checkpoints: Checkpoints
) -> GibbsDraws:
    """Run the chains from where they stand to the end of their last round."""
    chains = [
        Chain(i, problem.start(each), each, run.thin, run.first_judged())
        for i, each in enumerate(rng.spawn(run.chains))
    ]
    for chain in chains:
        checkpoints.resume(chain)
    for chain in chains:  # killed between the rounds of two chains: all go on from the later one
        while chain.thin < max(each.thin for each in chains):
            _next_round(chain, run)
    began = time.perf_counter()
    with progress_bars(run.progressbar, *_PROGRESS) as progress:
        bars = _Bars(progress, chains, run)
        return _rounds(problem, chains, run, checkpoints, bars=bars, began=began)


class _Bars:
    """A bar for each chain over all its rounds; a further round makes it longer."""

    def __init__(self, progress: Progress, chains: list[Chain], run: GibbsRun) -> None:
        self._progress, self._run, self.round = progress, run, 1
        self._tasks = [
            progress.add_task("", total=None, number=c.number, thin=c.thin, round=1) for c in chains
        ]

    def follow(self, chain: Chain) -> None:
        """Move a chain's bar to the sweep where it is, its end to that of the round."""
        total = chain.sweeps + chain.thin * (self._run.draws - chain.n_kept)
        self._progress.update(
            self._tasks[chain.number],
            completed=chain.sweeps,
            total=total,
            thin=chain.thin,
            round=self.round,
        )


def _rounds(
    problem: GibbsProblem,
    chains: list[Chain],
    run: GibbsRun,
    checkpoints: Checkpoints,
    *,
    bars: _Bars,
    began: float,
) -> GibbsDraws:
    """Run round after round until the chains agree."""
    while True:
        _run_round(problem, chains, run, checkpoints, bars)
        drawn = zip(*(chain.drawn for chain in chains), strict=True)
        size, bias, rate, *width = map(np.stack, drawn)
        latent = np.stack([problem.latent(*each) for each in zip(size, bias, *width, strict=True)])
        one = chains[0]
        more = one.thin * run.draws * (2 if one.thin == run.thin else 1)
        if _is_enough(latent, *width) or one.sweeps + more > run.max_sweeps:
            seconds = time.perf_counter() - began
            return GibbsDraws(
                size,
                bias,
                rate,
                latent,
                width[0] if width else None,
                one.judged,
                one.thin // one.judged,
                one.sweeps,
                seconds,
            )
        for chain in chains:
            _next_round(chain, run)
            checkpoints.write(chain)
        bars.round += 1


def _next_round(chain: Chain, run: GibbsRun) -> None:
    """Let a chain begin another round: its first one is warm-up, what later ones drew stays, thinned."""
    chain.next_round(finer=chain.judged < run.wanted, keep=chain.thin > run.thin)


def _run_round(
    problem: GibbsProblem,
    chains: list[Chain],
    run: GibbsRun,
    checkpoints: Checkpoints,
    bars: _Bars,
) -> None:
    """Run all chains to the end of their round, in threads: the compiled sweeps release the lock."""
    stop = threading.Event()
    with threadpool_limits(1), ThreadPoolExecutor(run.cores) as pool:

        def after_block(chain: Chain) -> None:
            checkpoints.write(chain)
            bars.follow(chain)

        futures = [
            pool.submit(_finish_round, problem, chain, run, stop, after_block) for chain in chains
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _finish_round(
    problem: GibbsProblem,
    chain: Chain,
    run: GibbsRun,
    stop: threading.Event,
    after_block: Callable[[Chain], None],
) -> None:
    """Run one chain, block by block, to the end of its round, or until it is told to stop."""

    def between() -> None:
        if stop.is_set():
            raise InterruptedError

    if chain.sweeps == 0:
        chain.tune(problem, max(run.tune, 1), between)
    block = -(-run.draws // _BLOCKS)
    while chain.n_kept < run.draws:
        chain.extend(problem, min(block, run.draws - chain.n_kept), between)
        after_block(chain)


def _is_enough(latent: Array, width: Array | None = None) -> bool:
    """Whether r-hat is at most 1.01 and the effective sample size large enough.

    Of the latent function, (chain, draw, obs, ...), and of an unknown width, (chain, draw, ...).
    """
    n_chains, n_draws = latent.shape[:2]
    if n_chains < 2 or n_draws < 50:  # cannot be told
        return True
    dims = ("chain", "draw", "obs", "class")[: latent.ndim]
    data = xr.Dataset({"latent": (dims, latent)})
    if width is not None:
        data["width"] = (("chain", "draw", "feature")[: width.ndim], width)
    enough = min(400, n_chains * n_draws // 2)  # what so many draws can have
    import arviz as az

    rhat, ess = az.rhat(data), az.ess(data)
    return all(bool(rhat[name].max() <= 1.01 and ess[name].min() >= enough) for name in data)
