"""Training rows as an estimator fits them, and folds that leave some of them out."""

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    check_cv,
)

from pcvm_pymc.core.design import Rows
from pcvm_pymc.core.pieces.centres import Centres, Index, copied_rows, unique_rows
from pcvm_pymc.core.pieces.encoding import Encoding
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Normal
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, check_shape, shown
from pcvm_pymc.core.problem import ObservedRows

type Fold = tuple[Index, Index]

FOLDS = 5  # of training rows, where a choice needs some
WIDTH_ROWS = 5000  # by which a width is chosen where the rows are streamed
#: begins what an error says is needed where the rows are streamed
STREAMED = "rows in chunks (memory_limit, or Dask arrays) need"


@dataclass(frozen=True)
class TrainingData:
    """Training rows, checked.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
        All rows that count, or some of those on Dask.
    label : ndarray, shape (n_obs,)
        -1. and +1., or numbers of the classes; targets of a regression.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts; None for once.
    given : ndarray of int, shape (n_obs,), optional
        Numbers of the rows among those that were given, where rows of weight zero are left out.
    stream : Rows, optional
        All rows, where they are on Dask.
    copies : ndarray of int, shape (n_counting,), optional
        Which of the rows each row that was given and counts equals, where some are equal.
    groups : ndarray, shape (n_obs,), optional
        Rows of one group are held out together.
    encoding : Encoding, optional
        How the columns of `X` were made of the features.
    noise : ndarray, shape (n_obs,), optional
        Known standard deviation of each target's noise.
    splits : ndarray of bool, shape (n_obs, 2, n_folds), optional
        Whether each row trains, and whether it is held out, in each fold of a splitter that was given.
    """

    X: Array
    label: NDArray[Any]
    weight: Array | None = None
    given: Index | None = None
    stream: Rows | None = None
    copies: Index | None = None
    groups: NDArray[Any] | None = None
    encoding: Encoding | None = None
    noise: Array | None = None
    splits: NDArray[np.bool_] | None = None

    def counting(self) -> "TrainingData":
        """Return the rows whose weight is not zero; without weights where all are one."""
        if self.weight is None:
            return self
        given = np.flatnonzero(self.weight)
        data = replace(self.some(given), given=given)
        return replace(data, weight=None) if (self.weight[given] == 1.0).all() else data

    def merged(self) -> "TrainingData":
        """Return copies of a row (see `copied_rows`) once, with the sum of their weights.

        A row left out would otherwise still be there, in its copy. Rows of known noise stay as they are.
        Copies that were given to different folds stay apart; rows of such folds are in one order, however
        they were given.
        """
        if self.noise is not None:
            return self
        rows, order = self.X, None
        if self.splits is not None:
            _, fold = np.unique(self.splits.reshape(len(rows), -1), axis=0, return_inverse=True)
            rows = np.column_stack([rows, fold])
            order = np.lexsort([self.label, *rows.T])
        first, copies = copied_rows(rows, self.label)
        if order is not None:
            first = order[np.isin(order, first)]
            copies = np.argsort(first)[copies]
        elif len(first) == len(rows):
            return self
        given = first if self.given is None else self.given[first]
        data = replace(self.some(first), given=given, copies=copies)
        if len(first) == len(rows):
            return data
        return replace(data, weight=np.bincount(copies, self.weight).astype(float))

    def of_all(self, values: Array) -> Array:
        """Return values of the rows for all that were given and count, one of each copy."""
        return values if self.copies is None else values[self.copies]

    def observed(self, likelihood: Likelihood) -> ObservedRows:
        """Return the rows under a likelihood, with their weights and known noise."""
        return ObservedRows.of(likelihood, self.label, self.weight, self.noise)

    @property
    def count(self) -> Array:
        """How often each row counts, shape (n_obs,)."""
        return np.ones(len(self.X)) if self.weight is None else self.weight

    @property
    def certainty(self) -> Array | None:
        """How often each row counts, over the square of its noise where that is known; None for once."""
        if self.noise is None:
            return self.weight
        return self.observed(Normal()).weight

    @property
    def width_numbers(self) -> NDArray[np.intp]:
        """Number of the width of each column, shape (n_features,): levels of a category have one."""
        return np.arange(self.X.shape[1]) if self.encoding is None else self.encoding.width_numbers

    def numbers(self, rows: Index) -> Index:
        """Return the numbers of rows among those that were given; -1 stays, and is all there is on Dask."""
        if self.stream is not None:
            return np.full(len(rows), -1)
        return rows if self.given is None else np.where(rows < 0, -1, self.given[rows])

    def some(self, rows: Index | None) -> "TrainingData":
        """Return some of the rows, in memory; all of them for None."""
        if rows is None:
            return self
        names = ("weight", "groups", "noise", "splits")
        columns = {name: vars(self)[name] for name in names}
        some: dict[str, Any] = {n: None if e is None else e[rows] for n, e in columns.items()}
        return TrainingData(self.X[rows], self.label[rows], encoding=self.encoding, **some)

    def folds(self, cv: Any, rng: Any, *, of_labels: bool = True, once: bool = False) -> list[Fold]:
        """Return the folds that were given, or as many as `inner_folds` makes.

        Raises
        ------
        ValueError
            If a fold that was given trains without a class, or holds out nothing; where rows are to be held
            out `once`, if one is held out in several folds or none.
        """
        if self.splits is None:
            X = None if of_labels else self.X
            return inner_folds(self.label, cv or FOLDS, rng, X=X, groups=self.groups)
        folds = []
        for k, (trains, tests) in enumerate(self.splits.T):
            kinds = self.label if of_labels else np.zeros(len(self.X))
            if not tests.any() or len(np.unique(kinds[trains])) < len(np.unique(kinds)):
                bad = f"cv: fold {k} holds out nothing, or leaves a class without training rows"
                raise ValueError(f"{bad}; needed rows to hold out and some of each class to fit to")
            folds.append((np.flatnonzero(trains), np.flatnonzero(tests)))
        odd = np.flatnonzero(self.splits[:, 1].sum(axis=1) != 1)
        if once and odd.size:
            needed = "needed folds that hold out each row once, as KFold's"
            raise ValueError(f"cv holds out row {odd[0]} not once; {needed}")
        return folds


