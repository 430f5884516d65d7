"""Intervals of class probabilities: their posterior, their ends, and what has none."""

import warnings

import dask.array as da
import numpy as np
import pytest
from problems import blobs, refused
from scipy.integrate import quad
from scipy.special import expit, ndtr, ndtri
from scipy.stats import norm
from scipy.stats import t as student_t
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, StudentT
from pcvm_pymc.core.probabilities import LatentNormal, probability_interval, student_t_interval

X, LABEL = blobs(60, seed=5)
CLASS = np.where((LABEL > 0) & (X[:, 1] > 0), 2, LABEL > 0)
NEW = np.vstack([X[:8] + 0.1, [[0.2, 0.1], [30.0, 30.0]]])

AVERAGES = [
    (pcvm.PCVMClassifier(), LABEL),
    (pcvm.PCVMClassifier(width=1.0, likelihood="logit", estimation="average"), LABEL),
    (pcvm.PCVMClassifier(basis=20, estimation="average", width=1.0), LABEL),
    (pcvm.RVMClassifier(width=1.0), LABEL),
    (pcvm.MPCVMClassifier(), LABEL),
    (pcvm.MPCVMClassifier(width=1.0, scale="auto"), CLASS),
]
ONE_MODE = [
    pcvm.PCVMClassifier(estimation="em"),
    pcvm.PCVMClassifier(width=1.0, hyperprior="jeffreys"),
    pcvm.PCVMClassifier(estimation="bottom-up", width=1.0),
    pcvm.PCVMClassifier(n_vectors=3, width=1.0),
    pcvm.MPCVMClassifier(width=1.0),
    pcvm.MRVMClassifier(estimation="em", width=1.0),
    pcvm.SparseProbitClassifier(),
]


def test_of_a_relevance_vector_machine():
    model = pcvm.RVMClassifier(width=1.0, link="probit").fit(X, LABEL)
    mean, variance = model.latent_moments(NEW)
    ends = ndtr(mean + np.array([[-1], [1]]) * norm.ppf(0.95) * np.sqrt(variance))
    found = model.predict_interval(NEW, probability=0.9)
    np.testing.assert_allclose(found[:, 1].T, ends, atol=1e-12)
    np.testing.assert_allclose(found[:, 0], 1 - found[:, 1, ::-1], atol=1e-12)


def test_of_machines_that_are_told_from_the_rest():
    model = pcvm.RVMClassifier(width=1.0).fit(X, CLASS)
    mean, variance = model.latent_moments(NEW)
    normal = np.random.default_rng(7).standard_normal((20_000, 1, 3))
    draws = expit(mean + np.sqrt(variance) * normal)
    draws /= draws.sum(axis=-1, keepdims=True)
    wanted = np.moveaxis(np.quantile(draws, [0.25, 0.75], axis=0), 0, -1)
    np.testing.assert_allclose(model.predict_interval(NEW, probability=0.5), wanted, atol=0.04)


def test_rounding_of_the_covariance_changes_nothing():
    """Eigenvectors of equal eigenvalues are those of rounding, as is the sign of each."""
    covariance = np.array([np.eye(3), np.diag([2.0, 2.0, 1.0]), np.eye(3) - 1 / 3, np.ones((3, 3))])
    rng, likelihood = np.random.default_rng(1), MultinomialProbit(3)
    for _ in range(5):
        noise = 1e-15 * rng.normal(size=covariance.shape)
        first, second = (
            probability_interval(likelihood, [LatentNormal(1.0, np.zeros((4, 3)), each)], 0.9)
            for each in (covariance, covariance + noise + noise.swapaxes(1, 2))
        )
        np.testing.assert_allclose(first, second, atol=1e-12)


@pytest.mark.parametrize(("model", "y"), AVERAGES)
def test_holds_the_prediction_and_nests(model, y):
    model.fit(X, y)
    p = model.predict_proba(NEW)
    wide, narrow = (model.predict_interval(NEW, probability=each) for each in (0.95, 0.5))
    assert wide.shape == (len(NEW), len(model.classes_), 2)
    assert (wide[..., 0] <= p + 1e-12).all()
    assert (p <= wide[..., 1] + 1e-12).all()
    assert (wide[..., 0] <= narrow[..., 0] + 1e-12).all()
    assert (narrow[..., 1] <= wide[..., 1] + 1e-12).all()
    few = model.predict_interval(NEW[:3], probability=0.95)
    np.testing.assert_allclose(wide[:3], few, atol=1e-12)


