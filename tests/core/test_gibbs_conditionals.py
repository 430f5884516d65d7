"""Every conditional of the Gibbs sweep against its law, with draws enough to notice a spread of 1.05 or .95.

Moves that depend on the state start from their law by quadrature, which they have to keep.
"""

from dataclasses import replace

import numpy as np
import pytest
from calibration import FALSE_ALARM, N_DRAWS, Law, assert_normal, spread_p_value, truncated_scores
from scipy import stats
from scipy.special import ndtr, ndtri

from pcvm_pymc.core.gibbs import moves, responses
from pcvm_pymc.core.gibbs.moves import Given, Parameters, Score
from pcvm_pymc.core.gibbs.problem import make_columns
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior

PRIOR = Hyperprior(1.0, 0.4, 2.0, 1.0)
LEARNED = Hyperprior(1.0, 0.4, 2.0, 1.0, rate_shape=3.0)


def parameters(prior):
    shape = prior.rate_shape or 0.0
    return Parameters(prior.c, prior.e, prior.f, shape, shape / prior.d)


def given(label, prior, likelihood, rate=None):
    return Given(label, parameters(prior), rate or prior.d, flip_of(likelihood))


def flip_of(likelihood):
    return getattr(likelihood, "flip", 0.0)


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


def drawn_responses(likelihood, latent, label, seed, n=N_DRAWS):
    """Return draws given the latent value of a row."""
    drawn, rng = np.empty(n), np.random.default_rng(seed)
    labels = np.full(n, label)
    responses.draw_responses(flip_of(likelihood), np.full(n, latent), labels, drawn, rng)
    return drawn


@pytest.mark.parametrize("latent", [-6.0, -0.5, 0.3, 2.5])
@pytest.mark.parametrize("label", [-1, 1])
def test_responses_to_labels(label, latent):
    drawn = drawn_responses(Probit(), latent, label, 2, 450_000)  # a spread 1 % wrong is noticed
    assert_normal(truncated_scores(label * latent, label * drawn))


@pytest.mark.parametrize("latent", [-30.0, -2.0, 0.4, 30.0])
@pytest.mark.parametrize("flip", [0.0, 0.05, 0.4])
def test_responses_to_labels_with_noise(flip, latent):
    """N(f, 1) times 1 - flip on the label's side of zero and flip on the other."""
    m, t = -latent, -drawn_responses(NoisyProbit(flip), latent, -1, 3)
    above = (1 - flip) * ndtr(m - np.maximum(t, 0.0))
    beyond = above + flip * np.where(t < 0, ndtr(m - t) - ndtr(m), 0.0)
    assert_normal(-ndtri(beyond / ((1 - flip) * ndtr(m) + flip * ndtr(-m))))
    for sign, side in ((1, t > 0), (-1, t < 0)):  # each apart: the flipped are few
        if side.any():
            assert_normal(truncated_scores(sign * m, np.abs(t[side])))


# --- bias ---------------------------------------------------------------------------------------


def drawn_scores(basis, prior, response, old, n_draws=N_DRAWS):
    """Return biases and the latent function without them, by the draw of one score."""
    rng, n_basis = np.random.default_rng(5), len(basis.right)
    sign = np.where(np.arange(n_basis) % 2, -1.0, 1.0)
    size = np.full(n_basis, 0.7)
    biases, sizes, latent = (np.empty((n_draws, n)) for n in (1, n_basis, len(response)))
    known = given(np.ones(len(response), int), prior, Probit())
    for i in range(n_draws):
        moves.write_latent(basis, sign, size, old, latent[i])
        biases[i] = old
        score = Score(sign, size, biases[i], latent[i], response)
        moves.update_given_responses(basis, known, score, rng)
        sizes[i] = size
    wanted = (sign * sizes) @ (basis.left @ basis.right.T).T + biases
    np.testing.assert_allclose(latent, wanted, atol=1e-12)
    return biases[:, 0], latent - biases


@pytest.mark.parametrize("old", [-1.5, 0.1])
def test_the_bias_without_basis_functions(old):
    """Its precision is Gamma(e + 1/2, f + b^2/2) given the old one, and it is normal given both."""
    response = np.array([1.7, 2.9, 0.8])
    biases, without = drawn_scores(make_columns(np.zeros((3, 2))), PRIOR, response, old)
    assert (without == 0).all()
    share = (np.arange(400) + 0.5) / 400
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
    assert_normal((biases - (response.sum() - without.sum(axis=1)) / 10.0) * np.sqrt(10.0))


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("linear", "bend"), [(0.0, 0.0), (3.0, 2.0), (-2.0, 1.0), (40.0, 30.0)], ids=str
)
def test_a_size_given_all_else(linear, bend):
    rng, x = np.random.default_rng(7), np.linspace(-40.0, 14.0, 40_001)
    size = np.exp(x)
    law = Law(x, PRIOR.log_weight_density(size) + x + linear * size - 0.5 * bend * size**2)

    def step(at):
        return np.log(moves.slice_coordinate(np.exp(at), PRIOR.c, PRIOR.d, linear, bend, rng))

    assert_normal(law.scores(moved(law, rng, step, 4)))


