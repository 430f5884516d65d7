"""Precisions and log priors of draws."""

import arviz_stats
import numpy as np
import pymc as pm
import pytest
from calibration import assert_law
from problems import blobs, refused
from scipy import stats

import pcvm_pymc as pcvm
from pcvm_pymc.inference.results import observed_and_constant_data

FAST = {"mode": "FAST_COMPILE"}
QUIET = {"quiet": True, "progressbar": False, "cores": 1, "random_seed": 1}
SHORT = {"draws": 60, "tune": 20, "chains": 2, "cores": 1, "quiet": True, "max_sweeps": 700}
WIDTHS, WEIGHTS = (0.8, 2.0), (3.0, 1.0)


def small(prior=None, n=16, seed=5):
    X, label = blobs(n, seed=seed)
    return pcvm.pcvm_model(X, label, width=1.2, hyperprior=prior or pcvm.Hyperprior.plug_in())


def test_precisions_drawn_afterwards():
    tree = pcvm.sample(small("default"), method="gibbs", draws=500, **QUIET)
    draws = pcvm.draw_precisions(tree, random_seed=2)["posterior"]
    assert "precision" not in tree["posterior"]
    prior = pcvm.Hyperprior(*tree["constant_data"]["hyperprior"].values)
    # Gamma(c + 1/2, rate d + w^2/2), Chen et al. 2009 appendix A; its mean is eq. 24
    wanted = prior.weight_precision(draws["weight"].values)
    shape = prior.c + 0.5
    assert_law(shape * draws["precision"].values / wanted, stats.gamma(shape).cdf)
    wanted = [prior.bias_precision(b) for b in draws["bias"].values.ravel()]
    shape = prior.e + 0.5
    assert_law(shape * draws["bias_precision"].values.ravel() / wanted, stats.gamma(shape).cdf)
    horseshoe = observed_and_constant_data(small(pcvm.HalfHorseshoe(0.1)))
    tree["constant_data"] = horseshoe["constant_data"]
    refused("without precisions", pcvm.draw_precisions, tree)


def test_shared_precisions_are_drawn_given_all_weights_of_a_basis():
    X, prior = blobs(12)[0], pcvm.Hyperprior(2.0, 0.3, 1.5, 0.7)
    with pcvm.mrvm_model(X, np.arange(12) % 3, hyperprior=prior, shared=True):
        drawn = pm.sample_prior_predictive(1500, random_seed=1, compile_kwargs=FAST)
    drawn["posterior"] = drawn["prior"].to_dataset()
    precision = pcvm.draw_precisions(drawn, random_seed=2)["posterior"]["precision"]
    assert precision.dims == ("chain", "draw", "basis")
    # over draws from the prior, what is drawn given the weights is the prior again
    law = stats.gamma(prior.c, scale=1 / prior.d)
    assert_law(precision.values[..., 0], law.cdf)


@pytest.fixture(scope="module")
def drawn():
    model = small()
    return model, pcvm.sample(model, method="gibbs", draws=400, chains=1, **QUIET)


def half_t(size, c, d):
    return np.log(2) + stats.t.logpdf(size, 2 * c, scale=np.sqrt(d / c))


def test_it_is_the_hyperpriors_density(drawn):
    model, result = drawn
    found = pcvm.add_log_prior(result, model)["log_prior"]
    draws = result["posterior"]
    np.testing.assert_allclose(found["magnitude"], half_t(draws["magnitude"], 5, 5), atol=1e-9)
    np.testing.assert_allclose(found["bias"], stats.t.logpdf(draws["bias"], 2), atol=1e-9)
    assert "log_prior" not in result.children  # the given one stays as it is


def test_psense_takes_it(drawn, tmp_path):
    model, result = drawn
    with model:
        with_prior = pcvm.add_log_prior(result)
    for tree in (with_prior, pcvm.load(pcvm.save(with_prior, tmp_path / "result"))):
        of_prior = arviz_stats.psense(tree, group="prior", var_names=["magnitude"])
        of_data = arviz_stats.psense(tree, group="likelihood", var_names=["latent"])
        assert np.isfinite(of_prior["magnitude"]).all()
        # sixteen sizes under sixteen rows: the prior is felt, and so are the data
        assert float(of_prior["magnitude"].max()) > 0.05
        assert float(of_data["latent"].max()) > 0.05


def test_gibbs_draws_of_a_learned_scale_have_it_too():
    model = small(pcvm.Hyperprior(2.0, 0.5, 1.0, 1.0, rate_shape=2.0))
    result = pcvm.sample(model, method="gibbs", draws=20, tune=20, chains=1, **QUIET)
    found = pcvm.add_log_prior(result, model)["log_prior"]
    rate = result["posterior"]["rate"]
    np.testing.assert_allclose(found["rate"], stats.gamma.logpdf(rate, 2.0, scale=0.25), atol=1e-9)
    wanted = half_t(result["posterior"]["magnitude"], 2.0, rate.values[..., None])
    np.testing.assert_allclose(found["magnitude"], wanted, atol=1e-9)


def test_another_model_is_refused(drawn):
    model, result = drawn
    with pytest.raises(ValueError, match="other values of 'hyperprior' in constant_data"):
        pcvm.add_log_prior(result, small(pcvm.Hyperprior(5.0, 4.0, 1.0, 1.0)))
    refused("other values of 'label' in observed_data", pcvm.add_log_prior, result, small(n=18))
    refused("other values of", pcvm.add_log_prior, result, small(seed=6))
    learned = small(pcvm.Hyperprior(5.0, 5.0, 1.0, 1.0, rate_shape=1.0))
    refused(r"no draws of \['rate'\]", pcvm.add_log_prior, result, learned)
    refused("result=3; needed a DataTree", pcvm.add_log_prior, 3, model)
    refused("model=3; needed a pm", pcvm.add_log_prior, result, 3, error=TypeError)
