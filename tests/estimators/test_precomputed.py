"""A kernel that is given as its matrix, and kernels of scikit-learn's Gaussian processes."""

import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from problems import blobs, predicted, refused
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.model_selection import GridSearchCV, cross_val_predict

import pcvm_pymc as pcvm

WIDTH = 1.2
X, LABEL = blobs(60, seed=90, fixed=True)
NEW = blobs(25, seed=91, fixed=True)[0]
THREE = np.where((LABEL > 0) & (X[:, 1] > 0), 2, LABEL > 0)
TARGET = np.sin(X[:, 0]) + 0.1 * X[:, 1]


def kernel(A, B):
    return np.exp(-((A[:, None] - B[None]) ** 2).sum(axis=-1) / WIDTH**2)


GIVEN = {"kernel": "precomputed", "estimation": "em", "scale": 1.0}
K, K_NEW = kernel(X, X), kernel(NEW, X)
MACHINES = [
    (pcvm.PCVMClassifier(estimation="em", scale=1.0), LABEL),
    (pcvm.PCVMClassifier(scale="auto"), LABEL),
    (pcvm.PCVMClassifier(estimation="bottom-up"), LABEL),
    (pcvm.PCVMClassifier(hyperprior="jeffreys"), LABEL),
    (pcvm.PCVMClassifier(memory_limit=1e6, estimation="em", scale=1.0), LABEL),
    (pcvm.MPCVMClassifier(scale="auto"), THREE),
    (pcvm.MRVMClassifier(), THREE),
    (pcvm.RVMClassifier(), THREE),
    (pcvm.RVMRegressor(std="weights"), TARGET),
    (pcvm.SparseProbitClassifier(features="kernel"), LABEL),
]


@pytest.mark.parametrize(("machine", "y"), MACHINES, ids=lambda each: repr(each)[:50])
def test_the_matrix_of_the_rbf_gives_the_fit_of_the_rbf(machine, y):
    given = clone(machine).set_params(kernel="precomputed").fit(K, y)
    plain = clone(machine).set_params(kernel="rbf", width=WIDTH).fit(X, y)
    for one, other in ((K, X), (K_NEW, NEW)):
        np.testing.assert_allclose(predicted(given, one), predicted(plain, other), atol=1e-6)
    if "bottom-up" not in repr(machine) and not isinstance(machine, pcvm.RVMClassifier):
        np.testing.assert_array_equal(given.support_, plain.support_)
    assert given.n_features_in_ == 60
    again = pickle.loads(pickle.dumps(given))
    np.testing.assert_array_equal(predicted(again, K_NEW), predicted(given, K_NEW))


def test_rows_of_weight_zero_have_no_basis_function():
    weight = np.r_[np.zeros(10), np.ones(40), np.full(10, 2.0)]
    given = pcvm.PCVMClassifier(kernel="precomputed", scale="auto")
    given.fit(K, LABEL, sample_weight=weight)
    plain = pcvm.PCVMClassifier(width=WIDTH, scale="auto").fit(X, LABEL, sample_weight=weight)
    np.testing.assert_allclose(given.predict_proba(K_NEW), plain.predict_proba(NEW), atol=1e-9)
    assert given.support_.min() >= 10
    without = K_NEW.copy()
    without[:, :10] = 7.0  # columns that no basis function is
    np.testing.assert_array_equal(given.predict_proba(without), given.predict_proba(K_NEW))


def test_leave_one_out_and_projection_are_those_of_the_rbf():
    machine = {"estimation": "em", "scale": 1.0}
    given = pcvm.PCVMClassifier(kernel="precomputed", **machine).fit(K, LABEL)
    plain = pcvm.PCVMClassifier(width=WIDTH, **machine).fit(X, LABEL)
    one, other = pcvm.loo(given, K, LABEL), pcvm.loo(plain, X, LABEL)
    np.testing.assert_allclose(one.elpd_i, other.elpd_i, atol=1e-9)
    few, same = (pcvm.project(m, rows, LABEL, size=4) for m, rows in ((given, K), (plain, X)))
    np.testing.assert_allclose(few.path.kl, same.path.kl, atol=1e-9)
    p, q = few.classifier.predict_proba(K_NEW), same.classifier.predict_proba(NEW)
    np.testing.assert_allclose(p, q, atol=1e-9)
    words = "X has 60 rows; needed the 60 of the fit, in its order"
    refused(words, pcvm.project, given, K[::-1], LABEL[::-1], size=4)


