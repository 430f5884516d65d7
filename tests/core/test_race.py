import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import fixed_rng

from pcvm_pymc import ChoiceOptions
from pcvm_pymc.core.race import race as raced


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
    tried, scores, by_fold, _ = raced(len(mean), log_density, given_, ChoiceOptions(), **how)
    ran = np.zeros((len(mean), n_folds), dtype=bool)
    ran[tuple(np.transpose(fits))] = True
    np.testing.assert_array_equal(~np.isnan(by_fold), ran[tried])
    if weights is None:
        np.testing.assert_allclose(by_fold[ran[tried]], value.mean(axis=2)[tried][ran[tried]])
    return tried, scores, fits, value


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
    np.testing.assert_array_equal(tried, wanted[0])
    np.testing.assert_allclose(scores, wanted[1])


def test_what_cannot_be_is_out_whoever_is_best():
    value = {0: np.full(40, -np.inf), 1: np.zeros(40), 2: np.full(40, np.nan)}
    tried, scores, *_ = raced(3, lambda i, _: value[i], [np.ones(40)] * 2, ChoiceOptions())
    assert tried[scores.argmax()] == 1
    assert scores[0] == -np.inf


def test_the_last_one_runs_to_the_end_where_it_is_to():
    _, scores, fits, value = counted([-9, -9, 0, -9, -9], to_the_end=True)
    assert [i for i, k in fits if k > 0] == [2] * 4
    assert scores.max() == pytest.approx(value[2].mean())
