"""Quadratic models of the log posterior, and the modes that they lead to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import BIASES, SEEDS, fixed_rng
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from pcvm_pymc.core import penalised
from pcvm_pymc.core import quadratic as gram_module
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.nonnegative import ridge_solve, solve_nonnegative
from pcvm_pymc.core.penalised import penalised_mode
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal, Probit, StudentT
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.problem import ObservedRows, Problem
from pcvm_pymc.core.quadratic import BorderedGram, PartialGram, QuadraticModel
from pcvm_pymc.experiments.datasets.generators import ripley_mixture


@pytest.mark.parametrize(
    "likelihood", [Logit(), MultinomialProbit(2), MultinomialProbit(3)], ids=str
)
def test_covariance_of_latent_values_by_the_whole_matrix(likelihood):
    """H + diag(precision) over all scores' values, those of infinite precision left out."""
    rng, C = np.random.default_rng(5), likelihood.n_scores
    design, new = rng.normal(size=(20, 4)), rng.normal(size=(3, 4))
    target = rng.integers(C, size=20) if C > 1 else rng.choice([-1.0, 1.0], 20)
    theta, precision = rng.normal(size=(4, C)), rng.uniform(0.5, 3.0, (4, C))
    theta[1, 0], precision[1, 0] = 0.0, np.inf
    bias = rng.normal(size=C)
    latent = design @ theta + bias
    bend = likelihood.hessian(latent if C > 1 else latent[:, 0], target)
    # values score by score
    whole = np.einsum("na,ncd,nb->cadb", design, bend, design).reshape(4 * C, 4 * C)
    kept = np.flatnonzero(np.isfinite(precision.T.ravel()))
    matrix = whole[np.ix_(kept, kept)] + np.diag(precision.T.ravel()[kept])
    covariance = np.zeros_like(whole)
    covariance[np.ix_(kept, kept)] = np.linalg.inv(matrix)
    wanted = np.einsum("na,cadb,nb->ncd", new, covariance.reshape(C, 4, C, 4), new)
    rows = ObservedRows(likelihood, target)
    parts = [(design[:8], rows[:8]), (design[8:], rows[8:])]
    model = QuadraticModel(theta, bias, precision, np.full(C, np.inf)).over(parts)
    mean, found = model.latent(new)
    np.testing.assert_allclose(mean, new @ theta + bias)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)
    inverse = model.scale[:, None] * model.inverse * model.scale
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-9, atol=1e-14)


def test_a_matrix_that_is_singular_to_rounding_is_factored_all_the_same():
    ends = np.full((2, 1), 1e-20), np.full(1, np.inf)
    parts = [(np.ones((4, 2)), ObservedRows(Normal(1.0), np.zeros(4)))]  # two columns that are one
    model = QuadraticModel(np.zeros((2, 1)), np.zeros(1), *ends).over(parts)
    factor = np.tril(model.factor)
    np.testing.assert_allclose(factor @ factor.T, 4e20, rtol=1e-7)
    assert np.diag(factor).min() > 0


# --- weights of one sign --------------------------------------------------------------------------


def random_programme(seed, n_obs=15, n_basis=10):
    rng = fixed_rng(seed)
    Phi = rng.normal(size=(n_obs, n_basis)) + 1.0
    scale = rng.choice([-1.0, 1.0], n_basis) * np.exp(rng.normal(size=n_basis))
    bias_scale, response = float(np.exp(rng.normal())), rng.normal(size=n_obs) * 3
    return Phi, scale, bias_scale, (response @ Phi, float(response.sum())), rng


@given(SEEDS, st.booleans())
def test_solution_agrees_with_scipy_nnls(seed, all_passive):
    Phi, scale, bias_scale, target, rng = random_programme(seed)
    row_weight = rng.uniform(0.1, 1, len(Phi))
    gram = BorderedGram.of(Phi, row_weight)
    weight, bias = solve_nonnegative(gram, scale, bias_scale, target, np.full(10, all_passive))
    # the free bias is a difference of two non-negative columns for SciPy
    D = np.column_stack([Phi * scale, bias_scale * np.ones(15), -bias_scale * np.ones(15)])
    H = (D * row_weight[:, None]).T @ D
    H[:11, :11] += np.eye(11)
    H[11, 11] += 1.0
    H[10, 11] -= 1.0
    H[11, 10] -= 1.0
    H += 1e-9 * np.diag(np.r_[np.zeros(10), 1, 1])
    L = cholesky(H, lower=True)
    goal = np.append(scale * target[0], bias_scale * target[1] * np.array([1.0, -1.0]))
    u, _ = nnls(L.T, solve_triangular(L, goal, lower=True), maxiter=1000)
    np.testing.assert_allclose(weight, scale * u[:10], atol=1e-6)
    assert bias == pytest.approx(bias_scale * (u[10] - u[11]), abs=1e-6)


