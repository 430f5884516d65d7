"""Estimators compared on several stratified draws, each at its own best hyperparameters."""

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pcvm_pymc.core.pieces.centres import copied_rows, unique_rows
from pcvm_pymc.estimators.measures import Rival
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.baselines import TunedSVC, gaussian_process, tuned_logistic_regression

PAIRED = ("log loss", "error")  # what is compared split by split
type Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
type Draw = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def estimators(n_classes: int, *, seed: int, width: float | None = None) -> dict[str, Any]:
    """Return this package's estimators by what a table calls them.

    Parameters
    ----------
    n_classes : int
    seed : int
    width : float, optional
        Of the kernel; by default each chooses its own.
    """
    chosen: dict[str, Any] = {"random_state": seed}
    average = dict(chosen)
    if width is not None:
        chosen["width"] = average["width"] = width
        average["scale"] = "auto"
    if n_classes == 2:
        sparse: Any = PCVMClassifier(hyperprior="jeffreys", **{"width": "shared", **chosen})
        averaged: type = PCVMClassifier
    else:
        sparse = MPCVMClassifier(estimation="bottom-up", **{"width": "shared", **chosen})
        averaged = MPCVMClassifier
    return {
        "paper's sparse MAP": sparse,
        "averaged MAP": averaged(**average),
        "its ten vectors": averaged(n_vectors=10, **average),
    }


def peers(n_classes: int, n_rows: int, n_features: int, *, seed: int) -> dict[str, Any]:
    """Return what a user would take instead; a Gaussian process where it is affordable.

    Parameters
    ----------
    n_classes, n_rows, n_features : int
    seed : int
    """
    found: dict[str, Any] = {
        "SVC, tuned": TunedSVC(random_state=seed),
        "logistic regression": tuned_logistic_regression(seed),
        "gradient boosting": HistGradientBoostingClassifier(random_state=seed),
    }
    if n_rows * n_classes <= 1500:
        found["Gaussian process"] = gaussian_process(n_features, seed)
    return found


def fitted_rival(
    model: ClassifierMixin, X: NDArray[Any], y: NDArray[Any], X_test: NDArray[Any]
) -> Rival:
    """Return a fitted estimator's predictions, of two classes those of the greater one."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probability = model.fit(X, y).predict_proba(X_test)
    seconds = time.process_time() - began
    vectors = getattr(model, "relevance_vectors_", getattr(model, "support_", None))
    return Rival(
        probability[:, 1] if probability.shape[1] == 2 else probability,
        np.nan if vectors is None else float(len(vectors)),
        seconds,
    )


def fitted_rivals(
    split: int, table: Draw, part: Draw, *, n_classes: int, seed: int, width: float | None = None
) -> tuple[int, dict[str, Rival]]:
    """Return a split's number and the predictions of this package's estimators and two peers.

    Parameters
    ----------
    split : int
    table : tuple
        Training rows, labels, test rows and their labels, for this package's estimators.
    part : tuple
        The same as numbers alone, for an SVC and logistic regression (`with_indicators`).
    n_classes, seed : int
    width : float, optional
        As in `estimators`.
    """
    X, y, X_test, _ = part
    own, others = (
        estimators(n_classes, seed=seed, width=width),
        peers(n_classes, *X.shape, seed=seed),
    )
    found = {name: fitted_rival(each, table[0], y, table[2]) for name, each in own.items()}
    for name in ("SVC, tuned", "logistic regression"):
        found[name] = fitted_rival(others[name], X, y, X_test)
    return split, found


def equal_rows(X: Any, y: NDArray[Any]) -> NDArray[np.intp]:
    """Return a number for each row, the same for rows with equal features, missing ones included.

    Each row has its own where more than a tenth of the repeated rows have the features of a row of another
    label, as in tables of few categories: equal rows are observations of their own there (`copied_rows`).
    """
    codes = pd.DataFrame(X).apply(lambda column: pd.factorize(column)[0]).to_numpy(float)
    first, _ = copied_rows(codes, pd.factorize(y)[0])
    return np.arange(len(codes)) if len(first) == len(codes) else unique_rows(codes)[1]


def kept_together(splitter: Any, X: Any, y: NDArray[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield training and test rows of a splitter that sees one of each set of equal rows.

    The others follow it, so that no row is on both sides. Without equal rows these are its own splits.
    """
    number = equal_rows(X, y)
    _, first = np.unique(number, return_index=True)
    own = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    for parts in splitter.split(first, y[first]):
        train, test = (np.concatenate([own[each] for each in part]) for part in parts)
        yield train, test


