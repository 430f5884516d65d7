"""Simulation-based calibration with the signs held fixed (Talts et al. 2018), and its negative control.

With signs taken from the simulated labels the model is another one for each data set: calibration must fail.
"""

import numpy as np
import pymc as pm
import pytest
from pymc.model.transform.optimization import freeze_model
from scipy.stats import chisquare

from pcvm_pymc import HalfHorseshoe, Hyperprior, pcvm_model
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.probit import log_ndtr, ndtr
from pcvm_pymc.core.problem import Problem

N = 10
KEPT = 99
BINS = 10
PRIORS = {
    "fixed": Hyperprior(1.0, 0.2, 1.0, 1.0),
    "learned": Hyperprior(1.0, 0.2, 1.0, 1.0, rate_shape=2.0),
    "half-horseshoe": HalfHorseshoe(0.3, 2.0, 1.0, 1.0),
}


@pytest.fixture(scope="module")
def inputs():
    X = np.random.default_rng(8).normal(size=(N, 2))
    return X, np.where(np.arange(N) % 2 == 0, 1.0, -1.0), rbf(squared_distances(X, X), 1.0)


def draw_prior(prior, rng):
    """Return sizes, bias and d from the prior."""
    bias = np.sqrt(prior.f / prior.e) * rng.standard_t(2 * prior.e)
    if isinstance(prior, HalfHorseshoe):
        wide = prior.global_scale * np.abs(rng.standard_cauchy()) * np.abs(rng.standard_cauchy(N))
        scale = wide / np.sqrt(1 + (wide / prior.slab) ** 2)
        return scale * np.abs(rng.normal(size=N)), bias, np.nan
    d = prior.d
    if prior.rate_shape is not None:
        d *= rng.gamma(prior.rate_shape) / prior.rate_shape
    return np.sqrt(d / prior.c) * np.abs(rng.standard_t(2 * prior.c, size=N)), bias, d


def ranks(truth, draws, label, Phi, signs, used, rng):
    """Return the rank of the true latent values, bias, log sizes, log likelihood and d among draws."""
    quantities = []
    for (size, bias, rate), sign in ((truth, signs), (draws, used)):
        latent = (np.atleast_2d(size) * sign) @ Phi.T + np.atleast_1d(bias)[:, None]
        score = log_ndtr(label * latent).sum(axis=1, keepdims=True)
        columns = [
            latent[:, :5],
            np.atleast_1d(bias)[:, None],
            np.log(np.atleast_2d(size))[:, :5],
            score,
        ]
        if np.isfinite(rate).all():
            columns.append(np.atleast_1d(rate)[:, None])
        quantities.append(np.hstack(columns))
    true, drawn = quantities
    # a likelihood of one to rounding ties: broken at random
    ties = rng.uniform(size=true.shape) < rng.uniform(size=true.shape)
    return np.sum(drawn < true, axis=0) + (ties[0] * np.sum(drawn == true, axis=0)).astype(int)


def by_gibbs(signs_of, prior, inputs, replications, seed, thin):
    _, signs, Phi = inputs
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(replications):
        truth = draw_prior(prior, rng)
        latent = Phi @ (signs * truth[0]) + truth[1]
        label = np.where(rng.uniform(size=N) < ndtr(latent), 1.0, -1.0)
        used = signs_of(signs, label)
        problem = GibbsProblem.of(Problem(Phi, label, used, prior))
        state = problem.start(rng)
        advance(problem, state, rng, draws=1, thin=10 * thin)
        size, bias, rate = advance(problem, state, rng, draws=KEPT, thin=thin)
        rate_draws = rate if prior.rate_shape is not None else np.nan
        true = (*truth[:2], truth[2] if prior.rate_shape is not None else np.nan)
        found.append(ranks(true, (size, bias, rate_draws), label, Phi, signs, used, rng))
    return np.array(found)


def by_nuts(prior, inputs, replications, seed):
    X, signs, Phi = inputs
    rng = np.random.default_rng(seed)
    model = freeze_model(
        pcvm_model(X, (signs > 0).astype(int), signs=signs, width=1.0, hyperprior=prior)
    )
    found = []
    for _ in range(replications):
        truth = draw_prior(prior, rng)
        latent = Phi @ (signs * truth[0]) + truth[1]
        label = np.where(rng.uniform(size=N) < ndtr(latent), 1.0, -1.0)
        with model:
            pm.set_data({"y": (label > 0).astype("int64")})
            tree = pm.sample(
                5 * KEPT,
                tune=500,
                chains=1,
                cores=1,
                target_accept=0.95,
                nuts_sampler="pymc",
                progressbar=False,
                quiet=True,
                random_seed=rng,
                compute_convergence_checks=False,
            )
        thinned = tree["posterior"].to_dataset().isel(chain=0, draw=slice(4, None, 5))
        draws = (thinned["magnitude"].values, thinned["bias"].values, np.nan)
        found.append(ranks((*truth[:2], np.nan), draws, label, Phi, signs, signs, rng))
    return np.array(found)


def p_values(found):
    """Return a chi-squared p-value of uniform ranks for each quantity."""
    counts = [np.bincount(column * BINS // (KEPT + 1), minlength=BINS) for column in found.T]
    return np.array([chisquare(each).pvalue for each in counts])


def keep(signs, label):
    return signs


def take_labels(signs, label):
    return label


@pytest.mark.parametrize("prior", ["fixed", "learned"])
def test_gibbs_is_calibrated_in_short(prior, inputs):
    found = by_gibbs(keep, PRIORS[prior], inputs, replications=150, seed=1, thin=10)
    assert p_values(found).min() > 1e-3 / found.shape[1]


def test_signs_from_simulated_labels_are_not_calibrated_in_short(inputs):
    found = by_gibbs(take_labels, PRIORS["fixed"], inputs, replications=100, seed=2, thin=10)
    assert p_values(found).min() < 1e-8


@pytest.mark.parametrize("prior", ["fixed", "half-horseshoe"])
def test_nuts_is_calibrated_in_short(prior, inputs):
    found = by_nuts(PRIORS[prior], inputs, replications=10, seed=3)
    assert p_values(found).min() > 1e-3 / found.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["fixed", "learned"])
def test_gibbs_is_calibrated(prior, inputs):
    found = by_gibbs(keep, PRIORS[prior], inputs, replications=600, seed=4, thin=30)
    assert p_values(found).min() > 1e-2 / found.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["fixed", "half-horseshoe"])
def test_nuts_is_calibrated(prior, inputs):
    found = by_nuts(PRIORS[prior], inputs, replications=300, seed=5)
    assert p_values(found).min() > 1e-2 / found.shape[1]


@pytest.mark.slow
def test_signs_from_simulated_labels_are_not_calibrated(inputs):
    found = by_gibbs(take_labels, PRIORS["fixed"], inputs, replications=300, seed=6, thin=30)
    assert p_values(found).min() < 1e-20
