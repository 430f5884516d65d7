"""What is known of a set before it is read, and what it is afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENVIRONMENT_VARIABLE", "Dataset", "Floats", "Rows", "Seed", "Source"]

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
