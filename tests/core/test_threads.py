"""BLAS has one thread for small problems, its own number for large ones, and it back afterwards."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pcvm_pymc import PCVMClassifier, RVMRegressor
from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.resources import blas_threads


def n_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two_threads")
def test_size_decides():
    with blas_threads(500, 500):
        assert n_threads() == {1}
    assert n_threads() == {2}
    for rows, bases in ((5000, 5000), (np.inf, 10)):
        with blas_threads(rows, bases):
            assert n_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_fits_have_one_thread_and_give_it_back():
    seen = []

    def kernel(X, Z, width):
        seen.append(n_threads())
        return rbf(squared_distances(X, Z), width)

    x = np.linspace(-2, 2, 30)[:, None]
    PCVMClassifier(kernel=kernel, width=1.0).fit(x, x[:, 0] > 0.1)
    RVMRegressor(kernel=kernel, width=1.0).fit(x, np.sin(x[:, 0]))
    assert seen
    assert all(each == {1} for each in seen)
    assert n_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_a_core_fit_has_one_thread():
    seen = []

    class Watched(EvidenceProblem):
        @property
        def n_obs(self):
            seen.append(n_threads())
            return super().n_obs

    x = np.linspace(-2, 2, 30)[:, None]
    fit_rvm(Watched(rbf(squared_distances(x, x), 1.0), np.sin(x[:, 0])))
    assert {1} in seen
    assert {2} not in seen
