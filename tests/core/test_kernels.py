"""Kernels: widths, matrices, ranks of columns, and widths of features that are learned."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import SEEDS, fixed_rng, linear, refused
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm, rankdata
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from pcvm_pymc.core import metric
from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.metric import class_targets, negative_evidence, relative_widths
from pcvm_pymc.core.pieces import kernels
from pcvm_pymc.core.pieces.kernels import RBF, Laplacian
from pcvm_pymc.core.pieces.transforms import (
    FEW_VALUES,
    Codes,
    FeatureTransform,
    NormalScores,
    TransformedKernel,
    ranks_of,
)


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
    of_gamma = kernels.as_kernel("rbf", 0.37**-0.5)(X, Z)
    np.testing.assert_allclose(of_gamma, rbf_kernel(X, Z, gamma=0.37), rtol=1e-12)
    of_scale = kernels.as_kernel("rbf", np.sqrt(2.0) * 1.3)(X, Z)
    np.testing.assert_allclose(of_scale, pm.gp.cov.ExpQuad(3, ls=1.3).full(X, Z).eval(), rtol=1e-12)


def test_the_laplacian_is_scikit_learns():
    rng = np.random.default_rng(0)
    X, Z, width = rng.normal(size=(9, 3)), rng.normal(size=(5, 3)), np.array([0.5, 2.0, 1.0])
    found = kernels.as_kernel("laplacian", 1.7)(X, Z)
    np.testing.assert_allclose(found, laplacian_kernel(X, Z, gamma=1 / 1.7), rtol=1e-13)
    found = kernels.as_kernel("laplacian", width)(X, Z)
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
    Phi = RBF(width).of_distances(kernels.squared_distances(X, X).copy())
    np.testing.assert_array_equal(Phi, np.eye(12) if width < 1 else np.ones((12, 12)))


BAD_KERNELS = [
    (lambda A, B, width: B @ B.T, r"shape \(7, 7\); needed \(12, 7\)"),
    (lambda A, B, width: np.full((12, 7), np.nan), "not finite"),
    ("polynomial", "kernel='polynomial' is unknown"),
]


def test_a_callable_kernel_is_checked():
    found = kernels.as_kernel(lambda A, B, width: A @ B.T / width, 2.0)(X, Z)
    np.testing.assert_array_equal(found, X @ Z.T / 2)
    np.testing.assert_array_equal(kernels.as_kernel(linear)(X, Z), X @ Z.T)
    for kernel, words in BAD_KERNELS:
        refused(words, lambda kernel: kernels.as_kernel(kernel, 1.0)(X, Z), kernel)


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
    np.testing.assert_allclose(kernels.as_kernel("linear-spline", 9.0)(plane, plane), product)


# --- ranks of columns: identities of the map, and which columns have one --------------------------


def skewed(n, seed, d=None):
    return np.exp(2.0 * np.random.default_rng(seed).normal(size=n if d is None else (n, d)))


@given(SEEDS, st.integers(40, 150))
def test_scores_are_normal_quantiles_with_the_columns_mean_and_spread(seed, n):
    column = skewed(n, seed)
    scores = NormalScores.of(column)(column)
    quantiles = norm.ppf((rankdata(column) - 0.5) / n)
    unit = quantiles / quantiles.std()
    wanted = column.mean() + column.std() * unit
    np.testing.assert_allclose(scores, wanted, atol=1e-9 * column.std())


@given(SEEDS)
def test_increasing_transformations_change_the_unit_alone(seed):
    column = skewed(60, seed)
    one, other = (NormalScores.of(each)(each) for each in (column, column**3))
    standard = [(each - each.mean()) / each.std() for each in (one, other)]
    np.testing.assert_allclose(standard[1], standard[0], atol=1e-9)


@given(SEEDS)
def test_a_row_that_counts_three_times_is_three_equal_rows(seed):
    column, count = skewed(40, seed), np.random.default_rng(seed).integers(1, 4, 40)
    repeated = NormalScores.of(np.repeat(column, count))
    found = NormalScores.of(column, count)(column)
    np.testing.assert_allclose(found, repeated(column), atol=1e-9 * column.std())


@given(SEEDS)
def test_new_values_keep_their_order_and_far_ones_stay_far(seed):
    column = skewed(100, seed)
    found, spread = NormalScores.of(column), column.std()
    new = np.sort(np.append(skewed(300, seed + 1), [-1e3 * spread, 1e3 * spread, 2e3 * spread]))
    scores = found(new)
    assert (np.diff(scores) >= 0.0).all()
    far = found(column.max() + spread * np.array([0.0, 10.0, 20.0]))
    slope = np.diff(far)[0] / (10.0 * spread)
    assert np.diff(far)[1] == pytest.approx(np.diff(far)[0])
    assert slope > 0.0
    knots, n = found.knots, max(1, len(found.knots) // 20)
    assert slope == pytest.approx(np.ptp(found(knots[[-1 - n, -1]])) / np.ptp(knots[[-1 - n, -1]]))


def test_a_map_of_many_values_is_that_of_two_hundred_of_them():
    column = fixed_rng(0).exponential(size=5000)
    found = NormalScores.of(column)
    assert len(found.knots) == 200
    quantiles = norm.ppf((rankdata(column) - 0.5) / 5000)
    exact = column.mean() + column.std() * quantiles / quantiles.std()
    inside = np.abs(quantiles) < 2.5
    assert np.abs(found(column) - exact)[inside].max() < 0.1


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("middle", [0.0, 3.0])
def test_units_that_square_to_nothing_or_infinity(unit, middle):
    column = middle + fixed_rng(1).exponential(size=50)
    scores = NormalScores.of(unit * column)(unit * column) / unit
    np.testing.assert_allclose(scores, NormalScores.of(column)(column), rtol=1e-9)


def test_columns_that_stay():
    rng = fixed_rng(2)
    few = rng.integers(0, FEW_VALUES, 200).astype(float) ** 3
    X = np.column_stack([few, rng.normal(size=200), np.ones(200), rng.exponential(size=200)])
    found = FeatureTransform(ranks_of(X))
    assert list(found.ranks) == [3]
    np.testing.assert_array_equal(found(X)[:, :3], X[:, :3])
    assert not ranks_of(X[:, :3])


@pytest.mark.parametrize("kernel", [RBF(), Laplacian()])
@pytest.mark.parametrize("width", [2.0, np.array([1.0, 3.0])])
def test_a_kernel_of_ranks_is_that_of_ranked_rows(kernel, width):
    X, Z = skewed(30, 3, 2), skewed(20, 4, 2)
    ranks = FeatureTransform(ranks_of(X))
    found = TransformedKernel(kernel, ranks).with_width(width)
    np.testing.assert_array_equal(found.width, width)
    expected = kernel.with_width(width)(ranks(X), ranks(Z))
    np.testing.assert_array_equal(found(X, Z), expected)
    assert found.name == f"{kernel.name} of ranks"


def test_codes_take_the_place_of_indicators_in_units_of_their_deviation():
    rng = fixed_rng(5)
    level, other, count = rng.integers(0, 4, 60), rng.normal(size=60), rng.integers(1, 4, 60)
    X = np.column_stack([other, 3.0 * np.eye(4)[level], other**2])
    code = np.array([0.0, 1.0, 2.0, np.nan])  # the last is a missing level, in the middle
    codes = Codes.of(np.arange(1, 5), code, X, count.astype(float))
    found = FeatureTransform(codes=[codes], without=[5])(X)
    number = np.array([-1.0, 0.0, 1.0, 0.0])[level]
    spread = np.repeat(number, count).std()
    np.testing.assert_allclose(found, np.column_stack([other, number / spread]), atol=1e-12)
    unknown = np.array([[0.0, -0.7, -0.7, -0.7, -0.7, 0.0]])
    assert FeatureTransform(codes=[codes], without=[5])(unknown)[0, 1] == pytest.approx(0.0)


def test_a_kernel_of_a_view_has_the_widths_of_the_columns_that_are_kept():
    X = np.random.default_rng(6).normal(size=(20, 5))
    view = FeatureTransform(codes=[Codes(np.array([1, 2]), np.array([0.5, -0.5]))], without=[4])
    width = np.array([1.0, 2.0, 2.0, 3.0, 4.0])
    found = TransformedKernel(RBF(), view).with_width(width)
    columns = np.column_stack([X[:, 0], 0.5 * X[:, 1] - 0.5 * X[:, 2], X[:, 3]])
    np.testing.assert_allclose(found(X, X), RBF(np.array([1.0, 2.0, 3.0]))(columns, columns))
    assert found.name == "rbf of codes and medians"


# --- widths of features under a Gaussian process --------------------------------------------------


def problem(seed, n=25, d=3, k=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    number = np.minimum(np.arange(d), max(d - 2, 0))  # the last two have a width in common
    target, at = rng.normal(size=(n, k)), rng.normal(size=number[-1] + 4) / 2
    known = {"X": X, "target": target, "number": number, "weight": 1.0, "unit": 1.7}
    return partial(negative_evidence, **known, spread=0.7), at


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_the_slope_is_the_derivative(seed, d, k):
    evidence, at = problem(seed, d=d, k=k)
    numeric = approx_fprime(at, lambda each: evidence(each)[0], 1e-6)
    np.testing.assert_allclose(evidence(at)[1], numeric, rtol=1e-4, atol=2e-4)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_the_value_is_a_multivariate_normal_s_density_and_the_priors(seed):
    evidence, at = problem(seed, k=2)
    *log_width, common, log_variance, log_noise = at
    X, target = evidence.keywords["X"], evidence.keywords["target"]
    Z = X / (1.7 * np.exp(log_width))[evidence.keywords["number"]]
    K = np.exp(log_variance - 0.5 * cdist(Z, Z, "sqeuclidean"))
    K += (np.exp(log_noise) + 1e-8 * np.exp(log_variance)) * np.eye(len(Z))
    density = multivariate_normal(np.zeros(len(Z)), K).logpdf(target.T).sum()
    constant = 0.5 * target.size * np.log(2 * np.pi)
    prior = 0.5 * np.sum((np.array(log_width) - common) ** 2) / 0.49 + 0.5 * common**2
    prior += log_variance**2 / 8 + (log_noise + 1.5) ** 2 / 8
    assert evidence(at)[0] == pytest.approx(prior - density - constant, rel=1e-9)


def test_features_without_effect_become_wide():
    X = np.random.default_rng(0).normal(size=(120, 6))
    width = relative_widths(X, np.sin(2 * X[:, 0]) + X[:, 3])
    assert set(np.argsort(width)[:2]) == {0, 3}
    assert width[[1, 2, 4, 5]].min() > 3 * width[[0, 3]].max()
    assert np.log(width).mean() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("d", [100, 300])
def test_two_features_are_found_among_so_many_that_all_distances_are_alike(d):
    for seed in range(3):
        X = np.random.default_rng(seed).normal(size=(200, d))
        width = relative_widths(X, class_targets(np.abs(X[:, 0]) + 0.5 * np.square(X[:, 1]) > 1, 2))
        assert width[2:].min() > 2 * width[:2].max()


def test_columns_of_one_width_are_relevant_together():
    rng = np.random.default_rng(1)
    level, other = rng.integers(0, 3, 150), rng.normal(size=(150, 2))
    X = np.column_stack([other[:, 0], np.eye(3)[level], other[:, 1]])
    # the first level alone matters
    found = relative_widths(X, level == 0, number=np.array([0, 1, 1, 1, 2]))
    assert found[1] == found[2] == found[3] < 0.5 * found[[0, 4]].min()
    assert np.log(found[[0, 1, 4]]).mean() == pytest.approx(0.0, abs=1e-12)


def test_features_that_are_alike_or_tell_nothing_start_at_one_width():
    X = np.random.default_rng(0).normal(size=(400, 5))
    X[:, 4] = 1.0
    every = X.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(metric.first_log_widths(X[:, :4], every), np.zeros(4), atol=1e-12)
    np.testing.assert_array_equal(metric.first_log_widths(X, X[:, :2].prod(axis=1)[:, None] > 0), 0)
    one = np.column_stack([X[:, 1], np.zeros(400)])
    np.testing.assert_allclose(np.exp(metric.first_log_widths(X, one))[[0, 2, 3, 4]], 1)
    share = X[:, 1].var() / X.var(axis=0).sum()
    assert np.exp(2 * metric.first_log_widths(X, one))[1] == pytest.approx(share)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_search_starts_alike_from_rows_that_count_twice_and_from_rows_twice(seed):
    rng = np.random.default_rng(seed)
    X, count = rng.normal(size=(30, 6)), rng.integers(1, 4, size=30)
    target = np.column_stack([X[:, 0], np.square(X[:, 2])])
    found = metric.first_log_widths(X, target, count.astype(float))
    assert found.min() < 0
    each = metric.first_log_widths(np.repeat(X, count, axis=0), np.repeat(target, count, axis=0))
    np.testing.assert_allclose(found, each, atol=1e-12)


@given(st.integers(0, 10**6), st.floats(0.1, 10.0))
@settings(max_examples=10, deadline=None)
def test_neither_the_order_of_features_nor_units_of_all_matter(seed, unit):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 4))
    target = X[:, 0] + rng.normal(size=40)
    order = rng.permutation(4)
    width = relative_widths(X, target)
    moved = relative_widths(unit * X[:, order], 5.0 * target - 3.0)
    np.testing.assert_allclose(moved, width[order], rtol=0.02)


def test_nothing_is_learned_from_constant_rows_one_feature_or_a_constant_target():
    rows, line = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10.0)
    for X, target in ((np.ones((10, 3)), line), (line[:, None], line), (rows, np.ones(10))):
        np.testing.assert_array_equal(relative_widths(X, target), np.ones(X.shape[1]))


def test_two_classes_are_one_column_and_several_indicators():
    np.testing.assert_array_equal(class_targets(np.array([-1.0, 1.0]), 2), [[-1.0], [1.0]])
    np.testing.assert_array_equal(class_targets(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])


def test_single_precision_finds_the_same_maximum():
    evidence, at = problem(3, n=80, d=4)
    X, target = (evidence.keywords[name].astype(np.float32) for name in ("X", "target"))
    value, slope = evidence(at)
    rough, rough_slope = evidence(at, X=X, target=target)
    assert rough == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(rough_slope, slope, rtol=1e-3, atol=1e-3)
