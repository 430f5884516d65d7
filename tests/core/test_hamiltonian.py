"""Hamiltonian Monte Carlo: its density is the model's, its gradient the density's, its draws Gibbs' draws."""

from dataclasses import replace

import numpy as np
import pytest
from calibration import FALSE_ALARM, N_DRAWS, Law, assert_law, assert_normal, assert_same_law
from problems import blobs
from scipy import stats
from scipy.stats import gamma, norm

from pcvm_pymc.core import hamiltonian
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.hamiltonian import Coordinates, HamiltonianChains, LogPosterior
from pcvm_pymc.core.pieces import likelihoods, priors
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.core.problem import Problem

LEARNED = priors.Hyperprior(2.0, 3.0, 0.5, 0.7, rate_shape=0.5)
KNOWN, SPREAD = LEARNED.at_rate(3.0), replace(LEARNED, rate_shape=None, rate_spread=2.5)


def problem(likelihood=None, *, signed=False, prior=LEARNED, weight=None, bias="prior", size=6):
    X, label = blobs(25, seed=70)
    likelihood = likelihoods.Probit() if likelihood is None else likelihood
    shape, sign = (size, likelihood.n_scores)[: 2 if likelihood.n_scores > 1 else 1], None
    if signed:
        sign = np.where(np.indices(shape).sum(axis=0) % 2, -1.0, 1.0)
    if likelihood.n_scores > 1:
        label = np.arange(25) % likelihood.n_scores
    if likelihood.targets == "numbers":
        label = X[:, 0] + 0.3 * label
    Phi = design_matrix("rbf", X, X[:size], 1.5)
    return Problem(Phi, label, sign, prior, likelihood, bias=bias).weighted(weight)


TWO, THREE = (likelihoods.MultinomialProbit(n) for n in (2, 3))
WEIGHT, SHARED = np.linspace(0.2, 3.0, 25), priors.SharedHyperprior(2.0, 3.0, 0.5, 0.7)
PROBLEMS = {
    "probit": problem(),
    "one basis, log-normal d": problem(size=1, prior=SPREAD),
    "logit, fixed d": problem(likelihoods.Logit(), prior=KNOWN),
    "signed, noisy labels": problem(likelihoods.NoisyProbit(0.1), signed=True),
    "weighted rows": problem(weight=WEIGHT, signed=True),
    "three classes": problem(THREE),
    "two signed scores, weighted, no bias": problem(TWO, signed=True, weight=WEIGHT, bias="none"),
    "Laplace": problem(prior=priors.Laplace(2.0)),
    "Laplace, free bias": problem(prior=priors.Laplace(2.0), bias="free"),
    "shared precisions": problem(THREE, prior=SHARED, bias="none"),
    "normal, unknown noise and d": problem(likelihoods.Normal()),
    "Student-t": problem(likelihoods.StudentT(0.4), prior=KNOWN),
    "Student-t, unknown noise": problem(likelihoods.StudentT(), prior=KNOWN),
}


