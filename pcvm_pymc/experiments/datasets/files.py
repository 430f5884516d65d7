"""Sets in a folder of csv files, with their stored realisations."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.files import as_path
from pcvm_pymc.experiments.datasets.registry import (
    ENVIRONMENT_VARIABLE,
    Dataset,
    Floats,
    Rows,
    Source,
)
from pcvm_pymc.experiments.errors import first_line


def data_folder(folder: str | Path | None = None) -> Path | None:
    """Return a folder, or that which the environment variable ``PCVM_DATA`` names; None if it is not set.

    Raises
    ------
    NotADirectoryError
        If it names something that is not a folder.
    """
    if folder is not None:
        return as_path(folder, "folder")
    value = os.environ.get(ENVIRONMENT_VARIABLE)
    if not value:
        return None
    folder = as_path(value, ENVIRONMENT_VARIABLE)
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{ENVIRONMENT_VARIABLE}={value} is not a folder; needed one with the csv files, or unset it"
        )
    return folder


def without_folder(said: str, folder: str | Path | None = None) -> str:
    """Return what is said of a set without the place of the data folder on this machine: reports travel.

    Parameters
    ----------
    said : str
    folder : path, optional
        Default: `data_folder`.
    """
    place = data_folder(folder)
    return said if place is None else said.replace(str(place), "the data folder")


def read_set(name: str, source: Source, folder: Path | None) -> Dataset:
    """Return a set from its csv files.

    Raises
    ------
    ValueError
        If a file cannot be read as the set.
    FileNotFoundError
        If the folder or a file is missing; the message says where the set comes from.
    """
    frames = [_read(name, source, folder, file) for file in source.files]
    frame = pd.concat(frames, ignore_index=True)
    found, needed = (len(frame), frame.shape[1] - 1), (source.rows, source.features)
    if found != needed:
        raise ValueError(f"{name} has (rows, features) = {found} in {folder}; needed {needed}")
    train, test, numbers = _realisations(source, folder, len(frames[0]), len(frame))
    return Dataset(
        name=name,
        X=_numbers(frame.drop(columns="target"), folder),
        y=_labels(frame["target"], name, source, folder),
        feature_names=tuple(map(str, frame.columns[:-1])),
        origin=source.origin,
        train=train,
        test=test,
        realisations=numbers,
        folder=folder,
    )


def _read(name: str, source: Source, folder: Path | None, file: str) -> pd.DataFrame:
    if folder is None or not (folder / file).is_file():
        where = f"{folder} has no {file}" if folder else f"{ENVIRONMENT_VARIABLE} is not set"
        raise FileNotFoundError(
            f"data set {name!r} is missing: {where}. It comes from: {source.origin}. Put it as {file} "
            f"(csv, last column 'target') into a folder and set {ENVIRONMENT_VARIABLE} to that folder"
        )
    try:
        # only an empty entry is missing: "NA" is a label like any other
        frame = pd.read_csv(folder / file, keep_default_na=False, na_values=[""])
    except Exception as error:  # as do spoiled archives and texts here
        raise ValueError(f"{folder / file} cannot be read as csv: {first_line(error)}") from None
    if len(frame.columns) == 0 or frame.columns[-1] != "target":
        last = repr(frame.columns[-1]) if len(frame.columns) else "none"
        raise ValueError(f"{folder / file} has the last column {last}; needed 'target'")
    return frame


def _numbers(frame: pd.DataFrame, folder: Path | None) -> Floats:
    """Return features; a column of text or with infinite values is an error."""
    text = [str(name) for name in frame if not pd.api.types.is_numeric_dtype(frame[name].dtype)]
    if text:
        raise ValueError(
            f"columns {', '.join(text[:10])} in {folder} are not numbers; needed numbers or empty entries"
        )
    X = frame.to_numpy(dtype=float)
    if np.isinf(X).any():
        row, column = np.argwhere(np.isinf(X))[0]
        raise ValueError(
            f"column {frame.columns[column]} in {folder} is infinite in data row {row + 1}; "
            "needed a finite number"
        )
    return X


def _labels(column: pd.Series, name: str, source: Source, folder: Path | None) -> NDArray[Any]:
    """Return labels or targets, one in every row and as many classes as the set has."""
    if column.isna().any():
        raise ValueError(
            f"{name} in {folder} has {int(column.isna().sum())} rows without a target; needed one in each"
        )
    if source.classes == 0 and not pd.api.types.is_numeric_dtype(column.dtype):
        raise ValueError(f"{name} in {folder} has targets that are not numbers; needed numbers")
    found = column.nunique()
    if source.classes and found != source.classes:
        raise ValueError(f"{name} in {folder} has {found} classes; needed {source.classes}")
    return column.to_numpy()


def _realisations(
    source: Source, folder: Path | None, n_first: int, n_rows: int
) -> tuple[tuple[Rows, ...], tuple[Rows, ...], tuple[int, ...]]:
    """Return train and test rows of the stored realisations, and their numbers."""
    rows = np.arange(n_rows)
    if source.splits == "halves":
        return (rows[:n_first],), (rows[n_first:],), (1,)
    if source.splits.isdigit():
        n_train = int(source.splits)
        return (rows[:n_train],), (rows[n_train:],), (1,)
    if folder is None or not source.splits:
        return (), (), ()
    if not (folder / source.splits).is_file():
        raise FileNotFoundError(
            f"{folder} has {', '.join(source.files)} but not {source.splits}, its stored realisations; "
            "needed both"
        )
    place = folder / source.splits
    try:
        train, test, numbers = _stored_rows(place, rows)
    except Exception as error:  # a spoiled archive raises whatever zipfile, zlib and numpy think of
        raise ValueError(f"{place} cannot be read as realisations: {first_line(error)}") from None
    for number, one, other in zip(numbers, train, test, strict=True):
        _check_rows(place, number, one, other, n_rows)
    return train, test, numbers


def _stored_rows(
    place: Path, rows: Rows
) -> tuple[tuple[Rows, ...], tuple[Rows, ...], tuple[int, ...]]:
    if place.suffix == ".csv":
        part = pd.read_csv(place)["part"].to_numpy()
        if len(part) != len(rows):
            raise ValueError(f"{len(part)} rows; needed {len(rows)}")
        return (rows[part == "train"],), (rows[part == "test"],), (1,)
    # a file of our own: numpy leaves one open that is no zip
    with place.open("rb") as file, np.load(file) as stored:
        parts = [stored[key] for key in ("train", "test", "realisation")]
    if [each.ndim for each in parts] != [2, 2, 1] or len({len(each) for each in parts}) != 1:
        shapes = [each.shape for each in parts]
        raise ValueError(
            f"train, test, realisation have the shapes {shapes}; needed a row for each"
        )
    if not all(np.issubdtype(each.dtype, np.integer) for each in parts):
        raise ValueError("row numbers are not integers")
    train, test, numbers = (each.astype(np.int64) for each in parts)
    return tuple(train), tuple(test), tuple(numbers.tolist())


def _check_rows(place: Path, number: int, train: Rows, test: Rows, n_rows: int) -> None:
    """Raise an error where a realisation is not two disjoint parts of the rows."""
    both = np.concatenate([train, test])
    if len(train) == 0 or len(test) == 0:
        raise ValueError(f"{place}: realisation {number} has an empty part")
    if both.min() < 0 or both.max() >= n_rows:
        raise ValueError(
            f"{place}: realisation {number} has row numbers {both.min()} to {both.max()}; "
            f"needed 0 to {n_rows - 1}"
        )
    if len(np.unique(both)) != len(both):
        raise ValueError(
            f"{place}: realisation {number} has rows twice; needed disjoint training and test rows"
        )
