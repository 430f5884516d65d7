"""Weights of rows and of classes in every classifier."""

import re

import dask.array as da
import numpy as np
import pytest
import sklearn
from problems import blobs, fixed_rng, refused
from sklearn.base import clone
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.core.problem import Problem

PCVM, MPCVM, MRVM = pcvm.PCVMClassifier, pcvm.MPCVMClassifier, pcvm.MRVMClassifier
RVM, SPARSE = pcvm.RVMClassifier, pcvm.SparseProbitClassifier
# one problem, under which a fit with weights finds the same mode as that of repeated rows
X, LABEL = blobs(48, seed=21, gap=1.2, fixed=True)
Y = np.where(LABEL > 0, "yes", "no")
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
TIMES = fixed_rng(3).integers(1, 4, size=48)
# the first of each row in order, its copies anywhere behind
COPIES = fixed_rng(5).permutation(np.repeat(np.arange(48), TIMES - 1))
COPIES = np.concatenate([np.arange(48), COPIES])
NEW = fixed_rng(4).normal(size=(30, 2))
CENTRES = X[:10]
SIGNED = (CENTRES, LABEL[:10])
EM, UP = pcvm.EMOptions, pcvm.BottomUpOptions(tol=1e-2)
EVIDENCE = pcvm.EvidenceOptions(tol=1e-7)

TWO = [
    PCVM(width=1.5, basis=SIGNED),
    PCVM(width=1.5, basis=SIGNED, hyperprior="jeffreys", likelihood="logit"),
    PCVM(width=1.5, basis=SIGNED, estimation="bottom-up"),
    PCVM(width=1.5, basis=SIGNED, memory_limit=1e5, options=EM(tol=1e-8)),
    PCVM(width="evidence", basis=SIGNED),
    RVM(width=0.8, basis=CENTRES, options=EVIDENCE),
    RVM(width="evidence", basis=CENTRES, link="probit", options=EVIDENCE),
    SPARSE(),
    SPARSE(prior="laplace", bias="free"),
    SPARSE(features="kernel", width=1.5, basis=CENTRES, memory_limit=1e5),
    PCVM(random_state=0),
    PCVM(n_vectors=4, random_state=0),
    PCVM(width=1.0, estimation="em"),
    PCVM(estimation="projection", width=1.0, basis=20, random_state=0),
    PCVM(estimation="bottom-up", width=1.0),
    PCVM(basis=20, width=1.0, memory_limit=1e6),
    RVM(random_state=0),
]
KINDS = (CENTRES, CLASS[:10])
THREE = [
    MPCVM(width=1.5, basis=KINDS),
    MPCVM(width=1.5, basis=KINDS, estimation="bottom-up", options=UP),
    MRVM(width=1.5, basis=KINDS),
    MRVM(width=1.5, basis=KINDS, estimation="em", options=EM(tol=1e-2)),
    RVM(width=1.5, basis=CENTRES, options=EVIDENCE),
    SPARSE(prior="laplace", gamma=2.0),
    SPARSE(features="kernel", width=1.0),
    MPCVM(random_state=0),
    MRVM(width="shared", random_state=0),
]
ALL = [PCVM, MPCVM, MRVM, RVM, SPARSE]


EVERY = [*((each, Y) for each in TWO), *((each, CLASS) for each in THREE)]


@pytest.mark.parametrize(("model", "y"), EVERY)
def test_a_fit_with_weights_is_that_of_repeated_rows(model, y):
    found = clone(model).fit(X, y, sample_weight=TIMES)
    copied = clone(model).fit(X[COPIES], y[COPIES])
    np.testing.assert_allclose(copied.predict_proba(NEW), found.predict_proba(NEW), atol=1e-8)
    if hasattr(copied, "support_"):  # numbers of rows as they were given
        among = copied.support_ >= 0
        rows = X[COPIES][copied.support_[among]]
        np.testing.assert_array_equal(rows, copied.relevance_vectors_[among])
    plain = clone(model).fit(X, y).predict_proba(NEW)
    assert np.abs(plain - found.predict_proba(NEW)).max() > 5e-3  # they do count


def test_an_average_weighs_its_cells_by_the_rows_weights():
    model = PCVM(width="shared", random_state=0).fit(X, Y, sample_weight=TIMES)
    cell = model.selection_.points[0]
    Phi = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / cell.width**2)
    prior = pcvm.Hyperprior(5.0, 5.0 * cell.scale**2, 1.0, 1.0)
    problem = Problem(Phi, LABEL, LABEL, prior).weighted(TIMES)
    at = leave_one_out(problem, cell.result.weight, cell.result.bias, np.arange(48))
    np.testing.assert_allclose(cell.loo.log_density, at.log_density, rtol=1e-10)
    assert model.component_weights_.sum() == pytest.approx(1.0)


def test_rows_of_weight_zero_are_left_out_and_vectors_keep_their_numbers():
    weight = np.where(np.arange(48) % 3 == 0, 0.0, 1.0)
    kept = np.flatnonzero(weight)
    model = PCVM(width=1.0, hyperprior="jeffreys")
    found = clone(model).fit(X, Y, sample_weight=weight)
    wanted = clone(model).fit(X[kept], Y[kept])
    np.testing.assert_allclose(found.predict_proba(NEW), wanted.predict_proba(NEW), rtol=1e-9)
    np.testing.assert_array_equal(X[found.support_], found.relevance_vectors_)


