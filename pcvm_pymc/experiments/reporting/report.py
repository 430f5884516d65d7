"""A report as Markdown, as one page of HTML, and as csv files and pictures."""

import base64
import html
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from pcvm_pymc.experiments.catalogue import Experiment
from pcvm_pymc.experiments.reporting.page import STYLE, table_html
from pcvm_pymc.experiments.running import RunError
from pcvm_pymc.storage import write_atomically

__all__ = ["Report", "Section"]


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
    beside : bool
        Whether it stands beside the section before it where the page is wide enough.
    shade : DataFrame, optional
        Of the table's shape: cells above one are coloured as worse, those below minus one as better.
    """

    title: str
    text: tuple[str, ...] = ()
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    name: str = ""
    beside: bool = False
    shade: pd.DataFrame | None = None


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
        parts = [_HEAD.format(title=html.escape(self.experiment.name), style=STYLE)]
        parts += [f"<h1>{html.escape(self.experiment.name)}</h1>"]
        parts += [f"<p>{html.escape(self.experiment.title)}</p>"]
        for section in self.sections:
            text = _section_html(section, images.get(section.name))
            if section.beside and parts[-1].endswith(_ROW_END):
                parts[-1] = parts[-1].removesuffix(_ROW_END) + text + _ROW_END
            else:
                parts.append(f"<div class='row'>{text}{_ROW_END}")
        return "\n".join([*parts, "</body></html>"])

    def _repr_html_(self) -> str:
        return self.to_html()


def _section_html(section: Section, image: bytes | None) -> str:
    """Return a section of the page, with its picture within."""
    parts = [f"<section><h2>{html.escape(section.title)}</h2>"]
    parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
    if section.table is not None:
        parts.append(f"<div class='wide'>{table_html(section.table, section.shade)}</div>")
    if section.figure is not None:
        code = base64.b64encode(image or _png(section.figure)).decode()
        title = html.escape(section.title)
        parts.append(f"<img alt='{title}' src='data:image/png;base64,{code}'>")
    return "\n".join([*parts, "</section>"])


_ROW_END = "</div><!-- row -->"
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>
{style}</style></head><body>"""


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
        values = ["" if pd.api.types.is_scalar(x) and pd.isna(x) else str(x) for x in row]
        lines.append(_markdown_row([str(index), *values]))
    return lines


def _markdown_row(cells: list[str]) -> str:
    plain = [_plain(each).replace("|", "\\|").replace("\n", " ") for each in cells]
    return "| " + " | ".join(plain) + " |"
