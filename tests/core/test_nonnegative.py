import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, fixed_rng
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from pcvm_pymc.core import quadratic as gram_module
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import BorderedGram, PartialGram
from pcvm_pymc.experiments.datasets.generators import ripley_mixture


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
    solutions = [
        solve_nonnegative(gram, scale, bias_scale, target, rng.uniform(size=30) < share)[0]
        for share in (0.0, 0.3, 0.7, 1.0)
    ]
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
    given_ = Problem(rbf(squared_distances(X, X), 0.6), label, label.copy(), Hyperprior.plug_in())
    options = EMOptions(tol=1e-9)
    single = fit_em(given_, None, options)
    monkeypatch.setattr(gram_module, "_SINGLE_FROM", 10_000)
    double = fit_em(given_, None, options)
    assert single.log_posterior == pytest.approx(double.log_posterior, abs=1e-9)
    np.testing.assert_allclose(single.latent, double.latent, atol=1e-7)
    np.testing.assert_array_equal(single.support, double.support)
    assert not np.array_equal(single.weight, double.weight)
