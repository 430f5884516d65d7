"""Replicas of the papers: the EM of Chen et al. (2009), random choices and printed algorithms."""

from dataclasses import replace

import numpy as np
import pytest
from problems import blobs, classes, papers_step, problem, refused, response_mean, sinc

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, fit_bottom_up, fit_rvm
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, as_kernel
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.experiments.datasets import overlap_classes
from pcvm_pymc.experiments.replicas import chmielewski2019_random as random
from pcvm_pymc.experiments.replicas import starts
from pcvm_pymc.experiments.replicas.chen2009_em import AuthorsPCVM, clipped_em
from pcvm_pymc.experiments.replicas.lyu2020_algorithm2 import fit_printed

# --- Chen et al. (2009): the authors' EM and its starts ------------------------------------------


def given_classes(X, label, prior, width, bias="prior"):
    """Return a problem of three classes with a basis at each row."""
    Phi, sign = RBF(width)(X, X), class_signs(label, 3)
    return Problem(Phi, label, sign, prior, MultinomialProbit(3), bias=bias)


def test_weights_and_bias_in_turn_are_eqs_11_and_12():
    prob, start, response = papers_step()
    found, prior = clipped_em(prob, start, max_iter=1), prob.hyperprior
    A = np.diag(prior.weight_precision(start.weight))
    weight = np.linalg.solve(prob.Phi.T @ prob.Phi + A, prob.Phi.T @ (response - start.bias))
    assert (weight * prob.label > 0).all()
    bias = (response - prob.Phi @ weight).sum() / (prior.bias_precision(0.1) + 6)
    np.testing.assert_allclose(found.weight, weight, rtol=1e-9)
    assert found.bias == pytest.approx(bias)


def test_the_authors_program_clips_and_drops():
    X, label = blobs(80, seed=10, fixed=True)
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


def test_clipping_ends_below_the_maximum():
    """Wrong-signed weights of an unconstrained solve are set to zero: not a maximum of anything."""
    given_ = given_classes(*classes(60, 3, 2), Hyperprior.plug_in(), 2.0)
    clipped = clipped_em(given_, Start.default(given_))
    assert (clipped.weight * given_.sign >= 0).all()
    assert fit_em(given_).log_posterior > clipped.log_posterior + 0.1


@pytest.mark.parametrize("prior", [Hyperprior.jeffreys(), Hyperprior(1.0, 0.01, 0.5, 1.0)], ids=str)
def test_the_step_of_several_scores_by_hand(prior):
    """Lyu et al. (2020) eqs. 28-29: weights at the old bias, wrong ones dropped, then the bias.

    With s^2 the reciprocal of the bias' expected precision it is ``s^2 1'(z - Phi w) / (1 + N s^2)``.
    """
    given_ = given_classes(*classes(24, 3, 6), prior, 1.0)
    weight = given_.sign * np.random.default_rng(0).uniform(0.3, 1.2, given_.sign.shape)
    bias = np.array([0.7, -1.4, 0.2])
    latent = given_.Phi @ weight + bias
    found = clipped_em(given_, Start(weight, bias), max_iter=1)
    z = response_mean(latent, given_.label)
    for c in range(3):
        matrix = given_.Phi.T @ given_.Phi + np.diag(prior.weight_precision(weight[:, c]))
        wanted = np.linalg.solve(matrix, given_.Phi.T @ (z[:, c] - bias[c]))
        wanted[(wanted * given_.sign[:, c] < 0) | (np.abs(wanted) <= 1e-3)] = 0.0
        np.testing.assert_allclose(found.weight[:, c], wanted, atol=1e-9)
        assert (wanted != 0).any()
        square = 1.0 / prior.bias_precision(float(bias[c]))
        left = (z[:, c] - given_.Phi @ wanted).sum()
        assert found.bias[c] == pytest.approx(square * left / (1 + 24 * square), rel=1e-9)


def test_a_relevance_start_has_the_right_signs():
    X, label = blobs(40, seed=12, fixed=True)
    prob = problem(X, label, Hyperprior.jeffreys())
    start = starts.relevance_start(prob, np.random.default_rng(0))
    assert (start.weight * label > 0).all()
    assert (np.abs(start.weight) > 0.1).any()


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
    X, label = blobs(60, seed=5, fixed=True)
    given = {"hyperprior": "chen2009", "options": EMOptions(max_iter=3000), "random_state": 0}
    model, again = (kind(width=1.5, **given).fit(X, label) for _ in range(2))
    assert model.status_ is Status.CONVERGED
    assert 0 < len(model.relevance_vectors_) < 30
    assert model.score(X, label) > 0.7
    np.testing.assert_array_equal(again.weight_, model.weight_)


