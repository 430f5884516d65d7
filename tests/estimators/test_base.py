"""What all estimators share: refits, arguments without effect, names of pieces, predictions."""

import warnings
from functools import partial

import numpy as np
import pytest
from problems import blobs, refused
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.evidence import fit_bottom_up
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Logit, NoisyProbit, Normal, StudentT
from pcvm_pymc.core.pieces.validation import InputWarning
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.formulation import named_hyperprior

PCVM, MPCVM, MRVM = pcvm.PCVMClassifier, pcvm.MPCVMClassifier, pcvm.MRVMClassifier
RVM, SPARSE = pcvm.RVMClassifier, pcvm.SparseProbitClassifier


X, LABEL = blobs(60, seed=110, fixed=True)
WORDS = np.where(LABEL > 0, "yes", "no")


def fitted_names(model):
    return {name for name in vars(model) if name.endswith("_")}


UP, DOWN = {"estimation": "bottom-up"}, {"estimation": "em"}
STARTS = pcvm.EvidenceOptions(noise_starts=(0.1, 0.3))
REFITS = [
    (PCVM(cv=3, estimation="projection", width=1.0), {**UP, "cv": 5, "width": 1.2}),
    (PCVM(random_state=0), {"width": 1.2}),
    (PCVM(random_state=0), {"estimation": "em"}),
    (PCVM(width="evidence"), {"width": 1.2}),
    (MPCVM(**DOWN, width="evidence", basis=15), {**UP, "width": 1.2}),
    (RVM(width="evidence"), {"width": 1.2}),
    (SPARSE(features="kernel"), {"features": "linear"}),
]


@pytest.mark.parametrize(("first", "change"), REFITS, ids=lambda each: str(each)[:60])
def test_nothing_of_an_earlier_fit_survives(first, change):
    model = clone(first).fit(X, WORDS)
    before = fitted_names(model)
    model.set_params(**change).fit(X, WORDS)
    fresh = clone(model).fit(X, WORDS)
    assert fitted_names(model) == fitted_names(fresh)
    assert before - fitted_names(model)  # there was something to forget
    np.testing.assert_array_equal(model.predict_proba(X), fresh.predict_proba(X))


def test_a_fit_that_fails_leaves_nothing_to_predict_by():
    model = PCVM(width=1.2).fit(X, WORDS)
    refused(r"'width' parameter .* Got 'wide'", model.set_params(width="wide").fit, X, WORDS)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("kind", [PCVM, MPCVM, RVM, partial(SPARSE, features="kernel")])
def test_arguments_that_are_set_after_a_fit_do_not_change_its_predictions(kind):
    model = kind(width=1.2)
    wanted = model.fit(X, WORDS).predict_proba(X)
    model.set_params(width=5.0, kernel="linear-spline")
    np.testing.assert_array_equal(model.predict_proba(X), wanted)


PRIOR, SPLINE = pcvm.Hyperprior.plug_in(), {"kernel": "linear-spline"}
WITHOUT_EFFECT = [
    # an estimator, the argument without effect, and the one that it is given with
    (MPCVM(**UP, hyperprior="plug_in"), "hyperprior", "estimation='bottom-up'"),
    (MPCVM(**UP, hyperprior=PRIOR), "hyperprior", "estimation='bottom-up'"),
    (MPCVM(width=1.0, cv=3), "cv", "width=1.0"),
    (MRVM(width=2.0, **SPLINE), "width", "kernel='linear-spline'"),
    (MRVM(width="evidence", cv=4), "cv", "width='evidence'"),
    (PCVM(estimation="em", n_vectors=5), "n_vectors", "estimation='em'"),
    (PCVM(width=1.0, cv=3), "cv", "width=1.0"),
    (PCVM(estimation="bottom-up", hyperprior="jeffreys"), "hyperprior", "estimation='bottom-up'"),
    (RVM(width=1.0, cv=3), "cv", "width=1.0"),
    (pcvm.RVMRegressor(width=2.0, **SPLINE), "width", "kernel='linear-spline'"),
    (SPARSE(gamma=2.0), "gamma", "prior='jeffreys'"),
    (SPARSE(width=2.0), "width", "features='linear'"),
    (SPARSE(basis=20), "basis", "features='linear'"),
    (SPARSE(**SPLINE), "kernel", "features='linear'"),
]


@pytest.mark.parametrize(("model", "name", "beside"), WITHOUT_EFFECT)
def test_an_argument_without_effect_is_named_with_what_it_is_beside(model, name, beside):
    with pytest.raises(ValueError, match=f"^{name} was given with .*{beside}.*no effect"):
        model.fit(X, LABEL if isinstance(model, pcvm.RVMRegressor) else WORDS)