@pytest.mark.parametrize("model", [pcvm.PCVMClassifier(), pcvm.MPCVMClassifier()])
def test_is_wider_away_from_the_rows_and_narrower_with_more(model):
    rows, label = blobs(240, seed=5, fixed=True)
    if isinstance(model, pcvm.MPCVMClassifier):
        label = np.where((label > 0) & (rows[:, 1] > 0), 2, label > 0)
    ends = (model.fit(rows[:n], label[:n]).predict_interval(NEW) for n in (60, 240))
    few, many = (np.ptp(each, axis=-1).max(axis=1) for each in ends)
    assert many[-1] > 1.2 * np.median(many[:8])
    assert np.median(many[:8]) < 0.8 * np.median(few[:8])


def test_ends_of_an_average_are_quantiles_of_its_mixture():
    model = pcvm.PCVMClassifier().fit(X, LABEL)
    assert len(model.components_) > 1
    at = ndtri(model.predict_interval(NEW, probability=0.8)[:, 1])
    mixture = model._predictor_.posterior(model._training_)
    parts = [LatentNormal(share, *moments(NEW)) for share, moments in mixture]
    below = sum(p.share * ndtr((at - p.mean) / np.sqrt(p.covariance[:, 0])) for p in parts)
    np.testing.assert_allclose(below, np.tile([0.1, 0.9], (len(NEW), 1)), atol=1e-6)


def test_is_that_of_the_exact_posterior_where_signs_and_precisions_are_certain():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(1500, 1))
    y = np.where(rng.uniform(size=1500) < ndtr(1.5 * np.sin(2 * rows[:, 0])), 1, 0)
    basis = np.array([[-0.8], [0.8]]), np.array([-1, 1])
    prior = pcvm.Hyperprior(5.0, 5.0, 5.0, 5.0)
    model = pcvm.PCVMClassifier(width=1.0, basis=basis, hyperprior=prior).fit(rows, y)
    built = pcvm.pcvm_model(rows, y, width=1.0, basis=basis[0], signs=basis[1], hyperprior=prior)
    short = {"tune": 200, "thin": 1, "chains": 2, "cores": 1, "max_iter": 3000, "quiet": True}
    drawn = pcvm.sample(built, method="gibbs", draws=500, random_seed=1, **short)
    new = np.linspace(-2, 2, 9)[:, None]
    f = pcvm.predict(drawn, new)["predictions"]["latent"].values.reshape(-1, len(new))
    parts = [LatentNormal(1.0, *model._predictor_.normal(model._training_)(new))]
    found = probability_interval(model._likelihood_, parts, 0.89)[:, 1]
    np.testing.assert_allclose(found, np.quantile(ndtr(f), [0.055, 0.945], axis=0).T, atol=0.01)


def test_holds_true_probabilities_as_often_as_it_says():
    held = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows, new = 1.3 * rng.normal(size=(2, 100, 2))
        truth = [ndtr(1.5 * np.sin(1.5 * each[:, 0]) + each[:, 1]) for each in (rows, new)]
        model = pcvm.PCVMClassifier().fit(rows, rng.uniform(size=100) < truth[0])
        low, high = model.predict_interval(new)[:, 1].T
        held.append(np.mean((low <= truth[1]) & (truth[1] <= high)))
    assert 0.8 < np.mean(held) < 0.97


@pytest.mark.parametrize("model", ONE_MODE, ids=str)
def test_one_mode_has_none(model):
    refused(r"one mode .*needed an average of modes", model.fit(X, LABEL).predict_interval, NEW)


@pytest.mark.parametrize("kind", [pcvm.PCVMClassifier, pcvm.MPCVMClassifier])
def test_dask_arrays_have_none(kind):
    rows, y = da.from_array(X, chunks=(20, 2)), da.from_array(LABEL, chunks=20)
    model = kind(basis=10, width=1.0).fit(rows, y)
    words = "X is a Dask array; predict_interval needs rows in memory"
    refused(words, model.predict_interval, rows)
    refused("one mode", model.predict_interval, NEW)
    chunked = kind(basis=10, width=1.0, estimation="average", memory_limit=1e6).fit(X, LABEL)
    refused("rows went in chunks.* needed an average", chunked.predict_interval, NEW)
    whole = kind(width=1.0, estimation="average").fit(X, LABEL)
    refused("X is a Dask array", whole.predict_interval, rows)


# --- inside a pipeline or a search ---------------------------------------------------------------


