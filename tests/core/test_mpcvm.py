import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import IMPROPER, SEEDS, assert_monotone, blobs, classes, refused, slopes

from pcvm_pymc.core.em import EMOptions, Start, fit_em, initial_state, log_posterior
from pcvm_pymc.core.em.rows import DenseRows
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.experiments.replicas.starts import random_start

PRIORS = {"plug-in": Hyperprior.plug_in(), "heavy": Hyperprior(1.0, 0.01, 0.5, 1.0)} | IMPROPER
PIECES = st.sampled_from(list(PRIORS.values())), st.sampled_from(["auto", "newton", "em"])


def problem(n, n_classes, hyperprior, *, seed=0, width=1.5, signs=True, **kwargs):
    X, label = classes(n, n_classes, seed)
    sign = class_signs(label, n_classes) if signs else None
    Phi = rbf(squared_distances(X, X), width)
    return several(Phi, label, n_classes, sign, hyperprior, **kwargs)


def several(Phi, label, n_classes, sign, hyperprior, **kwargs):
    return Problem(Phi, label, sign, hyperprior, MultinomialProbit(n_classes), **kwargs)


def test_the_sign_rule():
    assert class_signs(np.array([0, 2]), 3).tolist() == [[1, -1, -1], [-1, -1, 1]]


@settings(max_examples=30)
@given(*PIECES, st.integers(2, 5), SEEDS, st.sampled_from([0.2, 1.5, 8.0]), st.booleans())
def test_the_log_posterior_never_falls(hyperprior, update, n_classes, seed, width, signs):
    given_ = problem(30, n_classes, hyperprior, seed=seed, width=width, signs=signs)
    result = fit_em(given_, None, EMOptions(update=update, max_iter=25))
    # the first step starts from responses that are not those of the start's weights
    assert_monotone(result.trace.log_posterior[1:])
    if signs:
        assert (result.weight * given_.sign >= 0).all()
    latent = given_.Phi @ result.weight + result.bias
    wanted = log_posterior(given_, result.weight, result.bias, latent)
    assert result.log_posterior == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("hyperprior", PRIORS.values(), ids=PRIORS)
def test_the_end_satisfies_the_kkt_conditions(hyperprior):
    given_ = problem(40, 3, hyperprior, seed=1)
    result = fit_em(given_, None, EMOptions(tol=1e-9, max_iter=60_000))
    assert result.status is Status.CONVERGED
    in_weight, in_bias = slopes(given_, result)
    active = result.weight != 0
    assert active.any()
    np.testing.assert_allclose(in_weight[active], 0.0, atol=2e-5)
    if hyperprior.d > 0:  # no weight at zero would rather grow
        assert (in_weight[~active] * given_.sign[~active] <= 2e-5).all()
    np.testing.assert_allclose(in_bias[result.bias != 0], 0.0, atol=2e-5)


@given(st.permutations(range(4)), SEEDS)
@settings(max_examples=10)
def test_the_names_of_the_classes_mean_nothing(order, seed):
    order = np.array(order)
    given_ = problem(32, 4, Hyperprior.jeffreys(), seed=seed)
    label = order[given_.label]
    other = several(given_.Phi, label, 4, class_signs(label, 4), given_.hyperprior)
    options = EMOptions(max_iter=30)
    one, two = fit_em(given_, None, options), fit_em(other, None, options)
    np.testing.assert_allclose(two.weight[:, order], one.weight, atol=1e-7)
    np.testing.assert_allclose(two.latent[:, order], one.latent, atol=1e-7)


