"""The folder of a run: every finished job in a file of its own, written as a whole or not at all."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pcvm_pymc.core.pieces.files import StoreError, alone_in, is_scratch, write_atomically
from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.protocols import Problem

type Record = dict[str, Any]

_MANIFEST = "experiment.json"
_MANIFEST_KEYS = {"experiment", "run", "seed", "repeats", "sets", "classifiers", "missing"}
_MANIFEST_KEYS |= {"expected", "versions", "notes"}
_OF_A_RUN = {"cells", "splits", "report"}
_MEND = "run `pcvm reproduce` again with the same --out, which mends it and keeps what is finished"
_CHECKSUM = "checksum"


def with_checksum(record: Mapping[str, Any]) -> Record:
    """Return a record that goes into JSON with its checksum as the last entry."""
    plain = {key: value for key, value in record.items() if key != _CHECKSUM}
    return plain | {_CHECKSUM: _digest(json.loads(json.dumps(plain)))}


def read_record(path: Path) -> Record:
    """Return the record in a file with what `with_checksum` gave.

    Raises
    ------
    StoreError
        If it cannot be read, is no JSON, or is not what was written.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        checksum = record.pop(_CHECKSUM)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged ({first_line(error)})") from None
    if checksum != _digest(record):
        raise StoreError(f"{path} is damaged (its checksum differs)")
    return dict(record)


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class RunError(Exception):
    """A run that cannot begin or go on, in words that say what to do."""


class NoSetError(RunError):
    """A run none of whose data sets is at hand."""


@dataclass(frozen=True, order=True)
class JobName:
    """Which job: a classifier on a realisation of a set.

    Attributes
    ----------
    set, classifier : str
    stage : {"tune", "score"}
    realisation : int
        From 0.
    """

    set: str
    classifier: str
    stage: str
    realisation: int

    @classmethod
    def of(cls, record: Record) -> "JobName":
        """Return the job that a record is of."""
        return cls(record["set"], record["classifier"], record["stage"], record["realisation"])

    @property
    def path(self) -> Path:
        """Where its record is, within the folder of a run."""
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.classifier)
        return Path("cells", self.set, safe, f"{self.stage}-{self.realisation:03d}.json")

    def __str__(self) -> str:
        return f"{self.set}, {self.classifier}, {self.stage} {self.realisation}"


@dataclass(frozen=True)
class Store:
    """The folder with a run's manifest, realisations and finished jobs."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this run; raise a RunError if another one has it, or it cannot be made."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; needed a folder")
        lock = alone_in(self.folder)
        try:
            lock.__enter__()
        except (StoreError, OSError) as error:
            raise RunError(str(error)) from None
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def read(self, name: JobName) -> Record | None:
        """Return the record of a finished job; None if there is none or it is damaged."""
        try:
            record = read_record(self.folder / name.path)
        except StoreError:
            return None
        own = all(record.get(key) == value for key, value in asdict(name).items())
        return record if own and record.get("status") in ("done", "failed") else None

    def jobs(self, set_name: str, classifier: str) -> list[JobName]:
        """Return the jobs of a set and a classifier that have a file, damaged or not."""
        folder = self.folder / JobName(set_name, classifier, "score", 0).path.parent
        found = []
        for path in sorted(folder.glob("*.json")):
            stage, _, number = path.stem.partition("-")
            if stage in ("tune", "score") and number.isdecimal():
                found.append(JobName(set_name, classifier, stage, int(number)))
        return found

    def write(self, name: JobName, record: Record) -> None:
        """Write the record of a finished job."""
        self._write(self.folder / name.path, record)

    def manifest(self) -> Record:
        """Return what the run is; raise a RunError if the folder has none, or it is damaged."""
        path = self.folder / _MANIFEST
        if not self.folder.is_dir() or not path.is_file():
            raise RunError(f"{self.folder} has no run ({_MANIFEST} is missing)")
        try:
            found = read_record(path)
        except StoreError as error:
            raise RunError(f"{error}; {_MEND}") from None
        if not found.keys() >= _MANIFEST_KEYS:
            raise RunError(f"{path} is damaged (names, seed or repeats are missing); {_MEND}")
        return found

    def begin(self, manifest: Record) -> None:
        """Write the manifest; raise a RunError if the folder has something else."""
        path = self.folder / _MANIFEST
        if path.exists():
            try:
                found = self.manifest()
            except RunError:
                found = manifest  # damaged: the jobs say themselves what they are of
            for key in ("run", "seed", "small"):
                present, asked = found.get(key, False), manifest.get(key, False)
                if present != asked:
                    raise RunError(
                        f"{self.folder} contains {key} {present!r}, asked for {asked!r}; use another --out"
                    )
        elif not self._may_be_ours():
            raise RunError(f"{self.folder} is not empty and has no run; use another --out")
        self._write(path, manifest)

    def _may_be_ours(self) -> bool:
        """Whether the folder is empty, or a run that has lost its manifest: with undamaged jobs in it."""
        names = {each.name for each in self.folder.iterdir() if not is_scratch(each)}
        jobs = self.folder.glob("cells/*/*/*.json")
        return not names or (names <= _OF_A_RUN and any(map(_is_undamaged, jobs)))

    def write_splits(self, problem: Problem) -> None:
        """Write down the row numbers of a set's realisations."""
        arrays: dict[str, Any] = {}
        for k, (train, test) in enumerate(problem.splits):
            arrays |= {f"train_{k}": train, f"test_{k}": test}
        try:
            path = self.folder / "splits" / f"{problem.name}.npz"
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)
            write_atomically(path, buffer.getvalue())
        except OSError as error:
            raise RunError(str(error)) from None

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        try:
            write_atomically(path, json.dumps(with_checksum(record), indent=1).encode())
        except OSError as error:
            raise RunError(str(error)) from None


def _is_undamaged(path: Path) -> bool:
    try:
        return bool(read_record(path))
    except StoreError:
        return False
