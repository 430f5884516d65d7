"""Hamiltonian Monte Carlo: its density is the model's, its gradient the density's, its draws Gibbs' draws."""

from dataclasses import replace

import numpy as np
import pytest
from calibration import FALSE_ALARM, N_DRAWS, Law, assert_law, assert_normal, assert_same_law
from problems import blobs, log_normal_density
from scipy import stats
from scipy.stats import gamma, norm

from pcvm_pymc.core.em.widths import FeatureWidthMoves, WidthMoves
from pcvm_pymc.core.hamiltonian import HamiltonianChains, LogPosterior
from pcvm_pymc.core.hamiltonian import chains as kernel
from pcvm_pymc.core.hamiltonian import density as of_density
from pcvm_pymc.core.hamiltonian.chains import State, moved_rate
from pcvm_pymc.core.hamiltonian.density import Coordinates
from pcvm_pymc.core.hamiltonian.widths import WidthSlice
from pcvm_pymc.core.pieces import likelihoods, priors
from pcvm_pymc.core.pieces.kernels import as_kernel, squared_distances
from pcvm_pymc.core.problem import Problem

LEARNED = priors.Hyperprior(2.0, 3.0, 0.5, 0.7, rate_shape=0.5)
KNOWN, SPREAD = LEARNED.at_rate(3.0), replace(LEARNED, rate_shape=None, rate_spread=2.5)


def problem(
    likelihood=None, *, signed=False, prior=LEARNED, weight=None, bias="prior", size=6, widths=0
):
    X, label = blobs(25, seed=70)
    likelihood = likelihoods.Probit() if likelihood is None else likelihood
    shape, sign = (size, likelihood.n_scores)[: 2 if likelihood.n_scores > 1 else 1], None
    if signed:
        sign = np.where(np.indices(shape).sum(axis=0) % 2, -1.0, 1.0)
    if likelihood.n_scores > 1:
        label = np.arange(25) % likelihood.n_scores
    if likelihood.targets == "numbers":
        label = X[:, 0] + 0.3 * label
    moves, width = WidthMoves(squared_distances(X, X[:size]), (0.1, 10.0), log_normal_density), 1.5
    if widths > 1:
        along = np.moveaxis(np.square(X[:, None] - X[None, :size]), 2, 0)
        moves = FeatureWidthMoves(along, moves.bounds, lambda each: log_normal_density(each).sum())
        width = np.full(widths, 1.5)
    of = Problem(moves.basis(width), label, sign, prior, likelihood, bias=bias, width=width)
    return replace(of, moves=moves if widths else None, row_weight=weight)


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
        weight, bias, rate, noise = (each[0] for each in density.values(place[None])[:4])
        known = of.likelihood.with_noise(float(noise))
        given = replace(of, likelihood=known)
        if hasattr(prior, "d"):
            given = replace(given, hyperprior=replace(prior, d=float(rate)))
        w, b = weight.reshape(of.weight_shape), bias if of.n_scores > 1 else bias[0]
        expected = given.observed.log_likelihood(of.Phi @ w + b)
        expected += given.log_prior(w, b)
        v = place[: weight.size]
        expected += 0.5 * weight.size * np.log(rate)  # of w = sqrt(d) v
        if of.sign is not None:
            expected -= np.logaddexp(0.0, -v).sum()
        if of.bias == "none":  # it has its prior alone
            own = place[weight.size :][: of.n_scores] * np.sqrt(prior.f)
            expected += sum(map(prior.log_bias_density, own.tolist()))
        if prior.learns_rate and prior.rate_shape is not None:
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


def test_chains_take_long_steps():
    density = LogPosterior(PROBLEMS["signed, noisy labels"])
    chains = HamiltonianChains(density, np.random.default_rng(73))
    chains.warm_up(300)
    values, known = chains.draw(1000)
    assert 0.5 < known["acceptance_rate"].mean() < 0.99
    draws = chains.density.problem.latent(values)[..., 0]
    away = draws - draws.mean(axis=(0, 1))
    assert ((away[:, 1:] * away[:, :-1]).mean((0, 1)) < 0.7 * np.square(away).mean((0, 1))).all()


