"""Tables and style of a report's page: cells coloured by how far they are, and a page that prints."""

import html
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["STYLE", "table_html"]

# colours that the colour-blind tell apart, pale enough for black text: from 1, 2 and 4 deviations on
_STEPS = (1.0, 2.0, 4.0)
_WORSE = ("#fdebd0", "#fbcf9b", "#f5a75b")
_BETTER = ("#e1eef8", "#b9d7ee", "#86b9df")
_WORDS = 40  # characters, from which a cell is text that may be broken

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
    """Return a table for the page: a cell's second line is small, and far cells are coloured.

    Parameters
    ----------
    table : DataFrame
    shade : DataFrame, optional
        Of the same shape: from 1 on a cell is coloured as worse, from -1 on as better.
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
    """Return a cell's colour; none for what is near, or is not known to be far."""
    step = int(np.sum(np.abs(far) > np.array(_STEPS)))
    return (_WORSE if far > 0 else _BETTER)[step - 1] if step else ""
