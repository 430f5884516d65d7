"""Chains of the Gibbs sampler: in rounds until they have converged, and resumed from files."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.progress import progress_bars
from pcvm_pymc.storage import StoreError, alone_in, read_arrays, write_arrays

_JUDGED = 2000  # states of all chains: r-hat of fewer, even independent ones, is seldom below 1.01
_BLOCKS = 20  # of a round, after each of which a chain is written down and may be stopped
_PROGRESS = (
    "Gibbs, chain {task.fields[number]}",
    "sweep {task.completed}/{task.total}, a draw in {task.fields[thin]}, round {task.fields[round]}",
)
_DRAWN = ("size", "bias", "rate", "width")
_KIND = "chain of a Gibbs sampler"
_REMEDY = "restore it, or remove it: its chain then begins from its start and ends the same"


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


@dataclass
class Chain:
    """A chain of the Gibbs sampler: its state, and the draws of its round.

    Attributes
    ----------
    number : int
    state : GibbsState
    rng : numpy.random.Generator
    thin : int
        Sweeps for each draw of the round.
    judged : int
        States kept for each draw, a divisor of `thin`: where few draws are wanted, convergence is judged
        on more.
    sweeps : int
        Sweeps so far.
    blocks : list of tuples of ndarray
        Sizes, biases, d and unknown widths of the round, as `advance` returned them.
    """

    number: int
    state: GibbsState
    rng: np.random.Generator
    thin: int
    judged: int = 1
    sweeps: int = 0
    blocks: list[tuple[Array, ...]] = field(default_factory=list)

    @property
    def n_kept(self) -> int:
        """Draws of the round so far."""
        return sum(len(block[0]) for block in self.blocks) // self.judged

    @property
    def drawn(self) -> tuple[Array, ...]:
        """Sizes, biases, d and unknown widths of the round's states; empty before its first draw."""
        return tuple(np.concatenate(each) for each in zip(*self.blocks, strict=True))

    def extend(
        self, problem: GibbsProblem, draws: int, between: Callable[[], None] = lambda: None
    ) -> None:
        """Keep so many more draws; `between` is called several times a second."""
        each = {"draws": draws * self.judged, "thin": self.thin // self.judged}
        self.blocks.append(advance(problem, self.state, self.rng, **each, between=between))
        self.sweeps += draws * self.thin

    def next_round(self, *, finer: bool, keep: bool) -> None:
        """Thin twice as much from here; what was drawn is thinned too, or becomes warm-up.

        `finer` keeps twice the states for each draw instead of fewer states.
        """
        step = 1 if finer else 2
        self.thin, self.judged = 2 * self.thin, 2 * self.judged // step
        kept = [each[::-1][::step][::-1] for each in self.drawn] if keep else []
        self.blocks = [tuple(each[len(each) % self.judged :] for each in kept)] if keep else []

    def write(self, folder: Path, fingerprint: str) -> None:
        """Write the chain down; a file is replaced only once the new one is complete."""
        state = {"size": self.state.size, "bias": self.state.bias, "log_rate": self.state.log_rate}
        if self.state.width is not None:
            state["width"] = self.state.width
        arrays = {
            "fingerprint": fingerprint,
            "rng": json.dumps(self.rng.bit_generator.state),
            "counts": np.array([self.thin, self.judged, self.sweeps]),
            **{f"state_{name}": value for name, value in state.items()},
            **dict(zip(_DRAWN, self.drawn, strict=False)),
        }
        write_arrays(folder / f"chain_{self.number}.npz", _KIND, arrays)

    def resume(self, folder: Path, fingerprint: str) -> None:
        """Go on from the chain's file, if there is one.

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
        self.state = GibbsState(
            stored["state_size"], stored["state_bias"][()], float(stored["state_log_rate"])
        )
        if "state_width" in stored:
            self.state.width = stored["state_width"][()]
        self.rng.bit_generator.state = json.loads(str(stored["rng"]))
        self.thin, self.judged, self.sweeps = map(int, stored["counts"])
        drawn = tuple(stored[name] for name in _DRAWN if name in stored)
        self.blocks = [drawn] if drawn else []


def _fingerprint(problem: GibbsProblem, run: GibbsRun, rng: np.random.Generator) -> str:
    """Return a digest of what decides the draws: a file of another run is refused by it."""
    digest = hashlib.sha256()
    for each in (problem.basis.left, problem.basis.right, problem.sign, problem.label):
        digest.update(np.ascontiguousarray(each).tobytes())
    pieces: tuple[Any, ...] = (problem.hyperprior, problem.likelihood)
    if problem.moves is not None:  # the width's prior, by its density at some widths
        pieces += tuple(problem.moves.log_density(k * problem.width) for k in (0.5, 1.0, 2.0))
    settings = (run.draws, run.tune, run.chains, run.thin)
    digest.update(repr((pieces, settings, rng.bit_generator.state)).encode())
    return digest.hexdigest()


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
    folder, fingerprint = run.checkpoint, _fingerprint(problem, run, rng)
    with nullcontext() if folder is None else alone_in(folder):
        chains = [
            Chain(i, problem.start(each), each, run.thin, run.first_judged())
            for i, each in enumerate(rng.spawn(run.chains))
        ]
        if folder is not None:
            for chain in chains:
                chain.resume(folder, fingerprint)
        for (
            chain
        ) in chains:  # killed between the rounds of two chains: all go on from the later one
            while chain.thin < max(each.thin for each in chains):
                _next_round(chain, run)
        began, n_round = time.perf_counter(), 1
        with progress_bars(run.progressbar, *_PROGRESS) as progress:
            bars = [
                progress.add_task("", total=None, number=c.number, thin=c.thin, round=1)
                for c in chains
            ]

            def after_block(chain: Chain) -> None:
                if folder is not None:
                    chain.write(folder, fingerprint)
                bar: dict[str, Any] = position(chain, run.draws)
                progress.update(bars[chain.number], thin=chain.thin, round=n_round, **bar)

            while True:
                _run_round(problem, chains, run, after_block)
                drawn = _joined(problem, chains, began)
                one = chains[0]
                more = one.thin * run.draws * (2 if one.thin == run.thin else 1)
                if _is_enough(drawn) or one.sweeps + more > run.max_sweeps:
                    return drawn
                n_round += 1
                for chain in chains:
                    _next_round(chain, run)
                    after_block(chain)


def position(chain: Chain, draws: int) -> dict[str, int]:
    """Return the sweep that a chain has reached, and that of its round's end, as a progress bar has them."""
    return {
        "completed": chain.sweeps,
        "total": chain.sweeps + chain.thin * (draws - chain.n_kept),
    }


def _next_round(chain: Chain, run: GibbsRun) -> None:
    """Let a chain begin another round: its first one is warm-up, draws of later ones stay, thinned."""
    chain.next_round(finer=chain.judged < run.wanted, keep=chain.thin > run.thin)


def _run_round(
    problem: GibbsProblem,
    chains: list[Chain],
    run: GibbsRun,
    after_block: Callable[[Chain], None],
) -> None:
    """Run all chains to the end of their round, in threads: the compiled sweeps release the lock."""
    stop = threading.Event()

    def between() -> None:
        if stop.is_set():
            raise InterruptedError

    def finish(chain: Chain) -> None:
        if chain.sweeps == 0:  # warm-up, of which no draw is kept
            tune = max(run.tune, 1)
            advance(problem, chain.state, chain.rng, draws=1, thin=tune, between=between)
            chain.sweeps = tune
        block = -(-run.draws // _BLOCKS)
        while chain.n_kept < run.draws:
            chain.extend(problem, min(block, run.draws - chain.n_kept), between)
            after_block(chain)

    with threadpool_limits(1), ThreadPoolExecutor(run.cores) as pool:
        futures = [pool.submit(finish, chain) for chain in chains]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _joined(problem: GibbsProblem, chains: list[Chain], began: float) -> GibbsDraws:
    """Return the states of all chains, with their latent function."""
    drawn = zip(*(chain.drawn for chain in chains), strict=True)
    size, bias, rate, *width = map(np.stack, drawn)
    latent = np.stack([problem.latent(*each) for each in zip(size, bias, *width, strict=True)])
    one, seconds = chains[0], time.perf_counter() - began
    thin = one.thin // one.judged
    at = width[0] if width else None
    return GibbsDraws(size, bias, rate, latent, at, one.judged, thin, one.sweeps, seconds)


def _is_enough(drawn: GibbsDraws) -> bool:
    """Whether r-hat of the latent function, and of a width, is at most 1.01 and the sample size enough."""
    n_chains, n_draws = drawn.latent.shape[:2]
    if n_chains < 2 or n_draws < 50:  # too few to judge
        return True
    dims = ("chain", "draw", "obs", "class")[: drawn.latent.ndim]
    data = xr.Dataset({"latent": (dims, drawn.latent)})
    if drawn.width is not None:
        data["width"] = (("chain", "draw", "feature")[: drawn.width.ndim], drawn.width)
    enough = min(400, n_chains * n_draws // 2)  # what so many draws can have
    import arviz as az

    rhat, ess = az.rhat(data), az.ess(data)
    return all(bool(rhat[name].max() <= 1.01 and ess[name].min() >= enough) for name in data)
