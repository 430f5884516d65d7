import numpy as np
import pytest
from problems import blobs
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import PCVMClassifier, select_width
from pcvm_pymc.experiments.datasets import load, ripley_mixture


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


def test_ripley_mixture_is_near_the_bayes_error():
    X, label = ripley_mixture(250, random_state=0)
    X_test, label_test = ripley_mixture(4000, random_state=1)
    model = PCVMClassifier(random_state=0).fit(X, label)
    assert np.mean(model.predict(X_test) != label_test) <= 0.105  # Bayes: about 0.08


@pytest.mark.slow  # of the default on real data there is Ripley's, too
def test_waveform_reaches_the_papers_figures(data_folder):
    """chen2009, Table I: error 10.40 %, AUC 96.42, 1-RMSE 71.78."""
    waveform = load("waveform", folder=data_folder)
    rows = []
    for k in range(5):
        X, y, X_test, y_test = waveform.split(k)
        model = PCVMClassifier(random_state=0).fit(X, y)
        probability = model.predict_proba(X_test)[:, 1]
        error = np.mean(model.predict(X_test) != y_test)
        distance = np.sqrt(brier_score_loss(y_test, probability, pos_label=1))
        rows.append((error, roc_auc_score(y_test, probability), 1 - distance))
    error, auc, rmse = 100 * np.mean(rows, axis=0)
    assert error <= 10.4
    assert auc >= 96.4
    assert rmse >= 71.8


def test_ripleys_own_data(data_folder):
    X, y, X_test, y_test = load("ripley", folder=data_folder).split(0)
    model = make_pipeline(StandardScaler(), PCVMClassifier(random_state=0)).fit(X, y)
    assert np.mean(model.predict(X_test) != y_test) <= 0.105
