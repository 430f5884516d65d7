"""Chains of the Gibbs sampler, and the files from which a killed run goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.storage import StoreError, alone_in, read_arrays, write_arrays

__all__ = ["Chain", "Checkpoints"]

_DRAWN = ("size", "bias", "rate", "width")
_KIND = "chain of a Gibbs sampler"
_REMEDY = "restore it, or remove it: its chain then begins anew and ends the same"


@dataclass
class Chain:
    """A chain of the Gibbs sampler: where it stands, and the draws of its round.

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
        Sweeps behind it.
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

    def tune(
        self, problem: GibbsProblem, sweeps: int, between: Callable[[], None] = lambda: None
    ) -> None:
        """Run sweeps whose draws are not kept."""
        advance(problem, self.state, self.rng, draws=1, thin=sweeps, between=between)
        self.sweeps += sweeps

    def extend(
        self, problem: GibbsProblem, draws: int, between: Callable[[], None] = lambda: None
    ) -> None:
        """Keep so many more draws."""
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


@dataclass(frozen=True)
class Checkpoints:
    """Where the chains of a run are written down.

    Attributes
    ----------
    folder : Path or None
        None: nowhere.
    fingerprint : str
        What decides the run's draws, as a digest: a file of another run is refused.
    """

    folder: Path | None
    fingerprint: str

    @classmethod
    def of(
        cls, folder: Path | None, problem: GibbsProblem, settings: Any, rng: np.random.Generator
    ) -> Self:
        """Return the checkpoints of a run on a problem, with its settings and seed."""
        digest = hashlib.sha256()
        for each in (problem.basis.left, problem.basis.right, problem.sign, problem.label):
            digest.update(np.ascontiguousarray(each).tobytes())
        pieces: tuple[Any, ...] = (problem.hyperprior, problem.likelihood)
        if problem.moves is not None:  # its prior, by what it says of some widths
            pieces += tuple(problem.moves.log_density(k * problem.width) for k in (0.5, 1.0, 2.0))
        digest.update(repr((pieces, settings, rng.bit_generator.state)).encode())
        return cls(folder, digest.hexdigest())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this run alone.

        Raises
        ------
        StoreError
            If another run has it.
        """
        with nullcontext() if self.folder is None else alone_in(self.folder):
            yield

    def write(self, chain: Chain) -> None:
        """Write a chain down; a file is replaced only once the new one is complete."""
        for path in self._files(chain):
            arrays = {
                "fingerprint": self.fingerprint,
                "state_size": chain.state.size,
                "state_bias": chain.state.bias,
                "state_log_rate": chain.state.log_rate,
                **({} if chain.state.width is None else {"state_width": chain.state.width}),
                "rng": json.dumps(chain.rng.bit_generator.state),
                "counts": np.array([chain.thin, chain.judged, chain.sweeps]),
                **dict(zip(_DRAWN, chain.drawn, strict=False)),
            }
            write_arrays(path, _KIND, arrays)

    def resume(self, chain: Chain) -> None:
        """Bring a chain to where its file says it stood.

        Raises
        ------
        StoreError
            If the file is damaged, or of another run.
        """
        for path in filter(os.path.lexists, self._files(chain)):
            stored = read_arrays(path, _KIND, _REMEDY)
            self._check(str(stored["fingerprint"]))
            chain.state = GibbsState(
                stored["state_size"], stored["state_bias"][()], float(stored["state_log_rate"])
            )
            if "state_width" in stored:
                chain.state.width = stored["state_width"][()]
            chain.rng.bit_generator.state = json.loads(str(stored["rng"]))
            chain.thin, chain.judged, chain.sweeps = map(int, stored["counts"])
            drawn = tuple(stored[name] for name in _DRAWN if name in stored)
            chain.blocks = [drawn] if drawn else []

    def _check(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise StoreError(
                f"checkpoint {self.folder} is of another run (model, draws, tune, chains, thin or seed "
                "differ); needed the same call, or another folder. A seed is needed to resume at all"
            )

    def _files(self, chain: Chain) -> Iterator[Path]:
        """Yield the file of a chain, where there is a folder."""
        if self.folder is not None:
            yield self.folder / f"chain_{chain.number}.npz"
