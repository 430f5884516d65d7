"""Grid points of width and scale: a grid that grows where held-out densities are high, and its fits."""

from dataclasses import replace

import numpy as np
import pytest
from problems import at_scale, blobs, problem
from sklearn.datasets import load_iris

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.loo import LeaveOneOut
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, Probit
from pcvm_pymc.estimators import formulation
from pcvm_pymc.estimators.candidates import AXES, ChoiceOptions, HyperparameterSearch, Space, grow
from pcvm_pymc.estimators.chooser import score_of_rows
from pcvm_pymc.estimators.formulation import Formulation
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
    grid, score = middle(known), score_of_rows(known.for_many_widths())
    near = score(grid.candidate((0, 0)), None)
    point = score(grid.candidate((1, 1)), near)
    X, label = blobs(N, seed=1)
    alone = fit_em(problem(X, label, at_scale(point.scale), point.width), None, EMOptions(tol=1e-8))
    np.testing.assert_allclose(point.result.latent, alone.latent, atol=1e-4)
    assert point.width == pytest.approx(1.65 * near.width)
    assert point.scale == pytest.approx(np.sqrt(10.0))
