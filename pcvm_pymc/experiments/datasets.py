"""Data sets of the papers: one registry, generated, from scikit-learn, OpenML or a folder.

None of the real sets is part of this package. `load` reads them from a folder of csv files (last
column ``target``, an empty cell is a missing value, ``*_splits.npz`` with the arrays ``train``,
``test`` and ``realisation``), and says where a set comes from when it is not there.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets as sklearn_datasets
from sklearn.model_selection import StratifiedShuffleSplit

from pcvm_pymc.experiments import generators
from pcvm_pymc.experiments.errors import first_line, suggestion
from pcvm_pymc.experiments.generators import (
    BUMPY_SCALES,
    OVERLAP_MEAN,
    RIPLEY_CENTRES,
    RIPLEY_VARIANCE,
    bumpy,
    overclass,
    overlap,
    overlap_classes,
    relevance,
    ringnorm,
    ripley_mixture,
    spiral,
    twonorm,
    waveform,
)

__all__ = [
    "BUMPY_SCALES",
    "OVERLAP_MEAN",
    "RIPLEY_CENTRES",
    "RIPLEY_VARIANCE",
    "SOURCES",
    "Dataset",
    "Source",
    "available",
    "bumpy",
    "data_folder",
    "describe",
    "fetch",
    "load",
    "overclass",
    "overlap",
    "overlap_classes",
    "random_splits",
    "relevance",
    "ringnorm",
    "ripley_mixture",
    "spiral",
    "twonorm",
    "waveform",
]

type Seed = int | np.random.Generator
type Floats = NDArray[np.float64]
type Rows = NDArray[np.int64]

ENVIRONMENT_VARIABLE = "PCVM_DATA"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded set.

    Attributes
    ----------
    name : str
    X : ndarray, shape (n_obs, n_features)
        Missing cells are NaN; nothing is imputed or dropped.
    y : ndarray, shape (n_obs,)
        Targets in the file's own code.
    feature_names : tuple of str
    origin : str
    train, test : tuple of ndarray of int
        Row numbers of each stored realisation, none for most sets.
    realisations : tuple of int
        Their numbers in the original collection (-1 where unknown).
    folder : Path or None
        Where it was read.
    """

    name: str
    X: Floats
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    origin: str
    train: tuple[Rows, ...] = ()
    test: tuple[Rows, ...] = ()
    realisations: tuple[int, ...] = ()
    folder: Path | None = None

    def split(self, k: int) -> tuple[Floats, NDArray[Any], Floats, NDArray[Any]]:
        """Return X_train, y_train, X_test, y_test of the k-th stored realisation, from 0.

        Raises
        ------
        IndexError
            If there is no such realisation.
        """
        if not 0 <= k < len(self.train):
            raise IndexError(
                f"{self.name} has {len(self.train)} stored realisation(s), found k={k}; "
                "random_splits(y, ...) makes new ones"
            )
        train, test = self.train[k], self.test[k]
        return self.X[train], self.y[train], self.X[test], self.y[test]


