"""Latent functions without a likelihood, in models of one's own."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from problems import blobs, refused, value_point
from runs import SHALLOW

from pcvm_pymc import Hyperprior, new_data, pcvm_latent, pcvm_model, predict, rvm_latent
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.inference.sampling import choose_method, sample
from pcvm_pymc.model.distributions import MarginalBias, MarginalWeight, ProbitBernoulli
from pcvm_pymc.model.graphs import numbers
from pcvm_pymc.model.read import read, warn_if_counted_twice

X, LABEL = blobs(16, seed=3)
Y = (LABEL > 0).astype(int)
GROUP = np.arange(16) % 3
PRIOR = Hyperprior(1.5, 0.7, 2.0, 0.4)


def own_terms(latent=lambda: pcvm_latent(X, Y, width=1.3, hyperprior=PRIOR)):
    """Return a model with a latent function, a slope and intercepts of groups."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        f = latent()
        slope = pm.Normal("slope", 0.0, 2.0)
        intercept = pm.Normal("intercept", dims="group")
        pm.Bernoulli("z", logit_p=f + slope * X[:, 1] + intercept[GROUP], observed=Y)
    return model


def by_hand():
    size = MarginalWeight("magnitude", PRIOR.c, PRIOR.d, shape=16)
    return pt.dot(RBF(1.3)(X, X), LABEL * size) + MarginalBias("bias", PRIOR.e, PRIOR.f)


def test_own_terms_have_the_density_of_the_model_by_hand():
    rng = np.random.default_rng(0)
    point = {"magnitude_log__": rng.normal(size=16), "bias": rng.normal()}
    point |= {"slope": rng.normal(), "intercept": rng.normal(size=3)}
    found, wanted = (
        each.compile_logp(jacobian=False, mode="FAST_COMPILE")(point)
        for each in (own_terms(), own_terms(by_hand))
    )
    assert found == pytest.approx(wanted, rel=1e-12)


def two_functions():
    with pm.Model(coords={"patient": [f"p{i}" for i in range(16)]}) as model:
        f = pcvm_latent(X[:, :1], Y, name="f", dim="patient", width=1.0)
        own = {"width": pm.LogNormal.dist(0.0, 1.0), "basis": 4, "bias": False}
        g = pcvm_latent(X, Y, name="g", dim="patient", **own)
        rate = pm.math.exp(f + g)
        pm.Poisson("count", rate, observed=np.arange(16), dims="patient")
    return model


def test_two_functions_of_one_block_have_names_and_dims_of_their_own():
    model = two_functions()
    free = {each.name for each in model.free_RVs}
    assert free == {"f_magnitude", "f_bias", "f_rate", "g_magnitude", "g_width", "g_rate"}
    dims = model.named_vars_to_dims
    assert dims["f"] == dims["g"] == ("patient",)
    assert dims["f_weight"] == ("f_basis",)
    assert dims["g_X"] == ("patient", "g_feature")
    assert len(model.coords["g_basis"]) == 4
    assert list(model.coords["patient"])[:2] == ["p0", "p1"]  # the model's own stay
    both = [new_data(model, Z, name=n, dim="patient") for n, Z in (("f", X[:3, :1]), ("g", X[:3]))]
    with model:
        values = both[0]["new_data"] | both[1]["new_data"]
        pm.set_data(values, coords={"patient": ["q0", "q1", "q2"]})
    size = np.linspace(0.1, 1.0, 16)
    found = numbers(model["f"], {model["f_magnitude"]: size, model["f_bias"]: 0.3})
    wanted = RBF(1.0)(X[:3, :1], X[:, :1]) @ (model["f_signs"].get_value() * size) + 0.3
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    refused(r"no latent function 'latent'; needed one of \['f', 'g'\]", new_data, model, X)


def test_a_second_function_without_a_name_is_refused_with_the_remedy():
    with pm.Model():
        pcvm_latent(X, Y)
        refused(r"has 'latent' already.*name='second'", pcvm_model, X[:, :1], Y)
    with pm.Model(coords={"obs": range(5)}):
        refused("needed as many, or a dim", pcvm_latent, X, Y)