def basis_for(basis: Any, X: Array, rows: Index) -> Any:
    """Return the argument `basis` for a fit to some of the rows.

    A number is at most theirs; centres that are other training rows go, since their signs tell labels.
    """
    if isinstance(basis, Integral):
        return min(basis, len(rows))
    if not isinstance(basis, tuple):
        return basis
    points = as_features(basis[0], "basis", X.shape[1])
    columns = Centres.among(X, points, None).columns_of(rows)
    return points[columns], np.asarray(basis[1])[columns]


def group_numbers(groups: Any, n_obs: int) -> NDArray[np.intp] | None:
    """Return the number of each row's group; raise unless there is one for each row."""
    if groups is None:
        return None
    given = np.asarray(groups)
    check_shape("groups", given.shape, (n_obs,), "group for each row of X")
    return np.unique(given, return_inverse=True)[1]


def given_splits(model: object, X: Array, y: NDArray[Any], groups: Any) -> NDArray[np.bool_] | None:
    """Return which rows train and are held out in each fold of an estimator's `cv`; None of a number.

    Raises
    ------
    ValueError
        If what it gives are no pairs of numbers of rows.
    """
    cv = vars(model).get("cv")
    if cv is None or isinstance(cv, Integral):
        return None
    try:
        folds = list(check_cv(cv, y, classifier=is_classifier(model)).split(X, y, groups))
        out = np.zeros((len(X), 2, len(folds)), dtype=bool)
        for k, (train, test) in enumerate(folds):
            out[train, 0, k], out[test, 1, k] = True, True
    except (IndexError, TypeError, ValueError) as error:
        fault = f"cv={shown(cv)} gives no pairs (train, test) of numbers of the {len(X)} rows"
        raise ValueError(f"{fault}: {error}") from None
    return out


def inner_folds(
    label: NDArray[Any],
    cv: int,
    rng: Any,
    *,
    X: Array | None = None,
    groups: NDArray[Any] | None = None,
) -> list[Fold]:
    """Return folds stratified by class, as many as the rarest class allows; none below two.

    Rows of one of `groups` are held out together. With `X` the folds are those of targets that are numbers,
    and equal rows are a group.

    Raises
    ------
    ValueError
        If groups are given whose folds would leave a class without rows.
    """
    given = groups
    if X is not None and given is None:
        first, copies = unique_rows(X)
        groups = copies if len(first) < len(X) else None
    kinds = np.unique(label) if X is None else [None]
    classes = [np.full(len(label), kind is None) | (label == kind) for kind in kinds]
    unit = np.arange(len(label)) if groups is None else groups
    n_folds = min(cv, *(len(np.unique(unit[members])) for members in classes))
    folds: list[Fold] = []
    if n_folds > 1:
        seed = int(np.random.default_rng(rng).integers(2**31))
        splitters = (StratifiedKFold, StratifiedGroupKFold) if X is None else (KFold, GroupKFold)
        splitter = splitters[groups is not None](n_folds, shuffle=True, random_state=seed)
        folds = list(splitter.split(label, label, groups))
    lost = X is None and any(not members[train].any() for train, _ in folds for members in classes)
    if given is not None and (lost or not folds):
        fault = f"groups: folds of whole groups leave a class without rows ({n_folds} have it)"
        raise ValueError(f"{fault}; needed more groups of each class")
    return folds
