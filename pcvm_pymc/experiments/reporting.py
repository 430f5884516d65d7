"""The report of a run: the paper's table beside the measured one, tests, pictures, and what was missing."""

import base64
import html
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue import (
    EXPERIMENTS,
    Experiment,
    experiment_of,
    printed_table,
)
from pcvm_pymc.experiments.running import RunError, Store, write_atomically
from pcvm_pymc.experiments.statistics import (
    HIGHER_IS_BETTER,
    MEASURES,
    BonferroniDunn,
    average_ranks,
    bonferroni_dunn,
    five_by_two_f_test,
    friedman_test,
    win_loss_tie,
)

__all__ = ["Report", "Section", "report_of"]

_PERCENT = ("error", "AUC", "1-RMSE")
_ALPHA = 0.10
_SINGLE_SET_ALPHA = 0.05


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes
    ----------
    title : str
    text : tuple of str
        Paragraphs.
    table : DataFrame, optional
    figure : Figure, optional
    name : str
        Of the figure's file.
    """

    title: str
    text: tuple[str, ...] = ()
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    name: str = ""


@dataclass(frozen=True)
class Report:
    """What a run has found so far.

    Attributes
    ----------
    experiment : Experiment
    manifest : dict
    cells : DataFrame
        A row for each finished cell that counts: set, classifier, realisation and measures, in the paper's
        units (per cent for error, AUC, 1-RMSE).
    table : DataFrame
        A row for each set, classifier and measure: n, mean, std, and the paper's mean and std.
    timing : DataFrame
        Mean CPU seconds of fits and of the choice of parameters.
    failures : DataFrame
    missing : dict of str to str
        Sets that are not there, and cells that have not been run, with the reason.
    records : tuple of dict
        The finished cells that count, as they were written.
    sections : tuple of Section
    """

    experiment: Experiment
    manifest: dict[str, Any]
    cells: pd.DataFrame
    table: pd.DataFrame
    timing: pd.DataFrame
    failures: pd.DataFrame
    missing: dict[str, str]
    records: tuple[dict[str, Any], ...] = field(repr=False)
    sections: tuple[Section, ...] = field(default=(), repr=False)

    def pivot(self, measure: str, column: str = "mean") -> pd.DataFrame:
        """Return a measure, a row for each set and a column for each classifier, in the order of the run."""
        part = self.table[self.table["measure"] == measure]
        wide = part.pivot(index="set", columns="classifier", values=column)
        sets = [name for name in self.manifest["sets"] if name in wide.index]
        classifiers = [name for name in self.manifest["classifiers"] if name in wide.columns]
        wide = wide.loc[sets, classifiers]
        wide.index.name = wide.columns.name = None
        return wide

    def write(self, folder: str | Path) -> list[Path]:
        """Write ``report.md``, ``report.html``, csv files and pictures; return their paths.

        Raises
        ------
        RunError
            If the folder cannot be written.
        """
        folder = Path(folder)
        content: dict[str, bytes] = {
            "table.csv": self.table.to_csv(index=False).encode(),
            "cells.csv": self.cells.to_csv(index=False).encode(),
            "timing.csv": self.timing.to_csv(index=False).encode(),
            "failures.csv": self.failures.to_csv(index=False).encode(),
        }
        images = {each.name: _png(each.figure) for each in self.sections if each.figure is not None}
        content |= {f"{name}.png": image for name, image in images.items()}
        content["report.md"] = self.to_markdown().encode()
        content["report.html"] = self.to_html(images).encode()
        plt.close("all")
        try:
            for name, data in content.items():
                write_atomically(folder / name, data)
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}") from None
        return [folder / name for name in content]

    def to_markdown(self) -> str:
        """Return the report in Markdown; pictures are links."""
        lines = [f"# {self.experiment.name}", "", self.experiment.title, ""]
        for section in self.sections:
            lines += [f"## {section.title}", ""]
            for paragraph in section.text:
                lines += [paragraph, ""]
            if section.table is not None:
                lines += [*_markdown_table(section.table), ""]
            if section.figure is not None:
                lines += [f"![{section.title}]({section.name}.png)", ""]
        return "\n".join(lines)

    def to_html(self, images: dict[str, bytes] | None = None) -> str:
        """Return the report as one page that needs no other file."""
        images = images if images is not None else {}
        parts = [_HEAD.format(title=html.escape(self.experiment.name))]
        parts += [f"<h1>{html.escape(self.experiment.name)}</h1>"]
        parts += [f"<p>{html.escape(self.experiment.title)}</p>"]
        for section in self.sections:
            parts.append(f"<h2>{html.escape(section.title)}</h2>")
            parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
            if section.table is not None:
                parts.append(f"<div class='wide'>{section.table.to_html(na_rep='')}</div>")
            if section.figure is not None:
                image = images.get(section.name) or _png(section.figure)
                code = base64.b64encode(image).decode()
                title = html.escape(section.title)
                parts.append(f"<img alt='{title}' src='data:image/png;base64,{code}'>")
        return "\n".join([*parts, "</body></html>"])

    def _repr_html_(self) -> str:
        return self.to_html()


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }}
th {{ font-weight: 600 }} tbody th {{ text-align: left }} img {{ max-width: 100% }}
.wide {{ overflow-x: auto }}
</style></head><body>"""


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _markdown_table(table: pd.DataFrame) -> list[str]:
    head = [table.index.name or "", *map(str, table.columns)]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for index, row in table.iterrows():
        values = ["" if pd.api.types.is_scalar(x) and pd.isna(x) else str(x) for x in row]
        lines.append("| " + " | ".join([str(index), *values]).replace("\n", " ") + " |")
    return lines


