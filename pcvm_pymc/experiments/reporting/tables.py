"""Sections that put what was measured beside what the paper printed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from pcvm_pymc.experiments.catalogue import Experiment, printed_of, sentence_of
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import HIGHER_IS_BETTER, MEASURES

__all__ = ["NO_SENTENCE", "by_class", "measured"]

NO_SENTENCE = "no sentence yet"


def measured(report: Report) -> Iterable[Section]:
    """Yield each measure beside the paper's, and why the two disagree where they do."""
    for measure in report.experiment.measures:
        part = report.table[report.table["measure"] == measure]
        if len(part) == 0:  # seconds have a section of their own
            continue
        unit = MEASURES[measure]
        if part["paper mean"].isna().all():
            about = "Mean ± standard deviation over realisations."
            yield Section(f"Measured: {unit}", (about,), _beside(report, measure))
            continue
        yield Section(
            f"Measured and (printed): {unit}",
            (
                "Mean ± standard deviation over realisations, the paper's in brackets. "
                f"{_legend(measure)} Distances are in the paper's standard deviations, in the measured "
                "ones where it prints none; up to one is white.",
            ),
            _beside(report, measure),
            shade=_shade(report, measure),
        )
        yield _agreement(report.experiment, measure, part)


def _legend(measure: str) -> str:
    """Say what the two colours mean."""
    if measure in ("vectors", "weights"):
        return "Orange: more than the paper's; blue: fewer."
    return "Orange: worse than the paper's; blue: better."


def _beside(report: Report, measure: str) -> pd.DataFrame:
    """Return mean and deviation as texts, the paper's below; the fewer of sets and classifiers across."""
    mean, std, paper, spread = (
        report.pivot(measure, each) for each in ("mean", "std", "paper mean", "paper std")
    )
    texts = pd.DataFrame(index=mean.index, columns=mean.columns, dtype=object)
    for name in mean.index:
        for each in mean:
            text = _cell_text(measure, mean.loc[name, each], std.loc[name, each])
            printed = _cell_text(measure, paper.loc[name, each], spread.loc[name, each])
            texts.loc[name, each] = f"{text}\n({printed})" if printed else text
    return _lengthwise(texts)


def _shade(report: Report, measure: str) -> pd.DataFrame:
    """Return how far each mean is from the paper's, positive where it is worse (or more)."""
    sign = -1.0 if measure in HIGHER_IS_BETTER else 1.0
    return _lengthwise(sign * report.pivot(measure, "deviation"))


def _lengthwise(table: pd.DataFrame) -> pd.DataFrame:
    return table.T if table.shape[1] > table.shape[0] else table


def _cell_text(measure: str, mean: float, std: float) -> str:
    if np.isnan(mean):
        return ""
    digits = 3 if measure in ("log loss", "ECE") else 2
    return f"{mean:.{digits}f}" + ("" if np.isnan(std) else f" ± {std:.{digits}f}")


def _agreement(experiment: Experiment, measure: str, part: pd.DataFrame) -> Section:
    """Say which means are within a standard deviation of the paper's, and why the others are not."""
    title = f"What deviates: {MEASURES[measure]}"
    known = part.dropna(subset=["deviation"])
    untold = part["paper mean"].notna().sum() - len(known)
    without = (
        f"{untold} printed means have no standard deviation, printed or measured, to be compared by."
        if untold
        else ""
    )
    if len(known) == 0:
        return Section(title, (without,))
    inside = known["deviation"].abs() <= 1
    counts = inside.groupby(known["classifier"], sort=False).agg(["sum", "count"])
    summary = ", ".join(f"{name} {row['sum']} of {row['count']}" for name, row in counts.iterrows())
    outside = known[~inside]
    why = [_why(experiment, measure, row) for _, row in outside.iterrows()]
    table = pd.DataFrame(
        {
            "set": outside["set"],
            "classifier": outside["classifier"],
            "measured": [
                _cell_text(measure, *each) for each in outside[["mean", "std"]].to_numpy()
            ],
            "printed": [
                _cell_text(measure, *each)
                for each in outside[["paper mean", "paper std"]].to_numpy()
            ],
            "deviation": outside["deviation"].map("{:+.1f}".format),
            "why": [each or NO_SENTENCE for each in why],
        }
    )
    lacking = sum(not each for each in why)
    said = (
        f"Sets on which the mean is within one standard deviation of the paper's: {summary}.",
        without,
        f"{lacking} of the {len(why)} deviations below have no sentence yet." if lacking else "",
    )
    worse = outside["deviation"] * (-1.0 if measure in HIGHER_IS_BETTER else 1.0)
    shade = pd.DataFrame(np.nan, index=table.index, columns=table.columns)
    shade["deviation"] = worse
    return Section(
        title,
        tuple(each for each in said if each),
        table.set_index("set") if len(table) else None,
        shade=shade.set_index(table["set"]).drop(columns="set") if len(table) else None,
    )


def _why(experiment: Experiment, measure: str, row: pd.Series) -> str:
    """Return why a mean deviates: by chance where few realisations were run, else as the catalogue says."""
    if abs(row["deviation"]) <= 2.0 / np.sqrt(row["n"]):
        return f"Chance: within two standard errors of a mean over {row['n']}."
    return sentence_of(experiment, measure, row["set"], row["classifier"], row["deviation"])


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
