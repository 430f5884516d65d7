"""Rows that are there twice are one row of weight two, and are left out together."""

import numpy as np
import pytest
from problems import blobs
from sklearn.datasets import make_moons

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.centres import copied_rows, unique_rows
from pcvm_pymc.estimators.training import inner_folds

X, LABEL = blobs(50, seed=3)
Y = LABEL > 0
rng = np.random.default_rng(1)
TIMES = rng.integers(1, 4, 50)
# the first of each row in order, its copies anywhere behind
AGAIN = np.concatenate([np.arange(50), rng.permutation(np.repeat(np.arange(50), TIMES - 1))])


def test_held_out_predictions_are_those_of_all_rows_given():
    once = pcvm.PCVMClassifier(width="shared").fit(X, Y, sample_weight=TIMES)
    copied = pcvm.PCVMClassifier(width="shared").fit(X[AGAIN], Y[AGAIN])
    np.testing.assert_allclose(copied.held_out_, once.held_out_[AGAIN], atol=1e-8)
    found = pcvm.loo(copied, X[AGAIN], Y[AGAIN])
    alone = pcvm.loo(pcvm.PCVMClassifier().fit(X, Y), X, Y)
    assert found.n_data_points == len(AGAIN)
    density = found.elpd_i.values
    np.testing.assert_array_equal(density, density[:50][AGAIN])
    # rows whose copies stay would be predicted nearly as well as rows that were not left out
    assert found.elpd / len(AGAIN) < alone.elpd / 50 + 0.1


def test_the_choice_of_width_is_that_of_weights():
    model = pcvm.PCVMClassifier(estimation="em").fit(X, Y, sample_weight=TIMES)
    assert pcvm.select(X[AGAIN], Y[AGAIN]).scale == model.scale_
    wide = pcvm.select(np.tile(X, (3, 1)), np.tile(Y, 3), over=("width",), method="cv")
    assert wide.width > 0.4  # a narrow one remembers copies


def test_a_projection_of_a_fit_counts_copies_as_weights():
    model = pcvm.PCVMClassifier(kernel="rbf", width="shared").fit(X[AGAIN], Y[AGAIN])
    path = pcvm.project(model, X[AGAIN], Y[AGAIN], size=4)
    few = pcvm.PCVMClassifier(width="shared", n_vectors=4).fit(X, Y, sample_weight=TIMES)
    np.testing.assert_allclose(path.classifier.predict_proba(X), few.predict_proba(X), atol=1e-8)
    scored = pcvm.project(model, X[AGAIN], Y[AGAIN])
    held = model.held_out_[np.arange(len(AGAIN)), Y[AGAIN].astype(int)]
    assert scored.reference_elpd == pytest.approx(np.log(held).sum())


def test_folds_hold_out_copies_together():
    both = np.concatenate([X, X])
    for train, test in inner_folds(np.arange(100.0), 5, 0, X=both):
        assert len(train) + len(test) == 100
        assert {tuple(each) for each in both[train]}.isdisjoint(tuple(each) for each in both[test])
    few = X[:16]
    twice = np.tile(few, (2, 1)), np.tile(Y[:16], 2)
    model = pcvm.pcvm_model(*twice, width=1.0, basis=few, signs=LABEL[:16])
    brief = {"tune": 5, "chains": 1, "progressbar": False}
    posterior = pcvm.sample(model, draws=5, random_seed=1, **brief)
    fold = pcvm.kfold(posterior, *twice, cv=2, random_seed=1, draws=5, **brief).fold
    np.testing.assert_array_equal(fold[:16], fold[16:])


@pytest.mark.fixed_seeds  # folds decide the width
def test_a_regression_s_width_does_not_remember_copies():
    t = np.sin(2 * X[:, 0]) + 0.3 * np.random.default_rng(0).normal(size=50)
    once = pcvm.RVMRegressor(width="shared", random_state=0).fit(X, t)
    thrice = np.tile(X, (3, 1)), np.tile(t, 3)
    copied = pcvm.RVMRegressor(width="shared", random_state=0).fit(*thrice)
    assert copied.width_ >= 0.5 * once.width_


def test_moons_three_times_are_predicted_as_well_as_once():
    """With a tenth of the labels flipped: copies that stayed behind once chose the narrowest width."""
    rows, y = make_moons(100, noise=0.2, random_state=0)
    new, truth = make_moons(500, noise=0.2, random_state=1)
    y = np.where(np.random.default_rng(0).uniform(size=100) < 0.1, 1 - y, y)
    again = np.tile(rows, (3, 1)), np.tile(y, 3)
    fits = (pcvm.PCVMClassifier().fit(*each) for each in ((rows, y), again))
    own = [-np.log(fit.predict_proba(new)[np.arange(500), truth]).mean() for fit in fits]
    assert own[1] < own[0] + 0.1


def test_rows_of_few_values_and_either_label_are_no_copies():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(200, 3)).astype(float)
    y = rng.random(200) < (0.2 + 0.2 * X.sum(axis=1))
    for found in copied_rows(X, y):
        np.testing.assert_array_equal(found, np.arange(200))
    # as few equal rows with another label do not change what copies are
    X, y = np.repeat(rng.normal(size=(60, 2)), 3, axis=0), np.repeat(rng.random(60) < 0.5, 3)
    y[:2] = [False, True]
    first, copies = copied_rows(X, y)
    assert len(first) == 61
    np.testing.assert_array_equal(X[first][copies], X)
    np.testing.assert_array_equal(y[first][copies], y)


@pytest.mark.parametrize("n", [1, 7, 400])
def test_unique_rows_are_those_of_numpy(n):
    rng = np.random.default_rng(n)
    rows = rng.integers(0, 3, (n, 2)) * 10.0 ** rng.integers(-6, 6)
    first, copies = unique_rows(rows)
    assert len(first) == len(np.unique(rows, axis=0))
    assert (np.diff(first) > 0).all()
    np.testing.assert_array_equal(rows[first][copies], rows)
    assert len(unique_rows(rows * (1 + 1e-13 * rng.normal(size=rows.shape)))[0]) == len(first)
