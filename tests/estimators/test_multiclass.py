from dataclasses import replace

import numpy as np
import pytest
from problems import assert_probabilities, fixed_rng, three_blobs
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.evidence import EvidenceProblem, fit_bottom_up, fit_rvm
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.centres import choose_rows
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.core.validity import pcvm_validity, rvm_validity
from pcvm_pymc.experiments.datasets import overclass, overlap_classes

MPCVM, MRVM = pcvm.MPCVMClassifier, pcvm.MRVMClassifier
UP, DOWN = {"estimation": "bottom-up"}, {"estimation": "em"}
ALL = [MPCVM(**UP), MPCVM(hyperprior="jeffreys"), MRVM(), MRVM(**DOWN)]
not_converged = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


X, CLASS = overlap_classes(150, random_state=4)
Y = np.array(["black", "red", "white"])[CLASS]


@pytest.mark.parametrize("estimator", ALL, ids=str)
def test_fitted_attributes(estimator):
    model = clone(estimator).set_params(width=1.0).fit(X, Y)
    assert model.classes_.tolist() == ["black", "red", "white"]
    np.testing.assert_array_equal(model.relevance_vectors_, X[model.support_])
    assert model.weight_.shape == (3, len(model.support_))
    assert len(model.support_) < 75
    Phi = RBF(1.0)(X, model.relevance_vectors_)
    latent = Phi @ model.weight_.T + model.bias_
    np.testing.assert_allclose(model.decision_function(X), latent, atol=1e-10)
    own = class_terms(latent, CLASS).log_probability
    probability = model.predict_proba(X)
    assert_probabilities(probability, model.predict_log_proba(X), 1e-9)
    np.testing.assert_allclose(np.log(probability[np.arange(150), CLASS]), own, atol=1e-8)
    assert model.score(X, Y) > 0.75


@not_converged
@pytest.mark.parametrize("estimator", ALL, ids=str)
def test_the_width_is_that_of_the_smallest_log_loss(estimator):
    by_em = estimator.estimation == "em" or vars(estimator).get("hyperprior") == "jeffreys"
    quick = pcvm.BottomUpOptions.quick(max_iter=30)
    options = pcvm.EMOptions(max_iter=30, tol=1e-4) if by_em else quick
    given = {"width": "shared", "random_state": 0, "cv": 3, "options": options}
    model = clone(estimator).set_params(**given).fit(X[:36], Y[:36])
    assert model.width_ == model.width_selection_.width
    assert np.isfinite(model.width_selection_.scores).all()
    assert -model.width_selection_.scores.max() < np.log(3)


@not_converged
@pytest.mark.parametrize("method", ["evidence", "validity"])
@pytest.mark.parametrize("kind", [MPCVM, MRVM])
def test_the_width_is_that_of_the_best_sum_over_classes(kind, method):
    some, label = X[:60], CLASS[:60]
    given = {"estimation": "bottom-up", "options": pcvm.BottomUpOptions(max_iter=400)}
    model = kind(width=method, basis=20, **given).fit(some, Y[:60])
    assert model.width_ == model.width_selection_.width
    rows = choose_rows(some, label, 20, random_state=0)
    width, centres, wanted = model.width_selection_.widths[3], X[rows], 0.0
    Phi = RBF(width)(some, centres)
    for c in range(3):
        one, sign = (np.where(each == c, 1.0, -1.0) for each in (label, label[rows]))
        if method == "evidence" or kind is MRVM:
            problem = EvidenceProblem(Phi, one, "probit")
            result = fit_rvm(problem, options=pcvm.EvidenceOptions(tol=1e-3))
            valid = rvm_validity(some, problem, result, kernel=RBF(width), centres=centres)
            wanted += result.log_evidence if method == "evidence" else valid.log_validity
        else:
            binary = Problem(Phi, one, sign, pcvm.Hyperprior.jeffreys(), width=width)
            wanted += pcvm_validity(some, binary, fit_em(binary), centres=centres).log_validity
    assert model.width_selection_.scores[3] == pytest.approx(wanted, abs=1e-9)


def test_given_bases():
    given = MPCVM(estimation="bottom-up", width=1.0, basis=(X[:40], Y[:40])).fit(X, Y)
    assert (given.support_ == -1).all()
    parts = CLASS, class_signs(CLASS[:40], 3), pcvm.Hyperprior.jeffreys(), MultinomialProbit(3)
    problem = Problem(RBF(1.0)(X, X[:40]), *parts, bias="none")
    core = fit_bottom_up(problem, pcvm.BottomUpOptions(max_iter=10_000))
    np.testing.assert_array_equal(given.weight_, core.weight[core.support].T)


