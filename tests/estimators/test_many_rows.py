"""Rows in chunks: ``memory_limit=`` and Dask arrays."""

import tracemalloc
from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest
from joblib import parallel_config
from problems import blobs, fixed_rng, predicted, refused
from sklearn.base import clone

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.cluster import dask_rows, gathered
from pcvm_pymc.experiments.datasets import overlap_classes

X, LABEL = blobs(400, n_features=3, seed=95)
WORDS = np.where(LABEL > 0, "yes", "no")
MORE = np.where(X[:, 1] + 0.5 * np.random.default_rng(2).normal(size=400) > 0.8, "more", WORDS)
NUMBER = 1.0 + np.sin(X[:, 0]) + 0.2 * np.random.default_rng(98).normal(size=400)
THREE, KIND = overlap_classes(90, random_state=3)
TREES = np.array(["ash", "birch", "cedar"])[KIND.astype(int)]
DATA = {"two": (X, WORDS), "eighty": (X[:80], WORDS[:80]), "more": (X, MORE)}
DATA |= {"numbers": (X, NUMBER), "three": (THREE, TREES)}
PCVM, MPCVM = pcvm.PCVMClassifier, pcvm.MPCVMClassifier
MRVM, RVM = pcvm.MRVMClassifier, pcvm.RVMClassifier
SPARSE, NUMBERS = pcvm.SparseProbitClassifier, pcvm.RVMRegressor
ROUGH, SHORT = pcvm.BottomUpOptions(tol=1e-2), pcvm.EMOptions(max_iter=2, tol=1e3)
SINGLE = pcvm.EMOptions(kernel_dtype="float32")

