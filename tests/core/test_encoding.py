"""Columns made of categories and missing values: identities of the encoding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from pcvm_pymc.core.pieces.encoding import UNKNOWN, Encoding

SEEDS = st.integers(0, 10**6)
NAN = np.nan


def table(seed, n=40):
    """Return two numbers and two categories, all with missing values."""
    rng = np.random.default_rng(seed)
    values = np.column_stack([rng.normal(size=(n, 2)), rng.integers(0, [3, 5], (n, 2))])
    values[rng.random(values.shape) < 0.1] = NAN
    return values


def test_columns_by_hand():
    values = np.array([[1.0, 0.0], [NAN, 1.0], [4.0, NAN], [3.0, 0.0]])
    found = Encoding.of(values, [1])
    expected = [[1.0, 0, 1, 0, 0, 0], [3.0, 1, 0, 1, 0, 0]]
    expected += [[4.0, 0, 0, 0, 1, 0], [3.0, 0, 1, 0, 0, 0]]
    scale = np.append(1.0, np.full(5, np.sqrt(2.0)))
    np.testing.assert_allclose(found(values), expected * scale, atol=1e-15)
    new = found(np.array([[2.0, UNKNOWN], [NAN, 7.0]]))
    np.testing.assert_allclose(new, [[2.0, 0, 0, 0, 0, 1], [3.0, 1, 0, 0, 0, 1]] * scale)
    np.testing.assert_array_equal(found.features, [0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(found.width_numbers, [0, 1, 2, 2, 2, 2])
    assert list(found.levels) == [1]
    np.testing.assert_array_equal(found.levels[1], [0.0, 1.0, NAN])


def test_numbers_that_no_row_lacks_stay_as_they_are():
    values = np.random.default_rng(0).normal(size=(10, 3))
    assert Encoding.of(values)(values) is values
    both = np.column_stack([values, np.zeros(10)])
    np.testing.assert_array_equal(Encoding.of(both, [3])(both)[:, :3], values)


@pytest.mark.parametrize(("metric", "apart"), [("sqeuclidean", 4.0), ("cityblock", 8**0.5)])
@pytest.mark.parametrize("n_levels", [1, 2, 9])
def test_levels_and_one_that_is_unknown_are_equally_far_apart(n_levels, metric, apart):
    codes = np.append(np.arange(float(n_levels)), NAN)[:, None]
    found = Encoding.of(codes, [0])
    points = found(np.vstack([codes, [[UNKNOWN]]]))
    expected = apart * (1.0 - np.eye(n_levels + 2))
    np.testing.assert_allclose(cdist(points, points, metric), expected, atol=1e-12)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_rows_that_count_twice_are_rows_twice(seed):
    values = table(seed)
    count = np.random.default_rng(seed + 1).integers(1, 4, len(values))
    weighted = Encoding.of(values, [2, 3], count=count.astype(float))
    repeated = Encoding.of(np.repeat(values, count, axis=0), [2, 3])
    np.testing.assert_array_equal(weighted(values), repeated(values))


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_order_of_rows_and_features_does_not_matter(seed):
    values, rng = table(seed), np.random.default_rng(seed)
    order = rng.permutation(4)
    places = np.argsort(order)
    found = Encoding.of(values, [2, 3])
    moved = Encoding.of(rng.permutation(values[:, order]), [int(places[2]), int(places[3])])
    distance, other = (cdist(each, each) for each in (found(values), moved(values[:, order])))
    np.testing.assert_allclose(distance, other, atol=1e-12)


@pytest.mark.parametrize("ordered", [[], [0]])
def test_a_plain_view_has_ordered_levels_as_codes_and_no_indicator_of_missing_numbers(ordered):
    rng = np.random.default_rng(2)
    values = np.column_stack([rng.integers(0, 4, 30), rng.integers(0, 2, 30), rng.normal(size=30)])
    values[3, 2] = NAN
    found = Encoding.of(values, [0, 1], ordered)
    view = found.transform(found(values))
    assert view.without == [9]
    assert len(view.codes) == len(ordered)
    for each in view.codes:
        number = found(values)[:, each.columns] @ each.values
        assert np.corrcoef(number, values[:, 0])[0, 1] == pytest.approx(1.0)
        assert number.std() == pytest.approx(1.0)
