"""RVM regression with weights of rows and with known noise of rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from problems import fixed_rng, refused
from sklearn.base import clone
from sklearn.model_selection import cross_validate

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.likelihoods import StudentT
from pcvm_pymc.estimators.refits import Refits
from pcvm_pymc.estimators.training import TrainingData

STARTS = pcvm.EvidenceOptions(noise_starts=(0.1,))
RVM = pcvm.RVMRegressor
X = fixed_rng(1).uniform(-3.0, 3.0, size=(60, 2))
LATENT = np.sin(X[:, 0]) + 3.0
NOISE = fixed_rng(2).uniform(0.05, 0.6, size=60)
Y = LATENT + NOISE * fixed_rng(3).normal(size=60)
TIMES = fixed_rng(4).integers(1, 5, size=60)
# the first of each row in order, its copies anywhere behind
COPIES = np.concatenate(
    [np.arange(60), fixed_rng(5).permutation(np.repeat(np.arange(60), TIMES - 1))]
)
NEW = fixed_rng(6).uniform(-4.0, 4.0, size=(30, 2))
CENTRES = X[:15]
FIXED = {"width": 1.3, "basis": CENTRES}


def same(one, other, rtol=1e-6):
    for name in ("log_evidence_", "noise_", "width_"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-7), name
    pairs = zip(one.predict(NEW, return_std=True), other.predict(NEW, return_std=True), strict=True)
    for pair in pairs:
        np.testing.assert_allclose(*pair, rtol=rtol)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "batch"},
        {"likelihood": "student-t"},
        {"likelihood": "student-t", "method": "batch"},
        {"std": "weights", "noise": 0.3},
        {"star": True},
        {"memory_limit": 1e6, "std": "weights"},
        {"memory_limit": 4e5, "std": "weights", "likelihood": "student-t"},
        {"kernel": "laplacian"},
    ],
)
def test_a_fit_with_weights_is_that_of_repeated_rows(options, monkeypatch):
    """With copies as one row, as `fit` has them, and with each copy as a row."""
    model = RVM(**FIXED | options)
    found = clone(model).fit(X, Y, sample_weight=TIMES)
    same(found, clone(model).fit(X[COPIES], Y[COPIES]), rtol=1e-9)
    monkeypatch.setattr(TrainingData, "merged", lambda self: self)
    same(found, clone(model).fit(X[COPIES], Y[COPIES]), rtol=1e-4)
    plain = clone(model).fit(X, Y).predict(NEW)
    assert np.abs(plain - found.predict(NEW)).max() > 1e-3  # they do count


@pytest.mark.parametrize("width", ["auto", "shared", "evidence", "validity"])
def test_a_width_is_chosen_as_with_repeated_rows(width):
    model = RVM(width=width, random_state=0)
    found = clone(model).fit(X, Y, sample_weight=TIMES)
    copied = clone(model).fit(X[COPIES], Y[COPIES])
    np.testing.assert_allclose(found.width_scores_, copied.width_scores_)
    same(found, copied)
    np.testing.assert_array_equal(X[COPIES][copied.support_], copied.relevance_vectors_)


def test_held_out_rows_count_by_weights_and_have_their_own_noise():
    model, weight = RVM(width=1.3, random_state=0), np.linspace(0.5, 3.0, 60)
    data = TrainingData(X, Y, weight, noise=NOISE)
    folds = [(np.arange(40), np.arange(40, 60))]
    model._encoding_ = None
    refits = Refits(model._estimation, data, folds, None, lambda: None)
    found = refits.race(1, lambda i, k: refits.log_density(1.3, k)).scores
    fit = RVM(width=1.3, std="weights").fit(
        X[:40], Y[:40], sample_weight=weight[:40], noise=NOISE[:40]
    )
    mean, std = fit.predict(X[40:], return_std=True)
    square = std**2 + NOISE[40:] ** 2
    each = -0.5 * ((Y[40:] - mean) ** 2 / square + np.log(2.0 * np.pi * square))
    assert found[0] == pytest.approx(np.average(each, weights=weight[40:]))


def test_rows_of_weight_zero_are_left_out_and_vectors_keep_their_numbers():
    weight = np.where(np.arange(60) % 3 == 0, 0.0, 1.0)
    kept, some = np.flatnonzero(weight), {"width": 1.3, "random_state": 0}
    found = RVM(**some).fit(X, Y, sample_weight=weight)
    same(found, RVM(**some).fit(X[kept], Y[kept]), rtol=1e-12)
    np.testing.assert_array_equal(X[found.support_], found.relevance_vectors_)


def test_targets_that_differ_stay_apart():
    """Rows of equal inputs and other targets: their spread tells of the noise."""
    rows, number = np.repeat(X, 2, axis=0), np.repeat(LATENT, 2) + np.tile([0.5, -0.5], 60)
    model = RVM(**FIXED).fit(rows, number)
    assert 0.45 < model.noise_ < 0.7


# --- known noise --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"method": "batch"}, {"star": True}, {"memory_limit": 1e6}, {"width": "shared"}]
)
def test_equal_known_noise_is_the_noise_argument(options):
    model = RVM(**FIXED | {"random_state": 0} | options)
    found = clone(model).fit(X, Y, noise=np.full(60, 0.3))
    wanted = clone(model).set_params(noise=0.3).fit(X, Y)
    assert found.log_evidence_ == pytest.approx(wanted.log_evidence_)
    assert found.width_ == wanted.width_
    (mean, std), (same_mean, total) = (m.predict(NEW, return_std=True) for m in (found, wanted))
    np.testing.assert_allclose(mean, same_mean, rtol=1e-9)
    np.testing.assert_allclose(std**2 + 0.09, total**2, rtol=1e-5)  # of the function alone
    assert found.noise_ == 0.0


@pytest.mark.parametrize("options", [{}, {"star": True}, {"memory_limit": 1e6, "std": "weights"}])
def test_known_noise_with_weights_is_that_of_repeated_rows(options):
    model = RVM(**FIXED | options)
    found = clone(model).fit(X, Y, sample_weight=TIMES, noise=NOISE)
    same(found, clone(model).fit(X[COPIES], Y[COPIES], noise=NOISE[COPIES]), rtol=1e-4)


def test_the_process_has_the_noise_of_some_of_the_rows(monkeypatch):
    """The variance of a Gaussian process, directly, where it is given 20 of the rows."""
    monkeypatch.setattr("pcvm_pymc.estimators.evidence.MOST_ROWS", 20)
    model = RVM(width=1.3, random_state=0).fit(X, Y, sample_weight=TIMES, noise=NOISE)
    process, kernel = model._process_, model._kernel_
    some = [np.flatnonzero((row == X).all(axis=1))[0] for row in process.rows]
    cross, noise = kernel(NEW, process.rows), NOISE[some] ** 2 / TIMES[some]
    C = process.amplitude * kernel(process.rows, process.rows) + np.diag(noise)
    known = np.einsum("ij,jk,ik->i", cross, np.linalg.inv(C), cross) * process.amplitude**2
    np.testing.assert_allclose(process.moments(NEW)[1], process.amplitude - known, rtol=1e-6)


def test_known_noise_predicts_better_and_covers_the_function():
    rng, errors, covered = fixed_rng(7), [], []
    for _ in range(10):
        number = LATENT + NOISE * rng.normal(size=60)
        known, plain = RVM(width=2.0).fit(X, number, noise=NOISE), RVM(width=2.0).fit(X, number)
        mean, std = known.predict(X, return_std=True)
        errors.append([np.mean((found - LATENT) ** 2) for found in (mean, plain.predict(X))])
        covered.append(np.mean(np.abs(mean - LATENT) < 2.0 * std))
    better, worse = np.mean(errors, axis=0)
    assert better < 0.8 * worse
    assert np.mean(covered) > 0.85


def test_weights_and_noise_travel_by_metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        model = RVM(**FIXED).set_fit_request(sample_weight=True, noise=True)
        model.set_score_request(sample_weight=False)
        params = {"sample_weight": TIMES, "noise": NOISE}
        how = {"cv": 2, "return_estimator": True, "return_indices": True}
        found = cross_validate(model, X, Y, params=params, **how)
    for one, rows in zip(found["estimator"], found["indices"]["train"], strict=True):
        own = {"sample_weight": TIMES[rows], "noise": NOISE[rows]}
        same(one, RVM(**FIXED).fit(X[rows], Y[rows], **own), rtol=1e-12)


REFUSED = [
    ({}, {"noise": -NOISE}, "noise has the value -.* in row 0; needed positive"),
    ({}, {"noise": 0.3}, r"noise has shape \(\); needed \(60,\)"),
    ({"likelihood": "student-t"}, {"noise": NOISE}, "likelihood='student-t': each row's noise"),
    ({"noise": 0.3}, {"noise": NOISE}, "noise=0.3: each row's noise is known by noise"),
    (
        {},
        {"noise": np.append(1e-100, NOISE[1:])},
        "noise has the value 1e-100 in row 0; needed .*e-09",
    ),
    ({"noise": 1e200}, {}, r"noise has the value 1e\+200; needed .* 1e8 times the spread of y"),
    ({"likelihood": StudentT(1e-100)}, {}, "noise has the value 1e-100; needed"),
    ({"noise": 1e200, "estimation": "posterior"}, {}, r"noise has the value 1e\+200; needed"),
    ({"options": STARTS}, {"noise": NOISE}, "options=.* a known noise has no start"),
    ({}, {"sample_weight": -TIMES}, "sample_weight has the value -.* needed numbers from 0"),
    ({}, {"sample_weight": np.zeros(60)}, "sample_weight has zeros alone"),
    ({}, {"sample_weight": TIMES[:3]}, r"sample_weight has shape \(3,\); needed \(60,\)"),
]


@pytest.mark.parametrize(("options", "given", "words"), REFUSED)
def test_what_cannot_be_taken_is_refused(options, given, words):
    refused(words, RVM(**FIXED | options).fit, X, Y, **given)


# --- the posterior ------------------------------------------------------------------------------


def test_a_posterior_counts_weights_and_knows_the_noise():
    drawn = {
        "estimation": "posterior",
        "options": pcvm.PosteriorOptions(100),
        "random_state": 0,
        **FIXED,
    }
    weighted, copied = RVM(**drawn).fit(X, Y, TIMES), RVM(**drawn).fit(X[COPIES], Y[COPIES])
    pairs = [each.predict(NEW, return_std=True) for each in (weighted, copied)]
    np.testing.assert_allclose(*pairs, rtol=1e-9)
    known = RVM(**drawn).fit(X, Y, sample_weight=TIMES, noise=NOISE)
    latent, tree = known.idata_["posterior"]["latent"], known.idata_
    density = -0.5 * ((Y - latent) ** 2 / NOISE**2 + np.log(2.0 * np.pi * NOISE**2)) * TIMES
    np.testing.assert_allclose(tree["log_likelihood"]["target"], density, rtol=1e-9)
    np.testing.assert_array_equal(tree["constant_data"]["noise_std"], NOISE)
    assert "noise" not in {*tree["posterior"], *tree["constant_data"]}
    spread = (tree["posterior_predictive"]["target"] - latent).std(("chain", "draw"))
    np.testing.assert_allclose(spread / NOISE, 1.0, atol=0.25)
    moments = latent.mean(("chain", "draw")), latent.std(("chain", "draw"))
    np.testing.assert_allclose(known.predict(X, return_std=True), moments, rtol=1e-9)


def test_exports_and_validity_have_the_weights():
    model = RVM(**FIXED, std="weights")
    weighted, copied = model.fit(X, Y, sample_weight=TIMES), clone(model).fit(X[COPIES], Y[COPIES])
    assert pcvm.to_c(weighted, return_std=True) == pcvm.to_c(copied, return_std=True)
    found = [pcvm.validity(weighted, X, Y), pcvm.validity(copied, X[COPIES], Y[COPIES])]
    assert found[0].log_validity == pytest.approx(found[1].log_validity)
    known = SimpleNamespace(fit=clone(model).fit(X, Y, noise=NOISE))
    refused("known noise of each row", pcvm.validity, known.fit, X, Y)
