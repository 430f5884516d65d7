import time
from dataclasses import replace

import numpy as np
import pytest
from calibration import N_DRAWS, assert_normal, assert_uniform, truncated_scores
from hypothesis import given, settings
from problems import awkward_data, blobs, refused
from scipy import stats

from pcvm_pymc.core.gibbs import GibbsChains, GibbsProblem, GibbsState, advance, responses
from pcvm_pymc.core.gibbs.chain import run
from pcvm_pymc.core.gibbs.problem import factorise
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.likelihoods import Logit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem

PRIORS = {"fixed": Hyperprior(1.0, 0.2, 0.5, 1.0)}
PRIORS["learned"] = replace(PRIORS["fixed"], rate_shape=1.5)
LIKELIHOODS = [Probit(), NoisyProbit(0.1), NoisyProbit(0.0)]


def problem(n=12, prior="fixed", seed=0, likelihood=LIKELIHOODS[0]):
    X, label = blobs(n, seed=seed)
    Phi = RBF(1.2)(X, X)
    return GibbsProblem.of(Problem(Phi, label, label.copy(), PRIORS[prior], likelihood))


@settings(max_examples=40)
@given(awkward_data())
def test_factors_are_the_matrix(data):
    X, _ = data
    Phi = RBF(median_distance(X))(X, X)
    left, right = factorise(Phi)
    np.testing.assert_allclose(left @ right.T, Phi, atol=1e-9)
    np.testing.assert_allclose(left.T @ left, np.eye(left.shape[1]), atol=1e-12)
    assert left.shape[1] <= len(X)
    many = np.random.default_rng(0).normal(size=(300, 2))
    assert factorise(RBF(3.0)(many, many))[0].shape[1] < 100


@pytest.mark.parametrize("a", [-3.0, 0.0, 0.39, 0.41, 2.0, 8.0])
def test_tail_draws_are_truncated_normal(a):
    rng = np.random.default_rng(1)
    draws = np.array([responses.upper_tail(a, rng) for _ in range(N_DRAWS)])
    assert (draws > a).all()
    assert_normal(truncated_scores(-a, draws - a))


@pytest.mark.parametrize("a", [1e9, 1e160, 1e300, np.inf])
def test_tails_far_out_are_drawn(a):
    rng = np.random.default_rng(1)
    assert {responses.upper_tail(a, rng) for _ in range(20)} <= {a, np.nextafter(a, np.inf)}


