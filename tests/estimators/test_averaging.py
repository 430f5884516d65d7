"""Averages over width and scale: what is averaged, what combinations of arguments mean, refusals."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import assert_probabilities, banana, linear, printed_measures, refused
from scipy.spatial.distance import cdist
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import EMOptions, Hyperprior, MPCVMClassifier, PCVMClassifier
from pcvm_pymc.core.pieces import likelihoods
from pcvm_pymc.core.pieces.kernels import RBF, median_distance, squared_distances
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.estimators.predictors import Average, Predictor
from pcvm_pymc.experiments.datasets import load

X, LABEL = banana(60, seed=1, fixed=True)
WORDS = np.where(LABEL > 0, "yes", "no")
NEW = banana(30, seed=2, fixed=True)[0]
PROPER = Hyperprior(2.0, 8.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def average():
    return PCVMClassifier(width="shared", random_state=0).fit(X, WORDS)


@pytest.fixture(scope="module")
def several():
    flowers, y = load_iris(return_X_y=True)
    model = MPCVMClassifier(random_state=0, options=EMOptions(tol=1e-3))
    return model.fit(flowers[::3], np.array(["c", "a", "b"])[y[::3]]), flowers[1::3]


def basis_by_hand(mode, rows):
    """Return the basis functions of a mode of several kernels."""
    name, centres = mode.kernel.name, mode.relevance_vectors
    if name.endswith(" of ranks"):
        rows, centres = mode.kernel.transform(rows), mode.kernel.transform(centres)
    if name.startswith("rbf"):
        return np.exp(-cdist(rows / mode.width, centres / mode.width, "sqeuclidean"))
    assert name.startswith("laplacian")
    return np.exp(-cdist(rows / mode.width, centres / mode.width, "cityblock"))


def test_the_average_is_its_components_by_hand(average):
    assert len(average.components_) > 1
    assert average.component_weights_.sum() == pytest.approx(1.0)
    assert (np.diff(average.component_weights_) <= 0).all()
    yes = 0.0
    for share, each in zip(average.component_weights_, average.components_, strict=True):
        basis = basis_by_hand(each, NEW)
        yes += share * norm.cdf(basis @ each.weight + each.bias)
    probability = average.predict_proba(NEW)
    np.testing.assert_allclose(probability, np.column_stack([1 - yes, yes]), atol=1e-12)
    odds = np.log(yes) - np.log1p(-yes)
    np.testing.assert_allclose(average.decision_function(NEW), odds, atol=1e-9)


def test_log_odds_are_exact_in_the_tails(average):
    far = np.full((1, 2), 60.0)
    wide = clone(average).set_params(kernel=linear, width="auto", scale=None)
    wide.fit(X + LABEL[:, None], WORDS)
    odds = wide.decision_function(far)
    assert odds > 100
    assert np.isfinite(odds).all()
    assert wide.predict_proba(far)[0, 1] == pytest.approx(1.0, abs=1e-12)


def test_several_classes_are_averaged_by_hand(several):
    model, new = several
    assert model.classes_.tolist() == ["a", "b", "c"]
    wanted, likelihood = np.zeros((len(new), 3)), MultinomialProbit(3)
    for share, each in zip(model.component_weights_, model.components_, strict=True):
        basis = basis_by_hand(each, new)
        wanted += share * likelihood.probability(basis @ each.weight + each.bias)
    np.testing.assert_allclose(model.predict_proba(new), wanted, atol=1e-7)
    np.testing.assert_allclose(np.exp(model.decision_function(new)), wanted, atol=1e-6)
    np.testing.assert_array_equal(model.predict(new), model.classes_[wanted.argmax(axis=1)])


def test_weights_belong_to_the_best_component(average, several):
    np.testing.assert_array_equal(average.relevance_vectors_, X[average.support_])
    for model in (average, several[0]):
        best = model.components_[0]
        np.testing.assert_array_equal(model.weight_.T, best.weight)
        np.testing.assert_array_equal(model.bias_, best.bias)
        np.testing.assert_array_equal(model.relevance_vectors_, best.relevance_vectors)
        assert (model.width_, model.scale_) == (best.width, best.scale)
        assert np.sqrt(model.hyperprior_.d / model.hyperprior_.c) == pytest.approx(best.scale)


def test_one_mode_is_that_of_the_best_cell(average):
    average = clone(average).set_params(kernel="rbf").fit(X, WORDS)
    one = clone(average).set_params(estimation="em").fit(X, WORDS)
    assert not hasattr(one, "components_")
    assert (one.width_, one.scale_) == (average.width_, average.scale_)
    given = PCVMClassifier(width=one.width_, scale=one.scale_).fit(X, WORDS)
    np.testing.assert_allclose(given.predict_proba(NEW), one.predict_proba(NEW), atol=1e-6)
    best = average.components_[0]
    latent = RBF(best.width)(X, best.relevance_vectors) @ best.weight + best.bias
    np.testing.assert_allclose(one.decision_function(X), latent, atol=1e-3)
    np.testing.assert_allclose(one.predict_proba(X)[:, 1], norm.cdf(one.decision_function(X)))
    tried = one.selection_
    assert (tried.best.width, tried.best.scale) == (one.width_, one.scale_)
    assert len(tried.points) == len(average.selection_.points) > len(average.components_)


def test_the_rows_are_kept_once_and_are_the_fit_s_own():
    rows = np.random.default_rng(0).normal(size=(40, 3000))
    given, y = rows.copy(), rows[:, 0] > 0
    model = PCVMClassifier(width="shared", random_state=0).fit(given, y)
    assert len(model.components_) > 1
    assert len(pickle.dumps(model)) < 1.5 * rows.nbytes
    before = model.predict_proba(rows[:3]), model.predict_interval(rows[:3])
    given[:] = 0.0  # the caller's array is the caller's
    np.testing.assert_array_equal(model.predict_proba(rows[:3]), before[0])
    np.testing.assert_array_equal(model.predict_interval(rows[:3]), before[1])


# --- rounding --------------------------------------------------------------------------------------


class Given(Predictor):
    """A part of an average, of given latent values."""

    def __init__(self, likelihood, values):
        self.likelihood, self.values = likelihood, values

    def latent(self, X):
        return self.values


ANY_SIZE = st.floats(allow_nan=False)  # also the largest, infinite ones and the smallest
WEIGHTS = st.lists(st.floats(5e-324, 1.0), min_size=1, max_size=9)
LIKELIHOODS = [Probit(), Logit(), NoisyProbit(0.1), NoisyProbit(1e-17)]
LIKELIHOODS += [likelihoods.NormalProbability(0.5), MultinomialProbit(2), MultinomialProbit(5)]


@given(st.sampled_from(LIKELIHOODS), st.booleans(), WEIGHTS, st.data())
def test_averages_are_probabilities_whatever_their_parts(likelihood, against_rest, weights, data):
    n_scores = likelihood.n_scores
    size = ANY_SIZE if n_scores == 1 else st.floats(-1e11, 1e11)
    width = n_scores if n_scores > 1 else 3
    shape = (1, width) if n_scores > 1 or against_rest else (width,)
    values = st.lists(size, min_size=width, max_size=width)
    parts = [Given(likelihood, np.reshape(data.draw(values), shape)) for _ in weights]
    average = Average(parts, np.array(weights) / sum(weights), likelihood)
    found = average.probability(NEW)
    assert_probabilities(found, average.log_probability(NEW), 1e-8 if n_scores > 1 else 1e-14)
    each = [w * part.probability(NEW) for w, part in zip(average.weights, parts, strict=True)]
    np.testing.assert_allclose(found, sum(each), rtol=0, atol=1e-14)


def test_weights_above_one_by_rounding_and_sure_rows():
    sure = Given(Probit(), np.array([40.0, -40.0, 9.0]))
    average = Average([sure] * 3, np.array([0.6, 0.3, 0.1000000000000003]), Probit())
    assert average.weights.sum() > 1.0
    np.testing.assert_array_equal(average.probability(NEW)[:2], [[0.0, 1.0], [1.0, 0.0]])
    own = average.log_probability(NEW)[2]
    np.testing.assert_allclose(own, norm.logsf([9.0, -9.0]), rtol=1e-12)  # -43.6 and -1.1e-19


# --- what combinations mean ------------------------------------------------------------------------

CASES = [
    # arguments, whether it averages, whether the width and the scale are chosen from cells
    ({}, True, True, True),
    ({"estimation": "average"}, True, True, True),
    ({"estimation": "em"}, False, True, True),
    ({"scale": 3.0}, True, True, False),
    ({"scale": "auto"}, True, True, True),
    ({"width": 0.8}, False, False, False),
    ({"width": 0.8, "scale": 2.0}, False, False, False),
    ({"width": 0.8, "scale": "auto"}, True, False, True),
    ({"width": 0.8, "scale": "auto", "estimation": "em"}, False, False, True),
    ({"width": 0.8, "estimation": "average"}, True, False, True),
    ({"width": "em", "scale": "auto"}, False, False, True),
    ({"width": "cv"}, False, False, False),
    ({"hyperprior": "plug_in"}, True, True, False),
    ({"hyperprior": PROPER}, True, True, False),
    ({"hyperprior": "jeffreys"}, False, False, False),
    ({"kernel": "linear-spline"}, True, False, True),
    ({"kernel": linear}, True, True, True),
    ({"estimation": "bottom-up", "width": 0.8}, False, False, False),
]


def named(each):
    """Return a name that is the same in every process: a function's own, not its place in memory."""
    if not isinstance(each, dict):
        return str(each)
    return ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in each.items())


