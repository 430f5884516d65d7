"""Stacking: weights that predict rows left out best; and a race that drops the fits far behind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, fixed_rng
from scipy.optimize import minimize

from pcvm_pymc import ChoiceOptions
from pcvm_pymc.core.race import race as raced
from pcvm_pymc.core.stacking import stacking_weights


def densities(seed, n_fits=4, n_obs=60):
    rng = np.random.default_rng(seed)
    return -np.exp(rng.normal(size=(n_fits, 1)) + rng.normal(size=(n_fits, n_obs)))


def objective(weight, log_density, count):
    return np.log(weight @ np.exp(log_density)) @ count + np.log(weight).sum()


@given(SEEDS, st.integers(2, 5))
def test_no_other_weights_predict_better(seed, n_fits):
    log_density = densities(seed, n_fits)
    count = np.random.default_rng(seed).uniform(0.5, 3.0, 60)
    found = stacking_weights(log_density, count)
    assert found.sum() == pytest.approx(1.0)

    def loss(free):
        return -objective(np.exp(free) / np.exp(free).sum(), log_density, count)

    best = minimize(loss, np.zeros(n_fits), method="BFGS")
    assert objective(found, log_density, count) > -best.fun - 1e-4


@given(SEEDS)
def test_rows_that_count_twice_are_two_rows(seed):
    log_density, count = densities(seed), np.random.default_rng(seed).integers(1, 4, 60)
    repeated = stacking_weights(np.repeat(log_density, count, axis=1))
    np.testing.assert_allclose(stacking_weights(log_density, count), repeated, atol=1e-5)


def test_equal_fits_have_equal_weights_and_an_impossible_one_hardly_any():
    log_density = densities(0)[[0, 0, 1]]
    log_density[2] -= 1e4
    found = stacking_weights(log_density)
    assert found[0] == pytest.approx(found[1])
    assert 0.0 < found[2] < 1.0 / 60.0
    assert stacking_weights(log_density[:1]).tolist() == [1.0]


# --- a race of fits -------------------------------------------------------------------------------


def counted(mean, n_folds=5, n_rows=40, spread=0.1, seed=0, weights=None, **how):
    """Return the outcome of a race of rows around these means, and which fits it took."""
    rng = fixed_rng(seed)
    value = np.asarray(mean)[:, None, None] + spread * rng.normal(size=(len(mean), n_folds, n_rows))
    value += rng.normal(size=(n_folds, n_rows))  # what is hard for all
    fits = []

    def log_density(i, k):
        fits.append((i, k))
        return value[i, k]

    given_ = [np.ones(n_rows)] * n_folds if weights is None else weights
    outcome = raced(len(mean), log_density, given_, ChoiceOptions(), **how)
    ran = np.zeros((len(mean), n_folds), dtype=bool)
    ran[tuple(np.transpose(fits))] = True
    np.testing.assert_array_equal(~np.isnan(outcome.by_fold), ran)
    if weights is None:
        np.testing.assert_allclose(outcome.by_fold[ran], value.mean(axis=2)[ran])
    return np.array([*outcome.scores]), np.array([*outcome.scores.values()]), fits, value


def test_a_width_far_behind_is_dropped_and_none_beyond_it_is_tried():
    tried, scores, fits, value = counted([-9, -5, -2, -0.2, 0, -0.01, -0.02, -0.02, -4, -9])
    first = [i for i, k in fits if k == 0]
    assert first == [5, 6, 7, 8, 4, 3]  # from the middle up, then down, to the first that is far
    assert tried.tolist() == [3, 4, 5, 6, 7, 8]
    later = {i for i, k in fits if k > 0}
    assert 8 not in later
    assert 3 not in later
    assert tried[scores.argmax()] in {4, 5, 6, 7}
    whole = sorted({i for i, k in fits if k == 4})
    for i in whole:
        assert scores[tried == i] == pytest.approx(value[i].mean())
    # behind the best by as much as in the folds that it ran in
    wanted = value[tried[scores.argmax()]].mean() - (value[5, 0] - value[8, 0]).mean()
    assert scores[tried == 8] == pytest.approx(wanted, abs=0.1)


def test_the_last_one_runs_no_further():
    _, scores, fits, value = counted([-9, -9, 0, -9, -9])
    assert {k for _, k in fits} == {0}
    assert scores.max() == pytest.approx(value[2, 0].mean())


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_few_rows_leave_none_out(seed, n):
    rng = np.random.default_rng(seed)
    tried, scores, _, value = counted(5 * rng.normal(size=n), n_folds=2, n_rows=12, seed=seed)
    assert tried.tolist() == list(range(n))
    np.testing.assert_allclose(scores, value.mean(axis=(1, 2)))


@given(st.integers(0, 2**32 - 1))
def test_weights_count_as_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 4, size=(3, 40))
    mean = 0.3 * rng.normal(size=6)
    tried, scores, fits, value = counted(mean, 3, seed=seed, weights=list(count.astype(float)))
    repeated = [[np.repeat(value[i, k], count[k]) for k in range(3)] for i in range(6)]
    again = []

    def log_density(i, k):
        again.append((i, k))
        return repeated[i][k]

    wanted = raced(6, log_density, [np.ones(n) for n in count.sum(axis=1)], ChoiceOptions())
    assert again == fits
    assert tried.tolist() == [*wanted.scores]
    np.testing.assert_allclose(scores, [*wanted.scores.values()])


def test_what_cannot_be_is_out_whoever_is_best():
    value = {0: np.full(40, -np.inf), 1: np.zeros(40), 2: np.full(40, np.nan)}
    scores = raced(3, lambda i, _: value[i], [np.ones(40)] * 2, ChoiceOptions()).scores
    assert max(scores, key=scores.get) == 1
    assert scores[0] == -np.inf


def test_the_last_one_runs_to_the_end_where_it_is_to():
    _, scores, fits, value = counted([-9, -9, 0, -9, -9], to_the_end=True)
    assert [i for i, k in fits if k > 0] == [2] * 4
    assert scores.max() == pytest.approx(value[2].mean())
