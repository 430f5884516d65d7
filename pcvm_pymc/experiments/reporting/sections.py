"""The sections of a report, in their order."""

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue.own import OWN
from pcvm_pymc.experiments.reporting.comparisons import ranked, tested
from pcvm_pymc.experiments.reporting.growth import few_vectors, growth
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.reporting.tables import by_class, measured
from pcvm_pymc.experiments.reporting.times import seconds_of_fits, timed
from pcvm_pymc.experiments.reporting.totals import pointed
from pcvm_pymc.experiments.statistics import MEASURES

__all__ = ["sections_of"]


def sections_of(report: Report) -> Iterable[Section]:
    """Yield the sections of a report: what its experiment is about, then what all have."""
    yield _about(report)
    yield from {
        "table": measured,
        "points": pointed,
        "seconds": timed,
        "ranks": ranked,
        "tests": tested,
        "classes": by_class,
    }[report.experiment.view](report)
    if report.experiment.view in ("table", "points") and report.experiment.control:
        yield from ranked(report)
    yield from drawn(report)
    yield from seconds_of_fits(report)
    yield from _said(report)
    yield _missing(report)
    yield _provenance(report)


def _about(report: Report) -> Section:
    experiment, manifest = report.experiment, report.manifest
    counts = report.cells.groupby("set", sort=False)["realisation"].nunique()
    return Section(
        "What this is",
        (
            f"{experiment.paper}. {experiment.title}.",
            f"Protocol: {experiment.protocol.name}. Realisations scored: {manifest['repeats']} asked for, "
            f"{experiment.repeats} {'by default' if experiment.paper == OWN else 'in the paper'}"
            + (f"; finished: {_counted(counts)}." if len(counts) else "; none finished yet."),
            *(("A small part, for a first look: `--small`.",) if manifest.get("small") else ()),
            *(f"Note: {remark}" for remark in experiment.remarks),
        ),
    )


def _counted(counts: pd.Series) -> str:
    if counts.nunique() == 1:
        return f"{counts.iloc[0]} on each of {len(counts)} set(s)"
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def drawn(report: Report) -> Iterable[Section]:
    kind = report.experiment.figure
    draw = {
        "boundaries": pictures.draw_boundaries,
        "regions": pictures.draw_regions,
        "opposed": pictures.draw_opposed,
        "margins": pictures.draw_margins,
        "curves": pictures.draw_curves,
        "widths": pictures.draw_widths,
    }
    if kind in draw:
        extras = {
            (each["set"], each["classifier"]): each["extra"]
            for each in report.records
            if each.get("extra")
        }
        if extras:
            yield _picture(draw[kind], extras)
    if kind == "scaling":
        yield from growth(report)
    if kind == "vectors":
        yield from few_vectors(report)
    if kind in ("lines", "accuracy"):
        mean, std = report.pivot("error"), report.pivot("error", "std")
        if len(mean):
            numbers = [int(name.rsplit("_", 1)[1]) for name in mean.index]
            xlabel = "features" if "gaussians" in mean.index[0] else "classes"
            unit = MEASURES["error"]
            if kind == "accuracy":  # as the paper draws it
                mean, unit = 100.0 - mean, "Accuracy, %"
            figure = pictures.draw_lines(
                mean.set_axis(numbers), std.set_axis(numbers), unit, xlabel
            )
            yield Section("Picture", (), None, figure, "picture")


def _picture(draw: Callable[..., Figure], extras: dict[tuple[str, str], Any]) -> Section:
    """Return the section of a picture, or why there is none: what was recorded may be damaged."""
    try:
        return Section("Picture", (), None, draw(extras), "picture")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return Section("Picture", (f"It cannot be drawn: {type(error).__name__}: {error}",))


def _said(report: Report) -> Iterable[Section]:
    """Yield what fits warned of, and in how many of the cells."""
    warned = pd.DataFrame(
        [
            {"classifier": each["classifier"], "warning": _in_a_line(text)}
            for each in report.records
            for text in each.get("warnings", ())
        ]
    )
    if warned.empty:
        return
    counts = warned.value_counts(sort=False).rename("cells").reset_index()
    cells = report.cells["classifier"].value_counts()
    counts["cells"] = [
        f"{row.cells} of {cells.get(row.classifier, 0)}" for row in counts.itertuples()
    ]
    yield Section("What fits warned of", (), counts.set_index("classifier"))


def _in_a_line(text: str) -> str:
    """Return a warning without what follows its first line, such as a traceback of the machine's files."""
    category, _, said = text.partition(": ")
    return f"{category}: {next(iter(said.strip().splitlines()), '')}"


def _missing(report: Report) -> Section:
    lines = [f"{name}: {reason}" for name, reason in report.missing.items()]
    lines += [f"failed: {row.cell}: {row.reason}" for row in report.failures.itertuples()]
    expected = _expected(report)
    if expected:
        lines.append(expected)
    return Section("What is missing", tuple(lines) or ("Nothing.",))


def _expected(report: Report) -> str:
    """Say how many cells have not been run."""
    failed = report.failures["cell"].str.contains(", score ").sum()
    rest = report.manifest["expected"] - len(report.cells) - int(failed)
    return f"{rest} cells have not been run yet; `pcvm reproduce` goes on." if rest > 0 else ""


def _provenance(report: Report) -> Section:
    manifest = report.manifest
    versions = ", ".join(f"{name} {value}" for name, value in manifest["versions"].items())
    notes = pd.DataFrame(manifest["notes"]).T
    if "realisations" in notes:
        notes["realisations"] = [
            ", ".join(f"{count} {kind}" for kind, count in each.items())
            if isinstance(each, dict)
            else ""
            for each in notes["realisations"]
        ]
    return Section(
        "Data, seed and versions",
        (
            f"Seed {manifest['seed']}. {versions}.",
            "Row numbers of every realisation are in the folder splits.",
        ),
        notes if len(notes) else None,
    )
