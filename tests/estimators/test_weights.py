"""Weights of rows and of classes, and known noise of rows: rows of weights are repeated rows."""

import re

import dask.array as da
import numpy as np
import pytest
import sklearn
from problems import assert_probabilities, blobs, fixed_rng, predicted, refused
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.core.pieces.likelihoods import StudentT
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.chooser import Refits
from pcvm_pymc.estimators.training import TrainingData, inner_folds

PCVM, MPCVM, MRVM = pcvm.PCVMClassifier, pcvm.MPCVMClassifier, pcvm.MRVMClassifier
RVM, SPARSE, REGRESSOR = pcvm.RVMClassifier, pcvm.SparseProbitClassifier, pcvm.RVMRegressor
# one problem, under which a fit with weights finds the same mode as that of repeated rows
X, LABEL = blobs(48, seed=21, gap=1.2, fixed=True)
Y = np.where(LABEL > 0, "yes", "no")
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
NOISE = fixed_rng(2).uniform(0.05, 0.6, size=48)
NUMBER = np.sin(X[:, 0]) + 3.0 + NOISE * fixed_rng(6).normal(size=48)
TIMES = fixed_rng(3).integers(1, 4, size=48)
# the first of each row in order, its copies anywhere behind
COPIES = fixed_rng(5).permutation(np.repeat(np.arange(48), TIMES - 1))
COPIES = np.concatenate([np.arange(48), COPIES])
NEW = fixed_rng(4).normal(size=(30, 2))
CENTRES = X[:10]
SIGNED = (CENTRES, LABEL[:10])
EM, UP = pcvm.EMOptions, pcvm.BottomUpOptions(tol=1e-2)
EVIDENCE = pcvm.EvidenceOptions(tol=1e-7)
FIXED = {"width": 1.3, "basis": CENTRES}

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
    PCVM(**FIXED, estimation="posterior", options=pcvm.PosteriorOptions(100), random_state=1),
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
NUMBERS = [
    *(REGRESSOR(**FIXED, method=each) for each in ("sequential", "batch")),
    *(REGRESSOR(**FIXED, likelihood="student-t", method=each) for each in ("sequential", "batch")),
    REGRESSOR(**FIXED, std="weights", noise=0.3),
    REGRESSOR(**FIXED, star=True),
    REGRESSOR(**FIXED, std="weights", memory_limit=1e6),
    REGRESSOR(**FIXED, std="weights", memory_limit=4e5, likelihood="student-t"),
    REGRESSOR(**FIXED, kernel="laplacian"),
    *(REGRESSOR(width=each, random_state=0) for each in ("auto", "shared", "evidence", "validity")),
]
KNOWN = {"noise": NOISE}
EVERY = [
    *((each, Y, {}) for each in TWO),
    *((each, CLASS, {}) for each in THREE),
    *((each, NUMBER, {}) for each in NUMBERS),
    *((REGRESSOR(**FIXED, **each), NUMBER, KNOWN) for each in ({}, {"star": True})),
    (NUMBERS[6], NUMBER, KNOWN),
]
ALL = [PCVM, MPCVM, MRVM, RVM, SPARSE]
CHOSEN = {"log_evidence_", "noise_", "width_", "width_selection_"}


def answer(model):
    return predicted(model, NEW)


def fitted(model, y, rows=slice(None), **given):
    """Return a fit to some of the rows."""
    return clone(model).fit(X[rows], y[rows], **{name: each[rows] for name, each in given.items()})


@pytest.mark.parametrize(("model", "y", "given"), EVERY)
def test_a_fit_with_weights_is_that_of_repeated_rows(model, y, given, monkeypatch):
    """With copies as one row, as `fit` has them, and with each copy as a row."""
    found = fitted(model, y, sample_weight=TIMES, **given)
    copied = fitted(model, y, COPIES, **given)
    np.testing.assert_allclose(answer(copied), answer(found), rtol=1e-6, atol=1e-8)
    for name in vars(found).keys() & CHOSEN:
        values = vars(found)[name], vars(copied)[name]
        if name == "width_selection_":
            values = values[0].scores, values[1].scores
        np.testing.assert_allclose(*values, rtol=1e-7)
    if hasattr(copied, "support_"):  # numbers of rows as they were given
        among = copied.support_ >= 0
        rows = X[COPIES][copied.support_[among]]
        np.testing.assert_array_equal(rows, copied.relevance_vectors_[among])
    plain = fitted(model, y, **given)
    assert np.abs(answer(plain) - answer(found)).max() > 1e-3  # they do count
    if isinstance(model, REGRESSOR) and model.basis is CENTRES:
        monkeypatch.setattr(TrainingData, "merged", lambda self: self)
        each_a_row = fitted(model, y, COPIES, **given)
        np.testing.assert_allclose(answer(each_a_row), answer(found), rtol=1e-4)