def differences(of, place, step=1e-4):
    """Return central differences of a function of states, one row for each parameter."""
    both = (of(place + sign * step * np.eye(len(place))) for sign in (1, -1))
    return np.subtract(*both) / (2.0 * step)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_is_that_of_the_density(name):
    density = LogPosterior(PROBLEMS[name])
    places = np.random.default_rng(71).normal(size=(2, density.n_parameters))
    coordinates = Coordinates(density, places[0])
    for of in (density, coordinates):
        (value, _), (gradient, _) = of(places)
        # third derivatives in a log noise are eight times the log density
        near = 1e-3 if density.problem.n_scores > 1 else 1e-6 * max(1.0, abs(value) / 10.0)
        expected = differences(lambda each, of=of: of(each)[0], places[0])
        assert gradient == pytest.approx(expected, abs=near)
    to = coordinates.parameters(places)
    np.testing.assert_allclose(coordinates.of(to), places, atol=1e-9)
    volume = [np.linalg.slogdet(differences(coordinates.parameters, z))[1] for z in places]
    assert np.ptp(coordinates(places)[0] - density(to)[0] - volume) < 1e-6
    for _, root, inverse in coordinates.roots:
        np.testing.assert_allclose(root @ inverse, np.eye(len(root)), atol=1e-9)
    mode = density.mode()
    slope = density(mode[None])[1][0]
    if density._noise_size is not None:  # stays where it begins
        assert np.exp(mode[-1]) == pytest.approx(0.3 * np.std(density.problem.label))
        slope = slope[:-1]
    if hasattr(density.problem.hyperprior, "d"):  # a Laplace prior has no slope at zero
        np.testing.assert_allclose(slope, 0.0, atol=1e-2)


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_the_models_density_with_the_jacobian(name):
    of = PROBLEMS[name]
    density, prior = LogPosterior(of), of.hyperprior
    places = np.random.default_rng(72).normal(size=(5, density.n_parameters))
    differences = []
    for place, value in zip(places, density(places)[0], strict=True):
        weight, bias, rate, noise = (each[0] for each in density.values(place[None]))
        known = of.likelihood.with_noise(float(noise))
        given = replace(of, likelihood=known)
        if hasattr(prior, "d"):
            given = replace(given, hyperprior=replace(prior, d=float(rate)))
        w, b = weight.reshape(of.weight_shape), bias if of.n_scores > 1 else bias[0]
        expected = given.likelihood.log_likelihood(of.Phi @ w + b, of.label)
        expected += given.log_prior(w, b)
        v = place[: weight.size]
        expected += 0.5 * weight.size * np.log(rate)  # of w = sqrt(d) v
        if of.sign is not None:
            expected -= np.logaddexp(0.0, -v).sum()
        if of.bias == "none":  # it has its prior alone
            own = place[weight.size :][: of.n_scores] * np.sqrt(prior.f)
            expected += sum(map(prior.log_bias_density, own.tolist()))
        if prior.rate_shape is not None:
            shape = prior.rate_shape
            expected += gamma(shape, scale=prior.d / shape).logpdf(rate) + np.log(rate)
        elif prior.learns_rate:
            expected += norm(np.log(prior.d), prior.rate_spread).logpdf(np.log(rate))
        if of.likelihood is not known:  # half-normal
            size = np.std(of.label)
            expected += np.log(noise) - 0.5 * (noise / size) ** 2
        differences.append(expected - value)
    assert np.ptp(differences) < (1e-2 if of.n_scores > 1 else 1e-9)
    # another d with the same weights, whose density is not that of v
    if prior.learns_rate:
        log_rate, same = places[:, density.rate_column], places[[0] * 5]
        to, given_weights = density.rescaled(same, log_rate)
        np.testing.assert_allclose(density.rescaled(same[:1], log_rate[:1])[0], to[:1])
        latent = (density.values(each).latent(of.Phi) for each in (to, same))
        np.testing.assert_allclose(*latent, atol=1e-12)
        found = density(to)[0] - 0.5 * weight.size * log_rate
        if of.sign is not None:
            found += np.logaddexp(0.0, -to[:, : weight.size]).sum(axis=1)
        assert np.ptp(found - given_weights) < 1e-9


def test_states_out_of_all_bounds_have_density_zero():
    density = LogPosterior(PROBLEMS["probit"])
    place = np.zeros((2, density.n_parameters))
    place[1] = 1e8
    value, gradient = density(place)
    assert np.isfinite(value[0])
    assert value[1] == -np.inf
    assert not gradient[1].any()


