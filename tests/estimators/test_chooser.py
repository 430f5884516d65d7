"""Candidates: a grid that grows where held-out densities are high, several kernels, and their fits."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from problems import at_scale, blobs, problem, refused
from sklearn.datasets import load_iris

from pcvm_pymc import PCVMClassifier, RVMClassifier, project, to_c
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.loo import LeaveOneOut
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, Probit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.stacking import stacking_weights
from pcvm_pymc.estimators import formulation
from pcvm_pymc.estimators.candidates import AXES, ChoiceOptions, HyperparameterSearch, Space, grow
from pcvm_pymc.estimators.chooser import kernels_of, share_of_widths
from pcvm_pymc.estimators.formulation import Formulation
from pcvm_pymc.estimators.scoring import score_of_rows
from pcvm_pymc.estimators.training import TrainingData

N = 60
BOTH = ("width", "scale")
MIDDLE = {"width": 2.0, "scale": 1.0}
TWO = ChoiceOptions(axes={name: AXES[name] for name in BOTH})


def surface(loss):
    """Return a score whose held-out densities are known: nats of all rows below the best."""

    def score(point, near):
        total = -loss(point.steps) - point.log_prior  # the prior counts besides
        density = np.full(N, total / N)
        return replace(point, loo=LeaveOneOut(density, density))

    return score


def grown(loss, moves=BOTH):
    return grow(Space(MIDDLE, moves, TWO), surface(loss))


def bowl(steps, at, steep=1.0):
    return steep * ((steps[0] - at[0]) ** 2 + (steps[1] - at[1]) ** 2)


def problems(rows=slice(None), *, several=False):
    """Return the problems of two overlapping classes, or of three, on some of their rows."""
    if several:
        X, label = (each[::4] for each in load_iris(return_X_y=True))
        sign, likelihood = np.where(label[:, None] == np.arange(3), 1.0, -1.0), MultinomialProbit(3)
    else:
        X, label = blobs(N, seed=1)
        sign, likelihood = label, Probit()
    data = TrainingData(X[rows], label[rows])
    centres = Centres(X[rows], sign[rows], np.arange(len(data.X)))
    return Formulation(data, centres, "rbf", likelihood, at_scale, EMOptions(tol=1e-6))


def middle(known):
    return Space({"width": median_distance(known.data.X), "scale": 1.0}, BOTH, TWO)


@pytest.mark.parametrize("at", [(0, 0), (3, -2), (-5, 2), (7, 4)])
def test_all_neighbours_of_heavy_points_are_tried(at):
    found = grown(lambda steps: bowl(steps, at))
    tried = {each.steps for each in found.points}
    assert len(tried) == len(found.points)
    assert found.best.steps == at
    for point, weight in zip(found.points, found.weights, strict=True):
        if weight > ChoiceOptions().grown_weight:
            assert {each.steps for each in Space(MIDDLE, BOTH, TWO).neighbours(point)} <= tried
    assert found.weights.sum() == pytest.approx(1.0)


def test_weights_follow_a_known_surface():
    found = grown(lambda steps: bowl(steps, (1, 0)))
    wanted = np.exp([-bowl(each.steps, (1, 0)) for each in found.points])
    np.testing.assert_allclose(found.weights, wanted / wanted.sum(), atol=1e-9)


@pytest.mark.parametrize("moves", [("width",), ("scale",)])
def test_only_what_is_asked_for_moves(moves):
    found = grown(lambda steps: bowl(steps, (3, 3), 0.3), moves)
    still = 1 if moves == ("width",) else 0
    assert {each.steps[still] for each in found.points} == {0}
    assert found.best.steps == ((3, 0) if moves == ("width",) else (0, 3))
    wanted = (2.0 * 1.65**3, 1.0) if moves == ("width",) else (2.0, 10.0**1.5)
    assert (found.width, found.scale) == pytest.approx(wanted)


def test_nothing_moves_beyond_the_farthest():
    found = grown(lambda steps: -3.0 * (steps[0] + steps[1]))
    steps = np.array([each.steps for each in found.points])
    np.testing.assert_array_equal(steps.max(axis=0), [7, 4])
    assert found.best.steps == (7, 4)


def test_the_prior_of_a_point():
    """Normals on the logarithms, of standard deviation 1 for the width and 0.7 for the scale."""
    grid = Space(MIDDLE, BOTH, TWO)
    assert grid.candidate((0, 0)).log_prior == 0.0
    assert grid.candidate((1, 0)).log_prior == pytest.approx(-0.5 * np.log(1.65) ** 2)
    assert grid.candidate((0, 2)).log_prior == pytest.approx(-0.5 * (np.log(10.0) / 0.7) ** 2)


def test_kept_points_are_the_heaviest_first():
    points = grown(lambda steps: bowl(steps, (0, 0))).points[:4]
    found = HyperparameterSearch(points, np.array([0.3, 0.01, 0.6, 0.09]))
    kept = found.kept()
    assert kept.points == (points[2], points[0], points[3])
    np.testing.assert_allclose(kept.weights, np.array([0.6, 0.3, 0.09]) / 0.99)
    assert found.kept(1).weights == pytest.approx([1.0])
    alike = HyperparameterSearch(points * 20, np.full(80, 1 / 80))
    assert len(alike.kept().points) == 80  # none stands out


def test_a_point_is_the_mode_of_its_problem(monkeypatch):
    monkeypatch.setitem(formulation.ROUGH, "leave-one-out", 0.0)  # fits to convergence
    known = problems()
    grid, score = middle(known), partial(score_of_rows, known.for_many_widths())
    near = score(grid.candidate((0, 0)), None)
    point = score(grid.candidate((1, 1)), near)
    X, label = blobs(N, seed=1)
    alone = fit_em(problem(X, label, at_scale(point.scale), point.width), None, EMOptions(tol=1e-8))
    np.testing.assert_allclose(point.result.latent, alone.latent, atol=1e-4)
    assert point.width == pytest.approx(1.65 * near.width)
    assert point.scale == pytest.approx(np.sqrt(10.0))


def test_widths_per_feature_must_overcome_their_penalty():
    alike, better, options = np.full(40, -0.5), np.full(40, -0.2), ChoiceOptions()
    assert share_of_widths(alike, alike, options) == pytest.approx(1.0 / (1.0 + np.exp(3.0)))
    assert share_of_widths(alike, alike, options) < options.grown_weight
    assert share_of_widths(alike, better, options) > 0.999
    assert share_of_widths(better, np.full(40, -1e4), options) == 0.0
    even = share_of_widths(alike, alike + 3.0 / 40.0, options)
    assert even == pytest.approx(0.5)


def skewed(n, seed, d=2):
    """Return rows with long tails, and the labels of a function of their logarithms."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, d))
    return np.exp(1.5 * Z), Z[:, 0] * Z[:, 1] + 0.3 * rng.normal(size=n) > 0


