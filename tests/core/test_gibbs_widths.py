"""Moves of an unknown width: their density and volume, their way back, the law they keep."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from calibration import assert_uniform
from problems import blobs, log_normal_density
from scipy.stats import gamma, lognorm
from scipy.stats import t as student

from pcvm_pymc import Hyperprior, mpcvm_model, pcvm_model
from pcvm_pymc.core.em.widths import WidthMoves
from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.gibbs.chain import log_density, moved
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.read import read

FIXED = Hyperprior(1.5, 0.4, 2.0, 1.0)
LEARNED = replace(FIXED, rate_shape=2.0)


def model_of(prior, n_classes=2, per_feature=False):
    X, label = blobs(12, n_features=2, seed=1)
    width = pm.LogNormal.dist(0.1, 0.5, shape=2 if per_feature else ())
    if n_classes == 2:
        return pcvm_model(X, label, width=width, hyperprior=prior)
    return mpcvm_model(X, np.arange(12) % n_classes, width=width, hyperprior=prior)


def state_of(problem, seed):
    rng = np.random.default_rng(seed)
    size = rng.exponential(0.5, problem.sign.shape)
    bias = rng.normal(size=problem.sign.shape[1:])[()]
    width = problem.width * np.exp(0.3 * rng.normal(size=np.shape(problem.width)))[()]
    log_rate = rng.normal() if problem.hyperprior.rate_shape else np.log(problem.hyperprior.d)
    return GibbsState(size, bias, log_rate, width)


def flat(state):
    return np.concatenate([np.ravel(state.width), state.size.ravel(), [np.exp(state.log_rate)]])


CASES = {"fixed scale": (FIXED,), "learned scale": (LEARNED,)}
CASES |= {"three classes": (LEARNED, 3), "width of each feature": (FIXED, 2, True)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rescaled", [False, True])
def test_a_move_changes_volume_as_it_says_and_has_a_way_back(case, rescaled):
    problem = GibbsProblem.of(read(model_of(*case), "gibbs"))
    state, factor = state_of(problem, 5), np.full(np.shape(problem.width), 1.2)[()]
    shape, n_widths = state.size.shape, np.size(state.width)
    of_draws = problem.latent(*(np.array([each]) for each in (state.size, state.bias, state.width)))
    latent = problem.moves.basis(state.width) @ (state.size * problem.sign) + state.bias
    np.testing.assert_allclose(of_draws[0], latent, atol=1e-12)

    def move(coordinates, by):
        """Return where sizes, widths and d are after a move, all in one array, and the volume."""
        size, width = coordinates[:-1][n_widths:].reshape(shape), coordinates[:n_widths]
        width = width if np.ndim(problem.width) else width[0]
        one = replace(state, size=size, width=width, log_rate=np.log(coordinates[-1]))
        one.basis = problem.basis._replace(Phi=problem.moves.basis(width))
        Phi = problem.moves.basis(width * by)
        new, volume = moved(problem, one, width * by, Phi, rescaled=rescaled)
        return flat(new), volume

    here = flat(state)
    there, volume = move(here, factor)
    steps = 1e-5 * np.eye(len(here))
    slope = [(move(here + h, factor)[0] - move(here - h, factor)[0]) / 2e-5 for h in steps]
    assert volume == pytest.approx(np.linalg.slogdet(slope)[1], abs=1e-6)
    # d stays where it is known; where it is learned, sizes keep their place in their prior
    factor_of_size = (there / here)[-2] if rescaled and problem.hyperprior.rate_shape else 1.0
    assert there[-1] == pytest.approx(here[-1] * factor_of_size**2)
    back, undone = move(there, 1.0 / factor)
    np.testing.assert_allclose(back, here, rtol=1e-12)
    assert undone == pytest.approx(-volume, abs=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_moves_are_judged_by_the_density_of_labels_sizes_width_and_d(case):
    problem = GibbsProblem.of(read(model_of(*case), "gibbs"))
    prior, differences = problem.hyperprior, []
    for seed in range(4):
        state = replace(state_of(problem, seed), bias=state_of(problem, 0).bias)
        Phi, rate = problem.moves.basis(state.width), np.exp(state.log_rate)
        latent = Phi @ (state.size * problem.sign) + state.bias
        expected = problem.likelihood.log_likelihood(latent, problem.label)
        expected += student(2 * prior.c, scale=np.sqrt(rate / prior.c)).logpdf(state.size).sum()
        expected += lognorm(0.5, scale=np.exp(0.1)).logpdf(state.width).sum()
        if prior.rate_shape:
            expected += gamma(prior.rate_shape, scale=prior.d / prior.rate_shape).logpdf(rate)
        differences.append(expected - log_density(problem, state, Phi))
    assert np.ptp(differences) < 1e-6


def test_a_width_at_which_no_row_sees_a_basis_is_no_error():
    X = np.array([[0.0], [1.0], [2.0]])
    moves = WidthMoves(squared_distances(X, X + 0.5), (0.1, 10.0), log_normal_density)
    sign = np.array([1.0, -1.0, 1.0])
    given = GibbsProblem.of(Problem(moves.basis(1.0), sign, sign, LEARNED, width=1.0, moves=moves))
    state = replace(state_of(given, 0), basis=given.basis)
    new, volume = moved(given, state, 1e-3, moves.basis(1e-3), rescaled=True)
    np.testing.assert_array_equal(new.size, state.size)
    assert volume == pytest.approx(np.log(1e-3 / state.width))


@pytest.mark.parametrize("shape", [(), 2])
def test_a_width_stays_where_its_prior_has_a_density(shape):
    X, label = blobs(12, n_features=2, seed=1)
    model = pcvm_model(X, label, width=pm.Uniform.dist(0.95, 1.05, shape=shape), hyperprior=FIXED)
    problem, rng = GibbsProblem.of(read(model, "gibbs")), np.random.default_rng(0)
    width = advance(problem, problem.start(rng), rng, draws=100)[3]
    assert ((width > 0.95) & (width < 1.05)).all()
    assert min(len(np.unique(each)) for each in np.atleast_2d(width.T)) > 5


@pytest.mark.parametrize("prior", [FIXED, LEARNED], ids=["fixed", "learned"])
def test_labels_that_say_nothing_leave_the_prior(prior):
    """Labels that are all but always noise: width, sizes and d are to have their prior's law."""
    X, label = blobs(8, n_features=2, seed=3)
    squared, rng = squared_distances(X, X), np.random.default_rng(1)
    moves = WidthMoves(squared, (0.1, 10.0), log_normal_density)
    args = rbf(squared, 1.0), label, label.copy(), prior, NoisyProbit(0.5 - 1e-9)
    problem = GibbsProblem.of(Problem(*args, moves=moves))
    state = problem.start(rng)
    advance(problem, state, rng, draws=1, thin=100)
    size, _, rate, width = advance(problem, state, rng, draws=4000, thin=5)
    scale = np.sqrt(rate / prior.c)
    uniform = 2 * student(2 * prior.c).cdf(size[:, 0] / scale) - 1
    assert_uniform(np.column_stack([lognorm(0.5).cdf(width), uniform]))
