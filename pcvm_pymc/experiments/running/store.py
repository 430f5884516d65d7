"""The folder of a run: every finished cell in a file of its own, written as a whole or not at all."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.protocols import Problem
from pcvm_pymc.experiments.running.records import Cell, Record, RunError, is_manifest, is_record

__all__ = ["Store", "write_atomically"]

_MANIFEST = "experiment.json"


@dataclass(frozen=True)
class Store:
    """The folder that holds a run's manifest, realisations and finished cells."""

    folder: Path

    def read(self, cell: Cell) -> Record | None:
        """Return the record of a finished cell; None if there is none or it is damaged."""
        try:
            record = json.loads((self.folder / cell.path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
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
        """Write a record so that it is there as a whole or not at all."""
        write_atomically(self.folder / cell.path, json.dumps(record, indent=1).encode())

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
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{path} is damaged ({first_line(error)}); "
                "run `pcvm reproduce` again with the same --out, which mends it and keeps the cells"
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
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; needed a folder")
        if path.exists():
            try:
                found = self.manifest()
            except RunError:
                found = manifest  # damaged: what it was is not known, the cells say it themselves
            for key in ("run", "seed"):
                if found[key] != manifest[key]:
                    raise RunError(
                        f"{self.folder} holds {key} {found[key]!r}, asked for {manifest[key]!r}; "
                        "use another --out"
                    )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise RunError(f"{self.folder} is not empty and holds no run; use another --out")
        try:
            write_atomically(path, json.dumps(manifest, indent=1).encode())
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {error.strerror}") from None

    def write_splits(self, problem: Problem) -> None:
        """Write down the row numbers of a set's realisations."""
        arrays = {}
        for k, (train, test) in enumerate(problem.splits):
            arrays |= {f"train_{k}": train, f"test_{k}": test}
        path = self.folder / "splits" / f"{problem.name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            np.savez_compressed(file, **arrays)
        os.replace(file.name, path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by way of another, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
