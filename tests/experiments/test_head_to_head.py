import math
import signal
import sys

import numpy as np
import pandas as pd
import pytest
from cloudpickle import register_pickle_by_value
from joblib import delayed
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedShuffleSplit

from pcvm_pymc.experiments import head_to_head
from pcvm_pymc.experiments.processes import _interrupts_here, in_processes, processes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
X[5, 1], Y = np.nan, (X[:, 0] > 0).astype(int)
TWICE = RNG.permutation(np.append(np.arange(60), np.arange(40)))


def test_equal_rows_are_never_on_both_sides():
    rows = pd.DataFrame(X[TWICE])
    draws = head_to_head.stratified_draws(rows, Y[TWICE], 70, 30, seed=1, scaler=SimpleImputer())
    for (train, _, test, _), _ in zip(draws, range(20), strict=False):
        assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
        assert 60 < len(train) == 100 - len(test) < 80


def test_observations_of_few_categories_and_rows_without_equals_are_split_one_by_one():
    few = (X[TWICE] > 0).astype(float)
    splitter = StratifiedShuffleSplit(1, test_size=0.2, random_state=0)
    for data in ((few, RNG.integers(2, size=100)), (X, Y)):
        np.testing.assert_array_equal(head_to_head.equal_rows(*data), np.arange(len(data[1])))
        (wanted,), (found,) = splitter.split(*data), head_to_head.kept_together(splitter, *data)
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(wanted))


def test_categories_and_missing_values_as_numbers():
    words = pd.Categorical(["b", None, "a", "b"]), pd.Categorical(["a", "new", None])
    train = pd.DataFrame({"word": words[0], "x": [1.0, 5.0, np.nan, 2.0], "none": np.nan})
    test = pd.DataFrame({"word": words[1], "x": [np.nan, 0.0, 7.0], "none": [1.0, np.nan, 1.0]})
    # x, none, then a, b, missing
    found, _, of_test, _ = head_to_head.with_indicators((train, None, test, None))
    np.testing.assert_array_equal(found[:, 0], [1.0, 5.0, 2.0, 2.0])
    np.testing.assert_array_equal(found[:, 2:], [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(of_test[:, 0], [2.0, 0.0, 7.0])
    np.testing.assert_array_equal(of_test[:, 2:], [[1, 0, 0], [0, 0, 0], [0, 0, 1]])
    assert np.isfinite(found).all()
    assert head_to_head.with_indicators((X, Y, X, Y))[0] is X


def test_numbers_of_a_table_are_standardised_by_the_training_rows():
    colour = pd.Categorical(np.resize(["red", None, "blue"], 60))
    table = pd.DataFrame({"colour": colour, "a": X[:, 0], "b": 5.0 + X[:, 1]})
    train, y, test, _ = next(head_to_head.stratified_draws(table, Y, 40, 20, seed=0))
    assert list(train) == list(test) == ["a", "b", "colour"]
    assert train["colour"].dtype == "category"
    np.testing.assert_allclose(train[["a", "b"]].mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(train[["a", "b"]].std(ddof=0), 1.0)
    assert pd.concat([train, test]).isna().sum().tolist() == [0, 1, 20]
    assert len(train) == len(y) == 40


def test_differences_are_those_of_the_splits_of_both():
    score = {"a": [0.5, 0.25, 0.5, 1.0], "b": [0.25, 0.25, 1.0, 2.0], "c": [0.75, 0.5]}
    of_splits = {(name, i): x for name, each in score.items() for i, x in enumerate(each)}
    series = pd.Series(of_splits).rename_axis(["classifier", "split"])
    found = head_to_head.paired(series.iloc[::-1], "a")  # in any order
    difference = np.array([-0.25, 0.0, 0.5, 1.0])
    assert found.loc["b"].tolist() == [0.3125, np.std(difference, ddof=1) / 2, 4, 1, 1, 2]
    assert found.loc["c"].tolist() == [0.25, 0.0, 2, 0, 0, 2]
    assert found.loc["a"].tolist() == [0.0, 0.0, 4, 0, 4, 0]
    single = head_to_head.paired(series[["a", "c"]].drop([("c", 1)]), "a").loc["c"]
    assert single.difference == 0.25
    assert math.isnan(single.error)


def test_splits_are_the_same_in_any_number_of_processes():
    points, label = RNG.normal(size=(50, 2)), np.arange(50) % 2
    points[:, 0] += label
    draws = head_to_head.stratified_draws(points, label, 30, 20, seed=1)
    calls = [
        delayed(head_to_head.fitted_rivals)(i, draw, draw, n_classes=2, seed=i, width=1.0)
        for i, draw in zip(range(2), draws, strict=False)
    ]
    one, two = (dict(in_processes(calls, n)) for n in (1, 2))
    for split, name in ((i, name) for i in range(2) for name in one[0]):
        expected = one[split][name].probability
        np.testing.assert_array_equal(two[split][name].probability, expected, name)


def _holds_back():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="of POSIX")
def test_an_interrupt_while_processes_begin_is_not_lost():
    finished = []
    with pytest.raises(KeyboardInterrupt), _interrupts_here():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)  # to this thread: another may take its time
        finished.append(True)
    assert finished
    register_pickle_by_value(sys.modules[__name__])  # which workers then need not import
    with processes(2) as results:
        assert all(results(delayed(_holds_back)() for _ in range(4)))
