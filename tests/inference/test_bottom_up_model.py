import numpy as np
import pytest
from problems import blobs

from pcvm_pymc import (
    BottomUpOptions,
    EvidenceOptions,
    Laplace,
    RVMRegressor,
    fit_evidence,
    mpcvm_model,
    mrvm_model,
    pcvm_model,
    predict,
    rvm_model,
    sparse_probit_model,
)
from pcvm_pymc.core.evidence import fit_bottom_up
from pcvm_pymc.model.read import read


def three_classes(n=36):
    rng = np.random.default_rng(0)
    label = np.arange(n) % 3
    return rng.normal(size=(n, 2)) + 3.0 * np.array([[0, 0], [1, 0], [0, 1]])[label], label


def models():
    X, label = three_classes()
    two, signs = blobs(40, seed=3)
    return {
        "mPCVM2": mpcvm_model(X, label, width=1.5),
        "mRVM1": mrvm_model(X, label, width=1.5, shared=True),
        "PCVM": pcvm_model(two, signs, width=1.5),
    }


@pytest.mark.parametrize("name", ["mPCVM2", "mRVM1", "PCVM"])
def test_a_search_from_the_bottom_up_is_the_cores(name):
    model = models()[name]
    tree = fit_evidence(model)
    core = fit_bottom_up(read(model, "bottom-up"))
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
    centres = tree["constant_data"]["centres"].values
    predictions = predict(tree, centres)["predictions"]
    np.testing.assert_allclose(predictions["latent"].values[0, 0], core.latent, atol=1e-9)


def test_the_options_of_another_search_are_refused():
    model = models()["PCVM"]
    with pytest.raises(ValueError, match="method='batch' is for an RVM"):
        fit_evidence(model, method="batch")
    with pytest.raises(ValueError, match="needed BottomUpOptions"):
        fit_evidence(model, options=EvidenceOptions())
    x = np.linspace(-2, 2, 12)[:, None]
    with pytest.raises(ValueError, match="needed EvidenceOptions"):
        fit_evidence(rvm_model(x, x[:, 0]), options=BottomUpOptions())


def test_models_without_a_search_are_refused_by_name():
    X, label = three_classes()
    with pytest.raises(ValueError, match="shared=True"):
        fit_evidence(mrvm_model(X, label))
    with pytest.raises(ValueError, match="laplace"):
        fit_evidence(sparse_probit_model(X, label > 0, prior=Laplace(1.0)))


# --- RVM*, and the uncertainty of an RVM -----------------------------------------------------------


def sinc(n=40):
    x = np.linspace(-6, 6, n)[:, None]
    return x, np.sinc(x[:, 0] / np.pi) + 0.1 * np.random.default_rng(0).normal(size=n)


@pytest.mark.parametrize("star", [False, True])
def test_moments_are_those_of_the_estimator(star):
    x, target = sinc()
    new = np.linspace(-15, 15, 11)[:, None]
    tree = fit_evidence(rvm_model(x, target, width=2.0))
    predictions = predict(tree, new, star=star)["predictions"]
    estimator = RVMRegressor(width=2.0, star=star).fit(x, target)
    mean, deviation = estimator.predict(new, return_std=True)
    np.testing.assert_allclose(predictions["latent"].values[0, 0], mean, atol=1e-8)
    total = np.hypot(predictions["latent_sd"], predictions["noise"]).values[0, 0]
    np.testing.assert_allclose(total, deviation, rtol=1e-6)


def test_rvm_star_needs_the_training_inputs():
    x, target = sinc()
    tree = fit_evidence(rvm_model(x, target, width=2.0, basis=x[::2]))
    remembered = predict(tree, x, star=True)["predictions"]["latent_sd"]
    given = predict(tree, x, star=True, X=x)["predictions"]["latent_sd"]
    np.testing.assert_array_equal(remembered, given)
    without = tree.copy()  # as results were packed before
    without["constant_data"] = without["constant_data"].to_dataset().drop_vars("inputs")
    with pytest.raises(ValueError, match="needed the training inputs as X"):
        predict(without, x, star=True)
    with pytest.raises(ValueError, match="needed the 40 training inputs"):
        predict(tree, x, star=True, X=x[::-1])
    with pytest.raises(ValueError, match="for star=True"):
        predict(tree, x, X=x)
    X, label = blobs(20, seed=1)
    with pytest.raises(ValueError, match="not an RVM's regression"):
        predict(fit_evidence(rvm_model(X, label, likelihood="logit")), X, star=True)
