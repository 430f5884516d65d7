"""Many rows without arguments, groups of rows, and nearly equal rows."""

import numpy as np
import pytest
from problems import blobs, fixed_rng, refused
from sklearn.datasets import load_breast_cancer, load_iris, make_classification, make_moons

import pcvm_pymc as pcvm
from pcvm_pymc import loo, select
from pcvm_pymc.core.pieces.centres import choose_rows, has_clusters_of_copies
from pcvm_pymc.core.pieces.validation import InputWarning
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.training import inner_folds

X, LABEL = blobs(120, n_features=3, seed=8)
CLASS = np.where((LABEL > 0) & (X[:, 1] > 0), 2, LABEL > 0)
FIXED = np.random.RandomState(np.random.MT19937(0))
MOONS, HALF = make_moons(100, noise=0.2, random_state=FIXED)
FLIPPED = np.where(fixed_rng(0).uniform(size=100) < 0.1, 1 - HALF, HALF)
THRICE, GROUPS = np.tile(FLIPPED, 3), np.tile(np.arange(100), 3)
NOISY = np.tile(MOONS, (3, 1)) + 1e-3 * fixed_rng(1).normal(size=(300, 2))
NEW, TRUTH = make_moons(1000, noise=0.2, random_state=FIXED)


# --- many rows ---------------------------------------------------------------------------------

MANY = [
    (pcvm.PCVMClassifier(), LABEL),
    (pcvm.PCVMClassifier(width="cv", cv=2), LABEL),
    (pcvm.PCVMClassifier(n_vectors=5), LABEL),
    (pcvm.PCVMClassifier(estimation="bottom-up", cv=2), LABEL),
    (pcvm.MPCVMClassifier(), CLASS),
    (pcvm.MRVMClassifier(cv=2), CLASS),
    (pcvm.RVMClassifier(cv=2), LABEL),
    (pcvm.RVMRegressor(cv=2), X[:, 0] + 0.1 * LABEL),
    (pcvm.SparseProbitClassifier(features="kernel", width="shared"), LABEL),
]


@pytest.mark.parametrize(("model", "y"), MANY, ids=lambda each: str(each)[:30])
def test_many_rows_get_drawn_centres_and_a_line(model, y, monkeypatch, caplog):
    monkeypatch.setattr(base, "MANY_ROWS", 100)
    monkeypatch.setattr(type(model), "_many_bases", lambda *_: 30)
    monkeypatch.setattr(base, "MANY_SEARCH_ROWS", 80)
    caplog.set_level("INFO", base.__name__)
    model.set_params(random_state=0).fit(X, y)
    (said,) = (each.getMessage() for each in caplog.records)
    more = "; basis=500 takes fewer centres, basis=None every row"
    assert said == "120 rows, basis='auto': 30 basis functions, about 5 s" + more
    assert len(model.relevance_vectors_) <= 30
    assert model.score(X, y) > 0.6
    whole = model.set_params(basis=None).fit(X, y)
    assert "basis=None: 120 basis functions" in caplog.records[-1].getMessage()
    assert whole.score(X, y) > 0.6


def test_centres_of_several_classes_stay_within_a_gibibyte():
    machines = [pcvm.MPCVMClassifier(), pcvm.MPCVMClassifier(estimation="bottom-up")]
    found = [[each._resolved_basis(n) for n in (3000, 3001, 100_000)] for each in machines]
    assert found == [[None, 2000, 600], [None, 500, 500]]


def test_half_of_the_drawn_centres_are_where_a_fit_to_the_others_is_wrong(monkeypatch):
    monkeypatch.setattr(base, "MANY_ROWS", 1000)
    monkeypatch.setattr(pcvm.PCVMClassifier, "_many_bases", lambda *_: 200)
    points, y = make_moons(3000, noise=0.15, random_state=FIXED)
    model = pcvm.PCVMClassifier(width=0.5, scale=1.0, random_state=0).fit(points, y)
    spread = choose_rows(points, y, 100, random_state=0)
    assert model.weight_.size <= 200
    half = pcvm.PCVMClassifier(width=0.5, scale=1.0, basis=(points[spread], 2 * y[spread] - 1))
    wrong = 1 - half.fit(points, y).predict_proba(points)[np.arange(3000), y]
    others = np.setdiff1d(model.support_, spread)
    assert len(others) > 50
    assert wrong[others].mean() > 5 * wrong.mean()


