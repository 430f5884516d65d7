"""The folder of a run: every finished cell in a file of its own, written as a whole or not at all."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcvm_pymc.experiments.protocols import Problem
from pcvm_pymc.experiments.running.records import Cell, Record, RunError, is_manifest, is_record
from pcvm_pymc.storage import (
    StoreError,
    alone_in,
    is_scratch,
    sealed,
    unsealed,
    write_arrays,
    write_atomically,
)

__all__ = ["Store"]

_MANIFEST = "experiment.json"
_OF_A_RUN = {"cells", "splits", "report"}


@dataclass(frozen=True)
class Store:
    """The folder that holds a run's manifest, realisations and finished cells."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this run alone.

        Raises
        ------
        RunError
            If another run has it, or it cannot be made.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; needed a folder")
        with ExitStack() as stack:
            try:
                stack.enter_context(alone_in(self.folder))
            except (StoreError, OSError) as error:
                raise RunError(str(error)) from None
            yield

    def read(self, cell: Cell) -> Record | None:
        """Return the record of a finished cell; None if there is none or it is damaged."""
        try:
            record = unsealed(self.folder / cell.path)
        except StoreError:
            return None
        return record if is_record(record, cell) else None

    def cells(self, set_name: str, classifier: str) -> list[Cell]:
        """Return the cells of a set and a classifier that have a file, damaged or not."""
        folder = self.folder / Cell(set_name, classifier, "score", 0).path.parent
        found = []
        for path in sorted(folder.glob("*.json")):
            stage, _, number = path.stem.partition("-")
            if stage in ("tune", "score") and number.isdecimal():
                found.append(Cell(set_name, classifier, stage, int(number)))
        return found

    def write(self, cell: Cell, record: Record) -> None:
        """Write a record so that it is there as a whole or not at all; its progress is done with."""
        self._write(self.folder / cell.path, record)
        if record["status"] == "done":
            self.progress(cell).unlink(missing_ok=True)

    def progress(self, cell: Cell) -> Path:
        """Return where a cell keeps what it has until it is finished."""
        return (self.folder / cell.path).with_suffix(".part")

    def manifest(self) -> Record:
        """Return what the run is.

        Raises
        ------
        RunError
            If the folder holds no run, or its manifest is damaged.
        """
        path = self.folder / _MANIFEST
        if not self.folder.is_dir() or not path.is_file():
            raise RunError(f"{self.folder} holds no run ({_MANIFEST} is missing)")
        try:
            found = unsealed(path)
        except StoreError as error:
            raise RunError(
                f"{error}; run `pcvm reproduce` again with the same --out, which mends it and keeps the "
                "cells"
            ) from None
        if not is_manifest(found):
            raise RunError(
                f"{path} is damaged (names, seed or repeats are missing); "
                "run `pcvm reproduce` again with the same --out, which mends it and keeps the cells"
            )
        return found

    def begin(self, manifest: Record) -> None:
        """Write the manifest, unless the folder holds another experiment.

        Raises
        ------
        RunError
        """
        path = self.folder / _MANIFEST
        if path.exists():
            try:
                found = self.manifest()
            except RunError:
                found = manifest  # damaged: what it was is not known, the cells say it themselves
            for key in ("run", "seed", "small"):
                held, asked = found.get(key, False), manifest.get(key, False)
                if held != asked:
                    raise RunError(
                        f"{self.folder} holds {key} {held!r}, asked for {asked!r}; "
                        "use another --out"
                    )
        elif not self._has_lost_its_manifest():  # or is empty
            raise RunError(f"{self.folder} is not empty and holds no run; use another --out")
        self._write(path, manifest)

    def _has_lost_its_manifest(self) -> bool:
        """Whether the folder is empty, or holds a run's things alone, with cells that say what they are."""
        names = {each.name for each in self.folder.iterdir() if not is_scratch(each)}
        return not names or (
            names <= _OF_A_RUN and any(map(_is_sealed, self.folder.glob("cells/*/*/*.json")))
        )

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        try:
            write_atomically(path, json.dumps(sealed(record), indent=1).encode())
        except OSError as error:
            raise RunError(str(error)) from None

    def write_splits(self, problem: Problem) -> None:
        """Write down the row numbers of a set's realisations."""
        arrays: dict[str, Any] = {}
        for k, (train, test) in enumerate(problem.splits):
            arrays |= {f"train_{k}": train, f"test_{k}": test}
        path = self.folder / "splits" / f"{problem.name}.npz"
        try:
            write_arrays(path, "set of splits", arrays, compressed=True)
        except OSError as error:
            raise RunError(str(error)) from None


def _is_sealed(path: Path) -> bool:
    """Whether a file is a record of ours, undamaged."""
    try:
        unsealed(path)
    except StoreError:
        return False
    return True
