"""Rows in chunks: ``memory_limit=`` and Dask arrays."""

import os
import signal
import tracemalloc
from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest
from problems import blobs
from sklearn.base import clone

from pcvm_pymc import (
    MPCVMClassifier,
    MRVMClassifier,
    PCVMClassifier,
    RVMClassifier,
    RVMRegressor,
    SparseProbitClassifier,
    choose_basis,
)
from pcvm_pymc.core.design import ArrayRows
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.estimators import relevance
from pcvm_pymc.estimators.cluster import DaskRows, dask_rows, gathered
from pcvm_pymc.experiments.datasets import overlap_classes

TIGHT = {"width": 1.5, "tol": 1e-10}


@pytest.fixture(scope="module")
def data():
    X, label = blobs(400, n_features=3, seed=95)
    return X, np.where(label > 0, "yes", "no")


@pytest.mark.parametrize("hyperprior", ["default", "chen2009"])
def test_a_memory_limit_changes_nothing_but_memory(data, hyperprior):
    X, words = data
    whole = PCVMClassifier(**TIGHT, basis=50, hyperprior=hyperprior).fit(X, words)
    for n_jobs in (None, 2):
        some = clone(whole).set_params(memory_limit=2e5, n_jobs=n_jobs).fit(X, words)
        np.testing.assert_array_equal(some.support_, whole.support_)
        np.testing.assert_allclose(some.weight_, whole.weight_, atol=1e-8)
        np.testing.assert_allclose(some.predict_proba(X), whole.predict_proba(X), atol=1e-8)
        assert some.log_posterior_ == pytest.approx(whole.log_posterior_, abs=1e-8)


def test_a_basis_on_every_row_in_chunks(data):
    X, words = data[0][:80], data[1][:80]
    whole = PCVMClassifier(**TIGHT).fit(X, words)
    some = PCVMClassifier(**TIGHT, memory_limit=5e5).fit(X, words)
    np.testing.assert_allclose(some.weight_, whole.weight_, atol=1e-8)


def test_a_width_is_chosen_on_a_part_of_the_rows(data):
    X, words = data
    model = PCVMClassifier(basis=30, memory_limit=1e6, width="shared", random_state=0)
    model.fit(X, words)
    assert model.width_ in [cell.width for cell in model.selection_.points]
    assert len(model.components_) == len(model.component_weights_)
    assert model.score(X, words) > 0.7


def test_single_precision_is_close(data):
    X, words = data
    whole = PCVMClassifier(width=1.5, basis=50).fit(X, words)
    single = clone(whole).set_params(memory_limit=1e6, kernel_dtype="float32").fit(X, words)
    np.testing.assert_allclose(single.predict_proba(X), whole.predict_proba(X), atol=1e-4)


def test_peak_memory_follows_the_limit_and_not_the_rows():
    """Basis functions of all rows would take 32 MB, and 128 MB."""
    peaks = []
    for n_obs in (40_000, 160_000):
        X, label = blobs(n_obs, seed=96)
        basis = choose_basis(X[:1000], label[:1000], 100, random_state=0)
        tracemalloc.start()
        model = PCVMClassifier(width=1.5, basis=basis, memory_limit=4e6, max_iter=2, tol=1e3)
        model.fit(X, label)
        # what the input checks hold grows with the rows: a few vectors of them
        peaks.append(tracemalloc.get_traced_memory()[1] - 12 * X.nbytes)
        tracemalloc.stop()
    assert max(peaks) < 8e6


def test_rows_mapped_from_a_file(data, tmp_path):
    X, words = data
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    wanted = PCVMClassifier(width=1.5, basis=30, memory_limit=1e6).fit(X, words)
    found = PCVMClassifier(width=1.5, basis=30, memory_limit=1e6).fit(mapped, words)
    np.testing.assert_array_equal(found.weight_, wanted.weight_)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory_limit": -1}, "'memory_limit' parameter .* Got -1 "),
        ({"memory_limit": 100.0}, "memory_limit=100 bytes is too small for 400 bases"),
        ({"memory_limit": 1e9, "width": "em"}, "width='em'.*rows in chunks"),
        (
            {"memory_limit": 1e9, "width": 1.0, "estimation": "projection"},
            "estimation='projection'",
        ),
        ({"kernel_dtype": "float16"}, "'kernel_dtype' parameter .* Got 'float16'"),
        ({"kernel_dtype": "float32"}, "needs rows in chunks"),
    ],
)
def test_bad_parameters_are_named(data, parameters, words):
    with pytest.raises(ValueError, match=words):
        PCVMClassifier(**parameters).fit(*data)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("hyperprior", ["default", "jeffreys"])
