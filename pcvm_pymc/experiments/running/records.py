"""Cells of a run, and whether what a file holds is the record of one."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Cell", "NoSetError", "Record", "RunError", "cell_of", "is_manifest", "is_record"]

type Record = dict[str, Any]


class RunError(Exception):
    """A run that cannot begin or go on, in words that say what to do."""


class NoSetError(RunError):
    """A run none of whose data sets is at hand."""


@dataclass(frozen=True, order=True)
class Cell:
    """One piece of work: a classifier on a realisation of a set.

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

    @property
    def path(self) -> Path:
        """Where its record is, within the folder of a run."""
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.classifier)
        return Path("cells", self.set, safe, f"{self.stage}-{self.realisation:03d}.json")

    def __str__(self) -> str:
        return f"{self.set}, {self.classifier}, {self.stage} {self.realisation}"


def cell_of(record: Record) -> Cell:
    """Return the cell that a record is of."""
    return Cell(record["set"], record["classifier"], record["stage"], record["realisation"])


def is_record(record: Any, cell: Cell) -> bool:
    """Whether a file's content is a record of this cell, of the types that a report relies on."""
    if not isinstance(record, dict) or record.get("status") not in ("done", "failed"):
        return False
    if any(record.get(key) != value for key, value in asdict(cell).items()):
        return False
    if not isinstance(record.get("inputs"), dict) or not _are_texts(record.get("warnings", [])):
        return False
    if record["status"] == "failed":
        return isinstance(record.get("traceback"), str)
    if cell.stage == "tune":
        return _are_parameters(record.get("chosen")) or _are_choices(record)
    measures = record.get("measures")
    return (
        isinstance(measures, dict)
        and isinstance(record.get("tuning seconds"), int | float)
        and all(isinstance(each, int | float) for each in measures.values())
        and isinstance(record.get("parameters"), dict)
        and isinstance(record.get("extra", {}), dict)
    )


def _are_choices(record: Record) -> bool:
    choices, errors = record.get("choices"), record.get("errors")
    return (
        isinstance(choices, list)
        and isinstance(errors, list)
        and 0 < len(choices) == len(errors)
        and all(_are_parameters(each) for each in choices)
        and all(isinstance(each, int | float) for each in errors)
    )


def _are_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)


def _are_parameters(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(each, int | float | str) for each in found.values()
    )


def is_manifest(found: Any) -> bool:
    """Whether a file's content says what a run is, in the types that a report relies on."""
    if not isinstance(found, dict):
        return False
    strings = all(isinstance(found.get(key), str) for key in ("experiment", "run"))
    numbers = all(isinstance(found.get(key), int) for key in ("seed", "repeats", "expected"))
    lists = all(
        isinstance(found.get(key), list) and all(isinstance(each, str) for each in found[key])
        for key in ("sets", "classifiers")
    )
    maps = all(
        isinstance(found.get(key), dict)
        and all(isinstance(each, kind) for each in found[key].values())
        for key, kind in (("missing", str), ("versions", str), ("notes", dict))
    )
    return strings and numbers and lists and maps
