"""The registry: every set of the papers, where it comes from and which tables show it."""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pcvm_pymc.experiments.errors import entry_of

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
        Missing values are NaN; nothing is imputed or dropped.
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
        What the papers' protocols do about missing values: nothing to do, leave out the row, or fill in the
        column's median on the training part.
    n_train : int
        The paper's training rows of a realisation; 0 where its protocol splits by shares or folds.
    generate : str
        A function of `generators`, ``(n, random_state=..., **options) -> X, y``; empty for a set of rows.
    base : str
        The set that this one is made from.
    derive : str
        A function of `loading`, ``(Dataset, **options) -> Dataset``, from the base.
    options : dict
        Of `generate` or `derive`.
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
    generate: str = ""
    base: str = ""
    derive: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    openml: int = 0
    openml_target: str = ""

    @property
    def how(self) -> str:
        """How to obtain it, in words."""
        if self.generate:
            return "generated"
        if self.shipped:
            return "shipped with scikit-learn"
        if self.base:
            return f"made from {self.base}"
        files = " and ".join(self.files)
        by_net = f", or --download (openml.org {self.openml})" if self.openml else ""
        return f"{files} in {ENVIRONMENT_VARIABLE}{by_net}"


def _read_registry() -> dict[str, Source]:
    """Return every set by name, as ``sets.csv`` has them."""
    with (files(__package__) / "sets.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, index_col="name", keep_default_na=False, dtype={"splits": str})
    found = {}
    for name, row in table.iterrows():
        said = row.to_dict()
        pairs = [each.split("=") for each in said["options"].split()]
        said["options"] = {key: _value(text) for key, text in pairs}
        said["files"] = tuple(filter(None, said["files"].split(";")))
        said["used"] = tuple(filter(None, said["used"].split("; ")))
        said["openml"] = int(said["openml"] or 0)
        found[str(name)] = Source(**said)
    return found


def _value(text: str) -> Any:
    """Return a whole number, a number or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


SOURCES = _read_registry()


def source_of(name: str) -> Source:
    """Return a set's entry in the registry; an unknown name is a ValueError with the nearest ones."""
    return entry_of("data set", name, SOURCES, f"known: {', '.join(sorted(SOURCES))}")


def describe() -> pd.DataFrame:
    """Return the registry as a table: a row for each set."""
    names = {
        "rows": "rows",
        "features": "features",
        "classes": "classes",
        "origin": "origin",
        "used": "used in",
        "standardise": "standardised",
        "missing": "missing cells",
        "how": "how to obtain",
    }
    rows = {
        name: {said: getattr(each, key) for key, said in names.items()}
        | {"used in": "; ".join(each.used)}
        for name, each in SOURCES.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
