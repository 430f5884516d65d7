"""A user's csv file: features, and one column of labels of two classes or more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.tables import read_table

_MOST_CLASSES = 30  # more are numbers, not labels, as a rule


@dataclass(frozen=True)
class Rows:
    """A table with labels.

    Attributes
    ----------
    X : ndarray or DataFrame, shape (n_obs, n_features)
    y : ndarray, shape (n_obs,)
    features : tuple of str
    name : str
    told : tuple of str
        What was recognised that a reader might not expect.
    scaler : transformer, optional
        Of scikit-learn, which makes standardised numbers of some of the rows; default: a `StandardScaler`.
    """

    X: Any
    y: np.ndarray
    features: tuple[str, ...]
    name: str
    told: tuple[str, ...] = ()
    scaler: Any = None


def read_rows(
    path: Path,
    target: str | None,
    *,
    header: str = "auto",
    categorical: bool = False,
    impute: str | None = None,
) -> Rows:
    """Read a table of text: features, and one column of labels of any type.

    Parameters
    ----------
    path : Path
    target : str, optional
        The label column, by default the last.
    header : {"auto", "yes", "no"}
        As for `read_table`.
    categorical : bool
        Whether columns of text are taken, to be encoded.
    impute : {"median", "mean", "most_frequent"}, optional
        What missing cells become; default: none may be missing.

    Raises
    ------
    UsageError
        If it cannot be used.
    """
    table = read_table(path, header)
    labels, features = labels_and_features(path, table.frame, target)
    from pcvm_pymc.experiments.model_files import TableScaler

    scaler = TableScaler.of(path, features, categorical=categorical, impute=impute)
    names = tuple(map(str, features.columns))
    return Rows(features, labels.to_numpy(), names, path.name, table.told, scaler)


def labels_and_features(
    path: Path, frame: pd.DataFrame, target: str | None, least: int = 4
) -> tuple[pd.Series, pd.DataFrame]:
    """Return the label column, by default the last, and the others; raise where it holds no classes."""
    target = _target_of(path, frame, target)
    labels = frame[target]
    _check_labels(path, labels, target, least)
    return labels, frame.drop(columns=target)


def _target_of(path: Path, frame: pd.DataFrame, target: str | None) -> str:
    """Return the label column, by default the last; raise where there is none, or there are no rows."""
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has {frame.shape[1]} column(s), {', '.join(repr(str(each)) for each in frame)}; needed "
            "a line of names, and below it features and a label column, separated by commas"
        )
    if target is None:
        target = str(frame.columns[-1])
    if target not in frame.columns:
        raise UsageError(
            f"{path} has no column {target!r}; its columns are {', '.join(map(str, frame.columns[:20]))}"
        )
    if len(frame) == 0:
        raise UsageError(f"{path} has a header but no rows")
    return target


def _check_labels(path: Path, labels: pd.Series, target: str, least: int = 4) -> None:
    """Raise where labels are missing, are no classes, or a class has fewer rows than `least`."""
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