@dataclass(frozen=True)
class Source:
    """What is known of a set before it is read.

    Attributes
    ----------
    rows, features : int
        Rows of a generated set are those of one realisation.
    origin : str
        Where the original lives.
    files : tuple of str
        Csv files in the data folder, one below the other; empty where another source serves.
    splits : str
        The ``.npz`` of stored realisations, or ``"halves"`` where the files are train and test, or
        a csv file with a column ``part``, or the number of leading rows to train on; empty for none.
    shipped : str
        Name of scikit-learn's loader.
    classes : int
        0 for regression.
    used : tuple of str
        Tables and figures of the papers that show it.
    standardise : {"train", "stored", "none"}
        Columns are to be standardised on each training part, are so in the file, or stay as they are.
    missing : {"", "drop", "median"}
        What the papers' protocols do about missing cells: nothing to do, leave out the row, or fill in the
        column's median on the training part.
    n_train : int
        The paper's training rows of a realisation; 0 where its protocol splits by shares or folds.
    generate : callable, optional
        ``(n, random_state=...) -> X, y``.
    base : str
        The set that this one is made from.
    derive : callable, optional
        ``(Dataset) -> Dataset``, from the base.
    openml : int
        Number of the same table at openml.org; 0 for none.
    openml_target : str
        Its label column there.
    """

    rows: int
    features: int
    origin: str
    files: tuple[str, ...] = ()
    splits: str = ""
    shipped: str = ""
    classes: int = 2
    used: tuple[str, ...] = ()
    standardise: str = "train"
    missing: str = ""
    n_train: int = 0
    generate: Callable[..., tuple[Floats, NDArray[Any]]] | None = None
    base: str = ""
    derive: Callable[[Dataset], Dataset] | None = None
    openml: int = 0
    openml_target: str = ""

    @property
    def how(self) -> str:
        """How to obtain it, in words."""
        if self.generate is not None:
            return "generated"
        if self.shipped:
            return "shipped with scikit-learn"
        if self.base:
            return f"made from {self.base}"
        files = " and ".join(self.files)
        by_net = f", or --download (openml.org {self.openml})" if self.openml else ""
        return f"{files} in {ENVIRONMENT_VARIABLE}{by_net}"


_RAETSCH = "IDA benchmark repository, G. Raetsch"
_UCI = "UCI Machine Learning Repository"
_CHEN, _FJ, _RVM = "chen2009", "figueiredo2001", "chmielewski2019"
_KROPOTOV, _LYU = "kropotov2006", "lyu2020"


def _raetsch(
    name: str, rows: int, features: int, n_train: int, *, ending: str = "csv", splits: bool = True
) -> Source:
    return Source(
        rows,
        features,
        _RAETSCH,
        (f"raetsch_{name}.{ending}",),
        f"raetsch_{name}_splits.npz" if splits else "",
        used=("chen2009 Tables I-VII",),
        standardise="stored",
        n_train=n_train,
    )


def _generated(
    generate: Callable[..., tuple[Floats, NDArray[Any]]],
    n_train: int,
    n_test: int,
    features: int,
    used: str,
    **more: Any,
) -> Source:
    more = {"standardise": "none"} | more
    return Source(
        n_train + n_test,
        features,
        "generated",
        used=(used,),
        n_train=n_train,
        generate=generate,
        **more,
    )


def _above(threshold: float, data: Dataset) -> Dataset:
    """Return the two-class problem of labels above a threshold."""
    return replace(data, y=(data.y > threshold).astype(int))


def _without(column: str, data: Dataset) -> Dataset:
    keep = [name != column for name in data.feature_names]
    names = tuple(name for name in data.feature_names if name != column)
    return replace(data, X=data.X[:, keep], feature_names=names)


def _first_classes(n_classes: int, rows_per_class: int, data: Dataset) -> Dataset:
    """Return the first rows of the first classes, in the order of their labels."""
    classes = np.unique(data.y)[:n_classes]
    rows = np.concatenate([np.flatnonzero(data.y == c)[:rows_per_class] for c in classes])
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def _training_part(data: Dataset) -> Dataset:
    """Return the training rows of realisation 1; a seeded draw where none is stored."""
    n = SOURCES[data.name].n_train
    rows = data.train[0] if data.train else random_splits(data.y, n, 1, random_state=0)[0][0]
    return replace(data, X=data.X[rows], y=data.y[rows], train=(), test=(), realisations=())


