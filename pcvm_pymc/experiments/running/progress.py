"""Progress within a cell: what each candidate lost is written at once, so that a killed run advances."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pcvm_pymc.experiments.running.records import Record
from pcvm_pymc.storage import StoreError, sealed, unsealed, write_atomically

__all__ = ["Keeper", "PartFile", "Progress"]

_PAUSE = 1.0  # seconds between two writings: quick candidates are not worth a file each


class Keeper(Protocol):
    """Where an unfinished cell has what it knows."""

    def load(self) -> Record | None:
        """Return what was saved last; None if nothing was."""

    def save(self, record: Record) -> None:
        """Keep this in place of what was saved before."""


@dataclass(frozen=True)
class PartFile:
    """A file beside the cell's own."""

    path: Path

    def load(self) -> Record | None:
        """Return what the file holds; None if there is none or it is damaged."""
        try:
            return unsealed(self.path)
        except StoreError:
            return None

    def save(self, record: Record) -> None:
        """Write the file, as a whole or not at all."""
        write_atomically(self.path, json.dumps(sealed(record)).encode())


class Progress:
    """The losses of a cell's candidates, kept until it is finished.

    Parameters
    ----------
    keeper : Keeper or None
        None keeps nothing.
    inputs : mapping
        Of the cell: what other inputs left behind is not used.
    """

    def __init__(self, keeper: Keeper | None, inputs: Mapping[str, Any]) -> None:
        self._keeper, self._inputs = keeper, json.loads(json.dumps(dict(inputs)))
        self._began, self._written = time.thread_time(), time.monotonic()
        self._losses: dict[str, float] = {}
        self._before = 0.0
        found = None if keeper is None else keeper.load()
        if found is not None and found.get("inputs") == self._inputs:
            self._losses, self._before = found["losses"], found["seconds"]

    @property
    def seconds(self) -> float:
        """CPU seconds so far, those of runs that were stopped included."""
        return self._before + time.thread_time() - self._began

    def __call__(self, candidate: Mapping[str, Any], compute: Callable[[], float]) -> float:
        """Return the loss of a candidate, computed unless a run before this has done so."""
        key = json.dumps(dict(candidate), sort_keys=True)
        if key not in self._losses:
            self._losses[key] = float(compute())
            self._write()
        return self._losses[key]

    def _write(self) -> None:
        if self._keeper is None or time.monotonic() - self._written < _PAUSE:
            return
        self._keeper.save({"inputs": self._inputs, "losses": self._losses, "seconds": self.seconds})
        self._written = time.monotonic()
