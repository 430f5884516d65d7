"""The objectives without a row that are maximised for all rows at once: values, slopes, the sign rule."""

import numpy as np
import pytest
from problems import problem
from test_loo import at_scale, class_problem, classes, two_classes

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.loo.carried import _Ends, _Removals
from pcvm_pymc.core.loo.mode import Mode
from pcvm_pymc.core.pieces.kernels import median_distance, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import SharedHyperprior
from pcvm_pymc.core.problem import Problem

ROWS = np.array([0, 7, 11])


def shared():
    """Return a problem whose precisions are those of the mode."""
    X, y, _ = classes(30)
    Phi = rbf(squared_distances(X, X), median_distance(X))
    prior = SharedHyperprior(1.0, 1.0, 1.0, 1.0)
    return Problem(Phi, y, None, prior, MultinomialProbit(3), bias="none", shared=True)


CASES = {
    "two classes": lambda: problem(*two_classes("moons", 30), at_scale(2.0)),
    "three classes": lambda: class_problem(1.0, 2.0),
    "shared precisions": shared,
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    """Return a problem, its mode, the objectives without some rows and a point that keeps the sign rule."""
    whole = CASES[request.param]()
    fit, own = fit_em(whole, None, EMOptions(tol=1e-4)), np.arange(len(whole.label))
    mode = Mode(whole, fit.weight, fit.bias, own, None)
    task = _Removals(mode, ROWS)
    start, rng = task.start(mode.removed()[2][ROWS]), np.random.default_rng(0)
    weight = start.weight * rng.uniform(0.8, 1.2, start.weight.shape)
    bias = start.bias + 0.1 * mode.has_bias[:, None]
    return whole, mode, task, _Ends(weight, bias)


def test_values_are_log_posteriors_without_the_row(case):
    whole, mode, task, point = case
    value, _, held = task.at(point)
    for j, row in enumerate(ROWS):
        weight, bias = point.weight[:, :, j], point.bias[:, j]
        latent = mode.shaped(whole.Phi @ weight + bias)
        rest = np.arange(len(latent)) != row
        wanted = whole.likelihood.log_density(latent[rest], whole.label[rest]).sum()
        if mode.is_fixed:
            finite = np.isfinite(mode.precision)
            wanted -= 0.5 * (mode.precision[finite] * weight[finite] ** 2).sum()
        else:
            left = np.arange(len(weight)) != row
            wanted += whole.hyperprior.log_weight_density(weight[left]).sum()
            wanted += whole.hyperprior.log_bias_density(bias).sum()
        assert value[j] == pytest.approx(wanted, rel=1e-10)
        np.testing.assert_allclose(held[j], np.atleast_1d(latent[row]), rtol=1e-10)


def test_slopes_are_those_of_the_values(case):
    _, mode, task, point = case
    rng = np.random.default_rng(1)
    way = _Ends(
        rng.normal(size=point.weight.shape) * point.weight,
        rng.normal(size=point.bias.shape) * mode.has_bias[:, None],
    )
    slope, h = task.at(point)[1], 1e-5
    ahead, behind = (task.at(point.plus(step, way))[0] for step in (h, -h))
    np.testing.assert_allclose((ahead - behind) / (2 * h), slope.dot(way), rtol=1e-6, atol=1e-7)


def test_what_is_at_zero_enters_on_its_own_side_alone(case):
    """And a row's own bases stay away, which way soever they are drawn."""
    _, _, task, point = case
    away = _Ends(np.where(task.sign != 0, -task.sign, 1.0) * np.ones_like(point.weight), point.bias)
    at_zero = point.weight == 0
    signed = np.broadcast_to(task.sign != 0, at_zero.shape)
    for direction, stays in ((away, at_zero & signed), (_Ends(-away.weight, away.bias), False)):
        found = task.feasible(point, direction)
        np.testing.assert_array_equal(found.weight == 0, stays | task.fixed)
        np.testing.assert_array_equal(found.bias, direction.bias)
    assert task.fixed[ROWS, :, np.arange(len(ROWS))].all()


def test_a_line_search_is_never_lower(case):
    """Uphill it gains; downhill by too long a step it stays where it was."""
    _, _, task, point = case
    value, slope, held = task.at(point)
    ends, found, pull, latent = task.searched(point, task.metric(point, slope), value, slope)
    assert (found > value).all()
    again = task.at(ends)
    np.testing.assert_allclose(found, again[0], rtol=1e-10)
    np.testing.assert_allclose(pull.weight, again[1].weight, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(latent, again[2], rtol=1e-10, atol=1e-12)
    down = _Ends(-1e3 * slope.weight, -1e3 * slope.bias)
    ends, found, _, latent = task.searched(point, down, value, slope)
    assert (found >= value).all()
    stayed = found == value
    np.testing.assert_array_equal(ends.weight[:, :, stayed], point.weight[:, :, stayed])
    np.testing.assert_allclose(latent[stayed], held[stayed], rtol=1e-10)
