"""The posterior as an estimator: predictions are those of its draws, widths count by weights.

Of machines without signs: draws and predictions are NUTS' on the same model.
"""

import pickle
import re

import arviz as az
import numpy as np
import pytest
from calibration import assert_same_law
from joblib import parallel_config
from problems import assert_probabilities, blobs, refused
from scipy.special import ndtr
from scipy.stats import norm
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.centres import choose_means
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.probabilities import class_probability
from pcvm_pymc.estimators.chains import mixture_diagnostics
from pcvm_pymc.model.build import build

# whether chains converge within `max_iter` is a matter of the draws, which rounding decides
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OPTIONS = pcvm.PosteriorOptions
FEW = {"estimation": "posterior", "basis": 5, "random_state": 1, "options": OPTIONS(max_iter=500)}
SHORT = {"options": OPTIONS(50, 100)}


X, LABEL = blobs(60, seed=80, fixed=True)


@pytest.fixture(scope="module")
def fitted():
    return pcvm.PCVMClassifier(**FEW, kernel="rbf", width="shared").fit(X, LABEL)


def test_its_probabilities_are_means_over_the_draws_and_its_intervals_quantiles(fitted):
    new = X[:7] + 0.1
    posterior = fitted.idata_["posterior"].to_dataset().stack(sample=("chain", "draw"))
    posterior = posterior.transpose("sample", ...)
    parts = (posterior[name].values for name in ("width", "weight", "bias"))
    draws = [
        ndtr(as_kernel("rbf", width)(new, fitted.relevance_vectors_) @ weight + bias)
        for width, weight, bias in zip(*parts, strict=True)
    ]
    np.testing.assert_allclose(fitted.predict_proba(new)[:, 1], np.mean(draws, axis=0), rtol=1e-9)
    found = fitted.predict_interval(new, probability=0.5)
    expected = np.quantile(draws, [0.25, 0.75], axis=0).T
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-9)
    np.testing.assert_allclose(found[:, 0], 1.0 - expected[:, ::-1], rtol=1e-9)
    log_odds = np.log(np.mean(draws, axis=0) / (1.0 - np.mean(draws, axis=0)))
    np.testing.assert_allclose(fitted.decision_function(new), log_odds, rtol=1e-7)


def test_widths_and_weights_are_those_of_the_default_search(fitted):
    given = {"kernel": "rbf", "width": "shared", "basis": 5}
    default = pcvm.PCVMClassifier(**given, random_state=1).fit(X, LABEL)
    points, weights = default.selection_.distinct()
    widths = [each.width for each in points]
    convergence = fitted.idata_["convergence"]
    np.testing.assert_allclose(convergence["width"], widths)
    np.testing.assert_allclose(convergence["share"], weights)
    drawn = fitted.idata_["posterior"]["width"].values
    for width, weight in zip(widths, weights, strict=True):
        assert (abs((drawn == width).sum(axis=1) - weight * 250) <= 1.0).all()


def has_converged(model):
    """Return what the chains of the mixture say."""
    found = model.idata_["convergence"]
    return bool(found["rhat"] <= 1.01 and found["ess"] >= 400)


def test_its_status_is_what_its_chains_say(fitted):
    wanted = pcvm.Status.CONVERGED if has_converged(fitted) else pcvm.Status.ITERATION_LIMIT
    assert fitted.status_ is wanted
    is_long = fitted.n_iter_ > 0.5 * fitted.options.max_iter
    assert is_long or fitted.status_ is pcvm.Status.CONVERGED
    assert fitted.idata_["convergence"]["rhat"].dims == ()
    # what is kept of the chains agrees as closely as so few draws can
    kept = fitted.idata_["posterior"].to_dataset()[["latent"]]
    assert float(az.rhat(kept)["latent"].max()) < 1.03
    assert float(az.ess(kept)["latent"].min()) > 400


def test_a_mixture_is_judged_as_the_draws_of_one_chain():
    """Independent draws are worth their number; a chain away from the others counts by its share."""
    rng = np.random.default_rng(5)
    many, few = rng.normal(size=(4, 3000, 2)), 5.0 + rng.normal(size=(4, 1500, 2))
    rhat, ess = mixture_diagnostics([many, few], [0.75, 0.25])
    assert rhat == pytest.approx(1.0, abs=3e-3)
    assert ess > 10_000
    apart = few - 8.0 * (np.arange(4) == 0)[:, None, None]
    assert mixture_diagnostics([many, apart], [0.75, 0.25])[0] > 1.03
    assert mixture_diagnostics([many, apart], [0.999, 0.001])[0] < 1.01


