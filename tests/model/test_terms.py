"""EM in models with user-defined terms: modes by PyMC's own slopes, what is in them, and what is refused."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from problems import blobs, fixed_rng, refused
from pymc.model.transform.conditioning import remove_value_transforms

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


# --- random models ------------------------------------------------------------------------------

LIKELIHOODS = ("logit", "probit", "flipped", "normal", "student", "poisson", "counts")
LATENT = ("pcvm", "both signs", "rvm", "two", "lasso", "exponential", "unknown width")
TERMS = ("none", "intercepts", "scaled intercepts", "slope")
PRIORS = (None, Hyperprior.plug_in(), Hyperprior(1.0, 0.05, 0.5, 0.5))
LASSO = 0.3  # the scale of Laplace weights


def observe(kind, eta, signal, rng):
    """Declare a likelihood of a linear predictor, and observe what is simulated from a signal."""
    noise = rng.normal(size=len(signal))
    label, target = (signal + noise > 0).astype(int), signal + 0.5 * noise
    count = rng.poisson(np.exp(np.clip(signal, -3.0, 2.0)))
    if kind == "logit":
        pm.Bernoulli("z", logit_p=eta, observed=label)
    elif kind == "probit":
        pcvm.ProbitBernoulli("z", eta, observed=label)
    elif kind == "flipped":
        flip = pm.Beta("flip", 1.0, 9.0)
        p = flip + (1.0 - 2.0 * flip) * pm.math.invprobit(eta)
        pm.Bernoulli("z", p=p, observed=label)
    elif kind == "normal":
        pm.Normal("z", eta, pm.InverseGamma("noise", 3.0, 1.0), observed=target)
    elif kind == "student":
        pm.StudentT("z", nu=3.0, mu=eta, sigma=0.5, observed=target)
    elif kind == "poisson":
        pm.Poisson("z", pt.exp(eta), observed=count)
    else:
        alpha = pm.Gamma("alpha", 2.0, 0.5)
        pm.NegativeBinomial("z", mu=pt.exp(eta), alpha=alpha, observed=count)


def latent_function(kind, X, y, rng):
    """Add a latent function, or two, to the model of the block."""
    prior, width = PRIORS[rng.integers(3)], float(rng.uniform(0.7, 2.5))
    given = {"width": width, "hyperprior": prior, "bias": bool(rng.random() < 0.6)}
    if kind == "lasso":
        Z = np.column_stack([X, X**2, rng.normal(size=(len(X), 4))])
        weight = pm.Laplace("weight", 0.0, LASSO, shape=Z.shape[1])
        return pt.dot(Z, weight) + pm.Flat("bias")
    if kind == "rvm":
        return pcvm.rvm_latent(X, **given)
    if kind == "two":
        f = pcvm_latent(X, y, name="f", **given)
        return f + pcvm.rvm_latent(X[:, :1], name="g", basis=6, width=1.0)
    if kind == "both signs":
        given |= {"signs": "both", "basis": 8}
    elif kind == "exponential":
        given |= {"hyperprior": pcvm.Laplace(4.0)}
    elif kind == "unknown width":
        given |= {"width": pm.LogNormal("ell", 0.3, 0.4)}
    return pcvm_latent(X, y, **given)


def random_model(seed):
    """Return a random model."""
    rng = fixed_rng(seed)
    n = int(rng.integers(16, 40))
    X, label = blobs(n, n_features=int(rng.integers(1, 4)), seed=seed, fixed=True)
    group = rng.integers(3, size=n)
    likelihood, latent, term = (rng.choice(kinds) for kinds in (LIKELIHOODS, LATENT, TERMS))
    with pm.Model(coords={"group": list("abc")}) as model:
        eta = latent_function(latent, X, label > 0, rng)
        if term == "intercepts":
            eta = eta + pm.Normal("a", dims="group")[group]
        elif term == "scaled intercepts":
            eta = eta + pm.HalfNormal("tau") * pm.Normal("a", dims="group")[group]
        elif term == "slope":
            eta = eta + pm.Normal("slope", 0.0, 2.0) * X[:, -1]
        signal = 0.8 * label + np.array([-0.7, 0.0, 0.7])[group]
        observe(likelihood, eta, signal, rng)
    return model


def slopes_left(model, values):
    """Return the largest slope, by PyMC alone, that a mode has left: zero at a point of KKT.

    Values are natural, of other variables than ours as they are transformed. Sizes at zero may only fall,
    weights with a Laplace density at zero are kept there by its kink. Rates are no part of the mode.
    """
    kinds = {rv.name: rv.owner.op._print_name[0] for rv in model.free_RVs}
    rates = [name for name in kinds if name.endswith("rate")]
    ours = [n for n in kinds if kinds[n] in ("MarginalWeight", "Exponential", "FreeWeight")]
    model.rvs_to_initial_values = dict.fromkeys(model.free_RVs)  # PyMC converts no others
    plain = remove_value_transforms(model, [model[name] for name in ours + rates])
    moved = [rv for rv in plain.free_RVs if rv.name not in rates]
    point = {v.name: np.asarray(values[v.name], dtype=float) for v in plain.value_vars}
    parts = [point[plain.rvs_to_values[rv].name].ravel() for rv in moved]
    slope = plain.compile_dlogp(moved, jacobian=False)(point)
    slopes, left = np.split(slope, np.cumsum([len(part) for part in parts])[:-1]), []
    for rv, value, own in zip(moved, parts, slopes, strict=True):
        free = np.abs(own)
        if kinds[rv.name] in ("MarginalWeight", "Exponential"):
            free = np.where(value > 0, free, np.maximum(own, 0.0))
        elif kinds[rv.name] == "Laplace":
            kink = 1.0 / rv.owner.inputs[-1].eval()
            free = np.where(value != 0, free, np.maximum(free - kink, 0.0))
        left.append(free.max())
    return max(left)


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


def assert_mode(model):
    """Assert that EM rises to a KKT point by PyMC's own value and slopes; return the point."""
    result = find_map_em(model, **QUIET)
    end, trace = result["optimizer_result"], result["em_trace"]["log_posterior"].values
    assert end["status"].item() == "CONVERGED"
    assert (np.diff(trace) >= 0).all()
    natural, point = values_of(model, result)
    assert trace[-1] == end["log_posterior"].item()
    value = model.compile_logp(jacobian=False)(point)
    assert value == pytest.approx(trace[-1], abs=1e-8)
    assert slopes_left(model, point | natural) < 1e-6
    return point


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(ORDINARY, 20)]


