from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    IMPROPER,
    PROPER,
    SEEDS,
    assert_monotone,
    awkward_data,
    blobs,
    classes,
    papers_step,
    problem,
    refused,
    slopes,
)

from pcvm_pymc.core.em import EMOptions, Start, fit_em, initial_state, iterate, log_posterior
from pcvm_pymc.core.em.rows import DenseRows
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.priors import PRUNING_PRECISION, Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.experiments.replicas.starts import random_start

PRIORS = {**PROPER, **IMPROPER}
UPDATES, FACTORS = st.sampled_from(["newton", "em"]), st.sampled_from([0.1, 1.0, 10.0])


@settings(max_examples=50)
@given(awkward_data(), st.sampled_from(sorted(PRIORS)), UPDATES, FACTORS, SEEDS)
def test_em_never_lowers_the_log_posterior(data, prior, update, factor, seed):
    X, label = data
    prob = problem(X, label, PRIORS[prior])
    prob = problem(X, label, PRIORS[prior], factor * prob.width)
    start = random_start(prob, np.random.default_rng(seed))
    result = fit_em(prob, start, EMOptions(update=update, max_iter=60))
    assert_monotone(result.trace.log_posterior)
    assert np.isfinite(result.weight).all()
    assert np.isfinite(result.bias)
    assert (result.weight * label >= 0).all()
    assert result.log_posterior == pytest.approx(
        log_posterior(prob, result.weight, result.bias, prob.Phi @ result.weight + result.bias)
    )


@settings(max_examples=30)
@given(awkward_data(), st.sampled_from(sorted(PRIORS)), SEEDS)
def test_em_with_a_free_width_never_lowers_the_log_posterior(data, prior, seed):
    X, label = data
    prob = problem(X, label, PRIORS[prior], free_width=True)
    result = fit_em(prob, random_start(prob, np.random.default_rng(seed)), EMOptions(max_iter=40))
    assert_monotone(result.trace.log_posterior)
    low, high = prob.moves.bounds
    assert low <= result.width <= high
    latent = np.exp(-prob.moves.distance / result.width**2) @ result.weight + result.bias
    np.testing.assert_allclose(result.latent, latent, atol=1e-9 * (1 + np.abs(latent).max()))


def test_em_step_is_the_papers_for_one_iteration():
    """One "em" iteration against eqs. 11-12 (corrected) where no sign constraint binds."""
    prob, start, response = papers_step()
    prior = prob.hyperprior
    [state] = islice(iterate(prob, start, EMOptions(update="em")), 1)
    D = np.column_stack([prob.Phi, np.ones(6)])
    penalty = np.diag(np.append(prior.weight_precision(start.weight), prior.bias_precision(0.1)))
    wanted = np.linalg.solve(D.T @ D + penalty, D.T @ response)
    assert (wanted[:-1] * prob.label > 0).all()
    np.testing.assert_allclose(np.append(state.weight, state.bias), wanted, rtol=1e-9)


def test_a_free_width_ends_where_the_log_likelihood_is_flat():
    X, label = blobs(60, seed=6)
    prob = problem(X, label, Hyperprior.plug_in(), free_width=True)
    result = fit_em(prob, None, EMOptions(tol=1e-9, max_iter=20_000))
    low, high = prob.moves.bounds
    assert low < result.width < high

    def value(width):
        Phi = RBF(width).of_distances(prob.moves.distance.copy())
        return Probit().log_likelihood(Phi @ result.weight + result.bias, label)

    h = 1e-5
    slope = (value(result.width * np.exp(h)) - value(result.width * np.exp(-h))) / (2 * h)
    assert slope == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("bias", "wanted"), [("prior", 1.0), ("free", 0.0), ("none", 0.0)])
def test_a_bias_starts_at_the_larger_class_where_it_has_a_prior(bias, wanted):
    X, label = blobs(20, seed=7)
    label[:5] = 1.0
    prob = replace(problem(X, label, Hyperprior.jeffreys()), bias=bias)
    assert Start.default(prob).bias == wanted
    label[:] = np.where(np.arange(20) % 2, 1.0, -1.0)  # the second class also where none is larger
    assert Start.default(prob).bias == wanted


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_without_curvature_leave_a_free_bias_its_gradient(sign):
    X, label = blobs(30, seed=1)
    prob = replace(problem(X, label, PROPER["plug-in"]), bias="free", likelihood=NoisyProbit(0.1))
    far, best = Start(np.zeros(30), 45.0 * sign), fit_em(prob)
    assert not prob.likelihood.curvature(np.full(30, far.bias), label).any()
    result = fit_em(prob, far)
    assert_monotone(result.trace.log_posterior)
    assert result.trace.log_posterior[-1] == pytest.approx(best.trace.log_posterior[-1], abs=1e-6)


