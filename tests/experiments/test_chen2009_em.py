"""The authors' EM of Chen et al. (2009), and the starts that they choose among."""

from dataclasses import replace

import numpy as np
import pytest
from problems import IMPROPER, blobs, problem

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import response_mean
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import score
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.experiments.replicas import starts
from pcvm_pymc.experiments.replicas.chen2009_em import AuthorsPCVM, clipped_em


def several(n_obs, prior, *, seed, width):
    """Return a problem of three classes around a circle."""
    rng, label = np.random.default_rng(seed), np.arange(n_obs) % 3
    angle = 2 * np.pi * label / 3
    X = 1.5 * np.column_stack([np.cos(angle), np.sin(angle)]) + rng.normal(size=(n_obs, 2))
    Phi = rbf(squared_distances(X, X), width)
    return Problem(Phi, label, class_signs(label, 3), prior, MultinomialProbit(3))


def test_weights_and_bias_in_turn_are_eqs_11_and_12():
    X, label = blobs(6, seed=4, gap=8.0)
    prior = Hyperprior(1.0, 0.5, 1.0, 0.5)
    prob = problem(X, label, prior, width=1.0)
    start = Start(0.3 * label, 0.1)
    found = clipped_em(prob, start, max_iter=1)
    latent = prob.Phi @ start.weight + start.bias
    response = latent + score(latent, label)
    A = np.diag(prior.weight_precision(start.weight))
    weight = np.linalg.solve(prob.Phi.T @ prob.Phi + A, prob.Phi.T @ (response - start.bias))
    assert (weight * label > 0).all()
    bias = (response - prob.Phi @ weight).sum() / (prior.bias_precision(0.1) + 6)
    np.testing.assert_allclose(found.weight, weight, rtol=1e-9)
    assert found.bias == pytest.approx(bias)


def test_the_authors_program_clips_and_drops():
    X, label = blobs(80, seed=10)
    prob = problem(X, label, Hyperprior.chen2009())
    start = starts.authors_start(prob, np.random.default_rng(0))
    assert (start.response * label > -1).all()
    result = clipped_em(prob, start)
    kept = result.weight != 0
    assert 0 < kept.sum() < 40
    assert (result.weight[kept] * label[kept] > 1e-3).all()
    assert np.mean(np.sign(result.latent) == label) > 0.7
    with pytest.raises(ValueError, match="free weights; clipped_em is for signed ones"):
        clipped_em(replace(prob, sign=None), start)


@pytest.mark.parametrize("prior", sorted(IMPROPER))
def test_a_bias_next_to_zero_becomes_zero_where_the_prior_has_a_pole(prior):
    X, label = blobs(30, seed=9)
    prob = problem(X, label, IMPROPER[prior])
    assert clipped_em(prob, Start(0.5 * label, 1e-7), max_iter=1).bias == 0.0
    proper = problem(X, label, Hyperprior.plug_in())
    assert abs(clipped_em(proper, Start(0.5 * label, 1e-7), max_iter=1).bias) > 1e-3


def test_clipping_ends_below_the_maximum():
    """Wrong-signed weights of an unconstrained solve are set to zero: not a maximum of anything."""
    given_ = several(60, Hyperprior.plug_in(), seed=2, width=2.0)
    clipped = clipped_em(given_, Start.default(given_))
    assert (clipped.weight * given_.sign >= 0).all()
    exact = fit_em(given_)
    assert exact.log_posterior > clipped.log_posterior + 0.1


@pytest.mark.parametrize("hyperprior", ["jeffreys", "heavy"])
def test_the_step_of_several_scores_by_hand(hyperprior):
    """Lyu et al. (2020) eqs. 28-29: weights at the old bias, wrong ones dropped, then the bias.

    With s^2 the reciprocal of the bias' expected precision it is ``s^2 1'(z - Phi w) / (1 + N s^2)``.
    """
    prior = {"jeffreys": Hyperprior.jeffreys(), "heavy": Hyperprior(1.0, 0.01, 0.5, 1.0)}[
        hyperprior
    ]
    given_ = several(24, prior, seed=6, width=1.0)
    rng = np.random.default_rng(0)
    weight = given_.sign * rng.uniform(0.3, 1.2, given_.sign.shape)
    bias = np.array([0.7, -1.4, 0.2])
    latent = given_.Phi @ weight + bias
    found = clipped_em(given_, Start(weight, bias), max_iter=1)
    z = response_mean(latent, given_.label)
    for c in range(3):
        precision = prior.weight_precision(weight[:, c])
        matrix = given_.Phi.T @ given_.Phi + np.diag(precision)
        wanted = np.linalg.solve(matrix, given_.Phi.T @ (z[:, c] - bias[c]))
        wanted[(wanted * given_.sign[:, c] < 0) | (np.abs(wanted) <= 1e-3)] = 0.0
        np.testing.assert_allclose(found.weight[:, c], wanted, atol=1e-9)
        assert (wanted != 0).any()
        square = 1.0 / prior.bias_precision(float(bias[c]))
        left = (z[:, c] - given_.Phi @ wanted).sum()
        assert found.bias[c] == pytest.approx(square * left / (1 + 24 * square), rel=1e-9)
    if hyperprior == "jeffreys":
        assert prior.bias_precision(0.7) == pytest.approx(0.7**-2)


def test_a_relevance_start_has_the_right_signs():
    X, label = blobs(40, seed=12)
    prob = problem(X, label, Hyperprior.jeffreys())
    start = starts.relevance_start(prob, np.random.default_rng(0))
    assert (start.weight * label > 0).all()
    assert (np.abs(start.weight) > 0.1).any()


def test_the_same_seed_gives_the_same_start():
    X, label = blobs(20, seed=13)
    prob = problem(X, label, Hyperprior.jeffreys())
    first, second, other = (starts.random_start(prob, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.weight, second.weight)
    assert first.bias == second.bias
    assert (first.weight != other.weight).any()


def test_the_best_of_several_starts_is_an_end_of_one_of_them():
    X, label = blobs(40, seed=3)
    prob = problem(X, label, Hyperprior.jeffreys())
    options = EMOptions(max_iter=500)
    found = starts.best_of_starts(prob, 4, options, np.random.default_rng(0), cv=3)
    seeds = np.random.default_rng(0).integers(2**31, size=4)
    ends = [
        fit_em(prob, recipe(prob, np.random.default_rng(seed)), options).log_posterior
        for recipe, seed in zip(starts.start_recipes(4), seeds, strict=True)
    ]
    assert found.log_posterior in ends


@pytest.mark.parametrize("kind", [AuthorsPCVM, starts.EightStartsPCVM])
def test_classifiers_of_the_authors(kind):
    X, label = blobs(60, seed=5)
    model = kind(width=1.5, hyperprior="chen2009", max_iter=3000, random_state=0).fit(X, label)
    assert model.status_ is Status.CONVERGED
    assert 0 < len(model.relevance_vectors_) < 30
    assert model.score(X, label) > 0.7
    again = kind(width=1.5, hyperprior="chen2009", max_iter=3000, random_state=0).fit(X, label)
    np.testing.assert_array_equal(again.weight_, model.weight_)
