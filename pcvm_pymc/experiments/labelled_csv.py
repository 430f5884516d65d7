"""A user's csv file: numbers, and one column of labels of two classes or more."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.tables import read_table

__all__ = ["Rows", "check_labels", "read_rows", "target_of"]

_MOST_CLASSES = 30  # more are numbers, not labels, as a rule


@dataclass(frozen=True)
class Rows:
    """A table of numbers with labels."""

    X: np.ndarray
    y: np.ndarray
    features: tuple[str, ...]
    name: str


def read_rows(path: Path, target: str | None) -> Rows:
    """Read a table of text: numbers, and one column of labels of any type."""
    frame = read_table(path).frame
    target = target_of(path, frame, target)
    labels, features = frame[target], frame.drop(columns=target)
    _check_features(path, features, target)
    check_labels(path, labels, target)
    return Rows(
        features.to_numpy(dtype=float),
        labels.to_numpy(),
        tuple(map(str, features.columns)),
        path.name,
    )


def target_of(path: Path, frame: pd.DataFrame, target: str | None) -> str:
    """Return the label column, by default the last; raise where there is none, or there are no rows."""
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has {frame.shape[1]} column(s); needed features and a label column, "
            "separated by commas"
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


def _check_features(path: Path, features: pd.DataFrame, target: str) -> None:
    text = [
        str(name) for name in features if not pd.api.types.is_numeric_dtype(features[name].dtype)
    ]
    if text:
        raise UsageError(
            f"{path} has columns that are not numbers: {', '.join(text[:10])}; encode or remove them, "
            f"or name the label column with --target (now {target!r})"
        )
    bad = ~np.isfinite(features.to_numpy(dtype=float))
    if bad.any():
        first = int(np.flatnonzero(bad.any(axis=1))[0]) + 2
        raise UsageError(
            f"{path} has {int(bad.sum())} empty or infinite cells, the first in line {first}; "
            "remove or fill in those rows"
        )


def check_labels(path: Path, labels: pd.Series, target: str, least: int = 4) -> None:
    """Raise where labels are missing, are no classes, or a class has fewer rows than `least`."""
    if labels.isna().any():
        first = int(np.flatnonzero(labels.isna())[0]) + 2
        raise UsageError(
            f"{path} has {int(labels.isna().sum())} rows without a label in {target!r}, the first in line "
            f"{first}; remove them"
        )
    counts = labels.value_counts()
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
