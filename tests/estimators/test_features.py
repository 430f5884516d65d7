"""Widths per feature: learned, weighed against one width by rows that had no part in it, and used by all."""

import importlib.util

import numpy as np
import pymc as pm
import pytest
from problems import fixed_rng, map_result, refused
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.feature_selection import RFE, SelectFromModel

import pcvm_pymc as pcvm
from pcvm_pymc.estimators.features import Metric
from pcvm_pymc.estimators.training import TrainingData, inner_folds


def two_that_matter(n, n_noise, seed=0):
    """Return rows whose first two features alone tell the classes."""
    X = fixed_rng(seed).normal(size=(n, 2 + n_noise))
    return X, np.where(np.abs(X[:, 0]) + 0.5 * np.square(X[:, 1]) > 1, "out", "in")


X, Y = two_that_matter(150, 4)
NEW, TRUTH = two_that_matter(500, 4, seed=1)
THREE = np.where(X[:, 2] > 0.6, "third", Y)


@pytest.fixture(scope="module")
def model():
    return pcvm.PCVMClassifier(random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def shared():
    return pcvm.PCVMClassifier(width="shared", random_state=0).fit(X, Y)


def test_features_that_matter_are_found_and_help(model, shared):
    assert set(np.argsort(model.feature_relevance_)[-2:]) == {0, 1}
    assert model.feature_relevance_[:2].sum() > 0.8
    assert model.feature_relevance_.sum() == pytest.approx(1)
    assert model.score(NEW, TRUTH) > shared.score(NEW, TRUTH) + 0.02
    np.testing.assert_array_equal(model.feature_widths_, model.width_)
    assert model.feature_relevance_folds_.shape == (5, 6)
    np.testing.assert_allclose(model.feature_relevance_folds_.sum(axis=1), 1)


def test_one_width_and_widths_per_feature_share_the_weights_of_an_average(model):
    search = model.selection_
    own = [each.by_feature for each in search.points]
    assert search.feature_share > 0.5
    assert search.weights[own].sum() == pytest.approx(search.feature_share)
    assert search.best.by_feature
    assert search.widths.shape == (len(search.points), 6)
    assert search.plot().axes


def test_scikit_learn_selects_and_eliminates_features_by_their_importance(model, shared):
    np.testing.assert_array_equal(model.feature_importances_, model.feature_relevance_)
    selected = SelectFromModel(model, prefit=True)
    assert selected.get_support().tolist() == [True, True, False, False, False, False]
    eliminated = RFE(clone(model), n_features_to_select=1).fit(X, Y)
    assert set(np.argsort(eliminated.ranking_)[:2]) == {0, 1}
    words = "no feature_importances_; needed the RBF, and width='auto' or"
    refused(words, getattr, shared, "feature_importances_", error=AttributeError)
    assert not hasattr(pcvm.PCVMClassifier(), "feature_importances_")
    laplacian = pcvm.PCVMClassifier(width=1.0, kernel="laplacian").fit(X, Y)
    assert not hasattr(laplacian, "feature_importances_")


def test_importances_are_of_learned_widths_where_one_width_predicts_better():
    """Two features of equal width: what is learned of each counts nothing."""
    rows, _ = two_that_matter(80, 0)
    label = np.square(rows).sum(axis=1) > 1.4
    found = pcvm.PCVMClassifier(random_state=0).fit(rows, label)
    assert found.selection_.feature_share == 0.0
    assert np.isnan(found.feature_relevance_).all()
    assert found.feature_importances_.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.feature_importances_, 0.5, atol=0.2)
    several = pcvm.RVMClassifier(random_state=0).fit(X, THREE)
    assert several.feature_importances_.shape == (6,)
    assert several.feature_importances_.sum() == pytest.approx(1.0)


def test_noise_features_leave_the_error_nearly_flat():
    errors = []
    for n_noise in (2, 10, 50, 98):
        X, y = two_that_matter(200, n_noise, seed=3)
        new, truth = two_that_matter(1000, n_noise, seed=4)
        found = pcvm.PCVMClassifier(random_state=0).fit(X, y)
        errors.append(1 - found.score(new, truth))
        assert set(np.argsort(found.feature_relevance_)[-2:]) == {0, 1}
    assert max(errors) < 0.1
    assert max(errors) - min(errors) < 0.05