SINGLE = pcvm.EMOptions(kernel_dtype="float32")
OF_ANOTHER = [
    (MPCVM(**UP, options=pcvm.EMOptions()), "estimation='bottom-up': needed .*BottomUpOptions"),
    (MRVM(options=pcvm.EMOptions()), "estimation='auto': needed None or .*BottomUpOptions"),
    (MRVM(**DOWN, options=pcvm.BottomUpOptions()), "estimation='em': needed None or .*EMOptions"),
    (PCVM(options={"tol": 1e-3}), "^options={'tol': 0.001}, estimation='auto': .*EMOptions"),
    (PCVM(n_vectors=3, options=pcvm.PosteriorOptions()), "needed None or .*EMOptions"),
    (RVM(options=pcvm.EMOptions()), "needed None or a pcvm_pymc.EvidenceOptions"),
    (pcvm.RVMRegressor(noise=0.1, options=STARTS), "noise=0.1.* a known noise has no start"),
    (PCVM(options=SINGLE), "kernel_dtype='float32' has no effect on rows in memory"),
    (SPARSE(options=SINGLE), "kernel_dtype='float32' has no effect on rows in memory"),
]


@pytest.mark.parametrize(("model", "words"), OF_ANOTHER)
def test_options_of_another_solver_are_refused(model, words):
    refused(words, model.fit, X, LABEL if isinstance(model, pcvm.RVMRegressor) else WORDS)


def test_single_precision_of_a_model_is_refused():
    model = pcvm.pcvm_model(X, WORDS, width=1.0)
    refused("'float32' has no effect on rows in memory", pcvm.find_map_em, model, options=SINGLE)
    refused("'float32' has no effect on rows in memory", pcvm.EMStep, model, options=SINGLE)


def test_a_projection_does_not_take_a_kernel_that_a_classifier_has():
    with pytest.raises(ValueError, match="kernel='rbf' was given with a classifier"):
        pcvm.project(PCVM(width=1.2).fit(X, WORDS), X, WORDS, kernel="rbf", size=2)


