"""EM in models of one's own: modes against SciPy's, what is in them, and what is refused by name."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from own_models import Reference, random_model
from problems import blobs, refused

import pcvm_pymc as pcvm
from pcvm_pymc import EMOptions, EMStep, Hyperprior, Start, find_map_em, pcvm_latent, pcvm_model
from pcvm_pymc.core.em.own_terms import curvatures
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
from pcvm_pymc.model.graphs import numbers, random_parts
from pcvm_pymc.model.terms import OwnTerms

X, LABEL = blobs(24, seed=3, fixed=True)
Y = (LABEL > 0).astype(int)
GROUP = np.arange(24) % 3
PROPER = Hyperprior(1.0, 0.3, 0.5, 0.5)
ORDINARY = 3  # of twenty random models
QUIET = {"progressbar": False}


def values_of(model, result):
    """Return a result's free variables, as they are and as a point of the model."""
    posterior, natural, point = result["posterior"].isel(chain=0, draw=0), {}, {}
    for rv in model.free_RVs:
        value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
        natural[rv.name] = point[value.name] = posterior[rv.name].values
        if transform is not None:
            with np.errstate(divide="ignore"):
                turned = transform.forward(pt.constant(natural[rv.name]), *rv.owner.inputs)
                known = {x: posterior[x.name].values for x in random_parts(turned)}
                point[value.name] = numbers(turned, known)
    return natural, point


@pytest.mark.parametrize(
    "seed",
    [*range(ORDINARY), *(pytest.param(i, marks=pytest.mark.slow) for i in range(ORDINARY, 20))],
)
def test_the_mode_is_that_of_an_independent_optimiser(seed):
    model = random_model(seed)
    result = find_map_em(model, **QUIET)
    end, trace = result["optimizer_result"], result["em_trace"]["log_posterior"].values
    assert end["success"].item()
    assert (np.diff(trace) >= 0).all()
    natural, point = values_of(model, result)
    best = end["log_posterior"].item()
    assert trace[-1] == best
    assert model.compile_logp(jacobian=False)(point) == pytest.approx(best, abs=1e-8)
    reference = Reference(model)
    vector = reference.joined(point | natural)
    assert reference.best(vector) - best < 1e-6
    # other starts may end at other modes: from one that is near they end at this one, or higher
    near = np.where(
        reference.fixed, vector, vector + 1e-3 * np.sign(np.sin(np.arange(len(vector))))
    )
    assert reference.best(np.maximum(near, reference.lower)) > best - 1e-6


# --- what is in the result ------------------------------------------------------------------------


def with_intercepts(likelihood=None, **options):
    """Return a model of a latent function and intercepts of three groups."""
    with pm.Model(coords={"group": list("abc")}) as model:
        f = pcvm_latent(X, Y, **{"width": 1.3, "hyperprior": PROPER, **options})
        a = pm.Normal("a", dims="group")
        if likelihood is None:
            pm.Bernoulli("z", logit_p=f + a[GROUP], observed=Y)
        else:
            likelihood(f + a[GROUP])
    return model


def test_the_result_is_that_of_a_mode_with_all_variables(tmp_path):
    model = with_intercepts(hyperprior=None)
    result = find_map_em(model, **QUIET)
    posterior = result["posterior"]
    assert {"magnitude", "bias", "rate", "a", "weight", "latent"} == set(posterior.data_vars)
    assert posterior["a"].dims == ("chain", "draw", "group")
    assert (
        posterior["rate"].item() == 0.5
    )  # where modes predict best, as in the model without intercepts
    assert (posterior["magnitude"].values >= 0).all()
    np.testing.assert_array_equal(
        posterior["weight"].values[0, 0],
        posterior["magnitude"].values[0, 0] * model["signs"].get_value(),
    )
    assert set(result["em_trace"].data_vars) == {"log_posterior", "n_active", "change", "width"}
    again = pcvm.load(pcvm.save(result, tmp_path / "mode.zarr"))
    new = pcvm.predict(again, X)["predictions"]
    assert list(new.data_vars) == ["latent"]  # a probability would lack the intercepts
    np.testing.assert_allclose(new["latent"], posterior["latent"], atol=1e-12)


def test_steps_are_the_rounds_of_find_map_em():
    model = with_intercepts()
    step, trace = EMStep(model), []
    point = step.initial_point()
    for _ in range(3):
        point, stats = step.step(point)
        trace.append(stats["log_posterior"])
    found = find_map_em(model, **QUIET)["em_trace"]["log_posterior"].values[1:4]
    np.testing.assert_allclose(found, trace, atol=1e-9)
    assert set(stats) == {"log_posterior", "n_active", "change", "moved", "promised"}
    short = find_map_em(model, options=EMOptions(max_iter=1), **QUIET)["optimizer_result"]
    assert (short["status"].item(), short["success"].item()) == ("ITERATION_LIMIT", False)