def test_dask_arrays_give_the_same_fit(data, scheduler, hyperprior):
    X, words = data
    basis = choose_basis(X, words, 40, random_state=0)
    model = PCVMClassifier(**TIGHT, basis=basis, hyperprior=hyperprior)
    wanted = clone(model).fit(X, words)
    with dask.config.set(scheduler=scheduler):
        rows = da.from_array(X, chunks=(70, 2))
        found = clone(model).fit(rows, da.from_array(words, chunks=110))
        np.testing.assert_allclose(found.weight_, wanted.weight_, atol=1e-8)
        np.testing.assert_array_equal(found.relevance_vectors_, wanted.relevance_vectors_)
        assert found.classes_.tolist() == ["no", "yes"]
        assert found.n_features_in_ == 3
        np.testing.assert_allclose(
            found.predict_proba(rows).compute(), wanted.predict_proba(X), atol=1e-8
        )
        np.testing.assert_array_equal(found.predict(rows).compute(), wanted.predict(X))
        np.testing.assert_allclose(
            found.decision_function(X), wanted.decision_function(X), atol=1e-7
        )
        plain = clone(model).fit(rows, words)  # labels may be an array
        np.testing.assert_allclose(plain.weight_, wanted.weight_, atol=1e-8)


def test_bases_and_width_are_chosen_among_dask_rows(data):
    X, words = data
    with dask.config.set(scheduler="synchronous"):
        model = PCVMClassifier(basis=20, random_state=0).fit(
            da.from_array(X, chunks=(100, 3)), words
        )
    assert len(model.weight_) <= 20
    assert all((each == X).all(axis=1).any() for each in model.relevance_vectors_)
    assert model.score(X, words) > 0.7


def test_rows_of_an_unknown_number(data):
    X, words = data
    rows = da.from_array(X, chunks=(100, 3))
    with dask.config.set(scheduler="synchronous"):
        kept = rows[rows[:, 0] > 0]  # its shape is not known before it is computed
        found, classes = dask_rows(kept, words[X[:, 0] > 0], 50)
    assert found.n_obs == np.sum(X[:, 0] > 0)
    assert classes.tolist() == ["no", "yes"]


def test_bad_dask_input_is_named(data):
    X, words = data
    rows = da.from_array(X, chunks=(100, 3))
    broken = X.copy()
    broken[7, 1] = np.nan
    with dask.config.set(scheduler="synchronous"):
        for bad, y, match in (
            (rows, words[:10], r"y has shape \(10,\); needed \(400,\)"),
            (rows[:, 0], words, r"X has shape \(400,\)"),
            (da.from_array(broken), words, "NaN or infinite"),
            (rows, np.zeros(400), "y has 1 classes; needed two"),
        ):
            with pytest.raises(ValueError, match=match):
                PCVMClassifier(width=1.0, basis=10).fit(bad, y)
        with pytest.raises(ValueError, match="basis=None is a basis function on every row"):
            PCVMClassifier(width=1.0).fit(rows, words)


def test_some_rows_are_drawn_of_every_class(data):
    X, words = data
    label = np.where(words == "yes", 1.0, -1.0)
    label[:395], label[395:] = -1.0, 1.0
    rng = np.random.default_rng(0)
    assert np.sum(label[choose_share(label, 50, rng)] > 0) >= 1
    assert len(choose_share(label, 50, rng)) == 50
    with dask.config.set(scheduler="synchronous"):
        rows, _ = dask_rows(da.from_array(X, chunks=(100, 3)), label, 50)
        some, drawn = gathered(rows, 60)
        again, _ = gathered(rows, 60)
    np.testing.assert_array_equal(some, again)
    assert 0 < np.sum(drawn > 0) < len(drawn) < 80


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_costs_time_and_not_the_fit(data, monkeypatch):
    from distributed import Client, LocalCluster

    X, words = data
    basis = choose_basis(X, words, 40, random_state=0)
    model = PCVMClassifier(**TIGHT, basis=basis)
    wanted = clone(model).fit(X, words)
    passes, sums = [], DaskRows.sums
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        workers = client.run(os.getpid)

        def sums_with_a_death(self, request):
            passes.append(request)
            if len(passes) == 4:
                os.kill(next(iter(workers.values())), signal.SIGKILL)
            return sums(self, request)

        monkeypatch.setattr(DaskRows, "sums", sums_with_a_death)
        found = clone(model).fit(da.from_array(X, chunks=(50, 3)), words)
        assert set(client.run(os.getpid).values()) != set(workers.values())
    assert len(passes) > 6
    np.testing.assert_allclose(found.weight_, wanted.weight_, atol=1e-8)


