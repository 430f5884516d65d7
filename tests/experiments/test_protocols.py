import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import refused

from pcvm_pymc.experiments import protocols
from pcvm_pymc.experiments.catalogue import EXPERIMENTS
from pcvm_pymc.experiments.datasets import Dataset, Source
from pcvm_pymc.experiments.protocols import SPLITS, Protocol, cell_seed, realise

SHARES = Protocol("", "shares", share=0.33)
RAETSCH, LYU = (EXPERIMENTS[name].protocol for name in ("chen2009-table1", "lyu2020-table3"))


def disjoint(problem):
    for train, test in problem.splits:
        assert not set(train) & set(test)
        assert len(np.unique(train)) == len(train)


@pytest.mark.parametrize("kind", [each for each in SPLITS if each not in ("subsets", "stored")])
def test_splits_are_seeded_and_do_not_depend_on_how_many_there_are(kind):
    protocol = Protocol("", kind)
    name = "wisconsin_diagnostic"
    few, many = (realise(name, protocol, n, seed=3) for n in (2, 6))
    other = realise(name, protocol, 2, seed=4)
    disjoint(many)
    assert len(many.splits) == 6
    for k in range(2):
        assert few.checksum(k) == many.checksum(k)
        assert few.checksum(k) != other.checksum(k)
    assert len({many.checksum(k) for k in range(6)}) == 6


@given(st.integers(1, 12), st.sampled_from(["none", "median", "mean", "each"]))
def test_counts_of_realisations(repeats, tuning):
    protocol = Protocol("", "shares", tuning)
    n_tuning, n_all = len(protocol.tuned(repeats)), protocol.scored(repeats).stop
    assert len(protocol.scored(repeats)) == repeats
    assert protocol.tuned(repeats).start == 0
    if tuning == "mean":
        assert (n_tuning, n_all) == (min(5, repeats), repeats + min(5, repeats))
    elif tuning == "median":
        assert (n_tuning, n_all) == (min(5, repeats), repeats)
    else:
        assert (n_tuning, n_all) == (0, repeats)


def test_generated_sets_are_drawn_anew():
    problem = realise("half_gaussians_4", RAETSCH, 3, seed=0)
    disjoint(problem)
    assert [len(part) for part in problem.splits[2]] == [100, 1000]
    assert len(problem.X) == 3300
    assert realise("half_gaussians_4", RAETSCH, 1, seed=0).checksum(0) == problem.checksum(0)


def test_columns_are_prepared_on_the_training_part(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, 2.0, size=(100, 3))
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 2] = np.nan
    data = Dataset("holes", X, np.resize([0, 1], 100), ("a", "b", "c"), "here")
    source = Source(100, 3, "here", missing="median")
    monkeypatch.setattr(protocols, "source_of", lambda name: source)
    monkeypatch.setattr(protocols, "load", lambda name, **how: data)
    problem = realise("holes", SHARES, 2, seed=0)
    train, y, test, y_test = problem.parts(0)
    assert (len(y), len(y_test)) == (33, 67)
    assert np.isfinite(train).all()
    assert np.isfinite(test).all()
    np.testing.assert_allclose(train[:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(train[:, :2].std(axis=0), 1.0)
    assert problem.left_out == 0
    rows, _ = problem.splits[0]
    unknown = np.isnan(X[rows, 0])
    centred = X[rows, 0] - np.nanmedian(X[rows, 0])
    assert len(set(train[unknown, 0].round(9))) == 1  # all at the median
    assert (np.diff(train[~unknown, 0][np.argsort(centred[~unknown])]) >= 0).all()
    # the other way: rows are left out, and said to be
    monkeypatch.setattr(protocols, "source_of", lambda name: Source(100, 3, "here"))
    data.X[:, 2] = 1.0
    left = realise("holes", SHARES, 1, seed=0)
    assert left.left_out == np.isnan(X).any(axis=1).sum() > 0
    assert len(left.X) == 100 - left.left_out


def test_what_cannot_be_split_is_said(monkeypatch):
    data = Dataset("lonely", np.zeros((9, 1)), np.r_[1, np.zeros(8)], ("a",), "here")
    monkeypatch.setattr(protocols, "source_of", lambda name: Source(9, 1, "here"))
    monkeypatch.setattr(protocols, "load", lambda name, **how: data)
    refused("lonely cannot be split", realise, "lonely", LYU, 2, seed=0)
    # folds put up with it
    assert len(realise("lonely", Protocol("", "folds", n_folds=3), 3, seed=0).splits) == 3


def test_protocols_are_checked():
    refused("splits='thirds' is unknown", Protocol, "", "thirds")
    refused("tuning='best' is unknown", Protocol, "", "shares", "best")


def test_seeds_depend_on_names_alone():
    assert cell_seed(0, "iris", "SVM", 1) == cell_seed(0, "iris", "SVM", 1)
    seeds = {cell_seed(s, n, k) for s in (0, 1) for n in ("iris", "wine") for k in range(50)}
    assert len(seeds) == 200


def test_real_realisations_come_first(data_folder):
    problem = realise("heart", RAETSCH, 8, seed=0, folder=data_folder)
    assert [origin.split(",")[0] for origin in problem.origins] == ["stored"] * 5 + ["drawn"] * 3
    assert {len(train) for train, _ in problem.splits} == {170}
    disjoint(problem)
    ripley = realise("ripley", Protocol("", "subsets"), 3, seed=0, folder=data_folder)
    assert {len(train) for train, _ in ripley.splits} == {100}
    assert {len(test) for _, test in ripley.splits} == {1000}
    assert all(train.max() < 250 for train, _ in ripley.splits)
    pima = realise("pima_ripley", Protocol("", "predefined"), 30, seed=0, folder=data_folder)
    assert [len(part) for part in pima.splits[0]] == [200, 332]
    assert len(pima.splits) == 1
