"""A csv file as features and labels, read by pandas."""

import io
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from pcvm_pymc.experiments.errors import UsageError, first_line

_MOST_CLASSES = 30  # more are numbers, not labels, as a rule
_MOST_CATEGORIES = 50  # more different texts are names of the rows
_LEAST_ROWS = 4  # of a class
_NEEDED = (
    "needed text in UTF-8: names of columns in line 1, as many fields in each other line, quotes around a "
    "field that has a separator in it"
)
_SEPARATORS = {"tab": "\t", r"\t": "\t"}


def read_table(
    path: Path, target: str | None = None, *, sep: str = ",", missing: Collection[str] = ()
) -> tuple[pd.DataFrame, pd.Series]:
    """Return features and labels of a csv file; what is no table with labels of classes is refused.

    A column of features is one of numbers if all its fields are, else one of texts, which stay as they are
    written, as labels do. Fields are missing where they are empty, or one of some marks.

    Parameters
    ----------
    path : Path
    target : str, optional
        The column with the labels. Default: the last.
    sep : str
        What separates fields: one character, or "tab".
    missing : collection of str
        Marks of missing fields.

    Raises
    ------
    UsageError
        With the line or the column, and what can be done.
    """
    frame = _fields(path, _SEPARATORS.get(sep, sep))
    frame = frame.mask(frame.isin(["", *missing]))
    target = frame.columns[-1] if target is None else target
    if target not in frame:
        raise UsageError(
            f"{path} has no column {target!r}; its columns are {', '.join(frame.columns[:20])}"
        )
    labels = frame.pop(target)
    _check_labels(path, labels)
    return frame.apply(lambda column: _typed(path, column)), labels


def _fields(path: Path, sep: str) -> pd.DataFrame:
    """Return the fields of a file as they are written, with their lines as the index."""
    if len(sep) != 1:
        raise UsageError(f"--sep is {sep!r}; needed one character, such as ';', or tab")
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if "\0" in text:
            raise ValueError("it has bytes that are no text")
        # as the python engine reads them fields that are not there are NaN, and empty ones are not
        frame = pd.read_csv(
            io.StringIO(text, newline=""),
            sep=sep,
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            engine="python",
        )
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise UsageError(f"{path} cannot be read as CSV ({first_line(error)}); {_NEEDED}") from None
    frame.index += 1
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has 1 column; needed features and labels in columns that {sep!r} separates (another "
            "separator: --sep)"
        )
    blank = frame[0].isna() | (frame[0] == "")  # or its first field alone
    frame = frame[~blank | frame.iloc[:, 1:].notna().any(axis=1)]
    if len(frame) < 2:
        raise UsageError(f"{path} has a header but no rows; {_NEEDED}")
    short = frame.isna().any(axis=1)
    if short.any():
        n = frame[short].iloc[0].notna().sum()
        raise UsageError(
            f"line {short.idxmax()} of {path} has {n} fields, line {frame.index[0]} has {frame.shape[1]}; "
            "leave a missing field empty, between its separators"
        )
    names, rows = frame.iloc[0], frame.iloc[1:]
    for name in names:
        if not name or (names == name).sum() > 1:
            raise UsageError(
                f"{path} has {(names == name).sum()} column(s) called {name!r}; needed a name of its own for "
                "each: name or remove them (pandas leaves its index out by index=False)"
            )
    return rows.set_axis(names.to_numpy(), axis=1)


def _check_labels(path: Path, labels: pd.Series) -> None:
    """Raise unless every row has a label, of one of a few classes with some rows each."""
    absent, name = labels.isna(), labels.name
    if absent.any():
        raise UsageError(
            f"{path} has {absent.sum()} rows without a label: {name} ({_lines(absent)}); remove them"
        )
    counts, numbers = labels.value_counts(), pd.to_numeric(labels, errors="coerce")
    if numbers.notna().all() and (len(counts) > _MOST_CLASSES or (numbers % 1 != 0).any()):
        raise UsageError(
            f"label column {name!r} of {path} has {len(counts)} distinct numbers, {numbers.min():g} to "
            f"{numbers.max():g}: the target of a regression, as it seems; needed 2 to {_MOST_CLASSES} "
            "classes. Use RVMRegressor in Python, or name a column of classes with --target"
        )
    if not 2 <= len(counts) <= _MOST_CLASSES:
        some = ", ".join(counts.index[:6]) + (", ..." if len(counts) > 6 else "")
        raise UsageError(
            f"label column {name!r} of {path} has {len(counts)} classes ({some}); needed 2 to "
            f"{_MOST_CLASSES}. Name another column with --target"
        )
    if counts.min() < _LEAST_ROWS:
        raise UsageError(
            f"class {counts.idxmin()} of {path} has {counts.min()} row(s); needed at least {_LEAST_ROWS}"
        )


def _typed(path: Path, column: pd.Series) -> pd.Series:
    """Return a column as numbers or as categories; raise where it has both, nothing, or too much."""
    name, there = f"column {column.name!r} of {path}", column.notna()
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    are_numbers = there & np.isfinite(numbers)
    if not there.any():
        raise UsageError(f"{name} has no value; remove it, or name another mark with --missing")
    if (are_numbers == there).all():
        return numbers
    if pd.to_numeric(column.str.replace(",", "."), errors="coerce").notna().any():
        odd = there & ~are_numbers
        raise UsageError(
            f"{name} has numbers and {odd.sum()} field(s) that are none, as {column[odd].iloc[0]!r} "
            f"({_lines(odd)}); name a mark of missing fields with --missing, or write all as numbers with a "
            "decimal point, or all as words"
        )
    if column.nunique() > _MOST_CATEGORIES:
        raise UsageError(
            f"{name} has {column.nunique()} different texts, more than {_MOST_CATEGORIES}: no categories; "
            "remove it"
        )
    return column.astype("category")


def _lines(where: pd.Series) -> str:
    """Return in which lines something is true, the first five of them."""
    found = [str(each) for each in where.index[where]]
    return f"line{'s' * (len(found) > 1)} {', '.join(found[:5])}{', ...' * (len(found) > 5)}"
