import numpy as np
import pymc as pm
import pytest
from calibration import assert_law
from problems import blobs, refused, value_point
from scipy import stats
from scipy.special import expit, ndtr

from pcvm_pymc import Hyperprior, rvm_model
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.pieces.likelihoods import Normal
from pcvm_pymc.model.parts import find_parts
from pcvm_pymc.model.read import read

LIKELIHOODS = ("normal", "logit", "probit")
PRIOR = Hyperprior(2.0, 0.3, 1.5, 0.7)


def data_for(likelihood, n=25):
    X, label = blobs(n, seed=0)
    return (X, 2.0 + X[:, 0] ** 2) if likelihood == "normal" else (X, label)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_log_density_is_that_of_the_formulas(likelihood):
    X, y = data_for(likelihood)
    model = rvm_model(X, y, likelihood=likelihood, width=1.3, hyperprior=PRIOR)
    Phi = as_kernel("rbf", 1.3)(X, X)
    weight, bias, noise = np.random.default_rng(0).normal(size=25), 0.7, 0.4
    latent = Phi @ weight + bias
    wanted = stats.t(4, scale=np.sqrt(0.15)).logpdf(weight).sum()
    wanted += stats.t(3, scale=np.sqrt(0.7 / 1.5)).logpdf(bias)
    point = value_point(model, {"weight": weight, "bias": np.float64(bias)})
    if likelihood == "normal":
        point["noise_log__"] = np.log(noise)
        wanted += stats.halfnorm(scale=y.std()).logpdf(noise)
        wanted += stats.norm(latent, noise).logpdf(y).sum()
    else:
        link = {"logit": expit, "probit": ndtr}[likelihood]
        wanted += np.log(link(y * latent)).sum()
    logp = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    assert logp(point) == pytest.approx(wanted, abs=1e-8)


def test_joint_precisions_integrate_to_the_marginal():
    """Monte Carlo over the prior precision gives the marginal density of a weight."""
    X, y = data_for("normal", 4)
    joint = rvm_model(X, y, hyperprior=PRIOR, precision="joint")
    names = {"weight", "bias", "noise", "precision", "bias_precision"}
    assert {rv.name for rv in joint.free_RVs} == names
    draws = pm.draw(joint["weight"], 4000, random_seed=1, mode="FAST_COMPILE").ravel()
    assert_law(draws, stats.t(4, scale=np.sqrt(0.15)).cdf)
    assert read(joint).problem_for("evidence").likelihood.name == "normal"


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_default_hyperprior_is_proper_and_neither_flat_nor_saturated(likelihood):
    X, y = data_for(likelihood, 100)
    unit = 1e4 if likelihood == "normal" else 1.0
    model = rvm_model(X, y * unit if unit != 1 else y, likelihood=likelihood, width=1.5)
    latent = pm.draw(model["latent"], 400, random_seed=1, mode="FAST_COMPILE")
    size = np.median(np.abs(latent - latent.mean(axis=1, keepdims=True)))
    wanted = y.std() * unit if likelihood == "normal" else 2.0
    assert 0.3 * wanted < size < 1.5 * wanted


def test_gaussian_is_another_spelling_of_normal():
    X, y = data_for("normal")
    models = [rvm_model(X, y, likelihood=name) for name in ("normal", "gaussian", Normal(0.3))]
    assert {find_parts(each).likelihood.name for each in models} == {"normal"}
    assert read(models[2]).problem.likelihood.noise == 0.3
    given = {"likelihood": Normal(0.3), "noise": 0.4}
    refused("noise was given with likelihood=Normal", rvm_model, X, y, **given)


def test_bad_arguments_are_named():
    X, y = data_for("logit")
    given = {"noise": 1.0, "likelihood": "logit"}
    refused("noise was given with likelihood='logit'", rvm_model, X, y, **given)
    refused("needed a proper Hyperprior", rvm_model, X, y, hyperprior=Hyperprior.jeffreys())


def test_a_free_weight_is_sampled_as_its_inverse_hyperbolic_sine():
    X, y = data_for("probit", 6)
    model = rvm_model(X, y, likelihood="probit", hyperprior=PRIOR)
    weight = model["weight"]
    transform, inputs = model.rvs_to_transforms[weight], weight.owner.inputs
    value = np.array([-1e5, -3.0, 0.0, 1e-9, 0.5, 1e5])
    scale = np.sqrt(0.3 / 2.0)
    forward = transform.forward(value, *inputs).eval()
    np.testing.assert_allclose(forward, np.arcsinh(value / scale), rtol=1e-12)
    np.testing.assert_allclose(transform.backward(forward, *inputs).eval(), value, rtol=1e-9)
    jacobian = transform.log_jac_det(forward, *inputs).eval()
    np.testing.assert_allclose(jacobian, np.log(scale * np.cosh(forward)), rtol=1e-12)
    assert np.isfinite(transform.log_jac_det(np.array([800.0]), *inputs).eval()).all()
