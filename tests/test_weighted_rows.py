"""Rows that count by weights are repeated rows, and known noise divides them: in the core and in models."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from problems import blobs, fixed_rng, refused

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import EvidenceProblem, fit_bottom_up, fit_rvm
from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.hamiltonian import LogPosterior
from pcvm_pymc.core.loo import check_step
from pcvm_pymc.core.pieces import likelihoods, row_weights
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal, Probit, StudentT
from pcvm_pymc.core.problem import ObservedRows, Problem
from pcvm_pymc.model.data import OF_ROWS
from pcvm_pymc.model.distributions import FreeWeight
from pcvm_pymc.model.parts import find_parts
from pcvm_pymc.model.read import read
from pcvm_pymc.model.weighted import WeightedNormal, WeightedStudentT

# one problem, under which a fit with weights finds the same mode as that of repeated rows
X, LABEL = blobs(40, seed=4, gap=1.0, fixed=True)
CLASS = np.digitize(X[:, 1], [-0.4, 0.5])
NUMBER = X[:, 0] + 0.3 * fixed_rng(6).standard_t(4, size=40) + 5.0
NOISE = fixed_rng(7).uniform(0.1, 0.6, size=40)
TIMES = fixed_rng(0).integers(1, 4, size=40)
COPIES = np.repeat(np.arange(40), TIMES)
ONE_ZERO = TIMES * (np.arange(40) != 3)
CENTRES = X[:12]
NEW = fixed_rng(5).uniform(-4.0, 4.0, size=(7, 2))
PHI = RBF(1.5)(X, CENTRES)
PROPER, JEFFREYS = pcvm.Hyperprior.plug_in(), pcvm.Hyperprior.jeffreys()
SIGNS = np.where(CLASS[:12, None] == np.arange(3), 1.0, -1.0)

CASES = {
    "probit": Problem(PHI, LABEL, LABEL[:12], PROPER),
    "probit, improper": Problem(PHI, LABEL, LABEL[:12], JEFFREYS),
    "logit": Problem(PHI, LABEL, LABEL[:12], PROPER, Logit()),
    "label noise": Problem(PHI, LABEL, LABEL[:12], PROPER, likelihoods.NoisyProbit(0.1)),
    "free": Problem(PHI, LABEL, None, PROPER, bias="free"),
    "Jeffreys from the ridge": Problem(PHI, LABEL, None, JEFFREYS),
    "Laplace": Problem(PHI, LABEL, None, pcvm.Laplace(2.0)),
    "classes": Problem(PHI, CLASS, SIGNS, PROPER, MultinomialProbit(3)),
    "classes, improper": Problem(PHI, CLASS, None, JEFFREYS, MultinomialProbit(3), bias="none"),
}


def by_em(update):
    return lambda problem: fit_em(problem, None, EMOptions(update=update, max_iter=60, tol=1e-9))


def weighted(problem):
    return replace(problem, row_weight=TIMES)


def repeated(problem):
    return replace(problem, Phi=problem.Phi[COPIES], label=problem.label[COPIES])


# --- the core -----------------------------------------------------------------------------------

SOLVED = [(name, by_em(update)) for update in ("auto", "em") for name in CASES]
SOLVED += [(name, fit_bottom_up) for name in ("probit, improper", "classes, signs", "mrvm")]
CASES["classes, signs"] = Problem(PHI, CLASS, SIGNS, JEFFREYS, MultinomialProbit(3))
CASES["mrvm"] = replace(CASES["classes, improper"], shared=True)


@pytest.mark.parametrize(("case", "fit"), SOLVED)
def test_fits_end_where_those_of_repeated_rows_do(case, fit):
    found, wanted = fit(weighted(CASES[case])), fit(repeated(CASES[case]))
    assert fit is not fit_bottom_up or found.n_iter == wanted.n_iter
    assert found.log_posterior == pytest.approx(wanted.log_posterior, rel=1e-9)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.latent[COPIES], wanted.latent, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("signs", [None, SIGNS], ids=["free", "signs"])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 30.0, 1e3, 1e5, "survey"])
def test_several_classes_at_weights_of_any_size_end_at_a_kkt_point(unit, signs):
    """A factor of other directions ended 15 of 36 fits at weights of 300 to 3,000 with an error."""
    rows = fixed_rng(1).lognormal(7, 1, size=40) if unit == "survey" else np.full(40, float(unit))
    given = Problem(PHI, CLASS, signs, PROPER, MultinomialProbit(3), row_weight=rows)
    found = fit_em(given, None, EMOptions(tol=1e-9, max_iter=500))
    assert np.diff(found.trace.log_posterior[1:]).min() >= -1e-10 * abs(found.log_posterior)
    slope = given.observed.score(found.latent)
    close = 1e-6 * (1.0 + np.abs(slope).sum())
    rise = PHI.T @ slope - PROPER.weight_precision(found.weight) * found.weight
    assert np.abs(rise[found.weight != 0]).max() < close
    assert signs is None or (signs * rise).max() < close
    precision = [given.bias_precision(bias) for bias in found.bias]
    np.testing.assert_allclose(slope.sum(axis=0), precision * found.bias, atol=close)
    if unit == 30.0:
        repeat = {"Phi": np.repeat(PHI, 30, 0), "label": np.repeat(CLASS, 30)}
        copies = replace(given, row_weight=None, **repeat)
        wanted = fit_em(copies, None, EMOptions(tol=1e-9))
        np.testing.assert_allclose(found.latent, wanted.latent[::30], atol=1e-6)


def test_precisions_below_rounding_do_not_let_the_search_diverge():
    """Survey weights that separate the classes: scores stay those of a probit, as of repeated rows."""
    rng = fixed_rng(0)
    rows = rng.normal(size=(60, 2))
    label = np.digitize(rows[:, 0] + 0.4 * rng.normal(size=60), [-0.5, 0.5])
    times = np.round(fixed_rng(4).lognormal(7.0, 1.0, size=60))
    model = pcvm.MRVMClassifier(width=1.0)
    weighted = model.fit(rows, label, sample_weight=times).decision_function(rows)
    assert model.status_ is pcvm.Status.CONVERGED
    assert np.abs(weighted).max() < 40.0


@pytest.mark.parametrize("method", ["sequential", "batch"])
@pytest.mark.parametrize("likelihood", [Logit(), Probit()])
def test_evidence_is_that_of_repeated_rows(method, likelihood):
    found = fit_rvm(EvidenceProblem(PHI, LABEL, likelihood, row_weight=TIMES), method=method)
    wanted = fit_rvm(EvidenceProblem(PHI[COPIES], LABEL[COPIES], likelihood), method=method)
    assert found.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-5)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["sequential", "batch"])
@pytest.mark.parametrize("weight", [None, TIMES])
def test_known_noise_divides_the_rows(method, weight):
    """Rows over their noise have unit noise; the density of the targets has one over each noise besides."""
    given = ObservedRows.of(Normal(), NUMBER, weight, NOISE)
    problem = EvidenceProblem(PHI, given.target, given.likelihood, row_weight=given.weight)
    found = fit_rvm(problem, method=method)
    rows = slice(None) if weight is None else COPIES
    divided = {"likelihood": Normal(1.0), "constant": 1.0 / NOISE[rows]}
    over = PHI[rows] / NOISE[rows, None], NUMBER[rows] / NOISE[rows]
    wanted = fit_rvm(EvidenceProblem(*over, **divided), method=method)
    assert found.log_evidence == pytest.approx(wanted.log_evidence - np.log(NOISE[rows]).sum())
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.covariance, wanted.covariance, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.latent[rows], wanted.latent * NOISE[rows], rtol=1e-6)


@pytest.mark.parametrize("noise", [np.nan, 0.4])
@pytest.mark.parametrize("kind", [Normal, StudentT])
def test_the_log_posterior_is_that_of_repeated_rows(kind, noise):
    plain = Problem(PHI, NUMBER - 5.0, None, PROPER, kind(noise))
    times, copies = LogPosterior(weighted(plain)), LogPosterior(repeated(plain))
    at = fixed_rng(8).normal(size=(3, times.n_parameters))
    (value, slope), (same, same_slope) = times(at), copies(at)
    np.testing.assert_allclose(np.diff(value), np.diff(same), rtol=1e-9)
    np.testing.assert_allclose(slope, same_slope, rtol=1e-9, atol=1e-9)
    curvatures = (density.curvature(at[0])[0] for density in (times, copies))
    np.testing.assert_allclose(*curvatures, rtol=1e-9, atol=1e-9)


def test_a_weighted_median_is_that_of_repeated_values():
    for n in range(1, 12):
        value, times = fixed_rng(n).normal(size=n), fixed_rng(n).integers(1, 4, size=n)
        assert row_weights.weighted_median(value, times) == np.median(np.repeat(value, times))


@pytest.mark.parametrize("case", ["probit", "logit", "classes"])
def test_leaving_a_row_out_leaves_all_its_copies_out(case):
    problem, own, tight = weighted(CASES[case]), np.arange(12), EMOptions(tol=1e-10)
    mode = fit_em(problem, None, tight)
    found = check_step(problem, mode.weight, mode.bias, own)
    copies, base = repeated(CASES[case]), CASES[case].likelihood
    density = base.log_density(found.after.latent, CASES[case].label)
    np.testing.assert_allclose(found.after.log_density, TIMES * density, rtol=1e-12)
    near = np.flatnonzero(found.doubt < 0.003)
    assert len(near) >= 10
    for row in near[::4]:
        rest, columns = np.flatnonzero(row != COPIES), np.flatnonzero(own != row)
        parts = {"Phi": copies.Phi[np.ix_(rest, columns)], "sign": copies.sign[columns]}
        refit = fit_em(replace(copies, label=copies.label[rest], **parts), None, tight)
        latent = (PHI[row, columns] @ refit.weight + refit.bias)[None]
        wanted = TIMES[row] * base.log_density(latent, CASES[case].label[[row]])[0]
        assert found.after.log_density[row] == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize("likelihood", [Normal(), StudentT()])
def test_a_number_of_weight_zero_does_not_count(likelihood):
    copies = np.repeat(np.arange(40), ONE_ZERO)
    found = fit_rvm(EvidenceProblem(PHI, NUMBER, likelihood, row_weight=ONE_ZERO))
    wanted = fit_rvm(EvidenceProblem(PHI[copies], NUMBER[copies], likelihood))
    assert found.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-6)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-3, atol=1e-3)
    assert found.noise == pytest.approx(wanted.noise, rel=1e-3)


def test_rows_with_weights_are_drawn_along_trajectories():
    counted = weighted(CASES["probit"])
    refused("'gibbs' does not take; use .*nuts", check_solver, counted, "gibbs")
    check_solver(replace(counted, sign=None), "hmc")


# --- models -------------------------------------------------------------------------------------

FIXED = {"width": 1.3, "basis": CENTRES, "hyperprior": pcvm.Hyperprior(1.0, 0.5, 1.0, 5.0)}


def model_of(rows=None, **given):
    """Return the model of the rows with weights, or of repeated rows."""
    if rows is None:
        return pcvm.rvm_model(X, NUMBER, sample_weight=TIMES, **FIXED | given)
    given = {name: value[rows] if np.ndim(value) else value for name, value in given.items()}
    return pcvm.rvm_model(X[rows], NUMBER[rows], **FIXED | given)


GIVEN = [{}, {"likelihood": "student-t"}, {"noise": 0.3}, {"noise": NOISE}]


@pytest.mark.parametrize("precision", ["marginal", "joint"])
@pytest.mark.parametrize("given", GIVEN)
def test_the_log_density_is_that_of_repeated_rows(given, precision):
    weighted, copies = (model_of(rows, precision=precision, **given) for rows in (None, COPIES))
    point = weighted.initial_point(0)
    for seed in range(2):
        at = {name: x + fixed_rng(seed).normal(size=np.shape(x)) for name, x in point.items()}
        assert weighted.compile_logp()(at) == pytest.approx(copies.compile_logp()(at), rel=1e-9)
    scales = [m["noise"].owner.inputs[-1].eval() for m in (weighted, copies) if not given]
    assert len(set(np.round(scales, 9))) == (not given)  # of the noise's prior


@pytest.mark.parametrize("given", [{}, {"noise": NOISE}])
def test_a_model_predicts_as_the_estimator(given, tmp_path):
    result = pcvm.fit_evidence(model_of(**given))
    stored = pcvm.load(pcvm.save(result, tmp_path / "result.nc"))
    fit = pcvm.RVMRegressor(width=1.3, basis=CENTRES, std="weights")
    fit.fit(X, NUMBER, sample_weight=TIMES, noise=given.get("noise"))
    mean, std = fit.predict(NEW, return_std=True)
    for tree in (result, stored):
        found = pcvm.predict(tree, NEW)["predictions"].isel(chain=0, draw=0)
        np.testing.assert_allclose(found["latent"], mean, rtol=1e-7)
        total = found["latent_sd"] ** 2 + found.get("noise", 0.0) ** 2
        np.testing.assert_allclose(np.sqrt(total), std, rtol=1e-7)
        star = pcvm.predict(tree, NEW, star=True)["predictions"]
        assert (star["latent_sd"] >= found["latent_sd"] - 1e-9).all()


def test_pieces_are_read_from_operations():
    with pm.Model() as by_hand:
        weight, bias = FreeWeight("w", 1.0, 0.5, shape=12), pcvm.MarginalBias("b", 1.0, 0.5)
        f = pm.math.dot(np.exp(-np.square(X[:, :1] - CENTRES[:, 0])), weight) + bias
        WeightedStudentT("z", 4.0, f, 0.3, TIMES, observed=NUMBER)
    assert find_parts(by_hand).likelihood.name == "student-t"
    problem = read(by_hand).problem_for("evidence")
    np.testing.assert_array_equal(problem.row_weight, TIMES)


KINDS = [(WeightedNormal, pm.Normal, (1.0,)), (WeightedStudentT, pm.StudentT, (4.0, 1.0))]


@pytest.mark.parametrize(("kind", "once", "numbers"), KINDS)
def test_draws_are_of_rows_that_count_once(kind, once, numbers):
    weighted, plain = kind.dist(*numbers, 0.5, weight=9.0), once.dist(*numbers, sigma=0.5)
    np.testing.assert_array_equal(*(pm.draw(x, 50, random_seed=1) for x in (weighted, plain)))
    assert pm.logp(weighted, 0.2).eval() == pytest.approx(9.0 * pm.logp(plain, 0.2).eval())


def test_new_rows_count_once_and_their_noise_is_unknown():
    model = model_of(noise=NOISE)
    with model:
        pm.set_data({"X": X + 0.1})  # as many: they keep what they have
        np.testing.assert_array_equal(model["noise_std"].get_value(), NOISE)
        pm.set_data({"X": NEW})
    np.testing.assert_array_equal(model["sample_weight"].get_value(), np.ones(7))
    assert np.isinf(model["noise_std"].get_value()).all()
    with model:
        pm.set_data({"noise_std": np.full(7, 0.2)})
        drawn = pm.sample_prior_predictive(5, var_names=["target"], random_seed=1)
    assert np.isfinite(drawn["prior_predictive"]["target"]).all()


@pytest.mark.slow
def test_nuts_draws_the_posterior_of_repeated_rows():
    how = {"draws": 500, "tune": 500, "chains": 4, "cores": 1, "random_seed": 1, "quiet": True}
    trees = [pcvm.sample(model_of(rows), **how) for rows in (None, COPIES)]
    latent = [pcvm.predict(tree, NEW)["predictions"]["latent"] for tree in trees]
    mean, sd = ([x.reduce(f, ("chain", "draw")) for x in latent] for f in (np.mean, np.std))
    assert (np.abs(mean[0] - mean[1]) / sd[1]).max() < 0.3
    density = trees[0]["log_likelihood"]["target"]
    assert density.sizes["obs"] == 40


VECTOR = pm.HalfNormal.dist(1, shape=40)
REFUSED = [
    ({"sample_weight": ONE_ZERO}, "value 0 in row 3; needed positive ones"),
    ({"sample_weight": TIMES[:3]}, r"sample_weight has shape \(3,\); needed \(40,\)"),
    ({"noise": -NOISE}, "noise has the value -.* in row 0; needed positive and finite"),
    ({"noise": NOISE, "likelihood": Normal(0.3)}, "likelihood that has its own"),
    ({"noise": NOISE, "likelihood": "student-t"}, "noise was given for each row.*'student-t'"),
    ({"noise": 1e-100}, "noise has the value 1e-100; needed .* to .*the spread of y"),
    ({"noise": 1e200 * NOISE}, "noise has the value .* in row 0; needed .* to .*the spread of y"),
    ({"noise": VECTOR}, "noise=.*without dimensions.*rvm_latent.*sample"),
    ({"noise": NOISE * pm.HalfNormal.dist(1)}, "noise=.*without dimensions"),
    ({"likelihood": StudentT(0.3, VECTOR)}, "degrees=.*without dimensions"),
    ({"likelihood": StudentT(1e-100, 4.0)}, "noise has the value 1e-100; needed"),
    ({"sample_weight": TIMES, "likelihood": "logit"}, "sample_weight was given .*'logit'"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_cannot_be_taken_is_refused(given, words):
    label = NUMBER > 5.0 if given.get("likelihood") == "logit" else NUMBER
    refused(words, pcvm.rvm_model, X, label, width=1.3, **given)


@pytest.mark.parametrize("given", [{"sample_weight": TIMES}, {"noise": NOISE}])
def test_leave_one_out_refuses_what_it_does_not_take(given):
    result = pcvm.fit_evidence(pcvm.rvm_model(X, NUMBER, **FIXED | given))
    names = "|".join(OF_ROWS)
    refused(f"the model has ({names}), which leave-one-out does not take", pcvm.loo, result)
