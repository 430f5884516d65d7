"""Progress that forecasts."""

import numpy as np

from pcvm_pymc.inference.chains import Chain
from pcvm_pymc.inference.progress import Forecast


def test_changes_that_shrink_in_proportion_end_where_they_are_expected_to():
    forecast, values, total = Forecast(1e-6, 10_000), np.zeros(3), []
    for n_iter in range(1, 40):
        values = values + np.array([0.0, 0.5**n_iter, -(0.5**n_iter)])
        total.append(forecast(n_iter, values))
        if total[-1] == n_iter:
            break
    assert total[:3] == [None, None, None]
    assert total[3:] == [n_iter] * len(total[3:])  # 2^-20 is the first below the tolerance
    assert n_iter == 20


def test_no_forecast_where_changes_grow_and_never_beyond_the_limit():
    forecast, values = Forecast(1e-6, 50), 0.0
    for n_iter in range(1, 8):
        values += 2.0**n_iter
        assert forecast(n_iter, np.array([values])) is None
    slow, values = Forecast(1e-6, 50), 0.0
    for n_iter in range(1, 8):
        values += 0.999**n_iter
        last = slow(n_iter, np.array([values]))
    assert last == 50


def test_the_bar_of_a_chain_goes_on_over_its_rounds():
    chain = Chain(0, None, np.random.default_rng(0), 2, 100, sweeps=50)
    assert chain.end == 250
    chain.sweeps, chain.every = 250, 4  # the next round, nothing of it drawn
    assert chain.end == 650