@pytest.mark.parametrize("kind", ALL)
def test_a_class_of_weight_zero_is_absent(kind):
    kept, options = CLASS != 1, {"prior": "laplace"} if kind is SPARSE else {"width": 1.0}
    absent = kind(class_weight={1: 0.0}, **options).fit(X, CLASS)
    dropped = kind(**options).fit(X[kept], CLASS[kept])
    zeros = kind(**options).fit(X, CLASS, sample_weight=kept)
    assert absent.classes_.tolist() == [0, 2]
    for model in (absent, zeros):
        np.testing.assert_array_equal(model.predict_proba(NEW), dropped.predict_proba(NEW))
        if kind is not SPARSE:  # numbers of rows, not of features
            np.testing.assert_array_equal(np.flatnonzero(kept)[dropped.support_], model.support_)


@pytest.mark.parametrize("kind", ALL)
def test_weights_of_classes_are_weights_of_their_rows(kind):
    y = np.where(X[:, 0] < np.sort(X[:, 0])[36], "often", "seldom")
    each = {"often": 2 / 3, "seldom": 2.0}
    options = {"width": 1.5, "basis": 8}
    if kind is SPARSE:
        options = {"prior": "laplace"}
    by_class = kind(class_weight=each, **options).fit(X, y)
    balanced = kind(class_weight="balanced", **options).fit(X, y)
    by_row = kind(**options).fit(X, y, sample_weight=np.vectorize(each.get)(y))
    for model in (by_class, balanced):
        np.testing.assert_allclose(model.predict_proba(NEW), by_row.predict_proba(NEW), rtol=1e-9)


def test_refits_that_choose_a_width_have_the_weights_once():
    model = RVM(cv=2, random_state=0, class_weight={"no": 1.0, "yes": 3.0}).fit(X, Y)
    twice = RVM(cv=2, random_state=0).fit(X, Y, sample_weight=np.where(Y == "yes", 3.0, 1.0))
    np.testing.assert_array_equal(model.width_scores_, twice.width_scores_)


@pytest.mark.parametrize("method", ["evidence", "validity", "em"])
def test_widths_are_scored_as_on_repeated_rows(method):
    options = {"method": method, "basis": SIGNED, "widths": [0.7, 2.0]}
    found = pcvm.select_width(X, Y, sample_weight=TIMES, **options)
    wanted = pcvm.select_width(X[COPIES], Y[COPIES], **options)
    if method == "em":  # whose bounds are distances of the rows
        assert found.width == pytest.approx(wanted.width, rel=1e-3)
    else:
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)


def test_weights_travel_by_metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        model = RVM(width=1.5, basis=CENTRES).set_fit_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=True), model)
        scoring = make_scorer(accuracy_score).set_score_request(sample_weight=True)
        how = {"cv": 2, "return_estimator": True, "scoring": scoring}
        found = cross_validate(pipe, X, Y, params={"sample_weight": TIMES}, **how)
        plain = cross_validate(pipe, X, Y, params={"sample_weight": np.ones(len(Y))}, **how)
    for one, other in zip(found["estimator"], plain["estimator"], strict=True):
        assert one[-1].log_evidence_ != other[-1].log_evidence_


LOGARITHMS = [(PCVM(random_state=0, basis=SIGNED), Y), (THREE[1], CLASS), (THREE[4], CLASS)]


@pytest.mark.parametrize(("model", "y"), LOGARITHMS)
def test_log_probabilities_are_exact_where_probabilities_vanish(model, y):
    model = clone(model).fit(X, y)
    found = model.predict_log_proba(NEW)
    np.testing.assert_allclose(np.exp(found), model.predict_proba(NEW), rtol=1e-6, atol=1e-12)
    lazy = model.predict_log_proba(da.from_array(NEW, chunks=(10, 2)))
    np.testing.assert_allclose(lazy.compute(), found, rtol=1e-12)
    far = SPARSE(prior="laplace", gamma=1e-3).fit(X, Y).predict_log_proba(100 * NEW)
    assert np.isfinite(far).all()
    assert far.min() < -1000


ODD = np.arange(48) == 3
UNUSABLE_WEIGHTS = [
    *((np.where(ODD, each, TIMES), "sample_weight has the value .* in row 3; needed numbers from 0")
      for each in (-1.0, np.nan, np.inf, 1e300)),
    (np.zeros(48), "sample_weight has zeros alone; needed at least one non-zero"),
    (np.ma.array(TIMES, mask=ODD), "sample_weight has 1 masked"),
    (TIMES.astype(str), "sample_weight has values that are not numbers"),
    *((each, r"sample_weight has shape \(.*\); needed \(48,\), one weight for each row")
      for each in (np.ones(5), TIMES[:, None], np.ones((48, 2)))),
]  # fmt: skip
UNUSABLE_CLASS_WEIGHTS = [
    *(({"no": each}, re.escape(f"class_weight['no']={each!r}; needed a number from 0 to"))
      for each in (-1.0, np.nan, np.inf, 1e300, "2", None, True)),
    ({"no": 0.0}, "y has 1 class.*'yes'.; needed exactly two"),
    ({"no": 0.0, "yes": 0}, "sample_weight, times class_weight, has zeros alone; needed"),
    ("balance", "balance"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
def test_weights_that_cannot_be_taken_are_refused(kind):
    for weight, words in UNUSABLE_WEIGHTS:
        refused(words, kind().fit, X, Y, sample_weight=weight)
        refused(words, pcvm.select_width, X, Y, sample_weight=weight)
    for weight, words in UNUSABLE_CLASS_WEIGHTS:
        refused(words, kind(class_weight=weight).fit, X, Y)


def test_dask_arrays_with_weights_and_three_classes_are_refused_by_name():
    with pytest.raises(ValueError, match="given with Dask arrays"):
        PCVM(basis=5).fit(da.from_array(X), da.from_array(LABEL), sample_weight=TIMES)
    refused("has 3 classes; needed two: for several use MPCVMClassifier", PCVM().fit, X, CLASS)
