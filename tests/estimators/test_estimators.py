import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from problems import blobs, expected_failures
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pcvm_pymc import Hyperprior, PCVMClassifier, Status, find_map_em, pcvm_model, select_width
from pcvm_pymc.experiments.datasets import load, ripley_mixture


@pytest.mark.fixed_seeds  # of scikit-learn's own data
@parametrize_with_checks(
    [
        PCVMClassifier(),
        PCVMClassifier(width=1.0),
        PCVMClassifier(width="em", max_iter=10_000),
        PCVMClassifier(estimation="projection", basis=10, width=1.0),
        PCVMClassifier(estimation="bottom-up", width=1.0),
        PCVMClassifier(likelihood="logit", width=1.0),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        check(estimator)


def test_fitted_attributes_and_any_labels():
    X, label = blobs(60, seed=50)
    words = np.where(label > 0, "plus", "minus")
    model = PCVMClassifier(hyperprior="jeffreys", width=1.2).fit(X, words)
    assert model.classes_.tolist() == ["minus", "plus"]
    assert 0 < len(model.weight_) < 20
    np.testing.assert_array_equal(model.relevance_vectors_, X[model.support_])
    np.testing.assert_array_equal(np.sign(model.weight_), label[model.support_])
    assert set(model.predict(X)) == {"minus", "plus"}
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(probability[:, 1] > 0.5, model.decision_function(X) > 0)
    assert model.status_ is Status.CONVERGED
    assert model.n_iter_ >= 1


def test_it_is_the_map_of_the_pymc_model():
    X, label = blobs(50, seed=51)
    classifier = PCVMClassifier(width=1.3).fit(X, label)
    result = find_map_em(
        pcvm_model(X, label, width=1.3, hyperprior=Hyperprior.plug_in()), progressbar=False
    )
    weight = result["posterior"]["weight"].values[0, 0]
    np.testing.assert_allclose(classifier.weight_, weight[weight != 0], atol=1e-12)
    assert classifier.log_posterior_ == result["optimizer_result"]["log_posterior"].item()


def test_the_width_by_cross_validation_is_the_best_of_the_grid():
    X, label = blobs(80, seed=52)
    model = PCVMClassifier(width="cv", random_state=0).fit(X, label)
    chosen = model.width_selection_
    assert model.width_ == chosen.widths[chosen.scores.argmax()]
    again = PCVMClassifier(width="cv", random_state=0).fit(X, label)
    np.testing.assert_array_equal(again.width_selection_.log_loss, chosen.log_loss)
    np.testing.assert_array_equal(again.weight_, model.weight_)


@pytest.mark.parametrize("method", ["evidence", "validity"])
def test_width_by_a_score_of_all_rows(method):
    X, label = blobs(60, seed=59)
    model = PCVMClassifier(width=method).fit(X, label)
    found = select_width(X, label, method=method)
    assert model.width_ == found.width
    np.testing.assert_array_equal(model.width_selection_.scores, found.scores)


def test_width_by_em_moves():
    X, label = blobs(80, seed=53)
    model = PCVMClassifier(width="em", max_iter=10_000).fit(X, label)
    fixed = PCVMClassifier(width=model.width_ * 1.05).fit(X, label)
    assert model.log_posterior_ > fixed.log_posterior_


def test_an_empty_model_predicts_by_its_bias():
    X, label = blobs(40, seed=56)
    model = PCVMClassifier(hyperprior="jeffreys", width=1e9, max_iter=5000)
    with pytest.warns(ConvergenceWarning, match="every weight was pruned"):
        model.fit(np.vstack([X, X[:5]]), np.append(label, np.ones(5)))
    if model.status_ is Status.EMPTY_MODEL:
        assert model.relevance_vectors_.shape == (0, 2)
    assert len(set(model.predict(X))) == 1


def test_iteration_limit_warns():
    X, label = blobs(40, seed=57)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        PCVMClassifier(width=1.0, max_iter=1).fit(X, label)


def test_a_lonely_point_of_a_class_leaves_nothing_to_hold_out():
    X, label = blobs(20, seed=58)
    label[:] = -1
    label[3] = 1
    model = PCVMClassifier(width="cv").fit(X, label)
    assert model.width_selection_.log_loss.size == 0
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(PCVMClassifier().fit(X, label).predict_proba(X)).all()


def test_it_pickles_and_works_in_a_pipeline():
    X, label = blobs(60, seed=59)
    pipeline = make_pipeline(StandardScaler(), PCVMClassifier(width=1.0)).fit(1e6 * X, label)
    copy = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(copy.predict_proba(1e6 * X), pipeline.predict_proba(1e6 * X))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"width": -1.0}, r"'width' parameter .* float in the range \(0.0, inf\).* Got -1.0"),
        (
            {"width": "narrow"},
            "'width' parameter .* among .*'evidence'.* Got 'narrow'",
        ),
        ({"hyperprior": "flat"}, "hyperprior='flat' is unknown"),
        ({"estimation": "vb"}, "'estimation' parameter .* Got 'vb'"),
        ({"n_init": 0}, r"'n_init' parameter .* \[1, inf\).* Got 0 "),
        ({"cv": 1}, r"'cv' parameter .* \[2, inf\).* Got 1 "),
        ({"width": "em", "kernel": lambda A, B, w: A @ B.T}, "width='em' needs kernel='rbf'"),
    ],
)
def test_bad_parameters_are_named(parameters, words):
    X, label = blobs(20, seed=60)
    with pytest.raises(ValueError, match=words):
        PCVMClassifier(**parameters).fit(X, label)


def test_core_and_estimators_do_not_import_pymc():
    code = (
        "import sys; from pcvm_pymc import PCVMClassifier, Hyperprior, select_width; "
        "from pcvm_pymc import MPCVMClassifier, SparseProbitClassifier; "
        "import pcvm_pymc.core.em; assert 'pymc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ripley_mixture_is_near_the_bayes_error():
    X, label = ripley_mixture(250, random_state=0)
    X_test, label_test = ripley_mixture(4000, random_state=1)
    model = PCVMClassifier(random_state=0).fit(X, label)
    assert np.mean(model.predict(X_test) != label_test) <= 0.105  # Bayes: about 0.08


def test_waveform_reaches_the_papers_figures(data_folder):
    """chen2009, Table I: error 10.40 %, AUC 96.42, 1-RMSE 71.78."""
    waveform = load("waveform", folder=data_folder)
    rows = []
    for k in range(5):
        X, y, X_test, y_test = waveform.split(k)
        model = PCVMClassifier(random_state=0).fit(X, y)
        probability = model.predict_proba(X_test)[:, 1]
        rows.append(
            (
                100 * np.mean(model.predict(X_test) != y_test),
                100 * roc_auc_score(y_test, probability),
                100 * (1 - np.sqrt(brier_score_loss(y_test, probability, pos_label=1))),
            )
        )
    error, auc, rmse = np.mean(rows, axis=0)
    assert error <= 10.4
    assert auc >= 96.4
    assert rmse >= 71.8


def test_ripleys_own_data(data_folder):
    X, y, X_test, y_test = load("ripley", folder=data_folder).split(0)
    model = make_pipeline(StandardScaler(), PCVMClassifier(random_state=0)).fit(X, y)
    assert np.mean(model.predict(X_test) != y_test) <= 0.105
