"""A report as Markdown, as one page of HTML, and as csv files and pictures."""

import base64
import html
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pcvm_pymc.core.pieces.files import as_path, write_atomically
from pcvm_pymc.experiments.catalogue import Experiment
from pcvm_pymc.experiments.running.store import RunError


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
    shade : DataFrame, optional
        Of the table's shape: entries above one are coloured as worse, those below minus one as better.
    """

    title: str
    text: tuple[str, ...] = ()
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    name: str = ""
    shade: pd.DataFrame | None = None


@dataclass(frozen=True)
class Report:
    """What a run has found so far.

    Attributes
    ----------
    experiment : Experiment
    manifest : dict
    cells : DataFrame
        A row for each finished job that counts: set, classifier, realisation and measures, in the paper's
        units (per cent for error, AUC, 1-RMSE).
    table : DataFrame
        A row for each set, classifier and measure: n, mean, std, and the paper's mean and std.
    timing : DataFrame
        Mean CPU seconds of fits and of the choice of parameters.
    failures : DataFrame
    missing : dict of str to str
        Sets that are not there, and jobs that have not been run, with the reason.
    records : tuple of dict
        The finished jobs that count, as they were written.
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
        folder = as_path(folder, "folder")
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
            raise RunError(str(error)) from None
        return [folder / name for name in content]

    def to_markdown(self) -> str:
        """Return the report in Markdown; pictures are links."""
        lines = [f"# {self.experiment.name}", "", self.experiment.title, ""]
        for section in self.sections:
            lines += [f"## {_plain(section.title)}", ""]
            for paragraph in section.text:
                lines += [_plain(paragraph), ""]
            if section.table is not None:
                lines += [*_markdown_table(section.table), ""]
            if section.figure is not None:
                lines += [f"![{_plain(section.title)}]({section.name}.png)", ""]
        return "\n".join(lines)

    def to_html(self, images: dict[str, bytes] | None = None) -> str:
        """Return the report as one page that needs no other file."""
        images = images if images is not None else {}
        name, title = html.escape(self.experiment.name), html.escape(self.experiment.title)
        parts = [
            f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{name}</title>",
            f"<style>{_STYLE}</style></head><body><h1>{name}</h1><p>{title}</p>",
        ]
        for section in self.sections:
            heading = html.escape(section.title)
            parts.append(f"<h2>{heading}</h2>")
            parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
            if section.table is not None:
                parts.append(table_html(section.table, section.shade))
            if section.figure is not None:
                code = base64.b64encode(images.get(section.name) or _png(section.figure)).decode()
                parts.append(f"<img alt='{heading}' src='data:image/png;base64,{code}'>")
        return "\n".join([*parts, "</body></html>"])

    def _repr_html_(self) -> str:
        return self.to_html()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Return text whose tags are shown, not obeyed, by what renders Markdown."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def _markdown_table(table: pd.DataFrame) -> list[str]:
    head = [table.index.name or "", *map(str, table.columns)]
    lines = [_markdown_row(head), _markdown_row(["---"] * len(head))]
    for index, row in table.iterrows():
        values = ["" if _is_missing(x) else str(x) for x in row]
        lines.append(_markdown_row([str(index), *values]))
    return lines


def _markdown_row(cells: list[str]) -> str:
    plain = [_plain(each).replace("|", "\\|").replace("\n", " ") for each in cells]
    return "| " + " | ".join(plain) + " |"


# --- the page ------------------------------------------------------------------------------------

_STEPS = (1.0, 2.0, 4.0)  # deviations from which on an entry has a colour, and a darker one
# blue is below zero, orange above: the colour-blind distinguish them, and black text is legible on both
_COLOURS = LinearSegmentedColormap.from_list("far", ["#86b9df", "white", "#f5a75b"], 257)
_STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; display: block; margin: 1em 0; overflow-x: auto }
td, th { border-bottom: 1px solid #ddd; padding: .25em .6em; text-align: right; vertical-align: top }
td { max-width: 40em; white-space: pre-line; print-color-adjust: exact }
th { white-space: nowrap } .col0 { text-align: left } img { max-width: 100% }
"""


def table_html(table: pd.DataFrame, shade: pd.DataFrame | None = None) -> str:
    """Return a table for the page, in which far entries are coloured.

    Parameters
    ----------
    table : DataFrame
    shade : DataFrame, optional
        Of the same shape: from 1 on an entry is coloured as worse, from -1 on as better.
    """
    entries = table.map(lambda value: "" if _is_missing(value) else str(value))
    entries = entries.set_axis(range(len(table))).set_axis(map(str, table.columns), axis=1)
    entries.insert(0, table.index.name or "", table.index.astype(str), allow_duplicates=True)
    style = entries.style.hide(axis="index").format(escape="html")
    style = style.format_index(escape="html", axis="columns")
    if shade is not None:
        far = shade.fillna(0.0).to_numpy(float)
        far = np.sign(far) * np.digitize(np.abs(far), _STEPS, right=True)
        far = np.insert(far, 0, 0.0, axis=1)
        style = style.background_gradient(_COLOURS, axis=None, vmin=-3, vmax=3, gmap=far)
    return style.to_html()


def _is_missing(value: Any) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
