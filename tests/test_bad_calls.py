"""Bad calls of all public names: each is answered at once, by a word on the argument that is bad."""

from functools import partial

import bad_calls
import numpy as np
import pytest
from problems import refused

import pcvm_pymc
from pcvm_pymc.core.pieces.validation import InputWarning

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_is_written(monkeypatch, tmp_path):
    """Let calls stand in an empty folder, which they leave empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "seed"), [(1000, 1), pytest.param(10_000, 2, marks=SLOW)])
def test_bad_calls(number, seed):
    wrong = [
        f"{name}({argument}=<{at} of its kind>): {said}"
        for name, argument, at, value in bad_calls.drawn(number, seed)
        if (said := bad_calls.complaint(name, argument, value))
    ]
    assert not wrong, "\n".join(wrong)


def test_good_calls_are_taken():
    # save, load and PSIS-LOO apart, whose good calls need a place to write, or more draws
    for name in sorted(set(bad_calls.calls()) - {"save", "load", "psis_loo"}):
        call = bad_calls.calls()[name]
        assert call.function(**call.good) is not None, name


def test_every_public_name_that_takes_arguments_is_called():
    called = {name.split(",")[0] for name in bad_calls.calls()}
    # distributions, which PyMC itself calls; enumerations, tables and results of others' calls
    left = {"MarginalBias", "MarginalWeight", "ProbitBernoulli", "MultinomialProbit"}
    left |= {"FAMILY", "Start", "Status", "plots", "__version__"}
    assert called | left == set(pcvm_pymc.__all__)


@pytest.mark.filterwarnings("ignore:EM", "ignore:under width")  # nothing is left but the bias
def test_rows_that_are_all_the_same_are_warned_of():
    X, y = np.full((20, 3), 2.5), np.arange(20) % 2
    kinds = pcvm_pymc.PCVMClassifier, pcvm_pymc.RVMRegressor
    for take in (
        *(kind(width=1.0).fit for kind in kinds),
        partial(pcvm_pymc.pcvm_model, width=1.0),
    ):
        with pytest.warns(InputWarning, match="X has rows that are all the same"):
            take(X, y)


def test_values_that_cannot_be_shown_are_named_by_their_type():
    class Unseen:
        def __repr__(self):
            raise RuntimeError("no picture")

    refused("max_iter=<Unseen>; needed a whole number", pcvm_pymc.EMOptions, max_iter=Unseen())
    refused(r"tol=<ndarray of shape \(900,\)>", pcvm_pymc.EMOptions, tol=np.zeros(900))
