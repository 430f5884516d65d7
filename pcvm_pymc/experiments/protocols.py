"""Protocols of the papers: which rows train and test, and how parameters are chosen.

A `Protocol` names both; `realise` turns a data set into a `Problem` by it. Partitions are of single rows, as
those of the papers whose figures they are compared with: equal rows can be on both sides
(`head_to_head.stratified_draws` keeps them together).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler

from pcvm_pymc.experiments.datasets.loading import load
from pcvm_pymc.experiments.datasets.registry import Dataset, Source, source_of

__all__ = ["SPLITS", "TUNING", "Problem", "Protocol", "cell_seed", "realise", "thinned"]

type Rows = NDArray[np.int64]
type Split = tuple[Rows, Rows]

TUNING = ("none", "median", "mean", "each")


@dataclass(frozen=True)
class Protocol:
    """How an experiment splits its sets and chooses parameters.

    Attributes
    ----------
    name : str
        In words, for reports.
    splits : str
        A key of `SPLITS`.
    tuning : {"none", "median", "mean", "each"}
        Parameters stay at their defaults; are lower medians of those that each of the first realisations
        chooses within its training part; have the smallest mean test error on the first realisations,
        which are then not scored; or are chosen again within each training part.
    n_tuning : int
        The number of first realisations, at most that of repeats.
    share : float
        Of the rows, to train on, for ``splits="shares"``.
    n_folds : int
        For ``splits="folds"``.
    rows, test_rows : int
        Of a realisation at most, drawn class by class; 0 for all.
    """

    name: str
    splits: str
    tuning: str = "none"
    n_tuning: int = 5
    share: float = 0.8
    n_folds: int = 10
    rows: int = 0
    test_rows: int = 0

    def __post_init__(self) -> None:
        if self.splits not in SPLITS:
            raise ValueError(f"splits={self.splits!r} is unknown; use one of {tuple(SPLITS)}")
        if self.tuning not in TUNING:
            raise ValueError(f"tuning={self.tuning!r} is unknown; use one of {TUNING}")

    def tuned(self, repeats: int) -> range:
        """Return the numbers of the realisations on which parameters are chosen beforehand."""
        return range(0 if self.tuning in ("none", "each") else min(self.n_tuning, repeats))

    def scored(self, repeats: int) -> range:
        """Return the numbers of the realisations that a table is the mean of."""
        first = len(self.tuned(repeats)) if self.tuning == "mean" else 0
        return range(first, first + repeats)


@dataclass(frozen=True, eq=False)
class Problem:
    """A set with its realisations, ready to be fitted.

    Attributes
    ----------
    name : str
    X : ndarray, shape (n_obs, n_features)
        As loaded; `parts` fills in missing values and standardises.
    y : ndarray, shape (n_obs,)
    splits : tuple of (train, test)
        Row numbers of each realisation; those of generated sets have no rows in common.
    origins : tuple of str
        What each realisation is: stored, or seeded.
    standardise, missing : str
        As `Source` has them.
    is_regression : bool
    left_out : int
        Rows with missing values that the paper leaves out.
    """

    name: str
    X: NDArray[np.float64]
    y: NDArray[Any]
    splits: tuple[Split, ...]
    origins: tuple[str, ...]
    standardise: str = "train"
    missing: str = ""
    is_regression: bool = False
    left_out: int = 0

    def parts(
        self, k: int
    ) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64], NDArray[Any]]:
        """Return X_train, y_train, X_test, y_test of a realisation, prepared on its training part."""
        train, test = self.splits[k]
        X, X_test = self.X[train], self.X[test]
        if self.missing == "median":
            imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(X)
            X, X_test = imputer.transform(X), imputer.transform(X_test)
        if self.standardise == "train":
            scaler = StandardScaler().fit(X)
            X, X_test = scaler.transform(X), scaler.transform(X_test)
        return X, self.y[train], X_test, self.y[test]

    def checksum(self, k: int) -> str:
        """Return the sha256 of a realisation: its rows of X and y, training and test."""
        digest = hashlib.sha256()
        for rows in self.splits[k]:
            digest.update(np.ascontiguousarray(self.X[rows]).tobytes())
            digest.update(repr(self.y[rows].tolist()).encode())
        return digest.hexdigest()


def cell_seed(seed: int, *names: str | int) -> int:
    """Return a seed that depends on names alone, not on the order in which jobs are run."""
    words = [each if isinstance(each, int) else crc32(each.encode()) for each in names]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1)[0])


def realise(
    name: str,
    protocol: Protocol,
    n: int,
    *,
    seed: int,
    folder: str | Path | None = None,
    download: bool = False,
) -> Problem:
    """Return a set with its first `n` realisations.

    The first realisations do not depend on how many there are.

    Parameters
    ----------
    name : str
        Of the registry.
    protocol : Protocol
    n : int
        Stored realisations come first, seeded ones follow. Folds have as many as there are.
    seed : int
    folder : path, optional
        Default: the folder that ``PCVM_DATA`` names.
    download : bool

    Raises
    ------
    ValueError, FileNotFoundError
        If the set cannot be read or split.
    """
    source = source_of(name)
    if source.generate and protocol.splits != "folds":
        data, splits, origins = _generated(name, n, seed)
    else:
        first = cell_seed(seed, name)
        data = load(name, folder=folder, download=download, random_state=first)
    known = ~np.isnan(data.X).any(axis=1)
    left_out = 0
    if source.missing != "median" and not known.all():
        left_out = int((~known).sum())
        data = _kept(data, known)
    if not source.generate or protocol.splits == "folds":
        try:
            splits, origins = SPLITS[protocol.splits](data, source, protocol, n, seed)
        except ValueError as error:
            raise ValueError(f"{name} cannot be split ({protocol.name}): {error}") from None
    problem = Problem(
        name=name,
        X=data.X,
        y=data.y,
        splits=tuple(splits),
        origins=tuple(origins),
        standardise=source.standardise,
        missing=source.missing,
        is_regression=source.classes == 0,
        left_out=left_out,
    )
    if not (protocol.rows or protocol.test_rows):
        return problem
    n_rows = len(problem.X)
    return thinned(problem, protocol.rows or n_rows, protocol.test_rows or n_rows, seed=seed)


def thinned(problem: Problem, rows: int, test_rows: int, *, seed: int) -> Problem:
    """Return a problem with at most so many training and test rows, the shares of classes kept.

    Two rows of each class stay as long as there is room.

    Parameters
    ----------
    problem : Problem
    rows, test_rows : int
        Of each realisation.
    seed : int
    """
    splits = []
    for k, (train, test) in enumerate(problem.splits):
        rng = np.random.default_rng(cell_seed(seed, problem.name, k, "small"))
        splits.append(
            (_some_of(problem, train, rows, rng), _some_of(problem, test, test_rows, rng))
        )
    return replace(problem, splits=tuple(splits))


def _some_of(problem: Problem, rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    """Return at most so many of these rows, in their order."""
    if len(rows) <= most:
        return rows
    rows = rng.permutation(rows)
    place = np.arange(len(rows), dtype=float)
    if not problem.is_regression:
        for each in np.unique(problem.y[rows]):
            own = np.flatnonzero(problem.y[rows] == each)
            place[own] = (np.arange(len(own)) - 1) / len(own)  # the first two before all others
    return np.sort(rows[np.argsort(place, kind="stable")[:most]])


def _kept(data: Dataset, known: NDArray[np.bool_]) -> Dataset:
    """Return the set without rows that have missing values."""
    if data.train:
        raise ValueError(
            f"{data.name} has missing values and stored realisations; needed one or none"
        )
    return Dataset(data.name, data.X[known], data.y[known], data.feature_names, data.origin)


def _generated(name: str, n: int, seed: int) -> tuple[Dataset, list[Split], list[str]]:
    """Return a new draw for each realisation, one below the other."""
    draws = [load(name, random_state=cell_seed(seed, name, k)) for k in range(n)]
    X = np.vstack([each.X for each in draws])
    y = np.concatenate([each.y for each in draws])
    splits, first = [], 0
    for each in draws:
        splits.append((each.train[0] + first, each.test[0] + first))
        first += len(each.X)
    data = Dataset(name, X, y, draws[0].feature_names, draws[0].origin)
    return data, splits, [f"drawn, seed {seed}"] * n


def _drawn(
    data: Dataset, train: float, test: float, state: int, kind: type = StratifiedShuffleSplit
) -> Split:
    """Return one seeded partition; `train` and `test` are numbers of rows, or shares."""
    splitter = kind(1, train_size=train, test_size=test, random_state=state)
    return next(splitter.split(data.X, data.y))


def _stored(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return the stored splits of a set, then as many random ones of the same size as are missing."""
    splits = list(zip(data.train, data.test, strict=True))[:n]
    origins = [f"stored, number {k}" for k in data.realisations[:n]]
    for k in range(len(splits), n):
        n_train = source.n_train or len(data.train[0])
        splits.append(_drawn(data, n_train, len(data.y) - n_train, cell_seed(seed, data.name, k)))
        origins.append(f"drawn, seed {seed}")
    return splits, origins


