"""Labels, weights and groups in another order than the rows."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from problems import blobs

import pcvm_pymc as package
from pcvm_pymc import PCVMClassifier, RVMClassifier, RVMRegressor
from pcvm_pymc.core.pieces.names import check_same_rows

VALUES, LABEL = blobs(40, seed=3, gap=2.0)
DAYS = pd.date_range("2024-05-01", periods=40)
X = pd.DataFrame(VALUES, columns=["a", "b"], index=DAYS)
Y = pd.Series(LABEL, index=DAYS)
TURNED = Y[::-1]


def pcvm(**options):
    return PCVMClassifier(kernel="rbf", width=1.5, scale=1.0, **options)


@pytest.fixture(scope="module")
def fitted():
    """Return a classifier, a MAP result and the draws of a model, of the same rows."""
    model = package.pcvm_model(X, Y, width=1.5, basis=8)
    mode = package.find_map_em(model, progressbar=False)
    few = {"draws": 10, "tune": 10, "chains": 1, "max_iter": 100}
    draws = package.sample(model, random_seed=0, quiet=True, method="gibbs", **few)
    return pcvm().fit(X, Y), mode, draws


CALLS = {
    "fit": lambda fitted, y: pcvm().fit(X, y),
    "sample_weight": lambda fitted, y: pcvm().fit(X, Y, sample_weight=y.abs()),
    "groups": lambda fitted, y: pcvm().fit(X, Y, groups=y),
    "score": lambda fitted, y: fitted[0].score(X, y),
    "a regression": lambda fitted, y: RVMRegressor(width=1.5).fit(X, y),
    "noise": lambda fitted, y: RVMRegressor(width=1.5).fit(X, LABEL, noise=y.abs()),
    "weights": lambda fitted, y: RVMRegressor(width=1.5).fit(X, LABEL, sample_weight=y.abs()),
    "noise of a model": lambda fitted, y: package.rvm_model(X, LABEL, noise=y.abs()),
    "select": lambda fitted, y: package.select(X, y, over=("scale",)),
    "select, cv": lambda fitted, y: package.select(X, y, by="cv", widths=[1.0]),
    "choose_basis": lambda fitted, y: package.choose_basis(X, y, 4),
    "a model": lambda fitted, y: package.pcvm_model(X, y, width=1.5),
    "a latent function": lambda fitted, y: latent(y),
    "compare": lambda fitted, y: package.compare({"MAP": fitted[1]}, X, y),
    "kfold": lambda fitted, y: package.kfold(fitted[2], X, y, cv=2),
    "loo": lambda fitted, y: package.loo(fitted[0], X, y),
    "project": lambda fitted, y: package.project(fitted[0], X, y),
    "validity": lambda fitted, y: package.validity(RVMClassifier(width=1.5).fit(X, Y), X, y),
}


def latent(y):
    import pymc as pm

    with pm.Model():
        return package.pcvm_latent(X, y, width=1.5)


@pytest.mark.parametrize("name", CALLS)
def test_rows_in_another_order_are_refused_by_name(name, fitted):
    with pytest.raises(ValueError, match=r"has the index of .* in another order, in row 0 "):
        CALLS[name](fitted, TURNED)


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (X, Y),
        (X, LABEL),
        (VALUES, TURNED),
        (X.reset_index(drop=True), TURNED),  # a scaler's table, which has lost the index
        (X, Y.reset_index(drop=True)[::-1]),
        (X, LABEL.tolist()),
        (X[:-1], TURNED),  # another length has a message of its own
    ],
)
def test_what_is_not_surely_another_order_is_taken(rows, labels):
    check_same_rows(rows, y=labels, sample_weight=None)


def test_the_first_row_that_differs_is_named():
    index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    table = pd.DataFrame(np.eye(3), index=index)
    words = r"^w has the index of X_new in another order, in row 1 \('b', 1\) where X_new has \('a', 2\); "
    with pytest.raises(ValueError, match=words):
        check_same_rows(table, "X_new", w=pd.Series(0.0, index=index[[0, 2, 1]]))


def test_coordinates_of_xarray_are_an_index():
    rows = xr.DataArray(np.eye(3), {"day": [3, 1, 2], "column": list("abc")}, ("day", "column"))
    check_same_rows(rows, y=rows[:, 0])
    with pytest.raises(ValueError, match="in row 0 1 where X has 3"):
        check_same_rows(rows, y=rows[:, 0].sortby("day"))
