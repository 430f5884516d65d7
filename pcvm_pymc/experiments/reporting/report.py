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
from matplotlib.figure import Figure

from pcvm_pymc.experiments.catalogue import Experiment
from pcvm_pymc.experiments.running.store import RunError
from pcvm_pymc.inference.files import write_atomically


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
        Whether it is next to the section before it where the page is wide enough.
    shade : DataFrame, optional
        Of the table's shape: entries above one are coloured as worse, those below minus one as better.
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


# --- tables of the page: entries coloured by how far they are, and a page that prints ------------

# colours that the colour-blind distinguish, pale enough for black text: from 1, 2 and 4 deviations on
_STEPS = (1.0, 2.0, 4.0)
_WORSE = ("#fdebd0", "#fbcf9b", "#f5a75b")
_BETTER = ("#e1eef8", "#b9d7ee", "#86b9df")
_WORDS = 40  # characters, from which an entry is text that may be broken

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
td { font-variant-numeric: tabular-nums }
th { font-weight: 600 } tbody th, th:first-child { text-align: left } img { max-width: 100% }
td.words { text-align: left; white-space: normal; min-width: 16em }
td { print-color-adjust: exact; -webkit-print-color-adjust: exact } td small { color: #444 }
.wide { overflow-x: auto }
.row { display: flex; flex-wrap: wrap; gap: 0 2.5em } .row > section { min-width: 0; max-width: 100% }
@page { size: A4 landscape; margin: 12mm }
@media print {
  body { font-size: 8.5pt; margin: 0; max-width: none; padding: 0 }
  .wide { overflow: visible } .row { display: block }
  td, th { padding: .15em .4em }
  thead { display: table-header-group } tr, img { break-inside: avoid }
  h2, h2 + p { break-after: avoid }
}
"""


def table_html(table: pd.DataFrame, shade: pd.DataFrame | None = None) -> str:
    """Return a table for the page: an entry's second line is small, and far entries are coloured.

    Parameters
    ----------
    table : DataFrame
    shade : DataFrame, optional
        Of the same shape: from 1 on an entry is coloured as worse, from -1 on as better.
    """
    far = np.zeros(table.shape) if shade is None else shade.to_numpy(dtype=float)
    head = "".join(f"<th>{html.escape(str(each))}</th>" for each in table.columns)
    lines = [
        "<table>",
        f"<thead><tr><th>{html.escape(str(table.index.name or ''))}</th>{head}</tr></thead>",
        "<tbody>",
    ]
    for place, (name, row) in enumerate(zip(table.index, table.to_numpy(object), strict=True)):
        cells = "".join(map(_cell, row, far[place]))
        lines.append(f"<tr><th>{html.escape(str(name))}</th>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def _cell(value: Any, far: float) -> str:
    text = "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
    first, _, second = html.escape(text).partition("\n")
    shown = f"{first}<br><small>{second}</small>" if second else first
    colour = _colour(far)
    style = f" style='background:{colour}'" if colour else ""
    words = " class='words'" if len(text) > _WORDS else ""
    return f"<td{words}{style}>{shown}</td>"


def _colour(far: float) -> str:
    """Return an entry's colour; none for what is near, or is not known to be far."""
    step = int(np.sum(np.abs(far) > np.array(_STEPS)))
    return (_WORSE if far > 0 else _BETTER)[step - 1] if step else ""
