from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal

from pcvm_pymc.core import metric
from pcvm_pymc.core.metric import Evidence, class_targets, relative_widths, share_of_widths


def problem(seed, n=25, d=3, k=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    number = np.minimum(np.arange(d), max(d - 2, 0))  # the last two have a width in common
    target, at = rng.normal(size=(n, k)), rng.normal(size=number[-1] + 4) / 2
    return Evidence(X, target, unit=1.7, spread=0.7, number=number), at


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_the_slope_is_the_derivative(seed, d, k):
    evidence, at = problem(seed, d=d, k=k)
    numeric = approx_fprime(at, lambda each: evidence.negative(each)[0], 1e-6)
    np.testing.assert_allclose(evidence.negative(at)[1], numeric, rtol=1e-4, atol=2e-4)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_the_value_is_a_multivariate_normal_s_density_and_the_priors(seed):
    evidence, at = problem(seed, k=2)
    *log_width, common, log_variance, log_noise = at
    Z = evidence.X / (1.7 * np.exp(log_width))[evidence.number]
    K = np.exp(log_variance - 0.5 * cdist(Z, Z, "sqeuclidean"))
    K += (np.exp(log_noise) + 1e-8 * np.exp(log_variance)) * np.eye(len(Z))
    density = multivariate_normal(np.zeros(len(Z)), K).logpdf(evidence.target.T).sum()
    constant = 0.5 * evidence.target.size * np.log(2 * np.pi)
    prior = 0.5 * np.sum((np.array(log_width) - common) ** 2) / 0.49 + 0.5 * common**2
    prior += log_variance**2 / 8 + (log_noise + 1.5) ** 2 / 8
    assert evidence.negative(at)[0] == pytest.approx(prior - density - constant, rel=1e-9)


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


@given(st.integers(0, 10**6), st.floats(0.0, 4.0))
@settings(max_examples=20, deadline=None)
def test_the_share_is_the_stacking_weight_of_rows_as_often_as_they_count(seed, penalty):
    rng = np.random.default_rng(seed)
    one, widths = np.log(rng.uniform(0.2, 0.9, size=(2, 50)))
    count = rng.integers(1, 4, size=50)
    found = share_of_widths(one, widths, count.astype(float), penalty=penalty)
    share = np.linspace(0, 1, 2001)[:, None]
    total = np.log((1 - share) * np.exp(one) + share * np.exp(widths)) @ count
    assert found == pytest.approx(share[(total - penalty * share[:, 0]).argmax(), 0], abs=1e-3)
    each = np.repeat([one, widths], count, axis=1)
    assert found == pytest.approx(share_of_widths(*each, penalty=penalty), abs=1e-9)


def test_the_penalty_draws_to_one_width_and_a_clear_gain_overcomes_it():
    alike, better, impossible = np.full(40, -0.5), np.full(40, -0.2), np.full(40, -1e4)
    assert share_of_widths(alike, alike) == 0.0
    assert share_of_widths(alike, better) == 1.0
    assert share_of_widths(impossible, better) == 1.0
    assert share_of_widths(better, impossible) == 0.0
    gain, one_lost = np.expm1(0.3), np.append(better, -1e4)  # 40 gain / (1 + s gain) = 1 / (1 - s)
    found = share_of_widths(np.append(alike, -0.5), one_lost, penalty=0.0)
    assert found == pytest.approx((40 * gain - 1) / (41 * gain), abs=1e-9)
    assert share_of_widths(alike, alike + np.log(1.25), penalty=7.9) == 1.0  # .1 at one
    just = share_of_widths(alike, alike + np.log(1.25), penalty=9.9)  # a slope of .1 at zero
    assert just == pytest.approx(40 / 9.9 - 4)


def test_single_precision_finds_the_same_maximum():
    evidence, at = problem(3, n=80, d=4)
    X, target = (each.astype(np.float32) for each in (evidence.X, evidence.target))
    single = replace(evidence, X=X, target=target)
    value, slope = evidence.negative(at)
    rough, rough_slope = single.negative(at)
    assert rough == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(rough_slope, slope, rtol=1e-3, atol=1e-3)
