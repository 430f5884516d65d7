"""Results remember the pieces of their model, and predictions go by them."""

import json
import pickle

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from problems import SHALLOW, blobs, laplacian, map_result, refused, three_blobs, value_point
from scipy.special import expit, ndtr

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Normal, Probit
from pcvm_pymc.inference.convergence import convergence
from pcvm_pymc.inference.display import Result, overview
from pcvm_pymc.inference.prediction import latent_draws
from pcvm_pymc.inference.results import classes_of, likelihood_of
from pcvm_pymc.model.distributions import FreeWeight, MarginalBias, MarginalWeight
from pcvm_pymc.model.read import read

SHORT = {
    **{"draws": 4, "tune": 4, "chains": 1, "cores": 1, "random_seed": 1, "progressbar": False},
    **{"nuts_sampler": "pymc", "compile_kwargs": {"mode": "FAST_COMPILE"}, **SHALLOW},
}
NOT_CONVERGED = pytest.mark.filterwarnings("ignore::UserWarning")


def plain(model):
    """Return a plain result of PyMC."""
    with model:
        return pm.sample(**SHORT, compute_convergence_checks=False)


def pieces(tree):
    return json.loads(tree.attrs["pieces"])


def test_a_result_names_rows_likelihood_prior_kernel_and_bias(tmp_path):
    X, label = blobs(20, seed=1)
    tree = map_result(pcvm.pcvm_model(X, label, width=1.5))
    found = pieces(pcvm.load(pcvm.save(tree, tmp_path / "map.zarr")))
    assert found["rows"] == ["pcvm"]
    assert found["likelihood"] == {"name": "probit"}
    assert found["kernel"] == {"name": "rbf", "width": 1.5}
    assert found["prior"]["name"] == "gamma"
    assert found["bias"] == "prior"
    free = map_result(pcvm.sparse_probit_model(X, label, bias="free"))
    assert pieces(free)["bias"] == "free"
    assert pieces(free)["kernel"] is None
    assert pieces(free)["prior"] == {"name": "laplace", "gamma": 1.0}


def test_the_likelihood_comes_back_with_its_numbers():
    X, label, _ = three_blobs()
    target = X[:, 0]
    assert likelihood_of(map_result(pcvm.mrvm_model(X, label))) == MultinomialProbit(3)
    known = pcvm.fit_evidence(pcvm.rvm_model(X, target, noise=0.5))
    assert likelihood_of(known) == Normal(0.5)
    logit = pcvm.fit_evidence(pcvm.rvm_model(X, label > 0, likelihood="logit"))
    assert likelihood_of(logit) == Logit()
    unknown = pcvm.fit_evidence(pcvm.rvm_model(X, target))
    assert np.isnan(likelihood_of(unknown).noise)
    for fit in (known, unknown):
        found = pcvm.predict(fit, X)["predictions"]
        assert found["noise"].item() == fit["posterior"]["noise"].item()
        assert "probability" not in found


@NOT_CONVERGED
def test_plain_results_of_pymc_are_understood():
    X, label, _ = three_blobs()
    two = plain(pcvm.pcvm_model(X, label > 0, width=1.2))
    assert two.attrs.get("pieces") is None
    assert likelihood_of(two) == Probit()
    predictions = pcvm.predict(two, X)["predictions"]
    assert_allclose(predictions["probability"], ndtr(predictions["latent"].values))
    several = plain(pcvm.mpcvm_model(X, label, width=1.2))
    assert likelihood_of(several) == MultinomialProbit(3)
    probability = pcvm.predict(several, X)["predictions"]["probability"]
    assert probability.dims == ("chain", "draw", "obs", "class")
    assert_allclose(probability.sum("class"), 1.0, atol=1e-6)
    regression = plain(pcvm.rvm_model(X, X[:, 0], kernel=laplacian, width=1.2, noise=0.3))
    predictions = pcvm.predict(regression, X, kernel=laplacian)["predictions"]
    assert (predictions["noise"] == 0.3).all()
    assert_allclose(predictions["latent"], regression["posterior"]["latent"])


@NOT_CONVERGED
def test_each_draw_has_its_own_noise_and_link():
    X, label = blobs(20, seed=6)
    models = pcvm.rvm_model(X, X[:, 0]), pcvm.rvm_model(X, label, likelihood="logit")
    drawn, logit = (pcvm.sample(each, method="nuts", quiet=True, **SHORT) for each in models)
    assert_array_equal(pcvm.predict(drawn, X)["predictions"]["noise"], drawn["posterior"]["noise"])
    predictions = pcvm.predict(logit, X)["predictions"]
    assert_allclose(predictions["probability"], expit(predictions["latent"].values))


