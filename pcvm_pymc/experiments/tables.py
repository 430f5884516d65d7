"""A user's table of text: separator, encoding, decimal mark, header and index column are recognised."""

import codecs
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from pcvm_pymc.experiments.errors import UsageError, first_line

_SEPARATORS = (";", "\t", "|", ",")  # a comma last: it may be the decimal mark
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LINES = 30  # by which the separator is recognised
_NAMES = {"\t": "tabs", r"\s+": "spaces", ";": "semicolons", "|": "bars", ",": "commas"}
_WITH_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")


@dataclass(frozen=True)
class Table:
    """A table, and what was recognised that a reader might not expect.

    Attributes
    ----------
    frame : DataFrame
    told : tuple of str
    """

    frame: pd.DataFrame
    told: tuple[str, ...]


def read_table(path: Path, header: str = "auto") -> Table:
    """Read a table of text.

    Parameters
    ----------
    path : Path
    header : {"auto", "yes", "no"}
        Whether the first line has the names of the columns; ``"auto"`` raises where it seems to hold numbers.

    Raises
    ------
    UsageError
        If there is no such file, or it cannot be read.
    """
    raw = _bytes(path)
    encoding = _encoding(raw)
    if encoding != "utf-16" and b"\0" in raw[: 1 << 20]:
        raise UsageError(
            f"{path} is no text (a spreadsheet, an archive?); save it as CSV, with a header row"
        )
    head = io.StringIO(raw[: 1 << 20].decode(encoding, errors="replace"))
    lines = [line for line in (head.readline() for _ in range(_LINES)) if line.strip()]
    separator = _separator(lines)
    told = [] if encoding in ("utf-8", "utf-8-sig") else [f"read as {encoding}"]
    if separator != ",":
        told.append(f"separated by {_NAMES[separator]}")
    rows = [_fields(line, separator) for line in lines]
    if header == "auto" and rows:
        _check_header(path, rows[0])
    decimal = "." if separator == "," or not _has_decimal_commas(rows[1:]) else ","
    if decimal == ",":
        told.append("decimal commas")
    how = {"sep": separator, "encoding": encoding, "decimal": decimal, "skipinitialspace": True}
    how["header"] = None if header == "no" else 0
    try:
        frame = pd.read_csv(path, **how)
        marked = (frame == "?").sum()
        if marked.any():  # the mark of missing cells in many old tables
            frame = pd.read_csv(path, na_values=["?"], **how)
            where = ", ".join(f"{name} ({n})" for name, n in marked[marked > 0].items())
            told.append(f"cells with '?' are taken as missing: {where}")
    except (OSError, UnicodeError, ValueError) as error:
        said = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"{path} cannot be read as CSV: {said}") from None
    if header == "no":
        frame.columns = [f"column{i + 1}" for i in range(frame.shape[1])]
    names = rows[0] if rows and header != "no" else []
    twice = sorted({each for each in names if each.strip() and names.count(each) > 1})
    if twice:
        raise UsageError(f"{path} has several columns called {', '.join(twice[:5])}; rename them")
    frame, left_out = _named(path, frame, names)
    return Table(frame, (*told, *left_out))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; needed a CSV file with a header row") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; needed a CSV file with a header row") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from None


def _encoding(raw: bytes) -> str:
    """Return the encoding: by its mark, UTF-8 where the bytes are, else that of Windows."""
    for mark, name in _BOMS:
        if raw.startswith(mark):
            return name
    for name in ("utf-8", "cp1252"):
        try:
            raw.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"


def _fields(line: str, separator: str) -> list[str]:
    """Return the fields of a line, in which quoted separators do not count."""
    if separator == r"\s+":
        return line.split()
    plain = line.rstrip("\r\n").replace("\r", " ")
    return next(csv.reader([plain], delimiter=separator), [])


def _separator(lines: list[str]) -> str:
    """Return the first separator that gives all lines equally many fields, two or more."""
    for each in _SEPARATORS:
        counts = {len(_fields(line, each)) for line in lines}
        if len(counts) == 1 and counts.pop() > 1:
            return each
    if not any("," in line for line in lines):
        counts = {len(line.split()) for line in lines}
        if len(counts) == 1 and counts.pop() > 1:
            return r"\s+"
    return ","


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _check_header(path: Path, names: list[str]) -> None:
    """Raise where more than half of the names are numbers."""
    found = [each for each in names if _is_number(each)]
    if len(found) > len(names) / 2:
        raise UsageError(
            f"line 1 of {path} holds numbers ({', '.join(found[:4])}) where names of columns are needed: a "
            "header is missing; add one, or say --header no (--header yes: they are names)"
        )


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    """Whether numbers of some column are all written with commas."""
    columns = zip(*rows, strict=False)
    return any(
        all(_is_number(each) or not each.strip() for each in column)
        and any(_WITH_COMMA.fullmatch(each) for each in column)
        for column in columns
    )


def _named(path: Path, frame: pd.DataFrame, names: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the columns that have a name; one without that counts the rows is left out."""
    told = []
    for i, name in enumerate(names[: frame.shape[1]]):
        if name.strip():
            continue
        column = frame.iloc[:, i]
        if column.isna().all():
            told.append(f"column {i + 1} has no name and is empty: left out")
        elif _counts_rows(column):
            told.append(f"column {i + 1} has no name and counts the rows: an index, left out")
        else:
            raise UsageError(
                f"column {i + 1} of {path} has no name (its first value is {column.iloc[0]}); name it in "
                "the header, or remove it"
            )
    kept = [i for i in range(frame.shape[1]) if i >= len(names) or names[i].strip()]
    return (frame.iloc[:, kept] if told else frame), told


def _counts_rows(column: pd.Series) -> bool:
    if not pd.api.types.is_integer_dtype(column.dtype):
        return False
    values = column.to_numpy()
    return len(values) > 0 and values[0] in (0, 1) and bool((np.diff(values) == 1).all())


def tell(console: Console, name: str, told: Iterable[str]) -> None:
    """Print what was recognised in a table."""
    for each in told:
        console.print(f"{name}: {each}", style="dim", highlight=False, markup=False)


def checked_width(text: str) -> Any:
    """Return the kernel width that was asked for, a number or "auto"."""
    if text == "auto":
        return text
    try:
        width = float(text)
    except ValueError:
        width = np.nan
    if not (np.isfinite(width) and width > 0):
        raise UsageError(f"--width is {text!r}; needed a positive number or auto")
    return width
