"""Evidence and searches from the bottom up of models: results and predictions."""

import logging

import numpy as np
import pymc as pm
import pytest
from problems import blobs, refused, sinc, three_blobs

import pcvm_pymc as pcvm
from pcvm_pymc import EvidenceOptions, fit_evidence, rvm_model
from pcvm_pymc.core.evidence import EvidenceProblem, fit_bottom_up, fit_rvm
from pcvm_pymc.inference.prediction import latent_draws
from pcvm_pymc.model.read import read


def sinc_model():
    x, target = sinc(50, end=6.0)
    return x, rvm_model(x, target, width=2.0)


@pytest.mark.parametrize("method", ["sequential", "batch"])
def test_it_is_the_cores_fit_in_the_papers_groups(method):
    x, model = sinc_model()
    tree = fit_evidence(model, method=method)
    core = fit_rvm(EvidenceProblem.of(read(model).problem_for("evidence")), method=method)
    posterior = tree["posterior"]
    assert posterior.sizes == {"chain": 1, "draw": 1, "basis": 50, "obs": 50}
    np.testing.assert_array_equal(posterior["weight"].values[0, 0], core.weight)
    np.testing.assert_array_equal(posterior["precision"].values[0, 0], core.alpha)
    assert posterior["noise"].item() == core.noise
    summary = tree["optimizer_result"]
    assert summary["log_evidence"].item() == core.log_evidence
    assert summary["status"].item() == "CONVERGED"
    assert summary["n_active"].item() == len(core.active)
    assert tree["evidence_trace"]["log_evidence"].values[-1] == pytest.approx(core.log_evidence)
    np.testing.assert_array_equal(tree["fit"]["covariance_matrix"], core.covariance)
    assert tree["fit"]["rows"].values[-1] == "bias"
    np.testing.assert_allclose(latent_draws(tree, x)[0], core.latent, atol=1e-9)


def test_a_stop_at_the_limit_is_logged(caplog):
    _, model = sinc_model()
    with caplog.at_level(logging.WARNING):
        fit_evidence(model, options=EvidenceOptions(max_iter=2))
    assert "raise max_iter" in caplog.text


# --- a user-defined noise -------------------------------------------------------------------------

SPREAD = np.linspace(0.1, 0.3, 50)


def by_hand(noise):
    """Return the model of `sinc_model` by hand, with another noise."""
    x, target = sinc(50, end=6.0)
    with pm.Model() as model:
        pm.Normal("t", pcvm.rvm_latent(x, width=2.0), noise(), observed=target)
    return model


def evidence(tree):
    return tree["optimizer_result"]["log_evidence"].item()


PRIORS = [(pm.Uniform, 0.2, 0.3), (pm.LogNormal, -1.0, 0.05), (pm.HalfNormal, 0.01)]


@pytest.mark.parametrize(("kind", "numbers"), [(kind, rest) for kind, *rest in PRIORS])
def test_the_prior_of_the_noise_counts_beside_the_evidence(kind, numbers):
    x, target = sinc(50, end=6.0)
    found = fit_evidence(by_hand(lambda: kind("s", *numbers)))
    noise = found["posterior"]["s"].item()

    def height(s):
        return fixed(s) + pm.logp(kind.dist(*numbers), s).eval()

    def fixed(s):
        return evidence(fit_evidence(rvm_model(x, target, width=2.0, noise=s)))

    assert evidence(found) == pytest.approx(fixed(noise))
    assert max(height(noise * share) for share in (0.9, 0.97, 1.03, 1.1)) < height(noise)


NOISES = [
    lambda: SPREAD * pm.HalfNormal("s", 1.0),
    lambda: pm.math.sqrt(pm.HalfNormal("s", 1.0) ** 2 + SPREAD**2),
    lambda: pm.HalfNormal("s", 1.0, shape=2)[np.arange(50) % 2],
    lambda: pm.HalfNormal("s", 1.0, shape=50),
    lambda: pm.HalfNormal("s", 1.0) + 0.5,
]


@pytest.mark.parametrize("noise", NOISES)
def test_a_noise_that_is_no_free_scalar_is_refused_by_name(noise):
    refused(r"noise .* depends on \['s'\].*find_map_em", fit_evidence, by_hand(noise))


def test_known_noise_by_hand_is_the_builders():
    x, target = sinc(50, end=6.0)
    found = by_hand(lambda: pm.Data("sd", SPREAD))
    wanted = rvm_model(x, target, width=2.0, noise=SPREAD)
    assert evidence(fit_evidence(found)) == pytest.approx(evidence(fit_evidence(wanted)), rel=1e-12)
    with pm.Model() as model:
        latent = pcvm.rvm_latent(x, width=2.0)
        pm.StudentT("t", nu=pm.Gamma("nu", 2.0, 0.1), mu=latent, sigma=0.1, observed=target)
    refused(r"\['nu'\] \(degrees of the likelihood\) is unknown", fit_evidence, model)