def test_pruning_at_the_papers_threshold():
    X, label = blobs(20, seed=7)
    prob = problem(X, label, Hyperprior.jeffreys())
    sizes = np.full(20, 0.5)
    sizes[:3] = [0.99 / np.sqrt(PRUNING_PRECISION), 1.01 / np.sqrt(PRUNING_PRECISION), 0.0]
    state = initial_state(prob, Start(label * sizes, 0.5))
    np.testing.assert_array_equal(state.weight[:3] != 0, [False, True, False])


def test_what_is_pruned_stays_pruned():
    X, label = blobs(40, seed=8)
    prob = problem(X, label, Hyperprior.jeffreys())
    dead = np.zeros(40, dtype=bool)
    for state in islice(iterate(prob, Start.default(prob)), 80):
        assert not state.weight[dead].any()
        dead |= state.weight == 0
    assert dead.any()


def test_states_of_the_end():
    X, label = blobs(40, seed=9)
    prob = problem(X, label, Hyperprior.plug_in())
    assert fit_em(prob).status is Status.CONVERGED
    cut = fit_em(prob, None, EMOptions(max_iter=2))
    assert cut.status is Status.ITERATION_LIMIT
    assert not cut.converged
    assert cut.n_iter == 2
    assert len(cut.trace.log_posterior) == 3
    assert "trace" not in repr(cut)
    # a kernel so wide that every basis is a constant: the Jeffreys prior leaves the bias alone
    flat = problem(X, label, Hyperprior.jeffreys(), width=1e9)
    empty = fit_em(flat, Start(0.05 * label, 0.05), EMOptions(max_iter=5000))
    assert empty.status is Status.EMPTY_MODEL
    assert empty.converged
    assert not empty.weight.any()
    assert np.isfinite(empty.log_posterior)
    alike = problem(X, label, Hyperprior.plug_in(), width=1e3)
    assert fit_em(replace(alike, Phi=1e15 * alike.Phi, sign=None)).status is Status.ROUNDING


@pytest.mark.parametrize("prior", [Hyperprior.jeffreys(), Hyperprior(1.0, 0.01, 0.5, 1.0)])
def test_steps_that_creep_where_the_likelihood_is_flat_are_no_convergence(prior):
    label = np.array([1.0, -1.0, 1.0, -1.0])
    prob = Problem(1e6 * np.eye(4), label, label.copy(), prior)
    start = Start(0.3 * label, 0.1)
    short = fit_em(prob, start, EMOptions(update="em"))
    assert short.status is Status.SHORT_STEPS
    assert not short.converged
    whole = fit_em(prob, start)
    assert whole.converged
    assert whole.log_posterior > short.log_posterior + 5


def test_callback_sees_each_iteration():
    X, label = blobs(20, seed=14)
    seen = []
    watch = lambda n, state: seen.append((n, state.log_posterior))  # noqa: E731
    result = fit_em(problem(X, label, Hyperprior.plug_in()), callback=watch)
    assert [n for n, _ in seen] == list(range(1, result.n_iter + 1))
    np.testing.assert_array_equal([value for _, value in seen], result.trace.log_posterior[1:])


@pytest.mark.fixed_seeds  # elsewhere slopes end less flat
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_zeros_under_a_laplace_prior_are_released_whatever_the_scale(scale):
    """Released together and by too much, no zero raised the log posterior, and all stayed."""
    X, label = blobs(30, seed=3)
    plain = problem(X, label, Laplace(1.0))
    prob = replace(plain, Phi=scale * plain.Phi)
    result = fit_em(prob, None, EMOptions(tol=1e-9))
    in_weight, active = label * slopes(prob, result)[0][:, 0], result.weight != 0
    assert 1 < active.sum() < 30
    np.testing.assert_allclose(in_weight[active], 0, atol=1e-5 * scale)
    assert (in_weight[~active] <= 1.0 + 1e-5 * scale).all()


def test_a_bias_next_to_zero_becomes_zero_where_the_prior_has_a_pole():
    X, label = blobs(30, seed=9)
    options = EMOptions(update="em", max_iter=1)
    found = {}
    for name, prior in (("jeffreys", Hyperprior.jeffreys()), ("proper", Hyperprior.plug_in())):
        found[name] = fit_em(problem(X, label, prior), Start(0.5 * label, 1e-7), options).bias
    assert found["jeffreys"] == 0.0
    assert abs(found["proper"]) > 1e-3