def test_sums_over_dask_rows_are_those_over_the_array(data):
    from pcvm_pymc.core.design import Request

    X, words = data
    label = np.where(words == "yes", 1.0, -1.0)
    rng = np.random.default_rng(1)
    weight, old_weight = rng.normal(size=(2, 9, 1))
    bias, old_bias = np.array([0.1]), np.array([0.0])
    asked = Request(
        X[:9], RBF(1.0), weight, bias, old_weight, old_bias, Probit().terms, gram="curvature"
    )
    with dask.config.set(scheduler="synchronous"):
        rows, _ = dask_rows(da.from_array(X, chunks=(31, 3)), words, 20)
        assert isinstance(rows, DaskRows)
        found = rows.sums(asked)
    wanted = ArrayRows(X, label, 400).sums(asked)
    assert found.log_likelihood == pytest.approx(wanted.log_likelihood)
    np.testing.assert_allclose(found.gram, wanted.gram, atol=1e-11)
    np.testing.assert_allclose(found.pull, wanted.pull, atol=1e-11)
    assert found.change == pytest.approx(wanted.change)


# --- several classes ---------------------------------------------------------------------------

SEVERAL = {
    "mPCVM1": MPCVMClassifier(hyperprior="jeffreys", width=1.5, tol=1e-8, max_iter=20_000),
    "mPCVM1, proper": MPCVMClassifier(
        algorithm="top-down", width=1.5, tol=1e-7, hyperprior="plug_in", bias=False
    ),
    "mRVM2": MRVMClassifier(algorithm="top-down", width=1.5, tol=1e-8, max_iter=20_000),
    "mPCVM2": MPCVMClassifier(algorithm="bottom-up", width=1.5),
    "mPCVM2 with biases": MPCVMClassifier(algorithm="bottom-up", width=1.5, bias=True),
    "mRVM1": MRVMClassifier(width=1.5),
}


@pytest.fixture(scope="module")
def three():
    """Return rows, the names of their classes, and given bases."""
    X, label = overlap_classes(90, random_state=3)
    words = np.array(["ash", "birch", "cedar"])[label.astype(int)]
    return X, words, (X[::4], words[::4])


@pytest.fixture(scope="module")
def in_memory(three):
    """Return what fits a machine of SEVERAL with all rows in memory, each once."""
    X, words, basis = three
    return cache(lambda name: clone(SEVERAL[name]).set_params(basis=basis).fit(X, words))


@pytest.mark.parametrize(
    ("name", "n_jobs"), [*((name, None) for name in SEVERAL), ("mRVM2", 2), ("mPCVM2", 2)]
)
def test_a_memory_limit_changes_nothing_for_several_classes(three, in_memory, name, n_jobs):
    X, words, _ = three
    whole = in_memory(name)
    some = clone(whole).set_params(memory_limit=3e5, n_jobs=n_jobs).fit(X, words)
    np.testing.assert_array_equal(some.relevance_vectors_, whole.relevance_vectors_)
    np.testing.assert_allclose(some.predict_proba(X), whole.predict_proba(X), atol=1e-7)
    assert some.log_posterior_ == pytest.approx(whole.log_posterior_, abs=1e-8)


@pytest.mark.parametrize("name", SEVERAL)
def test_dask_arrays_of_several_classes(three, in_memory, name):
    X, words, _ = three
    wanted = in_memory(name)
    with dask.config.set(scheduler="synchronous"):
        rows = da.from_array(X, chunks=(40, 1))
        found = clone(wanted).fit(rows, da.from_array(words, chunks=70))
        assert found.classes_.tolist() == ["ash", "birch", "cedar"]
        assert (found.support_ == -1).all()
        for method in ("predict", "predict_proba", "decision_function"):
            lazy = getattr(found, method)(rows)
            assert lazy.shape == getattr(wanted, method)(X).shape
        np.testing.assert_allclose(
            found.predict_proba(rows).compute(), wanted.predict_proba(X), atol=1e-7
        )
        np.testing.assert_array_equal(found.predict(rows).compute(), wanted.predict(X))