def test_by_default_its_bases_are_means_of_rows():
    options = {"estimation": "posterior", "width": 1.5, "random_state": 1}
    model = pcvm.PCVMClassifier(**options | SHORT).fit(X, LABEL)
    points, _ = choose_means(X, np.where(LABEL.max() == LABEL, 1, -1), random_state=0)
    np.testing.assert_array_equal(model.relevance_vectors_, points)
    assert (model.support_ == -1).all()
    weight = model.idata_["posterior"]["weight"]
    assert (weight < 0).any()
    assert (weight > 0).any()


def test_signed_weights_of_two_classes_are_drawn_by_gibbs(monkeypatch):
    """Probabilities are those of trajectories, within five Monte Carlo errors."""
    sign = np.where(np.arange(6) % 2, -1.0, 1.0)
    given = FEW | {"basis": (X[:6], sign), "width": 1.5, "options": OPTIONS(500, 4000)}
    model = pcvm.PCVMClassifier(**given).fit(X, LABEL)
    assert not model.idata_["sample_stats"].data_vars
    assert (model.idata_["posterior"]["weight"].values * sign > 0).all()
    monkeypatch.setattr("pcvm_pymc.estimators.chains.sampler_of", lambda problem: ("hmc", ""))
    other = pcvm.PCVMClassifier(**given).fit(X, LABEL)
    assert "energy" in other.idata_["sample_stats"]
    drawn = [ndtr(each.idata_["posterior"].to_dataset()[["latent"]]) for each in (model, other)]
    error = np.hypot(*(az.mcse(each)["latent"].values for each in drawn))
    apart = model.predict_proba(X)[:, 1] - other.predict_proba(X)[:, 1]
    assert (abs(apart) < 5.0 * error).all()


OWN_KERNEL = {"kernel": lambda A, B, width: A @ B.T, "width": "auto"}
PIECES = [
    {"likelihood": "logit"},
    {"hyperprior": pcvm.Hyperprior(3.0, 3.0, 1.0, 1.0)},
    pytest.param(OWN_KERNEL, marks=pytest.mark.slow),
    {"options": OPTIONS(40, 500)},
]


@pytest.mark.parametrize("arguments", PIECES, ids=lambda each: next(iter(each)))
def test_other_pieces(arguments):
    model = pcvm.PCVMClassifier(**{"width": 2.0} | FEW | arguments).fit(X, LABEL)
    posterior = model.idata_["posterior"]
    assert posterior.sizes["draw"] == model.options.draws
    if "hyperprior" in arguments:
        np.testing.assert_allclose(model.idata_["constant_data"]["rate"], 3.0)
    assert model.score(X, LABEL) > 0.8


def test_it_is_the_same_by_seed_pickled_and_in_threads(fitted):
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), expected)
    assert fitted.score(X, LABEL) > 0.8
    of_widths = pcvm.PCVMClassifier(**FEW | SHORT, width="shared").fit(X, LABEL)
    with parallel_config(backend="loky", n_jobs=2):  # chains are not copied to processes
        again = clone(of_widths).fit(X, LABEL)
    assert len(again.idata_["convergence"]["width"]) > 1
    np.testing.assert_array_equal(again.predict_proba(X), of_widths.predict_proba(X))
    model = pcvm.PCVMClassifier(**FEW | SHORT, width=1.5)
    balanced = clone(model).set_params(class_weight={LABEL.min(): 5.0, LABEL.max(): 0.5})
    assert balanced.fit(X, LABEL).predict_proba(X)[:, 1].mean() < expected[:, 1].mean()


def test_it_goes_into_pipelines_and_projections():
    model = pcvm.PCVMClassifier(**FEW | SHORT | {"basis": 8}, width=1.5)
    assert cross_val_score(make_pipeline(StandardScaler(), model), X, LABEL, cv=2).mean() > 0.8
    dense = clone(model).fit(X, LABEL)
    few = clone(model).set_params(n_vectors=3).fit(X, LABEL)
    own = pcvm.project(dense, X, LABEL, size=3).classifier
    np.testing.assert_allclose(few.predict_proba(X), own.predict_proba(X), rtol=1e-9)
    assert len(few.weight_) == 3
    assert abs(few.predict_proba(X) - dense.predict_proba(X)).mean() < 0.1
    assert pcvm.to_c(few)
    refused("is a posterior, which has no few vectors", pcvm.to_c, dense)


WITHOUT_EFFECT = [
    ({"scale": 2.0}, "the posterior learns it"),
    ({"hyperprior": "jeffreys"}, "an improper prior has no posterior"),
    ({"width": "em"}, "moved by EM"),
    ({"memory_limit": 1e9, "width": 1.0}, "another estimation than 'posterior'"),
    ({"options": pcvm.EMOptions()}, "needed None or a pcvm_pymc.PosteriorOptions"),
    ({"estimation": "auto"}, "needed None or a pcvm_pymc.EMOptions"),
]


