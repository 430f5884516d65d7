from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import blobs, problem, refused
from scipy.integrate import quad

from pcvm_pymc.core import validity
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import RBF, MatrixRBF, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal, Probit
from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status

LINKS = {each.name: each for each in (Logit(), Probit())}
LIKELIHOODS = {**LINKS, "normal": Normal(0.7)}


def covariance(n_features, seed=0):
    root = np.random.default_rng(seed).normal(size=(n_features, n_features))
    return root @ root.T + 0.3 * np.eye(n_features)


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.5, (0.6, 3.0, 1.0), "matrix"]))
def test_derivatives_are_those_of_finite_differences(likelihood, seed, width):
    kernel = MatrixRBF(covariance(3, seed=3), 1.3) if width == "matrix" else RBF(np.array(width))
    X, label = blobs(25, n_features=3, seed=seed)
    centres, weight, bias = X[:4], np.random.default_rng(seed).normal(size=4), 0.3

    def log_likelihood(centres):
        return likelihood.log_likelihood(kernel(X, centres) @ weight + bias, label)

    latent = kernel(X, centres) @ weight + bias
    slopes = {name: getattr(likelihood, name)(latent, label) for name in ("score", "curvature")}
    a, b = validity.centre_derivatives(X, centres, weight, kernel, **slopes)
    h = 1e-3
    for i in range(4):
        for j in range(3):
            step = np.zeros(centres.shape)
            step[i, j] = h
            # a five-point rule: its error is of order h^4
            at = {k: log_likelihood(centres + k * step) for k in (-2, -1, 0, 1, 2)}
            slope = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
            bend = (16 * (at[1] + at[-1]) - (at[2] + at[-2]) - 30 * at[0]) / (12 * h**2)
            assert a[i, j] == pytest.approx(slope, rel=1e-6, abs=1e-8)
            assert b[i, j] == pytest.approx(-bend, rel=1e-5, abs=1e-6)
    # a diagonal matrix is a width for each feature
    widths = np.array([0.6, 3.0, 1.0])
    kernels = MatrixRBF(np.diag(widths**2)), RBF(widths)
    diagonal, each = (validity.centre_derivatives(X, centres, weight, k, **slopes) for k in kernels)
    np.testing.assert_allclose(diagonal, each, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("a", [-3.0, 0.0, 0.2, 5.0, 40.0])
@pytest.mark.parametrize("b", [1e-3, 0.5, 20.0])
def test_stability_is_the_integral_of_the_tail(a, b):
    reach = 60 / (abs(a) + np.sqrt(b))
    integral, _ = quad(lambda t: np.exp(-abs(a) * t - 0.5 * b * t * t), 0, reach, epsabs=0)
    found = validity.log_stability(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(np.log(integral), abs=1e-9)


def test_stability_at_its_limits():
    a = np.array([2.0, 2.0, 0.0, 1e200, 0.0, 1e-200])
    found = validity.log_stability(a, np.array([-5.0, 0.0, 4.0, 1e-3, 0.0, 1e-3]))
    # a line where the likelihood does not bend downwards
    np.testing.assert_allclose(found[:2], -np.log(2.0))
    # half of Laplace's approximation at a maximum
    assert found[2] == pytest.approx(np.log(0.5 * np.sqrt(2 * np.pi / 4.0)), abs=1e-15)
    # where exp(a^2 / 2 b) overflows
    assert found[3] == pytest.approx(-np.log(1e200), rel=1e-12)
    assert found[4] == np.inf
    assert found[5] == pytest.approx(np.log(0.5 * np.sqrt(2 * np.pi / 1e-3)), abs=1e-12)


def test_stability_is_continuous_where_the_likelihood_begins_to_bend():
    around = validity.log_stability(np.full(3, 1.3), np.array([-1e-12, 0.0, 1e-12]))
    np.testing.assert_allclose(around, around[1], atol=1e-9)


@pytest.mark.parametrize("link", LINKS)
def test_the_validity_of_an_rvm_is_its_definition(link):
    X, label = blobs(60, seed=5)
    kernel = RBF(1.2)
    given_ = EvidenceProblem(kernel(X, X), label, link)
    result = fit_rvm(given_)
    found = validity.rvm_validity(X, given_, result, kernel=kernel)
    np.testing.assert_array_equal(found.active, result.active)
    Phi, alpha = given_.Phi[:, result.active], result.alpha[result.active]
    if np.isfinite(result.bias_alpha):
        Phi, alpha = np.column_stack([Phi, np.ones(60)]), np.append(alpha, result.bias_alpha)
    curvature = LINKS[link].curvature(result.latent, label)
    covariance = np.linalg.inv(Phi.T @ (curvature[:, None] * Phi) + np.diag(alpha))
    share = (1 - alpha * np.diag(covariance))[: len(result.active)]
    np.testing.assert_allclose(found.determined, share, atol=1e-8)
    spread = np.diag(np.append(0.95 / result.alpha[result.active], 1.0))
    faint = validity.rvm_validity(X, given_, replace(result, covariance=spread), kernel=kernel)
    np.testing.assert_allclose(faint.determined, 0.05)
    slopes = {"score": LINKS[link].score(result.latent, label), "curvature": curvature}
    at = X, X[result.active], result.weight[result.active], kernel
    a, b = validity.centre_derivatives(*at, **slopes)
    stability = validity.log_stability(a, b) - np.log(X.std(axis=0))
    wanted = LINKS[link].log_likelihood(result.latent, label) + share @ stability.sum(axis=1)
    assert found.log_validity == pytest.approx(wanted, abs=1e-6)


def test_kernels_of_weight_zero_count_for_nothing():
    X, label = blobs(30, seed=7)
    weight = np.zeros(30)
    weight[[3, 8]] = 1.0, -2.0
    latent = RBF(1.0)(X, X) @ weight
    share = np.array([0.4, 0.9])
    options = {"kernel": RBF(1.0), "likelihood": LINKS["logit"]}
    few = validity.kernel_validity(X, label, weight, latent, share, **options)
    none = validity.kernel_validity(X, label, 0 * weight, 0 * latent, np.empty(0), **options)
    assert few.log_stability.shape == (2, 2)
    assert none.log_validity == none.log_likelihood == pytest.approx(-30 * np.log(2))
    # nor do kernels that the data say nothing about
    one = validity.kernel_validity(X, label, weight, latent, np.array([0.0, 0.9]), **options)
    wanted = few.log_likelihood + 0.9 * few.log_stability[1].sum()
    assert one.log_validity == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("hyperprior", [Hyperprior.plug_in(), Hyperprior.jeffreys()])
def test_the_unit_of_the_inputs_changes_nothing(hyperprior):
    X, label = blobs(50, seed=8)
    found = []
    for unit in (1.0, 1e-3, 2.54e4):
        Z = np.column_stack([X * unit, np.full(50, 7.0)])  # and a constant feature
        given_ = problem(Z, label, hyperprior, 1.3 * unit)
        found.append(validity.pcvm_validity(Z, given_, fit_em(given_)).log_validity)
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize("prior", [Hyperprior.plug_in(), Hyperprior.jeffreys()])
@pytest.mark.parametrize("bias", ["prior", "free", "none"])
def test_the_bias_has_the_precision_that_the_problem_gives_it(bias, prior):
    X, label = blobs(40, seed=3)
    Phi = RBF(1.0)(X, X)
    given_ = Problem(Phi, label, label.copy(), prior, bias=bias)
    weight = np.where(np.arange(40) % 8 == 0, 0.7 * label, 0.0)
    shift = 0.0 if bias == "none" else 0.4
    latent = Phi @ weight + shift
    nothing = np.empty(0)
    trace = EMTrace(nothing, nothing, nothing, nothing)
    tiny = np.where(weight == 0.0, 1e-200, weight)  # what has no square counts as zero
    mode = EMResult(tiny, shift, 1.0, latent, 0.0, Status.CONVERGED, 0, trace)
    found = validity.pcvm_validity(X, given_, mode)
    active = np.flatnonzero(weight)
    columns, precision = Phi[:, active], prior.weight_precision(weight[active])
    if bias != "none":
        columns = np.column_stack([columns, np.ones(40)])
        precision = np.append(precision, prior.bias_precision(0.4) if bias == "prior" else 0.0)
    curvature = Probit().curvature(latent, label)
    covariance = np.linalg.inv(columns.T @ (curvature[:, None] * columns) + np.diag(precision))
    wanted = (1 - np.diag(covariance) * precision)[: len(active)]
    np.testing.assert_allclose(found.determined, wanted, atol=1e-8)
    several = replace(given_, sign=None, likelihood=MultinomialProbit(3))
    refused("found 3 scores, needed one", validity.pcvm_validity, X, several, mode)
    other, words = replace(given_, hyperprior=HalfHorseshoe(0.1)), "no expected precisions"
    refused(f"a half-horseshoe prior has {words}", validity.pcvm_validity, X, other, mode)


def test_the_rbf_of_a_quadratic_form():
    X, _ = blobs(20, n_features=3, seed=1)
    S = covariance(3)
    Phi = MatrixRBF(S, 1.4)(X, X[:5])
    apart = X[:, None] - X[None, :5]
    form = np.einsum("ijk,kl,ijl->ij", apart, np.linalg.inv(S), apart)
    np.testing.assert_allclose(Phi, np.exp(-form / 1.4**2), rtol=1e-10)
    widths = np.array([0.5, 2.0, 1.0])
    found = MatrixRBF(np.diag(widths**2))(X, X[:5])
    np.testing.assert_allclose(found, RBF(widths)(X, X[:5]), rtol=1e-10)
    assert as_kernel(MatrixRBF(S), 3.0).width == 3.0
    assert MatrixRBF(S) != MatrixRBF(2.0 * S)
    refused("needed a positive definite one", MatrixRBF, np.ones((2, 2)))
    refused(r"shape \(2, 3\); needed a symmetric one", MatrixRBF, np.ones((2, 3)))
    refused("needed a symmetric one", MatrixRBF, [[1.0, 0.05], [0.0, 1.0]])
    refused("matrix is of 3 features; needed 2", MatrixRBF(S), X[:, :2], X[:2, :2])
