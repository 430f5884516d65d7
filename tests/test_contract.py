"""The contract: what every row of the family table keeps, whichever pieces it is put together from.

The cases are read off the table, so that a new likelihood, prior or row is tested without a line here; a
likelihood with nuisance parameters of its own names values for them in NUISANCE.
"""

import json
import warnings
from dataclasses import replace
from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from problems import SHALLOW, assert_monotone, blobs, point_of, refused, slopes
from scipy.optimize import approx_fprime

import pcvm_pymc as pcvm
from pcvm_pymc.core.design import ArrayRows
from pcvm_pymc.core.design import StreamedDesign as Chunks
from pcvm_pymc.core.em import fit_em, log_posterior
from pcvm_pymc.core.family import AUGMENTED, check_solver, sampler_of, systems_of
from pcvm_pymc.core.pieces.kernels import KERNELS, RBF, Radial
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS
from pcvm_pymc.inference.sampling import sampler_for
from pcvm_pymc.model.build import build
from pcvm_pymc.model.read import read
from pcvm_pymc.model.steps import PointMap

WIDTH = 1.3
FAST = {"mode": "FAST_COMPILE"}
QUIET = {"progressbar": False, "compile_kwargs": FAST}
NUISANCE = {
    "normal": {"noise": 0.4},
    "label noise": {"flip": 0.1},
    "normal-probability": {"noise": 0.4},
    "student-t": {"noise": 0.3, "degrees": 3.0},
}
PRIORS = {"gamma": pcvm.Hyperprior(2.0, 0.3, 1.5, 0.7), "laplace": pcvm.Laplace(2.5)}
STORES = (".zarr", ".nc")
SOLVERS = ("em", "evidence", "bottom-up", "gibbs", "hmc")

X, LABEL = blobs(36, seed=5, fixed=True)
RNG = np.random.default_rng(0)
TARGETS = {
    "labels": np.where(LABEL > 0, "yes", "no"),
    "classes": np.digitize(X[:, 0] + 0.3 * RNG.normal(size=36), [-0.6, 0.6]),
    "numbers": np.sinc(X[:, 0]) + 0.1 * RNG.normal(size=36),
}
CASES = [
    pytest.param(key, likelihood, prior, id=f"{key}-{likelihood}-{prior}")
    for key, row in pcvm.FAMILY.items()
    for likelihood in row.likelihoods
    for prior in row.priors
    if prior in PRIORS
]
EM_CASES = [case for case in CASES if "em" in pcvm.FAMILY[case.values[0]].solvers]
every_case = pytest.mark.parametrize(("key", "likelihood", "prior"), CASES)
every_em_case = pytest.mark.parametrize(("key", "likelihood", "prior"), EM_CASES)
RADIAL = [name for name, kind in KERNELS.items() if issubclass(kind, Radial)]
every_radial_kernel = pytest.mark.parametrize("kernel", RADIAL)
every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)


def targets_of(likelihood):
    return TARGETS[LIKELIHOODS[likelihood].targets]


def model_of(key, likelihood, prior, **kwargs):
    kwargs = {"hyperprior": PRIORS[prior], "width": WIDTH, **NUISANCE.get(likelihood, {}), **kwargs}
    return build(pcvm.FAMILY[key], X, targets_of(likelihood), likelihood=likelihood, **kwargs)


@cache
def problem_of(key, likelihood, prior):
    """Return what is read off a model, each once."""
    return read(model_of(key, likelihood, prior)).problem


def piece_of(name):
    """Return a likelihood with the values of NUISANCE."""
    if LIKELIHOODS[name].targets == "classes":
        return LIKELIHOODS[name](3)
    return LIKELIHOODS[name](**NUISANCE.get(name, {}))


def observed_by(piece, n, rng):
    """Return latent values and targets, drawn at random."""
    latent = 2.0 * rng.normal(size=n if piece.n_scores == 1 else (n, piece.n_scores))
    target = {
        "labels": rng.choice([-1.0, 1.0], size=n),
        "classes": rng.integers(max(piece.n_scores, 2), size=n),
        "numbers": rng.normal(size=n),
    }[piece.targets]
    return latent, target


def random_point(problem, rng):
    weight, bias = rng.normal(size=problem.weight_shape), rng.normal(size=problem.n_scores)
    if problem.is_signed:
        weight = np.abs(weight) * problem.sign
    return weight, bias if problem.n_scores > 1 else float(bias[0])