def _friedman(which: int, n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw scikit-learn's Friedman sets, the targets in units of their standard deviation."""
    rng = np.random.default_rng(random_state)
    make = getattr(sklearn_datasets, f"make_friedman{which}")
    X, y = make(n, random_state=int(rng.integers(2**31)))
    y = y / y.std()
    return X, y + 0.1 * rng.normal(size=n)


def _letters(n_classes: int) -> Source:
    return Source(
        600 * n_classes,
        16,
        _UCI,
        base="letter",
        derive=partial(_first_classes, n_classes, 600),
        classes=n_classes,
        used=("lyu2020 Fig. 5",),
        n_train=200 * n_classes,
    )


def _leaves(n_classes: int) -> Source:
    return Source(
        16 * n_classes,
        64,
        _UCI,
        base="leaves_margin",
        derive=partial(_first_classes, n_classes, 16),
        classes=n_classes,
        used=("lyu2020 Fig. 6",),
    )


def _toy(data: Dataset) -> Dataset:
    """Return the ESL sample to train on, and 5000 new rows of its mixture to test on."""
    centres = load("esl_mixture_means", folder=data.folder)
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


def _disease(base: str, rows: int, features: int = 13) -> Source:
    return Source(
        rows,
        features,
        _UCI,
        base=base,
        derive=partial(_above, 0),
        used=("kropotov2006 Table I",),
        missing="median",
    )


def _small_regression(rows: int, features: int, **where: Any) -> Source:
    return Source(
        rows,
        features,
        _UCI,
        classes=0,
        used=("chmielewski2019 Tables 1-2",),
        **where,
    )


_FJ_DIMENSIONS = (2, 4, 6, 8, 10, 15, 20)
SOURCES: dict[str, Source] = {
    "banana": _raetsch("banana", 5300, 2, 400),
    "breast_cancer": _raetsch("breast_cancer", 277, 9, 200),
    "diabetis": _raetsch("diabetis", 768, 8, 468),
    "flare_solar": _raetsch("flare_solar", 1066, 9, 666),
    "german": _raetsch("german", 1000, 20, 700),
    "heart": _raetsch("heart", 270, 13, 170),
    "image": _raetsch("image", 2310, 18, 1300),
    "ringnorm": _raetsch("ringnorm", 7400, 20, 400, ending="csv.gz"),
    "splice": _raetsch("splice", 3175, 60, 1000),
    "thyroid": _raetsch("thyroid", 215, 5, 140, splits=False),
    "titanic": _raetsch("titanic", 2201, 3, 150),
    "twonorm": _raetsch("twonorm", 7400, 20, 400, ending="csv.gz"),
    "waveform": _raetsch("waveform", 5000, 21, 400, ending="csv.gz"),
    "ripley": Source(
        1250,
        2,
        "R package MASS, synth.tr and synth.te (B. D. Ripley)",
        ("ripley_synth_train.csv", "ripley_synth_test.csv"),
        "halves",
        used=("figueiredo2001 Fig. 4, Table 1",),
        standardise="none",
        n_train=100,
    ),
    "pima_ripley": Source(
        532,
        7,
        "R package MASS, Pima.tr and Pima.te",
        ("pima_ripley_train.csv", "pima_ripley_test.csv"),
        "halves",
        used=("figueiredo2001 Table 2",),
        n_train=200,
    ),
    "crabs": Source(200, 6, "R package MASS, crabs", ("crabs.csv",)),
    "crabs_sex": Source(
        200,
        5,
        "R package MASS, crabs",
        base="crabs",
        derive=partial(_without, "species"),
        used=("figueiredo2001 Table 2",),
        n_train=80,
    ),
    "fgl": Source(
        214,
        9,
        "R package MASS, fgl",
        ("fgl.csv",),
        classes=6,
        used=("figueiredo2001 Table 3",),
    ),
    "wisconsin_original": Source(
        699, 9, _UCI, ("wisconsin_original.csv",), used=("lyu2020 Tables 2-7",), missing="drop"
    ),
    "glass": Source(214, 9, _UCI, ("glass_uci.csv",), classes=6, used=("lyu2020 Tables 2-7",)),
    "heart_cleveland": Source(303, 13, _UCI, ("heart_cleveland.csv",), classes=5, missing="median"),
    "heart_hungarian": Source(
        294,
        13,
        _UCI,
        ("heart_hungarian.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
    ),
    "heart_hungarian_reprocessed": Source(
        294,
        13,
        _UCI,
        ("heart_hungarian_reprocessed.csv",),
        classes=5,
        used=("lyu2020 Tables 2-7",),
        missing="median",
    ),
    "heart_switzerland": Source(
        123, 13, _UCI, ("heart_switzerland.csv",), classes=5, missing="median"
    ),
    "heart_va": Source(200, 13, _UCI, ("heart_va.csv",), classes=5, missing="median"),
    "cleveland": _disease("heart_cleveland", 303),
    "switzerland": _disease("heart_switzerland", 123),
    "long_beach": _disease("heart_va", 200),
    "vowel": Source(
        990,
        10,
        _UCI,
        ("vowel.csv",),
        "vowel_split.csv",
        classes=11,
        used=("lyu2020 Tables 2-7",),
    ),
    "winequality_red": Source(
        1599,
        11,
        _UCI,
        ("winequality_red.csv",),
        classes=6,
        used=("lyu2020 Tables 2-7",),
        openml=40691,
        openml_target="class",
    ),
    "winequality_white": Source(
        4898,
        11,
        _UCI,
        ("winequality_white.csv",),
        classes=7,
        used=("lyu2020 Tables 2-7",),
        openml=40498,
        openml_target="Class",
    ),
    "letter": Source(20000, 16, _UCI, ("letter.csv",), "16000", classes=26),
    **{f"letter_{n}": _letters(n) for n in range(2, 11)},
    "leaves_margin": Source(1600, 64, _UCI, ("leaves_margin.csv.gz",), classes=100),
    "leaves_shape": Source(1600, 64, _UCI, ("leaves_shape.csv.gz",), classes=100),
    **{f"leaves_{n}": _leaves(n) for n in (20, 40, 60, 80, 100)},
    "australian": Source(690, 14, _UCI, ("australian.csv",), used=("kropotov2006 Table I",)),
    "bupa": Source(
        345,
        6,
        _UCI,
        ("bupa.csv",),
        used=("kropotov2006 Table I",),
        openml=8,
        openml_target="selector",
    ),
    "credit": Source(
        690,
        15,
        _UCI,
        ("credit.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
        openml=29,
        openml_target="class",
    ),
    "hepatitis": Source(
        155,
        19,
        _UCI,
        ("hepatitis.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
        openml=55,
        openml_target="Class",
    ),
    "pima": Source(768, 8, _UCI, ("pima_full.csv",), used=("kropotov2006 Table I",)),
    "esl_mixture": Source(
        200,
        2,
        "R package ElemStatLearn, mixture.example",
        ("esl_mixture.csv",),
        standardise="none",
    ),
    "esl_mixture_means": Source(
        20,
        2,
        "R package ElemStatLearn, mixture.example",
        ("esl_mixture_means.csv",),
        standardise="none",
    ),
    "esl_toy": Source(
        5200,
        2,
        "R package ElemStatLearn, mixture.example",
        base="esl_mixture",
        derive=_toy,
        used=("kropotov2006 Fig. 6",),
        standardise="none",
        n_train=200,
    ),
    "boston_housing": _small_regression(506, 13, files=("boston_housing.csv",)),
    "airfoil_self_noise": _small_regression(1503, 5, files=("airfoil_self_noise.csv",)),
    "wisconsin_diagnostic": Source(
        569,
        30,
        "scikit-learn",
        shipped="load_breast_cancer",
        used=("figueiredo2001 Table 2", "chmielewski2019 Tables 1-2"),
        n_train=300,
    ),
    "iris": Source(
        150, 4, "scikit-learn", shipped="load_iris", classes=3, used=("lyu2020 Tables 2-7",)
    ),
    "wine": Source(
        178, 13, "scikit-learn", shipped="load_wine", classes=3, used=("lyu2020 Tables 2-7",)
    ),
    "digits": Source(1797, 64, "scikit-learn", shipped="load_digits", classes=10),
    "spiral": _generated(spiral, 200, 2000, 2, "chen2009 Fig. 4"),
    "overlap": _generated(overlap, 200, 2000, 2, "chen2009 Fig. 4"),
    "bumpy": _generated(bumpy, 200, 2000, 2, "chen2009 Fig. 4"),
    "relevance": _generated(relevance, 200, 2000, 2, "chen2009 Fig. 4"),
    "overlap_classes": _generated(overlap_classes, 150, 3000, 2, "lyu2020 Fig. 3", classes=3),
    "overclass": _generated(
        lambda n, *, random_state: overclass(random_state=random_state),
        127,
        0,
        2,
        "lyu2020 Fig. 4, Table 1",
        classes=10,
    ),
    **{
        f"gaussians_{d}": _generated(
            partial(generators.gaussians, n_features=d), 200, 1000, d, "figueiredo2001 Fig. 2"
        )
        for d in _FJ_DIMENSIONS
    },
    **{
        f"half_gaussians_{d}": _generated(
            partial(generators.gaussians, n_features=d), 100, 1000, d, "figueiredo2001 Fig. 3"
        )
        for d in (*_FJ_DIMENSIONS, 30, 40)
    },
    **{
        name: _generated(make, n, 0, d, "chmielewski2019 Tables 1-2", classes=0, **how)
        for name, make, n, d, how in (
            ("wave", generators.wave, 30, 1, {}),
            ("wave40", generators.wave, 40, 1, {}),
            ("sinc", generators.sinc, 100, 1, {}),
            ("friedman2", partial(_friedman, 2), 300, 4, {"standardise": "train"}),
            ("friedman3", partial(_friedman, 3), 300, 4, {"standardise": "train"}),
        )
    },
    "sinc_quiet": _generated(
        partial(generators.sinc, noise=0.01), 100, 0, 1, "chmielewski2019 Fig. 2", classes=0
    ),
    "linear": _generated(
        generators.hyperplane, 100, 0, 2, "chmielewski2019 Tables 1-2", standardise="none"
    ),
    **{
        f"{name}_training": Source(
            n,
            d,
            _RAETSCH,
            base=name,
            derive=_training_part,
            used=("chmielewski2019 Tables 1-2",),
            standardise="stored",
        )
        for name, n, d in (
            ("thyroid", 140, 5),
            ("titanic", 150, 3),
            ("banana", 400, 2),
            ("waveform", 400, 21),
            ("german", 700, 20),
        )
    },
}


def describe() -> pd.DataFrame:
    """Return the registry as a table: a row for each set."""
    rows = {
        name: {
            "rows": each.rows,
            "features": each.features,
            "classes": each.classes,
            "origin": each.origin,
            "used in": "; ".join(each.used),
            "standardised": each.standardise,
            "missing cells": each.missing,
            "how to obtain": each.how,
        }
        for name, each in SOURCES.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def data_folder() -> Path | None:
    """Return the folder that the environment variable ``PCVM_DATA`` names; None if it is not set.

    Raises
    ------
    NotADirectoryError
        If it names something that is not a folder.
    """
    value = os.environ.get(ENVIRONMENT_VARIABLE)
    if not value:
        return None
    folder = Path(value)
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{ENVIRONMENT_VARIABLE}={value} is not a folder; needed one with the csv files, or unset it"
        )
    return folder


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
        return _drawn(name, source, random_state)
    if source.shipped:
        return _shipped(name, source)
    if source.base:
        base = load(source.base, folder=place, download=download)
        return replace(source.derive(replace(base, folder=place)), name=name)
    if download and source.openml and name not in available(place):
        return fetch(name)
    frames = [_read(name, source, place, file) for file in source.files]
    frame = pd.concat(frames, ignore_index=True)
    found, needed = (len(frame), frame.shape[1] - 1), (source.rows, source.features)
    if found != needed:
        raise ValueError(f"{name} has (rows, features) = {found} in {place}; needed {needed}")
    train, test, numbers = _realisations(source, place, len(frames[0]), len(frame))
    return Dataset(
        name=name,
        X=_numbers(frame.drop(columns="target"), place),
        y=_labels(frame["target"], name, source, place),
        feature_names=tuple(map(str, frame.columns[:-1])),
        origin=source.origin,
        train=train,
        test=test,
        realisations=numbers,
        folder=place,
    )


def source_of(name: str) -> Source:
    """Return a set's entry in the registry.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest names.
    """
    if name not in SOURCES:
        hint = suggestion(name, SOURCES)
        raise ValueError(f"data set {name!r} is unknown; {hint}known: {', '.join(sorted(SOURCES))}")
    return SOURCES[name]


def fetch(name: str) -> Dataset:
    """Return a set from openml.org; scikit-learn keeps it and checks OpenML's checksum.

    Text columns are coded by the alphabetical order of their values, empty cells stay missing. The codes of
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
    X = bunch.data.apply(_coded_column)
    found, needed = X.shape, (source.rows, source.features)
    if found != needed:
        raise ValueError(
            f"table {source.openml} of openml.org has (rows, features) = {found}; {name} needs {needed}"
        )
    y = bunch.target.to_numpy()
    names = tuple(map(str, X.columns))
    return Dataset(name, X.to_numpy(dtype=float), y, names, f"openml.org {source.openml}")


def _coded_column(column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    values = sorted(column.dropna().astype(str).unique())
    return column.astype(str).where(column.notna()).map({v: i for i, v in enumerate(values)})


def _drawn(name: str, source: Source, random_state: Seed) -> Dataset:
    """Return one realisation of a generated set, its first rows to train on."""
    X, y = source.generate(source.rows, random_state=random_state)
    rows = np.arange(len(X))
    names = tuple(f"x{j + 1}" for j in range(X.shape[1]))
    train, test = ((rows[: source.n_train],), (rows[source.n_train :],))
    return Dataset(name, X, y, names, source.origin, train, test, (1,))


def _shipped(name: str, source: Source) -> Dataset:
    bunch = getattr(sklearn_datasets, source.shipped)()
    features = tuple(map(str, bunch.feature_names))
    return Dataset(name, np.asarray(bunch.data, float), bunch.target, features, source.origin)


def _read(name: str, source: Source, folder: Path | None, file: str) -> pd.DataFrame:
    if folder is None or not (folder / file).is_file():
        where = f"{folder} holds no {file}" if folder else f"{ENVIRONMENT_VARIABLE} is not set"
        raise FileNotFoundError(
            f"data set {name!r} is missing: {where}. It comes from: {source.origin}. Put it as {file} "
            f"(csv, last column 'target') into a folder and set {ENVIRONMENT_VARIABLE} to that folder"
        )
    try:
        # only an empty cell is missing: "NA" is a label like any other
        frame = pd.read_csv(folder / file, keep_default_na=False, na_values=[""])
    except Exception as error:  # as do spoiled archives and texts here
        raise ValueError(f"{folder / file} cannot be read as csv: {first_line(error)}") from None
    if len(frame.columns) == 0 or frame.columns[-1] != "target":
        last = repr(frame.columns[-1]) if len(frame.columns) else "none"
        raise ValueError(f"{folder / file} has the last column {last}; needed 'target'")
    return frame


def _numbers(frame: pd.DataFrame, folder: Path | None) -> Floats:
    """Return features; a column of text or with infinite cells is an error."""
    text = [str(name) for name in frame if not pd.api.types.is_numeric_dtype(frame[name].dtype)]
    if text:
        raise ValueError(
            f"columns {', '.join(text[:10])} in {folder} are not numbers; needed numbers or empty cells"
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
            f"{folder} holds {', '.join(source.files)} but not {source.splits}, its stored realisations; "
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
