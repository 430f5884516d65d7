"""The reader: pieces by the operations of variables, whatever these are called."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from problems import blobs, refused, value_point
from scipy.stats import norm

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import EMOptions, fit_em, log_posterior
from pcvm_pymc.core.family import sampler_of
from pcvm_pymc.core.pieces.kernels import RBF, Laplacian, squared_distances, width_bounds
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS
from pcvm_pymc.core.pieces.priors import SharedHyperprior
from pcvm_pymc.model.build import build
from pcvm_pymc.model.distributions import FreeWeight
from pcvm_pymc.model.graphs import numbers
from pcvm_pymc.model.parts import find_parts
from pcvm_pymc.model.read import read

X, LABEL = blobs(18, seed=3)
CLASS = np.arange(18) % 3
TARGET = 2.0 + X[:, 0] ** 2
PROPER = pcvm.Hyperprior(2.0, 0.3, 1.5, 0.7)
HALF = pcvm.Hyperprior(0.5, 0.1, 0.2, 0.0)
JEFFREYS = pcvm.Hyperprior.jeffreys()


QUADRATIC = {"prior": "jeffreys", "features": "quadratic"}
MODELS = {  # further ones than the contract's
    "pcvm jeffreys": lambda: pcvm.pcvm_model(X, LABEL, width=1.2, hyperprior=JEFFREYS),
    "pcvm laplacian": lambda: pcvm.pcvm_model(
        X, LABEL, kernel="laplacian", width=pm.LogNormal.dist(0.0, 0.6), hyperprior=PROPER
    ),
    "pcvm improper bias": lambda: pcvm.pcvm_model(X, LABEL, width=1.2, hyperprior=HALF),
    "pcvm free width": lambda: pcvm.pcvm_model(
        X, LABEL, width=pm.LogNormal.dist(0.0, 0.6), hyperprior="default"
    ),
    "pcvm few bases": lambda: pcvm.pcvm_model(X, LABEL, basis=6, hyperprior="default"),
    "sparse laplace": lambda: pcvm.sparse_probit_model(X, LABEL),
    "sparse flat bias": lambda: pcvm.sparse_probit_model(X, LABEL, prior=PROPER, bias="free"),
    "sparse jeffreys": lambda: pcvm.sparse_probit_model(X, LABEL, **QUADRATIC),
    "sparse free width": lambda: pcvm.sparse_probit_model(
        X, LABEL, features="kernel", prior="student", width=pm.Gamma.dist(2.0, 1.0)
    ),
    "rvm normal": lambda: pcvm.rvm_model(X, TARGET, noise=0.3, kernel="linear-spline"),
    "mpcvm jeffreys": lambda: pcvm.mpcvm_model(X, CLASS, width=1.2, hyperprior=JEFFREYS),
    "mrvm": lambda: pcvm.mrvm_model(X, CLASS, basis=9, hyperprior=PROPER),
    "mrvm shared": lambda: pcvm.mrvm_model(X, CLASS, shared=True, hyperprior=PROPER),
    "mrvm shared jeffreys": lambda: pcvm.mrvm_model(X, CLASS, shared=True, hyperprior=JEFFREYS),
}


def problem_of(model, solver="sampling"):
    """Return the problem that a solver takes."""
    return read(model).problem_for(solver)


def log_density(problem, weight, bias):
    """Return the log density by the pieces."""
    return log_posterior(problem, weight, bias, problem.Phi @ weight + bias)


@pytest.mark.parametrize("name", MODELS)
def test_density_of_the_pieces_is_the_models(name):
    model = MODELS[name]()
    problem, parts = read(model).problem, find_parts(model)
    logp = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    rng = np.random.default_rng(1)
    weight = rng.normal(size=problem.weight_shape)
    if problem.is_signed:
        weight = np.abs(weight) * problem.sign
    bias = rng.normal(size=problem.n_scores) if problem.n_scores > 1 else rng.normal()
    size = np.abs(weight) if problem.is_signed else weight
    natural = {parts.weight.name: size, "bias": np.asarray(bias)}
    if problem.moves is not None:
        problem = replace(problem, Phi=problem.moves.basis(1.3), width=1.3)
        natural["width"] = np.asarray(1.3)
    wanted = log_density(problem, weight, bias)
    assert logp(value_point(model, natural)) == pytest.approx(wanted, rel=1e-12, abs=1e-8)


UNKNOWN = replace(PROPER, rate_shape=0.7), replace(PROPER, rate_spread=1.7)


@pytest.mark.parametrize("prior", [PROPER, HALF, JEFFREYS, *UNKNOWN])
def test_numbers_of_a_prior_come_back_exactly(prior):
    assert read(pcvm.pcvm_model(X, LABEL, hyperprior=prior)).problem.hyperprior == prior


def test_pieces_of_other_priors_come_back_exactly():
    for gamma in (3.0, 0.1, 7.25):
        prior = pcvm.Laplace(gamma)
        assert read(pcvm.sparse_probit_model(X, LABEL, prior=prior)).problem.hyperprior == prior
    horseshoe = pcvm.HalfHorseshoe(0.03, 1.7, 0.6, 0.4)
    parts = find_parts(pcvm.pcvm_model(X, LABEL, hyperprior=horseshoe))
    assert parts.hyperprior == horseshoe
    assert len(parts.scales) == 3
    shared = read(pcvm.mrvm_model(X, CLASS, shared=True, hyperprior=PROPER)).problem
    assert shared.hyperprior == SharedHyperprior(2.0, 0.3, 1.5, 0.7)
    assert shared.shared
    assert read(pcvm.rvm_model(X, TARGET, noise=0.3)).problem.likelihood.noise == 0.3
    assert np.isnan(read(pcvm.rvm_model(X, TARGET)).problem.likelihood.noise)
    assert find_parts(pcvm.rvm_model(X, TARGET)).nuisances["noise"].name == "noise"


def by_hand(declare_observed, *, times=lambda s, w: s * w, names=("u", "a")):
    """Return a model of the family's operations under names of its own."""
    Phi = RBF(1.2)(X, X)
    with pm.Model() as model:
        w = pcvm.MarginalWeight(names[0], 2.0, 0.3, shape=18)
        latent = pcvm.MarginalBias(names[1], 1.5, 0.7) + Phi @ times(LABEL, w)
        declare_observed(latent, (LABEL > 0) * 1)
    return model


