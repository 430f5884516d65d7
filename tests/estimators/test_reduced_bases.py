"""``basis=`` of the models and estimators: few centres instead of all rows."""

import numpy as np
import pytest
from problems import blobs, map_result, refused
from scipy.stats import chi2

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces import kernels
from pcvm_pymc.core.pieces.centres import choose_rows
from pcvm_pymc.core.pieces.kernels import median_distance, width_bounds
from pcvm_pymc.experiments.datasets import ripley_mixture

X, LABEL = blobs(90, seed=90, gap=3.0)
WORDS = np.where(LABEL > 0, "yes", "no")


def test_a_number_of_bases_is_choose_basis():
    one = pcvm.PCVMClassifier(width=1.2, basis=20).fit(X, WORDS)
    centres, signs = pcvm.choose_basis(X, WORDS, 20, random_state=0)
    two = pcvm.PCVMClassifier(width=1.2, basis=(centres, signs)).fit(X, WORDS)
    np.testing.assert_array_equal(one.weight_, two.weight_)
    np.testing.assert_array_equal(one.relevance_vectors_, X[one.support_])
    np.testing.assert_array_equal(one.support_, two.support_)  # recognised as rows
    assert (one.weight_ * LABEL[one.support_] > 0).all()
    elsewhere = pcvm.PCVMClassifier(width=1.2, basis=(centres + 0.1, signs)).fit(X, WORDS)
    assert (elsewhere.support_ == -1).all()


def test_all_rows_as_given_centres_change_nothing():
    whole = pcvm.PCVMClassifier(random_state=0, width="cv").fit(X, WORDS)
    given = pcvm.PCVMClassifier(random_state=0, width="cv", basis=(X, LABEL)).fit(X, WORDS)
    assert given.width_ == whole.width_
    np.testing.assert_allclose(given.weight_, whole.weight_, atol=1e-12)
    np.testing.assert_array_equal(given.width_selection_.scores, whole.width_selection_.scores)


KERNEL = {"features": "kernel", "width": 1.2, "basis": 15, "prior": "jeffreys"}
PLUG_IN = {"width": 1.2, "basis": 15, "hyperprior": "plug_in"}
PROPER = PLUG_IN | {"hyperprior": pcvm.Hyperprior.plug_in()}
AGREE = [
    (pcvm.PCVMClassifier(**PLUG_IN), pcvm.pcvm_model, PROPER),
    (pcvm.SparseProbitClassifier(**KERNEL), pcvm.sparse_probit_model, KERNEL),
]


@pytest.mark.parametrize(("classifier", "make", "given"), AGREE)
def test_the_estimator_and_the_model_agree(classifier, make, given):
    model = make(X, WORDS, **given)
    assert model["centres"].get_value().shape == (15, 2)
    wanted = map_result(model)["optimizer_result"]["log_posterior"].item()
    assert classifier.fit(X, WORDS).log_posterior_ == pytest.approx(wanted, abs=1e-8)
    assert classifier.score(X, WORDS) > 0.7


def test_a_basis_of_plain_features_is_refused():
    refused("basis was given with features='linear'", pcvm.sparse_probit_model, X, WORDS, basis=20)


@pytest.mark.parametrize("by", ["cv", "evidence", "validity"])
def test_a_width_for_few_bases(by):
    found = pcvm.select(X, WORDS, by=by, basis=20, random_state=0)
    assert found.width > 0
    if by == "cv":  # held-out rows take their bases with them, others stay
        elsewhere = pcvm.choose_basis(X, WORDS, 20, random_state=0)
        moved = (elsewhere[0] + 1e-9, elsewhere[1])
        other = pcvm.select(X, WORDS, by="cv", basis=moved, random_state=0)
        assert not np.array_equal(other.scores, found.scores)


def test_a_projection_takes_the_bases_there_are():
    dense = pcvm.PCVMClassifier(width=1.2, basis=25).fit(X, WORDS)
    found = pcvm.project(dense, X, WORDS, size=5)
    assert len(found.reference.centres) == 25
    sparse = pcvm.PCVMClassifier(width=1.2, basis=25, estimation="projection", n_vectors=5)
    sparse.fit(X, WORDS)
    np.testing.assert_allclose(sparse.weight_, found.classifier.weight_, atol=1e-10)
    rows = choose_rows(X, np.where(WORDS == "yes", 1.0, -1.0), 25, random_state=0)
    assert set(sparse.support_) <= set(rows)
    again = found.classifier
    np.testing.assert_array_equal(again.predict(X), again.fit(X, WORDS).predict(X))
    assert np.isfinite(pcvm.project(dense, X, WORDS, random_state=0).elpd).all()


def test_relevance_vector_machines():
    rows = choose_rows(X, None, 20, random_state=0)
    machine = pcvm.RVMClassifier(width=1.2, basis=20).fit(X, WORDS)
    given = pcvm.RVMClassifier(width=1.2, basis=X[rows]).fit(X, WORDS)
    np.testing.assert_array_equal(machine.weight_, given.weight_)
    assert set(machine.support_) <= set(rows)
    result = pcvm.fit_evidence(pcvm.rvm_model(X, WORDS, likelihood="logit", width=1.2, basis=20))
    assert machine.log_evidence_ == pytest.approx(result["optimizer_result"]["log_evidence"].item())
    for width in ("auto", "evidence", "validity"):
        assert pcvm.RVMClassifier(width=width, basis=20, random_state=0).fit(X, WORDS).width_ > 0
    several = pcvm.RVMClassifier(width=1.2, basis=30).fit(X, np.where(X[:, 1] > 1, "more", WORDS))
    np.testing.assert_array_equal(several.relevance_vectors_, X[several.support_])
    assert several.decision_function(X).shape == (90, 3)
    for star in (False, True):
        both = (pcvm.RVMRegressor(width=1.2, basis=each, star=star) for each in (20, X[rows]))
        drawn, given = (each.fit(X, LABEL) for each in both)
        mean, std = drawn.predict(X, return_std=True)
        np.testing.assert_array_equal((mean, std), given.predict(X, return_std=True))
        assert (std > 0).all()
        assert np.mean((mean - LABEL) ** 2) < 0.8


def test_few_bases_lose_little():
    X, y = ripley_mixture(400, random_state=0)
    X_test, y_test = ripley_mixture(2000, random_state=1)
    models = (pcvm.PCVMClassifier(width=0.5, basis=each) for each in (None, 40))
    whole, few = (each.fit(X, y).score(X_test, y_test) for each in models)
    assert few > whole - 0.01


def test_scales_of_many_rows_are_those_of_some(monkeypatch):
    """Medians of many pairs, whose mean over 300 tables is within .01: some seven standard errors."""
    monkeypatch.setattr(kernels._distances_within, "__defaults__", (500,))
    tables = [np.random.default_rng(seed).normal(size=(1200, 3)) for seed in range(300)]
    exact = np.sqrt(2 * chi2.median(3))  # a squared distance is twice a chi-squared variable
    assert np.mean([median_distance(X) for X in tables]) == pytest.approx(exact, rel=0.01)
    low, high = width_bounds(tables[0])
    assert 0 < low < high