@pytest.mark.parametrize(("arguments", "words"), WITHOUT_EFFECT, ids=str)
def test_arguments_without_effect_are_refused(arguments, words):
    refused(words, pcvm.PCVMClassifier(**FEW | arguments).fit, X, LABEL)


def test_a_fit_that_ends_short_of_convergence_warns():
    model = pcvm.PCVMClassifier(**FEW | {"width": 1.5, "options": OPTIONS(20, 40)})
    words = r"r-hat (\d\.\d{3}) and (\d+) effective draws, needed at most 1.01 and at least 400: max_iter"
    with pytest.warns(ConvergenceWarning, match=words) as said:
        model.fit(X, LABEL)
    shown = next(found for each in said if (found := re.search(words, str(each.message))))
    judged = model.idata_["convergence"]
    assert shown.groups() == (f"{judged['rhat'].item():.3f}", f"{judged['ess'].item():.0f}")
    assert model.status_ is pcvm.Status.ITERATION_LIMIT


# --- all machines -------------------------------------------------------------------------------


ROWS, SIGNS = blobs(40, seed=81, fixed=True)
ROWS[:, 1] += np.arange(40) % 3
TARGETS = {"labels": SIGNS > 0, "numbers": np.sin(ROWS[:, 0]) + 0.1 * SIGNS}
TARGETS["classes"] = np.array(["a", "b", "c"])[np.arange(40) % 3]


def own_machines(**options):
    """Return machines that take few draws, with what their targets are."""
    posterior = {"estimation": "posterior", "random_state": 1} | options
    few = posterior | {"basis": 5, "width": 2.0}
    of_kernel = {"features": "kernel", "prior": "student", "bias": "free"}
    return {
        "RVM": (pcvm.RVMClassifier(**few), "labels"),
        "RVM of classes": (pcvm.RVMClassifier(**few, link="probit"), "classes"),
        "regression": (pcvm.RVMRegressor(**few), "numbers"),
        "regression, Student-t": (pcvm.RVMRegressor(**few, likelihood="student-t"), "numbers"),
        "sparse probit": (pcvm.SparseProbitClassifier(**posterior, prior="laplace"), "labels"),
        "sparse probit of classes": (pcvm.SparseProbitClassifier(**few | of_kernel), "classes"),
        "mRVM": (pcvm.MRVMClassifier(**few), "classes"),
        "mPCVM": (pcvm.MPCVMClassifier(**few | {"basis": 6}), "classes"),
    }


@pytest.mark.parametrize("name", own_machines())
def test_machines_predict_by_their_draws(name):
    model, kind = own_machines(**SHORT)[name]
    model.fit(ROWS, TARGETS[kind])
    assert (model.status_ is pcvm.Status.CONVERGED) == has_converged(model)
    posterior = model.idata_["posterior"]
    assert posterior.sizes["draw"] == 50
    latent = posterior["latent"].values.reshape(200, len(ROWS), -1)
    if kind == "numbers":
        each = latent[:, :, 0]
        mean, std = model.predict(ROWS, return_std=True)
        noise = (posterior["noise"] ** 2).mean().item()
        noise *= 2.0 if "Student" in name else 1.0  # of four degrees of freedom
        np.testing.assert_allclose(std**2, each.var(axis=0) + noise, rtol=1e-9)
    else:
        flat = latent.reshape(-1, latent.shape[2]) if latent.shape[2] > 1 else latent.ravel()
        each = class_probability(model._likelihood_, flat).reshape(200, len(ROWS), -1)
        mean = model.predict_proba(ROWS)
        assert_probabilities(mean, model.predict_log_proba(ROWS), 1e-8)
        assert model.score(ROWS, TARGETS[kind]) > 0.5
    if kind == "classes" and "class" in posterior.dims:
        assert list(posterior["class"].values) == ["a", "b", "c"]
    np.testing.assert_allclose(mean, each.mean(axis=0), rtol=1e-9)
    ends = model.predict_interval(ROWS, probability=0.5)
    if kind == "numbers":  # of new targets; of few draws
        half = np.diff(ends)[:, 0] / 2.0
        likely = student_t(4.0) if "Student" in name else norm
        variance = each.var(axis=0) + (posterior["noise"] ** 2).mean().item()
        wanted = likely.ppf(0.75) * np.sqrt(variance)
        np.testing.assert_allclose(half, wanted, rtol=0.4)
        assert (np.abs(ends.mean(axis=1) - mean) < wanted).all()
    else:
        wanted = np.moveaxis(np.quantile(each, [0.25, 0.75], 0), 0, -1)
        np.testing.assert_allclose(ends, wanted, 1e-9)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(ROWS), model.predict(ROWS))
    again = clone(model).fit(ROWS, TARGETS[kind])
    np.testing.assert_array_equal(again.predict_interval(ROWS, probability=0.5), ends)


