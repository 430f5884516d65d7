"""Ranks of columns: identities of the map, and which columns have one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, fixed_rng
from scipy.stats import norm, rankdata

from pcvm_pymc.core.pieces.kernels import RBF, Laplacian
from pcvm_pymc.core.pieces.transforms import FEW_VALUES, Codes, NormalScores, View, Viewed, ranks_of


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
    found = View(ranks_of(X))
    assert list(found.ranks) == [3]
    np.testing.assert_array_equal(found(X)[:, :3], X[:, :3])
    assert not ranks_of(X[:, :3])


@pytest.mark.parametrize("kernel", [RBF(), Laplacian()])
@pytest.mark.parametrize("width", [2.0, np.array([1.0, 3.0])])
def test_a_kernel_of_ranks_is_that_of_ranked_rows(kernel, width):
    X, Z = skewed(30, 3, 2), skewed(20, 4, 2)
    ranks = View(ranks_of(X))
    found = Viewed(kernel, ranks).with_width(width)
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
    found = View(codes=[codes], without=[5])(X)
    number = np.array([-1.0, 0.0, 1.0, 0.0])[level]
    spread = np.repeat(number, count).std()
    np.testing.assert_allclose(found, np.column_stack([other, number / spread]), atol=1e-12)
    unknown = np.array([[0.0, -0.7, -0.7, -0.7, -0.7, 0.0]])
    assert View(codes=[codes], without=[5])(unknown)[0, 1] == pytest.approx(0.0)


def test_a_kernel_of_a_view_has_the_widths_of_the_columns_that_are_kept():
    X = np.random.default_rng(6).normal(size=(20, 5))
    view = View(codes=[Codes(np.array([1, 2]), np.array([0.5, -0.5]))], without=[4])
    width = np.array([1.0, 2.0, 2.0, 3.0, 4.0])
    found = Viewed(RBF(), view).with_width(width)
    columns = np.column_stack([X[:, 0], 0.5 * X[:, 1] - 0.5 * X[:, 2], X[:, 3]])
    np.testing.assert_allclose(found(X, X), RBF(np.array([1.0, 2.0, 3.0]))(columns, columns))
    assert found.name == "rbf of codes and medians"
