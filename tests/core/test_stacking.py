"""Stacking: weights that predict rows left out best, beside another optimiser."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS
from scipy.optimize import minimize

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
    best = minimize(
        lambda free: -objective(np.exp(free) / np.exp(free).sum(), log_density, count),
        np.zeros(n_fits),
        method="BFGS",
    )
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