ROWS, LABELS = skewed(120, 5)


@pytest.fixture(scope="module")
def weighed():
    return PCVMClassifier(random_state=0).fit(ROWS, LABELS)


@pytest.mark.parametrize("widths", [1.5, np.array([1.0, 2.0])])
@pytest.mark.parametrize("kernel", kernels_of(("rbf", "laplacian"), TrainingData(ROWS, LABELS)))
def test_a_problem_of_another_kernel_is_that_of_its_rows(kernel, widths):
    data = TrainingData(ROWS, np.where(LABELS, 1.0, -1.0))
    centres = Centres(ROWS, data.label, np.arange(len(ROWS)))
    known = Formulation(data, centres, "rbf", Probit(), at_scale, EMOptions())
    direct = known.at({"kernel": kernel, "width": widths, "scale": 1.0})
    np.testing.assert_array_equal(direct.Phi, kernel.with_width(widths)(ROWS, ROWS))
    relative = widths / 1.5 * np.ones(2)
    scaled = known.on(kernel).scaled(relative).at({"width": 1.5, "scale": 1.0})
    np.testing.assert_allclose(scaled.Phi, direct.Phi, atol=1e-12)


def test_ranks_are_weighed_where_columns_are_skewed(weighed):
    kernels = weighed.selection_.kernels
    assert set(kernels) == {"rbf", "laplacian", "rbf of ranks", "laplacian of ranks"}
    assert kernels["rbf of ranks"] > 0.4
    X, label = blobs(N, seed=1)
    plain = PCVMClassifier(random_state=0).fit(X, label)
    assert set(plain.selection_.kernels) == {"rbf", "laplacian"}
    one = PCVMClassifier(random_state=0, kernel="laplacian").fit(X, label)
    assert one.selection_.kernels == {}
    assert {each.kernel.name for each in one.components_} == {"laplacian"}


