import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.model_selection import StratifiedShuffleSplit

from pcvm_pymc.experiments.head_to_head import equal_rows, kept_together, stratified_draws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
X[5, 1], Y = np.nan, (X[:, 0] > 0).astype(int)
TWICE = RNG.permutation(np.append(np.arange(60), np.arange(40)))


def test_equal_rows_are_never_on_both_sides():
    rows = pd.DataFrame(X[TWICE])
    draws = stratified_draws(rows, Y[TWICE], 70, 30, seed=1, scaler=SimpleImputer())
    for (train, _, test, _), _ in zip(draws, range(20), strict=False):
        assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
        assert 60 < len(train) == 100 - len(test) < 80


def test_observations_of_few_categories_and_rows_without_equals_are_split_one_by_one():
    few = (X[TWICE] > 0).astype(float)
    splitter = StratifiedShuffleSplit(1, test_size=0.2, random_state=0)
    for data in ((few, RNG.integers(2, size=100)), (X, Y)):
        np.testing.assert_array_equal(equal_rows(*data), np.arange(len(data[1])))
        (wanted,), (found,) = splitter.split(*data), kept_together(splitter, *data)
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(wanted))