def _shares(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return seeded partitions, stratified but for regression."""
    size = source.n_train or protocol.share
    rest = len(data.y) - size if source.n_train else 1.0 - size
    kind = StratifiedShuffleSplit if source.classes else ShuffleSplit
    splits = [_drawn(data, size, rest, cell_seed(seed, data.name, k), kind) for k in range(n)]
    return splits, [f"drawn, seed {seed}"] * n


def _folds(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return the folds of one seeded cross-validation, the first `n` of them."""
    state = cell_seed(seed, data.name)
    smallest = np.unique(data.y, return_counts=True)[1].min() if source.classes else 0
    kind = StratifiedKFold if smallest >= protocol.n_folds else KFold
    folds = kind(protocol.n_folds, shuffle=True, random_state=state)
    splits = list(folds.split(data.X, data.y))[:n]
    return splits, [f"fold, seed {seed}"] * len(splits)


def _halves(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return five replications of two folds (Alpaydin 1999): two realisations each."""
    splits: list[Split] = []
    for i in range((n + 1) // 2):
        state = cell_seed(seed, data.name, i)
        splits += list(StratifiedKFold(2, shuffle=True, random_state=state).split(data.X, data.y))
    return splits[:n], [f"half, seed {seed}"] * n


def _subsets(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return random subsets of the stored training part, each with the stored test part."""
    splits = []
    for k in range(n):
        splitter = StratifiedShuffleSplit(
            1, train_size=source.n_train, random_state=cell_seed(seed, data.name, k)
        )
        pick, _ = next(splitter.split(data.X[data.train[0]], data.y[data.train[0]]))
        splits.append((data.train[0][pick], data.test[0]))
    return splits, [f"subset, seed {seed}"] * n


def _predefined(
    data: Dataset, source: Source, protocol: Protocol, n: int, seed: int
) -> tuple[list[Split], list[str]]:
    """Return the stored realisations and no others; seeded ones where none is stored."""
    return _stored(data, source, protocol, min(n, len(data.train)) or n, seed)


SPLITS: dict[str, Callable[..., tuple[list[Split], list[str]]]] = {
    "stored": _stored,
    "predefined": _predefined,
    "shares": _shares,
    "folds": _folds,
    "halves": _halves,
    "subsets": _subsets,
}
