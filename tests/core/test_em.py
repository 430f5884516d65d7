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
    papers_step,
    problem,
    slopes,
)

from pcvm_pymc.core.em import EMOptions, Start, fit_em, initial_state, iterate, log_posterior
from pcvm_pymc.core.pieces.kernels import rbf
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
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
    latent = rbf(prob.moves.distance, result.width) @ result.weight + result.bias
    np.testing.assert_allclose(result.latent, latent, atol=1e-9 * (1 + np.abs(latent).max()))


@pytest.mark.parametrize("prior", sorted(IMPROPER))
def test_kkt_of_the_vectors_that_are_kept(prior):
    X, label = blobs(60, seed=2)
    prob = problem(X, label, IMPROPER[prior])
    result = fit_em(prob, None, EMOptions(tol=1e-11, max_iter=100_000))
    assert result.status is Status.CONVERGED
    assert 0 < np.count_nonzero(result.weight) < 30
    in_weight, in_bias = slopes(prob, result)
    np.testing.assert_allclose(in_weight[result.weight != 0], 0, atol=1e-6)
    if result.bias != 0:
        assert in_bias == pytest.approx(0, abs=1e-6)


@given(SEEDS)
@settings(max_examples=30)
def test_newton_and_em_reach_the_same_log_posterior(seed):
    X, label = blobs(30, seed=seed)
    prob = problem(X, label, Hyperprior.plug_in())
    options = EMOptions(tol=1e-9, max_iter=100_000)
    newton = fit_em(prob, None, replace(options, update="newton"))
    plain = fit_em(prob, None, replace(options, update="em"))
    assert newton.log_posterior == pytest.approx(plain.log_posterior, abs=1e-6)
    assert newton.n_iter < plain.n_iter


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
        Phi = rbf(prob.moves.distance, width)
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