TIGHT = {"width": 1.5, "options": pcvm.EMOptions(tol=1e-10)}
GIVEN = TIGHT | {"basis": pcvm.choose_basis(X, WORDS, 40, random_state=0)}
PATIENT, LESS = (pcvm.EMOptions(tol=tol, max_iter=20_000) for tol in (1e-8, 1e-7))
LONG = {"width": 1.0, "options": PATIENT, "basis": (THREE[::4], TREES[::4])}
PROPER = LONG | {"hyperprior": "plug_in", "bias": False, "options": LESS}
PLAIN = {"options": TIGHT["options"]}
KERNEL = {"features": "kernel", "width": 1.0, "options": pcvm.EMOptions(tol=1e-7), "basis": X[:8]}
BOTTOM_UP = {"estimation": "bottom-up", "width": 1.5, "basis": 30, "class_weight": "balanced"}
BALANCED = {"width": 1.5, "class_weight": "balanced"}
UP = {"estimation": "bottom-up", "width": 1.5, "options": ROUGH, "basis": (THREE[::9], TREES[::9])}
FEW = {"width": 1.5, "random_state": 3}
NARROW = {"width": 0.7, "basis": THREE[::3]}
OWN = {"std": "weights"}  # the process takes as many rows as there is room for
#: estimator, data, limit in bytes, what it differs by, and an attribute that is compared so, too
CASES = {
    "PCVM": (PCVM(**TIGHT, basis=50), "two", 2e5, 1e-8, "weight_"),
    "PCVM, proper": (PCVM(**GIVEN), "two", 2e5, 1e-8, "weight_"),
    "PCVM, chen2009": (PCVM(**GIVEN, hyperprior="chen2009"), "two", 2e5, 1e-8, "weight_"),
    "PCVM, jeffreys": (PCVM(**GIVEN, hyperprior="jeffreys"), "two", 2e5, 1e-8, "weight_"),
    "PCVM on every row": (PCVM(**TIGHT), "eighty", 5e5, 1e-8, "weight_"),
    "PCVM, bottom-up": (PCVM(**BOTTOM_UP), "two", 1e6, 1e-8, "weight_"),
    "PCVM, bottom-up, logit": (PCVM(**BOTTOM_UP, likelihood="logit"), "two", 1e6, 1e-8, "weight_"),
    "sparse, linear": (SPARSE(**PLAIN), "more", 2e4, 1e-8, "coef_"),
    "sparse, quadratic": (SPARSE(**PLAIN, features="quadratic"), "more", 2e4, 1e-8, "coef_"),
    "sparse, laplace": (SPARSE(**KERNEL, prior="laplace"), "two", 2e5, 1e-6, "bias_"),
    "sparse, jeffreys": (SPARSE(**KERNEL, prior="jeffreys"), "more", 2e5, 1e-6, "bias_"),
    "mPCVM1": (MPCVM(hyperprior="jeffreys", **LONG), "three", 3e5, 1e-7, None),
    "mPCVM1, proper": (MPCVM(**PROPER), "three", 3e5, 1e-7, None),
    "mRVM2": (MRVM(estimation="em", **LONG), "three", 3e5, 1e-7, None),
    "mPCVM2": (MPCVM(**UP), "three", 3e5, 1e-7, None),
    "mPCVM2 with biases": (MPCVM(**UP, bias=True), "three", 3e5, 1e-7, None),
    "mRVM1": (MRVM(**UP), "three", 3e5, 1e-7, None),
    "RVM": (RVM(**BALANCED), "eighty", 2e5, 1e-8, "weight_"),
    "RVM, three": (RVM(**BALANCED), "three", 2e5, 1e-8, "weight_"),
    "RVM, centres": (RVM(width=1.5, basis=X[:60]), "two", 1e6, 1e-8, "weight_"),
    "RVM, probit": (RVM(**NARROW, link="probit"), "three", 2e5, 1e-8, "weight_"),
    "RVM, its width": (RVM(basis=THREE[::3], width="evidence"), "three", 2e5, 1e-8, "weight_"),
    "regression": (NUMBERS(**FEW, **OWN, basis=30), "numbers", 1e6, 1e-6, None),
    "batch": (NUMBERS(**FEW, **OWN, basis=30, method="batch"), "numbers", 1e6, 1e-6, None),
    "regression on every row": (NUMBERS(**FEW, **OWN), "numbers", 1e6, 1e-6, None),
}
THREADED = {"PCVM", "PCVM, jeffreys", "PCVM, bottom-up", "sparse, linear", "mRVM2", "mPCVM2"}
DASK = [name for name in CASES if name.startswith("m")]
DASK += ["PCVM, proper", "PCVM, jeffreys", "sparse, laplace", "sparse, jeffreys"]
DASK += ["RVM, centres", "RVM, probit", "RVM, its width"]
synchronous = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def in_memory():
    """Return what fits an estimator of CASES with all rows in memory, each once."""
    return cache(lambda name: clone(CASES[name][0]).fit(*DATA[CASES[name][1]]))


@pytest.mark.parametrize("name", CASES)
def test_a_memory_limit_changes_nothing_but_memory(name, in_memory):
    _, data, limit, atol, attribute = CASES[name]
    rows, y = DATA[data]
    whole = in_memory(name)
    some = clone(whole).set_params(memory_limit=limit)
    with parallel_config(n_jobs=2 if name in THREADED else None):
        some.fit(rows, y)
    for kept in ("support_", "selected_", "relevance_vectors_"):
        if hasattr(whole, kept):
            np.testing.assert_array_equal(getattr(some, kept), getattr(whole, kept))
    if attribute:
        found, wanted = getattr(some, attribute), getattr(whole, attribute)
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=atol)
    found, wanted = (predicted(model, rows) for model in (some, whole))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=atol)
    goal = "log_posterior_" if hasattr(whole, "log_posterior_") else "log_evidence_"
    assert getattr(some, goal) == pytest.approx(getattr(whole, goal), abs=max(atol, 1e-8))


LAZY = [*((name, "synchronous") for name in DASK), ("PCVM, jeffreys", "threads")]