def stratified_draws(
    X: Any, y: NDArray[Any], n_train: int, n_test: int, *, seed: int, scaler: Any = None
) -> Iterator[Draw]:
    """Yield training and test part of one stratified draw after another, standardised by the training part.

    Equal rows are on one side (`equal_rows`); where there are any, the parts' sizes are approximate.

    Parameters
    ----------
    X : ndarray or DataFrame, shape (n_obs, n_features)
    y : ndarray, shape (n_obs,)
    n_train, n_test : int
    seed : int
    scaler : transformer, optional
        What is fitted to each training part; default: a `StandardScaler` of the numbers.
    """
    n_obs, n_unequal = len(y), len(np.unique(equal_rows(X, y)))
    few = max(round(n_train * n_unequal / n_obs), 1)
    sizes = {
        "train_size": few,
        "test_size": min(round(n_test * n_unequal / n_obs), n_unequal - few),
    }
    number = 0
    while True:
        splitter = StratifiedShuffleSplit(1, random_state=seed + number, **sizes)
        ((train, test),) = kept_together(splitter, X, y)
        part, held_out = X.take(train, axis=0), X.take(test, axis=0)
        fitted = (_scaler_of(X) if scaler is None else clone(scaler)).fit(part)
        yield fitted.transform(part), y[train], fitted.transform(held_out), y[test]
        number += 1


def _scaler_of(X: Any) -> Any:
    """Return what standardises numbers; categories of a table, which remains one, come after them."""
    if not isinstance(X, pd.DataFrame):
        return StandardScaler()
    categories = X.select_dtypes("category").columns
    numbers = X.columns.difference(categories, sort=False)
    parts = (StandardScaler(), list(numbers)), ("passthrough", list(categories))
    scaler = make_column_transformer(*parts, verbose_feature_names_out=False)
    return scaler.set_output(transform="pandas")


def with_indicators(draw: Draw) -> Draw:
    """Return a draw for what takes neither categories nor missing values.

    Missing numbers are the training rows' median, a category is an indicator for each level, a missing one
    included; a level that no training row has is zero in all of them.
    """
    X, y, X_test, y_test = draw
    if not isinstance(X, pd.DataFrame):
        return draw
    categories = X.select_dtypes("category").columns
    indicators = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    medians = SimpleImputer(strategy="median", keep_empty_features=True)
    transformer = make_column_transformer(
        (medians, X.columns.difference(categories, sort=False)), (indicators, categories)
    )
    return transformer.fit_transform(X), y, transformer.transform(X_test), y_test


def paired(score: pd.Series, first: str) -> pd.DataFrame:
    """Return how classifiers differ from the first one in a score, on the splits that both ran on.

    Parameters
    ----------
    score : Series
        Of each classifier and split, less is better; index levels ``classifier`` and ``split``.
    first : str

    Returns
    -------
    DataFrame
        For each classifier the mean ``difference`` and its standard ``error`` over the ``splits`` of both
        (NaN for a single one), and on how many of these its score was less, equal and greater: ``won``,
        ``drawn`` and ``lost``.
    """
    table = score.unstack("classifier")
    difference = table.sub(table[first], axis=0)  # NaN where one of the two did not run
    return pd.DataFrame(
        {
            "difference": difference.mean(),
            "error": difference.sem(),
            "splits": difference.count(),
            "won": (difference < 0).sum(),
            "drawn": (difference == 0).sum(),
            "lost": (difference > 0).sum(),
        }
    )


def over_splits(scores: list[dict[str, Any]]) -> Tables:
    """Return means over splits, their standard errors, and the scores of each split.

    The best mean log loss of those that ran on most splits is first. Then come the others by their
    difference to it, which is of the splits that both ran on, as their means need not be.

    Parameters
    ----------
    scores : list of dict
        Of each ``classifier`` on each ``split``, in any order.
    """
    order = pd.DataFrame(scores).sort_values("split", kind="stable")  # as if one by one
    each = order.set_index(["classifier", "split"])
    groups = each.groupby("classifier", sort=False)
    mean, error = groups.mean().assign(splits=groups.size()), groups.sem()
    first = mean.loc[mean["splits"] == mean["splits"].max(), "log loss"].idxmin()
    for key in PAIRED:
        found = paired(each[key], first).drop(columns="splits").add_prefix(f"{key} ")
        error[f"{key} difference"] = found.pop(f"{key} error")
        mean = mean.join(found)
    others = mean.drop(first).sort_values("log loss difference", kind="stable").index
    rows = [first, *others]
    return mean.loc[rows], error.loc[rows], each


def mean_and_error(tables: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return means over draws and their standard errors, NaN for a single draw."""
    every = np.stack([each.to_numpy(float) for each in tables])
    like = tables[0]
    mean = pd.DataFrame(every.mean(axis=0), like.index, like.columns)
    if len(tables) == 1:
        return mean, mean * np.nan
    error = every.std(axis=0, ddof=1) / np.sqrt(len(tables))
    return mean, pd.DataFrame(error, like.index, like.columns)
