import arviz_stats
import numpy as np
import pytest
from problems import blobs, refused
from scipy import stats

from pcvm_pymc import Hyperprior, add_log_prior, approximate, load, pcvm_model, sample, save

QUIET = {"quiet": True, "progressbar": False, "cores": 1, "random_seed": 1}


def small(prior=None, n=16, seed=5):
    X, label = blobs(n, seed=seed)
    return pcvm_model(X, label, width=1.2, hyperprior=prior or Hyperprior.plug_in())


@pytest.fixture(scope="module")
def drawn():
    model = small()
    return model, approximate(model, draws=400, random_seed=1)


def half_t(size, c, d):
    return np.log(2) + stats.t.logpdf(size, 2 * c, scale=np.sqrt(d / c))


def test_it_is_the_hyperpriors_density(drawn):
    model, result = drawn
    found = add_log_prior(result, model)["log_prior"]
    draws = result["posterior"]
    np.testing.assert_allclose(found["magnitude"], half_t(draws["magnitude"], 5, 5), atol=1e-9)
    np.testing.assert_allclose(found["bias"], stats.t.logpdf(draws["bias"], 2), atol=1e-9)
    assert "log_prior" not in result.children  # the given one stays as it is


def test_psense_takes_it(drawn, tmp_path):
    model, result = drawn
    with model:
        with_prior = add_log_prior(result)
    save(with_prior, tmp_path / "result")
    for tree in (with_prior, load(tmp_path / "result")):
        of_prior = arviz_stats.psense(tree, group="prior", var_names=["magnitude"])
        of_data = arviz_stats.psense(tree, group="likelihood", var_names=["latent"])
        assert np.isfinite(of_prior["magnitude"]).all()
        # sixteen sizes under sixteen rows: the prior is felt, and so are the data
        assert float(of_prior["magnitude"].max()) > 0.05
        assert float(of_data["latent"].max()) > 0.05


def test_gibbs_draws_of_a_learned_scale_have_it_too():
    model = small(Hyperprior(2.0, 0.5, 1.0, 1.0, rate_shape=2.0))
    result = sample(model, method="gibbs", draws=20, tune=20, chains=1, **QUIET)
    found = add_log_prior(result, model)["log_prior"]
    rate = result["posterior"]["rate"]
    np.testing.assert_allclose(found["rate"], stats.gamma.logpdf(rate, 2.0, scale=0.25), atol=1e-9)
    size = result["posterior"]["magnitude"]
    np.testing.assert_allclose(
        found["magnitude"], half_t(size, 2.0, rate.values[..., None]), atol=1e-9
    )


def test_another_model_is_refused(drawn):
    model, result = drawn
    with pytest.raises(ValueError, match="other values of 'hyperprior' in constant_data"):
        add_log_prior(result, small(Hyperprior(5.0, 4.0, 1.0, 1.0)))
    refused("other values of 'label' in observed_data", add_log_prior, result, small(n=18))
    refused("other values of", add_log_prior, result, small(seed=6))
    learned = small(Hyperprior(5.0, 5.0, 1.0, 1.0, rate_shape=1.0))
    refused(r"no draws of \['rate'\]", add_log_prior, result, learned)
    refused("result=3; needed a DataTree", add_log_prior, 3, model)
    with pytest.raises(TypeError, match="model=3; needed a pm"):
        add_log_prior(result, 3)