def test_one_width_is_one_search_and_one_width(shared):
    assert isinstance(shared.width_, float)
    assert shared.selection_.feature_share == 0.0
    np.testing.assert_array_equal(shared.feature_widths_, np.full(6, shared.width_))
    assert shared.feature_relevance_.shape == (6,)
    assert np.isnan(shared.feature_relevance_).all()  # not 1 / 6 each, as a finding would be
    assert shared.feature_relevance_folds_.shape == (0, 6)
    axes = pcvm.plots.plot_feature_relevance(shared).axes[0]
    assert "not learned" in axes.get_title()
    assert "sklearn.inspection.permutation_importance" in axes.get_title()


def test_relevance_is_nan_where_folds_found_no_use_for_it_and_that_of_given_widths_where_they_are():
    model = pcvm.PCVMClassifier(width=[1.0, 2.0, 2.0], basis=5).fit(X[:40, :3], Y[:40])
    np.testing.assert_allclose(model.feature_relevance_, [2 / 3, 1 / 6, 1 / 6])
    one = pcvm.PCVMClassifier()
    one.n_features_in_ = 3
    folds = np.array([[1.0, 2.0, 0.5], [2.0, 1.0, 0.5]])
    one_width = one._read_features(1.5, Metric(folds, share=0.0))
    assert np.isnan(one_width["feature_relevance_"]).all()
    assert one_width["feature_relevance_folds_"].shape == (0, 3)
    widths = one._read_features(folds[0], Metric(folds, share=0.5))
    weights = 1.0 / np.array([2.0, 2.0, 0.25])
    relevance = 0.5 * weights / weights.sum() + 0.5 / 3
    np.testing.assert_allclose(widths["feature_relevance_"], relevance)


FEW = np.delete(np.arange(150), np.flatnonzero(Y == "in")[4:])


@pytest.mark.parametrize(("rows", "y"), [(X[:, :1], Y), (X[FEW], Y[FEW])], ids=["one", "few"])
def test_one_feature_or_too_few_rows_of_a_class_keep_one_width(rows, y):
    found = [pcvm.PCVMClassifier(width=w, random_state=0).fit(rows, y) for w in ("auto", "shared")]
    assert found[0].width_ == found[1].width_
    np.testing.assert_array_equal(found[0].predict_proba(rows), found[1].predict_proba(rows))


def test_features_that_matter_alike_keep_nearly_one_width():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    y = X.sum(axis=1) + rng.normal(size=120) > 0
    assert pcvm.PCVMClassifier(random_state=0).fit(X, y).selection_.feature_share < 0.4


def test_a_fold_s_widths_do_not_see_its_rows():
    label = np.where(Y == "in", 1.0, -1.0)
    folds = inner_folds(label, 5, 0)
    before = Metric.learned(TrainingData(X, label), folds)
    test = folds[2][1]
    other, rows = label.copy(), X.copy()
    other[test] = np.random.default_rng(0).permutation(label[test])
    rows[test] += 1.0
    after = Metric.learned(TrainingData(rows, other), folds)
    np.testing.assert_array_equal(after.by_fold[2], before.by_fold[2])
    assert np.abs(after.by_fold[0] - before.by_fold[0]).max() > 1e-3


def test_a_regression_learns_them():
    rows, target = make_friedman1(160, n_features=8, noise=1.0, random_state=0)
    new, truth = make_friedman1(400, n_features=8, random_state=1)

    def error(width):
        found = pcvm.RVMRegressor(width=width, random_state=0).fit(rows, target)
        return np.sqrt(np.mean(np.square(found.predict(new) - truth))), found

    (least, regressor), (most, _) = error("auto"), error("shared")
    assert least < 0.8 * most
    assert regressor.feature_relevance_[5:].max() < regressor.feature_relevance_[[0, 1, 3]].min()


UP = {"estimation": "bottom-up", "options": pcvm.BottomUpOptions(tol=1e-2)}
MAKERS = [
    pcvm.RVMClassifier(cv=2, random_state=0),
    pcvm.PCVMClassifier(**UP, cv=2, random_state=0),
    pcvm.PCVMClassifier(hyperprior="jeffreys", cv=2, random_state=0),
    pcvm.PCVMClassifier(estimation="em", random_state=0),
    pcvm.SparseProbitClassifier(features="kernel", width="auto", prior="laplace", gamma=10.0),
]


