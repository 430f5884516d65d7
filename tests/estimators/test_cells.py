"""Cells of width and scale: a grid that grows where held-out densities say that it pays."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from problems import blobs, problem
from sklearn.datasets import load_iris

from pcvm_pymc import Hyperprior
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.loo import LeaveOneOut, leave_one_out
from pcvm_pymc.core.pieces.kernels import median_distance, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.cells import (
    GROWN_FROM,
    Cell,
    Cells,
    CrossValidated,
    OneVsRest,
    Task,
    grown_cells,
    log_hyperprior,
    refitted_cells,
)

N = 60


@dataclass(frozen=True)
class Surface(Task):
    """Cells whose held-out densities are known: nats of all rows below the best."""

    loss: object = None

    def fitted(self, place, near, *, final=False):
        width, scale = self.at(place)
        total = -self.loss(place) - self.log_prior(place)  # the prior counts besides
        density = np.full(N, total / N)
        held_out = LeaveOneOut(density, density)
        return Cell(place, width, scale, self.log_prior(place), None, held_out)


def surface(loss, moves=(True, True)):
    return Surface(None, np.arange(N), 2.0, 1.0, moves, EMOptions(), loss=loss)


def bowl(place, at, steep=1.0):
    return steep * ((place[0] - at[0]) ** 2 + (place[1] - at[1]) ** 2)


def at_scale(scale):
    return Hyperprior(5.0, 5.0 * scale**2, 1.0, 1.0)


def task(kind=Task, *, several=False, moves=(True, True), **options):
    if several:
        X, label = load_iris(return_X_y=True)
        X, label = X[::4], label[::4]
        sign = np.where(label[:, None] == np.arange(3), 1.0, -1.0)
        likelihood = {"likelihood": MultinomialProbit(3)}
    else:
        X, label = blobs(N, seed=1)
        sign, likelihood = label.copy(), {}

    def at(width, scale):
        Phi = rbf(squared_distances(X, X), width)
        return Problem(Phi, label, sign, at_scale(scale), width=width, **likelihood)

    middle = median_distance(X)
    return kind(at, np.arange(len(X)), middle, 1.0, moves, EMOptions(tol=1e-6), **options)


# --- the grid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [(0, 0), (3, -2), (-5, 2), (7, 4)])
def test_all_neighbours_of_heavy_cells_are_tried(at):
    known = surface(lambda place: bowl(place, at))
    found = grown_cells(known)
    places = {each.place for each in found.cells}
    assert len(places) == len(found.cells)
    assert found.cells[found.best].place == at
    for cell, weight in zip(found.cells, found.weights, strict=True):
        if weight > GROWN_FROM:
            assert set(known.neighbours(cell.place)) <= places
    assert found.weights.sum() == pytest.approx(1.0)


def test_weights_follow_a_known_surface():
    known = surface(lambda place: bowl(place, (1, 0)))
    found = grown_cells(known)
    wanted = np.exp([-bowl(each.place, (1, 0)) for each in found.cells])
    np.testing.assert_allclose(found.weights, wanted / wanted.sum(), atol=1e-9)


@pytest.mark.parametrize("moves", [(True, False), (False, True)])
def test_only_what_is_asked_for_moves(moves):
    found = grown_cells(surface(lambda place: bowl(place, (3, 3), 0.3), moves))
    still = 1 if moves[0] else 0
    assert {each.place[still] for each in found.cells} == {0}
    best = found.cells[found.best]
    assert best.place == ((3, 0) if moves[0] else (0, 3))
    assert (best.width, best.scale) == pytest.approx(
        (2.0 * 1.65**3, 1.0) if moves[0] else (2.0, 10.0**1.5)
    )


def test_nothing_moves_beyond_the_farthest():
    found = grown_cells(surface(lambda place: -3.0 * (place[0] + place[1])))
    places = np.array([each.place for each in found.cells])
    np.testing.assert_array_equal(places.max(axis=0), [7, 4])
    assert found.cells[found.best].place == (7, 4)


def test_growth_is_told_cell_by_cell():
    told = []
    found = grown_cells(surface(lambda place: bowl(place, (0, 0))), told.append)
    assert told == list(range(2, len(found.cells) + 1))


def test_the_prior_of_a_cell():
    assert log_hyperprior(1.0, 1.0) == 0.0
    assert log_hyperprior(np.e, 1.0) == pytest.approx(-0.5)
    assert log_hyperprior(1.0, np.exp(-0.7)) == pytest.approx(-0.5)
    whole, half = surface(None), surface(None, (False, True))
    assert half.log_prior((0, 2)) == pytest.approx(log_hyperprior(1.0, 10.0))
    assert whole.log_prior((2, 2)) == pytest.approx(log_hyperprior(1.65**2, 10.0))


def test_kept_cells_are_the_heaviest_first():
    cells = grown_cells(surface(lambda place: bowl(place, (0, 0)))).cells[:4]
    kept = Cells(cells, np.array([0.3, 0.01, 0.6, 0.09])).kept()
    assert kept.cells == (cells[2], cells[0], cells[3])
    np.testing.assert_allclose(kept.weights, np.array([0.6, 0.3, 0.09]) / 0.99)
    assert Cells(cells, np.array([0.3, 0.01, 0.6, 0.09])).kept(1).weights == pytest.approx([1.0])
    assert len(Cells(cells * 20, np.full(80, 1 / 80)).kept().cells) == 80  # none stands out


# --- fits of cells ---------------------------------------------------------------------------------


def test_a_cell_is_the_mode_of_its_problem():
    known = task()
    near = known.fitted((0, 0), None)
    cell = known.fitted((1, 1), near, final=True)
    X, label = blobs(N, seed=1)
    wanted = fit_em(problem(X, label, at_scale(cell.scale), cell.width), None, EMOptions(tol=1e-8))
    np.testing.assert_allclose(cell.result.latent, wanted.latent, atol=1e-4)
    assert cell.width == pytest.approx(1.65 * near.width)
    assert cell.scale == pytest.approx(np.sqrt(10.0))


def test_refitted_cells_are_the_modes_of_the_problem_itself():
    ranking = task(OneVsRest, several=True)
    cells = Cells(tuple(ranking.fitted((i, 0), None) for i in range(3)), np.array([0.5, 0.3, 0.2]))
    itself = task(several=True)
    kept = refitted_cells(itself, cells, again=True, most=2, weigh=False, held_out=True)
    assert [each.place for each in kept.cells] == [(0, 0), (1, 0)]
    np.testing.assert_allclose(kept.weights, [0.625, 0.375])
    for cell in kept.cells:
        whole = itself.problem(cell.width, cell.scale)
        wanted = fit_em(whole, None, EMOptions(tol=1e-7))
        np.testing.assert_allclose(cell.result.latent, wanted.latent, atol=1e-3)
        left_out = leave_one_out(whole, wanted.weight, wanted.bias, itself.own)
        np.testing.assert_allclose(cell.loo.latent, left_out.latent, atol=1e-2)
    weighed = refitted_cells(itself, cells, again=True, most=3, weigh=True)
    assert weighed.weights.sum() == pytest.approx(1.0)
    assert (np.diff(weighed.weights) <= 0).all()


def test_cells_of_some_rows_are_where_fits_of_all_rows_start():
    whole, some = task(), np.arange(0, N, 2)
    X, label = blobs(N, seed=1)

    def at(width, scale):
        Phi = rbf(squared_distances(X[some], X[some]), width)
        return Problem(Phi, label[some], label[some], at_scale(scale), width=width)

    few = replace(whole, problem=at, own=np.arange(len(some)))
    cells = Cells((few.fitted((0, 1), None),), np.ones(1))
    ends = [
        refitted_cells(whole, cells, again=True, most=1, weigh=weigh, columns=columns)
        for columns in (None, some)
        for weigh in (False, True)
    ]
    for end in ends[1:]:
        np.testing.assert_allclose(
            end.cells[0].result.latent, ends[0].cells[0].result.latent, atol=1e-3
        )
    cell = cells.cells[0]
    weight = np.zeros(N)
    weight[some] = cell.result.weight
    start = Start(weight, cell.result.bias)
    known = fit_em(whole.problem(cell.width, cell.scale), start, EMOptions(max_iter=1))
    for end in ends[2:]:
        first = end.cells[0].result.trace.log_posterior[0]
        assert first == pytest.approx(known.trace.log_posterior[0])
        assert first != ends[0].cells[0].result.trace.log_posterior[0]


def test_one_against_the_rest_gives_normalised_probabilities():
    cell = task(OneVsRest, several=True).fitted((0, 0), None)
    np.testing.assert_allclose(np.exp(cell.loo.latent).sum(axis=1), 1.0)
    y = load_iris().target[::4]
    np.testing.assert_array_equal(cell.loo.log_density, cell.loo.latent[np.arange(len(y)), y])
    assert cell.result.weight.shape == (len(y), 3)
    together = task(several=True).fitted((0, 0), None)
    assert cell.loo.log_loss == pytest.approx(together.loo.log_loss, abs=0.1)


def test_cross_validation_leaves_rows_and_their_bases_out():
    rows = np.arange(N)
    folds = tuple((rows[rows % 3 != k], rows[rows % 3 == k]) for k in range(3))
    known = task(CrossValidated, folds=folds)
    cell = known.fitted((0, 0), None)
    whole = known.problem(known.width, 1.0)
    train, test = folds[1]
    Phi = whole.Phi[np.ix_(train, train)]
    part = fit_em(
        Problem(Phi, whole.label[train], whole.sign[train], whole.hyperprior),
        None,
        EMOptions(tol=1e-6),
    )
    wanted = whole.Phi[np.ix_(test, train)] @ part.weight + part.bias
    np.testing.assert_allclose(cell.loo.latent[test], wanted, atol=0.02)
    left_out = task().fitted((0, 0), None)
    assert cell.loo.log_loss == pytest.approx(left_out.loo.log_loss, abs=0.05)
