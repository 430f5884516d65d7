from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import awkward_data, blobs, refused
from scipy.integrate import quad
from scipy.stats import norm

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.nonnegative import ridge_solve
from pcvm_pymc.core.pieces.kernels import RBF, feature_matrix, median_distance
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem, Status


def sparse(Phi, label, prior, bias="prior"):
    return Problem(Phi, label, None, prior, bias=bias)


PRIORS = {"laplace": Laplace(4.0), "jeffreys": Hyperprior.jeffreys()}
PRIORS["student"] = Hyperprior(1.0, 0.05, 0.5, 0.5)
PIECES = [["linear", "quadratic", "kernel"], list(PRIORS.values())]
PIECES += [["auto", "newton", "em"], ["prior", "free"]]


@pytest.mark.parametrize("weight", [-2.5, -1.0, 0.2, 0.3, 1.0])
def test_laplace_density_and_expected_precision_are_those_of_the_mixture(weight):
    prior = Laplace(3.0)

    def moment(power):
        def of_log(log_tau):
            tau = np.exp(log_tau)
            normal = norm.pdf(weight, scale=np.sqrt(tau))
            return tau ** (1 - power) * normal * prior.gamma / 2 * np.exp(-prior.gamma * tau / 2)

        return quad(of_log, -20, 45, epsabs=0, epsrel=1e-10, limit=400, points=[-5, 0, 5])[0]

    assert np.exp(prior.log_bias_density(weight)) == pytest.approx(moment(0), rel=1e-6)
    wanted = moment(1) / moment(0)
    assert prior.weight_precision(np.array([weight]))[0] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("bias_precision", [0.0, 2.0, np.inf])
@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
@pytest.mark.parametrize("weighted", [False, True])
def test_primal_and_dual_solve_the_normal_equations(bias_precision, shape, weighted):
    rng = np.random.default_rng(0)
    Phi, response = rng.normal(size=shape), rng.normal(size=shape[0])
    precision = rng.gamma(1.0, size=shape[1]) + 0.1
    precision[2] = np.inf
    row_weight = rng.uniform(0.1, 1, shape[0]) if weighted else None
    (dual, dual_bias), (primal, primal_bias) = [
        ridge_solve(Phi, response, precision, bias_precision, row_weight=row_weight, dual=dual)
        for dual in (True, False)
    ]
    np.testing.assert_allclose(dual, primal, atol=1e-11)
    assert dual_bias == pytest.approx(primal_bias, abs=1e-11)
    assert primal[2] == 0
    W = np.ones(shape[0]) if row_weight is None else row_weight
    left = W * (response - Phi @ primal - primal_bias)
    kept = np.isfinite(precision)
    np.testing.assert_allclose(Phi[:, kept].T @ left, precision[kept] * primal[kept], atol=1e-10)
    if np.isinf(bias_precision):
        assert primal_bias == 0
    else:
        assert left.sum() == pytest.approx(bias_precision * primal_bias, abs=1e-10)


@settings(max_examples=50)
@given(awkward_data(), *(st.sampled_from(each) for each in PIECES))
def test_the_log_posterior_never_decreases(data, features, prior, update, bias):
    X, label = data
    X = X / np.abs(X).max()
    Phi = RBF(median_distance(X))(X, X) if features == "kernel" else feature_matrix(X, features)
    result = fit_em(sparse(Phi, label, prior, bias), options=EMOptions(update=update, max_iter=60))
    path = result.trace.log_posterior
    assert np.isfinite(path).all()
    assert np.diff(path).min() >= -1e-7 * (1 + np.abs(path).max())
    assert np.isfinite(result.latent).all()


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("n_features", [4, 90])
def test_zero_and_duplicate_columns_and_more_columns_than_rows(prior, n_features):
    X, label = blobs(40, n_features, seed=2, fixed=True)
    X[:, 1] = 0.0
    X[:, 2] = X[:, 0]
    result = fit_em(sparse(X, label, prior))
    assert result.converged
    assert result.weight[1] == 0
    if prior is PRIORS["student"]:  # elsewhere one may take the other's place
        assert result.weight[2] == pytest.approx(result.weight[0], rel=1e-4)
    assert np.mean(result.latent * label > 0) > 0.7


def test_jeffreys_end_point_changes_with_columns_by_units_alone():
    X, label = blobs(200, 8, seed=3)
    unit = np.array([1e8, 10.0, 0.1, 5.0, 1.0, 0.5, 2.0, 1e-8])
    problem = sparse(X, label, Hyperprior.jeffreys(), "free")
    options = EMOptions(tol=1e-9)
    one = fit_em(problem, options=options)
    other = fit_em(replace(problem, Phi=X * unit), options=options)
    assert 1 <= np.count_nonzero(one.weight) < 8
    np.testing.assert_allclose(other.weight * unit, one.weight, atol=1e-5)
    np.testing.assert_allclose(other.latent, one.latent, atol=1e-5)


def test_laplace_penalty_depends_on_the_units_of_columns():
    X, label = blobs(100, 5, seed=4)
    problem = sparse(X, label, Laplace(25.0))
    kept = np.count_nonzero(fit_em(problem).weight)
    assert np.count_nonzero(fit_em(replace(problem, Phi=10 * X)).weight) > kept


def test_start_is_the_ridge_fit_to_signed_labels():
    X, label = blobs(50, 3, seed=6)
    start = Start.ridge(sparse(X, label, Hyperprior.jeffreys()))
    H = np.column_stack([X, np.ones(50)])
    wanted = np.linalg.solve(1e-6 * np.eye(4) + H.T @ H, H.T @ label)
    np.testing.assert_allclose(np.append(start.weight, start.bias), wanted, atol=1e-10)


def test_a_hard_ridge_start_ends_at_no_weights():
    X, label = blobs(60, 2, seed=7, gap=0.5)
    problem = sparse(X, label, Hyperprior.jeffreys())
    result = fit_em(problem, Start.ridge(problem, ridge=1e4))
    assert result.status is Status.EMPTY_MODEL
    assert result.bias == 0


def test_features():
    X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0]])
    np.testing.assert_array_equal(feature_matrix(X, "quadratic")[0], [1, 2, 3, 1, 2, 3, 4, 6, 9])
    np.testing.assert_array_equal(feature_matrix(X, "linear"), X)
    refused("features='kernel' is unknown", feature_matrix, X, "kernel")