@pytest.mark.parametrize(("arguments", "averages", "width", "scale"), CASES, ids=named)
def test_what_a_combination_chooses(arguments, averages, width, scale):
    model = PCVMClassifier(random_state=0, **arguments).fit(X[:40], WORDS[:40])
    assert hasattr(model, "components_") == averages
    assert hasattr(model, "selection_") == (width or scale)
    if width or scale:
        cells = model.selection_.points
        assert (len(np.unique(model.selection_.widths, axis=0)) > 1) == width
        assert (len({each.scale for each in cells}) > 1) == scale
    prior = getattr(model, "hyperprior_", None)
    if prior is not None and prior.d > 0:
        assert model.scale_ == pytest.approx(np.sqrt(prior.d / prior.c))
    elif prior is not None:
        assert np.isnan(model.scale_)
    for name, value in arguments.items():
        if name in ("width", "scale") and not isinstance(value, str):
            assert getattr(model, name + "_") == value
    if arguments.get("width") == "em":  # moves it
        assert model.width_ != pytest.approx(median_distance(X[:40]), rel=1e-3)


PCVM, MPCVM, UP = PCVMClassifier, MPCVMClassifier, {"estimation": "bottom-up"}
REFUSED = [
    (PCVM, {"scale": 2.0, "hyperprior": "jeffreys"}, "scale=2.0.*'jeffreys'.*='default'"),
    (PCVM, {"scale": "auto", "hyperprior": PROPER}, "scale='auto', hyperprior="),
    (PCVM, {"scale": 2.0, "estimation": "bottom-up"}, "with estimation='bottom-up'"),
    (PCVM, {"estimation": "average", "hyperprior": "jeffreys"}, "nothing to average over"),
    (PCVM, {"estimation": "average", "width": 1.0, "scale": 1.0}, "nothing to average"),
    (PCVM, {"estimation": "average", "width": "em"}, "width='em'.*nothing to average"),
    (PCVM, {"n_vectors": 5, "memory_limit": 1e6}, "n_vectors=5.*rows in chunks"),
    (MPCVM, {"scale": 2.0, **UP}, "scale was given with estimation='bottom-up'"),
    (MPCVM, {"n_vectors": 3, "memory_limit": 1e6}, "n_vectors=3.*rows in chunks"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), REFUSED, ids=range(len(REFUSED)))