@pytest.mark.parametrize("maker", MAKERS)
def test_every_classifier_learns_them(maker):
    found = maker.fit(X, Y)
    one = clone(maker).set_params(width="shared").fit(X, Y)
    assert set(np.argsort(found.feature_relevance_)[-2:]) == {0, 1}
    assert found.score(NEW, TRUTH) > one.score(NEW, TRUTH) - 0.01


@pytest.mark.fixed_seeds  # folds decide the widths
@pytest.mark.parametrize("kind", [pcvm.MPCVMClassifier, pcvm.MRVMClassifier, pcvm.RVMClassifier])
def test_several_classes(kind):
    found = kind(random_state=0).fit(X, THREE)
    assert found.feature_relevance_[:3].sum() > 0.7
    assert found.feature_relevance_.sum() == pytest.approx(1)
    assert found.feature_relevance_folds_.shape[1] == 6
    assert found.score(NEW, np.where(NEW[:, 2] > 0.6, "third", TRUTH)) > 0.7


def test_many_classes_and_rows_are_weighed_class_by_class():
    rows = np.random.default_rng(0).normal(size=(180, 5))
    y = np.digitize(rows[:, 0], [-0.5, 0.5]) + 3 * (rows[:, 1] > 0)
    found = pcvm.MPCVMClassifier(random_state=0).fit(rows, y)
    assert set(np.argsort(found.feature_relevance_)[-2:]) == {0, 1}


def test_what_else_takes_the_widths(model):
    few = pcvm.PCVMClassifier(n_vectors=12, random_state=0).fit(X, Y)
    assert few.vector_widths_.shape == (len(few.relevance_vectors_), 6)
    assert few.score(NEW, TRUTH) > 0.85
    assert "predict" in pcvm.to_c(few)
    if importlib.util.find_spec("onnx"):
        assert pcvm.to_onnx(few).graph.node
    interval = model.predict_interval(NEW[:5])
    assert (interval[..., 0] < interval[..., 1]).all()
    assert pcvm.loo(model, X, Y).elpd > -0.5 * len(X)
    assert pcvm.project(model, X, Y, size=8).size <= 8
    weighted = pcvm.PCVMClassifier(random_state=0).fit(X, Y, np.linspace(0.5, 2.0, len(X)))
    assert set(np.argsort(weighted.feature_relevance_)[-2:]) == {0, 1}


def test_chunks_have_the_widths_of_the_rows_in_memory():
    model = pcvm.PCVMClassifier(kernel="rbf", basis=40, random_state=0)
    both = [clone(model).set_params(memory_limit=each).fit(X, Y) for each in (None, 2e6)]
    np.testing.assert_allclose(both[1].feature_widths_, both[0].feature_widths_)
    np.testing.assert_allclose(both[1].component_weights_, both[0].component_weights_, atol=1e-6)
    assert both[1].score(NEW, TRUTH) == pytest.approx(both[0].score(NEW, TRUTH), abs=0.03)


def test_select_gives_widths_for_a_model_and_a_prior_around_them():
    found = pcvm.select(X, Y, over=("width", "scale", "features"), random_state=0)
    assert found.width.shape == (6,)
    assert set(np.argsort(found.width)[:2]) == {0, 1}
    at = map_result(pcvm.pcvm_model(X, Y, width=found.width))
    assert float(at["posterior"]["bias"].values.ravel()[0]) < 10
    width = pm.LogNormal.dist(np.log(found.width), 0.3, shape=6)
    around = pcvm.pcvm_model(X[:40], Y[:40], width=width)
    assert np.isfinite(sum(around.point_logps().values()))
    assert around["width"].eval().shape == (6,)


def test_the_picture_has_names_and_the_folds_spread(model):
    axes = pcvm.plots.plot_feature_relevance(model).axes[0]
    assert axes.get_yticklabels()[0].get_text() in {"0", "1"}
    assert len(axes.patches) == 6
    refused("fitted with kernel='rbf'", pcvm.plots.plot_feature_relevance, pcvm.PCVMClassifier())
