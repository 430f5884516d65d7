"""Sections that compare classifiers over several sets: ranks, tests, wins and losses."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue import Experiment, printed_of
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

__all__ = ["ranked", "tested"]

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
    shown = shown.join(_printed_ranks(report.experiment, measure, table)).fillna("")
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
