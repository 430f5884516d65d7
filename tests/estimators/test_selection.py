import numpy as np
import pytest
from problems import blobs

from pcvm_pymc import Hyperprior, PCVMClassifier, RVMClassifier, plots, select_width
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.pieces.kernels import width_bounds
from pcvm_pymc.core.pieces.probit import log_likelihood
from pcvm_pymc.core.validity import pcvm_validity
from pcvm_pymc.estimators.problems import problem_at


@pytest.mark.fixed_seeds  # tolerances of ranking
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
    assert np.isnan(found.scores).all()


def test_evidence_is_that_of_the_probit_rvm_at_each_width():
    X, label = blobs(50, seed=76)
    found = select_width(X, label, method="evidence", widths=[0.3, 1.0, 3.0])
    for width, score in zip(found.widths, found.scores, strict=True):
        machine = RVMClassifier(width=width, link="probit", tol=1e-3).fit(X, label)
        assert score == pytest.approx(machine.log_evidence_)
    assert found.width == found.widths[found.scores.argmax()]


@pytest.mark.parametrize("hyperprior", [Hyperprior.plug_in(), Hyperprior.jeffreys()])
def test_validity_is_that_of_the_map_at_each_width(hyperprior):
    X, label = blobs(50, seed=77)
    widths = [0.3, 1.0, 3.0]
    found = select_width(X, label, method="validity", widths=widths, hyperprior=hyperprior)
    for width, score in zip(found.widths, found.scores, strict=True):
        problem = problem_at(X, label, hyperprior, width)
        assert score == pcvm_validity(X, problem, fit_em(problem)).log_validity
    assert found.width == found.widths[found.scores.argmax()]


@pytest.mark.parametrize("method", ["cv", "evidence", "validity", "em"])
def test_the_unit_of_the_inputs_carries_over_to_the_width(method):
    X, label = blobs(40, seed=78)
    metres, feet = (
        select_width(Z, label, method=method, random_state=0).width for Z in (X, X / 0.3048)
    )
    assert feet == pytest.approx(metres / 0.3048, rel=1e-3)


def test_a_picture_of_all_criteria():
    X, label = blobs(40, seed=79)
    widths = [0.5, 1.0, 2.0]
    found = {
        method: select_width(X, label, method=method, widths=widths, random_state=0)
        for method in ("cv", "evidence", "validity", "em")
    }
    figure = plots.plot_width_criteria(found.values(), error={"test": [0.3, 0.2, 0.25]})
    figure.draw_without_rendering()
    scored = [axes for axes in figure.axes if axes.get_ylabel()]
    named = [axes.get_ylabel().split("\n")[0] for axes in scored]
    assert named == ["error", "held-out", "log evidence", "log validity"]
    for axes, method in zip(scored[1:], ("cv", "evidence", "validity"), strict=True):
        chosen = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert chosen == [found[method].width, found["em"].width]
    with pytest.raises(ValueError, match="nothing was scored"):
        plots.plot_width_criteria([found["em"]])
    with pytest.raises(ValueError, match=r"error\['test'\] has 2 values; needed one per width, 3"):
        plots.plot_width_criteria([found["cv"]], error={"test": [0.3, 0.2]})


def test_a_callable_kernel_is_chosen_for_too():
    X, label = blobs(30, seed=72)

    def laplacian(A, B, width):
        return np.exp(-np.abs(A[:, None] - B[None]).sum(-1) / width)

    def linear(A, B, width):  # of both signs
        return A @ B.T / width**2

    for kernel in (laplacian, linear):
        found = select_width(X, label, kernel=kernel, widths=[0.5, 2.0, 8.0], random_state=0)
        assert np.isfinite(found.log_loss).all()
        assert found.width in (0.5, 2.0, 8.0)
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


@pytest.mark.parametrize("method", ["em", "validity"])
def test_criteria_that_need_the_rbf_say_so(method):
    X, label = blobs(20, seed=74)
    with pytest.raises(ValueError, match="needs kernel='rbf'"):
        select_width(X, label, method=method, kernel=lambda A, B, w: A @ B.T)