@NOT_CONVERGED
def test_plain_results_name_their_likelihood():
    X, label = blobs(20, seed=7)
    assert likelihood_of(plain(pcvm.rvm_model(X, label, likelihood="logit"))) == Logit()
    noisy = plain(pcvm.pcvm_model(X, label, likelihood=NoisyProbit(0.1)))
    predictions = pcvm.predict(noisy, X)["predictions"]
    assert_allclose(predictions["probability"], 0.1 + 0.8 * ndtr(predictions["latent"].values))


@NOT_CONVERGED
@pytest.mark.fixed_seeds  # of four draws not all may be the first
def test_each_draw_has_its_own_share_of_flipped_labels():
    X, label = blobs(20, seed=8)
    assert NoisyProbit() == NoisyProbit(0.05)
    drawn = plain(pcvm.pcvm_model(X, label, likelihood=NoisyProbit(pm.Beta.dist(2.0, 20.0))))
    predictions = pcvm.predict(drawn, X)["predictions"]
    flip = drawn["posterior"]["flip"].values[..., None]
    expected = flip + (1 - 2 * flip) * ndtr(predictions["latent"].values)
    assert_allclose(predictions["probability"], expected)
    assert np.ptp(flip) > 0


GROUP = np.arange(20) % 3


def observe_own(kind, X, label):
    """Add to the model of the block a function and what its result cannot tell."""
    y = (label > 0).astype(int)
    if kind in ("noise", "counts"):
        f = pcvm.rvm_latent(X, width=1.2, basis=4)
        if kind == "counts":
            pm.Poisson("label", pm.math.exp(f), observed=y, dims="obs")
        else:
            noise = pm.HalfNormal("noise")
            pm.Normal("target", f, 2.0 * noise, observed=X[:, 0], dims="obs")
        return
    f = pcvm.pcvm_latent(X, y, width=1.2, bias=False)
    if kind == "intercepts":
        eta = f + pm.Normal("bias", sigma=2.0, dims="group")[GROUP]
    elif kind == "two functions":
        eta = f + pcvm.rvm_latent(X[:, :1], name="g", width=1.0, basis=4)
    elif kind == "offset":
        eta = f + 3.0 * X[:, 1]
    else:
        eta = f + pm.Normal("a", 2.0, 0.1)
    pm.Bernoulli("label", p=pm.Deterministic("p", pm.math.sigmoid(eta), dims="obs"), observed=y)


OWN = [(kind, "plain") for kind in ("intercepts", "two functions", "offset", "counts")]
OWN += [(kind, "sample") for kind in ("intercepts", "intercept", "noise")]


@NOT_CONVERGED
@pytest.mark.parametrize(("kind", "how"), OWN)
def test_what_terms_of_ones_own_change_is_not_predicted_without_them(kind, how, tmp_path):
    X, label = blobs(20, seed=9)
    with pm.Model(coords={"group": list("abc")}) as model:
        observe_own(kind, X, label)
    draws = plain(model) if how == "plain" else pcvm.sample(model, quiet=True, **SHORT)
    for each in (draws, pcvm.load(pcvm.save(draws, tmp_path / "draws.zarr"))):
        found = pcvm.predict(each, X)["predictions"]
        assert list(found.data_vars) == ["latent"]
        assert_allclose(found["latent"], each["posterior"]["latent"], atol=1e-10)
        refused("user-defined terms.*model=", pcvm.compare, {"a": each}, X, label)
        refused("user-defined terms.*psis_loo", pcvm.kfold, each, X, label)
        refused("user-defined terms", pcvm.loo, each)
        if kind not in ("noise", "counts"):
            refused("user-defined terms", pcvm.project, each)


@NOT_CONVERGED
def test_the_posterior_predictive_has_the_terms_of_ones_own():
    """What the error names as the remedy: at new rows p is that of the function and the intercepts."""
    X, label = blobs(20, seed=9)
    with pm.Model(coords={"group": list("abc")}) as model:
        f = pcvm.pcvm_latent(X, label, width=1.2, bias=False)
        place, seen = pm.Data("place", GROUP, dims="obs"), pm.Data("seen", label > 0, dims="obs")
        eta = f + pm.Normal("a", sigma=2.0, dims="group")[place]
        p = pm.Deterministic("p", pm.math.sigmoid(eta), dims="obs")
        pm.Bernoulli("label", p, observed=seen, dims="obs")
    draws, rows = plain(model), X[:5] + 0.1
    new = pcvm.new_data(model, rows)
    new["new_data"] |= {"place": np.array([2, 0, 1, 1, 0]), "seen": np.zeros(5, dtype=bool)}
    with model:
        pm.set_data(**new)
        ahead = pm.sample_posterior_predictive(draws, var_names=["p"], progressbar=False)
    own = draws["posterior"]["a"].values[..., [2, 0, 1, 1, 0]]
    latent = pcvm.predict(draws, rows)["predictions"]["latent"].values
    assert_allclose(ahead["posterior_predictive"]["p"], expit(latent + own))


