"""All tables and figures one after the other, each in a folder of its own."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcvm_pymc.core.pieces.files import as_path
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, Experiment
from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.reporting.reading import report_of
from pcvm_pymc.experiments.running.run import reproduce
from pcvm_pymc.experiments.running.store import NoSetError


@dataclass(frozen=True)
class Outcome:
    """How one table or figure ended.

    Attributes
    ----------
    name : str
    status : {"done", "failed", "no data"}
    said : str
        In words.
    n_failed : int
        Jobs that failed.
    seconds : float
    """

    name: str
    status: str
    said: str
    n_failed: int = 0
    seconds: float = 0.0


def reproduce_everything(out: str | Path, **options: Any) -> Iterator[Outcome]:
    """Run every experiment, and write the report of every table and figure; yield how each ended.

    Experiments that share a run are run once. What is finished is not run again, so that the same call goes
    on after a stop. One that fails does not keep the others from being run.

    Parameters
    ----------
    out : path
        Jobs go to the folder RUN, and reports to NAME/report within it.
    **options
        Of `pcvm_pymc.experiments.running.reproduce`, for all of them.
    """
    out, ran = as_path(out, "out"), set[str]()
    for entry in EXPERIMENTS.values():
        began = time.perf_counter()
        try:
            status, said, n_failed = _one(entry, out, ran, options)
        except NoSetError as error:
            status, said, n_failed = "no data", first_line(error), 0
        except Exception as error:  # the others go on
            status, said, n_failed = "failed", f"{type(error).__name__}: {first_line(error)}", 0
        yield Outcome(entry.name, status, said, n_failed, time.perf_counter() - began)


def _one(
    entry: Experiment, out: Path, ran: set[str], options: dict[str, Any]
) -> tuple[str, str, int]:
    """Run the missing jobs of an experiment, write its report, and return its outcome."""
    place = out / entry.name / "report"
    if entry.run not in ran:
        reproduce(EXPERIMENTS[entry.run].name, out=out / entry.run, **options)
        ran.add(entry.run)
    report = report_of(out / entry.run, entry.name)
    report.write(place)
    n_failed, n_missing = len(report.failures), len(report.manifest["missing"])
    said = f"{len(report.cells)} jobs" if entry.run == entry.name else f"jobs of {entry.run}"
    said += f", {n_failed} failed" if n_failed else ""
    said += f", {n_missing} sets missing" if n_missing else ""
    return ("failed" if n_failed else "done"), said, n_failed