def test_names_do_not_matter():
    model = by_hand(lambda latent, y: pcvm.ProbitBernoulli("z", latent, observed=y))
    built = pcvm.pcvm_model(X, LABEL, width=1.2, hyperprior=PROPER)
    found, wanted = problem_of(model, "em"), problem_of(built, "em")
    for name in ("Phi", "label", "sign"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert (found.hyperprior, found.likelihood) == (wanted.hyperprior, wanted.likelihood)
    assert find_parts(model).weight.name == "u"


def test_other_ways_to_write_the_same():
    Phi = RBF(1.2)(X, X)
    with pm.Model() as model:
        w = FreeWeight("w", 1.0, 0.5, shape=18)
        pm.Normal("t", pm.math.dot(w, Phi.T), 0.4, observed=TARGET)
    problem = read(model).problem
    np.testing.assert_allclose(problem.Phi, Phi)
    assert problem.bias == "none"
    assert (problem.likelihood.noise, problem.likelihood.name) == (0.4, "normal")
    assert problem.hyperprior == pcvm.Hyperprior(1.0, 0.5, 1.0, 0.5)
    with pm.Model() as model:
        w = pcvm.MarginalWeight("size", 1.0, 0.5, shape=(18, 3))
        latent = pt.exp(-squared_distances(X, X) / pm.HalfNormal("ell") ** 2) @ w
        pcvm.MultinomialProbit("k", latent, observed=CLASS)
    problem = read(model).problem
    assert problem.likelihood.n_classes == 3
    np.testing.assert_array_equal(problem.sign, np.ones((18, 3)))
    np.testing.assert_allclose(problem.moves.basis(0.7), RBF(0.7)(X, X))


def test_a_logit_under_the_pcvms_names_is_no_probit():
    def observed(latent, y):
        return pm.Bernoulli("label", logit_p=pm.Deterministic("latent", latent), observed=y)

    model = by_hand(observed, names=("magnitude", "bias"))
    assert problem_of(model, "em").likelihood.name == "logit"  # a row of the family takes it
    assert sampler_of(problem_of(model))[0] == "nuts"


@pytest.mark.parametrize("shape", [(), 2], ids=["one width", "one of each feature"])
def test_em_moves_a_laplacians_width_to_a_stationary_point(shape):
    prior = pm.LogNormal.dist(0.5, 0.3, shape=shape)
    hyperprior = pcvm.Hyperprior.plug_in()
    model = pcvm.pcvm_model(X, LABEL, kernel="laplacian", width=prior, hyperprior=hyperprior)
    problem = read(model).problem
    assert problem.moves.order == 1
    width = np.full(shape, 1.3) if shape else 1.3
    np.testing.assert_allclose(problem.moves.basis(width), Laplacian(width)(X, X), rtol=1e-12)
    result = fit_em(problem, None, EMOptions(tol=1e-9))
    weight, log_width = result.weight, np.log(result.width)

    def density(at):
        Phi = Laplacian(np.exp(at))(X, X)
        likelihood = norm.logcdf(problem.label * (Phi @ weight + result.bias)).sum()
        return likelihood + problem.moves.log_density(np.exp(at))

    h, directions = 1e-5, np.eye(np.size(log_width)).reshape(-1, *np.shape(log_width))
    slopes = [
        (density(log_width + h * e) - density(log_width - h * e)) / (2 * h) for e in directions
    ]
    np.testing.assert_allclose(slopes, 0.0, atol=1e-4)


def test_bounds_of_a_width_are_distances_of_the_centres():
    def model_of(**basis):
        return pcvm.pcvm_model(X, LABEL, width=pm.LogNormal.dist(0.0, 0.6), **basis)

    assert read(model_of()).problem.moves.bounds == width_bounds(X)
    model = model_of(basis=7)
    assert read(model).problem.moves.bounds == width_bounds(model["centres"].get_value())
    model = model_of(basis=X[:4] + 0.01, signs=LABEL[:4])
    distance = np.sqrt(squared_distances(X, X[:4] + 0.01))
    assert read(model).problem.moves.bounds == pytest.approx((distance.min(), distance.max()))


def test_explicit_precisions_are_for_the_evidence_and_nuts():
    model = pcvm.rvm_model(X, TARGET, hyperprior=PROPER, precision="joint")
    assert problem_of(model, "evidence").hyperprior == PROPER
    for shared, kind in ((False, "gamma"), (True, "shared gamma")):
        parts = find_parts(pcvm.mrvm_model(X, CLASS, shared=shared, precision="joint"))
        assert [rv.name for rv in parts.precisions] == ["precision", "bias_precision"]
        assert parts.hyperprior.name == kind
    prior = replace(PROPER, rate_shape=0.7)
    learned = pcvm.rvm_model(X, TARGET, hyperprior=prior, precision="joint")
    assert problem_of(learned, "evidence").hyperprior == replace(PROPER, rate_shape=0.7)
    assert find_parts(learned).rate.name == "rate"
    refused(r"explicit precisions \['precision', 'bias_precision'\]", problem_of, model)


OTHER_TERMS = [
    lambda m: pm.Potential("more", -(m["bias"] ** 2)),
    lambda m: pm.Normal("more"),
    lambda m: pm.Normal("more", m["bias"], observed=[1.0]),
]


@pytest.mark.parametrize("change", OTHER_TERMS, ids=["potential", "free", "observed"])
def test_other_terms_are_named(change):
    with pcvm.pcvm_model(X, LABEL) as model:
        change(model)
    refused(r"extra terms \['more'\]", problem_of, model)
    assert find_parts(model).likelihood.name == "probit"


def test_a_model_is_read_once_and_only_refusals_route(monkeypatch):
    """Whether it is of the family is a value of the reading; any other error is raised."""
    readings, model, place = [], pcvm.pcvm_model(X, LABEL), "pcvm_pymc.model.read.find_parts"
    monkeypatch.setattr(place, lambda given: readings.append(given) or find_parts(given))
    pcvm.find_map_em(model, progressbar=False)
    pcvm.fit_evidence(model)
    pcvm.sample(model, draws=2, tune=2, chains=1, thin=1, max_iter=2, quiet=True)
    assert readings == [model] * 3
    plain = read(REFUSED["poisson"][0]())
    assert (plain.parts, plain.problem, plain.unseen("em")) == (None, None, plain.fault)

    monkeypatch.setattr(place, lambda _: np.ones(2) + np.ones(3))
    for function in (pcvm.find_map_em, pcvm.fit_evidence, pcvm.sample, pcvm.EMStep):
        refused("could not be broadcast", function, model)


def probit(latent, y):
    return pcvm.ProbitBernoulli("z", latent, observed=y)


LACKS, NO_WEIGHT = "the model lacks.*'z'", "needed MarginalWeight|transformed"
REFUSED = {
    "poisson": (lambda: by_hand(lambda f, y: pm.Poisson("z", pt.exp(f), observed=y)), LACKS),
    "Bernoulli of a probit": (
        lambda: by_hand(lambda f, y: pm.Bernoulli("z", pm.math.invprobit(f), observed=y)),
        rf"{LACKS} \(Bernoulli\)",
    ),
    "square": (lambda: by_hand(probit, times=lambda s, w: s * w**2), NO_WEIGHT),
    "scaled": (lambda: by_hand(probit, times=lambda s, w: 2.0 * s * w), "needed signs, -1 and"),
    "two biases": (lambda: by_hand(lambda f, y: probit(f + pm.Normal("n"), y)), "3 terms"),
    "do": (lambda: pm.do(pcvm.pcvm_model(X, LABEL), {"bias": 0.0}), r"not free \['bias'\]"),
    "observe": (
        lambda: pm.observe(pcvm.pcvm_model(X, LABEL), {"magnitude": np.ones(18)}),
        r"not free \['magnitude'\]",
    ),
}


@pytest.mark.parametrize(("model", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_the_familys_is_refused(model, words):
    refused(words, problem_of, model())


def test_unknown_kernels_are_refused_by_name():
    with pm.Model() as model:
        pcvm.pcvm_model(X, LABEL, kernel=pm.gp.cov.Matern52(2, ls=pm.LogNormal("ell", 0.0, 0.5)))
    refused(r"depend on \['ell'\] in another way than an RBF", problem_of, model)
    with pytest.raises(ValueError, match="width is a random variable, 'width'"):
        problem_of(pcvm.rvm_model(X, LABEL, likelihood="logit", width="lognormal"), "evidence")


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_a_width_made_of_variables_is_not_moved_as_one_of_them_and_predicts(kernel):
    with pm.Model() as model:
        width = pm.LogNormal("factor", 0.0, 0.7) * np.array([1.0, 3.0])
        pcvm.pcvm_model(X, LABEL, kernel=kernel, width=width, basis=6, signs="both")
    refused(r"depend on \['factor'\] in another way than an RBF", problem_of, model, "sampling")
    result = pcvm.find_map_em(model, progressbar=False)
    np.testing.assert_allclose(
        result["posterior"]["width"][0, 0],
        result["posterior"]["factor"][0, 0].item() * np.array([1.0, 3.0]),
    )
    found = pcvm.predict(result, X)["predictions"]["latent"].to_numpy().ravel()
    np.testing.assert_allclose(found, result["posterior"]["latent"].to_numpy().ravel(), rtol=1e-9)


def test_rows_that_do_not_match_are_noticed():
    model = pcvm.pcvm_model(X, LABEL)
    model["y"].set_value(model["y"].get_value()[:3])
    refused("18 rows and its labels 3", read, model)
    model = pcvm.pcvm_model(X, LABEL)
    model["centres"].set_value(X[:5])
    refused("5 basis functions, 18 weights", read, model)


def test_label_noise_is_read_with_its_share_of_flips():
    row = pcvm.FAMILY["pcvm"]
    for flip in (0.03, 0.4):
        found = read(build(row, X, LABEL, likelihood="label noise", flip=flip)).problem
        assert found.likelihood.name == "label noise"
        assert found.likelihood.flip == pytest.approx(flip, abs=1e-15)
    unknown = build(row, X, LABEL, likelihood="label noise", flip=pm.Beta.dist(1.0, 9.0))
    assert np.isnan(read(unknown).problem.likelihood.flip)
    words = r"\['flip'\] \(flip of the likelihood\) is unknown, which 'em' does not"
    refused(words, problem_of, unknown, "em")
    noisy = LIKELIHOODS["label noise"](pm.Beta.dist(1.0, 9.0))
    with pytest.raises(ValueError, match=r"unknown flip=.*needed a number here, or a model"):
        pcvm.PCVMClassifier(likelihood=noisy).fit(X, LABEL)
    with pytest.raises(ValueError, match=r"flip=0\.7; needed a number from 0 to 0\.5"):
        build(row, X, LABEL, likelihood=LIKELIHOODS["label noise"](0.7))


def test_numbers_are_no_view_of_the_models_data():
    held = pytensor.shared(np.ones((2, 3)))
    for expression in (held, held.T, held[0], pt.constant(np.ones(3))[::-1]):
        numbers(expression)[...] = 7.0
    np.testing.assert_array_equal(held.get_value(), np.ones((2, 3)))
