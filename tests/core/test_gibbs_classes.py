from dataclasses import replace

import numpy as np
import pytest
from calibration import assert_means
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from problems import response_mean
from scipy.special import log_ndtr

from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.gibbs import GibbsProblem, advance, responses, slices
from pcvm_pymc.core.gibbs.ahead import compile_sampler
from pcvm_pymc.core.gibbs.chain import run
from pcvm_pymc.core.gibbs.responses import augmented
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.multinomial import log_class_probability
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem

PRIOR = Hyperprior(2.0, 0.8, 2.0, 1.0)


def gibbs_problem(Phi, label, sign, prior):
    return GibbsProblem.of(Problem(Phi, label, sign, prior, MultinomialProbit(sign.shape[1])))


def problem(n=9, n_classes=3, seed=0, prior=PRIOR):
    rng = np.random.default_rng(seed)
    X, label = rng.normal(size=(n, 2)), np.arange(n) % n_classes
    Phi = rbf(squared_distances(X, X), 1.2)
    return gibbs_problem(Phi, label, class_signs(label, n_classes), prior), Phi


@pytest.mark.parametrize("n_classes", [2, 3, 11])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_responses_have_the_means_of_the_e_step(n_classes, spread):
    rng = np.random.default_rng(1)
    latent = spread * rng.normal(size=(6, n_classes))
    label = rng.integers(n_classes, size=6)
    n_draws = 30_000
    repeated = np.repeat(latent, n_draws, axis=0)
    by_score, drawn = repeated.T.copy(), np.empty_like(repeated.T, order="C")
    likelihood = augmented(MultinomialProbit(n_classes))
    responses.draw_responses(likelihood, by_score, np.repeat(label, n_draws), drawn, rng)
    response = drawn.T
    assert (response.argmax(axis=1) == np.repeat(label, n_draws)).all()
    draws = response.reshape(6, n_draws, n_classes).swapaxes(0, 1).reshape(n_draws, -1)
    assert_means(draws, response_mean(latent, label).ravel())


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6), st.floats(-5, 5), st.floats(-4, 4))
def test_the_own_noise_is_below_its_envelope(margin, point, step):
    """Whatever the point that it touches the log density in, the proposal's parabola is above it."""
    margin = np.array(margin)
    mills = np.empty(len(margin))

    def log_density(e):
        return -0.5 * e**2 + log_ndtr(e + margin).sum()

    noise, excess = responses.log_acceptance(step, point, margin, mills)
    size = 1 + abs(log_density(noise)) + abs(log_density(point))
    assert excess <= 1e-9 * size
    # up to a constant the envelope is the proposal: a standard normal around noise - step
    constant = excess - log_density(noise) - 0.5 * step**2
    other, excess = responses.log_acceptance(step + 1.0, point, margin, mills)
    assert excess - log_density(other) - 0.5 * (step + 1.0) ** 2 == pytest.approx(
        constant, abs=1e-8 * size
    )


@pytest.mark.parametrize("rate_shape", [None, 1.5])
@given(t=st.floats(-1.5, 1.5))
def test_the_scale_move_follows_the_posterior(rate_shape, t):
    p, Phi = problem(prior=replace(PRIOR, rate_shape=rate_shape))
    rng = np.random.default_rng(3)
    size, bias, rate = rng.uniform(0.1, 1.5, p.sign.shape), rng.normal(size=3), 0.3

    def log_posterior(factor):
        latent = factor * (Phi @ (p.sign * size) + bias)
        value = log_class_probability(latent, p.label).sum()
        d = rate * factor**2 if rate_shape else rate
        value += replace(PRIOR, d=d).log_weight_density(factor * size).sum()
        if rate_shape:
            value += rate_shape * np.log(d) - rate_shape / PRIOR.d * d
        return value + sum(PRIOR.log_bias_density(factor * b) for b in bias)

    latent = np.ascontiguousarray((Phi @ (p.sign * size) + bias).T)
    args = (size, bias, latent, p.label, np.log(rate), p.parameters)
    args = (*args, augmented(p.likelihood, accuracy=1e-10))
    found = slices.scale_density(t, *args) - slices.scale_density(0.0, *args)
    wanted = log_posterior(np.exp(t)) - log_posterior(1.0) + (size.size + 3) * t
    assert found == pytest.approx(wanted, rel=1e-8, abs=1e-8)


def test_scores_and_probabilities_of_draws():
    p, Phi = problem()
    state = p.start(np.random.default_rng(0))
    size, bias, rate = advance(p, state, np.random.default_rng(1), draws=4)
    latent = p.latent(size, bias)
    assert latent.shape == (4, 9, 3)
    np.testing.assert_allclose(latent[2], Phi @ (size[2] * p.sign) + bias[2], atol=1e-12)
    wanted = log_class_probability(latent[3], p.label)
    np.testing.assert_allclose(p.log_likelihood(latent)[3], wanted, atol=1e-12)
    assert (rate == PRIOR.d).all()


def one_score(likelihood):
    Phi, sign = np.eye(6) + 0.2, np.array([-1, 1] * 3)
    return GibbsProblem.of(Problem(Phi, sign, sign, Hyperprior(1.0, 1.0, 1.0, 1.0), likelihood))


def test_what_is_compiled_ahead_serves_every_problem():
    compile_sampler()
    compile_sampler(3)
    compiled = list(run.signatures)
    several = (problem()[0], problem(n_classes=2, prior=replace(PRIOR, rate_shape=0.5))[0])
    for found in (*several, one_score(Probit()), one_score(NoisyProbit(0.1))):
        rng = np.random.default_rng(0)
        advance(found, found.start(rng), rng, draws=2)
    assert run.signatures == compiled


def test_one_score_does_not_wait_for_what_several_need(monkeypatch):
    """What cannot be compiled stands behind the branch of the others: numba leaves it out or fails."""
    for name in ("draw_class_responses", "multinomial_terms"):
        monkeypatch.setattr(responses, name, None)
    latent, label, rng = np.zeros((1, 3)), np.array([-1, 1, 1]), np.random.default_rng(0)
    one, response = augmented(Probit()), np.zeros((1, 3))
    njit(responses.draw_responses.py_func)(one, latent, label, response, rng)
    assert (response * label > 0).all()
    found = njit(responses.log_likelihood.py_func)(one, 1.0, latent, label)
    assert found == pytest.approx(3 * np.log(0.5))


def test_several_scores_do_not_wait_for_what_one_needs(monkeypatch):
    monkeypatch.setattr(responses, "draw_label_responses", None)
    latent, label, rng = np.zeros((3, 4)), np.array([0, 1, 2, 2]), np.random.default_rng(0)
    several, response = augmented(MultinomialProbit(3)), np.zeros((3, 4))
    njit(responses.draw_responses.py_func)(several, latent, label, response, rng)
    assert (response.argmax(axis=0) == label).all()


def test_an_improper_hyperprior_is_refused():
    p, Phi = problem()
    with pytest.raises(ValueError, match="improper"):
        gibbs_problem(Phi, p.label, p.sign, Hyperprior.jeffreys())
