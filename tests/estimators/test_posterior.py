"""The posterior as an estimator: predictions are those of its draws, widths count by weights."""

import pickle

import arviz as az
import numpy as np
import pytest
from problems import blobs, refused
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.centres import choose_means
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Status
from pcvm_pymc.experiments.datasets import overlap_classes

# whether chains converge within `max_iter` is a matter of the draws, which rounding decides
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FEW = {"estimation": "posterior", "basis": 8, "random_state": 1}


@pytest.fixture(scope="module")
def rows():
    return blobs(60, seed=80, fixed=True)


@pytest.fixture(scope="module")
def fitted(rows):
    return pcvm.PCVMClassifier(**FEW, width="shared").fit(*rows)


def test_its_probabilities_are_means_over_the_draws_and_its_intervals_quantiles(rows, fitted):
    X, _ = rows
    new = X[:7] + 0.1
    posterior = fitted.idata_["posterior"].to_dataset().stack(sample=("chain", "draw"))
    draws = []
    for i in range(posterior.sizes["sample"]):
        one = posterior.isel(sample=i)
        Phi = design_matrix("rbf", new, fitted.relevance_vectors_, float(one["width"]))
        draws.append(ndtr(Phi @ one["weight"].values + float(one["bias"])))
    np.testing.assert_allclose(fitted.predict_proba(new)[:, 1], np.mean(draws, axis=0), rtol=1e-9)
    found = fitted.predict_interval(new, probability=0.5)
    expected = np.quantile(draws, [0.25, 0.75], axis=0).T
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-9)
    np.testing.assert_allclose(found[:, 0], 1.0 - expected[:, ::-1], rtol=1e-9)
    log_odds = np.log(np.mean(draws, axis=0) / (1.0 - np.mean(draws, axis=0)))
    np.testing.assert_allclose(fitted.decision_function(new), log_odds, rtol=1e-7)


def test_widths_and_weights_are_those_of_the_default_search(rows, fitted):
    default = pcvm.PCVMClassifier(width="shared", basis=8, random_state=1).fit(*rows)
    widths, weights = default.selection_.by_width()
    convergence = fitted.idata_["convergence"]
    np.testing.assert_allclose(convergence["width"], widths)
    np.testing.assert_allclose(convergence["share"], weights)
    drawn = fitted.idata_["posterior"]["width"].values
    for width, weight in zip(widths, weights, strict=True):
        n = (drawn == width).sum(axis=1)
        assert (abs(n - weight * 250) <= 1.0).all()


def has_converged(model):
    """Return what the chains of all widths say."""
    found = model.idata_["convergence"]
    return bool((found["rhat"] <= 1.01).all() and (found["ess"] >= 400).all())


def test_its_status_is_what_its_chains_say(fitted):
    wanted = Status.CONVERGED if has_converged(fitted) else Status.ITERATION_LIMIT
    assert fitted.status_ is wanted
    assert (fitted.status_ is Status.CONVERGED) or fitted.n_iter_ > 0.5 * fitted.max_iter
    one = fitted.idata_["posterior"].to_dataset()[["bias"]]
    assert float(az.rhat(one)["bias"]) < 1.1


def test_by_default_its_bases_are_means_of_rows(rows):
    X, label = rows
    model = pcvm.PCVMClassifier(estimation="posterior", width=1.5, random_state=1).fit(X, label)
    points, _ = choose_means(X, np.where(label == label.max(), 1, -1), random_state=0)
    np.testing.assert_array_equal(model.relevance_vectors_, points)
    assert (model.support_ == -1).all()
    weight = model.idata_["posterior"]["weight"]
    assert (weight < 0).any()
    assert (weight > 0).any()


def test_given_centres_keep_their_signs(rows):
    X, label = rows
    sign = np.where(np.arange(6) % 2, -1.0, 1.0)
    basis = {"basis": (X[:6], sign), "width": 1.5}
    model = pcvm.PCVMClassifier(**FEW | basis).fit(X, label)
    weight = model.idata_["posterior"]["weight"].values
    np.testing.assert_array_equal(np.sign(weight), np.broadcast_to(sign, weight.shape))