# --- several classes ------------------------------------------------------------------------------


PIECES = (st.sampled_from(list(PRIORS.values())), st.sampled_from(["auto", "newton", "em"]))


def of_classes(n, n_classes, hyperprior, *, seed=0, width=1.5, signs=True, **kwargs):
    X, label = classes(n, n_classes, seed)
    sign = class_signs(label, n_classes) if signs else None
    Phi = RBF(width)(X, X)
    return several(Phi, label, n_classes, sign, hyperprior, **kwargs)


def several(Phi, label, n_classes, sign, hyperprior, **kwargs):
    return Problem(Phi, label, sign, hyperprior, MultinomialProbit(n_classes), **kwargs)


def test_the_sign_rule():
    assert class_signs(np.array([0, 2]), 3).tolist() == [[1, -1, -1], [-1, -1, 1]]


@settings(max_examples=30)
@given(*PIECES, st.integers(2, 5), SEEDS, st.sampled_from([0.2, 1.5, 8.0]), st.booleans())
def test_the_log_posterior_never_falls(hyperprior, update, n_classes, seed, width, signs):
    given_ = of_classes(30, n_classes, hyperprior, seed=seed, width=width, signs=signs)
    result = fit_em(given_, None, EMOptions(update=update, max_iter=25))
    # the first step starts from responses that are not those of the start's weights
    assert_monotone(result.trace.log_posterior[1:])
    if signs:
        assert (result.weight * given_.sign >= 0).all()
    latent = given_.Phi @ result.weight + result.bias
    wanted = log_posterior(given_, result.weight, result.bias, latent)
    assert result.log_posterior == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("hyperprior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("several", [True, False])
def test_the_end_satisfies_the_kkt_conditions(hyperprior, several):
    given_ = of_classes(40, 3, hyperprior, seed=1)
    if not several:
        given_ = problem(*blobs(60, seed=2), hyperprior)
    result = fit_em(given_, None, EMOptions(tol=1e-9, max_iter=100_000))
    assert result.status is Status.CONVERGED
    in_weight, in_bias = slopes(given_, result)
    sign = given_.sign.reshape(in_weight.shape)
    active = result.weight.reshape(in_weight.shape) != 0
    assert active.any()
    np.testing.assert_allclose(in_weight[active], 0.0, atol=2e-5)
    if hyperprior.d > 0:  # no weight at zero would rather grow
        assert (in_weight[~active] * sign[~active] <= 2e-5).all()
    elif not several:
        assert active.sum() < 30
    np.testing.assert_allclose(in_bias[np.atleast_1d(result.bias) != 0], 0.0, atol=2e-5)


@given(st.permutations(range(4)), SEEDS)
@settings(max_examples=10)
def test_the_names_of_the_classes_mean_nothing(order, seed):
    order = np.array(order)
    given_ = of_classes(32, 4, Hyperprior.jeffreys(), seed=seed)
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
    Phi = RBF(1.5)(X, X)
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
    given_ = of_classes(45, 3, Hyperprior.jeffreys(), signs=False, shared=True, bias="none")
    result = fit_em(given_, None, EMOptions(max_iter=5000))
    used = result.weight != 0
    assert result.bias.tolist() == [0, 0, 0]
    assert 0 < len(result.support) < 45
    # a row of weights is kept as long as one of them is
    assert used[result.support].any(axis=1).all()


def test_random_starts_and_bad_ones():
    given_ = of_classes(40, 3, Hyperprior.jeffreys())
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


@pytest.mark.parametrize(("bias", "signs"), [("prior", True), ("free", False), ("none", True)])
def test_newton_for_all_scores_at_once_takes_a_tenth_of_the_steps(signs, bias):
    given_ = of_classes(40, 3, Hyperprior.plug_in(), signs=signs, bias=bias)
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
    given_ = of_classes(90, 3, prior, width=width)
    result = fit_em(given_, None, EMOptions(tol=1e-6, max_iter=60))
    assert result.converged
    slope = slopes(given_, result)[0] / np.sqrt(prior.weight_precision(result.weight))
    active = result.weight != 0
    assert np.abs(slope[active]).max() < 1e-4
    assert (slope * given_.sign)[~active].max(initial=0.0) < 1e-4
