"""Moves of an unknown width, and of all visible weights: densities, ways back, the law they keep."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from calibration import assert_means, posterior_on_a_grid
from problems import blobs, log_normal_density
from scipy.optimize import approx_fprime
from scipy.special import ndtr
from scipy.stats import gamma, halfnorm, lognorm
from scipy.stats import t as student

from pcvm_pymc import Hyperprior, pcvm_model
from pcvm_pymc.core.em.widths import WidthMoves
from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance, block, widths
from pcvm_pymc.core.gibbs.moves import Given, Score
from pcvm_pymc.core.gibbs.problem import make_columns
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.read import read

FIXED = Hyperprior(1.5, 0.4, 2.0, 1.0)
LEARNED = replace(FIXED, rate_shape=2.0)


def state_of(problem, seed):
    rng = np.random.default_rng(seed)
    size, bias = rng.exponential(0.5, len(problem.sign)), rng.normal()
    width = problem.width * np.exp(0.3 * rng.normal(size=np.shape(problem.width)))[()]
    log_rate = rng.normal() if problem.hyperprior.rate_shape else np.log(problem.hyperprior.d)
    return GibbsState(size, bias, log_rate, width)


CASES = {"fixed scale": (FIXED,), "learned scale": (LEARNED,)}
CASES |= {"width of each feature": (FIXED, 2)}


def begun(prior, shape=()):
    """Return a problem, a state with its basis, and what stays while it moves."""
    X, label = blobs(12, n_features=2, seed=1)
    width = pm.LogNormal.dist(0.1, 0.5, shape=shape)
    model = pcvm_model(X, label, width=width, hyperprior=prior)
    problem = GibbsProblem.of(read(model, "sampling"))
    state = state_of(problem, 5)
    state.basis = make_columns(problem.moves.basis(state.width))
    rng = np.random.default_rng(0)
    return problem, state, widths.fixed_parts(problem, state, state.basis.Phi, rng)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_coordinates_lead_back_to_where_a_move_began(case):
    problem, state, fixed = begun(*case)
    here = widths.place(problem, fixed, state.width, state.basis.Phi)
    again = widths.place(problem, fixed, state.width, state.basis.Phi, here.x)
    np.testing.assert_allclose(again.size, state.size, rtol=1e-9)
    np.testing.assert_allclose(again.bias, state.bias, atol=1e-9)
    assert again.log_density == pytest.approx(here.log_density, abs=1e-8)


@pytest.mark.parametrize("most", [3, 60])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_place_has_the_posterior_density_and_the_volume_of_its_coordinates(
    case, most, monkeypatch
):
    """Along a move: labels, sizes, precisions, biases, d and width, and a volume by differences."""
    monkeypatch.setattr(widths, "_MOST", most)
    problem, state, fixed = begun(*case)
    here, prior = widths.place(problem, fixed, state.width, state.basis.Phi), problem.hyperprior

    def moved(at, x, offset):
        where = widths.place(problem, fixed, at, problem.moves.basis(at), (x, offset))
        # those that do not go along, and precisions, are the factor's: their volume is known
        return where, np.append(where.size[fixed.places], where.bias)

    def log_density(by):
        at, (x, offset) = state.width * by, here.x
        where, factor = moved(at, x, offset)[0], moved(at, x, offset)[0].factor

        def values(change):
            return moved(at, x + change[:-1], offset + change[-1])[1]

        steps = 1e-5 * np.eye(len(x) + 1)
        slopes = [(values(h) - values(-h)) / 2e-5 for h in steps]
        rate, precision = np.exp(state.log_rate) * factor**2, fixed.precision / factor**2
        rest = len(where.size) - len(x)
        total = np.linalg.slogdet(slopes)[1] + (rest - 2 * len(precision) + 2) * np.log(factor)
        total += halfnorm(scale=precision**-0.5).logpdf(where.size).sum()
        total += gamma(prior.c, scale=1.0 / rate).logpdf(precision).sum()
        if prior.rate_shape:
            total += gamma(prior.rate_shape, scale=prior.d / prior.rate_shape).logpdf(rate)
        total += student(2 * prior.e, scale=np.sqrt(prior.f / prior.e)).logpdf(where.bias)
        total += (lognorm(0.5, scale=np.exp(0.1)).logpdf(at) + np.log(at)).sum()
        latent = problem.moves.basis(at) @ (where.size * problem.sign) + where.bias
        return total + problem.likelihood.log_likelihood(latent, problem.label) - where.log_density

    factors = np.exp([-0.4, 0.0, 0.5])
    if np.ndim(state.width):
        factors = factors[:, None] ** np.array([1.0, 0.0])
    assert np.ptp([log_density(each) for each in factors]) < 1e-4


def test_a_width_at_which_no_row_sees_a_basis_is_no_error():
    X = np.array([[0.0], [1.0], [2.0]])
    moves = WidthMoves(squared_distances(X, X + 0.5), (0.1, 10.0), log_normal_density)
    sign = np.array([1.0, -1.0, 1.0])
    given = GibbsProblem.of(Problem(moves.basis(1.0), sign, sign, LEARNED, width=1.0, moves=moves))
    state, rng = state_of(given, 0), np.random.default_rng(0)
    state.basis, state.width = given.basis, 1.0
    fixed = widths.fixed_parts(given, state, given.Phi, rng)
    x = widths.place(given, fixed, 1.0, given.Phi).x
    for width in (1e-3, 1e3, 1e9):
        there = widths.place(given, fixed, width, given.moves.basis(width), x)
        assert not there.log_density > 1e3
    state.basis = make_columns(given.moves.basis(1e-3))
    state.width = 1e-3
    widths.move_width(given, state, rng)
    assert ((state.size > 0) & (state.size < np.inf)).all()


@pytest.mark.parametrize("shape", [(), 2])
def test_a_width_stays_where_its_prior_has_a_density(shape):
    X, label = blobs(12, n_features=2, seed=1)
    model = pcvm_model(X, label, width=pm.Uniform.dist(0.95, 1.05, shape=shape), hyperprior=FIXED)
    problem, rng = GibbsProblem.of(read(model, "sampling")), np.random.default_rng(0)
    width = advance(problem, problem.start(rng), rng, draws=100)[3]
    assert ((width > 0.95) & (width < 1.05)).all()
    assert min(len(np.unique(each)) for each in np.atleast_2d(width.T)) > 5


# --- the joint move of the visible weights: its forces, its way back, the law it keeps ------------


LIKELIHOODS = [Probit(), NoisyProbit(0.1)]
RATE = 0.3


def problem(likelihood, n=14, n_basis=14, scale=1.0):
    X, label = blobs(n, seed=1, fixed=True)  # how often moves are accepted depends on the problem
    Phi = scale * rbf(squared_distances(X, X[:n_basis]), 1.2)
    prior = Hyperprior(1.0, RATE, 0.5, 1.0)
    return GibbsProblem.of(Problem(Phi, label, label[:n_basis].copy(), prior, likelihood))


def moved(p, n, size, bias, rng):
    """Return sizes and biases of so many moves one after another."""
    sign, out = p.sign.astype(float), np.empty((n, len(size) + 1))
    latent, bias = p.Phi @ (sign * size) + bias, np.array([bias])
    known = Given(p.label, p.parameters, RATE, p.flip)
    for k in range(n):
        score = Score(sign, size, bias, latent, latent)
        block.move_visible_ones(p.basis, known, score, rng)
        out[k] = *size, *bias
    np.testing.assert_allclose(latent, p.Phi @ (sign * size) + bias, atol=1e-8)
    return out


@pytest.mark.parametrize(("likelihood", "scale"), [(LIKELIHOODS[0], 1.0), (LIKELIHOODS[1], 30.0)])
def test_moves_keep_the_posterior_above_the_wall(likelihood, scale):
    """Means of bounded functions of sizes and bias, and of the rows' probabilities, by quadrature."""
    p = problem(likelihood, n_basis=2, scale=scale)
    wall = 1.0 / p.basis.peak
    draws = moved(p, 40_000, 1.5 * wall, 0.0, np.random.default_rng(0))

    def functions(points):
        away = np.abs(points) * [scale, scale, 1.0]
        latent = (points[:, :2] * p.sign) @ p.Phi[::2].T + points[:, 2:]
        return np.hstack([away / (1.0 + away), 1.0 / (1.0 + away**2), ndtr(latent)])

    args = p.Phi, p.label, p.sign, p.hyperprior, likelihood
    points, share = posterior_on_a_grid(*args, floor=wall)
    assert_means(functions(draws), share @ functions(points))
    assert len(np.unique(draws[:, 0])) > 0.45 * len(draws)  # steps are short


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_forces_are_slopes_of_the_log_density(likelihood):
    p, rng = problem(likelihood), np.random.default_rng(0)
    columns, unit, place = rng.normal(size=(3, 14)), np.array([0.5, 2.0, 1.0]), rng.normal(size=3)
    given = Given(p.label, p.parameters._replace(c=1.7), RATE, p.flip)

    def density(at, slope):
        return block._log_density(columns, unit, at, at @ columns, given, slope)

    found, none = np.empty(3), np.empty(3)
    density(place, found)
    wanted = approx_fprime(place, density, 1e-6, none)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_more_than_thirty_stay():
    p = problem(Probit(), n=40, n_basis=40)
    many, few = 2.0 / p.basis.peak, np.where(np.arange(40) < 8, 2.0, 0.1) / p.basis.peak
    for size, stays in ((many, True), (few, False)):
        last = moved(p, 20, size.copy(), 0.3, np.random.default_rng(0))[-1, :-1]
        assert np.array_equal(last, size) == stays
