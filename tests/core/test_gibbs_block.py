"""The joint move of the visible weights: its forces, its way back, the law it keeps."""

import numpy as np
import pytest
from calibration import assert_means, posterior_on_a_grid
from problems import blobs
from scipy.optimize import approx_fprime
from scipy.special import ndtr

from pcvm_pymc.core.gibbs import GibbsProblem, block
from pcvm_pymc.core.gibbs.moves import Given, Score
from pcvm_pymc.core.gibbs.responses import augmented
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem

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
    known = Given(p.label, p.parameters, RATE, augmented(p.likelihood))
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
    given = Given(p.label, p.parameters._replace(c=1.7), RATE, augmented(likelihood))

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
