import numpy as np
import pymc as pm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, linear, refused
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.pieces import kernels


@given(SEEDS, st.integers(1, 3))
def test_widths_of_each_centre_are_machines_of_one_width_added_up(seed, n_scores):
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(9, 3)), rng.normal(size=(6, 3))
    width = rng.choice([0.5, 1.0, 2.5], 6)
    weight = rng.normal(size=(6, n_scores))
    kernel = kernels.PerCentre(kernels.RBF(), width)
    parts = [(kernels.RBF(w), width == w) for w in np.unique(width)]
    alone = sum(one(X, centres[own]) @ weight[own] for one, own in parts)
    np.testing.assert_allclose(kernel(X, centres) @ weight, alone, atol=1e-12)
    latent = latent_in_blocks(X, centres, weight, np.zeros(n_scores), kernel=kernel)
    np.testing.assert_allclose(latent, alone, atol=1e-12)


@given(SEEDS)
def test_a_width_for_each_feature_of_each_centre(seed):
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    width = rng.uniform(0.5, 2, size=(4, 2))
    Phi = kernels.PerCentre(kernels.RBF(), width)(X, centres)
    for j in range(4):
        np.testing.assert_allclose(Phi[:, [j]], kernels.RBF(width[j])(X, centres[[j]]), atol=1e-14)


def test_other_kernels_and_other_widths():
    X, centres = np.arange(6.0).reshape(3, 2), np.ones((2, 2))
    kernel = kernels.FunctionKernel(lambda X, Z, width: width * (X @ Z.T))
    np.testing.assert_array_equal(kernel(X, centres), X @ centres.T)  # of width one
    Phi = kernels.PerCentre(kernel, np.array([1.0, 3.0]))(X, centres)
    np.testing.assert_array_equal(Phi, (X @ centres.T) * [1.0, 3.0])
    wider = kernels.PerCentre(kernels.RBF(), np.ones(2)).with_width(np.array([2.0, 2.0]))
    np.testing.assert_array_equal(wider(X, centres), kernels.RBF(2.0)(X, centres))


RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(12, 3)), RNG.normal(size=(7, 3))


def test_the_rbf_is_scikit_learns_and_pymcs():
    of_gamma = kernels.design_matrix("rbf", X, Z, 0.37**-0.5)
    np.testing.assert_allclose(of_gamma, rbf_kernel(X, Z, gamma=0.37), rtol=1e-12)
    of_scale = kernels.design_matrix("rbf", X, Z, np.sqrt(2.0) * 1.3)
    np.testing.assert_allclose(of_scale, pm.gp.cov.ExpQuad(3, ls=1.3).full(X, Z).eval(), rtol=1e-12)


def test_the_laplacian_is_scikit_learns():
    rng = np.random.default_rng(0)
    X, Z, width = rng.normal(size=(9, 3)), rng.normal(size=(5, 3)), np.array([0.5, 2.0, 1.0])
    found = kernels.design_matrix("laplacian", X, Z, 1.7)
    np.testing.assert_allclose(found, laplacian_kernel(X, Z, gamma=1 / 1.7), rtol=1e-13)
    found = kernels.design_matrix("laplacian", X, Z, width)
    np.testing.assert_allclose(found, laplacian_kernel(X / width, Z / width, gamma=1), rtol=1e-13)
    apart = np.abs(X[:, None] - X).sum(axis=-1)
    wanted = np.median(apart[np.triu_indices(9, 1)])
    assert kernels.median_distance(X, order=1) == pytest.approx(wanted)
    assert kernels.width_bounds(X, order=1)[1] == pytest.approx(apart.max())


def test_distances_survive_a_far_offset():
    X = np.array([[1e8], [1e8 + 1]])
    np.testing.assert_array_equal(kernels.squared_distances(X, X), [[0, 1], [1, 0]])


@pytest.mark.parametrize("width", [1e-200, 1e200])
def test_extreme_widths_do_not_overflow(width):
    Phi = kernels.rbf(kernels.squared_distances(X, X), width)
    np.testing.assert_array_equal(Phi, np.eye(12) if width < 1 else np.ones((12, 12)))


BAD_KERNELS = [
    (lambda A, B, width: B @ B.T, r"shape \(7, 7\); needed \(12, 7\)"),
    (lambda A, B, width: np.full((12, 7), np.nan), "not finite"),
    ("polynomial", "kernel='polynomial' is unknown"),
]


def test_a_callable_kernel_is_checked():
    found = kernels.design_matrix(lambda A, B, width: A @ B.T / width, X, Z, 2.0)
    np.testing.assert_array_equal(found, X @ Z.T / 2)
    np.testing.assert_array_equal(kernels.as_kernel(linear)(X, Z), X @ Z.T)
    for kernel, words in BAD_KERNELS:
        refused(words, kernels.design_matrix, kernel, X, Z, 1.0)


def test_scales_of_the_data():
    X = np.array([[0.0], [1.0], [1.0], [4.0]])
    assert kernels.width_bounds(X) == (1.0, 4.0)
    assert kernels.median_distance(X) == 3.0
    np.testing.assert_allclose(kernels.width_grid(X, 3), 3.0 * np.array([0.2, 0.5**0.5, 2.5]))
    assert len(kernels.width_grid(X)) == 9
    same = np.ones((3, 2))
    assert kernels.width_bounds(same) == (1.0, 1.0)
    assert kernels.median_distance(same) == 1.0


def test_linear_spline_is_the_papers_and_indefinite_for_inputs_of_both_signs():
    """chmielewski2019 section 3.1; for x, z >= 0 it is 1 + xz + int_0^min (x - u)(z - u) du."""
    x = np.linspace(0, 3, 12)[:, None]
    K, low = kernels.LinearSpline()(x, x), x[6, 0]
    assert low < 3 == x[11, 0]
    grid = np.linspace(0, low, 20_001)
    wanted = 1 + low * 3 + np.trapezoid((low - grid) * (3 - grid), grid)
    assert K[6, 11] == pytest.approx(wanted, rel=1e-7)
    assert np.linalg.eigvalsh(K).min() > -1e-12
    both = np.linspace(-3, 3, 12)[:, None]
    assert np.linalg.eigvalsh(kernels.LinearSpline()(both, both)).min() < -1
    plane = np.random.default_rng(0).uniform(size=(5, 2))
    product = np.prod([kernels.LinearSpline()(each, each) for each in plane.T[:, :, None]], axis=0)
    np.testing.assert_allclose(kernels.design_matrix("linear-spline", plane, plane, 9.0), product)