def test_a_step_of_em_is_no_sampler_and_says_so():
    for model in (with_intercepts(), pcvm_model(X, Y, width=1.3)):
        step = EMStep(model)
        with model:
            refused("EMStep is no sampler.*find_map_em.*PCVMGibbs", pm.sample, step=step, **QUIET)


def test_the_rows_own_terms_written_by_hand_have_the_rows_mode():
    """A potential of zero makes the model one with own terms; its mode is that of the family's EM."""
    prior = Hyperprior.plug_in()
    with pm.Model() as model:
        pcvm.ProbitBernoulli("z", pcvm_latent(X, Y, width=1.3, hyperprior=prior), observed=Y)
        pm.Potential("nothing", pt.zeros(()))
    found = find_map_em(model, **QUIET)
    wanted = find_map_em(
        pcvm_model(X, Y, width=1.3, hyperprior=prior), options=EMOptions(tol=1e-9), **QUIET
    )
    for name in ("weight", "bias", "latent"):
        np.testing.assert_allclose(found["posterior"][name], wanted["posterior"][name], atol=1e-6)


def test_an_unknown_scale_without_signs_is_where_the_rows_own_is():
    """Width, prior and likelihood are the sparse probit's."""
    prior, found = Hyperprior(5.0, 20.0, 0.5, 0.5, rate_spread=2.5), []
    for own in (False, True):
        with pm.Model() as model:
            f = pcvm.rvm_latent(X, width=1.3, hyperprior=prior, basis=8)
            pcvm.ProbitBernoulli("z", f, observed=Y)
            if own:
                pm.Potential("nothing", pt.zeros(()))
        found.append(find_map_em(model, options=EMOptions(tol=1e-8), **QUIET))
        point = values_of(model, found[-1])[1]
        value = found[-1]["optimizer_result"]["log_posterior"].item()
        assert model.compile_logp(jacobian=False)(point) == pytest.approx(value, abs=1e-8)
    rate, height = (
        [each[group][name].item() for each in found]
        for group, name in (("posterior", "rate"), ("optimizer_result", "log_marginal"))
    )
    assert np.log(rate[1]) == pytest.approx(np.log(rate[0]), abs=0.1)
    assert height[1] == pytest.approx(height[0], abs=0.01)
    unit = find_map_em(model, hyperparameters="given", **QUIET)
    assert unit["posterior"]["rate"].item() == pytest.approx(5.0)
    assert "log_marginal" not in unit["optimizer_result"]
    point = EMStep(model).initial_point()
    assert EMStep(model).step(point)[1]["log_posterior"] > model.compile_logp(jacobian=False)(point)


def unknown_flip():
    return pcvm_model(X, Y, width=1.3, likelihood=NoisyProbit(pm.Beta.dist(2, 9)))


def two_functions():
    with pm.Model() as model:
        f = pcvm_latent(X[:, :1], Y, name="f", width=1.0)
        g = pcvm.rvm_latent(X, name="g", width=pm.LogNormal.dist(0.0, 0.5), basis=4)
        pm.Poisson("n", pt.exp(f + g), observed=np.arange(24) % 5)
    return model


def bias_elsewhere():
    model = with_intercepts()
    with model:
        pm.Potential("more", -((model["bias"] - 1.0) ** 2))
    return model


def lasso_elsewhere():
    with pcvm.sparse_probit_model(X, Y) as model:
        pm.Normal("more", model["bias"], observed=0.3)
    return model


def noise_by_group():
    with pm.Model() as model:
        noise = pm.HalfNormal("s", shape=3)
        pm.Normal("z", pcvm_latent(X, Y, width=1.3), noise[GROUP], observed=LABEL)
    return model


def with_a_start():
    with pm.Model() as model:
        f = pcvm_latent(X, Y, width=1.3)
        pm.Bernoulli("z", logit_p=f + pm.Normal("a", initval=2.0), observed=Y)
    return model


TAKEN = [noise_by_group, unknown_flip, two_functions, bias_elsewhere, lasso_elsewhere, with_a_start]


@pytest.mark.parametrize("made", TAKEN, ids=[each.__name__ for each in TAKEN])
def test_the_gradient_is_zero_at_the_mode(made):
    model = made()
    result = find_map_em(model, **QUIET)
    assert result["optimizer_result"]["status"].item() == "CONVERGED"
    own, point = OwnTerms(model), values_of(model, result)[1]
    vector = own.vector(point)
    slope = own.problem.slopes(vector)[1]
    moved = np.concatenate([*(block.values for block in own.problem.blocks), own.problem.others])
    zero = np.zeros(len(vector), dtype=bool)
    for block in own.problem.blocks:
        zero[block.weight] = vector[block.weight] == 0
    zero |= (own.problem.penalty > 0) & (vector == 0)
    free = np.setdiff1d(moved, np.flatnonzero(zero))
    np.testing.assert_allclose(slope[free], 0.0, atol=1e-6)
    assert (slope[zero] <= own.problem.penalty[zero] + 1e-6).all()
    where, unit = np.arange(0, len(vector), 3), np.eye(len(vector))
    wanted = [-own.problem.product(vector, unit[i])[where] for i in where]
    found = curvatures(own.problem, vector, where)
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())
    logp = model.compile_logp(jacobian=False)
    assert logp(point) == pytest.approx(
        result["optimizer_result"]["log_posterior"].item(), abs=1e-8
    )