PAPERS = {"mPCVM2": {"estimation": "bottom-up"}, "mPCVM1": {"hyperprior": "jeffreys"}}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_class_of_three_points_is_not_lost(paper):
    """Lyu et al. (2020), Fig. 4, where mRVM1 and mRVM2 lose it."""
    for seed in range(3):
        X, y = overclass(random_state=fixed_rng(seed))
        model = MPCVM(**PAPERS[paper], width=1.0).fit(X, y)
        assert (model.predict(X[y == 9]) == 9).any()
        # its own bases speak for it
        assert (model.weight_[9] > 0).any()


WINE = pytest.param(load_wine, (4.5, 4.5), marks=pytest.mark.slow)


@not_converged
@pytest.mark.fixed_seeds  # an error rate of five splits
@pytest.mark.parametrize(("load", "limits"), [(load_iris, (5.5, 5.5)), WINE])
def test_errors_near_the_papers(load, limits):
    X, y = load(return_X_y=True)
    width = 2 * np.sqrt(X.shape[1])
    options = pcvm.BottomUpOptions(max_iter=200), pcvm.EMOptions(max_iter=200, tol=1e-4)
    for paper, how, limit in zip(PAPERS.values(), options, limits, strict=True):
        errors = []
        for train, test in StratifiedShuffleSplit(5, test_size=0.2, random_state=0).split(X, y):
            model = make_pipeline(StandardScaler(), MPCVM(**paper, width=width, options=how))
            errors.append(100 * (1 - model.fit(X[train], y[train]).score(X[test], y[test])))
        assert np.mean(errors) <= limit


@not_converged
def test_other_hyperpriors():
    short = pcvm.EMOptions(max_iter=100, tol=1e-4)
    named = [{"hyperprior": n, "options": short} for n in ("jeffreys", "chen2009", "plug_in")]
    for options in (*named, {"bias": False}):
        model = MPCVM(width=1.0, **options).fit(X, Y)
        assert model.score(X, Y) > 0.7
    assert model.bias_.tolist() == [0, 0, 0]
    assert MPCVM(width=1.0, bias=True).fit(X, Y).bias_.shape == (3,)


def test_the_papers_search_stays_reachable():
    X, y, _ = three_blobs(90)
    both = pcvm.BottomUpOptions(), None
    paper, quick = (MRVM(width=1.5, options=each).fit(X, y) for each in both)
    Phi, piece = RBF(1.5)(X, X), MultinomialProbit(3)
    known = Problem(Phi, y, None, pcvm.Hyperprior.jeffreys(), piece, bias="none", shared=True)
    for model, options in ((paper, pcvm.BottomUpOptions()), (quick, pcvm.BottomUpOptions.quick())):
        wanted = fit_bottom_up(known, options)
        np.testing.assert_array_equal(model.support_, wanted.support)
        assert model.log_posterior_ == wanted.log_posterior
        assert model.n_iter_ == wanted.n_iter


def test_a_quick_search_that_ends_empty_gives_way(monkeypatch):
    searched = []

    def watched(problem, options):
        searched.append(options.most)
        found = fit_bottom_up(problem, options)
        return replace(found, status=Status.EMPTY_MODEL) if options.most > 1 else found

    monkeypatch.setattr("pcvm_pymc.core.evidence.fit_bottom_up", watched)
    X, y, _ = three_blobs(60)
    model = MRVM(width=1.5).fit(X, y)
    assert searched == [2, 1]
    wanted = MRVM(width=1.5, options=pcvm.BottomUpOptions()).fit(X, y)
    np.testing.assert_array_equal(model.weight_, wanted.weight_)


def test_more_bases_than_rows_by_which_cells_are_found(monkeypatch):
    """They were refused, with a number of rows that nobody had given."""
    monkeypatch.setattr("pcvm_pymc.estimators.chooser.CLASS_ROWS", 60)
    monkeypatch.setattr("pcvm_pymc.estimators.chooser.JOINT_WEIGHTS", 30)
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    X = rng.normal(size=(150, 2)) + 3.0 * np.eye(3, 2)[y]
    assert MPCVM(basis=100, random_state=0).fit(X, y).score(X, y) > 0.8
    with pytest.raises(ValueError, match=r"basis=200; needed a whole number from 3, .* to 150"):
        MPCVM(basis=200, random_state=0).fit(X, y)