@pytest.mark.parametrize("hyperprior", [Hyperprior.plug_in(), Hyperprior(1.0, 0.2, 0.5, 1.0)])
def test_two_classes_are_a_binary_machine_of_another_hyperprior(hyperprior):
    """With opposite weights the likelihood is the probit of sqrt(2) f, and each prior counts twice.

    The square of a half-Student-t density is one of shape 2 c + 1/2; a bias that sqrt(2) multiplies has
    twice the rate.
    """
    X, sign = blobs(50, seed=4)
    Phi = rbf(squared_distances(X, X), 1.5)
    label = (sign > 0).astype(int)
    many = several(Phi, label, 2, class_signs(label, 2), hyperprior)
    c, d, e, f = hyperprior.c, hyperprior.d, hyperprior.e, hyperprior.f
    twice = Hyperprior(2 * c + 0.5, d, 2 * e + 0.5, 2 * f)
    options = EMOptions(tol=1e-10, max_iter=50_000)
    one = fit_em(many, Start(np.zeros((50, 2)), np.zeros(2)), options)
    two = fit_em(Problem(np.sqrt(2) * Phi, sign, sign, twice), None, options)
    np.testing.assert_allclose(one.weight[:, 1], two.weight, atol=1e-6)
    assert np.sqrt(2) * one.bias[1] == pytest.approx(two.bias, abs=1e-6)
    difference = one.latent[:, 1] - one.latent[:, 0]
    np.testing.assert_allclose(difference / np.sqrt(2), two.latent, atol=1e-6)


def test_shared_bases_leave_together():
    given_ = problem(45, 3, Hyperprior.jeffreys(), signs=False, shared=True, bias="none")
    result = fit_em(given_, None, EMOptions(max_iter=5000))
    used = result.weight != 0
    assert result.bias.tolist() == [0, 0, 0]
    assert 0 < len(result.support) < 45
    # a row of weights is kept as long as one of them is
    assert used[result.support].any(axis=1).all()


def test_random_starts_and_bad_ones():
    given_ = problem(40, 3, Hyperprior.jeffreys())
    start = random_start(given_, np.random.default_rng(1))
    own = start.response[np.arange(40), given_.label]
    first = DenseRows(given_).first(start.weight, start.bias, start.response)
    np.testing.assert_allclose(first.total, first.terms.slope.sum(axis=0))
    assert own.min() >= 10
    assert own.max() <= 11
    assert own.std() > 0.1
    assert np.isfinite(fit_em(given_, start).log_posterior)
    for bad, match in (
        (Start(np.zeros((40, 2)), np.zeros(3)), r"start.weight has shape \(40, 2\)"),
        (Start(-given_.sign, np.zeros(3)), r"start has 120 weight\(s\) of the wrong sign"),
        (Start(given_.sign, np.zeros(3), np.zeros((2, 3))), "start.response has shape"),
    ):
        refused(match, initial_state, given_, bad)


def test_an_empty_model():
    given_ = problem(20, 3, Hyperprior.jeffreys(), width=1e9)
    result = fit_em(given_, None, EMOptions(max_iter=20_000))
    if result.status is Status.EMPTY_MODEL:
        assert len(result.support) == 0
    assert np.isfinite(result.latent).all()


@pytest.mark.parametrize(("bias", "signs"), [("prior", True), ("free", False), ("none", True)])
def test_newton_for_all_scores_at_once_takes_a_tenth_of_the_steps(signs, bias):
    given_ = problem(40, 3, Hyperprior.plug_in(), signs=signs, bias=bias)
    newton = fit_em(given_, None, EMOptions(tol=1e-6, max_iter=50_000))
    plain = fit_em(given_, None, EMOptions(update="em", tol=1e-6, max_iter=50_000))
    assert newton.log_posterior >= plain.log_posterior - 1e-6
    assert newton.log_posterior == pytest.approx(plain.log_posterior, abs=1e-2)
    assert newton.converged
    assert 10 * newton.n_iter < plain.n_iter


@pytest.mark.parametrize("width", [0.05, 0.7, 3.0, 10.0])
@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
def test_coupled_steps_end_at_a_kkt_point_whatever_width_and_scale(width, scale):
    # narrow bases act on as many directions as there are rows, wide ones on a few: two preconditioners
    prior = Hyperprior(5.0, 5.0 * scale**2, 1.0, 1.0)
    given_ = problem(90, 3, prior, width=width)
    result = fit_em(given_, None, EMOptions(tol=1e-6, max_iter=60))
    assert result.converged
    slope = slopes(given_, result)[0] / np.sqrt(prior.weight_precision(result.weight))
    active = result.weight != 0
    assert np.abs(slope[active]).max() < 1e-4
    assert (slope * given_.sign)[~active].max(initial=0.0) < 1e-4