def test_refits_of_a_model_with_a_potential_are_refused():
    X, label = blobs(20, seed=9)
    model = pcvm.pcvm_model(X, label, width=1.2)
    with model:
        pm.Potential("push", -3.0 * model["bias"] ** 2)
    mode = map_result(model)
    latent = pcvm.predict(mode, X)["predictions"]
    assert_allclose(latent["probability"], ndtr(latent["latent"].values))
    refused("also has push", pcvm.loo, mode)
    refused("also has push", pcvm.kfold, mode, X, label)


def test_one_of_two_functions_of_other_names_is_refused_by_name():
    X, label = blobs(20, seed=9)
    with pm.Model() as model:
        f, g = (pcvm.pcvm_latent(X, label, name=each, width=1.2) for each in "fg")
        pm.Bernoulli("label", logit_p=f + g, observed=label > 0, dims="obs")
    refused("no function called 'latent'", pcvm.predict, map_result(model), X)


def test_models_by_hand_are_fitted_and_packed_whatever_their_names():
    X = np.random.default_rng(4).normal(size=(30, 2))
    y, s = (X[:, 0] > 0).astype(int), np.where(X[:, 0] > 0, 1.0, -1.0)
    Phi = np.exp(-np.square(X[:, None] - X[None]).sum(-1))
    with pm.Model() as labels:
        size = MarginalWeight("size", 2.0, 0.3, shape=30)
        latent = Phi @ (s * size) + MarginalBias("off", 1.5, 0.7)
        pm.Bernoulli("seen", logit_p=latent, observed=y)
    found = map_result(labels)
    assert_array_equal(found["observed_data"]["seen"].values, y)
    assert found["posterior"]["weight"].shape == (1, 1, 30)
    with pm.Model() as numbers:
        weight = FreeWeight("w", 2.0, 0.3, shape=30)
        pm.Normal("t", mu=Phi @ weight + MarginalBias("off", 1.5, 0.7), sigma=0.3, observed=X[:, 1])
    assert_array_equal(pcvm.fit_evidence(numbers)["observed_data"]["t"].values, X[:, 1])


# --- points


@pytest.fixture(scope="module")
def result():
    X, label = blobs(30, seed=30)
    return map_result(pcvm.pcvm_model(X, np.where(label > 0, "ill", "healthy"), width=1.2)), X


def test_groups_and_shapes(result):
    tree, X = result
    refused("X_new has 1 features; needed 2", pcvm.predict, tree, X[:, :1])
    groups = {"posterior", "optimizer_result", "em_trace", "observed_data", "constant_data"}
    assert set(tree.children) == groups
    assert dict(tree["posterior"]["weight"].sizes) == {"chain": 1, "draw": 1, "basis": 30}
    assert tree["em_trace"].sizes["iteration"] == tree["optimizer_result"]["nit"].item() + 1
    assert tree["optimizer_result"]["status"].item() == "CONVERGED"
    signed = tree["posterior"]["magnitude"] * tree["constant_data"]["signs"]
    assert_allclose(tree["posterior"]["weight"], signed)


def test_zarr_keeps_everything(result, tmp_path):
    tree, X = result
    back = pcvm.load(pcvm.save(tree, tmp_path / "map.zarr"))
    xr.testing.assert_identical(tree, back)
    assert classes_of(back).tolist() == ["healthy", "ill"]
    assert_array_equal(latent_draws(back, X), latent_draws(tree, X))
    for same in (tree, back, tree.copy(), pickle.loads(pickle.dumps(tree)), tree.isel(obs=[1, 2])):
        assert isinstance(same, Result)
        assert same._repr_html_().startswith("<table")
        assert overview(same)["mode"].to_dict() == overview(tree)["mode"].to_dict()
    for other in (tree["posterior"], tree.isel(chain=0)):  # as xarray shows them
        assert other._repr_html_().startswith("<div>")
    assert repr(tree).startswith("<xarray.DataTree>")