SIGNED_CLASSES = pytest.param("signed classes", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["signed, noisy labels", SIGNED_CLASSES])
def test_its_draws_have_gibbs_means(name, monkeypatch):
    monkeypatch.setattr(hamiltonian, "_TOGETHER", 0)  # classes are whitened one by one
    of = PROBLEMS.get(name) or problem(THREE, signed=True)
    density, rng = LogPosterior(of), np.random.default_rng(73)
    chains = HamiltonianChains(density, rng)
    chains.warm_up(300)
    assert 0.5 < np.mean([chains.transition()[:, 1] for _ in range(200)]) < 0.99
    states, _ = chains.draw(2000)
    away = states - states.mean(axis=(0, 1))
    assert ((away[:, 1:] * away[:, :-1]).mean((0, 1)) < 0.7 * np.square(away).mean((0, 1))).all()
    own = density.values(states.reshape(-1, states.shape[2])).latent(of.Phi).reshape(4, 2000, -1)
    gibbs, each = GibbsProblem.of(of), []
    for one in rng.spawn(4):
        state = gibbs.start(one)
        advance(gibbs, state, one, draws=1, thin=1000)
        size, bias, _ = advance(gibbs, state, one, draws=2000, thin=5)
        each.append(gibbs.latent(size, bias).reshape(2000, -1))
    draws = own, np.stack(each)
    middle = np.mean([np.mean(one, axis=(0, 1)) for one in draws], axis=0)
    assert_same_law(*(np.concatenate([one, abs(one - middle)], axis=2) for one in draws))


@pytest.mark.parametrize("most", [400, 0], ids=["whitened together", "class by class"])
@pytest.mark.parametrize("prior", [LEARNED, KNOWN], ids=["learned", "known"])
def test_chains_that_begin_far_out_are_brought_near(most, prior, monkeypatch):
    monkeypatch.setattr(hamiltonian, "_TOGETHER", most)
    of = problem(THREE, prior=replace(prior, c=5.0, d=5e3))
    rng, said = np.random.default_rng(74), []
    chains = HamiltonianChains(LogPosterior(of), rng, n_chains=20)
    assert (chains.value > LogPosterior(of)(chains.centre[None])[0][0] - len(chains.centre)).all()
    chains.step = 1e-4  # such steps keep the energy
    assert chains.transition()[:, 1].mean() == pytest.approx(1.0, abs=1e-4)
    parameters = chains.parameters
    chains._learn_covariance(rng.normal(size=(9, *chains.place.shape)))
    np.testing.assert_allclose(chains.parameters, parameters)
    step = 1e-4 * rng.normal(size=chains.place.shape)
    high, low = (chains._at(chains.place + sign * step)[0] for sign in (1, -1))
    rise = 0.5 * (high - low)  # some are nearly zero, and known to the rounding of the densities
    expected = (step * chains.slope).sum(axis=1)
    np.testing.assert_allclose(expected, rise, rtol=1e-2, atol=1e-2 * np.abs(rise).max())
    chains._learn_covariance(np.zeros((3, *chains.place.shape)))  # of chains that stand still
    chains.warm_up(1)  # what few iterations leave
    assert np.isfinite(chains.value).all()
    monkeypatch.setattr(hamiltonian.PROGRESS, "debug", lambda words, *of: said.append(words % of))
    chains.draw(2, thin=3)
    assert said[-1] == "transition 6 of 6"


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_trajectory_beyond_all_numbers_is_rejected(name):
    chains = HamiltonianChains(LogPosterior(PROBLEMS[name]), np.random.default_rng(77))
    for chains.step in (1e3, 1e100, 1e200):
        _, rate, diverging, step, n_steps = chains.transition().T
        assert not rate.any()
        assert diverging.all()
        assert (n_steps == 1).all()
        assert (step > 0.05 * chains.step).all()


def test_d_moves_to_its_law_given_the_weights():
    density, rng = LogPosterior(PROBLEMS["one basis"]), np.random.default_rng(76)
    chains, grid = HamiltonianChains(density, rng), np.linspace(-9, 9, 2001)
    chains.n_chains, at = N_DRAWS, chains.parameters[:1]
    chains._move_to(np.repeat(chains.place[:1], N_DRAWS, axis=0))
    for _ in range(10):
        chains._move_rate()
    law = Law(grid, density.rescaled(np.repeat(at, len(grid), axis=0), grid)[1])
    assert_normal(law.scores(chains.parameters[:, density.rate_column]))