def test_an_average_weighs_its_cells_by_the_rows_weights():
    model = PCVM(width="shared", random_state=0).fit(X, Y, sample_weight=TIMES)
    cell = model.selection_.points[0]
    Phi = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / cell.width**2)
    prior = pcvm.Hyperprior(5.0, 5.0 * cell.scale**2, 1.0, 1.0)
    problem = Problem(Phi, LABEL, LABEL, prior, row_weight=TIMES)
    at = leave_one_out(problem, cell.result.weight, cell.result.bias, np.arange(48))
    np.testing.assert_allclose(cell.loo.log_density, at.log_density, rtol=1e-10)
    assert model.component_weights_.sum() == pytest.approx(1.0)


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
    options = {"prior": "laplace"} if kind is SPARSE else {"width": 1.5, "basis": 8}
    by_row = kind(**options).fit(X, y, sample_weight=np.vectorize(each.get)(y))
    for given in (each, "balanced"):
        model = kind(class_weight=given, **options).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(NEW), by_row.predict_proba(NEW), rtol=1e-9)


# --- what is chosen, and what is left out -------------------------------------------------------


def test_refits_that_choose_a_width_have_the_weights_once():
    model = RVM(cv=2, random_state=0, class_weight={"no": 1.0, "yes": 3.0}).fit(X, Y)
    twice = RVM(cv=2, random_state=0).fit(X, Y, sample_weight=np.where(Y == "yes", 3.0, 1.0))
    np.testing.assert_array_equal(model.width_selection_.scores, twice.width_selection_.scores)


@pytest.mark.parametrize("by", ["evidence", "validity"])
def test_widths_are_scored_as_on_repeated_rows(by):
    options = {"by": by, "basis": SIGNED, "widths": [0.7, 2.0]}
    found = pcvm.select(X, Y, sample_weight=TIMES, **options)
    wanted = pcvm.select(X[COPIES], Y[COPIES], **options)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)


def test_held_out_rows_count_by_weights_and_have_their_own_noise():
    model, weight = REGRESSOR(width=1.3, random_state=0), np.linspace(0.5, 3.0, 48)
    data = TrainingData(X, NUMBER, weight, noise=NOISE)
    train, test = np.arange(32), np.arange(32, 48)
    model._encoding_ = None
    refits = Refits(model._estimation, data, [(train, test)])
    found = refits.raced(1, lambda i, k: refits.log_density(1.3, k)).scores
    fit = fitted(REGRESSOR(width=1.3, std="weights"), NUMBER, train, sample_weight=weight, **KNOWN)
    mean, std = predicted(fit, X[test]).T
    square = std**2 + NOISE[test] ** 2
    each = -0.5 * ((NUMBER[test] - mean) ** 2 / square + np.log(2.0 * np.pi * square))
    assert found[0] == pytest.approx(np.average(each, weights=weight[test]))


def test_rows_are_left_out_with_their_copies():
    once = PCVM(width="shared").fit(X, Y, sample_weight=TIMES)
    copied = PCVM(width="shared").fit(X[COPIES], Y[COPIES])
    np.testing.assert_allclose(copied.held_out_, once.held_out_[COPIES], atol=1e-8)
    twice = np.tile(X, (2, 1)), np.tile(Y, 2), np.tile(TIMES / 2, 2)  # copies with weights
    np.testing.assert_allclose(answer(PCVM(width="shared").fit(*twice)), answer(once), atol=1e-8)
    found = pcvm.loo(copied, X[COPIES], Y[COPIES])
    alone = pcvm.loo(PCVM().fit(X, Y), X, Y)
    assert found.n_data_points == len(COPIES)
    density = found.elpd_i.values
    np.testing.assert_array_equal(density, density[:48][COPIES])
    # rows whose copies stay would be predicted nearly as well as rows that were not left out
    assert found.elpd / len(COPIES) < alone.elpd / 48 + 0.1


def test_a_selection_and_a_projection_count_copies_as_weights():
    copies = X[COPIES], Y[COPIES]
    model = PCVM(estimation="em").fit(X, Y, sample_weight=TIMES)
    assert pcvm.select(*copies).scale == model.scale_
    wide = pcvm.select(np.tile(X, (3, 1)), np.tile(Y, 3), by="cv")
    assert wide.width > 0.4  # a narrow one remembers copies
    model = PCVM(kernel="rbf", width="shared").fit(*copies)
    path = pcvm.project(model, *copies, size=4)
    few = PCVM(width="shared", n_vectors=4).fit(X, Y, sample_weight=TIMES)
    np.testing.assert_allclose(path.classifier.predict_proba(X), few.predict_proba(X), atol=1e-8)
    held = model.held_out_[np.arange(len(COPIES)), (Y[COPIES] == "yes").astype(int)]
    assert pcvm.project(model, *copies).reference_elpd == pytest.approx(np.log(held).sum())


