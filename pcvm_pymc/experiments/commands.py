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

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add the three commands to the parser's."""
    _add_reproduce(commands)
    _add_list(commands)
    _add_report(commands)


def _add_reproduce(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="run an experiment of the papers, or go on with one that was stopped",
        description="Run an experiment of the papers. Every finished cell is written at once: stop it with "
        "Ctrl-C, and the same command goes on.",
    )
    reproduce.add_argument("name", metavar="NAME", help="such as chen2009-table1; see `pcvm list`")
    reproduce.add_argument(
        "--sets", nargs="+", metavar="SET", help="data sets (default: the experiment's)"
    )
    reproduce.add_argument(
        "--classifiers",
        nargs="+",
        metavar="NAME",
        help="of `pcvm list --classifiers`, or module:attribute for a scikit-learn estimator of your own; "
        "+NAME adds to the experiment's (default: the experiment's)",
    )
    reproduce.add_argument(
        "--repeats", type=int, metavar="N", help="realisations scored (default: the paper's)"
    )
    reproduce.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes (default: 1)"
    )
    reproduce.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed (default: 0)"
    )
    reproduce.add_argument(
        "--out", type=Path, metavar="FOLDER", help="output folder (default: pcvm-NAME)"
    )
    reproduce.add_argument(
        "--dask", metavar="ADDRESS", help="send the cells to the Dask scheduler at this address"
    )
    reproduce.add_argument(
        "--download",
        action="store_true",
        help="fetch missing sets from openml.org where it has them",
    )
    reproduce.add_argument("--retry", action="store_true", help="run cells again that have failed")
    reproduce.set_defaults(run=_reproduce)


def _add_list(commands: Any) -> None:
    listing = commands.add_parser("list", help="name the experiments, data sets or classifiers")
    kind = listing.add_mutually_exclusive_group()
    kind.add_argument("--sets", action="store_true", help="the data sets, and which are here")
    kind.add_argument("--classifiers", action="store_true", help="the classifiers")
    listing.set_defaults(run=_list)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report", help="write the report of a run, finished or not: csv, Markdown, HTML, pictures"
    )
    report.add_argument("folder", type=Path, metavar="FOLDER", help="of `pcvm reproduce`")
    report.add_argument(
        "--experiment",
        metavar="NAME",
        help="another table of the same run, such as chen2009-table3 (default: that of the run)",
    )
    report.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write (default: FOLDER/report)"
    )
    report.set_defaults(run=_report)


def _reproduce(options: argparse.Namespace, console: Console) -> None:
    from pcvm_pymc.experiments.catalogue import experiment_of
    from pcvm_pymc.experiments.running import RunError, reproduce

    try:
        experiment = experiment_of(options.name)
        out = options.out or Path(f"pcvm-{experiment.run}")
        reproduce(
            options.name,
            out=out,
            sets=options.sets,
            classifiers=_classifiers(options.classifiers, experiment.classifiers),
            repeats=options.repeats,
            jobs=options.jobs,
            seed=options.seed,
            dask=options.dask,
            download=options.download,
            retry=options.retry,
        )
    except (RunError, ValueError, OSError) as error:
        raise UsageError(str(error)) from None
    _write_report(out, options.name, out / "report", console)


def _classifiers(wanted: list[str] | None, default: tuple[str, ...]) -> list[str] | None:
    """Return the names asked for; one that begins with + joins the experiment's."""
    if wanted is None:
        return None
    added = [name[1:] for name in wanted if name.startswith("+")]
    named = [name for name in wanted if not name.startswith("+")]
    return list(dict.fromkeys([*(named or default), *added]))


def _report(options: argparse.Namespace, console: Console) -> None:
    _write_report(
        options.folder, options.experiment, options.out or options.folder / "report", console
    )


def _write_report(folder: Path, name: str | None, out: Path, console: Console) -> None:
    import matplotlib as mpl

    from pcvm_pymc.experiments.reporting import report_of
    from pcvm_pymc.experiments.running import RunError

    mpl.use("Agg")
    try:
        report = report_of(folder, name)
        report.write(out)
    except RunError as error:
        raise UsageError(str(error)) from None
    for measure in report.experiment.measures:
        _print_measure(report, measure, console)
    for title, reason in report.missing.items():
        console.print(
            f"missing: {title}: {reason}",
            style="yellow",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if len(report.failures):
        console.print(f"{len(report.failures)} cells failed; see failures.csv", style="red")
    console.print(
        f"Written to {escape(str(out))}{os.sep}: report.html, report.md, table.csv, cells.csv, ..."
    )


def _print_measure(report: Any, measure: str, console: Console) -> None:
    from pcvm_pymc.experiments.statistics import MEASURES

    if measure == "seconds":
        wide = report.timing.pivot_table(
            index="set", columns="classifier", values="seconds", sort=False
        )
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
            table.add_row(
                escape(str(name)), *("" if np.isnan(value) else f"{value:.2f}" for value in row)
            )
        console.print(table)


def _list(options: argparse.Namespace, console: Console) -> None:
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
        table.add_row(*row)
    console.print(table)


def _experiment_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.catalogue import EXPERIMENTS

    rows: list[tuple[str, ...]] = [("experiment", "what", "sets", "repeats")]
    rows += [
        (each.name, each.title, str(len(each.sets)), str(each.repeats))
        for each in EXPERIMENTS.values()
    ]
    return rows


def _classifier_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.classifiers import CLASSIFIERS

    rows: list[tuple[str, ...]] = [("classifier", "what", "parameters chosen")]
    return rows + [
        (each.name, each.title, "yes" if each.has_parameters else "no")
        for each in CLASSIFIERS.values()
    ]


def _set_rows() -> list[tuple[str, ...]]:
    from pcvm_pymc.experiments.datasets import SOURCES, available

    here = set(available())
    rows: list[tuple[str, ...]] = [("set", "size", "here", "used in, or how to obtain")]
    for name, each in SOURCES.items():
        kind = f"{each.classes} classes" if each.classes else "regression"
        used = "; ".join(each.used)
        what = used or each.how if name in here else f"{used}; {each.how}; from {each.origin}"
        rows.append(
            (name, f"{each.rows} x {each.features}, {kind}", "yes" if name in here else "no", what)
        )
    return rows
