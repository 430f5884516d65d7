"""Reading a set by its name, from wherever it is; sets made from others; new splits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets as sklearn_datasets
from sklearn.model_selection import StratifiedShuffleSplit

from pcvm_pymc.experiments.datasets import generators
from pcvm_pymc.experiments.datasets.files import data_folder, read_set
from pcvm_pymc.experiments.datasets.registry import SOURCES, Dataset, Rows, Seed, Source, source_of


def available(folder: str | Path | None = None) -> tuple[str, ...]:
    """Return the names that `load` can read now (default folder: `data_folder`)."""
    folder = data_folder(folder)

    def is_there(source: Source) -> bool:
        if source.base:
            return is_there(SOURCES[source.base])
        if source.shipped or source.generate:
            return True
        return bool(folder and source.files and all((folder / f).is_file() for f in source.files))

    return tuple(name for name, source in SOURCES.items() if is_there(source))


def load(
    name: str, *, folder: str | Path | None = None, random_state: Seed = 0, download: bool = False
) -> Dataset:
    """Read a set from scikit-learn or the data folder, make it from another, or draw it.

    Parameters
    ----------
    name : str
        A key of `SOURCES`.
    folder : path, optional
        Default: the folder that ``PCVM_DATA`` names.
    random_state : int or numpy.random.Generator
        For generated sets.
    download : bool
        Whether to ask openml.org for a set that the folder does not have, see `fetch`.

    Returns
    -------
    Dataset
        Missing values are NaN and are never imputed.

    Raises
    ------
    ValueError
        If the name is unknown, or a file cannot be read as the set.
    FileNotFoundError
        If the folder or a file is missing; the message says where the set comes from.
    """
    source = source_of(name)
    place = data_folder(folder)
    if source.generate:
        draw = getattr(generators, source.generate)
        X, y = draw(source.rows, random_state=random_state, **source.options)
        return _drawn(name, source, X, y)
    if source.shipped:
        return _shipped(name, source)
    if source.derive:
        base = replace(load(source.base, folder=place, download=download), folder=place)
        return replace(_DERIVED[source.derive](base, **source.options), name=name)
    if download and source.openml and name not in available(place):
        return fetch(name)
    return read_set(name, source, place)


def _drawn(name: str, source: Source, X: NDArray[Any], y: NDArray[Any]) -> Dataset:
    """Return one realisation of a generated set, its first rows to train on."""
    rows = np.arange(len(X))
    names = tuple(f"x{j + 1}" for j in range(X.shape[1]))
    train, test = ((rows[: source.n_train],), (rows[source.n_train :],))
    return Dataset(name, X, y, names, source.origin, train, test, (1,))


def _shipped(name: str, source: Source) -> Dataset:
    bunch = getattr(sklearn_datasets, source.shipped)()
    features = tuple(map(str, bunch.feature_names))
    return Dataset(name, np.asarray(bunch.data, float), bunch.target, features, source.origin)


def random_splits(
    y: ArrayLike, n_train: int, n_splits: int, random_state: Seed
) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Return stratified seeded train and test rows, for sets without stored realisations.

    Parameters
    ----------
    y : array_like, shape (n_obs,)
    n_train : int
        Rows to train on; the rest is the test part.
    n_splits : int
    random_state : int or numpy.random.Generator
    """
    y = np.asarray(y)
    if isinstance(random_state, np.random.Generator):
        random_state = int(random_state.integers(2**31))
    splitter = StratifiedShuffleSplit(
        n_splits, train_size=n_train, test_size=len(y) - n_train, random_state=random_state
    )
    train, test = zip(*splitter.split(np.zeros((len(y), 1)), y), strict=True)
    return train, test


def above(data: Dataset, threshold: float) -> Dataset:
    """Return the two-class problem of labels above a threshold."""
    return replace(data, y=(data.y > threshold).astype(int))


def whole(data: Dataset) -> Dataset:
    """Return a set as it is."""
    return data


def without(data: Dataset, column: str) -> Dataset:
    """Return a set without one of its features."""
    keep = [name != column for name in data.feature_names]
    names = tuple(name for name in data.feature_names if name != column)
    return replace(data, X=data.X[:, keep], feature_names=names)


def first_classes(data: Dataset, n_classes: int, rows_per_class: int) -> Dataset:
    """Return the first rows of the first classes, in the order of their labels."""
    classes = np.unique(data.y)[:n_classes]
    rows = np.concatenate([np.flatnonzero(data.y == c)[:rows_per_class] for c in classes])
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def training_part(data: Dataset, n: int) -> Dataset:
    """Return the training rows of realisation 1; a seeded draw of `n` where none is stored."""
    rows = data.train[0] if data.train else random_splits(data.y, n, 1, random_state=0)[0][0]
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def esl_toy(data: Dataset) -> Dataset:
    """Return the ESL sample to train on, and 5000 new rows of its mixture to test on."""
    centres = read_set("esl_mixture_means", SOURCES["esl_mixture_means"], data.folder)
    X, y = generators.esl_mixture(5000, centres.X, centres.y, random_state=0)
    rows = np.arange(len(data.X) + 5000)
    return replace(
        data,
        X=np.vstack([data.X, X]),
        y=np.concatenate([data.y, y]),
        train=(rows[: len(data.X)],),
        test=(rows[len(data.X) :],),
        realisations=(1,),
    )


_DERIVED: dict[str, Callable[..., Dataset]] = {
    each.__name__: each for each in (above, whole, without, first_classes, training_part, esl_toy)
}


def fetch(name: str) -> Dataset:
    """Return a set from openml.org; scikit-learn keeps it and checks OpenML's checksum.

    Text columns are coded by the alphabetical order of their values, empty entries stay missing. The codes of
    labels may differ from those of the csv files.

    Raises
    ------
    ValueError
        If OpenML does not have the set, or has a table of another shape.
    OSError
        If the net cannot be reached or the checksum is wrong.
    """
    source = source_of(name)
    if not source.openml:
        raise ValueError(f"{name} is not at openml.org; it comes from: {source.how}")
    try:
        bunch = sklearn_datasets.fetch_openml(
            data_id=source.openml,
            target_column=source.openml_target,
            as_frame=True,
            parser="liac-arff",
        )
    except KeyError as error:
        raise ValueError(
            f"table {source.openml} of openml.org has no column {source.openml_target!r}: {error}"
        ) from None
    X = bunch.data.apply(coded_column)
    found, needed = X.shape, (source.rows, source.features)
    if found != needed:
        raise ValueError(
            f"table {source.openml} of openml.org has (rows, features) = {found}; {name} needs {needed}"
        )
    y = bunch.target.to_numpy()
    names = tuple(map(str, X.columns))
    return Dataset(name, X.to_numpy(dtype=float), y, names, f"openml.org {source.openml}")


def coded_column(column: pd.Series) -> pd.Series:
    """Return a column as numbers: text by the alphabetical order of its values."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    values = sorted(column.dropna().astype(str).unique())
    return column.astype(str).where(column.notna()).map({v: i for i, v in enumerate(values)})
