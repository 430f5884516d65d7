"""A table of text and its labels: separator, encoding, decimal mark and index are recognised."""

import codecs
import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from pcvm_pymc.experiments.errors import UsageError, first_line

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas", r"\s+": "spaces"}
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_LINES = 30  # by which the separator is recognised
_WITH_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
_MOST_CLASSES = 30  # more are numbers, not labels, as a rule
_NEEDED = "needed a CSV file with a header row"


@dataclass(frozen=True)
class Rows:
    """A table with labels.

    Attributes
    ----------
    X : ndarray or DataFrame, shape (n_obs, n_features)
    y : ndarray, shape (n_obs,)
    features : tuple of str
    name : str
    scaler : transformer, optional
        Of scikit-learn, which makes standardised numbers of some of the rows; default: a `StandardScaler`.
    """

    X: Any
    y: np.ndarray
    features: tuple[str, ...]
    name: str
    scaler: Any = None


def read_table(path: Path, header: str, console: Console) -> pd.DataFrame:
    """Read a table of text, and print what was recognised that a reader might not expect.

    Parameters
    ----------
    path : Path
    header : {"auto", "yes", "no"}
        Whether the first line has the names of the columns; ``"auto"`` raises where it seems to have numbers.
    console : Console

    Raises
    ------
    UsageError
        If there is no such file, or it cannot be read.
    """
    raw, encoding = _bytes(path)
    head = io.StringIO(raw[: 1 << 20].decode(encoding, errors="replace"))
    lines = [line for line in (head.readline() for _ in range(_LINES)) if line.strip()]
    separator = _separator(lines)
    rows = [_fields(line, separator) for line in lines]
    if header == "auto" and rows:
        _check_header(path, rows[0])
    decimal = "," if separator != "," and _has_decimal_commas(rows[1:]) else "."
    how = {"sep": separator, "encoding": encoding, "decimal": decimal, "skipinitialspace": True}
    how["header"] = None if header == "no" else 0
    said = [] if encoding.startswith("utf-8") else [f"read as {encoding}"]
    said += [] if separator == "," else [f"separated by {_SEPARATORS[separator]}"]
    said += ["decimal commas"] if decimal == "," else []
    try:
        frame = pd.read_csv(path, **how)
        marked = (frame == "?").sum()
        if marked.any():  # the mark of missing values in many old tables
            frame = pd.read_csv(path, na_values=["?"], **how)
            where = ", ".join(f"{name} ({n})" for name, n in marked[marked > 0].items())
            said.append(f"cells with '?' are taken as missing: {where}")
    except (OSError, UnicodeError, ValueError) as error:
        reason = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"{path} cannot be read as CSV: {reason}") from None
    if header == "no":
        frame.columns = [f"column{i + 1}" for i in range(frame.shape[1])]
    else:
        frame = _named(path, frame, rows[0] if rows else [], said)
    tell(console, path.name, said)
    return frame


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep back what a logger says below an error: the command says it in its own words."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def tell(console: Console, name: str, said: Iterable[str]) -> None:
    """Print what was recognised in a table."""
    for each in said:
        console.print(f"{name}: {each}", style="dim", highlight=False, markup=False)