def test_two_classes_among_dask_rows_of_a_machine_for_several(data):
    X, words = data
    model = MPCVMClassifier(algorithm="top-down", basis=15, width=1.5, tol=1e-2)
    with dask.config.set(scheduler="synchronous"):
        rows = da.from_array(X, chunks=(200, 3))
        model.fit(rows, words)
        assert model.decision_function(rows).shape == (400,)
        assert model.predict_proba(rows).shape == (400, 2)
        assert np.mean(model.predict(rows).compute() == words) > 0.7


def test_bases_and_width_for_several_classes_in_chunks(three):
    X, words, _ = three
    model = MPCVMClassifier(
        algorithm="top-down", basis=15, memory_limit=1e6, width="evidence", kernel_dtype="float32"
    ).fit(X, words)
    assert model.width_ in model.widths_
    assert model.score(X, words) > 0.6


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory_limit": 0}, "'memory_limit' parameter .* Got 0 "),
        (
            {"memory_limit": 1e9, "algorithm": "bottom-up", "kernel_dtype": "float32"},
            "kernel_dtype='float32'.*needed 'float64' from the bottom up",
        ),
        ({"memory_limit": 100.0, "algorithm": "top-down"}, "too small for"),
        ({"kernel_dtype": "float32"}, "needs rows in chunks"),
    ],
)
def test_bad_parameters_for_several_classes_are_named(three, parameters, words):
    X, y, _ = three
    with pytest.raises(ValueError, match=words):
        MPCVMClassifier(width=1.0, **parameters).fit(X, y)


