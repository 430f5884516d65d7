"""The multinomial probit under JAX: the Op's values and gradients, and a sampler that runs."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from problems import blobs

from pcvm_pymc import Hyperprior, MultinomialProbit, mpcvm_model, sample
from pcvm_pymc.core.pieces.multinomial import class_terms, fractional_terms

jax = pytest.importorskip("jax", reason="JAX is the extra numpyro")

BAD = np.array(
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1e300, 0.0], [0.0, 2e6, 0.0], [np.nan, 0.0, 0.0]]
)
BAD_LABEL = np.array([3, -1, 0, 0, 1])


def compiled(label, mode="JAX"):
    y = pt.dmatrix("y")
    value = pm.logp(MultinomialProbit.dist(y), label)
    return pytensor.function([y], [value, pt.grad(value.sum(), y)], mode=mode)


@pytest.mark.parametrize(("n_classes", "spread"), [(3, 3.0), (7, 20.0)])
def test_value_and_gradient_are_the_ops(n_classes, spread):
    rng = np.random.default_rng(n_classes)
    latent, label = rng.normal(size=(40, n_classes)) * spread, rng.integers(n_classes, size=40)
    found, gradient = compiled(label)(latent)
    wanted, slope = compiled(label, mode="FAST_COMPILE")(latent)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10)


def test_far_scores_keep_ten_digits():
    latent = np.array([[-300.0, 0.0, 5.0], [40.0, 0.0, -40.0], [1e3, 0.0, 0.0], [0.0, 1e3, 900.0]])
    label = np.zeros(4, dtype=int)
    found, gradient = compiled(label)(latent)
    terms = class_terms(latent, label)
    np.testing.assert_allclose(found, terms.log_probability, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradient, terms.score, rtol=1e-9, atol=1e-12)


def test_jaxs_own_derivatives_are_the_score_and_the_hessian():
    # rows that cannot be stand beside: nothing of them may reach the others
    from pcvm_pymc.model.multinomial_jax import class_terms as in_jax

    rng = np.random.default_rng(1)
    latent, label = rng.normal(size=(6, 3)) * 3, rng.integers(3, size=6)
    away = np.vstack([rng.normal(size=(6, 3)), np.zeros((4, 3))])

    @jax.jit
    def derivatives(y):
        def total(y):
            return in_jax(y, np.append(label, BAD_LABEL[:4]))[0][:6].sum()

        return jax.jvp(jax.grad(total), (y,), (away,))

    slope, bent = derivatives(np.vstack([latent, BAD[:4]]))
    np.testing.assert_allclose(slope[:6], class_terms(latent, label).score, rtol=1e-9, atol=1e-11)
    hessian = fractional_terms(latent, np.eye(latent.shape[1])[label]).hessian
    np.testing.assert_allclose(bent[:6], -np.einsum("icd,id->ic", hessian, away[:6]), atol=1e-7)
    np.testing.assert_array_equal(np.vstack([slope[6:], bent[6:]]), 0.0)


def test_what_cannot_be_is_as_under_other_backends():
    found, gradient = compiled(BAD_LABEL)(BAD)
    wanted, slope = compiled(BAD_LABEL, mode="FAST_COMPILE")(BAD)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.isfinite(gradient), np.isfinite(slope))
    np.testing.assert_array_equal(np.asarray(gradient)[:4], slope[:4])


@pytest.mark.slow
def test_numpyro_samples_a_model_of_three_classes():
    pytest.importorskip("numpyro", reason="an extra")
    X, _ = blobs(9)
    model = mpcvm_model(X, np.arange(9) % 3, width=1.0, hyperprior=Hyperprior.plug_in())
    quiet = {"quiet": True, "progressbar": False, "chains": 1, "cores": 1}
    found = sample(
        model, method="nuts", nuts_sampler="numpyro", draws=20, tune=30, random_seed=1, **quiet
    )
    latent = found["posterior"]["latent"].values[0]
    assert np.isfinite(latent).all()
    assert latent.std(0).min() > 0.0
    label = np.asarray(model["y"].get_value()).astype(int)
    np.testing.assert_allclose(
        found["log_likelihood"]["label"].values[0],
        [class_terms(each, label).log_probability for each in latent],
        rtol=1e-8,
    )
