"""Data sets of the papers: generators, scikit-learn's, and a folder named by ``PCVM_DATA``.

None of the real sets is part of this package. `load` reads them from a folder of csv files (last
column ``target``, an empty cell is a missing value, ``*_splits.npz`` with the arrays ``train``,
``test`` and ``realisation``), and says where a set comes from when it is not there.
"""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets as sklearn_datasets
from sklearn.model_selection import StratifiedShuffleSplit

__all__ = [
    "SOURCES",
    "Dataset",
    "Source",
    "available",
    "bumpy",
    "data_folder",
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
    """

    name: str
    X: Floats
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    origin: str
    train: tuple[Rows, ...] = ()
    test: tuple[Rows, ...] = ()
    realisations: tuple[int, ...] = ()

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
    origin : str
        Where the original lives.
    files : tuple of str
        Csv files in the data folder, one below the other; empty where another source serves.
    splits : str
        The ``.npz`` of stored realisations, or ``"halves"`` where the files are train and test, or
        a csv file with a column ``part``, or the number of leading rows to train on; empty for none.
    shipped : str
        Name of scikit-learn's loader.
    """

    rows: int
    features: int
    origin: str
    files: tuple[str, ...] = ()
    splits: str = ""
    shipped: str = ""


_RAETSCH = "IDA benchmark repository, G. Raetsch"
_UCI = "UCI Machine Learning Repository"


def _raetsch(
    name: str, rows: int, features: int, ending: str = "csv", splits: bool = True
) -> Source:
    stored = f"raetsch_{name}_splits.npz" if splits else ""
    return Source(rows, features, _RAETSCH, (f"raetsch_{name}.{ending}",), stored)


SOURCES: dict[str, Source] = {
    "banana": _raetsch("banana", 5300, 2),
    "breast_cancer": _raetsch("breast_cancer", 277, 9),
    "diabetis": _raetsch("diabetis", 768, 8),
    "german": _raetsch("german", 1000, 20),
    "heart": _raetsch("heart", 270, 13),
    "image": _raetsch("image", 2310, 18),
    "ringnorm": _raetsch("ringnorm", 7400, 20, "csv.gz"),
    "thyroid": _raetsch("thyroid", 215, 5, splits=False),
    "titanic": _raetsch("titanic", 2201, 3),
    "twonorm": _raetsch("twonorm", 7400, 20, "csv.gz"),
    "waveform": _raetsch("waveform", 5000, 21, "csv.gz"),
    "flare_solar": _raetsch("flare_solar", 1066, 9),
    "splice": _raetsch("splice", 3175, 60),
    "ripley": Source(
        1250,
        2,
        "R package MASS, synth.tr and synth.te (B. D. Ripley)",
        ("ripley_synth_train.csv", "ripley_synth_test.csv"),
        "halves",
    ),
    "pima_ripley": Source(
        532,
        7,
        "R package MASS, Pima.tr and Pima.te",
        ("pima_ripley_train.csv", "pima_ripley_test.csv"),
        "halves",
    ),
    "crabs": Source(200, 6, "R package MASS, crabs", ("crabs.csv",)),
    "fgl": Source(214, 9, "R package MASS, fgl", ("fgl.csv",)),
    "wisconsin_original": Source(699, 9, _UCI, ("wisconsin_original.csv",)),
    "glass": Source(214, 9, _UCI, ("glass_uci.csv",)),
    "heart_cleveland": Source(303, 13, _UCI, ("heart_cleveland.csv",)),
    "heart_hungarian": Source(294, 13, _UCI, ("heart_hungarian.csv",)),
    "heart_hungarian_reprocessed": Source(294, 13, _UCI, ("heart_hungarian_reprocessed.csv",)),
    "heart_switzerland": Source(123, 13, _UCI, ("heart_switzerland.csv",)),
    "heart_va": Source(200, 13, _UCI, ("heart_va.csv",)),
    "vowel": Source(990, 10, _UCI, ("vowel.csv",), "vowel_split.csv"),
    "winequality_white": Source(4898, 11, _UCI, ("winequality_white.csv",)),
    "letter": Source(20000, 16, _UCI, ("letter.csv",), "16000"),
    "leaves_margin": Source(1600, 64, _UCI, ("leaves_margin.csv.gz",)),
    "leaves_shape": Source(1600, 64, _UCI, ("leaves_shape.csv.gz",)),
    "australian": Source(690, 14, _UCI, ("australian.csv",)),
    "pima": Source(768, 8, _UCI, ("pima_full.csv",)),
    "esl_mixture": Source(200, 2, "R package ElemStatLearn, mixture.example", ("esl_mixture.csv",)),
    "boston_housing": Source(506, 13, _UCI, ("boston_housing.csv",)),
    "airfoil_self_noise": Source(1503, 5, _UCI, ("airfoil_self_noise.csv",)),
    "wisconsin_diagnostic": Source(569, 30, "scikit-learn", shipped="load_breast_cancer"),
    "iris": Source(150, 4, "scikit-learn", shipped="load_iris"),
    "wine": Source(178, 13, "scikit-learn", shipped="load_wine"),
    "digits": Source(1797, 64, "scikit-learn", shipped="load_digits"),
}


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
        if source.shipped:
            return True
        return bool(folder and source.files and all((folder / f).is_file() for f in source.files))

    return tuple(name for name, source in SOURCES.items() if is_there(source))


def load(name: str, *, folder: str | Path | None = None) -> Dataset:
    """Read a set from scikit-learn or from the data folder.

    Parameters
    ----------
    name : str
        A key of `SOURCES`.
    folder : path, optional
        Default: the folder that ``PCVM_DATA`` names.

    Returns
    -------
    Dataset
        Missing cells are NaN and are never imputed.

    Raises
    ------
    ValueError
        If the name is unknown, or a file has another shape than the set.
    FileNotFoundError
        If the folder or a file is missing; the message says where the set comes from.
    """
    if name not in SOURCES:
        close = difflib.get_close_matches(name, SOURCES, n=3)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise ValueError(f"data set {name!r} is unknown; {hint}known: {', '.join(sorted(SOURCES))}")
    source = SOURCES[name]
    if source.shipped:
        return _shipped(name, source)
    place = Path(folder) if folder is not None else data_folder()
    frames = [_read(name, source, place, file) for file in source.files]
    frame = pd.concat(frames, ignore_index=True)
    found, needed = (len(frame), frame.shape[1] - 1), (source.rows, source.features)
    if found != needed:
        raise ValueError(f"{name} has (rows, features) = {found} in {place}; needed {needed}")
    train, test, numbers = _realisations(source, place, len(frames[0]), len(frame))
    return Dataset(
        name=name,
        X=frame.drop(columns="target").to_numpy(dtype=float),
        y=frame["target"].to_numpy(),
        feature_names=tuple(map(str, frame.columns[:-1])),
        origin=source.origin,
        train=train,
        test=test,
        realisations=numbers,
    )


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
    # only an empty cell is missing: "NA" is a label like any other
    frame = pd.read_csv(folder / file, keep_default_na=False, na_values=[""])
    if frame.columns[-1] != "target":
        raise ValueError(
            f"{folder / file} has the last column {frame.columns[-1]!r}; needed 'target'"
        )
    return frame


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
    if source.splits.endswith(".csv"):
        part = pd.read_csv(folder / source.splits)["part"].to_numpy()
        return (rows[part == "train"],), (rows[part == "test"],), (1,)
    with np.load(folder / source.splits) as stored:
        return (
            tuple(stored["train"].astype(np.int64)),
            tuple(stored["test"].astype(np.int64)),
            tuple(int(number) for number in stored["realisation"]),
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


# --- generators ------------------------------------------------------------------------------


def _start(n: int, random_state: Seed) -> tuple[np.random.Generator, Floats]:
    """Return a generator and labels -1. / +1. with equal probability, at least one of each."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 2:
        raise ValueError(f"n={n!r}; needed a whole number of at least 2")
    rng = np.random.default_rng(_given_seed(random_state))
    label = rng.choice([-1.0, 1.0], size=n)
    label[rng.permutation(n)[:2]] = [-1.0, 1.0]
    return rng, label


def _two_gaussians(
    n: int, random_state: Seed, means: tuple[Floats, Floats], factors: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Draw classes -1 and +1 from Gaussians with these means and covariance factors L (L L')."""
    rng, label = _start(n, random_state)
    noise = rng.normal(size=(n, len(means[0])))
    lower, upper = (mean + noise @ factor.T for mean, factor in zip(means, factors, strict=True))
    return np.where(label[:, None] > 0, upper, lower), label


def spiral(
    n: int, *, random_state: Seed, noise: float = 0.1, turns: float = 1.5
) -> tuple[Floats, Floats]:
    """Draw *Spiral* (Chen et al. 2009, Fig. 4a): two intertwined spirals in the plane.

    The paper gives no constants; these are ours: radius from 0.2 to 2, `turns` turns, Gaussian noise
    of standard deviation `noise`.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, label = _start(n, random_state)
    share = np.sqrt(rng.uniform(size=n))  # even along the curve
    angle = 2 * np.pi * turns * share + np.where(label > 0, np.pi, 0.0)
    radius = 0.2 + 1.8 * share
    X = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return X + noise * rng.normal(size=(n, 2)), label


OVERLAP_MEAN = np.array([0.8, 0.8])


def overlap(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw *Overlap* (Chen et al. 2009, Fig. 4b): two Gaussians of equal covariance.

    The paper gives no constants; these are ours: means -(0.8, 0.8) and (0.8, 0.8), covariance I, so
    that the Bayes boundary is x1 + x2 = 0 with an error of 12.9 %.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    eye = np.eye(2)
    return _two_gaussians(n, random_state, (-OVERLAP_MEAN, OVERLAP_MEAN), (eye, eye))


BUMPY_SCALES = np.array([2.0, 0.5])


def bumpy(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw *Bumpy* (Chen et al. 2009, Fig. 4c): equal Gaussians, one turned by 90 degrees.

    The paper gives no constants; these are ours: means zero, standard deviations 2 and 0.5 along the
    axes, exchanged for class +1, so that the Bayes boundary is the quadratic |x1| = |x2|.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    zero = np.zeros(2)
    factors = (np.diag(BUMPY_SCALES), np.diag(BUMPY_SCALES[::-1]))
    return _two_gaussians(n, random_state, (zero, zero), factors)


def relevance(n: int, *, random_state: Seed, n_features: int = 2) -> tuple[Floats, Floats]:
    """Draw *Relevance* (Chen et al. 2009, Fig. 4d): only the first dimension tells the classes apart.

    The paper gives no constants; these are ours: x1 is Gaussian around -1.5 or +1.5 with standard
    deviation 0.7, every other feature is uniform on [-3, 3].

    Returns
    -------
    X : ndarray, shape (n, n_features)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, label = _start(n, random_state)
    X = rng.uniform(-3, 3, size=(n, n_features))
    X[:, 0] = 1.5 * label + 0.7 * rng.normal(size=n)
    return X, label


# standard deviations along, and correlation between, the two dimensions of each group
_OVERLAP_GROUPS = {
    0: (((2.0, -1.2), (0.7, 0.5), -0.7),),
    1: (
        ((-2.0, 0.6), (0.5, 0.5), 0.0),
        ((-0.2, -0.9), (0.5, 0.5), 0.0),
        ((1.2, 1.4), (0.5, 0.5), 0.0),
    ),
    2: (((-0.9, -0.1), (0.4, 0.7), 0.5), ((0.6, 0.3), (0.7, 0.4), 0.5)),
}


def overlap_classes(n: int, *, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw *Overlap* (Lyu et al. 2020, Fig. 3): three classes in the plane that overlap heavily.

    The paper gives no constants; these are ours: class 0 is one skew Gaussian in the lower right
    corner, class 1 three round ones, class 2 two that lie between these. Classes are equally
    frequent, and so are the Gaussians of a class.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of int, shape (n,)
        0, 1 or 2, all present.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 3:
        raise ValueError(f"n={n!r}; needed a whole number of at least 3")
    rng = np.random.default_rng(_given_seed(random_state))
    label = rng.integers(3, size=n)
    label[rng.permutation(n)[:3]] = [0, 1, 2]
    X = np.empty((n, 2))
    for i, c in enumerate(label):
        groups = _OVERLAP_GROUPS[int(c)]
        mean, (first, second), correlation = groups[rng.integers(len(groups))]
        cross = correlation * first * second
        X[i] = rng.multivariate_normal(mean, [[first**2, cross], [cross, second**2]])
    return X, label


OVERCLASS_SIZES = (28, 22, 18, 15, 12, 10, 8, 6, 5, 3)


def overclass(*, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw *Overclass* (Lyu et al. 2020, Fig. 4): 127 points in ten classes of 28 to 3 points.

    The paper gives no constants but the sizes; these are ours: round Gaussians of standard deviation
    0.35 around the points (0, 0), ..., (4, 0), (0.5, 1.5), ..., (4.5, 1.5), the largest classes in the
    corners and the smallest between larger ones.

    Returns
    -------
    X : ndarray, shape (127, 2)
    y : ndarray of int, shape (127,)
        0, the largest class, to 9, the smallest.
    """
    rng = np.random.default_rng(_given_seed(random_state))
    places = [(0.0, 0.0), (4.5, 1.5), (4.0, 0.0), (0.5, 1.5), (2.0, 0.0),
              (2.5, 1.5), (1.0, 0.0), (3.5, 1.5), (3.0, 0.0), (1.5, 1.5)]  # fmt: skip
    label = np.repeat(np.arange(10), OVERCLASS_SIZES)
    X = np.array(places)[label] + 0.35 * rng.normal(size=(len(label), 2))
    order = rng.permutation(len(label))
    return X[order], label[order]


def _given_seed(random_state: Seed) -> Seed:
    if random_state is None:
        raise ValueError("random_state=None; needed an int or a numpy.random.Generator")
    return random_state


RIPLEY_CENTRES = {-1: ((-0.7, 0.3), (0.3, 0.3)), 1: ((-0.3, 0.7), (0.4, 0.7))}
RIPLEY_VARIANCE = 0.03


def ripley_mixture(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw from Ripley's synthetic mixture, Bayes error 8.9 % (8.0 % on his own 1000 test rows).

    Each class is an equal mixture of two Gaussians with covariance 0.03 I, centres (-0.7, 0.3) and
    (0.3, 0.3) for class -1, (-0.3, 0.7) and (0.4, 0.7) for class +1. Ripley's own data have 250
    training and 1000 test rows (``load("ripley")``).

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    B. D. Ripley (1996), Pattern Recognition and Neural Networks, Cambridge University Press.
    """
    rng, label = _start(n, random_state)
    which = rng.integers(2, size=n)
    centres = np.array([RIPLEY_CENTRES[-1], RIPLEY_CENTRES[1]])[(label > 0).astype(int), which]
    return centres + np.sqrt(RIPLEY_VARIANCE) * rng.normal(size=(n, 2)), label


def twonorm(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *twonorm*: N(a, I) against N(-a, I) in 20 dimensions, Bayes error 2.3 %.

    Every coordinate of a is ``2 / sqrt(20)``. Raetsch trains on 400 rows and tests on 7000.

    Returns
    -------
    X : ndarray, shape (n, 20)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    L. Breiman (1998), "Arcing classifiers", Annals of Statistics 26(3).
    """
    a, eye = np.full(20, 2 / np.sqrt(20)), np.eye(20)
    return _two_gaussians(n, random_state, (-a, a), (eye, eye))


def ringnorm(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *ringnorm*: N(0, 4 I) (+1) against N(a, I) (-1), Bayes error 1.24 %.

    In 20 dimensions; every coordinate of a is ``2 / sqrt(20)``, as Raetsch's file has it (some
    programs use ``1 / sqrt(20)``). Raetsch trains on 400 rows and tests on 7000.

    Returns
    -------
    X : ndarray, shape (n, 20)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    L. Breiman (1998), "Arcing classifiers", Annals of Statistics 26(3).
    """
    a, eye = np.full(20, 2 / np.sqrt(20)), np.eye(20)
    return _two_gaussians(n, random_state, (a, np.zeros(20)), (eye, 2 * eye))


def _waves() -> Floats:
    """Return Breiman's three triangular waves, shape (3, 21)."""
    i = np.arange(1, 22)
    return np.stack([np.maximum(6.0 - np.abs(i - centre), 0.0) for centre in (11, 15, 7)])


def waveform(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *waveform* as two classes: his class 1 (+1) against the rest (-1).

    Class 1 mixes the waves h1 and h2, class 2 h1 and h3, class 3 h2 and h3, each with a uniform share,
    plus N(0, 1) noise; the three are equally likely. Raetsch trains on 400 rows and tests on
    4600; his +1 is h1 and h3, the same problem with the features reversed.

    Returns
    -------
    X : ndarray, shape (n, 21)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    L. Breiman et al. (1984), Classification and Regression Trees, section 2.6.2.
    """
    rng, label = _start(n, random_state)
    # a third of the rows is class 1: the labels of `_start` are drawn anew, one of each kept
    third = rng.integers(3, size=n)
    first = np.flatnonzero(label > 0)[0]
    other = np.flatnonzero(label < 0)[0]
    third[first], third[other] = 0, 1 + third[other] % 2
    pairs = np.array([(0, 1), (0, 2), (1, 2)])[third]
    waves = _waves()
    share = rng.uniform(size=(n, 1))
    X = share * waves[pairs[:, 0]] + (1 - share) * waves[pairs[:, 1]] + rng.normal(size=(n, 21))
    return X, np.where(third == 0, 1.0, -1.0)
