"""The commands ``pcvm reproduce``, ``pcvm list`` and ``pcvm report``."""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pcvm_pymc.experiments.errors import UsageError

#: text that is no markup of rich, in one line
_AS_IT_IS: Any = {"highlight": False, "markup": False, "soft_wrap": True}


def reproduce(options: argparse.Namespace, console: Console) -> int:
    """Run an experiment and write its report, or do so for ALL."""
    from pcvm_pymc.experiments.catalogue import experiment_of
    from pcvm_pymc.experiments.running.run import reproduce as run
    from pcvm_pymc.experiments.running.store import NoSetError, RunError

    if options.name == "ALL":
        return _reproduce_all(options, console)
    ending = "-small" if options.small else ""
    try:
        entry = experiment_of(options.name)
        out = options.out or Path(f"pcvm-{entry.run}{ending}")
        default = (options.small and entry.small.classifiers) or entry.classifiers
        run(
            options.name,
            out=out,
            sets=options.sets,
            classifiers=_classifiers(options.classifiers, default),
            **_settings(options),
        )
    except NoSetError as error:
        raise UsageError(
            f"{error}. Without data run {', '.join(_without_data())}; or name a folder with the sets in "
            "PCVM_DATA (`pcvm list --sets` says where they come from)"
        ) from None
    except (RunError, ValueError, OSError) as error:
        raise UsageError(str(error)) from None
    _write_report(out, options.name, out / "report", console)
    return 0


def _without_data() -> list[str]:
    """Return the experiments whose sets are all here: drawn, or of scikit-learn, where there is no folder."""
    from pcvm_pymc.experiments.catalogue import EXPERIMENTS
    from pcvm_pymc.experiments.datasets.loading import available

    here = set(available())
    return [name for name, each in EXPERIMENTS.items() if here.issuperset(each.sets)]


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what every experiment can be asked for."""
    names = ("repeats", "jobs", "seed", "dask", "download", "retry", "small")
    return {name: getattr(options, name) for name in names}


def _reproduce_all(options: argparse.Namespace, console: Console) -> int:
    """Run every experiment; say in a line how each ended, and return 1 if a job failed."""
    from pcvm_pymc.experiments.everything import reproduce_everything

    if options.sets is not None or options.classifiers is not None:
        raise UsageError(
            "ALL takes neither --sets nor --classifiers, which belong to one experiment; name one, or "
            "leave them out (--small takes fewer of both)"
        )
    for key, value, least in (("repeats", options.repeats, 1), ("jobs", options.jobs, 1)):
        if value is not None and value < least:
            raise UsageError(f"{key}={value}; needed a whole number of at least {least}")
    if options.seed < 0:
        raise UsageError(f"seed={options.seed}; needed a whole number of at least 0")
    _without_windows()
    out = options.out or Path("pcvm-ALL-small" if options.small else "pcvm-ALL")
    styles = {"failed": "red", "no data": "yellow"}
    ended = []
    for each in reproduce_everything(out, **_settings(options)):
        line = f"{each.name:<26} {each.status:<14} {each.seconds:6.0f} s  {each.said}"
        console.print(line, style=styles.get(each.status), **_AS_IT_IS)
        ended.append(each)
    counts = {status: sum(each.status == status for each in ended) for status in ("done", *styles)}
    n_failed = sum(each.n_failed for each in ended)
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    said = f"{len(ended)} tables and figures: {said}; {n_failed} jobs failed."
    console.print(said, soft_wrap=True)
    return int(counts["failed"] > 0)


def _classifiers(wanted: list[str] | None, default: tuple[str, ...]) -> list[str] | None:
    """Return the classifiers to run: those named, or with names that begin with + also the experiment's."""
    if wanted is None:
        return None
    added = [name[1:] for name in wanted if name.startswith("+")]
    named = [name for name in wanted if not name.startswith("+")]
    return list(dict.fromkeys([*(named or default), *added]))


def report(options: argparse.Namespace, console: Console) -> None:
    """Write the report of a run."""
    out = options.out or options.folder / "report"
    _write_report(options.folder, options.experiment, out, console)


def _write_report(folder: Path, name: str | None, out: Path, console: Console) -> None:
    from pcvm_pymc.experiments.reporting.reading import report_of
    from pcvm_pymc.experiments.running.store import RunError

    _without_windows()
    try:
        report = report_of(folder, name)
        report.write(out)
    except RunError as error:
        raise UsageError(str(error)) from None
    for measure in report.experiment.measures:
        _print_measure(report, measure, console)
    for title, reason in report.missing.items():
        console.print(f"missing: {title}: {reason}", style="yellow", **_AS_IT_IS)
    if len(report.failures):
        console.print(f"{len(report.failures)} jobs failed; see failures.csv", style="red")
    files = "report.html, report.md, table.csv, cells.csv, ..."
    console.print(f"Written to {escape(str(out))}{os.sep}: {files}")


def _without_windows() -> None:
    import matplotlib as mpl

    mpl.use("Agg")


def _print_measure(report: Any, measure: str, console: Console) -> None:
    from pcvm_pymc.experiments.statistics import MEASURES

    if measure == "seconds":
        of_cells = {"index": "set", "columns": "classifier", "values": "seconds"}
        wide = report.timing.pivot_table(**of_cells, sort=False)
    else:
        wide = report.pivot(measure)
    if wide.empty:
        return
    first = max(map(len, wide.index)) + 2
    room = max(1, (console.width - first) // (max(map(len, wide.columns)) + 2))
    for start in range(0, wide.shape[1], room):
        part = wide.iloc[:, start : start + room]
        table = Table(title=MEASURES[measure], box=box.SIMPLE_HEAD, collapse_padding=True)
        table.add_column("", no_wrap=True)
        for name in part:
            table.add_column(escape(str(name)), justify="right", no_wrap=True)
        for name, row in part.iterrows():
            values = ("" if np.isnan(value) else f"{value:.2f}" for value in row)
            table.add_row(escape(str(name)), *values)
        console.print(table)


def list_names(options: argparse.Namespace, console: Console) -> None:
    """Print the experiments, data sets or classifiers."""
    try:
        rows = _set_rows() if options.sets else None
    except NotADirectoryError as error:
        raise UsageError(str(error)) from None
    if rows is None:
        rows = _classifier_rows() if options.classifiers else _experiment_rows()
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, no_wrap=i == 0, overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    console.print(table)


def _experiment_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.catalogue import EXPERIMENTS

    rows: list[tuple[str, ...]] = [("experiment", "what", "sets", "repeats")]
    for row in EXPERIMENTS.values():
        rows.append((row.name, row.title, str(len(row.sets)), str(row.repeats)))
    return rows


def _classifier_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.classifiers.table import CLASSIFIERS

    rows: list[tuple[str, ...]] = [("classifier", "what", "parameters chosen")]
    for row in CLASSIFIERS.values():
        rows.append((row.name, row.title, "yes" if row.has_parameters else "no"))
    return rows


def _set_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.datasets.loading import available
    from pcvm_pymc.experiments.datasets.registry import SOURCES

    here = set(available())
    rows: list[tuple[str, ...]] = [("set", "size", "here", "used in, or how to obtain")]
    for name, each in SOURCES.items():
        kind = f"{each.classes} classes" if each.classes else "regression"
        used = "; ".join(each.used)
        what = used or each.how if name in here else f"{used}; {each.how}; from {each.origin}"
        size = f"{each.rows} x {each.features}, {kind}"
        rows.append((name, size, "yes" if name in here else "no", what))
    return rows