# --- what is refused ------------------------------------------------------------------------------


def declared(likelihood, **options):
    return lambda: with_intercepts(likelihood, **options)


def several_classes():
    with pcvm.mpcvm_model(X, np.arange(24) % 3, width=1.0) as model:
        pm.Potential("more", -(model["bias"][0] ** 2))
    return model


def without_weights():
    with pm.Model() as model:
        pm.Bernoulli("z", logit_p=pt.dot(X, pm.Normal("beta", shape=2)), observed=Y)
    return model


def weights_elsewhere():
    model = with_intercepts()
    with model:
        pm.Potential("more", -model["magnitude"].sum())
    return model


def nowhere():
    model = with_intercepts()
    with model:
        pm.Potential("more", pt.log(0.0 * model["a"].sum()))
    return model


def centred():
    with pm.Model() as model:
        f = pcvm_latent(X, Y, width=1.3)
        a = pm.Normal("a", 0.0, pm.HalfNormal("tau"), shape=3)
        pm.Bernoulli("z", logit_p=f + a[GROUP], observed=Y)
    return model


REFUSED = {
    r"\['d'\] are discrete": declared(
        lambda eta: pm.Bernoulli("z", logit_p=eta * pm.Bernoulli("d", 0.5), observed=Y)
    ),
    "unbounded at zero": declared(None, hyperprior=Hyperprior.jeffreys()),
    "half-horseshoe's": declared(None, hyperprior=pcvm.HalfHorseshoe(0.1)),
    r"explicit precisions \['precision'\]": declared(None, precision="joint"),
    "rows of the latent function of 'magnitude'": declared(
        lambda eta: pm.Normal("z", pt.cumsum(eta), observed=LABEL)
    ),
    "of 2 dimensions": several_classes,
    r"no weights of the family; found 'beta' \(Normal\)": without_weights,
    "'magnitude' are in other terms": weights_elsewhere,
    r"no maximum: .*\{'tau'": centred,
    "-inf at the start": nowhere,
    "'b' is a Laplace of unknown place or scale": declared(
        lambda eta: pm.Normal("z", eta + pm.Laplace("b", 0.0, pm.HalfNormal("s")), observed=LABEL)
    ),
    "is not centred at zero": declared(
        lambda eta: pm.Normal("z", eta + pm.Laplace("b", 1.0, 1.0), observed=LABEL)
    ),
    "which 'em' does not take; use evidence": lambda: pcvm.rvm_model(X, LABEL, width=1.0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_moved_is_refused_by_name(words):
    refused(words, find_map_em, REFUSED[words](), **QUIET)


def test_arguments_for_the_family_alone_are_refused():
    model = with_intercepts()
    refused(
        "update='em' needs a bound", find_map_em, model, options=EMOptions(update="em"), **QUIET
    )
    start = Start(np.zeros(24), 0.0)
    refused("start is for models without", find_map_em, model, start=start, **QUIET)


def test_data_that_count_twice_are_said():
    with pcvm_model(X, Y, width=1.3) as model:
        pm.Bernoulli("mine", logit_p=model["latent"], observed=Y)
    with pytest.warns(UserWarning, match="the data count twice"):
        find_map_em(model, **QUIET)


def product(kind, start):
    """Return a model with a product of two terms, of which neither has a slope where both are zero."""
    with pm.Model() as model:
        given = {"width": 1.5, "bias": False}
        f = pcvm.rvm_latent(X, **given) if kind == "weights" else pcvm_latent(X, Y, **given)
        pm.Bernoulli("z", logit_p=pm.Normal("other", initval=start) * f, observed=Y)
    return model


@pytest.mark.parametrize("kind", ["weights", "sizes"])
def test_a_start_at_a_saddle_point_ends_where_another_start_does(kind):
    ends = []
    for start in (0.0, 1.0):
        result = find_map_em(product(kind, start), **QUIET)
        assert result["optimizer_result"]["status"].item() == "CONVERGED"
        ends.append(result["optimizer_result"]["log_posterior"].item())
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)


def test_a_density_with_kinks_in_the_latent_function_is_no_convergence():
    model = with_intercepts(lambda eta: pm.Laplace("z", eta, 1.0, observed=LABEL))
    end = find_map_em(model, **QUIET)["optimizer_result"]
    assert end["status"].item() == "STUCK"
    assert not end["success"].item()


def test_errors_of_a_model_of_the_family_stay_its_own():
    model = pcvm_model(X, Y, width=1.3)
    model["y"].set_value(np.arange(24, dtype=model["y"].dtype))
    refused("has the values .*; needed 0 to 1", find_map_em, model, **QUIET)