def test_folds_hold_out_copies_together():
    both = np.concatenate([X, X])
    for train, test in inner_folds(np.arange(96.0), 5, 0, X=both):
        assert len(train) + len(test) == 96
        assert {tuple(each) for each in both[train]}.isdisjoint(tuple(each) for each in both[test])
    few = X[:16]
    twice = np.tile(few, (2, 1)), np.tile(Y[:16], 2)
    model = pcvm.pcvm_model(*twice, width=1.0, basis=few, signs=LABEL[:16])
    brief = {"tune": 5, "draws": 5, "chains": 1, "max_iter": 50, "random_seed": 1, "quiet": True}
    posterior = pcvm.sample(model, method="gibbs", **brief)
    fold = pcvm.kfold(posterior, *twice, cv=2, **brief).fold
    np.testing.assert_array_equal(fold[:16], fold[16:])


def test_targets_that_differ_stay_apart():
    """Rows of equal inputs and other targets: their spread tells of the noise."""
    rows, number = np.repeat(X, 2, axis=0), np.repeat(np.sin(X[:, 0]), 2) + np.tile([0.5, -0.5], 48)
    assert 0.45 < REGRESSOR(**FIXED).fit(rows, number).noise_ < 0.7


# --- known noise --------------------------------------------------------------------------------


EQUAL = [{}, {"method": "batch"}, {"star": True}, {"memory_limit": 1e6}, {"width": "shared"}]


@pytest.mark.parametrize("options", EQUAL)
def test_equal_known_noise_is_the_noise_argument(options):
    model = REGRESSOR(**FIXED | {"random_state": 0} | options)
    found = fitted(model, NUMBER, noise=np.full(48, 0.3))
    wanted = fitted(model.set_params(noise=0.3), NUMBER)
    assert found.log_evidence_ == pytest.approx(wanted.log_evidence_)
    assert found.width_ == wanted.width_
    (mean, std), (same_mean, total) = answer(found).T, answer(wanted).T
    np.testing.assert_allclose(mean, same_mean, rtol=1e-9)
    np.testing.assert_allclose(std**2 + 0.09, total**2, rtol=1e-5)  # of the function alone
    assert found.noise_ == 0.0


def test_the_process_has_the_noise_of_some_of_the_rows(monkeypatch):
    """The variance of a Gaussian process, directly, where it is given 20 of the rows."""
    monkeypatch.setattr("pcvm_pymc.estimators.evidence.MOST_ROWS", 20)
    model = fitted(REGRESSOR(width=1.3, random_state=0), NUMBER, sample_weight=TIMES, **KNOWN)
    process, kernel = model._process_, model._kernel_
    some = [np.flatnonzero((row == X).all(axis=1))[0] for row in process.rows]
    cross, noise = kernel(NEW, process.rows), NOISE[some] ** 2 / TIMES[some]
    C = process.amplitude * kernel(process.rows, process.rows) + np.diag(noise)
    known = np.einsum("ij,jk,ik->i", cross, np.linalg.inv(C), cross) * process.amplitude**2
    np.testing.assert_allclose(process.moments(NEW)[1], process.amplitude - known, rtol=1e-6)


def test_a_posterior_counts_weights_and_knows_the_noise():
    how = {"options": pcvm.PosteriorOptions(100), "random_state": 0}
    model = REGRESSOR(estimation="posterior", **how, **FIXED)
    pair = fitted(model, NUMBER, sample_weight=TIMES), fitted(model, NUMBER, COPIES)
    np.testing.assert_allclose(*map(answer, pair), rtol=1e-9)
    known = fitted(model, NUMBER, sample_weight=TIMES, **KNOWN)
    latent, tree = known.idata_["posterior"]["latent"], known.idata_
    density = -0.5 * ((NUMBER - latent) ** 2 / NOISE**2 + np.log(2.0 * np.pi * NOISE**2)) * TIMES
    np.testing.assert_allclose(tree["log_likelihood"]["target"], density, rtol=1e-9)
    np.testing.assert_array_equal(tree["constant_data"]["noise_std"], NOISE)
    assert "noise" not in {*tree["posterior"], *tree["constant_data"]}
    spread = (tree["posterior_predictive"]["target"] - latent).std(("chain", "draw"))
    np.testing.assert_allclose(spread / NOISE, 1.0, atol=0.25)
    moments = latent.mean(("chain", "draw")), latent.std(("chain", "draw"))
    np.testing.assert_allclose(known.predict(X, return_std=True), moments, rtol=1e-9)