# --- calibration --------------------------------------------------------------------------------

ROWS = 4


def drawn_from_the_prior(of, n, rng):
    """Return `n` states from the prior of a problem with free weights, as the chains' parameters."""
    prior = of.hyperprior
    shape = of.Phi.shape[1]
    rate = prior.d * rng.gamma(prior.rate_shape, size=(n, 1)) / prior.rate_shape
    v = np.sqrt(1.0 / prior.c) * rng.standard_t(2.0 * prior.c, size=(n, shape))
    if of.sign is not None:
        size = np.abs(v)
        v = size + np.log(-np.expm1(-size))
    bias = np.sqrt(1.0 / prior.e) * rng.standard_t(2.0 * prior.e, size=(n, 1))
    return np.column_stack([v, bias, np.log(rate)])


@pytest.mark.parametrize("signed", [False, True], ids=["free", "signed"])
def test_states_from_prior_and_data_keep_their_law(signed):
    """Calibration: truths from the prior, their labels, and transitions that know the labels alone.

    Then states have the prior's law again, and their log likelihood that of the truths'. With so few rows
    there are 16 data sets: all truths with the same labels move together, after a warm-up of other chains.
    Of 15,000 truths a spread that is 5 % wrong is noticed with a probability above .99, see `calibration`.
    """
    rng = np.random.default_rng(75)
    X = np.array([[-1.0], [0.2], [0.5], [1.5]])
    Phi, sign = design_matrix("rbf", X, X[:2], 1.0), np.array([1.0, -1.0]) if signed else None
    prior = priors.Hyperprior(2.0, 1.0, 2.0, 1.0, rate_shape=2.0)
    empty = Problem(Phi, np.ones(ROWS), sign, prior, likelihoods.Probit())
    truth = drawn_from_the_prior(empty, N_DRAWS, rng)
    latent = LogPosterior(empty).values(truth).latent(Phi)[:, :, 0]
    p = likelihoods.Probit().probability(latent)
    label = np.where(rng.uniform(size=latent.shape) < p, 1.0, -1.0)
    state = truth.copy()
    for one in np.unique(label, axis=0):
        own = (label == one).all(axis=1)
        density = LogPosterior(replace(empty, label=one))
        chains = HamiltonianChains(density, rng, n_chains=20)
        chains.warm_up(60)
        chains.n_chains = int(own.sum())
        chains._move_to(chains.whitened(truth[own]))
        chains.draw(8)
        state[own] = chains.parameters
    assert (np.abs(state - truth).max(axis=1) > 1e-3).mean() > 0.9
    law = stats.t(2.0 * prior.c, scale=np.sqrt(1.0 / prior.c)).cdf
    for column in (np.logaddexp(0.0, state[:, :2]) if signed else state[:, :2]).T:
        assert_law(column, (lambda x: 2.0 * law(x) - 1.0) if signed else law)
    assert_law(state[:, 2], stats.t(2.0 * prior.e, scale=np.sqrt(1.0 / prior.e)).cdf)
    shape = prior.rate_shape
    assert_law(np.exp(state[:, 3]), stats.gamma(shape, scale=prior.d / shape).cdf)

    # what the data are in: before and after have the same law, in halves that are independent
    found = LogPosterior(empty).values(state).latent(Phi)[:, :, 0]
    both = [likelihoods.Probit().log_density(each, label).sum(axis=1) for each in (latent, found)]
    half = N_DRAWS // 2
    p = stats.ks_2samp(both[0][:half], both[1][half:]).pvalue
    p = min(p, stats.mannwhitneyu(both[0][:half], both[1][half:]).pvalue)
    assert p > FALSE_ALARM / 2