# --- Lyu et al. (2020): Algorithm 2 as printed ---------------------------------------------------


def without_bias(X, label, width):
    return given_classes(X, label, Hyperprior.jeffreys(), width, "none")


def test_as_printed_the_first_basis_has_the_largest_excess_and_the_mean_is_clipped():
    given_ = without_bias(*classes(40, 3), 0.7)
    first = fit_printed(given_, max_iter=1)
    response = np.where(given_.label[:, None] == np.arange(3), 10.5, 0.5)
    excess = (given_.Phi.T @ response) ** 2 - (given_.Phi**2).sum(axis=0)[:, None]
    for c in range(3):
        # from an empty model s = phi' phi and q = phi' z (eqs. 37 and 38); of eq. 31 one entry is left
        n = excess[:, c].argmax()
        s = (given_.Phi[:, n] ** 2).sum()
        alpha = s**2 / excess[n, c]
        mean = given_.Phi[:, n] @ response[:, c] / (s + alpha)
        wanted = mean if mean * given_.sign[n, c] > 0 else 0.0
        assert first.weight[n, c] == pytest.approx(wanted)
        assert np.count_nonzero(first.weight[:, c]) == (wanted != 0.0)
    for n_epochs in (5, 30):
        assert (fit_printed(given_, max_iter=n_epochs).weight * given_.sign >= 0).all()


def test_as_printed_it_diverges_where_the_corrected_search_converges():
    given_ = without_bias(*overlap_classes(120, random_state=1), 4 * np.sqrt(2))
    found = fit_printed(given_)
    assert found.status is Status.DIVERGED
    assert not found.converged
    assert np.abs(found.latent).max() >= 1e3
    assert fit_bottom_up(given_).status is Status.CONVERGED


def test_as_printed_at_rest_no_change_is_left():
    given_ = without_bias(*classes(40, 3, 2, fixed=True), 1.0)
    found = fit_printed(given_)
    assert found.status is Status.CONVERGED
    np.testing.assert_array_equal(fit_printed(given_).weight, found.weight)
    # members are chosen at random
    assert fit_printed(given_, random_state=3).n_iter != found.n_iter
    refused("needs weights with signs", fit_printed, replace(given_, sign=None))


# --- Chmielewski et al. (2019): bases drawn at random --------------------------------------------


def test_a_random_choice_of_the_basis_is_seeded_and_gains_less_a_step():
    x, target = sinc()
    evidence_problem = EvidenceProblem(as_kernel("rbf", 2.0)(x, x), target)
    best = fit_rvm(evidence_problem)
    fits = [random.fit_random(evidence_problem, random_state=seed) for seed in (0, 0, 1)]
    assert all(fit.converged for fit in fits)  # where no single change gains
    np.testing.assert_array_equal(fits[0].weight, fits[1].weight)
    assert fits[0].trace.log_evidence[1] != fits[2].trace.log_evidence[1]
    for n in (1, 3, 10):
        assert max(fit.trace.log_evidence[n] for fit in fits) < best.trace.log_evidence[n]
    for fit in fits:
        assert fit.log_evidence == pytest.approx(best.log_evidence, abs=5.0)


def test_labels_end_at_the_best_state_and_limits_are_kept():
    x, target = sinc()
    evidence_problem = EvidenceProblem(as_kernel("rbf", 2.0)(x, x), np.sign(target), "logit")
    fit = random.fit_random(evidence_problem, random_state=0)
    assert fit.log_evidence >= fit.trace.log_evidence.max() - 1e-6
    assert fit.log_evidence == pytest.approx(fit_rvm(evidence_problem).log_evidence, abs=3.0)
    short = random.fit_random(evidence_problem, EvidenceOptions(max_iter=2), random_state=0)
    assert (short.status, short.n_iter) == (Status.ITERATION_LIMIT, 2)


def test_estimators_draw():
    x, target = sinc(noise=0.03)
    model = random.RandomRVMRegressor(width=2.0, random_state=0).fit(x, target)
    assert model.score(x, target) > 0.8
    other = random.RandomRVMRegressor(width=2.0, random_state=1).fit(x, target)
    assert model.n_iter_ != other.n_iter_
    label = np.where(target > 0.1, "high", "low")
    assert random.RandomRVMClassifier(width=2.0, random_state=0).fit(x, label).score(x, label) > 0.8
