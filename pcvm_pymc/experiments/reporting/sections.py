"""The sections of a report in their order: measured and printed, times, points, what is missing."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, OWN, Experiment, printed_of, sentence_of
from pcvm_pymc.experiments.reporting.comparisons import few_vectors, growth, ranked, tested
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.statistics import HIGHER_IS_BETTER, MEASURES, average_ranks


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
    """Yield the experiment's picture."""
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
        recorded = [record for record in report.records if record.get("extra")]
        extras = {(record["set"], record["classifier"]): record["extra"] for record in recorded}
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
            mean, std = mean.set_axis(numbers), std.set_axis(numbers)
            figure = pictures.draw_lines(mean, std, unit, xlabel)
            yield Section("Picture", (), None, figure, "picture")


def _picture(draw: Callable[..., Figure], extras: dict[tuple[str, str], Any]) -> Section:
    """Return the section of a picture, or why there is none: what was recorded may be damaged."""
    try:
        return Section("Picture", (), None, draw(extras), "picture")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return Section("Picture", (f"It cannot be drawn: {type(error).__name__}: {error}",))


def _said(report: Report) -> Iterable[Section]:
    """Yield what fits warned of, and in how many of the jobs."""
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
    parts = (f"{row.cells} of {cells.get(row.classifier, 0)}" for row in counts.itertuples())
    counts["cells"] = list(parts)
    yield Section("What fits warned of", (), counts.set_index("classifier"))


def _in_a_line(text: str) -> str:
    """Return a warning without what follows its first line, such as a traceback of the machine's files."""
    category, _, said = text.partition(": ")
    return f"{category}: {next(iter(said.strip().splitlines()), '')}"


def _missing(report: Report) -> Section:
    lines = [f"{name}: {reason}" for name, reason in report.missing.items()]
    lines += [f"failed: {row.cell}: {row.reason}" for row in report.failures.itertuples()]
    failed = report.failures["cell"].str.contains(", score ").sum()
    rest = report.manifest["expected"] - len(report.cells) - int(failed)
    if rest > 0:
        lines.append(f"{rest} jobs have not been run yet; `pcvm reproduce` goes on.")
    return Section("What is missing", tuple(lines) or ("Nothing.",))


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


# --- measured and printed ----------------------------------------------------------------------

NO_SENTENCE = "no sentence yet"


def measured(report: Report) -> Iterable[Section]:
    """Yield each measure and the paper's, and why the two disagree where they do."""
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


def pointed(report: Report) -> Iterable[Section]:
    """Yield the measures, and the points of Kropotov et al. (2006), Table I's last line.

    On each set the smallest mean error has one point, the next two, and so on; points are summed. What looks
    at the test rows is left out, as in the paper.
    """
    yield from measured(report)
    table = report.pivot("error")
    rivals = [name for name in table if not str(name).endswith("_best")]
    table = table[rivals].dropna()
    if table.empty or len(rivals) < 2:
        return
    points = pd.DataFrame({"points": table.rank(axis=1).sum()})
    printed = printed_of(report.experiment)
    text = [f"On each of the {len(table)} sets the least error has one point, the next two, ..."]
    if printed is not None:
        errors = printed[printed["measure"] == "error"]
        wide = errors.pivot_table(index="set", columns="classifier", values="mean")
        wide = wide.reindex(columns=rivals)
        common = [name for name in table.index if name in wide.index]
        points["the paper's, same sets"] = wide.loc[common].rank(axis=1).sum()
        points[f"the paper's, all {len(wide)}"] = wide.rank(axis=1).sum()
        text.append("The paper's are counted anew from its printed errors.")
    yield Section(f"Points in total: {MEASURES['error']}", tuple(text), points.map("{:g}".format))


# --- times -------------------------------------------------------------------------------------


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
