"""A table of text and its labels: separator, encoding, decimal mark and index are recognised."""

import codecs
import csv
import io
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
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
_END = "\0"  # the last line, but in an open quotation
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")  # or three decimals
_TRUTHS = {"true": 1.0, "false": 0.0}
# what pandas takes for missing; and the mark of many old tables
_NAN = r"#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null"
MISSING = frozenset([*_NAN.split("|"), "?"])
_MOST_CLASSES = 30  # more are numbers, not labels, as a rule
_NEEDED = "needed a CSV file with a header row"
csv.field_size_limit(1 << 30)  # a long line is one field where the separator is another

type Texts = Collection[str | None]


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
        Of scikit-learn, which standardises the numbers of some of the rows; default: a `StandardScaler`.
    """

    X: Any
    y: np.ndarray
    features: tuple[str, ...]
    name: str
    scaler: Any = None


def read_table(
    path: Path,
    header: str,
    console: Console,
    *,
    text: Texts = (),
    asked: Texts = (None,),
    missing: Texts = (),
) -> pd.DataFrame:
    """Read a table of text, and print what was recognised that a reader might not expect.

    Every row has as many fields as the header. Texts are trimmed. Columns whose fields are numbers (also with
    decimal commas), or TRUE and FALSE, are numbers. The index has the lines of the rows.

    Parameters
    ----------
    path : Path
    header : {"auto", "yes", "no"}
        Whether the first line has the names of the columns; ``"auto"`` raises where it seems to have numbers.
    console : Console
    text : collection of str
        Columns that stay as they are written, numbers too.
    asked : collection of str
        Further ones, as a user named them, see `column_of`; None is the last one.
    missing : collection of str
        What marks a missing field, besides emptiness, and in columns of numbers `MISSING`.

    Raises
    ------
    UsageError
        If there is no such file, or it cannot be read.
    """
    content, encoding = _content(path)
    lines = list(io.StringIO(content, newline=""))
    separator = _separator([line for line in lines[:_LINES] if line.strip()])
    said = [] if encoding.startswith("utf-8") else [f"read as {encoding}"]
    said += [] if separator == "," else [f"separated by {_SEPARATORS[separator]}"]
    names, frame, quoted = _rectangle(path, lines, separator, header, said)
    frame = _named(path, frame, names, quoted, said)
    text = [*text, *(column_of(frame, each) for each in asked)]
    frame = _typed(frame, separator, text, missing, said)
    tell(console, path.name, said)
    return frame


def _rectangle(
    path: Path, lines: list[str], separator: str, header: str, said: list[str]
) -> tuple[list[str], pd.DataFrame, bool]:
    """Return names of columns, fields by their lines, and whether each line begins with a quoted name."""
    at, rows, begun = [], [], 0
    reader = _reader([*lines, _END], separator)
    for row in reader:
        if len(row) > 1 or "".join(row).strip():  # no blank line
            at.append(begun + 1)
            rows.append(row)
        begun = reader.line_num
    if rows[-1] != [_END]:
        raise UsageError(
            f"{path} cannot be read as CSV: a quotation mark is opened in line {at[-1]}, not closed"
        )
    del at[-1], rows[-1]
    if not rows:
        raise UsageError(f"{path} cannot be read as CSV: it is empty; {_NEEDED}")
    names, start = [each.strip() for each in rows[0]], at[0]
    if header == "auto":
        _check_header(path, names)
    if header == "no":
        names = [f"column{i + 1}" for i in range(len(names))]
    else:
        del at[0], rows[0]
    if not rows:
        raise UsageError(f"{path} has a header but no rows")
    # in quotes, and not everything else is: as R writes the names of rows
    quoted = all(
        line.lstrip().startswith('"') and line.count('"') < 2 * len(row)
        for row, line in zip(rows, [lines[i - 1] for i in at], strict=True)
    )
    longer = {len(row) for row in rows} == {len(names) + 1} and any(row[-1].strip() for row in rows)
    if longer and quoted and _are_row_names(pd.Series([row[0] for row in rows]), quoted):
        said.append(f"the header has {len(names)} names, each row a field more, in front")
        names = ["", *names]
    uneven = [i for i, row in enumerate(rows) if len(row) != len(names)]
    if uneven:
        row = rows[uneven[0]]
        remedy = (
            "a separator within a field, such as a decimal comma, needs quotes, a column a name"
        )
        if len(row) < len(names):
            remedy = "leave a missing field empty, between its separators"
        raise UsageError(
            f"line {at[uneven[0]]} of {path} has {len(row)} fields ({', '.join(map(repr, row[:5]))}), "
            f"line {start} has {len(names)}; so it is in {len(uneven)} of {len(rows)} rows; {remedy}"
        )
    return names, pd.DataFrame(rows, index=at, dtype=object), quoted


def _are_row_names(fields: pd.Series, quoted: bool) -> bool:
    """Whether fields count the rows, or are different texts, or different whole numbers in quotes."""
    numbers = pd.to_numeric(fields, errors="coerce")
    first, are_whole = numbers.iloc[0], quoted and (numbers % 1 == 0).all()
    counts = first in (0, 1) and (numbers == first + np.arange(len(fields))).all()
    return bool(counts or (fields.is_unique and (are_whole or numbers.isna().all())))


def _typed(
    frame: pd.DataFrame, separator: str, text: Texts, missing: Texts, said: list[str]
) -> pd.DataFrame:
    """Return columns of numbers and of trimmed text, in which missing fields are NaN."""
    empty = ["", *missing]
    plain = frame.apply(pd.to_numeric, errors="coerce")
    plain = plain.loc[:, plain.notna().all() & ~plain.columns.isin(text) & (not missing)]
    trimmed = frame.drop(columns=plain).map(str.strip).astype(object)
    points = any("." in field for field in frame[list(plain)].to_numpy().flat)
    decimal = _decimal(trimmed.mask(trimmed.isin(empty)), separator, points)
    if decimal == ",":  # a point may part thousands there
        said.append("decimal commas")
        plain, trimmed = frame[[]], frame.map(str.strip).astype(object)
    typed, taken, left, merged, truths = dict(plain), [], [], [], []
    for name in trimmed:
        column = trimmed[name].mask(trimmed[name].isin(empty))
        numbers = _numbers(column, decimal)
        if name in text or numbers is None:
            typed[name] = column
            odd = column.isin(MISSING)
            left += [fields_of(column, odd)] if odd.any() and numbers is None else []
            spellings = frame[name][column.notna()].unique()
            if len(spellings) > column.nunique():
                alike = [repr(each) for each in spellings if each != each.strip()]
                merged.append(f"{name} ({', '.join(alike[:3])})")
        else:
            typed[name] = numbers
            truths += [str(name)] if column.str.lower().isin(_TRUTHS).any() else []
        gone = typed[name].isna() & (trimmed[name] != "")
        taken += [fields_of(trimmed[name], gone)] if gone.any() else []
    for what, found in (
        ("taken as missing: ", taken),
        ("text, not missing (name it in --missing if it is): ", left),
        ("blanks around texts are removed, which makes some the same: ", merged),
        ("TRUE is 1, FALSE is 0: ", truths),
    ):
        said += [what + ", ".join(found[:8]) + ", ..." * (len(found) > 8)] if found else []
    return pd.DataFrame(typed)[frame.columns]


def fields_of(column: pd.Series, where: pd.Series) -> str:
    """Return a column's name, with the different texts of some fields, if any, and their lines."""
    found = ", ".join(map(repr, column[where].dropna().astype(object).unique()[:3]))
    return f"{column.name} ({found}{' in ' * bool(found)}{lines_of(where)})"