@pytest.mark.parametrize(
    "arguments",
    [
        {"likelihood": "logit"},
        {"hyperprior": Hyperprior(3.0, 3.0, 1.0, 1.0)},
        pytest.param(
            {"kernel": lambda A, B, width: A @ B.T, "width": "auto"}, marks=pytest.mark.slow
        ),
        {"n_jobs": 2, "width": "shared"},
        {"draws": 40},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_other_pieces(rows, arguments):
    model = pcvm.PCVMClassifier(**{"width": 2.0} | FEW | arguments).fit(*rows)
    posterior = model.idata_["posterior"]
    assert posterior.sizes["draw"] == arguments.get("draws", 250)
    if "hyperprior" in arguments:
        np.testing.assert_allclose(posterior["rate"], 3.0)
    assert model.score(*rows) > 0.8


def test_it_is_the_same_by_seed_pickled_in_threads_and_from_repeated_rows(rows, fitted):
    X, label = rows
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), expected)
    again = clone(fitted).set_params(n_jobs=2).fit(X, label)
    np.testing.assert_array_equal(again.predict_proba(X), expected)
    model = pcvm.PCVMClassifier(**FEW, width=1.5)
    twice = np.append(np.arange(60), np.arange(20))
    weight = np.where(np.arange(60) < 20, 2.0, 1.0)
    repeated = clone(model).fit(X[twice], label[twice]).predict_proba(X)
    weighted = clone(model).fit(X, label, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(repeated, weighted, rtol=1e-6)
    balanced = clone(model).set_params(class_weight={label.min(): 5.0, label.max(): 0.5})
    assert balanced.fit(X, label).predict_proba(X)[:, 1].mean() < expected[:, 1].mean()


def test_it_goes_into_pipelines_and_projections(rows):
    X, label = rows
    model = pcvm.PCVMClassifier(**FEW, width=1.5)
    assert cross_val_score(make_pipeline(StandardScaler(), model), X, label, cv=2).mean() > 0.8
    dense = clone(model).fit(X, label)
    few = clone(model).set_params(n_vectors=3).fit(X, label)
    own = pcvm.project(dense, X, label, size=3).classifier
    np.testing.assert_allclose(few.predict_proba(X), own.predict_proba(X), rtol=1e-9)
    assert len(few.weight_) == 3
    assert abs(few.predict_proba(X) - dense.predict_proba(X)).mean() < 0.1
    assert pcvm.to_c(few)
    with pytest.raises(ValueError, match="is a posterior, which has no few vectors"):
        pcvm.to_c(dense)


def test_several_classes():
    X, y = overlap_classes(90, random_state=0)
    names = np.array(["a", "b", "c"])[y - y.min()]
    model = pcvm.MPCVMClassifier(**FEW, width=1.5).fit(X, names)
    probability = model.predict_proba(X[:5])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    low, high = np.moveaxis(model.predict_interval(X[:5]), 2, 0)
    assert ((low < probability) & (probability < high)).all()
    assert list(model.idata_["posterior"]["class"].values) == ["a", "b", "c"]
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X[:5])), probability, rtol=1e-4)
    assert (model.status_ is Status.CONVERGED) == has_converged(model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scale": 2.0}, "the posterior learns it"),
        ({"hyperprior": "jeffreys"}, "an improper prior has no posterior"),
        ({"width": "em"}, "moved by EM"),
        ({"memory_limit": 1e9, "width": 1.0}, "another estimation than 'posterior'"),
        ({"tol": 1e-3, "width": 1.0}, "tol was given with"),
        ({"estimation": "auto", "draws": 10}, "draws was given with"),
        ({"max_iter": 100}, "needed twice the draws"),
        ({"draws": 0}, "'draws' parameter"),
    ],
    ids=str,
)
def test_arguments_without_effect_are_refused(rows, arguments, words):
    refused(words, pcvm.PCVMClassifier(**FEW | arguments).fit, *rows)


def test_a_fit_that_ends_short_of_convergence_warns(rows):
    model = pcvm.PCVMClassifier(**FEW, width=1.5, draws=20, max_iter=40)
    with pytest.warns(UserWarning, match="posterior with r-hat .*: max_iter iterations"):
        model.fit(*rows)
    assert model.status_ is Status.ITERATION_LIMIT