# --- from the bottom up, and RVM* ----------------------------------------------------------------


def models():
    X, label, _ = three_blobs(36)
    two, signs = blobs(40, seed=3)
    return {
        "mPCVM2": pcvm.mpcvm_model(X, label, width=1.5),
        "mRVM1": pcvm.mrvm_model(X, label, width=1.5, shared=True),
        "PCVM": pcvm.pcvm_model(two, signs, width=1.5),
    }


@pytest.mark.parametrize("name", ["mPCVM2", "mRVM1", "PCVM"])
def test_a_search_from_the_bottom_up_is_the_cores(name):
    model = models()[name]
    tree = pcvm.fit_evidence(model)
    core = fit_bottom_up(read(model).problem_for("bottom-up"))
    posterior, summary = tree["posterior"], tree["optimizer_result"]
    np.testing.assert_array_equal(posterior["weight"].values[0, 0], core.weight)
    np.testing.assert_array_equal(posterior["latent"].values[0, 0], core.latent)
    assert summary["method"].item() == "bottom-up"
    assert summary["log_posterior"].item() == core.log_posterior
    assert tree["evidence_trace"].sizes["iteration"] == core.n_iter + 1
    n_kept = np.count_nonzero(core.weight.reshape(len(core.weight), -1).any(axis=1))
    assert 0 < n_kept < len(core.weight) / 2
    if name != "mRVM1":
        assert (posterior["weight"] * tree["constant_data"]["signs"] >= 0).all()
    predictions = pcvm.predict(tree, tree["constant_data"]["centres"].values)["predictions"]
    np.testing.assert_allclose(predictions["latent"].values[0, 0], core.latent, atol=1e-9)


def test_the_options_of_another_search_are_refused():
    model = models()["PCVM"]
    refused("method='batch' is for an RVM", pcvm.fit_evidence, model, method="batch")
    refused("needed BottomUpOptions", pcvm.fit_evidence, model, options=pcvm.EvidenceOptions())
    x = np.linspace(-2, 2, 12)[:, None]
    with pytest.raises(ValueError, match="needed EvidenceOptions"):
        pcvm.fit_evidence(pcvm.rvm_model(x, x[:, 0]), options=pcvm.BottomUpOptions())


def test_models_without_a_search_are_refused_by_name():
    X, label, _ = three_blobs(36)
    refused("shared=True", pcvm.fit_evidence, pcvm.mrvm_model(X, label))
    with pytest.raises(ValueError, match="laplace"):
        pcvm.fit_evidence(pcvm.sparse_probit_model(X, label > 0, prior=pcvm.Laplace(1.0)))


# --- RVM*, and the uncertainty of an RVM -----------------------------------------------------------


@pytest.mark.parametrize("star", [False, True])
def test_moments_are_those_of_the_estimator(star):
    x, target = sinc(40, end=6.0)
    new = np.linspace(-15, 15, 11)[:, None]
    tree = pcvm.fit_evidence(pcvm.rvm_model(x, target, width=2.0))
    predictions = pcvm.predict(tree, new, star=star)["predictions"]
    std = "auto" if star else "weights"
    estimator = pcvm.RVMRegressor(width=2.0, star=star, std=std).fit(x, target)
    mean, deviation = estimator.predict(new, return_std=True)
    np.testing.assert_allclose(predictions["latent"].values[0, 0], mean, atol=1e-8)
    total = np.hypot(predictions["latent_sd"], predictions["noise"]).values[0, 0]
    np.testing.assert_allclose(total, deviation, rtol=1e-6)


def test_rvm_star_needs_the_training_inputs():
    x, target = sinc(40, end=6.0)
    tree = pcvm.fit_evidence(pcvm.rvm_model(x, target, width=2.0, basis=x[::2]))
    remembered = pcvm.predict(tree, x, star=True)["predictions"]["latent_sd"]
    given = pcvm.predict(tree, x, star=True, X=x)["predictions"]["latent_sd"]
    np.testing.assert_array_equal(remembered, given)
    without = tree.copy()  # as results were packed before
    without["constant_data"] = without["constant_data"].to_dataset().drop_vars("X")
    refused("needed the training inputs as X", pcvm.predict, without, x, star=True)
    refused("needed the 40 training inputs", pcvm.predict, tree, x, star=True, X=x[::-1])
    refused("for star=True", pcvm.predict, tree, x, X=x)
    X, label = blobs(20, seed=1)
    with pytest.raises(ValueError, match="not an RVM's regression"):
        pcvm.predict(pcvm.fit_evidence(pcvm.rvm_model(X, label, likelihood="logit")), X, star=True)