def test_a_notebook_shows_what_a_result_tells_first(result):
    """A mode's attributes; of draws the verdict, and means; of predictions their means."""
    tree, X = result
    table, end = overview(tree)["mode"], tree["optimizer_result"]
    told = ["method", "seconds", "status", "message", "nit", "n_active", "log_posterior"]
    assert table[told].tolist() == [end[name].item() for name in told]
    assert table["width"] == tree["constant_data"]["width"].item() == 1.2
    assert table["rate"] == tree["posterior"]["rate"].item()
    draws = tree["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * 200)
    noise = np.random.default_rng(0).normal(size=(2, 200))
    draws = draws + xr.DataArray(noise, dims=("chain", "draw"))
    many = Result.from_dict({"posterior": draws.assign_attrs(sampler="<b>", sampling_time=2.5)})
    table, rate = overview(many)["posterior"], draws["rate"]
    assert table["convergence"] == str(convergence(many))
    assert table["rate"] == f"{rate.mean().item():.4g} ± {rate.std().item():.2g}"
    assert table["sampling_time"] == 2.5
    assert "&lt;b&gt;" in many._repr_html_()
    found = pcvm.predict(tree, X)
    p = found["predictions"]["probability"].values[0, 0]
    assert_array_equal(overview(found)["probability"], p)
    assert len(overview(Result())) == 0


STARTS = {
    "README": ("pcvm_model", {"signs": "both", "basis": "kmeans", "width": "lognormal"}),
    "logit": ("pcvm_model", {"width": pm.LogNormal.dist(0.3, 0.5, shape=2), "likelihood": "logit"}),
    "several classes": ("mpcvm_model", {"width": 1.0}),
    "free weights": ("sparse_probit_model", {"features": "kernel", "width": 1.0}),
    "precisions": ("rvm_model", {"precision": "joint", "width": 1.0}),
    "own terms": ("pcvm_latent", {"name": "f", "width": 1.2}),
}


@NOT_CONVERGED
@pytest.mark.parametrize("kind", STARTS)
def test_nuts_begins_at_a_mode(kind):
    """Sizes of zero become a tenth of the median of the others; all else is as in the mode."""
    (X, label), (name, given) = blobs(30, seed=30), STARTS[kind]
    with pm.Model() as model:
        f = getattr(pcvm, name)(X, X[:, 0] if name == "rvm_model" else label, **given)
        if kind == "own terms":
            term = pm.Normal("a", shape=2)[np.arange(30) % 2]
            pm.Bernoulli("z", logit_p=f + term, observed=label > 0)
    mode = (pcvm.fit_evidence if kind == "precisions" else map_result)(model)
    start, point = pcvm.initial_values(mode, model), mode["posterior"].isel(chain=0, draw=0)
    for rv in model.free_RVs:
        known = point[rv.name].values
        lost = ~np.isfinite(known) | ((known == 0) & rv.name.endswith("magnitude"))
        assert (rv.name in start) == (not lost.all())
        if rv.name in start:
            middle = np.where(known == 0, 0.1, 10.0) * np.median(known[~lost])
            assert_array_equal(start[rv.name], np.where(lost, middle, known))
    assert np.isfinite(model.compile_logp()(model.initial_point() | value_point(model, start)))
    if kind == "README":
        with model:
            short = SHORT | {"draws": 20, "tune": 20}
            found = pm.sample(initvals=pcvm.initial_values(mode), **short)
        assert np.isfinite(found["posterior"]["latent"]).all()
    refused("mode has 2 draws", pcvm.initial_values, mode.isel(draw=[0, 0]), model)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_mode_under_an_unknown_scale_is_that_at_the_scale_found_or_unit_scale(n_classes):
    if n_classes == 2:
        (X, label), build = blobs(30, seed=30), pcvm.pcvm_model
    else:
        (X, label), build = (blobs(24, seed=30)[0], np.arange(24) % 3), pcvm.mpcvm_model
    model = build(X, label, width=1.2)
    prior = read(model).problem.hyperprior
    assert prior.rate_shape is not None
    refused("hyperparameters='mode'", pcvm.find_map_em, model, hyperparameters="mode")
    unit = pcvm.find_map_em(model, hyperparameters="given", progressbar=False)
    assert unit["posterior"]["rate"].item() == prior.c
    assert "elpd_loo" not in unit["optimizer_result"]
    for found, atol in ((unit, 0.0), (map_result(model), 2e-3)):
        point = found["posterior"].to_dataset().isel(chain=0, draw=0)
        known = prior.at_rate(float(point["rate"]))
        wanted = map_result(build(X, label, width=1.2, hyperprior=known))
        for name in ("weight", "bias", "latent", "precision", "bias_precision"):
            assert_allclose(point[name], wanted["posterior"][name].values[0, 0], rtol=0, atol=atol)
        natural = {name: point[name].values for name in ("magnitude", "bias", "rate")}
        with np.errstate(divide="ignore"):
            density = model.compile_logp(jacobian=False)(value_point(model, natural))
        result = found["optimizer_result"]
        assert result["log_posterior"].item() == pytest.approx(density, abs=1e-8)
        assert found["em_trace"]["log_posterior"].values[-1] == pytest.approx(density, abs=1e-6)
        elpd = [pcvm.loo(each) for each in (found, wanted)]
        assert_allclose(*(each.elpd_i for each in elpd), atol=atol)
    assert result["elpd_loo"].item() == pytest.approx(elpd[0].elpd, abs=1.0)  # refits
    assert result["elpd_loo"].item() > pcvm.loo(unit).elpd - 1.0
