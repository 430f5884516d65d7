import numpy as np
import pytest
from problems import blobs

from pcvm_pymc import Hyperprior, PCVMClassifier, select_width
from pcvm_pymc.core.bases import width_bounds
from pcvm_pymc.core.probit import log_likelihood


def test_the_scores_are_those_of_refits_without_the_held_out_rows():
    from sklearn.model_selection import StratifiedKFold

    X, label = blobs(40, seed=70)
    found = select_width(X, label, widths=[0.7, 1.5], cv=4, random_state=5)
    seed = int(np.random.default_rng(5).integers(2**31))
    folds = StratifiedKFold(4, shuffle=True, random_state=seed).split(X, label)
    for j, (train, test) in enumerate(folds):
        for i, width in enumerate((0.7, 1.5)):
            model = PCVMClassifier(width=width).fit(X[train], label[train])
            wanted = -log_likelihood(model.decision_function(X[test]), label[test]) / len(test)
            assert found.log_loss[i, j] == pytest.approx(wanted, abs=2e-4)  # ranked, not polished
    assert found.width == found.widths[found.log_loss.mean(axis=1).argmin()]


def test_em_finds_a_width_inside_the_bounds():
    X, label = blobs(60, seed=71)
    found = select_width(X, label, method="em")
    low, high = width_bounds(X)
    assert low <= found.width <= high
    assert found.log_loss.size == 0


def test_a_callable_kernel_is_chosen_for_too():
    X, label = blobs(30, seed=72)

    def laplacian(A, B, width):
        return np.exp(-np.abs(A[:, None] - B[None]).sum(-1) / width)

    found = select_width(X, label, kernel=laplacian, widths=[0.5, 2.0, 8.0], random_state=0)
    assert np.isfinite(found.log_loss).all()
    assert found.width in (0.5, 2.0, 8.0)


def test_a_kernel_of_both_signs_can_be_chosen_for():
    X, label = blobs(30, seed=75)

    def linear(A, B, width):
        return A @ B.T / width**2

    found = select_width(X, label, kernel=linear, widths=[0.5, 1.0, 2.0], random_state=0)
    assert np.isfinite(found.log_loss).all()
    nothing = select_width(
        X, label, kernel=lambda A, B, w: 0.0 * linear(A, B, w), widths=[0.5, 1.0], random_state=0
    )
    np.testing.assert_allclose(nothing.log_loss.mean(), np.log(2), atol=0.02)


def test_the_hyperprior_given_is_the_one_that_is_scored():
    X, label = blobs(40, seed=73)
    dense, same, sparse = (
        select_width(X, label, hyperprior=prior, widths=[1.0, 2.0], random_state=0).log_loss
        for prior in (None, Hyperprior.plug_in(), Hyperprior.jeffreys())
    )
    np.testing.assert_array_equal(dense, same)
    assert (dense != sparse).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "guess"}, "method='guess' is unknown"),
        ({"widths": [1.0, -1.0]}, "needed one or more positive numbers"),
        ({"widths": []}, "needed one or more positive numbers"),
        ({"method": "em", "kernel": lambda A, B, w: A @ B.T}, "needs kernel='rbf'"),
    ],
)
def test_bad_arguments_are_named(change, words):
    X, label = blobs(20, seed=74)
    with pytest.raises(ValueError, match=words):
        select_width(X, label, **change)