# --- pieces -------------------------------------------------------------------------------------


@every_likelihood
def test_slope_and_curvature_are_derivatives(name):
    piece = piece_of(name)
    latent, target = observed_by(piece, 7, np.random.default_rng(1))

    def value(flat):
        return piece.log_likelihood(flat.reshape(latent.shape), target)

    slope = approx_fprime(latent.ravel(), value, 1e-6).reshape(latent.shape)
    np.testing.assert_allclose(piece.score(latent, target), slope, atol=2e-5)
    of_both = piece.value_and_score(latent, target)
    for found, wanted in zip(of_both, (piece.log_density, piece.score), strict=True):
        np.testing.assert_allclose(found, wanted(latent, target), rtol=1e-5, atol=1e-5)
    curvature = piece.curvature(latent, target)
    assert (curvature >= 0).all()
    assert (curvature <= piece.bound * (1 + 1e-9)).all()
    terms = piece.terms(latent.reshape(7, -1), target)
    assert terms.log_likelihood == pytest.approx(value(latent.ravel()))
    np.testing.assert_allclose(terms.slope.reshape(latent.shape), piece.score(latent, target))
    np.testing.assert_allclose(terms.curvature, curvature, atol=1e-9)
    for c in range(piece.n_scores):
        step = 1e-5 * (np.arange(piece.n_scores) == c if latent.ndim > 1 else 1.0)
        change = piece.score(latent - step, target) - piece.score(latent + step, target)
        hessian = piece.hessian(latent, target)[:, c]
        exact = change.reshape(7, -1) / 2e-5
        clipped = (hessian == 0) & (exact < 0)  # of a likelihood that is not log-concave
        np.testing.assert_allclose(hessian[~clipped], exact[~clipped], atol=1e-5)


@every_likelihood
@pytest.mark.parametrize("noise", [0.4, 1.5])
def test_the_bound_lies_below_the_log_density(name, noise):
    """``log p(f) + g d - bound d^2 / 2 <= log p(f + d)``: what makes EM's step never lower it."""
    piece = piece_of(name)
    piece = replace(piece, noise=noise) if hasattr(piece, "noise") else piece
    rng = np.random.default_rng(2)
    latent, target = observed_by(piece, 400, rng)
    step = 3.0 * rng.normal(size=latent.shape)
    slope = piece.score(latent, target) * step
    below = slope - 0.5 * piece.bound * step**2
    below = below if below.ndim == 1 else below.sum(axis=1)
    rise = piece.log_density(latent + step, target) - piece.log_density(latent, target)
    assert (rise - below).min() >= -1e-9


@every_likelihood
def test_probabilities_sum_to_one(name):
    piece = piece_of(name)
    if piece.targets == "numbers":
        refused("have no probabilities", piece.probability, np.zeros(3), error=TypeError)
        return
    latent, _ = observed_by(piece, 30, np.random.default_rng(3))
    latent = 4.0 * latent
    if piece.targets == "classes":
        probability = piece.probability(latent)
        values = [np.full(30, c) for c in range(piece.n_scores)]
    else:
        probability = np.column_stack([1.0 - piece.probability(latent), piece.probability(latent)])
        values = [np.full(30, -1.0), np.full(30, 1.0)]
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, atol=1e-7)
    for c, each in enumerate(values):
        density = np.exp(piece.log_density(latent, each))
        if name != "normal-probability":  # a density of the labels, not their probability
            np.testing.assert_allclose(probability[:, c], density, atol=1e-7)


@every_radial_kernel
@pytest.mark.parametrize("width", [1.3, np.array([0.8, 2.5])], ids=["one", "per feature"])
def test_a_kernel_of_random_width_is_its_piece_at_each_width(kernel, width):
    prior = pm.LogNormal.dist(0.0, 0.5, shape=np.shape(width) or None)
    model = pcvm.pcvm_model(X, LABEL, kernel=kernel, width=prior, basis=5)
    centres = model["centres"].get_value()
    weight = 0.5 + np.arange(5)
    given = {model["width"]: width, model["weight"]: weight, model["bias"]: np.array(0.3)}
    found = model["latent"].eval(given, mode="FAST_COMPILE")
    wanted = KERNELS[kernel](width)(X, centres) @ weight + 0.3
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@every_radial_kernel
def test_predictions_take_each_draw_of_a_random_width(kernel, tmp_path):
    model = pcvm.pcvm_model(X, LABEL, kernel=kernel, width=pm.LogNormal.dist(0.0, 0.5), basis=5)
    few = SHALLOW | {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1, "quiet": True}
    tree = pcvm.sample(model, method="nuts", nuts_sampler="pymc", **few, compile_kwargs=FAST)
    tree = pcvm.load(pcvm.save(tree, tmp_path / "result.zarr"))
    found = pcvm.predict(tree, X[:4] + 0.1)["predictions"]["latent"].values[0]
    draws = tree["posterior"].to_dataset().isel(chain=0)
    centres = tree["constant_data"]["centres"].values
    for i, width in enumerate(draws["width"].values):
        wanted = KERNELS[kernel](width)(X[:4] + 0.1, centres) @ draws["weight"].values[i]
        np.testing.assert_allclose(found[i], wanted + draws["bias"].values[i], atol=1e-9)


@cache
def fitted(key, likelihood, prior, **kwargs):
    """Return a point estimate by the row's own solver, each once."""
    model = model_of(key, likelihood, prior, **kwargs)
    if pcvm.FAMILY[key].solvers[0] == "em":
        return pcvm.find_map_em(model, progressbar=False)
    return pcvm.fit_evidence(model)


# --- models and solvers -------------------------------------------------------------------------


@every_case
def test_the_cores_log_posterior_is_the_models(key, likelihood, prior):
    model = model_of(key, likelihood, prior)
    problem = read(model).problem
    assert pcvm.FAMILY[key] in systems_of(problem)
    weight, bias = random_point(problem, np.random.default_rng(4))
    point = PointMap(read(model)).point(weight=weight, bias=bias, width=problem.width)
    found = model.compile_logp(jacobian=False, mode="FAST_COMPILE")(point)
    wanted = log_posterior(problem, weight, bias, problem.Phi @ weight + bias)
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-8)


@every_case
def test_solvers_that_no_row_of_the_pieces_allows_are_refused_by_name(key, likelihood, prior):
    problem = problem_of(key, likelihood, prior)
    taken = {sampler_of(problem)[0]}
    taken |= {"hmc"} if "gibbs" in taken else set()
    taken |= {
        each
        for row in systems_of(problem)
        for each in row.solvers
        if each != "bottom-up" or problem.is_signed or not row.signs
    }
    for solver in SOLVERS:
        if solver in taken:
            check_solver(problem, solver)
            continue
        with pytest.raises(ValueError, match=f"which '{solver}' does not take; use ") as error:
            check_solver(problem, solver)
        assert pcvm.FAMILY[key].name in str(error.value)


@every_em_case
@pytest.mark.parametrize("update", ["newton", "em"])
def test_em_is_monotone_and_ends_at_a_kkt_point(key, likelihood, prior, update):
    problem = read(model_of(key, likelihood, prior, basis=None)).problem
    result = fit_em(problem, None, pcvm.EMOptions(update=update, tol=1e-8, max_iter=60_000))
    assert_monotone(result.trace.log_posterior[1:])
    assert result.status is pcvm.Status.CONVERGED
    of_weight, of_bias = slopes(problem, result)
    active = result.weight.reshape(of_weight.shape) != 0
    assert active.any()
    np.testing.assert_allclose(of_weight[active], 0.0, atol=1e-4)
    outward = of_weight * problem.weight_sign.reshape(of_weight.shape)
    least = outward if problem.is_signed else np.abs(outward)
    assert (least[~active] <= problem.hyperprior.penalty + 1e-4).all()
    np.testing.assert_allclose(of_bias[np.atleast_1d(result.bias) != 0], 0.0, atol=1e-4)


@every_em_case
def test_em_on_a_model_is_that_of_the_core_and_its_value_the_models(key, likelihood, prior):
    model = model_of(key, likelihood, prior)
    result = pcvm.find_map_em(model, progressbar=False)
    alone = fit_em(read(model).problem)
    np.testing.assert_allclose(result["posterior"]["weight"].values[0, 0], alone.weight, atol=1e-12)
    logp = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    value = result["optimizer_result"]["log_posterior"].item()
    assert logp(point_of(model, alone)) == pytest.approx(value, rel=1e-9, abs=1e-8)
    assert result["optimizer_result"]["fun"].item() == -value
    step = pcvm.EMStep(model)
    point, stats = step.step(step.initial_point())
    assert stats["log_posterior"] == pytest.approx(float(logp(point)), rel=1e-9, abs=1e-8)


@every_em_case
def test_rows_in_chunks_end_where_rows_in_memory_do(key, likelihood, prior):
    problem = problem_of(key, likelihood, prior)
    chunks = Chunks(ArrayRows(X, problem.label, 20), X, RBF(WIDTH), majority=1.0)
    options = pcvm.EMOptions(tol=1e-7, max_iter=60_000)
    whole = fit_em(problem, None, options)
    found = fit_em(replace(problem, Phi=chunks, label=None), None, options)
    assert found.log_posterior == pytest.approx(whole.log_posterior, abs=1e-6)
    np.testing.assert_allclose(found.weight, whole.weight, atol=1e-4)


@every_case
def test_predictions_are_pymcs_and_survive_the_store(key, likelihood, prior, tmp_path):
    model, result = model_of(key, likelihood, prior), fitted(key, likelihood, prior)
    X_new = X[:5] + 0.1
    found = pcvm.predict(result, X_new)["predictions"]
    with model:
        pm.set_data(**pcvm.new_data(model, X_new))
        given = {"predictions": True, "var_names": ["latent"], "random_seed": 1, **QUIET}
        wanted = pm.sample_posterior_predictive(result, **given)
    latent = wanted["predictions"]["latent"].values
    np.testing.assert_allclose(found["latent"].values, latent, atol=1e-10)
    if "probability" in found:
        wanted = problem_of(key, likelihood, prior).likelihood.probability(latent)
        np.testing.assert_allclose(found["probability"].values, wanted, atol=1e-7)
    row = pcvm.FAMILY[key]
    is_first = (likelihood, prior) == (row.likelihoods[0], row.priors[0])
    for store in STORES if is_first else STORES[:1]:
        loaded = pcvm.load(pcvm.save(result, tmp_path / f"result{store}"))
        again = pcvm.predict(loaded, X_new)["predictions"]
        for name in found:
            np.testing.assert_array_equal(again[name].values, found[name].values)


