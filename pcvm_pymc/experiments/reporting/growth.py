"""Sections and pictures of how time grows, and of what few vectors cost."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pcvm_pymc.estimators.figures import MARKERS, class_colours, plain_log_ticks, styled
from pcvm_pymc.experiments.datasets import SOURCES
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import MEASURES

__all__ = ["few_vectors", "growth", "slopes"]

# what seconds are drawn against, and what is held where that is drawn
_AXES = {"rows": "classes", "classes": "rows", "vectors": ""}


def growth(report: Report) -> Iterable[Section]:
    """Yield seconds against rows, classes and vectors on logarithmic axes, with their slopes."""
    points = _points(report)
    parts = {axis: _part(points, axis) for axis in _AXES}
    parts = {axis: part for axis, part in parts.items() if part["x"].nunique() > 1}
    if not parts:
        return
    columns = {_heading(axis, part): slopes(part) for axis, part in parts.items()}
    yield Section(
        "Slopes of the logarithm of seconds",
        (
            "By least squares on the logarithms, with the standard error: 2 means that twice as many take "
            "four times as long. Seconds are medians over realisations, choices within the fit included. "
            "Slopes over vectors are over all sets.",
        ),
        pd.DataFrame(columns).fillna(""),
    )
    yield Section("Picture", (), None, draw_growth(parts), "picture")


def _points(report: Report) -> pd.DataFrame:
    """Return a row for each set and classifier: rows, classes, vectors and seconds."""
    found = pd.DataFrame(
        [
            {
                "set": each["set"],
                "classifier": each["classifier"],
                "rows": each.get("n_train", np.nan),
                "classes": SOURCES[each["set"]].classes,
                "vectors": each["measures"].get("vectors", np.nan),
                "seconds": each["measures"].get("seconds", np.nan),
            }
            for each in report.records
            if each["set"] in SOURCES
        ],
        columns=["set", "classifier", "rows", "classes", "vectors", "seconds"],
    )
    return found.groupby(["set", "classifier"], sort=False, as_index=False).median()


def _part(points: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return what is drawn against an axis: where the other is at its most frequent value."""
    held = _AXES[axis]
    if axis == "vectors" and points["classes"].nunique() < 2 and points["vectors"].isna().any():
        return points.iloc[:0].assign(x=np.nan)  # of a comparison with classifiers that have none
    if held and len(points):
        points = points[points[held] == points[held].mode().iloc[0]]
    part = points.assign(x=points[axis].astype(float))
    return part[(part["x"] > 0) & (part["seconds"] > 0)]


def _heading(axis: str, part: pd.DataFrame) -> str:
    held = _AXES[axis]
    return f"{axis} ({int(part[held].iloc[0])} {held})" if held else axis


def slopes(part: pd.DataFrame) -> pd.Series:
    """Return the slope of log seconds over log x of each classifier, with its standard error, as texts."""
    texts = {}
    for name, group in part.groupby("classifier", sort=False):
        if group["x"].nunique() < 2:
            continue
        found = stats.linregress(np.log(group["x"]), np.log(group["seconds"]))
        error = f" ± {found.stderr:.2f}" if len(group) > 2 else ""
        texts[str(name)] = f"{found.slope:.2f}{error}"
    return pd.Series(texts, dtype=object)


@styled
def draw_growth(parts: dict[str, pd.DataFrame]) -> Figure:
    """Draw seconds against each axis, a line for each classifier.

    Parameters
    ----------
    parts : dict of str to DataFrame
        Columns ``classifier``, ``x`` and ``seconds``.
    """
    figure, axes = plt.subplots(
        1,
        len(parts),
        figsize=(max(6.0, 4.0 * len(parts)), 4.0),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    names = list(dict.fromkeys(name for part in parts.values() for name in part["classifier"]))
    colours = dict(zip(names, class_colours(len(names)), strict=True))
    for axis, (what, part) in zip(axes.flat, parts.items(), strict=True):
        for i, name in enumerate(names):
            own = part[part["classifier"] == name].sort_values("x")
            style = "" if what == "vectors" else "-"
            axis.plot(
                own["x"],
                own["seconds"],
                f"{MARKERS[i % len(MARKERS)]}{style}",
                color=colours[name],
                ms=5,
                label=name,
            )
        axis.set(xscale="log", yscale="log", xlabel=_heading(what, part))
        plain_log_ticks(axis.xaxis)
        plain_log_ticks(axis.yaxis)
    axes[0, 0].set_ylabel("CPU seconds of a fit")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def few_vectors(report: Report) -> Iterable[Section]:
    """Yield what each classifier loses to the control, against the vectors that it keeps."""
    control = report.experiment.control
    vectors = report.pivot("vectors") if len(report.table) else pd.DataFrame()
    measures = [each for each in ("log loss", "error") if each in set(report.table["measure"])]
    wide = {each: report.pivot(each).dropna() for each in measures}
    wide = {each: table for each, table in wide.items() if control in table and len(table)}
    if not wide or vectors.empty:
        return
    lost = pd.DataFrame({"vectors": vectors.mean()})
    for measure, table in wide.items():
        lost[MEASURES[measure]] = table.sub(table[control], axis=0).mean()
    lost = lost.dropna().sort_values("vectors")
    yield Section(
        f"What fewer vectors cost, beside {control}",
        (f"Means over the sets, less those of {control}; positive is worse.",),
        lost.round(4),
    )
    yield Section("Picture", (), None, draw_few_vectors(lost), "picture")


@styled
def draw_few_vectors(lost: pd.DataFrame) -> Figure:
    """Draw what is lost against the number of vectors, a panel for each measure.

    Parameters
    ----------
    lost : DataFrame
        A row for each classifier: ``vectors``, and what it loses by each measure.
    """
    measures = [each for each in lost if each != "vectors"]
    figure, axes = plt.subplots(
        1, len(measures), figsize=(4.6 * len(measures), 3.9), squeeze=False, layout="constrained"
    )
    colours = class_colours(len(lost))
    projected = lost[[str(name).startswith("default_") for name in lost.index]]
    for axis, measure in zip(axes.flat, measures, strict=True):
        axis.axhline(0.0, color="grey", lw=0.8)
        axis.plot(projected["vectors"], projected[measure], color="grey", lw=1)
        for i, (name, row) in enumerate(lost.iterrows()):
            axis.plot(
                row["vectors"],
                row[measure],
                MARKERS[i % len(MARKERS)],
                color=colours[i],
                ms=7,
                label=str(name),
            )
        axis.set(xscale="log", xlabel="vectors, mean over the sets", ylabel=f"{measure}, lost")
        plain_log_ticks(axis.xaxis)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure
