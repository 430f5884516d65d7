"""The search from the bottom up by several changes under the same responses, which run ahead."""

import numpy as np
import pytest
from test_mpcvm import classes

from pcvm_pymc.core.evidence.bottom_up import BottomUpOptions, Search, fit_bottom_up
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihood import Weighted, weighted_target
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem, Status


def problem(n=90, n_classes=3, *, seed=0, width=2.0):
    X, label = classes(n, n_classes, seed)
    given_ = rbf(squared_distances(X, X), width), label, None, Hyperprior.jeffreys()
    return Problem(*given_, MultinomialProbit(n_classes), bias="none", shared=True)


def test_momentum_ends_where_em_ends():
    """At precisions that rest, the weights are the mode: their slope is zero."""
    known = problem()
    options = BottomUpOptions(tol=1e-7, momentum=0.8, max_iter=20_000)
    result = fit_bottom_up(known, None, options)
    assert result.status is Status.CONVERGED
    slope = known.likelihood.terms(result.latent, known.label).slope
    search = Search(known, None, options)
    for _ in range(result.n_iter):
        search.step()
    kept = search.machines[0]
    left = known.Phi.T @ slope
    np.testing.assert_allclose(
        left[kept.index], kept.alpha[:, None] * search.weight[kept.index], atol=1e-3
    )


def test_momentum_takes_fewer_epochs():
    known = problem()
    plain, ahead = (
        fit_bottom_up(known, None, BottomUpOptions(momentum=share, tol=1e-3, max_iter=20_000))
        for share in (0.0, 0.8)
    )
    assert plain.status is ahead.status is Status.CONVERGED
    assert ahead.n_iter < 0.8 * plain.n_iter


def test_a_rough_search_tells_its_end_exactly():
    known = problem()
    result = fit_bottom_up(known, None, BottomUpOptions.quick())
    np.testing.assert_allclose(result.latent, known.Phi @ result.weight, atol=1e-12)
    exact = fit_bottom_up(known, None, BottomUpOptions(most=2, momentum=0.8))
    np.testing.assert_allclose(result.log_posterior, exact.log_posterior, atol=0.05)
    assert result.trace.log_posterior[-1] == result.log_posterior


def test_a_quick_search_is_as_good_as_the_papers():
    gain = []
    for seed in range(4):
        known = problem(seed=seed)
        quick, paper = (
            fit_bottom_up(known, None, options)
            for options in (BottomUpOptions.quick(), BottomUpOptions())
        )
        gain.append(quick.log_posterior - paper.log_posterior)
    assert np.mean(gain) > 0.0


@pytest.mark.parametrize("n_classes", [2, 3, 8])
def test_rough_terms_have_three_digits(n_classes):
    rng = np.random.default_rng(n_classes)
    latent = 4.0 * rng.normal(size=(500, n_classes))
    label = rng.integers(n_classes, size=500)
    piece = MultinomialProbit(n_classes)
    rough, exact = piece.terms(latent, label, rough=True), piece.terms(latent, label)
    np.testing.assert_allclose(rough.slope, exact.slope, atol=1e-3)
    assert abs(rough.log_likelihood - exact.log_likelihood) < 1e-3 * 500
    assert np.abs(rough.slope - exact.slope).max() > 1e-9  # it is another rule
    assert np.abs(class_terms(latent, label, accuracy=1e-3).score - exact.slope).max() < 1e-3


def test_rough_terms_of_weighted_rows_are_those_of_repeated_rows():
    rng = np.random.default_rng(0)
    latent, label = rng.normal(size=(40, 3)), rng.integers(3, size=40)
    count = rng.integers(1, 4, size=40)
    piece = MultinomialProbit(3)
    weighted = Weighted(piece).terms(
        latent, weighted_target(label, count.astype(float)), rough=True
    )
    repeated = piece.terms(np.repeat(latent, count, axis=0), np.repeat(label, count), rough=True)
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-2)
    np.testing.assert_allclose(weighted.slope.sum(axis=0), repeated.slope.sum(axis=0))
