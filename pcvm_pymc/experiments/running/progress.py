"""Progress within a cell: what each candidate lost is written at once, so that a killed run advances."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pcvm_pymc.storage import StoreError, sealed, unsealed, write_atomically

__all__ = ["Progress"]

_PAUSE = 1.0  # seconds between two writings: quick candidates are not worth a file each


class Progress:
    """The losses of a cell's candidates, in a file beside the cell's own until it is finished.

    Parameters
    ----------
    path : Path or None
        None keeps nothing, as on a cluster whose workers may not see the folder.
    inputs : mapping
        Of the cell: what other inputs left behind is not used.
    """

    def __init__(self, path: Path | None, inputs: Mapping[str, Any]) -> None:
        self._path, self._inputs = path, json.loads(json.dumps(dict(inputs)))
        self._began, self._written = time.thread_time(), time.monotonic()
        self._losses: dict[str, float] = {}
        self._before = 0.0
        if path is None:
            return
        try:
            found = unsealed(path)
        except StoreError:
            return
        if found.get("inputs") == self._inputs:
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
        if self._path is None or time.monotonic() - self._written < _PAUSE:
            return
        record = {"inputs": self._inputs, "losses": self._losses, "seconds": self.seconds}
        write_atomically(self._path, json.dumps(sealed(record)).encode())
        self._written = time.monotonic()