def test_bad_dask_input_of_several_classes_is_named(three):
    X, words, _ = three
    rows = da.from_array(X, chunks=(50, 2))
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(ValueError, match="basis=None is a basis function on every row"):
            MRVMClassifier(algorithm="top-down", width=1.0).fit(rows, words)
        with pytest.raises(ValueError, match="y has 1 classes; needed two or more"):
            MRVMClassifier(algorithm="top-down", width=1.0, basis=9).fit(rows, np.ones(len(X)))


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_a_memory_limit_changes_nothing_from_the_bottom_up(data, likelihood):
    X, words = data
    arguments = {"estimation": "bottom-up", "width": 1.5, "likelihood": likelihood, "basis": 30}
    whole = PCVMClassifier(**arguments, class_weight="balanced").fit(X, words)
    some = clone(whole).set_params(memory_limit=1e6, n_jobs=2).fit(X, words)
    np.testing.assert_array_equal(some.support_, whole.support_)
    np.testing.assert_allclose(some.weight_, whole.weight_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(some.predict_proba(X), whole.predict_proba(X), atol=1e-8)
    chosen = PCVMClassifier(
        estimation="bottom-up", width="shared", basis=15, memory_limit=1e6, cv=2
    )
    assert chosen.fit(X, words).width_ in chosen.width_selection_.widths


@pytest.mark.parametrize("features", ["linear", "quadratic"])
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_memory_limit_changes_nothing_for_features(data, features, n_jobs):
    X, words = data
    noise = np.random.default_rng(2).normal(size=len(X))
    y = np.where(X[:, 1] + 0.5 * noise > 0.8, "more", words)
    whole = SparseProbitClassifier(features=features, tol=1e-10).fit(X, y)
    some = clone(whole).set_params(memory_limit=2e4, n_jobs=n_jobs).fit(X, y)
    np.testing.assert_array_equal(some.selected_, whole.selected_)
    np.testing.assert_allclose(some.coef_, whole.coef_, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(some.predict_proba(X), whole.predict_proba(X), atol=1e-8)


def test_features_of_many_rows_need_no_matrix_of_rows_by_rows():
    X = np.random.default_rng(4).normal(size=(200_000, 2))
    model = SparseProbitClassifier().fit(X, X[:, 0] + 0.5 * X[:, 1] ** 2 > 0.2)
    assert model.selected_.tolist() == [0]
    assert model.n_features_in_ == 2


# --- regression --------------------------------------------------------------------------------


def test_a_memory_limit_changes_nothing_for_a_regression():
    X, _ = blobs(500, seed=97)
    y = 1.0 + np.sin(X[:, 0]) + 0.2 * np.random.default_rng(98).normal(size=500)
    whole = RVMRegressor(width=1.5, basis=40).fit(X, y)
    some = clone(whole).set_params(memory_limit=1e6).fit(X, y)
    np.testing.assert_array_equal(some.support_, whole.support_)
    assert some.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-5)
    for found, wanted in zip(
        some.predict(X, return_std=True), whole.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    chosen = RVMRegressor(basis=20, memory_limit=1e6, width="evidence").fit(X, y)
    assert chosen.width_ in chosen.widths_
    for parameters, words in (
        ({"star": True}, "star=True: it keeps all training rows"),
        ({"memory_limit": "1GB"}, "'memory_limit' parameter .* Got '1GB'"),
        (
            {"memory_limit": 1e4},
            r"=1e\+04 bytes is too small for 42 bases; needed at least 2.13e\+05",
        ),
        ({"memory_limit": 1e4, "basis": None}, "too small for 500 rows"),
        ({"memory_limit": 1e4, "method": "batch"}, "too small for 42 bases"),
        ({"likelihood": "student-t", "method": "batch"}, "needed method='sequential'"),
    ):
        with pytest.raises(ValueError, match=words):
            clone(some).set_params(**parameters).fit(X, y)


def test_a_regression_keeps_a_limit_in_two_ways():
    """Few bases rotated, or many computed, end where bases in memory do."""
    X, _ = blobs(200, seed=90)
    y = 1.0 + np.sin(X[:, 0]) + 0.2 * np.random.default_rng(98).normal(size=200)
    for basis, method in ((30, "sequential"), (30, "batch"), (None, "sequential")):
        given = {"width": 1.5, "basis": basis, "method": method, "random_state": 3}
        whole = RVMRegressor(**given).fit(X, y)
        some = RVMRegressor(**given, memory_limit=1e6).fit(X, y)
        np.testing.assert_array_equal(some.support_, whole.support_)
        np.testing.assert_allclose(some.predict(X), whole.predict(X), rtol=1e-8, atol=1e-8)


# --- relevance vector machines whose bases are computed when needed -----------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_memory_limit_changes_nothing_for_relevance_vectors(n_classes):
    X, _ = blobs(90, seed=5)
    y = np.digitize(X[:, 0] + 0.3 * X[:, 1], [0.0, 1.0][: n_classes - 1])
    weights = {"class_weight": "balanced"}
    whole = RVMClassifier(width=1.5, **weights).fit(X, y)
    some = RVMClassifier(width=1.5, memory_limit=2e5, **weights).fit(X, y)
    np.testing.assert_array_equal(some.support_, whole.support_)
    for name in ("weight_", "bias_", "log_evidence_"):
        np.testing.assert_allclose(getattr(some, name), getattr(whole, name), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(some.predict_proba(X), whole.predict_proba(X), atol=1e-8)


def test_a_width_of_relevance_vectors_is_chosen_on_some_rows(monkeypatch):
    monkeypatch.setattr(relevance, "WIDTH_ROWS", 40)
    X, label = blobs(80, seed=6)
    weight = 1.0 + np.arange(80) % 2
    model = RVMClassifier(width="evidence", memory_limit=2e5).fit(X, label, sample_weight=weight)
    assert model.width_ in model.widths_
    whole = RVMClassifier(width=model.width_).fit(X, label, sample_weight=weight)
    assert model.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-8)
    some = RVMRegressor(width="shared", memory_limit=2e5, cv=2).fit(X, X[:, 0] + 0.1 * label)
    assert some.width_ in some.widths_


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory_limit": 0}, "'memory_limit' parameter .* Got 0 "),
        ({"memory_limit": 1e3}, "memory_limit=1e.03 bytes is too small for 60 rows"),
        ({"memory_limit": 1e9, "method": "batch"}, "method='batch': it needs the basis functions"),
        ({"method": "random"}, "is now pcvm_pymc.experiments.replicas.chmielewski2019_random"),
    ],
)
def test_limits_that_relevance_vectors_cannot_keep_are_named(parameters, words):
    X, label = blobs(60, seed=6)
    with pytest.raises(ValueError, match=words):
        RVMClassifier(width=1.0, **parameters).fit(X, label)


def test_peak_memory_of_a_regression_follows_the_limit():
    rng = np.random.default_rng(99)
    X = rng.normal(size=(60_000, 2))
    y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=len(X))
    tracemalloc.start()
    RVMRegressor(width=1.5, basis=X[:60], memory_limit=8e6).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1] - 12 * X.nbytes
    tracemalloc.stop()
    assert peak < 8e6  # the basis functions would take 29 MB