@pytest.mark.parametrize("seed", [*range(ORDINARY), *SLOW])
def test_the_mode_of_a_random_model_is_a_kkt_point(seed):
    assert_mode(random_model(seed))


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
    # where modes predict best, as in the model without intercepts
    assert posterior["rate"].item() == 0.5
    assert (posterior["magnitude"].values >= 0).all()
    signed = posterior["magnitude"].values[0, 0] * model["signs"].get_value()
    np.testing.assert_array_equal(posterior["weight"].values[0, 0], signed)
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
    built = pcvm_model(X, Y, width=1.3, hyperprior=prior)
    wanted = find_map_em(built, options=EMOptions(tol=1e-9), **QUIET)
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


def added(make, term):
    """Return what makes a model and adds a function of its variables to the log posterior."""

    def made():
        with make() as model:
            pm.Potential("more", term(model))
        return model

    return made


def two_functions():
    with pm.Model() as model:
        f = pcvm_latent(X[:, :1], Y, name="f", width=1.0)
        g = pcvm.rvm_latent(X, name="g", width=pm.LogNormal.dist(0.0, 0.5), basis=4)
        pm.Poisson("n", pt.exp(f + g), observed=np.arange(24) % 5)
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


TAKEN = {
    "noise by group": noise_by_group,
    "unknown flip": lambda: pcvm_model(X, Y, width=1.3, likelihood=NoisyProbit(pm.Beta.dist(2, 9))),
    "two functions": two_functions,
    "bias elsewhere": added(with_intercepts, lambda m: -((m["bias"] - 1.0) ** 2)),
    "lasso elsewhere": added(
        lambda: pcvm.sparse_probit_model(X, Y), lambda m: -((m["bias"] - 0.3) ** 2)
    ),
    "with a start": with_a_start,
}


@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN)
def test_other_terms_are_moved_with_the_weights_and_their_curvature_is_that_of_slopes(made):
    model = made()
    own, point = OwnTerms(model), assert_mode(model)
    vector = own.vector(point)
    where, unit = np.arange(0, len(vector), 3), np.eye(len(vector))
    wanted = [-own.problem.product(vector, unit[i])[where] for i in where]
    found = curvatures(own.problem, vector, where)
    np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(wanted).max())


# --- what is refused ------------------------------------------------------------------------------


def declared(likelihood, **options):
    return lambda: with_intercepts(likelihood, **options)


def without_weights():
    with pm.Model() as model:
        pm.Bernoulli("z", logit_p=pt.dot(X, pm.Normal("beta", shape=2)), observed=Y)
    return model


def centred():
    with pm.Model() as model:
        f = pcvm_latent(X, Y, width=1.3)
        a = pm.Normal("a", 0.0, pm.HalfNormal("tau"), shape=3)
        pm.Bernoulli("z", logit_p=f + a[GROUP], observed=Y)
    return model


def of_classes():
    return pcvm.mpcvm_model(X, np.arange(24) % 3, width=1.0)


normal = partial(pm.Normal, "z", observed=LABEL)
bernoulli = partial(pm.Bernoulli, "z", observed=Y)
REFUSED = {
    r"\['d'\] are discrete": declared(lambda f: bernoulli(logit_p=f * pm.Bernoulli("d", 0.5))),
    "unbounded at zero": declared(None, hyperprior=Hyperprior.jeffreys()),
    "half-horseshoe's": declared(None, hyperprior=pcvm.HalfHorseshoe(0.1)),
    r"explicit precisions \['precision'\]": declared(None, precision="joint"),
    "rows of the latent function of 'magnitude'": declared(lambda f: normal(pt.cumsum(f))),
    "of 2 dimensions": added(of_classes, lambda m: -(m["bias"][0] ** 2)),
    r"no weights of the family; found 'beta' \(Normal\)": without_weights,
    "'magnitude' are in other terms": added(with_intercepts, lambda m: -m["magnitude"].sum()),
    r"no maximum: .*\{'tau'": centred,
    "-inf at the start": added(with_intercepts, lambda m: pt.log(0.0 * m["a"].sum())),
    "'b' is a Laplace of unknown place or scale": declared(
        lambda f: normal(f + pm.Laplace("b", 0.0, pm.HalfNormal("s")))
    ),
    "is not centred at zero": declared(lambda f: normal(f + pm.Laplace("b", 1.0, 1.0))),
    "which 'em' does not take; use evidence": lambda: pcvm.rvm_model(X, LABEL, width=1.0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_moved_is_refused_by_name(words):
    refused(words, find_map_em, REFUSED[words](), **QUIET)


def test_arguments_for_the_family_alone_are_refused():
    model = with_intercepts()
    options, start = EMOptions(update="em"), Start(np.zeros(24), 0.0)
    refused("update='em' needs a bound", find_map_em, model, options=options, **QUIET)
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