def _bytes(path: Path) -> tuple[bytes, str]:
    """Return a file's bytes and their encoding: by its mark, else UTF-8 where it is, else that of Windows."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; {_NEEDED}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; {_NEEDED}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    for mark, name in _BOMS.items():
        if raw.startswith(mark):
            return raw, name
    if b"\0" in raw[: 1 << 20]:
        raise UsageError(
            f"{path} is no text (a spreadsheet, an archive?); save it as CSV, with a header row"
        )
    for name in ("utf-8", "cp1252"):
        try:
            raw.decode(name)
        except UnicodeDecodeError:
            continue
        return raw, name
    return raw, "latin-1"


def _fields(line: str, separator: str) -> list[str]:
    """Return the fields of a line, in which quoted separators do not count."""
    if separator == r"\s+":
        return line.split()
    plain = line.rstrip("\r\n").replace("\r", " ")
    return next(csv.reader([plain], delimiter=separator), [])


def _separator(lines: list[str]) -> str:
    """Return the first separator that gives all lines equally many fields, two or more; commas if none does.

    A comma comes late, as it may be the decimal mark, and spaces only where there is no comma.
    """
    for each in _SEPARATORS:
        counts = {len(_fields(line, each)) for line in lines}
        if each == r"\s+" and any("," in line for line in lines):
            continue
        if len(counts) == 1 and counts.pop() > 1:
            return each
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
            f"line 1 of {path} has numbers ({', '.join(found[:4])}) where names of columns are needed: a "
            "header is missing; add one, or say --header no (--header yes: they are names)"
        )


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    """Whether numbers of some column are all written with commas."""
    return any(
        all(_is_number(each) or not each.strip() for each in column)
        and any(_WITH_COMMA.fullmatch(each) for each in column)
        for column in zip(*rows, strict=False)
    )


def _named(path: Path, frame: pd.DataFrame, names: list[str], said: list[str]) -> pd.DataFrame:
    """Return the columns that have a name; one without that is empty or counts the rows is left out."""
    twice = sorted({each for each in names if each.strip() and names.count(each) > 1})
    if twice:
        raise UsageError(f"{path} has several columns called {', '.join(twice[:5])}; rename them")
    kept = list(range(frame.shape[1]))
    for i, name in enumerate(names[: frame.shape[1]]):
        if name.strip():
            continue
        values = frame.iloc[:, i]
        if values.isna().all():
            said.append(f"column {i + 1} has no name and is empty: left out")
        elif values.iloc[0] in (0, 1) and (values == values.iloc[0] + np.arange(len(values))).all():
            said.append(f"column {i + 1} has no name and counts the rows: an index, left out")
        else:
            raise UsageError(
                f"column {i + 1} of {path} has no name (its first value is {values.iloc[0]}); name it in "
                "the header, or remove it"
            )
        kept.remove(i)
    return frame.iloc[:, kept]


def labels_and_features(
    path: Path, frame: pd.DataFrame, target: str | None, least: int = 4
) -> tuple[pd.Series, pd.DataFrame]:
    """Return the label column, by default the last, and the others.

    Raises
    ------
    UsageError
        If there is no such column, no rows, or labels are missing, of a regression, or of too few rows each.
    """
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has {frame.shape[1]} column(s), {', '.join(repr(str(each)) for each in frame)}; needed "
            "a line of names, and below it features and a label column, separated by commas"
        )
    target = str(frame.columns[-1]) if target is None else target
    if target not in frame.columns:
        raise UsageError(
            f"{path} has no column {target!r}; its columns are {', '.join(map(str, frame.columns[:20]))}"
        )
    if len(frame) == 0:
        raise UsageError(f"{path} has a header but no rows")
    labels = frame[target]
    if labels.isna().any():
        first = int(np.flatnonzero(labels.isna())[0]) + 2
        raise UsageError(
            f"{path} has {int(labels.isna().sum())} rows without a label in {target!r}, the first in line "
            f"{first}; remove them"
        )
    counts = labels.value_counts()
    if len(counts) > _MOST_CLASSES and pd.api.types.is_numeric_dtype(labels.dtype):
        raise UsageError(
            f"label column {target!r} of {path} has {len(counts)} distinct numbers, {labels.min()} to "
            f"{labels.max()}: the target of a regression, as it seems; needed 2 to {_MOST_CLASSES} classes. "
            "Use RVMRegressor in Python, or name a column of classes with --target"
        )
    if not 2 <= len(counts) <= _MOST_CLASSES:
        some = ", ".join(map(str, counts.index[:6])) + (", ..." if len(counts) > 6 else "")
        raise UsageError(
            f"label column {target!r} of {path} has {len(counts)} classes ({some}); needed 2 to "
            f"{_MOST_CLASSES}. Name another column with --target"
        )
    if counts.min() < least:
        raise UsageError(
            f"class {counts.idxmin()} of {path} has {counts.min()} row(s); needed at least {least}"
        )
    return labels, frame.drop(columns=target)


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