def small_problem():
    """Return sizes, a bias, latent values of a few rows, and labels."""
    rng = np.random.default_rng(9)
    size, Phi = rng.uniform(0.3, 1.2, 5), rng.uniform(size=(6, 5))
    sign, bias = np.where(rng.uniform(size=5) < 0.5, -1.0, 1.0), rng.normal(size=1)
    return size, bias, Phi @ (sign * size) + bias, np.where(np.arange(6) % 2, 1, -1)


@pytest.mark.parametrize(("n_equal", "n_largest"), [(1, 6), (5, 3), (0, 6)])
def test_the_largest_are_above_the_next(n_equal, n_largest):
    size = np.append(np.arange(9.0 if n_equal < 5 else 4.0)[1:], np.full(n_equal, 1e-300))
    largest, floor = moves._largest(size[::-1].copy())
    assert (np.sort(size[::-1][largest]) == np.sort(size)[-n_largest:]).all()
    assert floor == np.sort(size)[-n_largest - 1]


@pytest.mark.parametrize("floor", [0.01, 0.5])
@pytest.mark.parametrize("likelihood", [Probit(), NoisyProbit(0.1)], ids=str)
def test_one_large_size_without_responses(likelihood, floor):
    rng, (_, _, latent, label) = np.random.default_rng(10), small_problem()
    start, move = 0.9, np.array([0.5, -0.2, 0.7, 0.1, 0.9, 0.3])
    t = np.linspace(np.log(floor / start), 9.0, 20_001)
    size = start * np.exp(t)
    rows = latent + (np.exp(t)[:, None] - 1.0) * move
    of_rows = np.sum([likelihood.log_density(f, label) for f in rows], axis=1)
    law = Law(t, PRIOR.log_weight_density(size) + t + of_rows)
    basis = make_columns(np.column_stack([move / start, np.zeros(6)]))
    known, left = given(label, PRIOR, likelihood), []

    def step(at):
        size, here = np.array([start * np.exp(at), floor]), latent + (np.exp(at) - 1.0) * move
        score = Score(np.ones(2), size, np.zeros(1), here, here)
        moves.update_a_large_one(basis, known, score, rng)
        left.append(np.abs(here - latent - (size[0] / start - 1.0) * move).max())
        return np.log(size[0] / start)

    assert_normal(law.scores(moved(law, rng, step, 2)))
    assert max(left) < 1e-9


@pytest.mark.parametrize("prior", [PRIOR, LEARNED], ids=["known", "learned"])
def test_the_common_scale(prior):
    """Sizes and bias times e^t (and a learned d times e^2t): the joint posterior along t."""
    rng, (size, bias, latent, label) = np.random.default_rng(11), small_problem()
    likelihood, rate, t = NoisyProbit(0.1), 0.3, np.linspace(-8.0, 6.0, 2001)
    log_density = np.empty(len(t))
    for k, each in enumerate(t):
        factor = np.exp(each)
        d = rate * factor**2 if prior.rate_shape else rate
        of_rows = likelihood.log_likelihood(factor * latent, label)
        if k % 500 == 0:
            found = sum(responses.log_label(likelihood.flip, x) for x in label * factor * latent)
            assert found == pytest.approx(of_rows, rel=1e-7)
        log_density[k] = of_rows + (len(size) + 1) * each
        log_density[k] += replace(prior, d=d).log_weight_density(factor * size).sum()
        log_density[k] += prior.log_bias_density(factor * bias[0])
        if prior.rate_shape:  # of log d, which goes along
            log_density[k] += prior.rate_shape * (np.log(d) - d / prior.d)
    law = Law(t, log_density)

    def step(at):
        f = np.exp(at)
        known = given(label, prior, likelihood, rate * f**2 if prior.rate_shape else rate)
        args, low = (f * size, f * bias, f * latent, known), -2.0 * rng.random()
        # not compiled: numba may lose the functions that a compiled one takes (ReferenceError)
        return at + moves.sliced.py_func(moves.scale_density, args, 0.0, low, low + 2.0, rng)

    assert_normal(law.scores(moved(law, rng, step, 2)))


def test_the_rate_given_all_sizes():
    many = np.full(198, 1e3)  # beyond the largest number, multiplied
    each = moves.log_size_density(1e3, PRIOR.c, PRIOR.d)
    assert moves.log_sizes_density(many, PRIOR.c, PRIOR.d) == pytest.approx(198 * each, rel=1e-12)
    rng, size = np.random.default_rng(12), small_problem()[0]
    x = np.linspace(-12.0, 6.0, 4001)
    shape, mean = LEARNED.rate_shape, LEARNED.d
    prior = [replace(LEARNED, d=d).log_weight_density(size).sum() for d in np.exp(x)]
    law = Law(x, np.array(prior) + shape * (x - np.exp(x) / mean))

    def step(at):
        low, known = at - 4.0 * rng.random(), (size, parameters(LEARNED))
        return moves.sliced.py_func(moves.log_rate_density, known, at, low, low + 4.0, rng)

    assert_normal(law.scores(moved(law, rng, step, 4)))