@pytest.mark.slow
def test_twenty_thousand_rows_without_arguments():
    rows, y = make_classification(22_000, 10, n_informative=6, n_redundant=2, random_state=0)
    model = pcvm.PCVMClassifier(random_state=0).fit(rows[:20_000], y[:20_000])
    linear = np.linalg.lstsq(rows[:20_000], 2.0 * y[:20_000] - 1.0)[0]
    least = np.mean((rows[20_000:] @ linear > 0) == y[20_000:])
    assert model.score(rows[20_000:], y[20_000:]) > least
    assert len(model.relevance_vectors_) <= 2000


# --- groups of rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [False, True])
def test_folds_hold_groups_together(numbers):
    for train, test in inner_folds(THRICE, 5, 0, X=NOISY if numbers else None, groups=GROUPS):
        assert not set(GROUPS[train]) & set(GROUPS[test])
        assert len(train) + len(test) == 300


GROUPED = [
    pcvm.PCVMClassifier(width="shared", random_state=0),
    pytest.param(pcvm.PCVMClassifier(n_vectors=6, random_state=0), marks=pytest.mark.slow),
    pcvm.RVMClassifier(random_state=0),
    pcvm.SparseProbitClassifier(features="kernel", width="shared"),
]


@pytest.mark.fixed_seeds  # folds decide the width
@pytest.mark.parametrize("model", GROUPED, ids=lambda each: str(each)[:40])
def test_groups_restore_the_error_of_single_rows(model):
    """Without them the PCVM's error was 15 %, with them 5 %."""
    once = model.fit(MOONS, FLIPPED).score(NEW, TRUTH)
    assert model.fit(NOISY, THRICE, groups=GROUPS).score(NEW, TRUTH) > once - 0.08


def test_groups_of_one_row_are_rows():
    rows, y, own = MOONS[:50], FLIPPED[:50], GROUPS[:50]
    how = {"by": "cv", "random_state": 0}
    plain, grouped = (select(rows, y, groups=each, **how) for each in (None, own))
    assert abs(np.log(plain.width / grouped.width)) < 1.1  # other folds: two steps of the grid
    model = pcvm.PCVMClassifier(width="shared").fit(rows, y)
    one, each = loo(model, rows, y), loo(model, rows, y, groups=own)
    np.testing.assert_allclose(one.elpd_i, each.elpd_i, atol=0.01)
    assert each.n_refitted == 50
    assert abs(loo(model, rows, y, groups=own // 2).elpd - one.elpd) > 1e-3


def test_kfold_holds_groups_together():
    rows, y = NOISY[np.r_[0:12, 100:112]], THRICE[np.r_[0:12, 100:112]]
    brief = {"draws": 20, "max_iter": 200, "cores": 1, "progressbar": False, "random_seed": 1}
    posterior = pcvm.sample(pcvm.pcvm_model(rows, y, width=1.0), **brief)
    found = pcvm.kfold(posterior, rows, y, cv=2, groups=np.tile(np.arange(12), 2), **brief)
    np.testing.assert_array_equal(found.fold[:12], found.fold[12:])
    refused("groups has shape", pcvm.kfold, posterior, rows, y, groups=[1, 2])


def test_groups_that_cannot_be_used_are_named():
    model = pcvm.PCVMClassifier()
    refused(r"groups has shape \(2,\); needed \(300,\)", model.fit, NOISY, THRICE, groups=[0, 1])
    refused("folds of whole groups leave a class", model.fit, NOISY, THRICE, groups=THRICE)
    fixed = pcvm.RVMClassifier(width=1.0)
    refused("width=1.0, where no rows are held out", fixed.fit, NOISY, THRICE, groups=GROUPS)
    model = pcvm.PCVMClassifier(width=1.0).fit(MOONS, HALF)
    refused("groups has shape", loo, model, MOONS, HALF, groups=[0, 1])


# --- nearly equal rows -------------------------------------------------------------------------


def test_nearly_equal_rows_are_noticed():
    with pytest.warns(InputWarning, match="300 rows are in clusters .* give groups="):
        pcvm.PCVMClassifier(width="cv", cv=2, options=pcvm.EMOptions(tol=1e-2)).fit(NOISY, THRICE)


@pytest.mark.parametrize("n_features", [1, 2, 5, 30])
def test_clusters_of_copies_are_told_from_tables(n_features):
    rng = np.random.default_rng(n_features)
    rows = rng.normal(size=(100, n_features))
    again = np.repeat(rows, 3, axis=0)
    near = again + 1e-3 * rng.normal(size=again.shape)
    assert has_clusters_of_copies(np.column_stack([near, np.ones(300)]))
    for plain in (rows, again, np.round(rows), np.exp(2 * rows), np.arange(40.0)[:, None]):
        assert not has_clusters_of_copies(plain)
    assert not has_clusters_of_copies(load_iris().data)
    assert not has_clusters_of_copies(load_breast_cancer().data)
