"""Models of a regression with weights of rows and with known noise of rows."""

import numpy as np
import pymc as pm
import pytest
from problems import fixed_rng, refused

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.likelihoods import Normal, StudentT
from pcvm_pymc.core.pieces.row_weights import Weighted
from pcvm_pymc.model.data import OF_ROWS
from pcvm_pymc.model.distributions import FreeWeight
from pcvm_pymc.model.parts import find_parts
from pcvm_pymc.model.read import read
from pcvm_pymc.model.weighted import WeightedNormal, WeightedStudentT

X = fixed_rng(1).uniform(-3.0, 3.0, size=(30, 2))
Y = np.sin(X[:, 0]) + 0.3 * fixed_rng(2).normal(size=30) + 3.0
NOISE = fixed_rng(3).uniform(0.1, 0.5, size=30)
TIMES = fixed_rng(4).integers(1, 4, size=30)
COPIES = np.repeat(np.arange(30), TIMES)
NEW = fixed_rng(5).uniform(-4.0, 4.0, size=(7, 2))
FIXED = {"width": 1.3, "basis": X[:12], "hyperprior": pcvm.Hyperprior(1.0, 0.5, 1.0, 5.0)}


def model_of(rows=None, **given):
    """Return the model of the rows with weights, or of repeated rows."""
    if rows is None:
        return pcvm.rvm_model(X, Y, sample_weight=TIMES, **FIXED | given)
    given = {name: each[rows] if np.ndim(each) else each for name, each in given.items()}
    return pcvm.rvm_model(X[rows], Y[rows], **FIXED | given)


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
    pcvm.save(result, tmp_path / "result.nc")
    stored = pcvm.load(tmp_path / "result.nc")
    fit = pcvm.RVMRegressor(width=1.3, basis=X[:12], std="weights")
    fit.fit(X, Y, sample_weight=TIMES, noise=given.get("noise"))
    mean, std = fit.predict(NEW, return_std=True)
    for each in (result, stored):
        found = pcvm.predict(each, NEW)["predictions"].isel(chain=0, draw=0)
        np.testing.assert_allclose(found["latent"], mean, rtol=1e-7)
        total = found["latent_sd"] ** 2 + found.get("noise", 0.0) ** 2
        np.testing.assert_allclose(np.sqrt(total), std, rtol=1e-7)
        star = pcvm.predict(each, NEW, star=True)["predictions"]
        assert (star["latent_sd"] >= found["latent_sd"] - 1e-9).all()


def test_pieces_are_read_from_operations():
    with pm.Model() as by_hand:
        weight, bias = FreeWeight("w", 1.0, 0.5, shape=12), pcvm.MarginalBias("b", 1.0, 0.5)
        f = pm.math.dot(np.exp(-np.square(X[:, :1] - X[:12, 0])), weight) + bias
        WeightedStudentT("z", 4.0, f, 0.3, TIMES, observed=Y)
    assert find_parts(by_hand).likelihood.name == "student-t"
    problem = read(by_hand).problem_for("evidence")
    assert isinstance(problem.likelihood, Weighted)
    np.testing.assert_array_equal(problem.row_weight, TIMES)


def test_draws_are_of_rows_that_count_once():
    for weighted, plain in (
        (WeightedNormal.dist(1.0, 0.5, weight=9.0), pm.Normal.dist(1.0, 0.5)),
        (
            WeightedStudentT.dist(4.0, 1.0, 0.5, weight=9.0),
            pm.StudentT.dist(4.0, mu=1.0, sigma=0.5),
        ),
    ):
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
    latent = [pcvm.predict(each, NEW)["predictions"]["latent"] for each in trees]
    mean, sd = ([x.reduce(f, ("chain", "draw")) for x in latent] for f in (np.mean, np.std))
    assert (np.abs(mean[0] - mean[1]) / sd[1]).max() < 0.3
    density = trees[0]["log_likelihood"]["target"]
    assert density.sizes["obs"] == 30


VECTOR = pm.HalfNormal.dist(1, shape=30)
REFUSED = [
    ({"sample_weight": TIMES * (np.arange(30) != 3)}, "value 0 in row 3; needed positive ones"),
    ({"sample_weight": TIMES[:3]}, r"sample_weight has shape \(3,\); needed \(30,\)"),
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
    label = Y > 3.0 if given.get("likelihood") == "logit" else Y
    refused(words, pcvm.rvm_model, X, label, width=1.3, **given)


@pytest.mark.parametrize("given", [{"sample_weight": TIMES}, {"noise": NOISE}])
def test_leave_one_out_refuses_what_it_does_not_take(given):
    result = pcvm.fit_evidence(pcvm.rvm_model(X, Y, **FIXED | given))
    names = "|".join(OF_ROWS)
    refused(f"the model has ({names}), which leave-one-out does not take", pcvm.loo, result)
