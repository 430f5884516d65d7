"""Sets that are made from others: other labels, fewer columns, classes or rows; and new splits."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import StratifiedShuffleSplit

from pcvm_pymc.experiments.datasets.files import read_set
from pcvm_pymc.experiments.datasets.generators import esl_mixture
from pcvm_pymc.experiments.datasets.records import Dataset, Rows, Seed, Source

__all__ = [
    "above",
    "esl_toy",
    "first_classes",
    "random_splits",
    "training_part",
    "whole",
    "without",
]


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


def above(threshold: float, data: Dataset) -> Dataset:
    """Return the two-class problem of labels above a threshold."""
    return replace(data, y=(data.y > threshold).astype(int))


def whole(data: Dataset) -> Dataset:
    """Return a set as it is."""
    return data


def without(column: str, data: Dataset) -> Dataset:
    """Return a set without one of its features."""
    keep = [name != column for name in data.feature_names]
    names = tuple(name for name in data.feature_names if name != column)
    return replace(data, X=data.X[:, keep], feature_names=names)


def first_classes(n_classes: int, rows_per_class: int, data: Dataset) -> Dataset:
    """Return the first rows of the first classes, in the order of their labels."""
    classes = np.unique(data.y)[:n_classes]
    rows = np.concatenate([np.flatnonzero(data.y == c)[:rows_per_class] for c in classes])
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def training_part(n: int, data: Dataset) -> Dataset:
    """Return the training rows of realisation 1; a seeded draw of `n` where none is stored."""
    rows = data.train[0] if data.train else random_splits(data.y, n, 1, random_state=0)[0][0]
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def esl_toy(means: Source, data: Dataset) -> Dataset:
    """Return the ESL sample to train on, and 5000 new rows of its mixture to test on."""
    centres = read_set("esl_mixture_means", means, data.folder)
    X, y = esl_mixture(5000, centres.X, centres.y, random_state=0)
    rows = np.arange(len(data.X) + 5000)
    return replace(
        data,
        X=np.vstack([data.X, X]),
        y=np.concatenate([data.y, y]),
        train=(rows[: len(data.X)],),
        test=(rows[len(data.X) :],),
        realisations=(1,),
    )