# --- reading ---------------------------------------------------------------------------------


def report_of(folder: str | Path, name: str | None = None) -> Report:
    """Return the report of a run, finished or not.

    Parameters
    ----------
    folder : path
        That `reproduce` wrote into.
    name : str, optional
        Another experiment of the same run, as ``"chen2009-table3"`` in a folder of ``"chen2009-table1"``.

    Raises
    ------
    RunError
        If the folder holds no run, or one that the experiment does not share.
    """
    store = Store(Path(folder))
    manifest = store.manifest()
    try:
        experiment = experiment_of(manifest["experiment"] if name is None else name)
    except ValueError as error:
        raise RunError(str(error)) from None
    if experiment.run != manifest["run"]:
        shared = [each.name for each in EXPERIMENTS.values() if each.run == manifest["run"]]
        raise RunError(
            f"{folder} holds cells of {manifest['run']}; {experiment.name} needs those of "
            f"{experiment.run}. Of this folder: {', '.join(shared)}"
        )
    records, failures, missing = _gathered(store, experiment, manifest)
    cells = _cells(records)
    report = Report(
        experiment=experiment,
        manifest=manifest,
        cells=cells,
        table=_table(cells, experiment),
        timing=_timing(records),
        failures=failures,
        missing=missing,
        records=tuple(records),
    )
    return replace(report, sections=tuple(_sections(report)))


def _gathered(
    store: Store, experiment: Experiment, manifest: dict[str, Any]
) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, str]]:
    """Return the records that count, failures, and what is missing."""
    repeats, protocol = manifest["repeats"], experiment.protocol
    counted = {"tune": protocol.tuned(repeats), "score": protocol.scored(repeats)}
    records, failed = [], []
    missing = {f"set {name}": reason for name, reason in manifest["missing"].items()}
    for set_name in manifest["sets"]:
        if set_name in manifest["missing"]:
            continue
        for classifier in manifest["classifiers"]:
            for cell in store.cells(set_name, classifier):
                if cell.realisation not in counted[cell.stage]:
                    continue
                record = store.read(cell)
                if record is None:
                    missing[str(cell)] = "its file is damaged; `pcvm reproduce` runs it again"
                elif record["status"] == "failed":
                    last = record["traceback"].strip().splitlines()
                    failed.append(
                        {
                            "cell": str(cell),
                            "reason": last[-1] if last else "",
                            "traceback": record["traceback"],
                        }
                    )
                elif cell.stage == "score":
                    records.append(record)
    columns = ["cell", "reason", "traceback"]
    return records, pd.DataFrame(failed, columns=columns), missing