#: the same models for NUTS, of centres and of a machine without biases
SAME_MODELS = {
    "RVM": lambda X, y, z: pcvm.rvm_model(X, y, likelihood="logit", width=2.0, basis=z),
    "regression": lambda X, y, z: pcvm.rvm_model(X, y, width=2.0, basis=z),
    "sparse probit": lambda X, y, z: pcvm.sparse_probit_model(X, y),
    "mRVM": lambda X, y, z: build(
        pcvm.FAMILY["mrvm_bottom_up"], X, y, width=2.0, basis=z, bias="none"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_MODELS)
def test_machines_without_signs_have_nuts_posterior(name):
    """Means of ranks of latent values and of their distances from the middle: at most 1e-7 by chance."""
    model, kind = own_machines(options=OPTIONS(1000))[name]
    model.fit(ROWS, TARGETS[kind])
    same = SAME_MODELS[name](ROWS, TARGETS[kind], vars(model).get("relevance_vectors_"))
    nuts = pcvm.sample(
        same, method="nuts", nuts_sampler="pymc", draws=2000, chains=2, cores=1, random_seed=2,
        progressbar=False, quiet=True,
    )  # fmt: skip
    draws = [each["posterior"]["latent"].values for each in (model.idata_, nuts)]
    if kind == "classes":  # a common shift is in the prior alone
        draws = [each - each.mean(axis=3, keepdims=True) for each in draws]
    draws = [each.reshape(*each.shape[:2], -1)[:, :, ::4] for each in draws]
    middle = np.mean([each.mean(axis=(0, 1)) for each in draws], axis=0)
    assert_same_law(*(np.concatenate([one, abs(one - middle)], axis=2) for one in draws))
    if kind == "numbers":
        noise = [each["posterior"]["noise"].values[:, :, None] for each in (model.idata_, nuts)]
        assert_same_law(*noise)


def test_a_width_is_chosen_by_the_machines_own_rule():
    few = {"basis": 8, "options": OPTIONS(20, 100), "estimation": "posterior", "random_state": 1}
    for kind, width in (("labels", "shared"), ("numbers", "evidence")):
        machine = pcvm.RVMRegressor if kind == "numbers" else pcvm.RVMClassifier
        model = machine(**few, width=width).fit(ROWS, TARGETS[kind])
        plain = machine(basis=8, width=width, random_state=1).fit(ROWS, TARGETS[kind])
        np.testing.assert_allclose(model.width_, plain.width_)
        assert not hasattr(model, "log_evidence_")


OF_FITS = [
    (pcvm.RVMClassifier(width=1.0, method="batch"), "method was given with"),
    (pcvm.RVMClassifier(width="validity"), "the validity is of a fit"),
    (pcvm.RVMRegressor(width=1.0, star=True), "needed no memory_limit or posterior"),
    (pcvm.RVMRegressor(width=1.0, std="weights"), "std was given with"),
    (pcvm.MRVMClassifier(width=1.0, options=pcvm.BottomUpOptions()), "options="),
    (pcvm.SparseProbitClassifier(), "an improper prior has no posterior; needed prior='laplace'"),
    (pcvm.SparseProbitClassifier(prior="laplace", options=pcvm.EMOptions()), "options="),
]


@pytest.mark.parametrize(("model", "words"), OF_FITS, ids=str)
def test_arguments_of_fits_are_refused(model, words):
    y = TARGETS["numbers" if isinstance(model, pcvm.RVMRegressor) else "labels"]
    refused(words, clone(model).set_params(estimation="posterior").fit, ROWS, y)


def test_what_needs_a_fit_refuses_draws_what_needs_draws_a_fit_and_projections_take_them():
    few = {"estimation": "posterior", "basis": 5, "width": 2.0, "options": OPTIONS(20, 100)}
    model = pcvm.RVMClassifier(**few, random_state=1).fit(ROWS, TARGETS["labels"])
    refused("the model is a posterior", pcvm.validity, model, ROWS, TARGETS["labels"])
    several = pcvm.MRVMClassifier(**few, random_state=1).fit(ROWS, TARGETS["classes"])
    vectors = pcvm.project(several, ROWS, TARGETS["classes"], size=3).classifier
    assert vectors.weight_.shape == (3, 3)
    assert abs(vectors.predict_proba(ROWS) - several.predict_proba(ROWS)).mean() < 0.2
