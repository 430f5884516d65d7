"""Every conditional of the Gibbs sweep against its law, with draws enough to notice a spread of 1.05 or .95.

Moves that depend on the state start from their law by quadrature, which they have to keep.
"""

from dataclasses import replace

import numpy as np
import pytest
from calibration import FALSE_ALARM, N_DRAWS, Law, assert_normal, spread_p_value, truncated_scores
from scipy import stats
from scipy.special import log_ndtr, ndtr, ndtri

from pcvm_pymc.core.gibbs import moves, responses, slices
from pcvm_pymc.core.gibbs.problem import make_columns
from pcvm_pymc.core.gibbs.responses import augmented
from pcvm_pymc.core.gibbs.slices import Parameters
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.multinomial import log_class_probability
from pcvm_pymc.core.pieces.priors import Hyperprior

PRIOR = Hyperprior(1.0, 0.4, 2.0, 1.0)
LEARNED = Hyperprior(1.0, 0.4, 2.0, 1.0, rate_shape=3.0)


def parameters(prior):
    shape = prior.rate_shape or 0.0
    return Parameters(prior.c, prior.e, prior.f, shape, shape / prior.d)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_spread_that_is_five_per_cent_wrong_is_noticed(factor):
    rng = np.random.default_rng(0)
    right = [spread_p_value(rng.normal(size=N_DRAWS)) for _ in range(200)]
    wrong = [spread_p_value(factor * rng.normal(size=N_DRAWS)) for _ in range(200)]
    assert np.mean(np.array(wrong) < FALSE_ALARM / 2) > 0.9
    assert min(right) > FALSE_ALARM / 200


def test_a_law_on_a_grid_is_that_of_its_density():
    grid = np.linspace(-9, 9, 4001)
    law, rng = Law(grid, stats.norm(1.0, 0.7).logpdf(grid)), np.random.default_rng(1)
    draws = law.draws(rng)
    np.testing.assert_allclose(law.scores(draws), (draws - 1.0) / 0.7, atol=2e-3)
    assert_normal(law.scores(draws))


def moved(law, rng, step, repeats):
    """Return draws of a law after a move of each, ``step(value) -> value``, some times over."""
    begun = law.draws(rng)
    drawn = begun.copy()
    for i, at in enumerate(begun):
        there = at
        for _ in range(repeats):
            there = step(there)
        drawn[i] = there
    assert np.mean(drawn != begun) > 0.9  # what stays where it is keeps every law
    return drawn


# --- responses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("latent", [-6.0, -0.5, 0.3, 2.5])
@pytest.mark.parametrize("label", [-1, 1])
def test_responses_to_labels(label, latent):
    drawn, rng = np.empty((1, N_DRAWS)), np.random.default_rng(2)
    row = np.full((1, N_DRAWS), latent)
    responses.draw_responses(augmented(Probit()), row, np.full(N_DRAWS, label), drawn, rng)
    assert_normal(truncated_scores(label * latent, label * drawn[0]))


@pytest.mark.parametrize("latent", [-30.0, -2.0, 0.4, 30.0])
@pytest.mark.parametrize("flip", [0.0, 0.05, 0.4])
def test_responses_to_labels_with_noise(flip, latent):
    """N(f, 1) times 1 - flip on the label's side of zero and flip on the other."""
    drawn, rng, label = np.empty((1, N_DRAWS)), np.random.default_rng(3), -1
    row, likelihood = np.full((1, N_DRAWS), latent), augmented(NoisyProbit(flip))
    responses.draw_responses(likelihood, row, np.full(N_DRAWS, label), drawn, rng)
    m, t = label * latent, label * drawn[0]
    above = (1 - flip) * ndtr(m - np.maximum(t, 0.0))
    beyond = above + flip * np.where(t < 0, ndtr(m - t) - ndtr(m), 0.0)
    u = beyond / ((1 - flip) * ndtr(m) + flip * ndtr(-m))
    assert_normal(-ndtri(u))
    for sign, side in ((1, t > 0), (-1, t < 0)):  # each apart: the flipped are few
        if side.any():
            assert_normal(truncated_scores(sign * m, np.abs(t[side])))


@pytest.mark.parametrize("latent", [(0.2, -0.4, 0.9), (-2.0, 3.0, 1.0), (0.0, 0.5)], ids=str)
def test_responses_of_classes(latent):
    """The own one's noise has the density phi(e) prod Phi(e + margin); the others are below."""
    latent, own, rng = np.array(latent), 0, np.random.default_rng(4)
    rows = np.repeat(latent[:, None], N_DRAWS, axis=1)
    drawn, label = np.empty_like(rows), np.full(N_DRAWS, own)
    responses.draw_responses(augmented(MultinomialProbit(len(latent))), rows, label, drawn, rng)
    grid = np.linspace(-9.0, 12.0, 20_001)
    margin = latent[own] - np.delete(latent, own)
    law = Law(grid, -0.5 * grid**2 + log_ndtr(grid[:, None] + margin).sum(axis=1))
    assert_normal(law.scores(drawn[own] - latent[own]))
    for c in range(1, len(latent)):  # top - response is a normal above zero
        assert_normal(truncated_scores(drawn[own] - latent[c], drawn[own] - drawn[c]))