def test_a_pipeline_and_a_search_have_those_of_their_last_step_on_transformed_rows():
    scaled, new = (StandardScaler().fit(X).transform(rows) for rows in (X, NEW))
    alone = pcvm.PCVMClassifier(width="shared").fit(scaled, LABEL)
    expected = alone.predict_interval(new, probability=0.5)
    pipeline = make_pipeline(StandardScaler(), pcvm.PCVMClassifier(width="shared"))
    search = GridSearchCV(pipeline, {"pcvmclassifier__kernel": ["auto"]}, cv=2).fit(X, LABEL)
    pipeline.fit(X, LABEL)
    whole = [pipeline, search, search.best_estimator_, FrozenEstimator(pipeline)]
    whole += [make_pipeline("passthrough", pipeline)]
    given = [(each, NEW) for each in whole] + [(make_pipeline(alone), new), (alone, new)]
    for model, rows in given:
        found = pcvm.predict_interval(model, rows, probability=0.5)
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_of_transformed_targets_they_are_those_of_the_given_ones():
    few = {"basis": 5, "width": 2.0, "options": pcvm.PosteriorOptions(20, 100)}
    regressor = pcvm.RVMRegressor(estimation="posterior", random_state=1, **few)
    target = 100.0 * np.sin(X[:, 0]) + 7.0
    with warnings.catch_warnings():  # of so few draws
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = TransformedTargetRegressor(regressor, transformer=StandardScaler()).fit(X, target)
        falling = TransformedTargetRegressor(regressor, func=np.negative, inverse_func=np.negative)
        falling.fit(X, target)
    ends = whole.regressor_.predict_interval(X, probability=0.5)
    found = pcvm.predict_interval(whole, X, probability=0.5)
    np.testing.assert_allclose(found, target.mean() + target.std() * ends, rtol=1e-9)
    found = pcvm.predict_interval(falling, X, probability=0.5)
    ends = falling.regressor_.predict_interval(X, probability=0.5)
    np.testing.assert_array_equal(found, -ends[:, ::-1])


def test_what_has_no_intervals_inside_is_named():
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABEL)
    refused("LogisticRegression has no intervals; needed PCVM", pcvm.predict_interval, logistic, X)
    mode = make_pipeline(StandardScaler(), pcvm.PCVMClassifier(estimation="em", width=1.0))
    refused("the fit is one mode", pcvm.predict_interval, mode.fit(X, LABEL), X)
    ending = make_pipeline(StandardScaler(), "passthrough").fit(X)
    refused("model='passthrough'; needed a fitted estimator", pcvm.predict_interval, ending, X)
    with pytest.raises(NotFittedError):
        pcvm.predict_interval(make_pipeline(StandardScaler(), pcvm.PCVMClassifier()), X)


NOISES = [{}, {"std": "weights"}, {"star": True}, {"noise": 0.3}, {"likelihood": "student-t"}]


@pytest.mark.parametrize("options", NOISES)
def test_intervals_of_new_targets_have_their_share_of_simulated_ones(options):
    """Targets drawn from the law of which `predict` has the moments; normal ones to the last digit."""
    rows, rng = np.linspace(-3.0, 3.0, 50)[:, None], np.random.default_rng(5)
    model = pcvm.RVMRegressor(width=1.5, **options)
    model.fit(rows, np.sin(rows[:, 0]) + 0.3 * rng.normal(size=50))
    new = np.linspace(-4.0, 4.0, 20)[:, None]
    low, high = model.predict_interval(new, probability=0.8).T
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(0.5 * (low + high), mean, atol=1e-12)
    if "likelihood" not in options:
        np.testing.assert_allclose(low, norm.ppf(0.1, mean, std), rtol=1e-12)
        return
    variance = model._predictor_.moments(new)[1]
    drawn = np.sqrt(variance) * rng.normal(size=(20_000, 20))
    drawn += mean + model.noise_ * rng.standard_t(4.0, (20_000, 20))
    np.testing.assert_allclose(((low < drawn) & (drawn < high)).mean(axis=0), 0.8, atol=0.015)


@pytest.mark.parametrize("degrees", [1.0, 3.0, 50.0])
def test_intervals_under_student_t_noise_invert_the_convolution(degrees):
    noise = StudentT(0.5, degrees)
    sure, unsure = student_t_interval(noise, np.zeros(2), np.array([0.0, 2.0]), 0.9)[:, 1]
    assert sure == pytest.approx(0.5 * student_t.ppf(0.95, degrees), rel=1e-5)
    below = quad(lambda u: norm.pdf(u) * student_t.cdf((unsure - 2**0.5 * u) / 0.5, degrees), -9, 9)
    assert below[0] == pytest.approx(0.95, abs=1e-6)
