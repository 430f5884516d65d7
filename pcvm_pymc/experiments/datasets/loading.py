"""Reading a set by its name, from wherever it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as sklearn_datasets

from pcvm_pymc.experiments.datasets.files import data_folder, read_set
from pcvm_pymc.experiments.datasets.openml import fetch
from pcvm_pymc.experiments.datasets.records import Dataset, Seed, Source
from pcvm_pymc.experiments.datasets.registry import SOURCES, source_of

__all__ = ["available", "load"]


def available(folder: str | Path | None = None) -> tuple[str, ...]:
    """Return the names that `load` can read now (default folder: `data_folder`)."""
    folder = Path(folder) if folder is not None else data_folder()

    def is_there(source: Source) -> bool:
        if source.base:
            return is_there(SOURCES[source.base])
        if source.shipped or source.generate is not None:
            return True
        return bool(folder and source.files and all((folder / f).is_file() for f in source.files))

    return tuple(name for name, source in SOURCES.items() if is_there(source))


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    random_state: Seed = 0,
    download: bool = False,
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
        Whether to ask openml.org for a set that the folder does not hold, see `fetch`.

    Returns
    -------
    Dataset
        Missing cells are NaN and are never imputed.

    Raises
    ------
    ValueError
        If the name is unknown, or a file cannot be read as the set.
    FileNotFoundError
        If the folder or a file is missing; the message says where the set comes from.
    """
    source = source_of(name)
    place = Path(folder) if folder is not None else data_folder()
    if source.generate is not None:
        X, y = source.generate(source.rows, random_state=random_state)
        return _drawn(name, source, X, y)
    if source.shipped:
        return _shipped(name, source)
    if source.derive is not None:
        base = load(source.base, folder=place, download=download)
        return replace(source.derive(replace(base, folder=place)), name=name)
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