# --- bias ---------------------------------------------------------------------------------------


def drawn_scores(basis, prior, response, old, n_draws=N_DRAWS):
    """Return biases and the latent function without them, by the draw of one score."""
    rng, n_basis = np.random.default_rng(5), len(basis.right)
    sign = np.where(np.arange(n_basis) % 2, -1.0, 1.0)
    size = np.full(n_basis, 0.7)
    biases, without = np.empty(n_draws), np.empty((n_draws, len(response)))
    for i in range(n_draws):
        inside = (sign * size) @ basis.right
        args = (sign, inside, response, size, old, without[i], rng)
        biases[i] = moves.update_score(basis, parameters(prior), prior.d, *args)
        np.testing.assert_allclose(inside, (sign * size) @ basis.right, atol=1e-12)
        without[i] -= biases[i]
    return biases, without


@pytest.mark.parametrize("old", [-1.5, 0.1])
def test_the_bias_without_basis_functions(old):
    """Its precision is Gamma(e + 1/2, f + b^2/2) given the old one, and it is normal given both."""
    response = np.array([1.7, 2.9, 0.8])
    biases, without = drawn_scores(make_columns(np.zeros((3, 2))), PRIOR, response, old)
    assert (without == 0).all()
    share = (np.arange(1000) + 0.5) / 1000
    precision = stats.gamma.ppf(share, PRIOR.e + 0.5) / (PRIOR.f + 0.5 * old**2)
    spread = 3 + precision
    z = (biases[:, None] - response.sum() / spread) * np.sqrt(spread)
    assert_normal(ndtri(np.clip(ndtr(z).mean(axis=1), 1e-12, 1 - 1e-12)))


def test_the_bias_given_the_weights_is_normal_around_what_they_leave():
    """A precision that is all but known (2) leaves nothing to integrate over."""
    Phi = np.random.default_rng(6).uniform(size=(8, 4))
    response, sharp = np.linspace(-2.0, 3.0, 8), Hyperprior(1.0, 0.4, 2e9, 1e9)
    biases, without = drawn_scores(make_columns(Phi), sharp, response, 0.3)
    assert without.std(axis=0).min() > 0.1
    spread = 8 + 2.0
    assert_normal((biases - (response.sum() - without.sum(axis=1)) / spread) * np.sqrt(spread))


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("linear", "bend"), [(0.0, 0.0), (3.0, 2.0), (-2.0, 1.0), (40.0, 30.0)], ids=str
)
def test_a_size_given_all_else(linear, bend):
    rng, x = np.random.default_rng(7), np.linspace(-40.0, 14.0, 40_001)
    size = np.exp(x)
    prior = PRIOR.log_weight_density(size)
    law = Law(x, prior + x + linear * size - 0.5 * bend * size**2)

    def step(at):
        return np.log(slices.slice_coordinate(np.exp(at), PRIOR.c, PRIOR.d, linear, bend, rng))

    assert_normal(law.scores(moved(law, rng, step, 4)))


@pytest.mark.parametrize("direction", [-1.0, 1.0])
@pytest.mark.parametrize(("floor", "linear", "bend"), [(0.2, 0.7, 1.5), (0.0, 3.0, 40.0)])
def test_an_exchange_between_two_sizes(direction, floor, linear, bend):
    """Where the prior tells most, and where the responses do."""
    rng, first, second = np.random.default_rng(8), 0.6, 1.1
    low = max(floor - first, floor - second if direction > 0 else -np.inf)
    high = second - floor if direction < 0 else 30.0
    t = np.linspace(low, high, 20_001)
    log_density = PRIOR.log_weight_density(first + t) + PRIOR.log_weight_density(
        second + direction * t
    )
    law = Law(t, log_density + linear * t - 0.5 * bend * t**2)

    def step(at):
        one, other, pull = first + at, second + direction * at, linear - bend * at
        args = (one, other, direction, floor, PRIOR.c, PRIOR.d, pull, bend, rng)
        return at + slices.slice_transfer(*args)

    assert_normal(law.scores(moved(law, rng, step, 4)))


