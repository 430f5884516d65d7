"""Relevance vector machines whose bases are drawn at random."""

import numpy as np
import pytest

from pcvm_pymc import Status
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.experiments.replicas.chmielewski2019_random import (
    RandomRVMClassifier,
    RandomRVMRegressor,
    fit_random,
)


def sinc(n=100):
    x = np.linspace(-10, 10, n)[:, None]
    return x, np.sinc(x[:, 0] / np.pi) + 0.1 * np.random.default_rng(0).normal(size=n)


def test_a_random_choice_of_the_basis_is_seeded_and_gains_less_a_step():
    x, target = sinc()
    problem = EvidenceProblem(design_matrix("rbf", x, x, 2.0), target)
    best = fit_rvm(problem)
    fits = [fit_random(problem, random_state=seed) for seed in (0, 0, 1)]
    assert all(fit.converged for fit in fits)  # where no single change gains
    np.testing.assert_array_equal(fits[0].weight, fits[1].weight)
    assert fits[0].trace.log_evidence[1] != fits[2].trace.log_evidence[1]
    for n in (1, 3, 10):
        assert max(fit.trace.log_evidence[n] for fit in fits) < best.trace.log_evidence[n]
    for fit in fits:
        assert fit.log_evidence == pytest.approx(best.log_evidence, abs=5.0)


def test_labels_end_at_the_best_state_and_limits_are_kept():
    x, target = sinc()
    problem = EvidenceProblem(design_matrix("rbf", x, x, 2.0), np.sign(target), "logit")
    fit = fit_random(problem, random_state=0)
    assert fit.log_evidence >= fit.trace.log_evidence.max() - 1e-6
    assert fit.log_evidence == pytest.approx(fit_rvm(problem).log_evidence, abs=3.0)
    short = fit_random(problem, EvidenceOptions(max_iter=2), random_state=0)
    assert (short.status, short.n_iter) == (Status.ITERATION_LIMIT, 2)


def test_estimators_draw():
    x, target = sinc()
    model = RandomRVMRegressor(width=2.0, random_state=0).fit(x, target)
    assert model.score(x, target) > 0.8
    other = RandomRVMRegressor(width=2.0, random_state=1).fit(x, target)
    assert model.n_iter_ != other.n_iter_
    label = np.where(target > 0.1, "high", "low")
    assert RandomRVMClassifier(width=2.0, random_state=0).fit(x, label).score(x, label) > 0.8


def test_methods_that_have_moved_are_named():
    with pytest.raises(ValueError, match=r"is now .*chmielewski2019_random"):
        fit_rvm(EvidenceProblem(np.ones((3, 1)), np.ones(3)), method="random")