def test_arguments_that_do_not_go_together(kind, arguments, message):
    refused(message, kind(**arguments).fit, X, WORDS)


# --- few vectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vectors", [4, "auto"])
def test_an_average_onto_few_vectors(average, n_vectors):
    model = clone(average).set_params(n_vectors=n_vectors).fit(X, WORDS)
    n = len(model.weight_)
    assert 0 < n <= (4 if n_vectors == 4 else 50)
    assert not hasattr(model, "components_")
    vectors, widths = model.relevance_vectors_, model.vector_widths_
    assert widths.shape == (n,)
    assert {*np.unique(np.round(widths / model.width_, 9))} <= {0.6, 1.0, 1.7}
    basis = np.exp(-squared_distances(NEW, vectors) / widths**2)
    np.testing.assert_allclose(model.decision_function(NEW), basis @ model.weight_ + model.bias_)
    reference = model.projection_.reference
    rbfs = clone(average).set_params(kernel="rbf").fit(X, WORDS)
    np.testing.assert_allclose(reference.probability, rbfs.predict_proba(X)[:, 1], atol=1e-9)
    gap = np.abs(model.predict_proba(NEW) - average.predict_proba(NEW)).mean()
    assert gap < 0.1


# --- many rows, several classes --------------------------------------------------------------------