def small_problem(n_scores=1):
    """Return sizes and latent values of a few rows, one row for each score, and labels."""
    rng = np.random.default_rng(9)
    size, Phi = rng.uniform(0.3, 1.2, (n_scores, 5)), rng.uniform(size=(6, 5))
    sign = np.where(rng.uniform(size=(n_scores, 5)) < 0.5, -1.0, 1.0)
    bias = rng.normal(size=n_scores)
    label = np.arange(6) % 3 if n_scores > 1 else np.where(np.arange(6) % 2, 1, -1)
    return size, bias, np.ascontiguousarray((sign * size) @ Phi.T + bias[:, None]), label


@pytest.mark.parametrize("floor", [0.01, 0.5])
@pytest.mark.parametrize("likelihood", [Probit(), NoisyProbit(0.1)], ids=str)
def test_one_large_size_without_responses(likelihood, floor):
    rng, (_, _, latent, label) = np.random.default_rng(10), small_problem()
    start, move = 0.9, np.array([0.5, -0.2, 0.7, 0.1, 0.9, 0.3])
    t = np.linspace(np.log(floor / start), 9.0, 20_001)
    size = start * np.exp(t)
    rows = latent[0] + (np.exp(t)[:, None] - 1.0) * move
    of_rows = np.sum([likelihood.log_density(f, label) for f in rows], axis=1)
    law = Law(t, PRIOR.log_weight_density(size) + t + of_rows)
    known = augmented(likelihood)

    def step(at):
        factor = np.exp(at)
        here, now = latent[0] + (factor - 1.0) * move, factor * move
        args = (factor * start, floor, now, here, label, PRIOR.c, PRIOR.d, known, rng)
        return at + slices.slice_single(*args)

    assert_normal(law.scores(moved(law, rng, step, 2)))


@pytest.mark.parametrize(
    ("n_scores", "prior"), [(1, PRIOR), (1, LEARNED), (3, PRIOR)], ids=["1", "1 learned", "3"]
)
def test_the_common_scale(n_scores, prior):
    """Sizes and biases times e^t (and a learned d times e^2t): the joint posterior along t."""
    rng, (size, bias, latent, label) = np.random.default_rng(11), small_problem(n_scores)
    likelihood = Probit() if n_scores == 1 else MultinomialProbit(3)
    rate, t = 0.3, np.linspace(-8.0, 6.0, 2001)
    n_moved = size.size + n_scores
    log_density = np.empty(len(t))
    for k, each in enumerate(t):
        factor = np.exp(each)
        d = rate * factor**2 if prior.rate_shape else rate
        rows = factor * latent.T
        value = log_class_probability(rows, label) if n_scores > 1 else log_ndtr(label * rows[:, 0])
        log_density[k] = value.sum() + n_moved * each
        log_density[k] += replace(prior, d=d).log_weight_density(factor * size).sum()
        log_density[k] += sum(prior.log_bias_density(factor * b) for b in bias)
        if prior.rate_shape:  # of log d, which goes along
            log_density[k] += prior.rate_shape * (np.log(d) - d / prior.d)
    law = Law(t, log_density)
    known = parameters(prior), augmented(likelihood)

    def step(at):
        f, log_rate = np.exp(at), np.log(rate) + (2.0 * at if prior.rate_shape else 0.0)
        args = (f * size, f * bias, f * latent, label, log_rate, *known, rng)
        return at + slices.slice_scale(*args)

    assert_normal(law.scores(moved(law, rng, step, 2)))


def test_the_rate_given_all_sizes():
    rng, size = np.random.default_rng(12), small_problem(3)[0]
    x = np.linspace(-12.0, 6.0, 4001)
    shape, mean = LEARNED.rate_shape, LEARNED.d
    prior = [replace(LEARNED, d=d).log_weight_density(size).sum() for d in np.exp(x)]
    law = Law(x, np.array(prior) + shape * (x - np.exp(x) / mean))

    def step(at):
        return slices.slice_log_rate(at, size, parameters(LEARNED), rng)

    assert_normal(law.scores(moved(law, rng, step, 4)))


def test_the_common_shift_of_all_biases():
    rng, bias, t = np.random.default_rng(13), np.array([0.8, -0.5, 1.4]), np.linspace(-25, 25, 8001)
    shifted = []
    prior = stats.t(2 * PRIOR.e, scale=np.sqrt(PRIOR.f / PRIOR.e))
    law = Law(t, np.sum([prior.logpdf(b + t) for b in bias], axis=0))

    def step(at):
        there = bias + at
        moves.shift_biases(there, parameters(PRIOR), rng)
        shifted.append(there - bias)
        return there[0] - bias[0]

    assert_normal(law.scores(moved(law, rng, step, 4)))
    np.testing.assert_allclose(np.ptp(shifted, axis=1), 0.0, atol=1e-12)
