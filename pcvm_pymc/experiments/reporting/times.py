"""Sections on time: seconds of a fit beside the paper's, and the ranks of both."""

from collections.abc import Iterable

import pandas as pd

from pcvm_pymc.experiments.catalogue import EXPERIMENTS, Experiment, printed_of
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import average_ranks

__all__ = ["seconds_of_fits", "timed"]


def seconds_of_fits(report: Report) -> Iterable[Section]:
    """Yield the seconds of fits, and their ranks where the paper prints seconds of this run's fits."""
    measured = _wide(report.timing, "seconds")
    printed = _printed_seconds(report.experiment)
    about = (
        "One thread; what a classifier chooses within its fit is included, what the protocol chooses for it "
        "is not: that is in timing.csv where it is part of the cell."
    )
    if printed is None:
        yield Section("CPU seconds of a fit", (about,), measured.map(_seconds))
        return
    printed = printed.reindex(index=measured.index, columns=measured.columns)
    texts = measured.map(_seconds) + printed.map(lambda x: "" if pd.isna(x) else f"\n({x:g})")
    yield Section("CPU seconds of a fit and (printed)", (about,), texts)
    yield from _ranks(measured, printed)


def timed(report: Report) -> Iterable[Section]:
    """Yield mean ranks of the seconds of a fit (Chen et al. 2009, Table VIII)."""
    wide = _wide(report.timing, "seconds").T
    names = [name for name in report.experiment.classifiers if name in wide]
    wide = wide[names].dropna()
    if wide.empty or len(names) < 2:
        return
    ranks = pd.DataFrame({"mean rank": average_ranks(wide).map("{:.1f}".format)})
    printed = printed_of(report.experiment)
    if printed is not None:
        part = printed[printed["measure"] == "seconds"].set_index("classifier")["mean"]
        ranks = ranks.join(part.map("{:.1f}".format).rename("the paper's")).fillna("")
    yield Section(
        "Mean ranks of seconds",
        (f"Over the {len(wide)} sets that all {len(names)} have; 1 is the fastest.",),
        ranks,
    )


def _wide(timing: pd.DataFrame, value: str) -> pd.DataFrame:
    wide = timing.pivot_table(index="classifier", columns="set", values=value, sort=False)
    wide.index.name = wide.columns.name = None
    return wide


def _seconds(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3g}"


def _printed_seconds(experiment: Experiment) -> pd.DataFrame | None:
    """Return the seconds that some table of the same run prints."""
    for each in (experiment, *EXPERIMENTS.values()):
        if each.run != experiment.run:
            continue
        printed = printed_of(each)
        if printed is None:
            continue
        seconds = printed[(printed["measure"] == "seconds") & printed["set"].isin(experiment.sets)]
        if len(seconds):
            return _wide(seconds, "mean")
    return None


def _ranks(measured: pd.DataFrame, printed: pd.DataFrame) -> Iterable[Section]:
    """Compare the orders of the classifiers that both have, on the sets where all of them are timed."""
    both = printed.notna().any(axis=1) & measured.notna().any(axis=1)
    mine, paper = measured[both].T.dropna(), printed[both].T.dropna()
    sets = [each for each in mine.index if each in paper.index]
    if mine.shape[1] < 2 or not sets:
        return
    table = pd.DataFrame(
        {
            "measured": average_ranks(mine.loc[sets]),
            "printed": average_ranks(paper.loc[sets]),
            "seconds, median": mine.loc[sets].median(),
            "printed, median": paper.loc[sets].median(),
        }
    ).sort_values("measured")
    ranks = table[["measured", "printed"]].map("{:.2f}".format)
    yield Section(
        "Ranks of time",
        (
            f"Mean ranks of the seconds of a fit, 1 the fastest, over the {len(sets)} sets that all of them "
            "have; machines differ, orders can be compared.",
        ),
        ranks.join(table.iloc[:, 2:].map(_seconds)),
    )