def test_exports_and_validity_have_the_weights():
    model = REGRESSOR(**FIXED, std="weights")
    pair = fitted(model, NUMBER, sample_weight=TIMES), fitted(model, NUMBER, COPIES)
    assert len({pcvm.to_c(each, return_std=True) for each in pair}) == 1
    rows = (X, NUMBER), (X[COPIES], NUMBER[COPIES])
    one, other = (pcvm.validity(fit, *each) for fit, each in zip(pair, rows, strict=True))
    assert one.log_validity == pytest.approx(other.log_validity)
    known = fitted(model, NUMBER, **KNOWN)
    refused("known noise of each row", pcvm.validity, known, X, NUMBER)


# --- routing and refusals -----------------------------------------------------------------------

BOTH = {"sample_weight": TIMES, **KNOWN}
ROUTED = [(RVM(**FIXED), Y, {"sample_weight": TIMES}), (REGRESSOR(**FIXED), NUMBER, BOTH)]


@pytest.mark.parametrize(("model", "y", "params"), ROUTED)
def test_weights_and_noise_travel_by_metadata_routing(model, y, params):
    with sklearn.config_context(enable_metadata_routing=True):
        asking = clone(model).set_fit_request(**dict.fromkeys(params, True))
        asking.set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=True), asking)
        how = {"cv": 2, "return_estimator": True, "return_indices": True}
        found = cross_validate(pipe, X, y, params=params, **how)
    for i, (train, test) in enumerate(zip(*found["indices"].values(), strict=True)):
        own = {name: each[train] for name, each in params.items()}
        scaler = StandardScaler().fit(X[train], sample_weight=TIMES[train])
        wanted = clone(model).fit(scaler.transform(X[train]), y[train], **own)
        score = wanted.score(scaler.transform(X[test]), y[test], TIMES[test])
        assert found["test_score"][i] == pytest.approx(score)
        np.testing.assert_allclose(answer(found["estimator"][i][-1]), answer(wanted), rtol=1e-12)


LOGARITHMS = [(PCVM(random_state=0, basis=SIGNED), Y), (THREE[1], CLASS), (THREE[4], CLASS)]


@pytest.mark.parametrize(("model", "y"), LOGARITHMS)
def test_log_probabilities_are_exact_where_probabilities_vanish(model, y):
    model = clone(model).fit(X, y)
    found = model.predict_log_proba(NEW)
    assert_probabilities(model.predict_proba(NEW), found, 1e-9)
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


STARTS = pcvm.EvidenceOptions(noise_starts=(0.1,))
UNUSABLE_NOISE = [
    ({}, -NOISE, "noise has the value -.* in row 0; needed positive"),
    ({}, np.append(1e-100, NOISE[1:]), "noise has the value 1e-100 in row 0; needed .*e-09"),
    ({"noise": 1e200}, None, r"noise has the value 1e\+200; needed .* 1e8 times the spread of y"),
    ({"likelihood": StudentT(1e-100)}, None, "noise has the value 1e-100; needed"),
    ({"noise": 1e200, "estimation": "posterior"}, None, r"noise has the value 1e\+200; needed"),
    ({}, 0.3, r"noise has shape \(\); needed \(48,\)"),
    ({"likelihood": "student-t"}, NOISE, "likelihood='student-t': each row's noise"),
    ({"noise": 0.3}, NOISE, "noise=0.3: each row's noise is known by noise"),
    ({"options": STARTS}, NOISE, "options=.* a known noise has no start"),
]


@pytest.mark.parametrize("kind", [*ALL, REGRESSOR])
def test_weights_that_cannot_be_taken_are_refused(kind):
    for weight, words in UNUSABLE_WEIGHTS:
        refused(words, kind().fit, X, NUMBER if kind is REGRESSOR else Y, sample_weight=weight)
        refused(words, pcvm.select, X, Y, sample_weight=weight)
    for weight, words in UNUSABLE_CLASS_WEIGHTS if kind is not REGRESSOR else ():
        refused(words, kind(class_weight=weight).fit, X, Y)


def test_known_noise_that_cannot_be_taken_is_refused():
    for options, noise, words in UNUSABLE_NOISE:
        refused(words, REGRESSOR(**FIXED | options).fit, X, NUMBER, noise=noise)


def test_dask_arrays_with_weights_and_three_classes_are_refused_by_name():
    given = da.from_array(X), da.from_array(LABEL)
    refused("given with Dask arrays", PCVM(basis=5).fit, *given, sample_weight=TIMES)
    refused("has 3 classes; needed two: for several use MPCVMClassifier", PCVM().fit, X, CLASS)
