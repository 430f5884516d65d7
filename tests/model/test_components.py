"""Latent functions without a likelihood, in user-defined models."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from problems import SHALLOW, blobs, refused, value_point
from pymc.distributions.distribution import support_point

from pcvm_pymc import Hyperprior, new_data, pcvm_latent, pcvm_model, predict, rvm_latent
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, StudentT
from pcvm_pymc.inference.sampling import sample, sampler_for
from pcvm_pymc.model.builders import rvm_model
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
    how = {"jacobian": False, "mode": "FAST_COMPILE"}
    models = own_terms(), own_terms(by_hand)
    found, wanted = (model.compile_logp(**how)(point) for model in models)
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
    both = [new_data(model, Z, name=n) for n, Z in (("f", X[:3, :1]), ("g", X[:3]))]
    assert list(both[0]["coords"]) == ["patient"]
    with model:
        values = both[0]["new_data"] | both[1]["new_data"]
        pm.set_data(values, coords={"patient": ["q0", "q1", "q2"]})
    size = np.linspace(0.1, 1.0, 16)
    found = numbers(model["f"], {model["f_magnitude"]: size, model["f_bias"]: 0.3})
    wanted = RBF(1.0)(X[:3, :1], X[:, :1]) @ (model["f_signs"].get_value() * size) + 0.3
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    refused(r"no latent function 'latent'; needed one of \['f', 'g'\]", new_data, model, X)


TAKEN = ["X", "bias", "width", "basis", "rate", "latent", "centres", "magnitude", "feature"]
TAKEN += [{"obs": range(5)}, {"bias": [0.0]}, {"basis": range(3)}, {"feature": ["a", "b"]}]
OF_LIKELIHOODS = ["y", "label", "flip", "class", "likelihood_name", {"class": ["no", "yes"]}]
latent_of = partial(pcvm_latent, width="lognormal")
flipped = partial(pcvm_model, width="lognormal", likelihood=NoisyProbit(pm.Beta.dist(1, 9)))
CALLS = [(build, taken) for build in (latent_of, flipped) for taken in TAKEN]


@pytest.mark.parametrize(("build", "taken"), CALLS + [(flipped, each) for each in OF_LIKELIHOODS])
def test_a_name_that_is_taken_is_said_and_the_model_stays_as_it_was(build, taken):
    with pm.Model(coords=taken if isinstance(taken, dict) else None) as outer, pm.Model() as model:
        if isinstance(taken, str):
            pm.Normal(taken)
        state = [str(vars(each)) for each in (outer, model)]
        name = taken if isinstance(taken, str) else next(iter(taken))
        refused(rf"the model in this block has .*'{name}'.*name='f'.*dim=", build, X, Y)
        assert state == [str(vars(each)) for each in (outer, model)]
        pcvm_latent(X, Y, name="f", dim="row")
        assert model["f"].eval().shape == (16,)


DIMS = [(("obs", "feature"), True), (("row", "gene"), True)]
DIMS += [(("row", "gene"), False), (None, False)]


@pytest.mark.parametrize(("dims", "named"), DIMS)
@pytest.mark.parametrize("build", [pcvm_latent, pcvm_model])
def test_data_of_ones_own_are_what_the_function_is_computed_from(build, dims, named):
    with pm.Model(coords={dims[0]: range(16), dims[1]: ["a", "b"]} if named else None) as model:
        own = pm.Data("X_train", X, dims=dims), pm.Data("y_train", Y, dims=dims and dims[:1])
        build(*own, width=1.3)
        new = new_data(model, X[:3] + 0.1)
        both = {"X_train", "y_train"} if build is pcvm_model else {"X_train"}
        assert set(new["new_data"]) == both == set(new["new_data"]) - {"X", "y"}
        for rows, given in ((X - 0.2, {"new_data": {"X_train": X - 0.2}}), (X[:3] + 0.1, new)):
            pm.set_data(**given)
            size = np.linspace(0.1, 1.0, 16)
            found = numbers(model["latent"], {model["magnitude"]: size, model["bias"]: 0.3})
            wanted = RBF(1.3)(rows, X) @ (LABEL * size) + 0.3
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    refused("X is the variable X_train, no pm.Data of the model", pcvm_model, own[0], Y)


def test_data_that_a_model_cannot_take_as_they_are():
    with pm.Model() as model:
        own, label = pm.Data("own", X), pm.Data("two", Y + 1)
        words = "y is the pm.Data 'two' of the values .*1, 2.* needed .*0, 1"
        refused(words, pcvm_model, own, label)
        refused("X is the variable .* no pm.Data", pcvm_model, 2 * own, Y)
        refused("basis is the pm.Data 'own'; needed its values", pcvm_model, X, Y, basis=own)
        assert list(model.named_vars) == ["own", "two"]
        noise = pm.Data("sd", np.full(16, 0.2))
        rvm_model(own, LABEL, noise=noise, width=1.3)
        assert np.isinf(new_data(model, X[:3])["new_data"]["sd"]).all()
    assert model["target"].owner.inputs[-1] is noise


NOISE = pm.Exponential.dist(2)


@pytest.mark.parametrize("prior", [pm.HalfNormal.dist(1), pm.Gamma.dist(3, 2, shape=2)])
def test_a_prior_is_each_models_own(prior):
    models = [rvm_model(X, LABEL, width=prior, noise=NOISE) for _ in range(2)]
    assert prior.name is None
    one, same = (pm.draw([m["width"], m["noise"]], 5, random_seed=1) for m in models)
    for each, other in zip(one, same, strict=True):
        np.testing.assert_array_equal(each, other)
    twice = rvm_model(X, LABEL, width=prior, likelihood=StudentT(NOISE, NOISE))
    assert not np.isclose(*pm.draw([twice["noise"], twice["degrees"]], 5, random_seed=1)).any()


WHOLE = [(pm.Gamma, 3, 2), (pm.LogNormal, 0, 1), (pm.InverseGamma, 3, 2), (pm.Exponential, 2)]
WHOLE += [(pm.HalfNormal, 1), (pm.Beta, 1, 9), (pm.Weibull, 2, 3), (pm.Uniform, 1, 4)]


@pytest.mark.parametrize(("law", "parameters"), [(law, each) for law, *each in WHOLE])
def test_whole_numbers_are_the_numbers(law, parameters):
    both = [law.dist(*map(kind, parameters)) for kind in (int, float)]
    found, wanted = (numbers(2 * support_point(each)) for each in both)
    assert found == pytest.approx(wanted, rel=1e-6)
    if law is pm.Gamma:
        assert [read(pcvm_model(X, Y, width=each)).problem.width for each in both] == [1.5, 1.5]


def test_with_the_rows_own_likelihood_it_is_the_row():
    with pm.Model() as model:
        f = pcvm_latent(X, Y, name="f", width=1.3, hyperprior=PRIOR)
        ProbitBernoulli("label", f, observed=Y)
    built = pcvm_model(X, Y, width=1.3, hyperprior=PRIOR)
    mine, rows = (read(given).problem_for("em") for given in (model, built))
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
    method, reason = sampler_for(read(model))
    assert (method, words in reason) == ("nuts", True)


def test_a_model_of_ones_own_is_drawn_and_predicts_its_latent_function():
    few = {"draws": 4, "tune": 4, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
    options = {"width": 1.3, "hyperprior": PRIOR}
    model = own_terms(lambda: pcvm_latent(pm.Data("rows", X), Y, **options))
    drawn = sample(model, **few, **SHALLOW)
    assert {"slope", "intercept", "latent"} <= set(drawn["posterior"].data_vars)
    assert list(drawn["observed_data"].data_vars) == ["z"]
    found = predict(drawn, X)["predictions"]
    assert list(found.data_vars) == ["latent"]
    np.testing.assert_allclose(found["latent"], drawn["posterior"]["latent"], atol=1e-10)
    turned = predict(drawn, X[::-1])["predictions"]["latent"]
    with model:
        pm.set_data({"rows": X[::-1]})
        new = pm.sample_posterior_predictive(drawn, var_names=["latent"], progressbar=False)
    np.testing.assert_allclose(new["posterior_predictive"]["latent"], turned, atol=1e-10)


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