def test_kernels_are_stacked_by_the_averages_of_their_candidates(weighed):
    found = weighed.selection_
    assert sum(found.kernels.values()) == pytest.approx(1.0)
    assert list(found.kernels.values()) == sorted(found.kernels.values(), reverse=True)
    averages = []
    for name in found.kernels:
        part = found.of_kernel(name)
        by_feature = np.array([each.by_feature for each in part.points])
        share = part.weights @ by_feature
        assert share == pytest.approx(found.feature_share if by_feature.any() else 0.0)
        density = np.exp([each.loo.log_density for each in part.points])
        averages.append(np.log(part.weights @ density))
    expected = stacking_weights(np.array(averages))
    np.testing.assert_allclose(list(found.kernels.values()), expected, atol=1e-6)


def test_modes_of_several_kernels_are_modes_of_their_problems(weighed):
    label = np.where(LABELS, 1.0, -1.0)
    kinds = {each.kernel.name for each in weighed.components_}
    assert len(kinds) > 1
    for each in weighed.components_:
        assert each.at["kernel"].name == each.kernel.name
        np.testing.assert_array_equal(each.kernel.width, each.width)
        Phi = each.kernel(ROWS, ROWS)
        prior = replace(weighed.hyperprior_, d=weighed.hyperprior_.c * each.scale**2)
        alone = fit_em(Problem(Phi, label, label, prior), None, EMOptions(tol=1e-8))
        np.testing.assert_allclose(each.latent(ROWS), alone.latent, atol=1e-3)


def test_the_unit_of_the_features_is_the_unit_of_the_widths():
    one, other = (PCVMClassifier(random_state=0).fit(u * ROWS, LABELS) for u in (1.0, 1024.0))
    found, wanted = other.predict_proba(1024.0 * ROWS), one.predict_proba(ROWS)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_far_from_all_rows_nothing_is_sure_of_ranks_either(weighed):
    far = np.array([[1e4, 1e4], [-1e3, 0.0], [0.0, 1e3]])
    share = np.mean(LABELS)
    np.testing.assert_allclose(weighed.predict_proba(far)[:, 1], share, atol=0.1)
    low, high = weighed.predict_interval(far)[:, 1].T
    assert (high - low > 0.7).all()


def test_weights_of_kernels_are_shown(weighed):
    heaviest, share = next(iter(weighed.selection_.kernels.items()))
    assert f"{heaviest} {share:.2f}" in repr(weighed.selection_)
    titles = [axes.get_title() for axes in weighed.selection_.plot().axes]
    assert titles[0] == f"{heaviest}\nweight {share:.2f}"


def test_few_vectors_match_an_average_of_the_first_kernel(weighed):
    own = project(weighed, ROWS, LABELS, size=5).classifier
    assert own.kernel == "rbf"
    np.testing.assert_array_equal(own.width_, weighed.selection_.of_kernel("rbf").best.width)
    few = PCVMClassifier(n_vectors=5, random_state=0).fit(ROWS, LABELS)
    first = PCVMClassifier(kernel="rbf", random_state=0).fit(ROWS, LABELS)
    found = project(first, ROWS, LABELS, size=5).classifier
    np.testing.assert_allclose(few.predict_proba(ROWS), found.predict_proba(ROWS), atol=1e-9)
    np.testing.assert_array_equal(few.feature_widths_, np.broadcast_to(found.width_, 2))
    assert not few.selection_.kernels
    assert to_c(few)
    assert to_c(own)


def test_one_kernel_is_fitted_where_nothing_is_averaged_over_widths():
    for arguments in ({"estimation": "em"}, {"width": 1.5}, {"width": 1.5, "scale": "auto"}):
        models = (PCVMClassifier(kernel=k, random_state=0, **arguments) for k in ("auto", "rbf"))
        found = (each.fit(ROWS, LABELS).predict_proba(ROWS) for each in models)
        np.testing.assert_array_equal(*found)


def test_machines_that_weigh_no_kernels_refuse_to():
    refused("kernel='auto' is unknown", RVMClassifier(kernel="auto").fit, ROWS, LABELS)