def test_the_warm_start_does_not_change_the_solution():
    Phi, scale, bias_scale, target, rng = random_programme(3, 40, 30)
    gram = BorderedGram.of(Phi)
    starts = [rng.uniform(size=30) < share for share in (0.0, 0.3, 0.7, 1.0)]
    solutions = [solve_nonnegative(gram, scale, bias_scale, target, each)[0] for each in starts]
    for other in solutions[1:]:
        np.testing.assert_allclose(other, solutions[0], atol=1e-12)
    down = BorderedGram.of(Phi - 2.0), scale
    flat, wide = (solve_nonnegative(*down, at, target, scale > 0)[0] for at in (np.inf, 1e6))
    np.testing.assert_allclose(flat, wide, atol=1e-6)


def test_a_scale_of_zero_removes_a_weight():
    Phi, scale, bias_scale, target, _ = random_programme(5)
    scale[2] = 0.0
    gram, every = BorderedGram.of(Phi), np.ones(10, dtype=bool)
    weight, _ = solve_nonnegative(gram, scale, bias_scale, target, every)
    assert weight[2] == 0
    assert np.isfinite(weight).all()


def test_a_partial_gram_solves_as_the_whole_one():
    Phi, scale, bias_scale, target, rng = random_programme(7, 400, 300)
    row_weight = rng.uniform(0.1, 1.0, 400)
    partial = PartialGram(Phi)
    partial.follow(row_weight, np.zeros(300, dtype=bool))
    nobody = np.zeros(300, dtype=bool)
    weight, bias = solve_nonnegative(partial, scale, bias_scale, target, nobody)
    whole = BorderedGram.of(Phi, row_weight)
    wanted_weight, wanted_bias = solve_nonnegative(whole, scale, bias_scale, target, nobody)
    np.testing.assert_allclose(weight, wanted_weight, atol=1e-11)
    assert bias == pytest.approx(wanted_bias, abs=1e-11)
    some, value = np.arange(0, 300, 2), rng.normal(size=151)
    kept, wanted = partial.take(some, Phi[:, some]), BorderedGram.of(Phi[:, some], row_weight)
    np.testing.assert_allclose(kept.product(value), wanted.product(value), atol=1e-10)


@pytest.mark.parametrize("size", [1e8, 1e10])
def test_large_columns_that_are_one_to_rounding_are_solved(size):
    one = np.random.default_rng(0).normal(size=5)
    Phi = np.outer(one, np.full(3, size))
    target = (one @ Phi, float(one.sum()))
    nobody = np.zeros(3, dtype=bool)
    weight, bias = solve_nonnegative(BorderedGram.of(Phi), np.ones(3), 1.0, target, nobody)
    np.testing.assert_allclose(Phi @ weight + bias, one, atol=1e-12)


def single_problem(n_basis=300):
    """Return a problem with as many columns as single precision is taken for, and its exact solution."""
    Phi, scale, bias_scale, target, rng = random_programme(11, 400, n_basis)
    row_weight = rng.uniform(0.1, 1.0, 400)
    whole = BorderedGram.of(Phi, row_weight)
    every = np.ones(n_basis, dtype=bool)
    solution = solve_nonnegative(whole, scale, bias_scale, target, every)
    partial = PartialGram(Phi, single=True)
    partial.follow(row_weight, every)
    return partial, (scale, bias_scale), whole, target, solution


def test_a_change_from_a_point_is_the_solution_less_the_point():
    _, (scale, bias_scale), whole, target, (weight, bias) = single_problem()
    rng = np.random.default_rng(0)
    start = (np.abs(rng.normal(size=300)) * scale * (rng.uniform(size=300) < 0.5), 0.7)
    pull = whole.product(np.append(*start))
    slope = (target[0] - pull[:-1], target[1] - pull[-1])
    found = solve_nonnegative(whole, scale, bias_scale, slope, start[0] != 0, start=start)
    np.testing.assert_allclose(found[0], weight, atol=1e-11)
    assert found[1] == pytest.approx(bias, abs=1e-11)


def test_single_precision_does_not_move_a_fixed_point():
    partial, (scale, bias_scale), whole, target, solution = single_problem()
    pull = whole.product(np.append(*solution))
    slope = (target[0] - pull[:-1], target[1] - pull[-1])
    passive = solution[0] != 0
    again = solve_nonnegative(partial, scale, bias_scale, slope, passive, start=solution)
    np.testing.assert_allclose(again[0], solution[0], rtol=0, atol=1e-12)
    columns, block = partial.block(passive, np.append(scale, bias_scale))
    assert block.dtype == np.float32
    # from nothing it is right to single precision only: this test can tell the two
    rough = solve_nonnegative(partial, scale, bias_scale, target, passive)
    assert 1e-9 < np.abs(rough[0] - solution[0]).max() < 1e-3
    assert len(columns) == passive.sum()


@pytest.mark.parametrize("factor", [1e3, 1e25])
def test_what_single_precision_cannot_hold_is_solved_in_double(factor):
    partial, (scale, bias_scale), whole, target, _ = single_problem()
    every = np.ones(300, dtype=bool)
    larger = (scale * factor, bias_scale)
    found = solve_nonnegative(partial, *larger, target, every, constrained=False)
    wanted = solve_nonnegative(whole, *larger, target, every, constrained=False)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6, atol=1e-9)
    assert not partial.widen()  # it has gone on in double precision by itself