@every_case
def test_arviz_takes_draws_and_their_log_likelihood(key, likelihood, prior):
    """PyMC's log likelihood of draws is the piece's, row by row, and ArviZ takes both."""
    with model_of(key, likelihood, prior):
        drawn = pm.sample_prior_predictive(40, random_seed=6, compile_kwargs=FAST)
        posterior = drawn["prior"].to_dataset()
        result = xr.DataTree.from_dict({"posterior": posterior})
        found = pm.compute_log_likelihood(result, extend_inferencedata=False, **QUIET)
    problem = problem_of(key, likelihood, prior)
    wanted = [
        problem.likelihood.log_density(latent, problem.label)
        for latent in posterior["latent"].values[0]
    ]
    (name,) = found.data_vars
    np.testing.assert_allclose(found[name].values[0], wanted, rtol=1e-9, atol=1e-9)
    result["log_likelihood"] = xr.DataTree(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # draws of a prior have poor k-hats
        score = az.loo(result)
    assert score.n_data_points == len(X)
    summary = az.summary(result, var_names=["bias"], kind="stats", round_to="none")
    np.testing.assert_allclose(summary["mean"], posterior["bias"].mean(("chain", "draw")))


ESTIMATORS = {
    "pcvm": lambda piece, prior: pcvm.PCVMClassifier(likelihood=piece, hyperprior=prior),
    "sparse_probit": lambda _, prior: pcvm.SparseProbitClassifier(features="kernel", prior=prior),
    "rvm_classification": lambda piece, _: pcvm.RVMClassifier(link=piece.name),
    "rvm_regression": lambda piece, _: pcvm.RVMRegressor(likelihood=piece, std="weights"),
    "mpcvm_top_down": lambda _, prior: pcvm.MPCVMClassifier(
        hyperprior=prior, options=pcvm.EMOptions()
    ),
    "mpcvm_bottom_up": lambda *_: pcvm.MPCVMClassifier(estimation="bottom-up"),
    "mrvm_bottom_up": lambda *_: pcvm.MRVMClassifier(options=pcvm.BottomUpOptions()),
}
# mRVM2 drops a basis for all classes or for none, and has Jeffreys' prior: no model says so
WITHOUT_A_MODEL = {"mrvm_top_down"}


def draws_of(key, likelihood, prior, **options):
    """Return a short run, checked: its latent function and log likelihood are those of its weights."""
    model = model_of(key, likelihood, prior)
    short = {"draws": 6, "tune": 6, "chains": 1, "cores": 1}
    tree = pcvm.sample(model, **short, random_seed=1, quiet=True, **options)
    posterior, rows = tree["posterior"].to_dataset().isel(chain=0), range(6)
    weight = posterior["weight"].transpose("draw", "basis", ...).values
    bias = posterior["bias"].transpose("draw", ...).values
    latent = np.stack([RBF(WIDTH)(X, X) @ weight[i] + bias[i] for i in rows])
    np.testing.assert_allclose(posterior["latent"].transpose("draw", "obs", ...), latent, atol=1e-8)
    piece, target = piece_of(likelihood), read(model).problem_for("sampling").label
    (found,) = tree["log_likelihood"].to_dataset().isel(chain=0).data_vars.values()
    wanted = np.stack([piece.log_density(each, target) for each in latent])
    np.testing.assert_allclose(found.transpose("draw", "obs"), wanted, rtol=1e-5, atol=1e-7)
    assert key in json.loads(tree.attrs["pieces"])["rows"]
    return tree


@every_case
def test_every_row_samples_by_itself_and_other_methods_are_refused_by_name(key, likelihood, prior):
    """Gibbs where responses can be drawn and signs are those of labels; without signs trajectories."""
    row, model = pcvm.FAMILY[key], model_of(key, likelihood, prior)
    by_gibbs = row.signs is not None and likelihood in AUGMENTED and prior == "gamma"
    best = "gibbs" if by_gibbs else "hmc" if row.signs is None else "nuts"
    assert sampler_for(read(model))[0] == best
    for method in ("gibbs", "hmc"):
        if method == best or by_gibbs:
            tree = draws_of(key, likelihood, prior, method=method, max_iter=60)
            name = {"gibbs": "Gibbs", "hmc": "Hamiltonian Monte Carlo"}[method]
            assert tree["posterior"].attrs["sampler"].startswith(name)
        else:
            words = f"a {likelihood} likelihood.*{row.name}.*{method!r} does not take; use .*nuts"
            refused(words, pcvm.sample, model, method=method, quiet=True)


@pytest.mark.slow
@every_case
def test_every_row_samples_by_nuts(key, likelihood, prior):
    options = {"compile_kwargs": FAST, "nuts_sampler": "pymc"}
    tree = draws_of(key, likelihood, prior, method="nuts", **options)
    assert tree["posterior"].attrs["sampler"] == "NUTS (pymc)"


def test_every_row_has_an_estimator():
    assert set(ESTIMATORS) | WITHOUT_A_MODEL == set(pcvm.FAMILY)


@every_case
def test_an_estimator_is_the_model_route(key, likelihood, prior):
    if key in WITHOUT_A_MODEL:
        pytest.skip("what its estimator does is no model's mode")
    bias = {"bias": "none"} if pcvm.FAMILY[key].solvers[0] == "bottom-up" else {}
    result = fitted(key, likelihood, prior, **bias)
    estimator = ESTIMATORS[key](piece_of(likelihood), PRIORS[prior]).set_params(width=WIDTH)
    estimator.fit(X, targets_of(likelihood))
    X_new = X[:6] - 0.2
    found = pcvm.predict(result, X_new)["predictions"]
    if LIKELIHOODS[likelihood].targets == "numbers":
        mean, variance = estimator._predictor_.moments(X_new)
        np.testing.assert_allclose(mean, found["latent"].values[0, 0], atol=1e-6)
        targets = estimator._likelihood_.with_noise(estimator.noise_)
        wanted, spread = targets.target_moments(mean, variance)
        mean, deviation = estimator.predict(X_new, return_std=True)
        np.testing.assert_allclose(mean, wanted, atol=1e-6)
        np.testing.assert_allclose(deviation, np.sqrt(spread), atol=1e-6)
        return
    # of the evidence probabilities are moderated, the plug-in's are not
    if pcvm.FAMILY[key].solvers[0] == "evidence":
        latent = estimator.latent_moments(X_new)[0]
        np.testing.assert_allclose(latent, found["latent"].values[0, 0], atol=1e-6)
        return
    probability = estimator.predict_proba(X_new)
    wanted = found["probability"].values[0, 0]
    wanted = wanted if wanted.ndim == 2 else np.column_stack([1 - wanted, wanted])
    np.testing.assert_allclose(probability, wanted, atol=1e-5)