@pytest.mark.parametrize("most", [400, 0], ids=["whitened together", "class by class"])
@pytest.mark.parametrize("prior", [LEARNED, KNOWN], ids=["learned", "known"])
def test_chains_that_begin_far_out_are_brought_near(most, prior, monkeypatch):
    monkeypatch.setattr(of_density, "_TOGETHER", most)
    of = problem(THREE, prior=replace(prior, c=5.0, d=5e3))
    rng, said = np.random.default_rng(74), []
    chains = HamiltonianChains(LogPosterior(of), rng, n_chains=20)
    whitened, place = chains.whitened, chains.state.place
    assert (chains.state.value > whitened(0.0 * place)[0] - place.shape[1]).all()
    chains.step = 1e-4  # such steps keep the energy
    assert chains.transition()[:, 1].mean() == pytest.approx(1.0, abs=1e-4)
    parameters = chains.parameters
    whitened.learn(rng.normal(size=(180, place.shape[1])))
    place = whitened.of(parameters)
    np.testing.assert_allclose(whitened.parameters(place), parameters)
    step = 1e-4 * rng.normal(size=place.shape)
    high, low = (whitened(place + sign * step)[0] for sign in (1, -1))
    rise = 0.5 * (high - low)  # some are nearly zero, and known to the rounding of the densities
    expected = (step * whitened(place)[1]).sum(axis=1)
    np.testing.assert_allclose(expected, rise, rtol=1e-2, atol=1e-2 * np.abs(rise).max())
    whitened.learn(np.zeros((60, place.shape[1])))  # of chains that stand still
    chains.state = State.at(whitened, whitened.of(parameters))
    chains.warm_up(1)  # what few iterations leave
    assert np.isfinite(chains.state.value).all()
    monkeypatch.setattr(kernel.PROGRESS, "debug", lambda words, *of: said.append(words % of))
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
    density, rng = LogPosterior(problem(size=1)), np.random.default_rng(76)
    at, grid = np.array([[1.0, 0.3, 0.5]]), np.linspace(-9, 9, 2001)
    moved = np.repeat(at, N_DRAWS, axis=0)
    for _ in range(10):
        moved = moved_rate(density, moved, rng)
    law = Law(grid, density.rescaled(np.repeat(at, len(grid), axis=0), grid)[1])
    assert_normal(law.scores(moved[:, density.rate_column]))


# --- an unknown width ---------------------------------------------------------------------------

WIDTHS = {
    "probit": problem(widths=1),
    "a width of each feature": problem(likelihoods.Logit(), prior=KNOWN, widths=2),
    "three classes, weighted": problem(THREE, weight=WEIGHT, widths=1),
    "Laplace, no bias": problem(prior=priors.Laplace(2.0), bias="none", widths=1),
    "unknown noise and d": problem(likelihoods.StudentT(), widths=2),
}


def width_states(of, n=3):
    """Return a slice sampler of widths, and states near its mode."""
    density, rng = LogPosterior(of), np.random.default_rng(78)
    at = density.mode() + 0.3 * rng.normal(size=(n, density.n_parameters))
    states = np.column_stack([at, 0.3 * rng.normal(size=(n, np.size(of.width)))])
    return WidthSlice.at(density, density.mode()), states