@pytest.mark.parametrize("names", [[f"row {i}" for i in range(60)], range(7, 67), range(60)])
@pytest.mark.parametrize("container", [pd.DataFrame, xr.DataArray])
def test_columns_of_a_table_are_its_rows_in_their_order(container, names):
    turned, table = np.arange(60)[::-1], pd.DataFrame(K, names, names)
    new, machine = pd.DataFrame(K_NEW, columns=names), pcvm.PCVMClassifier(**GIVEN)
    model = clone(machine).fit(container(table), LABEL)
    expected = clone(machine).fit(K, LABEL).predict_proba(K_NEW)
    np.testing.assert_array_equal(model.predict_proba(container(new)), expected)
    words = r"X has the column .* where the row is .*: X.loc\[names, names\]"
    refused(words, clone(machine).fit, container(table.iloc[:, turned]), LABEL)
    refused(words, clone(machine).fit, container(table.iloc[turned]), LABEL[turned])
    refused("same order", model.predict, container(new.iloc[:, turned]))
    how = {"kernel": "precomputed", "over": ("scale",)}
    refused(words, pcvm.select, table.iloc[turned], LABEL[turned], **how)


def test_select_chooses_the_scale_alone():
    how = {"over": ("scale",), "random_state": 0}
    found = pcvm.select(K, LABEL, kernel="precomputed", **how)
    expected = pcvm.select(X, LABEL, width=WIDTH, **how)
    np.testing.assert_allclose(found.log_loss, expected.log_loss, atol=1e-9)
    np.testing.assert_array_equal(found.scales, expected.scales)
    words = "kernel='precomputed', which has no width; needed over=.'scale',.|has no width; select"
    for by in ("loo", "cv"):
        refused(words, pcvm.select, K, LABEL, kernel="precomputed", by=by)


def test_folds_of_scikit_learn_take_rows_and_columns():
    given = pcvm.PCVMClassifier(kernel="precomputed", estimation="em", scale=1.0)
    one = cross_val_predict(given, K, LABEL, cv=3, method="predict_proba")
    plain = pcvm.PCVMClassifier(width=WIDTH)
    other = cross_val_predict(plain, X, LABEL, cv=3, method="predict_proba")
    np.testing.assert_allclose(one, other, atol=1e-9)
    search = GridSearchCV(given, {"scale": [0.5, 2.0]}, cv=3).fit(K, LABEL)
    assert search.best_estimator_.predict(K_NEW).shape == (25,)


def test_draws_are_of_rows_as_centres():
    model = pcvm.PCVMClassifier(kernel="precomputed", estimation="posterior", random_state=0)
    model.fit(K, LABEL)
    assert len(model.relevance_vectors_) == 30
    p = model.predict_proba(K_NEW)[:, 1]
    low, high = model.predict_interval(K_NEW)[:, 1].T
    assert (low < p).all()
    assert (p < high).all()
    plain = pcvm.PCVMClassifier(width=WIDTH, scale="auto").fit(X, LABEL).predict_proba(NEW)[:, 1]
    assert np.abs(p - plain).mean() < 0.1


REFUSED = [
    ({}, K[:, :40], "X has shape \\(60, 40\\) with kernel='precomputed'; needed"),
    ({}, np.where(np.eye(60) > 0, np.nan, K), "and missing values with kernel='precomputed'"),
    ({"width": 1.0}, K, "a kernel that has a width"),
    ({"basis": (K[:5], LABEL[:5])}, K, "the bases are training rows; needed 'auto'"),
    ({"categorical_features": [0]}, K, "needs a kernel of features"),
]


@pytest.mark.parametrize(("arguments", "rows", "words"), REFUSED)
def test_what_needs_features_is_refused(arguments, rows, words):
    model = pcvm.PCVMClassifier(kernel="precomputed", **arguments)
    refused(words, model.fit, rows, LABEL)


def test_rvm_star_exports_models_and_other_columns_are_refused():
    model = pcvm.RVMRegressor(kernel="precomputed", star=True)
    refused("needs the kernel of a new row with itself", model.fit, K, TARGET)
    few = pcvm.PCVMClassifier(kernel="precomputed", n_vectors=3).fit(K, LABEL)
    refused("precomputed", pcvm.to_c, few)
    refused("60 features", few.predict, K_NEW[:, :5])
    gap = np.where(np.arange(60) == 7, np.nan, K_NEW)
    refused("missing values with kernel='precomputed'", few.predict, gap)
    refused("kernel='precomputed' is unknown", pcvm.pcvm_model, K, LABEL, kernel="precomputed")


@pytest.mark.parametrize("kind", [pcvm.PCVMClassifier, pcvm.RVMRegressor])
def test_a_kernel_of_scikit_learns_processes_is_taken_with_its_parameters(kind):
    y = LABEL if kind is pcvm.PCVMClassifier else TARGET
    given = {"std": "weights"} if kind is pcvm.RVMRegressor else {"scale": "auto"}
    same = kind(kernel=RBF(WIDTH / np.sqrt(2.0)), **given).fit(X, y)
    plain = kind(kernel="rbf", width=WIDTH, **given).fit(X, y)
    np.testing.assert_allclose(predicted(same, NEW), predicted(plain, NEW), atol=1e-9)
    other = clone(kind(kernel=Matern(1.0, nu=1.5), **given)).fit(X, y)
    assert np.isfinite(predicted(other, NEW)).all()
    refused("a kernel that has a width", kind(kernel=Matern(), width=2.0, **given).fit, X, y)