@pytest.mark.parametrize(("name", "scheduler"), LAZY)
def test_dask_arrays_give_the_same_fit(name, scheduler, in_memory):
    _, data, _, atol, attribute = CASES[name]
    rows, y = DATA[data]
    wanted = in_memory(name)
    with dask.config.set(scheduler=scheduler):
        lazy = da.from_array(rows, chunks=(3 * len(rows) // 7, rows.shape[1] - 1))
        labels = [da.from_array(y, chunks=110)]
        if name == "PCVM, proper":  # labels may be an array
            labels.append(y)
        for label in labels:
            found = clone(wanted).fit(lazy, label)
            probability = found.predict_proba(lazy).compute()
            np.testing.assert_allclose(probability, wanted.predict_proba(rows), atol=atol)
        if attribute:
            found_, wanted_ = getattr(found, attribute), getattr(wanted, attribute)
            np.testing.assert_allclose(found_, wanted_, atol=atol)
        for each in ("relevance_vectors_", "classes_", "n_features_in_", "width_"):
            np.testing.assert_array_equal(getattr(found, each), getattr(wanted, each))
        np.testing.assert_array_equal(found.predict(lazy).compute(), wanted.predict(rows))
        scores = wanted.decision_function(rows)
        assert found.decision_function(lazy).shape == scores.shape
        np.testing.assert_allclose(found.decision_function(rows), scores, atol=100 * atol)


WIDTH_CASES = [
    (PCVM(basis=30, width="shared"), "two"),
    (PCVM(estimation="bottom-up", width="shared", basis=15, cv=2), "two"),
    (MPCVM(basis=15, width="evidence", options=SINGLE), "three"),
    (NUMBERS(basis=20, width="evidence"), "numbers"),
    (NUMBERS(width="shared", cv=2, basis=20), "numbers"),
]


@pytest.mark.parametrize(("model", "data"), WIDTH_CASES, ids=lambda each: str(each)[:40])
def test_a_width_is_chosen_on_a_part_of_the_rows(model, data):
    rows, y = DATA[data]
    model.set_params(memory_limit=1e6, random_state=0).fit(rows, y)
    name = "width_selection_" if hasattr(model, "width_selection_") else "selection_"
    assert model.width_ in getattr(model, name).widths
    assert model.score(rows, y) > 0.6


def test_a_width_of_relevance_vectors_is_chosen_on_some_rows(monkeypatch):
    monkeypatch.setattr(base, "WIDTH_ROWS", 40)
    rows, label, weight = X[:80], LABEL[:80], 1.0 + np.arange(80) % 2
    model = RVM(width="evidence", memory_limit=2e5).fit(rows, label, sample_weight=weight)
    assert model.width_ in model.width_selection_.widths
    whole = RVM(width=model.width_).fit(rows, label, sample_weight=weight)
    assert model.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-8)


def test_single_precision_is_close_also_of_rows_in_a_file(tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    whole = PCVM(width=1.5, basis=50).fit(X, WORDS)
    single = clone(whole).set_params(memory_limit=1e6, options=SINGLE).fit(mapped, WORDS)
    np.testing.assert_allclose(single.predict_proba(X), whole.predict_proba(X), atol=1e-4)


PEAK_CASES = [
    (PCVM(width=1.5, memory_limit=4e6, options=SHORT), 40_000, 100),
    (PCVM(width=1.5, memory_limit=4e6, options=SHORT), 160_000, 100),
    (NUMBERS(width=1.5, memory_limit=8e6), 60_000, 60),
]


@pytest.mark.parametrize(("model", "n_obs", "n_basis"), PEAK_CASES)
def test_peak_memory_follows_the_limit_and_not_the_rows(model, n_obs, n_basis):
    """Basis functions of all rows would take 29 to 128 MB."""
    rows, label = blobs(n_obs, seed=96)
    basis, y = pcvm.choose_basis(rows[:1000], label[:1000], n_basis, random_state=0), label
    if isinstance(model, pcvm.RVMRegressor):
        basis, y = basis[0], np.sin(rows[:, 0]) + 0.2 * label
    model.set_params(basis=basis).fit(rows[:2000], y[:2000])  # what is loaded and compiled once
    tracemalloc.start()
    model.fit(rows, y)
    # what the input checks hold grows with the rows: a few vectors of them
    peak = tracemalloc.get_traced_memory()[1] - 12 * rows.nbytes
    tracemalloc.stop()
    assert peak < 8e6


def test_features_of_many_rows_need_no_matrix_of_rows_by_rows():
    rows = fixed_rng(4).normal(size=(200_000, 2))
    assert SPARSE().fit(rows, rows[:, 0] + 0.5 * rows[:, 1] ** 2 > 0.2).selected_.tolist() == [0]


BATCH, TOP_DOWN = {"width": 1.0, "method": "batch"}, {"width": 1.0}
IMPOSSIBLE_LIMITS = [
    (PCVM(), "two", 100.0, "memory_limit=100 bytes is too small for 400 bases"),
    (PCVM(width="em"), "two", 1e9, "width='em'.*rows in chunks"),
    (PCVM(width=1.0, estimation="projection"), "two", 1e9, "estimation='projection'"),
    (MPCVM(width=1.0, options=SINGLE), "three", None, "no effect on rows in memory"),
    (MPCVM(**UP | {"options": SINGLE}), "three", 1e9, "needed None or a pcvm_pymc.BottomUpOptions"),
    (MPCVM(**TOP_DOWN), "three", 100.0, "too small for"),
    (SPARSE(**KERNEL, prior="student"), "two", 2e5, "prior='student': rows in chunks"),
    (RVM(width=1.0), "eighty", 1e3, "memory_limit=1e.03 bytes is too small for 80 rows"),
    (RVM(**BATCH), "eighty", 1e9, "method='batch': it needs the basis functions"),
    (RVM(method="random"), "eighty", None, "'method' parameter of RVMClassifier"),
    (NUMBERS(star=True), "numbers", 1e6, "star=True: it keeps all training rows"),
    (NUMBERS(basis=40), "numbers", 1e4, "too small for 42 bases; needed at least 2.1.e.05"),
    (NUMBERS(), "numbers", 1e4, "too small for 400 rows"),
    (NUMBERS(**BATCH, basis=40), "numbers", 1e4, "too small for 42 bases"),
    (NUMBERS(**BATCH, likelihood="student-t"), "numbers", 1e6, "needed method='sequential'"),
]


@pytest.mark.parametrize(("model", "data", "limit", "words"), IMPOSSIBLE_LIMITS, ids=range(15))
def test_limits_that_cannot_be_kept_are_named(model, data, limit, words):
    refused(words, model.set_params(memory_limit=limit).fit, *DATA[data])


# --- Dask arrays -------------------------------------------------------------------------------


ROWS = da.from_array(X, chunks=(100, 3))


@synchronous
def test_bases_and_width_are_chosen_among_dask_rows():
    model = PCVM(basis=20, random_state=0).fit(ROWS, WORDS)
    assert len(model.weight_) <= 20
    assert all((each == X).all(axis=1).any() for each in model.relevance_vectors_)
    assert model.score(X, WORDS) > 0.7


@synchronous
def test_two_classes_among_dask_rows_of_a_machine_multiclass_name():
    model = MPCVM(basis=15, width=1.5, options=pcvm.EMOptions(tol=1e-2)).fit(ROWS, WORDS)
    assert model.decision_function(ROWS).shape == (400,)
    assert model.predict_proba(ROWS).shape == (400, 2)
    assert np.mean(model.predict(ROWS).compute() == WORDS) > 0.7


@synchronous
def test_machines_that_differ_in_their_classes_alone_predict_each_its_own():
    fits = [PCVM(basis=9, width=1.5).fit(X, np.where(WORDS == "yes", *p)) for p in ("ab", "cd")]
    first, second = dask.compute(*(each.predict(ROWS) for each in fits))
    assert set(first) == {"a", "b"}
    assert set(second) == {"c", "d"}


@synchronous
def test_rows_of_an_unknown_number():
    kept = ROWS[ROWS[:, 0] > 0]  # its shape is not known before it is computed
    found, classes = dask_rows(kept, WORDS[X[:, 0] > 0], 50)
    assert found.n_obs == np.sum(X[:, 0] > 0)
    assert classes.tolist() == ["no", "yes"]


BAD_DASK_INPUT = [
    (PCVM(width=1.0, basis=10), ROWS, WORDS[:10], r"y has shape \(10,\); needed \(400,\)"),
    (PCVM(width=1.0, basis=10), ROWS[:, 0], WORDS, r"X has shape \(400,\)"),
    (PCVM(width=1.0, basis=10), ROWS * np.nan, WORDS, "NaN or infinite"),
    (PCVM(width=1.0, basis=10), ROWS, np.zeros(400), "y has 1 classes; needed two"),
    (PCVM(width=1.0), ROWS, WORDS, "basis=.auto. is a basis function on every row"),
    (MRVM(**TOP_DOWN), ROWS, MORE, "basis=.auto. is a basis function on every row"),
    (MRVM(**TOP_DOWN, basis=9), ROWS, np.ones(400), "has 1 classes; needed two or more"),
    (SPARSE(), ROWS, WORDS, "rows in Dask arrays need features='kernel'"),
    (RVM(width=1.0), ROWS, WORDS, "basis=.auto. is a basis function on every row"),
    (RVM(width=1.0, basis=9, method="batch"), ROWS, WORDS, "method='batch': it needs the basis"),
    (RVM(width=1.0, basis=9, estimation="posterior"), ROWS, WORDS, "estimation='posterior'"),
    (RVM(width=1.0, basis=9, class_weight="balanced"), ROWS, WORDS, "class_weight was given"),
    (RVM(width=1.0, basis=9, memory_limit=1e3), ROWS, WORDS, "too small for 9 bases"),
    (PCVM(basis=5, categorical_features=[0]), ROWS, WORDS, "categorical_features=.0. was given"),
]


@pytest.mark.parametrize(("model", "rows", "y", "words"), BAD_DASK_INPUT, ids=range(14))
@synchronous
def test_bad_dask_input_is_named(model, rows, y, words):
    refused(words, model.fit, rows, y)


@synchronous
def test_relevance_vectors_of_dask_rows_need_no_column_of_all_rows():
    """In memory 64 candidates and the vectors of 100,000 rows are 50 MB and more."""
    rows, label = blobs(100_000, seed=96)
    given = {"basis": rows[:40], "options": pcvm.EvidenceOptions(max_iter=3)}
    model = RVM(width=1.5, memory_limit=4e6, **given)
    lazy, y = da.from_array(rows, chunks=(20_000, 2)), da.from_array(label, chunks=20_000)
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(lazy[:2000], y[:2000])
    tracemalloc.start()
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(lazy, y)
    peak = tracemalloc.get_traced_memory()[1] - 12 * rows.nbytes
    tracemalloc.stop()
    assert peak < 4e6


@synchronous
def test_some_rows_are_drawn_of_every_class():
    label = np.where(np.arange(400) < 395, -1.0, 1.0)
    share = choose_share(label, 50, np.random.default_rng(0))
    assert np.sum(label[share] > 0) >= 1
    assert len(share) == 50
    rows, _ = dask_rows(ROWS, label, 50)
    some, drawn = gathered(rows, 60)
    np.testing.assert_array_equal(some, gathered(rows, 60)[0])
    assert 0 < np.sum(drawn > 0) < len(drawn) < 80