def test_with_the_rows_own_likelihood_it_is_the_row():
    with pm.Model() as model:
        f = pcvm_latent(X, Y, name="f", width=1.3, hyperprior=PRIOR)
        ProbitBernoulli("label", f, observed=Y)
    mine, rows = read(model, "em"), read(pcvm_model(X, Y, width=1.3, hyperprior=PRIOR), "em")
    assert mine.hyperprior == rows.hyperprior
    assert np.array_equal(mine.Phi, rows.Phi)
    assert np.array_equal(mine.sign, rows.sign)


probit = partial(ProbitBernoulli, "z", observed=Y)
NO_ROWS = [
    (lambda f: pm.Poisson("n", pt.exp(f), observed=Y), "found 'n' (Poisson)"),
    (lambda f: probit(f + pm.Normal("slope") * X[:, 0]), "['slope']"),
    (lambda f: probit(f + rvm_latent(X, name="g", bias=False)), "['g_weight']"),
]


@pytest.mark.parametrize(("likelihood", "words"), NO_ROWS)
def test_what_is_no_row_any_more_is_for_nuts_and_says_so(likelihood, words):
    with pm.Model() as model:
        likelihood(pcvm_latent(X, Y, width=1.3))
    refused("NUTS", sample, model, method="gibbs")
    method, reason = choose_method(model)
    assert method == "nuts"
    assert words in reason


def test_a_model_of_ones_own_is_drawn_and_predicts_its_latent_function():
    few = {"draws": 4, "tune": 4, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
    drawn = sample(own_terms(), **few, **SHALLOW)
    assert {"slope", "intercept", "latent"} <= set(drawn["posterior"].data_vars)
    assert list(drawn["observed_data"].data_vars) == ["z"]
    found = predict(drawn, X)["predictions"]
    assert list(found.data_vars) == ["latent"]
    np.testing.assert_allclose(found["latent"], drawn["posterior"]["latent"], atol=1e-10)


def test_a_second_likelihood_does_not_count_the_data_twice_without_a_word():
    with pm.Model() as model:
        pcvm_model(X, Y, width=1.3)
        pm.Bernoulli("mine", logit_p=model["latent"], observed=Y)
    with (
        pytest.warns(UserWarning, match="'label' and 'mine' .* the data count twice.*pcvm_latent"),
        pytest.raises(ValueError, match="'both' is unknown"),
    ):
        sample(model, method="both")
    for each in (own_terms(), two_functions()):  # warnings are errors
        warn_if_counted_twice(each)


def test_the_default_prior_of_free_weights_has_the_size_that_is_asked_for():
    with pm.Model() as model:
        rvm_latent(X, name="f", width=1.0, basis=6)
        rvm_latent(X, name="g", width=1.0, basis=6, size=30.0)
    small, large = (model[f"{name}_hyperprior"].get_value() for name in "fg")
    default = Hyperprior.default(RBF(1.0)(X, model["f_centres"].get_value()), None)
    assert small.tolist() == [default.c, default.d, default.e, default.f]
    assert large == pytest.approx(small * [1.0, 225.0, 1.0, 225.0])


def test_free_weights_with_their_precisions_have_a_density():
    with pm.Model() as model:
        pm.Normal("y", rvm_latent(X, precision="joint", width=1.0), 1.0, observed=LABEL)
    zero = {"precision": np.ones(16), "bias_precision": 1.0, "weight": np.zeros(16), "bias": 0.0}
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(value_point(model, zero)))


def test_bad_calls():
    with pm.Model() as model:
        refused("neither y nor signs", pcvm_latent, X)
        refused("has its own scale", rvm_latent, X, size=3.0, hyperprior=PRIOR)
        refused("basis was given without signs", pcvm_latent, X, Y, basis=X[:3])
    assert not model.named_vars
    # outside of a block
    refused("context stack", pcvm_latent, X, Y, error=TypeError)
