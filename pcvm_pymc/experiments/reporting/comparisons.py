"""Sections that compare classifiers: ranks, tests, wins and losses, growth of time, cost of few vectors."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue import Experiment, printed_of
from pcvm_pymc.experiments.datasets.registry import SOURCES
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import (
    HIGHER_IS_BETTER,
    MEASURES,
    RANKS_ALPHA,
    BonferroniDunn,
    average_ranks,
    bonferroni_dunn,
    five_by_two_f_test,
    friedman_test,
    win_loss_tie,
)
from pcvm_pymc.figures import MARKERS, class_colours, plain_log_ticks, styled

_SINGLE_SET_ALPHA = 0.05


def ranked(report: Report) -> Iterable[Section]:
    """Yield mean ranks, and the sets that the control wins and loses."""
    control = report.experiment.control
    for measure in report.experiment.measures:
        if measure not in report.table["measure"].to_numpy() or measure in ("vectors", "weights"):
            continue
        table = _complete(report, measure)
        if control not in table or table.shape[0] < 2 or table.shape[1] < 3:
            continue
        yield _ranks(report, measure, table)
        wins = win_loss_tie(table, control, higher_is_better=measure in HIGHER_IS_BETTER)
        yield Section(f"Sets won, lost and tied against {control}: {MEASURES[measure]}", (), wins)


def _complete(report: Report, measure: str) -> pd.DataFrame:
    """Return the sets on which every classifier of the experiment that was run has a mean."""
    wide = report.pivot(measure)
    wanted = [name for name in report.experiment.classifiers if name in wide]
    wanted += [name for name in wide if name not in wanted and report.experiment.view != "ranks"]
    return wide[wanted].dropna()


def _ranks(report: Report, measure: str, table: pd.DataFrame) -> Section:
    """Return mean ranks over the sets that all classifiers have, and their tests."""
    control = report.experiment.control
    higher = measure in HIGHER_IS_BETTER
    ranks = average_ranks(table, higher_is_better=higher)
    result = bonferroni_dunn(ranks, len(table), control, alpha=RANKS_ALPHA)
    test = friedman_test(table)
    shown = pd.DataFrame({"mean rank": ranks.map("{:.2f}".format)})
    shown = shown.join(result.table.round(3).astype(object))
    shown = shown.join(_printed_ranks(report.experiment, measure, table).astype(object)).fillna("")
    unit = MEASURES[measure]
    diagram, said = _diagram(table, unit, higher)
    return Section(
        f"Ranks: {unit}",
        (
            f"Over the {len(table)} sets that all {table.shape[1]} have. Friedman: chi-squared "
            f"{test.statistic:.2f}, p = {test.p_value:.3g}; Iman & Davenport: F = "
            f"{test.f_statistic:.2f}, p = {test.f_p_value:.3g}. Bonferroni-Dunn against {control} at "
            f"{RANKS_ALPHA:.2f}: critical difference {result.critical_difference:.2f}, critical z "
            f"{result.critical_value:.3f}.",
            _verdict(result),
            *said,
        ),
        shown,
        diagram,
        f"ranks_{measure.replace(' ', '_')}",
    )


def _diagram(table: pd.DataFrame, unit: str, higher: bool) -> tuple[Figure | None, tuple[str, ...]]:
    """Return the critical-difference diagram, or what it needs."""
    try:
        return pictures.draw_ranks(table, unit, higher_is_better=higher), ()
    except ImportError:
        return None, (
            'The critical-difference diagram needs scikit-posthocs: pip install "pcvm-pymc[reports]".',
        )


def _printed_ranks(
    experiment: Experiment, measure: str, table: pd.DataFrame
) -> pd.Series | pd.DataFrame:
    """Return the ranks that the paper prints, or those of its printed means on the same sets."""
    printed = printed_of(experiment)
    if printed is None:
        return pd.DataFrame()
    part = printed[printed["measure"] == measure]
    if experiment.view == "ranks":
        return part.set_index("classifier")["mean"].rename("the paper's")
    wide = part.pivot_table(index="set", columns="classifier", values="mean")
    wide = wide.reindex(index=table.index, columns=[each for each in table if each in wide])
    if wide.isna().any(axis=None) or wide.shape[1] < table.shape[1] - 1:  # of others than these
        return pd.DataFrame()
    ranks = average_ranks(wide, higher_is_better=measure in HIGHER_IS_BETTER)
    return ranks.map("{:.2f}".format).rename("of the printed means")


def _verdict(result: BonferroniDunn) -> str:
    worse = result.table[result.table["significant"] & (result.table["difference"] > 0)].index
    better = result.table[result.table["significant"] & (result.table["difference"] < 0)].index
    parts = [
        f"significantly better than {', '.join(worse)}" if len(worse) else "",
        f"significantly worse than {', '.join(better)}" if len(better) else "",
    ]
    said = "; ".join(part for part in parts if part)
    if not said:
        return f"No difference from {result.control} is significant."
    return f"{result.control} is {said}."


def tested(report: Report) -> Iterable[Section]:
    """Yield 5x2cv F tests on each set, and their summary."""
    control = report.experiment.control
    printed = printed_of(report.experiment)
    for measure in report.experiment.measures:
        p_values = _f_tests(report.cells, measure, control)
        mean = report.pivot(measure)
        if p_values.empty or control not in mean:
            continue
        higher = measure in HIGHER_IS_BETTER
        significant = p_values.T < _SINGLE_SET_ALPHA
        unit = MEASURES[measure]
        yield Section(
            f"5x2cv F tests against {control}: {unit}",
            (f"p-values; below {_SINGLE_SET_ALPHA} a difference counts as significant.",),
            p_values.map("{:.3f}".format),
        )
        rows = {}
        for kind, counted in (("mean", None), ("significant", significant)):
            counts = win_loss_tie(mean, control, higher_is_better=higher, significant=counted)
            rows[kind] = {
                name: f"{column['win']}-{column['loss']}-{column['tie']}"
                for name, column in counts.items()
            }
            if printed is not None:
                rows[f"{kind}, the paper's (13 sets)"] = _printed_counts(printed, kind, measure)
        table = pd.DataFrame(rows).T[list(rows["mean"])]
        yield Section(f"Win-loss-tie against {control}: {unit}", (), table.fillna(""))


def _printed_counts(printed: pd.DataFrame, kind: str, measure: str) -> dict[str, str]:
    part = printed[printed["set"] == kind].set_index(["classifier", "measure"])["mean"]
    names = dict.fromkeys(name for name, _ in part.index)
    return {
        name: "-".join(f"{part[name, f'{measure} {each}']:g}" for each in ("win", "loss", "tie"))
        for name in names
    }


def _f_tests(cells: pd.DataFrame, measure: str, control: str) -> pd.DataFrame:
    """Return p-values, a row for each classifier and a column for each set with all ten halves."""
    found: dict[str, dict[str, float]] = {}
    for set_name, group in cells.groupby("set", sort=False):
        wide = group.pivot_table(
            index="realisation", columns="classifier", values=measure, sort=False
        )
        wide = wide.reindex(range(10))
        if control not in wide or wide[control].isna().any():
            continue
        found[str(set_name)] = {
            str(name): five_by_two_f_test((wide[name] - wide[control]).to_numpy().reshape(5, 2))[1]
            for name in wide.columns.drop(control)
            if wide[name].notna().all()
        }
    return pd.DataFrame(found)


# --- growth of time, and what few vectors cost -------------------------------------------------

# what seconds are drawn against, and what is fixed where that is drawn
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
    other = _AXES[axis]
    if axis == "vectors" and points["classes"].nunique() < 2 and points["vectors"].isna().any():
        return points.iloc[:0].assign(x=np.nan)  # of a comparison with classifiers that have none
    if other and len(points):
        points = points[points[other] == points[other].mode().iloc[0]]
    part = points.assign(x=points[axis].astype(float))
    return part[(part["x"] > 0) & (part["seconds"] > 0)]


def _heading(axis: str, part: pd.DataFrame) -> str:
    other = _AXES[axis]
    return f"{axis} ({int(part[other].iloc[0])} {other})" if other else axis


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
    figure, axes = plt.subplots(1, len(measures), figsize=(4.6 * len(measures), 3.9), squeeze=False)
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