AVERAGES = [
    (PCVMClassifier, {"options": EMOptions(tol=1e-8), "kernel": "rbf"}, 1e-6),
    (MPCVMClassifier, {"options": EMOptions(), "width": 0.8, "scale": "auto"}, 1e-3),
]


@pytest.mark.parametrize(("kind", "options", "most"), AVERAGES)
def test_components_of_an_average_in_chunks_are_those_in_memory(kind, options, most):
    whole = kind(basis=12, random_state=0, **options).fit(X, WORDS)
    some = clone(whole).set_params(memory_limit=2e4).fit(X, WORDS)
    assert [each.width for each in some.components_] == [each.width for each in whole.components_]
    np.testing.assert_allclose(some.component_weights_, whole.component_weights_, atol=1e-6)
    assert len(some.components_) > 1
    np.testing.assert_allclose(some.predict_proba(NEW), whole.predict_proba(NEW), atol=most)


def test_components_are_modes_where_cells_are_found_class_by_class():
    blobs_of, y = make_blobs(180, centers=3, cluster_std=2.0, random_state=1)  # 540 weights
    model = MPCVMClassifier(random_state=0, options=EMOptions(tol=1e-3), scale=1.0).fit(blobs_of, y)
    assert 1 <= len(model.components_) <= 6
    for each in model.components_:
        given = {"kernel": each.kernel, "width": each.width, "scale": each.scale}
        one = MPCVMClassifier(**given, options=EMOptions(tol=1e-3)).fit(blobs_of, y)
        weight = np.zeros_like(each.weight)
        weight[np.searchsorted(each.basis, one.support_)] = one.weight_.T
        basis = basis_by_hand(each, blobs_of)
        found, wanted = basis @ each.weight + each.bias, basis @ weight + one.bias_
        np.testing.assert_allclose(found, wanted, atol=0.02)


# --- real data -------------------------------------------------------------------------------------


@pytest.mark.slow  # of the default on real data there is Ripley's, too
def test_waveform_reaches_the_papers_figures(data_folder):
    """chen2009, Table I: error 10.40 %, AUC 96.42, 1-RMSE 71.78."""
    waveform = load("waveform", folder=data_folder)
    rows = []
    for k in range(5):
        X, y, X_test, y_test = waveform.split(k)
        rows.append(printed_measures(PCVMClassifier(random_state=0).fit(X, y), X_test, y_test))
    error, auc, rmse = np.mean(rows, axis=0)
    assert error <= 10.4
    assert auc >= 96.4
    assert rmse >= 71.8


def test_ripleys_own_data(data_folder):
    X, y, X_test, y_test = load("ripley", folder=data_folder).split(0)
    model = make_pipeline(StandardScaler(), PCVMClassifier(random_state=0)).fit(X, y)
    assert np.mean(model.predict(X_test) != y_test) <= 0.105
