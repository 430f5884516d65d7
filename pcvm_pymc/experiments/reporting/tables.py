"""Sections that put what was measured beside what the paper printed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from pcvm_pymc.experiments.catalogue import printed_of
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import MEASURES

__all__ = ["by_class", "measured"]


def measured(report: Report) -> Iterable[Section]:
    """Yield each measure, the paper's, and where the two disagree."""
    experiment = report.experiment
    for measure in experiment.measures:
        if measure == "seconds":
            yield from _seconds_beside(report)
            continue
        part = report.table[report.table["measure"] == measure]
        if len(part) == 0:
            continue
        unit = MEASURES[measure]
        yield Section(
            f"Measured: {unit}",
            ("Mean ± standard deviation over realisations.",),
            _texts(report, measure),
        )
        if part["paper mean"].notna().any():
            yield Section(
                f"The paper: {unit}",
                ("Mean ± standard deviation, as printed.",),
                _texts(report, measure, "paper "),
                beside=True,
            )
            yield from _agreement(part, unit)


def _texts(report: Report, measure: str, prefix: str = "") -> pd.DataFrame:
    """Return mean and deviation as texts, a row for each classifier."""
    mean, std = (report.pivot(measure, f"{prefix}{each}") for each in ("mean", "std"))
    texts = {
        name: {each: _cell_text(mean.loc[name, each], std.loc[name, each]) for each in mean}
        for name in mean.index
    }
    return pd.DataFrame(texts)


def _cell_text(mean: float, std: float) -> str:
    if np.isnan(mean):
        return ""
    return f"{mean:.2f}" if np.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def _agreement(part: pd.DataFrame, unit: str) -> Iterable[Section]:
    """Say which means are within the paper's standard deviation, and by how much the others differ."""
    known = part.dropna(subset=["mean", "paper mean", "paper std"])
    if len(known) == 0:
        return
    known = known.assign(
        deviations=(known["mean"] - known["paper mean"]) / known["paper std"].clip(lower=1e-12)
    )
    inside = known["deviations"].abs() <= 1
    counts = inside.groupby(known["classifier"], sort=False).agg(["sum", "count"])
    summary = ", ".join(f"{name} {row['sum']} of {row['count']}" for name, row in counts.iterrows())
    outside = known[~inside]
    table = outside[["set", "classifier", "mean", "paper mean", "paper std", "deviations"]].copy()
    for column in ("mean", "paper mean", "paper std"):
        table[column] = table[column].map("{:.2f}".format)
    table["deviations"] = table["deviations"].map("{:+.1f}".format)
    yield Section(
        f"Agreement: {unit}",
        (
            f"Sets on which the mean is within one of the paper's standard deviations: {summary}.",
            *(("Those that are not:",) if len(outside) else ()),
        ),
        table.reset_index(drop=True) if len(outside) else None,
    )


def _seconds_beside(report: Report) -> Iterable[Section]:
    printed = printed_of(report.experiment)
    if printed is None:
        return
    printed = printed[printed["measure"] == "seconds"].rename(columns={"mean": "paper"})
    both = report.timing.merge(printed[["set", "classifier", "paper"]], how="left")
    both["text"] = [
        f"{row.seconds:.3g}" + ("" if pd.isna(row.paper) else f" ({row.paper:g})")
        for row in both.itertuples()
    ]
    wide = both.pivot_table(
        index="classifier", columns="set", values="text", aggfunc="first", sort=False
    )
    wide.index.name = wide.columns.name = None
    yield Section("Seconds of a fit (the paper's in brackets)", (), wide.fillna(""))


def by_class(report: Report) -> Iterable[Section]:
    """Yield vectors and weights of each class (Lyu et al. 2020, Table 1)."""
    printed = printed_of(report.experiment)
    columns = {}
    for record in report.records:
        try:
            columns[record["classifier"]] = _class_counts(record["extra"])
        except (KeyError, TypeError, ValueError, IndexError):  # what was recorded is damaged
            continue
    table = pd.DataFrame(columns)
    if printed is not None:
        wide = printed.pivot_table(index="set", columns=["classifier", "measure"], values="mean")
        for name in list(columns):
            if name in wide:
                table[f"{name}, the paper's"] = [
                    f"{wide.loc[c, (name, 'vectors')]:g}({wide.loc[c, (name, 'weights')]:g})"
                    if c in wide.index
                    else ""
                    for c in table.index
                ]
    yield Section("Relevance vectors (and weights that are not zero) of each class", (), table)


def _class_counts(extra: dict[str, Any]) -> dict[str, str]:
    """Return vectors, and their weights that are not zero, by class."""
    y, support = np.array(extra["y"]), np.array(extra["support"], dtype=int)
    weights = np.array(extra["weights of support"])
    return {
        f"class {c + 1}": f"{np.sum(y[support] == c)}({weights[y[support] == c].sum()})"
        for c in range(y.max() + 1)
    }