def _cells(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the measures of each cell in the paper's units; seconds are not among them."""
    rows = []
    for record in records:
        measures = {key: record["measures"].get(key, np.nan) for key in MEASURES}
        measures |= {key: 100.0 * measures[key] for key in _PERCENT}
        del measures["seconds"]
        rows.append({key: record[key] for key in ("set", "classifier", "realisation")} | measures)
    columns = ["set", "classifier", "realisation", *(key for key in MEASURES if key != "seconds")]
    return pd.DataFrame(rows, columns=columns)


def _table(cells: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Return means and standard deviations beside the paper's."""
    rows = []
    for (set_name, classifier), group in cells.groupby(["set", "classifier"], sort=False):
        for measure in MEASURES:
            if measure == "seconds" or group[measure].isna().all():
                continue
            values = group[measure].dropna()
            rows.append(
                {
                    "set": set_name,
                    "classifier": classifier,
                    "measure": measure,
                    "n": len(values),
                    "mean": values.mean(),
                    "std": values.std(ddof=1),
                }
            )
    table = pd.DataFrame(rows, columns=["set", "classifier", "measure", "n", "mean", "std"])
    printed = _printed(experiment)
    if printed is None:
        return table.assign(**{"paper mean": np.nan, "paper std": np.nan})
    printed = printed.rename(columns={"mean": "paper mean", "std": "paper std"})
    return table.merge(printed, how="left", on=["set", "classifier", "measure"])


def _printed(experiment: Experiment) -> pd.DataFrame | None:
    return printed_table(experiment.printed) if experiment.printed else None


def _timing(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "set": record["set"],
            "classifier": record["classifier"],
            "seconds": record["measures"].get("seconds", np.nan),
            "tuning seconds": record.get("tuning seconds", np.nan),
        }
        for record in records
    ]
    frame = pd.DataFrame(rows, columns=["set", "classifier", "seconds", "tuning seconds"])
    return frame.groupby(["set", "classifier"], sort=False, as_index=False).mean()


# --- sections --------------------------------------------------------------------------------


def _sections(report: Report) -> Iterable[Section]:
    yield _about(report)
    yield from {
        "table": _measured,
        "ranks": _ranked,
        "tests": _tested,
        "classes": _by_class,
    }[report.experiment.view](report)
    if report.experiment.view == "table" and report.experiment.control:
        yield from _ranked(report)
    yield from _drawn(report)
    yield _speed(report)
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
            f"{experiment.repeats} in the paper"
            + (f"; finished: {_counted(counts)}." if len(counts) else "; none finished yet."),
            *(f"Note: {remark}" for remark in experiment.remarks),
        ),
    )


def _counted(counts: pd.Series) -> str:
    if counts.nunique() == 1:
        return f"{counts.iloc[0]} on each of {len(counts)} set(s)"
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _cell_text(mean: float, std: float) -> str:
    if np.isnan(mean):
        return ""
    return f"{mean:.2f}" if np.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def _texts(report: Report, measure: str, prefix: str = "") -> pd.DataFrame:
    """Return mean and deviation as texts, a row for each classifier."""
    mean, std = (report.pivot(measure, f"{prefix}{each}") for each in ("mean", "std"))
    texts = {
        name: {each: _cell_text(mean.loc[name, each], std.loc[name, each]) for each in mean}
        for name in mean.index
    }
    return pd.DataFrame(texts)


def _measured(report: Report) -> Iterable[Section]:
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
                (),
                _texts(report, measure, "paper "),
            )
            yield from _agreement(part, unit)


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
    printed = _printed(report.experiment)
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


def _complete(report: Report, measure: str) -> pd.DataFrame:
    """Return the sets on which every classifier of the experiment that was run has a mean."""
    wide = report.pivot(measure)
    wanted = [name for name in report.experiment.classifiers if name in wide]
    wanted += [name for name in wide if name not in wanted and report.experiment.view != "ranks"]
    return wide[wanted].dropna()


