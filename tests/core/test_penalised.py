"""Modes under an L1 penalty or given precisions: optimality conditions, SciPy's maxima, ridge solutions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import BIASES, SEEDS

from pcvm_pymc.core import penalised
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.nonnegative import ridge_solve
from pcvm_pymc.core.penalised import penalised_mode
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import median_distance, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal, Probit, StudentT
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem

LIKELIHOODS = [Probit(), Logit(), Normal(0.5), StudentT(0.3, 4.0), MultinomialProbit(3)]


def random_problem(likelihood, bias, signed, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 2))
    truth, several = X[:, 0] + 0.5 * rng.normal(size=30), likelihood.n_scores > 1
    label = np.where(truth > 0, 1.0, -1.0)
    if likelihood.targets != "labels":
        label = np.digitize(truth, [-0.5, 0.5]) if several else truth
    sign = None
    if signed and likelihood.targets != "numbers":
        sign = class_signs(label, 3) if several else label.copy()
    Phi = rbf(squared_distances(X, X), median_distance(X))
    gamma = float(np.exp(rng.uniform(-2.0, 2.0)))
    return Problem(Phi, label, sign, Laplace(gamma), likelihood, bias=bias)


@settings(max_examples=40)
@given(st.sampled_from(LIKELIHOODS), BIASES, st.booleans(), SEEDS)
def test_the_end_satisfies_the_optimality_conditions(likelihood, bias, signed, seed):
    whole = random_problem(likelihood, bias, signed, seed)
    start = np.zeros(whole.weight_shape)
    weight, offset, converged = penalised_mode(whole, start, np.zeros(whole.n_scores))
    assert converged
    C = whole.n_scores
    score = whole.likelihood.terms((whole.Phi @ weight + offset).reshape(-1, C), whole.label).slope
    slope = np.vstack([whole.Phi.T @ score, score.sum(axis=0)])
    value = np.vstack([weight.reshape(-1, C), np.reshape(offset, (1, C))])
    penalty = np.full(value.shape, whole.hyperprior.penalty)
    if bias != "prior":
        penalty[-1] = 0.0
    if bias == "none":
        assert (value[-1] == 0).all()
        slope[-1] = 0.0
    used = value != 0
    np.testing.assert_allclose(slope[used], (penalty * np.sign(value))[used], atol=1e-3)
    towards = np.abs(slope)
    if whole.is_signed:
        sign = whole.sign.reshape(-1, C)
        assert (value[:-1] * sign >= 0).all()
        towards[:-1] = slope[:-1] * sign
    assert (towards <= penalty + 1e-3)[~used].all()


@pytest.mark.parametrize("likelihood", LIKELIHOODS[:3], ids=lambda each: each.name)
def test_it_is_where_em_goes_to(likelihood, monkeypatch):
    whole = random_problem(likelihood, "prior", True, 3)
    found = fit_em(whole, None, EMOptions(tol=1e-8))
    weight, bias, converged = penalised_mode(whole, np.zeros(30), 0.0)
    assert converged
    np.testing.assert_allclose(whole.Phi @ weight + bias, found.latent, atol=1e-3)
    monkeypatch.setattr(penalised, "_MOST_STEPS", 3)
    assert not penalised_mode(whole, np.zeros(30), 0.0)[2]


@pytest.mark.parametrize("bias", ["free", "none"])
def test_given_precisions_are_a_ridge(bias):
    whole = replace(random_problem(Normal(0.5), bias, False, 1), hyperprior=Hyperprior.jeffreys())
    precision = np.exp(np.random.default_rng(0).normal(size=30))
    precision[::3] = np.inf
    known = np.isfinite(precision)  # from where the likelihood is highest
    start = known * np.linalg.lstsq(whole.Phi * known, whole.label)[0]
    weight, offset, converged = penalised_mode(whole, start, 0.0, precision=precision)
    bias_precision, four = 0.0 if bias == "free" else np.inf, np.full(30, 4.0)
    wanted = ridge_solve(whole.Phi, whole.label, precision, bias_precision, row_weight=four)
    assert converged
    np.testing.assert_allclose(weight, wanted[0], atol=1e-6)
    assert offset == pytest.approx(wanted[1], abs=1e-6)
    found = penalised._Penalised(whole, precision).objective(np.append(weight, offset)[:, None])
    expected = whole.likelihood.log_likelihood(whole.Phi @ weight + offset, whole.label)
    assert found == pytest.approx(expected - 0.5 * precision[known] @ weight[known] ** 2)