def lines_of(where: pd.Series) -> str:
    """Return in which lines something is true, the first five of them."""
    found = [str(each) for each in where.index[where]]
    more = f", ..., {len(found)} in all" if len(found) > 5 else ""
    return f"line{'s' * (len(found) > 1)} {', '.join(found[:5])}{more}"


def _numbers(column: pd.Series, decimals: str) -> pd.Series | None:
    """Return the numbers that all fields are, by the first of some decimal marks; None if one is none."""
    for mark in decimals:
        text = column.str.translate({ord("."): "x", ord(","): "."}) if mark == "," else column
        numbers = pd.to_numeric(text, errors="coerce")
        present = column[numbers.isna() & column.notna() & ~column.isin(MISSING)]
        if present.empty:
            return numbers
    truths = column.mask(column.isin(MISSING)).str.lower()
    return truths.map(_TRUTHS) if truths.dropna().isin(_TRUTHS).all() else None


def _decimal(fields: pd.DataFrame, separator: str, points: bool) -> str:
    """Return the decimal mark: a comma where some are that part no thousands, and no points are."""
    commas = False
    for _, column in fields.items():
        with_comma = column[column.str.contains(",", regex=False, na=False)]
        if len(with_comma) and _numbers(column, ",") is not None:
            commas |= separator == ";" or not with_comma.str.fullmatch(_THOUSANDS).all()
        elif column.str.contains(".", regex=False, na=False).any():
            points |= _numbers(column, ".") is not None
    return "," if commas and not (points and separator == ",") else "."


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
        console.print(f"{name}: {each}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _content(path: Path) -> tuple[str, str]:
    """Return a file's text and its encoding: by its mark, else UTF-8 where it is, else that of Windows."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; {_NEEDED}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; {_NEEDED}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    marked = [name for mark, name in _BOMS.items() if raw.startswith(mark)]
    if not marked and b"\0" in raw:
        raise UsageError(
            f"{path} is no text (a spreadsheet, an archive?); save it as CSV, with a header row"
        )
    for name in marked or ("utf-8", "cp1252", "latin-1"):
        try:
            return raw.decode(name), name
        except UnicodeDecodeError:
            continue
    raise UsageError(f"{path} cannot be read as CSV: it begins as {marked[0]}, but is not")


def _reader(lines: list[str], separator: str) -> Any:
    """Return what splits lines into fields, in which quoted separators do not count."""
    if separator == r"\s+":
        lines, separator = [" ".join(line.split()) for line in lines], " "
    quoted = any(' "' in line for line in lines)  # a blank before a quotation mark
    return csv.reader(lines, delimiter=separator, skipinitialspace=quoted)


def _separator(lines: list[str]) -> str:
    """Return the separator by which most lines have as many fields as the first, two or more; else commas.

    A comma comes late, as it may be the decimal mark, and spaces only where there is no comma, nor another
    separator in the header.
    """
    other = re.search(r"[;\t|]", lines[0]) or "," in "".join(lines) if lines else None

    def alike(separator: str) -> int:
        first, *rest = [len(row) for row in _reader(lines, separator)] or [0]
        return -1 if first < 2 or (separator == r"\s+" and other) else rest.count(first)

    best = max(_SEPARATORS, key=alike)
    return best if alike(best) >= 0 else ","


def _check_header(path: Path, names: list[str]) -> None:
    """Raise where more than half of the names are numbers."""
    texts = pd.Series(names, dtype=object).str.replace(",", ".")
    found = [names[i] for i in np.flatnonzero(pd.to_numeric(texts, errors="coerce").notna())]
    if len(found) > len(names) / 2:
        raise UsageError(
            f"line 1 of {path} has numbers ({', '.join(found[:4])}) where names of columns are needed: a "
            "header is missing; add one, or say --header no (--header yes: they are names)"
        )


def _named(
    path: Path, frame: pd.DataFrame, names: list[str], quoted: bool, said: list[str]
) -> pd.DataFrame:
    """Return the columns that have a name; one without that is empty or counts the rows is left out."""
    twice = sorted({each for each in names if each.strip() and names.count(each) > 1})
    if twice:
        raise UsageError(f"{path} has several columns called {', '.join(twice[:5])}; rename them")
    kept = list(range(frame.shape[1]))
    for i, name in enumerate(names[: frame.shape[1]]):
        if name.strip():
            continue
        values = frame.iloc[:, i].str.strip()
        if (values == "").all():
            said.append(f"column {i + 1} has no name and is empty: left out")
        elif _are_row_names(values, quoted and i == 0):
            said.append(f"column {i + 1} has no name and counts or names the rows: left out")
        else:
            raise UsageError(
                f"column {i + 1} of {path} has no name (its first value is {values.iloc[0]}); name it in "
                "the header, or remove it"
            )
        kept.remove(i)
    return frame.iloc[:, kept].set_axis([names[i] for i in kept], axis=1)


def column_of(frame: pd.DataFrame, name: str | None) -> str | None:
    """Return the name of a column: of None the last; of a number that is no name that column, from 0 or -1.

    None where there is no such column.
    """
    if name in frame.columns:
        return name
    with suppress(ValueError, IndexError):
        return str(frame.columns[-1 if name is None else int(name)])
    return None


def named_column(path: Path, frame: pd.DataFrame, name: str | None) -> str:
    """Return the name of a column, see `column_of`.

    Raises
    ------
    UsageError
        If there is none.
    """
    found = column_of(frame, name)
    if found is None:
        raise UsageError(
            f"{path} has no column {name!r}; its columns are {', '.join(map(str, frame.columns[:20]))}"
        )
    return found


def labels_and_features(
    path: Path, frame: pd.DataFrame, target: str | None, least: int = 4
) -> tuple[pd.Series, pd.DataFrame]:
    """Return the label column, by default the last, and the others.

    Labels are as they are written, of a categorical type, in the order of numbers where all of them are.

    Raises
    ------
    UsageError
        If there is no such column, or labels are missing, of a regression, or of too few rows each.
    """
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has {frame.shape[1]} column(s), {', '.join(repr(str(each)) for each in frame)}; needed "
            "a line of names, and below it features and a label column, separated by commas"
        )
    target = named_column(path, frame, target)
    labels = frame[target]
    numbers = _numbers(labels, ".,")
    if numbers is not None and numbers.isna().all():  # texts such as None
        numbers = None
    absent = labels.isna() if numbers is None else numbers.isna()
    if absent.any():
        raise UsageError(
            f"{path} has {absent.sum()} rows without a label: {fields_of(labels, absent)}; remove them"
        )
    counts = labels.value_counts()
    if numbers is not None and (len(counts) > _MOST_CLASSES or (numbers % 1 != 0).any()):
        raise UsageError(
            f"label column {target!r} of {path} has {len(counts)} distinct numbers, {numbers.min()} to "
            f"{numbers.max()}: the target of a regression, as it seems; needed 2 to {_MOST_CLASSES} classes. "
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
    order = labels if numbers is None else numbers
    classes = sorted(counts.index, key=lambda each: (order[(labels == each).idxmax()], each))
    return labels.astype(pd.CategoricalDtype(classes)), frame.drop(columns=target)


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