def _ranked(report: Report) -> Iterable[Section]:
    control = report.experiment.control
    for measure in report.experiment.measures:
        if measure not in report.table["measure"].to_numpy() or measure in ("vectors", "weights"):
            continue
        table = _complete(report, measure)
        if control not in table or table.shape[0] < 2 or table.shape[1] < 3:
            continue
        higher = measure in HIGHER_IS_BETTER
        ranks = average_ranks(table, higher_is_better=higher)
        result = bonferroni_dunn(ranks, len(table), control, alpha=_ALPHA)
        test = friedman_test(table)
        shown = pd.DataFrame({"mean rank": ranks.map("{:.2f}".format)})
        shown = shown.join(result.table.round(3).astype(object)).fillna("")
        shown = shown.join(_printed_ranks(report.experiment, measure))
        unit = MEASURES[measure]
        yield Section(
            f"Ranks: {unit}",
            (
                f"Over the {len(table)} sets that all {table.shape[1]} have. Friedman: chi-squared "
                f"{test.statistic:.2f}, p = {test.p_value:.3g}; Iman & Davenport: F = "
                f"{test.f_statistic:.2f}, p = {test.f_p_value:.3g}. Bonferroni-Dunn against {control} at "
                f"{_ALPHA:.2f}: critical difference {result.critical_difference:.2f}, critical z "
                f"{result.critical_value:.3f}.",
                _verdict(result),
            ),
            shown,
            pictures.draw_ranks(result, unit) if report.experiment.figure == "ranks" else None,
            f"ranks_{measure.replace(' ', '_')}",
        )
        wins = win_loss_tie(table, control, higher_is_better=higher)
        yield Section(f"Sets won, lost and tied against {control}: {unit}", (), wins)


def _printed_ranks(experiment: Experiment, measure: str) -> pd.Series | pd.DataFrame:
    printed = _printed(experiment)
    if experiment.view != "ranks" or printed is None:
        return pd.DataFrame()
    part = printed[printed["measure"] == measure].set_index("classifier")["mean"]
    return part.rename("the paper's")


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


def _tested(report: Report) -> Iterable[Section]:
    """5x2cv F tests on each set, and their summary."""
    control = report.experiment.control
    printed = _printed(report.experiment)
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


def _by_class(report: Report) -> Iterable[Section]:
    """Vectors and weights of each class (Lyu et al. 2020, Table 1)."""
    printed = _printed(report.experiment)
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


def _drawn(report: Report) -> Iterable[Section]:
    kind = report.experiment.figure
    draw = {
        "boundaries": pictures.draw_boundaries,
        "regions": pictures.draw_regions,
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
    if kind == "lines":
        mean, std = report.pivot("error"), report.pivot("error", "std")
        if len(mean):
            numbers = [int(name.rsplit("_", 1)[1]) for name in mean.index]
            xlabel = "features" if "gaussians" in mean.index[0] else "classes"
            figure = pictures.draw_lines(
                mean.set_axis(numbers), std.set_axis(numbers), MEASURES["error"], xlabel
            )
            yield Section("Picture", (), None, figure, "picture")


def _picture(draw: Callable[..., Figure], extras: dict[tuple[str, str], Any]) -> Section:
    """Return the section of a picture, or why there is none: what was recorded may be damaged."""
    try:
        return Section("Picture", (), None, draw(extras), "picture")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return Section("Picture", (f"It cannot be drawn: {type(error).__name__}: {error}",))


def _speed(report: Report) -> Section:
    wide = report.timing.pivot_table(
        index="classifier", columns="set", values="seconds", sort=False
    )
    wide.index.name = wide.columns.name = None
    return Section(
        "CPU seconds of a fit",
        (
            "At known parameters, one thread; choosing them is in timing.csv where it is part of the cell.",
        ),
        wide.map(lambda value: "" if pd.isna(value) else f"{value:.3g}"),
    )


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