def test_a_fit_in_single_precision_ends_where_that_in_double_does(monkeypatch):
    X, label = ripley_mixture(300, random_state=0)
    given_ = Problem(RBF(0.6)(X, X), label, label.copy(), Hyperprior.plug_in())
    options = EMOptions(tol=1e-9)
    single = fit_em(given_, None, options)
    monkeypatch.setattr(gram_module, "_SINGLE_FROM", 10_000)
    double = fit_em(given_, None, options)
    assert single.log_posterior == pytest.approx(double.log_posterior, abs=1e-9)
    np.testing.assert_allclose(single.latent, double.latent, atol=1e-7)
    np.testing.assert_array_equal(single.support, double.support)
    assert not np.array_equal(single.weight, double.weight)


# --- modes under an L1 penalty or given precisions ------------------------------------------------


LIKELIHOODS = [Probit(), Logit(), Normal(0.5), StudentT(0.3, 4.0), MultinomialProbit(3)]


def random_problem(likelihood, bias, signed, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 2))
    truth, several = X[:, 0] + 0.5 * rng.normal(size=30), likelihood.n_scores > 1
    label = np.where(truth > 0, 1.0, -1.0)
    if likelihood.targets != "labels":
        label = np.digitize(truth, [-0.5, 0.5]) if several else truth
    sign = None
    if signed and likelihood.targets != "numbers":
        sign = class_signs(label, 3) if several else label.copy()
    Phi = RBF(median_distance(X))(X, X)
    gamma = float(np.exp(rng.uniform(-2.0, 2.0)))
    return Problem(Phi, label, sign, Laplace(gamma), likelihood, bias=bias)


@settings(max_examples=40)
@given(st.sampled_from(LIKELIHOODS), BIASES, st.booleans(), SEEDS)
def test_the_end_satisfies_the_optimality_conditions(likelihood, bias, signed, seed):
    whole = random_problem(likelihood, bias, signed, seed)
    start = np.zeros(whole.weight_shape)
    weight, offset, converged = penalised_mode(whole, start, np.zeros(whole.n_scores))
    assert converged
    C = whole.n_scores
    score = whole.likelihood.terms((whole.Phi @ weight + offset).reshape(-1, C), whole.label).slope
    slope = np.vstack([whole.Phi.T @ score, score.sum(axis=0)])
    value = np.vstack([weight.reshape(-1, C), np.reshape(offset, (1, C))])
    penalty = np.full(value.shape, whole.hyperprior.penalty)
    if bias != "prior":
        penalty[-1] = 0.0
    if bias == "none":
        assert (value[-1] == 0).all()
        slope[-1] = 0.0
    used = value != 0
    np.testing.assert_allclose(slope[used], (penalty * np.sign(value))[used], atol=1e-3)
    towards = np.abs(slope)
    if whole.is_signed:
        sign = whole.sign.reshape(-1, C)
        assert (value[:-1] * sign >= 0).all()
        towards[:-1] = slope[:-1] * sign
    assert (towards <= penalty + 1e-3)[~used].all()


@pytest.mark.parametrize("likelihood", LIKELIHOODS[:3], ids=lambda each: each.name)
def test_it_is_where_em_goes_to(likelihood, monkeypatch):
    whole = random_problem(likelihood, "prior", True, 3)
    found = fit_em(whole, None, EMOptions(tol=1e-8))
    weight, bias, converged = penalised_mode(whole, np.zeros(30), 0.0)
    assert converged
    np.testing.assert_allclose(whole.Phi @ weight + bias, found.latent, atol=1e-3)
    monkeypatch.setattr(penalised, "_MOST_STEPS", 3)
    assert not penalised_mode(whole, np.zeros(30), 0.0)[2]


@pytest.mark.parametrize("bias", ["free", "none"])
def test_given_precisions_are_a_ridge(bias):
    whole = replace(random_problem(Normal(0.5), bias, False, 1), hyperprior=Hyperprior.jeffreys())
    precision = np.exp(np.random.default_rng(0).normal(size=30))
    precision[::3] = np.inf
    known = np.isfinite(precision)  # from where the likelihood is highest
    start = known * np.linalg.lstsq(whole.Phi * known, whole.label)[0]
    weight, offset, converged = penalised_mode(whole, start, 0.0, precision=precision)
    bias_precision, four = 0.0 if bias == "free" else np.inf, np.full(30, 4.0)
    wanted = ridge_solve(whole.Phi, whole.label, precision, bias_precision, row_weight=four)
    assert converged
    np.testing.assert_allclose(weight, wanted[0], atol=1e-6)
    assert offset == pytest.approx(wanted[1], abs=1e-6)
    found = penalised._Penalised(whole, precision).objective(np.append(weight, offset)[:, None])
    expected = whole.likelihood.log_likelihood(whole.Phi @ weight + offset, whole.label)
    assert found == pytest.approx(expected - 0.5 * precision[known] @ weight[known] ** 2)
