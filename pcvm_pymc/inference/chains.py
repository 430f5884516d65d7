"""Chains of the Gibbs sampler, run in rounds until they converge, with checkpoints on disk."""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.convergence import GATED, judge, keeping
from pcvm_pymc.inference.files import StoreError, alone_in, read_arrays, write_arrays
from pcvm_pymc.inference.progress import progress_bars

_JUDGED = 2000  # states of all chains: r-hat of fewer, even independent ones, is seldom below 1.01
_BLOCKS = 20  # of a round, after each of which a chain is written down and may be stopped
_PROGRESS = (
    "Gibbs, chain {task.fields[number]}",
    "sweep {task.completed}/{task.total}, a draw in {task.fields[thin]}, round {task.fields[round]}",
)
_DRAWN = ("size", "bias", "rate", "width")
_STATE = ("size", "bias", "log_rate", "width")
_KIND = "chain of a Gibbs sampler"
_REMEDY = "restore it, or remove it: its chain then begins from its start and ends the same"


@dataclass(frozen=True)
class GibbsRun:
    """Settings of a Gibbs run: the arguments of `sample` of the same names."""

    draws: int
    tune: int
    chains: int
    cores: int
    thin: int
    max_sweeps: int
    checkpoint: Path | None = None
    progressbar: bool = False

    @property
    def enough(self) -> int:
        """States that each chain needs before convergence can be judged."""
        return self.draws * -(-_JUDGED // (self.chains * self.draws))


@dataclass
class Chain:
    """One chain of the Gibbs sampler: its current state, and the states kept in this round.

    Where few draws are asked for, more states are kept than draws, to judge convergence by.

    Attributes
    ----------
    number : int
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

    number: int
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
    def n_left(self) -> int:
        """States that the round still lacks."""
        return self.n_states - (len(self.drawn[0]) if self.drawn else 0)

    @property
    def end(self) -> int:
        """The sweep at which the round ends."""
        return self.sweeps + self.every * self.n_left

    def next_round(self, run: GibbsRun) -> None:
        """Begin a round of twice the sweeps, with twice the states until these are enough.

        The first round becomes warm-up; the states of later ones stay, or every other one.
        """
        step = 1 if self.n_states < run.enough else 2
        kept = tuple(each[::-1][::step][::-1] for each in self.drawn)
        self.drawn = kept if self.round > run.draws * run.thin else ()
        self.every, self.n_states = self.every * step, self.n_states * 2 // step

    def write(self, folder: Path, fingerprint: str) -> None:
        """Write the chain to its file, which is replaced only once the new one is complete."""
        state = {f"state_{name}": getattr(self.state, name) for name in _STATE}
        arrays = {
            "fingerprint": fingerprint,
            "rng": json.dumps(self.rng.bit_generator.state),
            "counts": np.array([self.every, self.n_states, self.sweeps]),
            **{name: value for name, value in state.items() if value is not None},
            **dict(zip(_DRAWN, self.drawn, strict=False)),
        }
        write_arrays(folder / f"chain_{self.number}.npz", _KIND, arrays)

    def resume(self, folder: Path, fingerprint: str) -> None:
        """Continue from the chain's file, if there is one.

        Raises
        ------
        StoreError
            If the file is damaged, or of another run.
        """
        path = folder / f"chain_{self.number}.npz"
        if not os.path.lexists(path):
            return
        stored = read_arrays(path, _KIND, _REMEDY)
        if str(stored["fingerprint"]) != fingerprint:
            raise StoreError(
                f"checkpoint {folder} is of another run (model, draws, tune, chains, thin or seed "
                "differ); needed the same call, or another folder. A seed is needed to resume at all"
            )
        for name in _STATE:
            if f"state_{name}" in stored:
                setattr(self.state, name, stored[f"state_{name}"][()])
        self.state.basis = None  # of the width before
        self.rng.bit_generator.state = json.loads(str(stored["rng"]))
        self.every, self.n_states, self.sweeps = map(int, stored["counts"])
        self.drawn = tuple(stored[name] for name in _DRAWN if name in stored)


def _fingerprint(problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator) -> str:
    """Return a digest of all that determines the draws, to refuse checkpoints of other runs."""
    basis, moves = problem.basis, problem.moves
    # a width's prior by its density at some widths
    width = moves and [moves.log_density(k * problem.width) for k in (0.5, 1.0, 2.0)]
    data = basis.left, basis.right, problem.sign, problem.label
    settings = _DRAWN, run.draws, run.tune, run.chains, run.thin, rng.bit_generator.state
    return str(joblib.hash((data, problem.hyperprior, problem.likelihood, width, settings)))


def run_chains(
    problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator
) -> tuple[dict[str, Array], Chain, float]:
    """Run chains, in rounds of ever more sweeps a draw, until they converge or reach ``max_sweeps``.

    Parameters
    ----------
    problem : GibbsProblem
    run : GibbsRun
    rng : numpy.random.Generator

    Returns
    -------
    states : dict of str to ndarray, shape (n_chains, n_states, ...)
        Those of the last round: ``size``, ``bias``, ``rate``, ``latent`` and, where it is unknown, ``width``.
    chain : Chain
        The first, whose numbers of states and sweeps are those of all.
    seconds : float

    Raises
    ------
    ValueError
        If a checkpoint is damaged, of another run, or in use by one.
    """
    throwaway = np.random.default_rng(0)  # compiled before the clock and the threads start
    advance(problem, problem.start(throwaway), throwaway, draws=1)
    folder, fingerprint = run.checkpoint, _fingerprint(problem, run, rng)
    # the first round keeps enough states to judge convergence, if `thin` allows
    least = min(run.enough // run.draws, run.thin)
    each = next(n for n in range(least, run.thin + 1) if run.thin % n == 0)
    size = run.thin // each, run.draws * each
    with (
        nullcontext() if folder is None else alone_in(folder),
        progress_bars(run.progressbar, *_PROGRESS) as progress,
    ):
        rngs = rng.spawn(run.chains)
        chains = [Chain(i, problem.start(each), each, *size) for i, each in enumerate(rngs)]
        for chain in chains:
            progress.add_task("", total=None, number=chain.number, thin=run.thin, round=1)
            if folder is not None:
                chain.resume(folder, fingerprint)
        for chain in chains:  # killed between the rounds of two chains: all go on from the later
            while chain.round < max(each.round for each in chains):
                chain.next_round(run)
        began, n_round, one = time.perf_counter(), 1, chains[0]

        def after_block(chain: Chain) -> None:
            if folder is not None:
                chain.write(folder, fingerprint)
            progress.update(
                progress.task_ids[chain.number],
                completed=chain.sweeps,
                total=chain.end,
                thin=chain.round // run.draws,
                round=n_round,
            )

        while True:
            _run_round(problem, chains, run, after_block)
            drawn = zip(*(chain.drawn for chain in chains), strict=True)
            states = dict(zip(_DRAWN, map(np.stack, drawn), strict=False))
            of_chains = zip(*(states[name] for name in states if name != "rate"), strict=True)
            states["latent"] = np.stack([problem.latent(*each) for each in of_chains])
            more = one.round * (2 if one.round == run.draws * run.thin else 1)
            with keeping(states):
                is_enough = _is_enough(states)
            if is_enough or one.sweeps + more > run.max_sweeps:
                return states, one, time.perf_counter() - began
            n_round += 1
            for chain in chains:
                chain.next_round(run)
                after_block(chain)


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
        while chain.n_left > 0:
            n = min(block, chain.n_left)
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
    n_chains, n_draws = states["latent"].shape[:2]
    if n_chains < 2 or n_draws < 50:
        return True
    return judge({name: states[name] for name in GATED if name in states}).ok