@pytest.mark.parametrize("name", WIDTHS)
def test_weights_that_follow_a_width_have_the_volume_of_its_coordinates(name):
    """At another width: log densities of x are those of the parameters by a volume by differences.

    Coordinates there are x again, so that a move has its way back.
    """
    of = WIDTHS[name]
    follow, states = width_states(of)
    n, n_sizes = follow.density.n_parameters, follow.density.rate_column
    learned = of.hyperprior.learns_rate
    share, step = np.full(len(states), 0.7 if learned else 0.0), 1e-4
    x, value, norm = follow._coordinates(states)
    here = follow._moved(states.copy(), x, share, norm)
    np.testing.assert_allclose(here[0], states, atol=1e-8)
    np.testing.assert_allclose(here[1], value, atol=1e-8)
    away = states.copy()
    away[:, n:] += [[0.4], [-0.5], [0.1]]
    there, value = follow._moved(away.copy(), x, share, norm)
    if learned:  # d times the square of what the functions gain
        d = states[:, n_sizes] + 1.4 * np.log(norm / follow._coordinates(there)[2])
        np.testing.assert_allclose(there[:, n_sizes], d)
    again, same, _ = follow._coordinates(there)
    np.testing.assert_allclose(np.stack(again), np.stack(x), atol=1e-7)
    np.testing.assert_allclose(same, value, atol=1e-8)
    wanted = replace(follow.density, design=follow.designs(there[:, n:]))(there)[0]
    wanted += stats.norm(0, 0.5).logpdf(away[:, n:]).sum(axis=1)
    for k, state in enumerate(away):
        flat = np.concatenate([each[k, :, 0] for each in x])

        def sizes(along, k=k, state=state):
            parts = np.split(along[..., None], len(x), axis=1)
            many = np.repeat(state[None], len(along), axis=0)
            args = parts, np.repeat(share[k], len(along)), np.repeat(norm[k], len(along))
            return follow._moved(many, *args)[0][:, :n_sizes]

        both = (sizes(flat + sign * step * np.eye(len(flat))) for sign in (1, -1))
        wanted[k] += np.linalg.slogdet(np.subtract(*both) / (2.0 * step))[1]
    np.testing.assert_allclose(value, wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["probit", "three classes, weighted", "unknown noise and d"])
def test_chains_from_other_widths_agree(name):
    of = WIDTHS[name]
    chains = HamiltonianChains(LogPosterior(of), np.random.default_rng(79))
    n_widths = np.size(of.width)
    chains.log_width = np.repeat([[-2.0], [2.0]], 2, axis=0) * np.ones(n_widths)
    chains._at_widths()
    chains.warm_up(100)
    values, known = chains.draw(300)
    n, at = chains.density.n_parameters, chains.parameters
    designs = chains._slice.designs(chains.log_width)
    wanted = replace(chains.density, design=designs)(at)[0]
    wanted += stats.norm(0.0, 0.5).logpdf(at[:, n:]).sum(axis=1)
    np.testing.assert_allclose(known["lp"][:, -1], wanted, rtol=1e-9)
    width = np.log(values.width.reshape(4, 300, -1))
    latent = of.latent(values)[:, :, ::4, 0]
    both = np.concatenate([width, np.abs(width), latent], axis=2)
    assert_same_law(both[:2], both[2:])
    # of several one moves
    before = chains.parameters
    moved = [chains._slice(before, chains.rng)[:, n:] != before[:, n:] for _ in range(20)]
    np.testing.assert_array_equal(np.sum(moved, axis=2), 1)
    assert np.any(moved, axis=(0, 1)).all()


def test_a_width_stays_where_its_prior_has_a_density():
    of = problem(widths=1)
    inside = replace(of.moves, prior=lambda at: 0.0 if 1.45 < at < 1.55 else -np.inf)
    chains = HamiltonianChains(LogPosterior(replace(of, moves=inside)), np.random.default_rng(80))
    chains.warm_up(5)
    width = chains.draw(50)[0].width
    assert ((width > 1.45) & (width < 1.55)).all()
    assert min(len(np.unique(each)) for each in width) > 5


# --- calibration --------------------------------------------------------------------------------

ROWS = 4