@pytest.mark.parametrize("flip", [0.0, 0.02, 0.3])
def test_labels_with_noise_have_the_pieces_log_probability(flip):
    x = np.linspace(-50, 40, 401)
    piece = NoisyProbit(flip)
    value = np.array([responses.log_label(flip, each) for each in x])
    np.testing.assert_allclose(value, piece.log_density(x, 1.0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("prior", PRIORS)
def test_draws_depend_on_the_seed_alone(prior):
    p = problem(prior=prior)

    def run(*parts):
        rng = np.random.default_rng(5)
        state = p.start(rng)
        pieces = [advance(p, state, rng, draws=draws, thin=3) for draws in parts]
        return [np.concatenate(column) for column in zip(*pieces, strict=True)]

    for whole, parts in zip(run(40), run(7, 13, 20), strict=True):
        np.testing.assert_array_equal(whole, parts)
    assert (run(2)[0] > 0).all()
    of_chains = []
    for cores in (1, 3):  # nor on the threads
        chains = GibbsChains(p, np.random.default_rng(6), n_chains=3, cores=cores)
        chains.warm_up(5)
        of_chains.append(chains.draw(4, thin=2)[0])
    for one, many in zip(*(each[:4] for each in of_chains), strict=True):
        np.testing.assert_array_equal(one, many)
    assert of_chains[0].weight.shape == (3, 4, 12, 1)
    assert (of_chains[0].weight[..., 0] * p.sign > 0).all()
    assert len(np.unique(of_chains[0].weight)) == 3 * 4 * 12


def test_compiled_sweeps_return_several_times_a_second():
    p, calls = problem(), []
    rng = np.random.default_rng(0)
    state = p.start(rng)

    def between():
        calls.append(time.perf_counter())
        if calls[-1] > calls[0] + 0.9:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        advance(p, state, rng, draws=1, thin=10**12, between=between)
    assert state.chunk > 1000  # and not after every sweep
    assert np.median(np.diff(calls)[-3:]) < 1.0


def test_a_learned_scale_of_which_little_is_known():
    """Of a basis that is zero everywhere the size has its prior given d, whatever its law."""
    prior = Hyperprior(2.0, 0.5, 2.0, 1.0, rate_shape=0.1)
    p = GibbsProblem.of(Problem(np.zeros((2, 1)), np.array([1.0, -1.0]), np.ones(1), prior))
    rng = np.random.default_rng(0)
    size, _, rate = advance(p, p.start(rng), rng, draws=10_000)
    assert_uniform(2 * stats.t(2 * prior.c).cdf(size / np.sqrt(rate / prior.c)[:, None]) - 1)


@pytest.mark.parametrize("likelihood", [Probit(), NoisyProbit(0.3)], ids=str)
def test_draws_and_labels_in_turn_have_the_priors_law(likelihood):
    """A sweep given labels, then labels given the state (Geweke 2004): both keep the joint law.

    Weights are large, so that labels determine much: a sweep that forgets the flips, in the responses or in
    the moves without them, has p < 1e-30 here.
    """
    prior = Hyperprior(2.0, 3.0, 2.0, 3.0)
    p = problem(likelihood=likelihood)
    p = replace(p, label=p.label.copy(), hyperprior=prior)
    rng = np.random.default_rng(12)
    sizes = stats.t(2 * prior.c, scale=np.sqrt(prior.d / prior.c))
    biases = stats.t(2 * prior.e, scale=np.sqrt(prior.f / prior.e))
    size, bias = sizes.rvs(p.sign.shape, rng), biases.rvs((), rng)
    state = GibbsState(np.abs(size), bias, np.log(prior.d))
    kept = np.empty((8_000, size.size + 1))
    for each in kept:
        latent = p.Phi @ (p.sign * state.size) + state.bias
        p.label[:] = np.where(rng.random(12) < likelihood.probability(latent), 1, -1)
        advance(p, state, rng, draws=1)
        each[:] = [*state.size, state.bias]
    assert_uniform(np.column_stack([2 * sizes.cdf(kept[:, :-1]) - 1, biases.cdf(kept[:, -1:])]))


def likelihood_of(p, state):
    return p.likelihood.log_likelihood(p.Phi @ (p.sign * state.size) + state.bias, p.label)


@pytest.mark.parametrize("scale", [1e4, 1e6, 1e8])
def test_large_basis_functions_from_a_start_far_off(scale):
    """The first slices reach down to the smallest size; soon the labels are explained as ever."""
    p = problem()
    p = GibbsProblem.of(Problem(scale * p.Phi, p.label, p.sign, p.hyperprior))
    state = p.start(rng := np.random.default_rng(0))
    state.size[p.sign < 0] *= 1e-6  # rows of label -1 begin far on the other side
    assert likelihood_of(p, state) < -10 * scale
    advance(p, state, rng, draws=50)
    assert likelihood_of(p, state) > -30.0


def other(**changed):
    label = np.array([1.0, -1])
    given = {"label": label, "sign": label, "hyperprior": PRIORS["fixed"], **changed}
    return Problem(np.eye(2), **given)


NOT_DRAWN_FROM = [
    ({"hyperprior": Hyperprior.jeffreys()}, "use bottom-up or em or nuts"),
    ({"hyperprior": HalfHorseshoe(0.3)}, "a half-horseshoe prior and signed weights .* use .*nuts"),
    ({"hyperprior": Laplace(1.0)}, "a laplace prior and signed weights are of PCVM.* use .*nuts"),
    ({"bias": "none"}, "'gibbs' does not take; use .*nuts; gibbs needs .* a bias"),
    ({"likelihood": NoisyProbit(np.nan)}, "a label noise likelihood, .* use .*nuts"),
    ({"likelihood": Logit()}, "a logit likelihood, .*; use .*nuts; gibbs needs probit"),
    ({"sign": None}, "a probit likelihood, a gamma prior and free weights"),
]


@pytest.mark.parametrize(("changed", "words"), NOT_DRAWN_FROM)
def test_what_it_does_not_draw_from_is_refused_by_name(changed, words):
    refused(words, GibbsProblem.of, other(**changed))


def test_what_is_compiled_once_serves_every_problem():
    first = problem()
    advance(first, first.start(rng := np.random.default_rng(0)), rng, draws=2)
    compiled = list(run.signatures)
    for found in (problem(prior="learned"), problem(likelihood=NoisyProbit(0.1))):
        advance(found, found.start(rng := np.random.default_rng(0)), rng, draws=2)
    assert run.signatures == compiled