def test_one_name_means_one_hyperprior():
    names, found = ("default", "plug_in", "jeffreys", "chen2009"), {}
    for kind, options in ((PCVM, {}), (MPCVM, DOWN | {"options": pcvm.EMOptions(max_iter=5)})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            made = [kind(width=1.2, hyperprior=name, **options).fit(X, WORDS) for name in names]
        found[kind] = [each.hyperprior_ for each in made]
    own = [getattr(pcvm.Hyperprior, name)() for name in ("plug_in", *names[1:])]
    assert found[PCVM] == found[MPCVM] == own
    unknown_scale = pcvm.Hyperprior(1.0, 1.0, 0.5, 0.5, rate_shape=1.0)
    for kind, options in ((PCVM, {}), (MPCVM, DOWN)):
        with pytest.raises(ValueError, match="no mode that EM could find"):
            kind(hyperprior=unknown_scale, **options).fit(X, WORDS)
    refused("hyperprior=3 is unknown", named_hyperprior, 3)


@pytest.mark.parametrize("likelihood", ["logit", Logit()], ids=str)
def test_a_likelihood_is_used_for_fit_width_and_probabilities(likelihood):
    model = PCVM(likelihood=likelihood, width=1.2).fit(X, WORDS)
    Phi = RBF(1.2)(X, X)
    core = fit_em(Problem(Phi, LABEL, LABEL, pcvm.Hyperprior.plug_in(), Logit(), width=1.2))
    np.testing.assert_array_equal(model.weight_, core.weight[core.support])
    assert model.log_posterior_ == core.log_posterior
    latent = model.decision_function(X)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], expit(latent), atol=1e-14)
    np.testing.assert_allclose(model.predict_proba(X)[:, 0], expit(-latent), atol=1e-14)
    auto = PCVM(likelihood=likelihood, width="cv", random_state=0).fit(X, WORDS)
    rng = np.random.default_rng(0)
    found = pcvm.select(X, WORDS, by="cv", likelihood=likelihood, random_state=rng)
    np.testing.assert_array_equal(auto.width_selection_.scores, found.scores)
    probit = pcvm.select(X, WORDS, by="cv", random_state=np.random.default_rng(0))
    assert found.scores.max() != probit.scores.max()
    for method in ("evidence", "validity"):
        other = PCVM(likelihood=likelihood, width=method).fit(X, WORDS)
        assert np.isfinite(other.width_selection_.scores).all()
    in_chunks = clone(model).set_params(memory_limit=1e6).fit(X, WORDS)
    np.testing.assert_allclose(in_chunks.predict_proba(X), model.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("likelihood", ["logit", "label noise", "normal-probability"])
def test_a_projection_under_another_likelihood_than_the_probit(likelihood):
    model = PCVM(likelihood=likelihood, width=1.2).fit(X, WORDS)
    found = pcvm.project(model, X, WORDS, sizes=[0, 3, 6], random_state=0)
    few = found.classifier_of(6)
    p, q = (each.predict_proba(X) for each in (model, few))
    assert found.path.kl[2] == pytest.approx(np.mean((p * np.log(p / q)).sum(axis=1)), abs=1e-9)
    assert found.path.kl[2] < 0.2 * found.path.kl[0]
    assert few.likelihood == model._likelihood_
    assert np.isfinite(found.elpd).all()
    own = model.set_params(estimation="projection", n_vectors=6).fit(X, WORDS)
    np.testing.assert_allclose(own.predict_proba(X), q, atol=1e-4)


def test_two_classes_from_the_bottom_up():
    model = PCVM(estimation="bottom-up", width=1.2).fit(X, WORDS)
    Phi = RBF(1.2)(X, X)
    core = fit_bottom_up(Problem(Phi, LABEL, LABEL, pcvm.Hyperprior.jeffreys(), width=1.2))
    np.testing.assert_array_equal(model.support_, core.support)
    np.testing.assert_array_equal(model.weight_, core.weight[core.support])
    assert (model.bias_, model.log_posterior_) == (core.bias, core.log_posterior)
    assert 0 < len(model.weight_) < 20
    assert not hasattr(model, "hyperprior_")
    assert model.score(X, WORDS) > 0.7
    for method in ("evidence", "validity"):
        other = PCVM(estimation="bottom-up", width=method, basis=20).fit(X, WORDS)
        assert other.width_ in other.width_selection_.widths
    with pytest.raises(ValueError, match=r"width='em'.*it is moved by EM"):
        PCVM(estimation="bottom-up", width="em").fit(X, WORDS)
    assert len(pcvm.project(model, X, WORDS, size=2).classifier.weight_) <= 2


def test_a_likelihood_of_a_known_noise():
    X, label = blobs(60, seed=111)
    y = np.sin(X[:, 0]) + 0.1 * label
    by_piece = pcvm.RVMRegressor(likelihood=Normal(0.2), width=1.5).fit(X, y)
    by_number = pcvm.RVMRegressor(noise=0.2, width=1.5).fit(X, y)
    assert by_piece.noise_ == by_number.noise_ == 0.2
    np.testing.assert_array_equal(by_piece.weight_, by_number.weight_)
    in_chunks = clone(by_piece).set_params(memory_limit=1e6).fit(X, y)
    assert in_chunks.noise_ == 0.2
    np.testing.assert_allclose(in_chunks.predict(X), by_piece.predict(X), atol=1e-5)
    with pytest.raises(ValueError, match=r"noise=0\.1, likelihood=Normal\(noise=0\.2.*give either"):
        clone(by_piece).set_params(noise=0.1).fit(X, y)
    refused("likelihood='logit' is unknown", pcvm.RVMRegressor(likelihood="logit").fit, X, y)


def test_an_outlier_pulls_less_under_heavy_tails():
    X = np.linspace(-4, 4, 60)[:, None]
    truth = np.sin(X[:, 0])
    y = truth + 0.1 * np.random.default_rng(0).normal(size=60)
    y[30] += 8.0
    pieces = "normal", StudentT(degrees=3.0)
    plain, heavy = (pcvm.RVMRegressor(likelihood=each, width=1.5).fit(X, y) for each in pieces)
    error, most = (np.abs(each.predict(X) - truth).max() for each in (heavy, plain))
    assert error < 0.5 * most
    _, std = heavy.predict([[100.0]], return_std=True)
    assert std[0] == pytest.approx(np.sqrt(heavy.covariance_[-1, -1] + 3 * heavy.noise_**2))
    several = pcvm.RVMRegressor(likelihood="student-t", cv=3).fit(X, y)
    assert np.isfinite(several.width_selection_.scores).all()
    some = clone(heavy).set_params(memory_limit=1e6).fit(X, y)
    np.testing.assert_allclose(some.predict(X), heavy.predict(X), rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="star=True needs likelihood='normal'; found 'student-t'"):
        pcvm.RVMRegressor(likelihood="student-t", star=True).fit(X, y)


def test_label_noise_bounds_the_probabilities():
    probability = PCVM(likelihood=NoisyProbit(0.1), width=1.2).fit(X, WORDS).predict_proba(10 * X)
    assert (probability >= 0.1 - 1e-12).all()
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, atol=1e-12)
    by_evidence = PCVM(likelihood="label noise", width="evidence")
    refused("no relevance vector machine with likelihood='label noise'", by_evidence.fit, X, WORDS)


def test_columns_of_very_different_spread_are_named_once():
    X, label = blobs(60, seed=112)
    wide = np.column_stack([X, 1e3 * X[:, 0], np.ones(60), label > 0])
    for model in (PCVM(width=1.0), RVM(cv=2), MRVM(cv=2)):
        with pytest.warns(InputWarning, match="column 2 has .*StandardScaler") as found:
            model.fit(wide, label)
        assert len(found) == 1
    PCVM(width=1.0).fit(wide[:, [0, 1, 3, 4]], label)  # constants and indicators
    PCVM(width=[1.0, 1.0, 1e3, 1.0, 1.0]).fit(wide, label)