def drawn_from_the_prior(of, n, rng):
    """Return `n` states from the prior of a problem, as the chains' parameters and log widths."""
    prior = of.hyperprior
    shape = of.Phi.shape[1]
    rate = prior.d * rng.gamma(prior.rate_shape, size=(n, 1)) / prior.rate_shape
    v = np.sqrt(1.0 / prior.c) * rng.standard_t(2.0 * prior.c, size=(n, shape))
    if of.sign is not None:
        size = np.abs(v)
        v = size + np.log(-np.expm1(-size))
    bias = np.sqrt(1.0 / prior.e) * rng.standard_t(2.0 * prior.e, size=(n, 1))
    log_width = 0.5 * rng.normal(size=(n, 0 if of.moves is None else 1))
    return np.column_stack([v, bias, np.log(rate), log_width])


UNKNOWN = pytest.param("width", marks=pytest.mark.slow)


@pytest.mark.parametrize("case", ["free", "signed", UNKNOWN])
def test_states_from_prior_and_data_keep_their_law(case):
    """Calibration: truths from the prior, their labels, and transitions that know the labels alone.

    Then states have the prior's law again, and their log likelihood that of the truths'. With so few rows
    there are 16 data sets: all truths with the same labels move together, after a warm-up of other chains.
    Of 15,000 truths a spread that is 5 % wrong is noticed with a probability above .99, see `calibration`.
    """
    rng, signed, unknown = np.random.default_rng(75), case == "signed", case == "width"
    X = np.array([[-1.0], [0.2], [0.5], [1.5]])
    Phi, sign = as_kernel("rbf", 1.0)(X, X[:2]), np.array([1.0, -1.0]) if signed else None
    prior = priors.Hyperprior(2.0, 1.0, 2.0, 1.0, rate_shape=2.0)
    moves = WidthMoves(squared_distances(X, X[:2]), (0.1, 10.0), log_normal_density)
    empty = Problem(Phi, np.ones(ROWS), sign, prior, likelihoods.Probit())
    empty = replace(empty, moves=moves if unknown else None)
    truth = drawn_from_the_prior(empty, N_DRAWS, rng)
    latent = empty.latent(LogPosterior(empty).values(truth))[:, :, 0]
    p = likelihoods.Probit().probability(latent)
    label = np.where(rng.uniform(size=latent.shape) < p, 1.0, -1.0)
    state = truth.copy()
    for one in np.unique(label, axis=0):
        own = (label == one).all(axis=1)
        chains = HamiltonianChains(LogPosterior(replace(empty, label=one)), rng, n_chains=20)
        chains.warm_up(60)
        n = chains.density.n_parameters
        chains.log_width = truth[own, n:]
        chains._at_widths()
        chains.state = State.at(chains.whitened, chains.whitened.of(truth[own, :n]))
        chains.draw(5 if unknown else 8)
        state[own] = chains.parameters
    assert (np.abs(state - truth).max(axis=1) > 1e-3).mean() > 0.9
    law = stats.t(2.0 * prior.c, scale=np.sqrt(1.0 / prior.c)).cdf
    for column in (np.logaddexp(0.0, state[:, :2]) if signed else state[:, :2]).T:
        assert_law(column, (lambda x: 2.0 * law(x) - 1.0) if signed else law)
    assert_law(state[:, 2], stats.t(2.0 * prior.e, scale=np.sqrt(1.0 / prior.e)).cdf)
    shape = prior.rate_shape
    assert_law(np.exp(state[:, 3]), stats.gamma(shape, scale=prior.d / shape).cdf)
    for column in state[:, 4:].T:
        assert_law(column, stats.norm(0.0, 0.5).cdf)

    # what the data are in: before and after have the same law, in halves that are independent
    found = empty.latent(LogPosterior(empty).values(state))[:, :, 0]
    both = [likelihoods.Probit().log_density(each, label).sum(axis=1) for each in (latent, found)]
    half = N_DRAWS // 2
    p = stats.ks_2samp(both[0][:half], both[1][half:]).pvalue
    p = min(p, stats.mannwhitneyu(both[0][:half], both[1][half:]).pvalue)
    assert p > FALSE_ALARM / 2
