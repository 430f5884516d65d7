import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from pcvm_pymc.estimators import measures

RNG = np.random.default_rng


def simplex(n, k, seed):
    return RNG(seed).dirichlet(np.ones(k), size=n)


@settings(max_examples=20)  # what it is compared with takes most of the time
@given(st.integers(0, 2**32 - 1), st.integers(3, 6))
def test_hand_till_is_scikit_learns_for_probabilities(seed, k):
    label = np.concatenate([np.arange(k), RNG(seed).integers(k, size=40)])
    p = simplex(len(label), k, seed)
    wanted = roc_auc_score(label, p, multi_class="ovo", average="macro")
    assert measures.hand_till_auc(label, p, np.arange(k)) == pytest.approx(wanted, abs=1e-12)
    # any increasing function of one class' scores ranks alike
    found = measures.hand_till_auc(label, np.exp(3 * p), np.arange(k))
    assert found == pytest.approx(wanted, abs=1e-12)


def test_measures_of_two_classes_are_scikit_learns():
    rng = RNG(1)
    label = rng.choice(["no", "yes"], size=200)
    p = rng.uniform(size=200)
    predicted, both = np.where(p > 0.5, "yes", "no"), np.column_stack([1 - p, p])
    found = measures.classification_measures(label, predicted, np.array(["no", "yes"]), both)
    one = label == "yes"
    assert found["error"] == np.mean((p > 0.5) != one)
    assert found["test errors"] == np.sum((p > 0.5) != one)
    assert found["AUC"] == pytest.approx(roc_auc_score(one, p))
    assert found["1-RMSE"] == pytest.approx(1 - np.sqrt(brier_score_loss(one, p)))
    assert found["log loss"] == pytest.approx(log_loss(one, p))
    assert found["ECE"] == pytest.approx(measures.expected_calibration_error(one, p))


def test_measures_without_probabilities_or_classes():
    label = np.array([0, 0, 1, 1])
    found = measures.classification_measures(label, [0, 1, 1, 1], [0, 1])
    assert found["error"] == 0.25
    assert np.isnan([found[key] for key in ("AUC", "1-RMSE", "log loss", "ECE")]).all()
    score = np.array([[2.0, -2.0], [-1.0, 1.0], [-3.0, 3.0], [-4.0, 4.0]])
    assert measures.classification_measures(label, [0, 1, 1, 1], [0, 1], score=score)["AUC"] == 1.0
    # a test part with one class has no ranking, one with a class never seen no log loss
    assert np.isnan(measures.hand_till_auc([1, 1], [[0.2, 0.8], [0.4, 0.6]], [0, 1]))
    unseen = measures.classification_measures([0, 2], [0, 1], [0, 1], [[0.9, 0.1], [0.4, 0.6]])
    assert unseen["error"] == 0.5
    assert np.isnan(unseen["log loss"])
    assert measures.regression_measures([1.0, 2.0], [1.0, 4.0]) == {"MSE": 2.0}


def test_certain_probabilities_are_calibrated():
    label = np.array([0, 1, 1, 0, 1])
    assert measures.expected_calibration_error(label, label) == 0.0
    assert measures.expected_calibration_error(label, 1 - label) == 1.0
    # several classes: the confidence in the predicted one
    p = np.full((90, 3), 0.1)
    p[:, 0] = 0.8
    label = np.repeat([0, 1, 2], [72, 9, 9])
    found = measures.classification_measures(label, np.zeros(90, int), [0, 1, 2], p)
    assert found["ECE"] == pytest.approx(0.0, abs=1e-12)
