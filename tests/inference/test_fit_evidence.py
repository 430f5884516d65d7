import logging

import numpy as np
import pytest

from pcvm_pymc import EvidenceOptions, fit_evidence, latent_draws, predict, rvm_model
from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm
from pcvm_pymc.model.read import read


def sinc_model(n=50, **kwargs):
    x = np.linspace(-6, 6, n)[:, None]
    target = np.sinc(x[:, 0] / np.pi) + 0.1 * np.random.default_rng(0).normal(size=n)
    return x, rvm_model(x, target, width=2.0, **kwargs)


@pytest.mark.parametrize("method", ["sequential", "batch"])
def test_it_is_the_cores_fit_in_the_papers_groups(method):
    x, model = sinc_model()
    tree = fit_evidence(model, method=method)
    core = fit_rvm(EvidenceProblem.of(read(model, "evidence")), method=method)
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


@pytest.mark.parametrize("noise", [None, 0.1])
def test_predictions_of_targets_carry_the_noise(noise):
    x, model = sinc_model(noise=noise)
    tree = fit_evidence(model)
    predictions = predict(tree, x[:5])["predictions"]
    assert "probability" not in predictions
    assert predictions["noise"].item() == pytest.approx(tree["posterior"]["noise"].item())
    assert 0.05 < predictions["noise"].item() < 0.15


def test_a_stop_at_the_limit_is_logged(caplog):
    _, model = sinc_model()
    with caplog.at_level(logging.WARNING):
        fit_evidence(model, options=EvidenceOptions(max_iter=2))
    assert "raise max_iter" in caplog.text
