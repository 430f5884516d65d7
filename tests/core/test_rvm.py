"""RVM* against the explicitly augmented model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc.core.evidence import (
    EvidenceProblem,
    augmentation,
    fit_rvm,
    posterior,
    predictive_moments,
    star_moments,
)
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.core.pieces.likelihoods import Logit, Normal


def noisy_cosine(n, seed=0, spread=(-4.0, 4.0)):
    rng = np.random.default_rng(seed)
    x = rng.uniform(*spread, (n, 1))
    return x, np.cos(x[:, 0]) + 0.15 * rng.normal(size=n)


@given(st.integers(0, 1000), st.booleans(), st.sampled_from(["rbf", "linear-spline"]))
@settings(max_examples=20)
def test_star_is_the_augmented_model(seed, bias, kernel):
    x, target = noisy_cosine(25, seed)
    x_new = np.array([[-9.0], [-1.0], [0.3], [3.9], [7.0]])
    Phi = design_matrix(kernel, x, x, 1.3)
    problem = EvidenceProblem(Phi, target, bias=bias)
    fit = fit_rvm(problem)
    new = design_matrix(kernel, x_new, x, 1.3)[:, fit.active]
    at_training = design_matrix(kernel, x, x_new, 1.3)
    at_itself = np.diag(design_matrix(kernel, x_new, x_new, 1.3))
    mean, variance = star_moments(new, at_training, at_itself, fit, augmentation(problem, fit))
    alpha = np.append(fit.alpha[fit.active], fit.bias_alpha)
    kept = np.isfinite(alpha)
    for i in range(len(x_new)):
        train = np.column_stack([Phi[:, fit.active], np.ones(25)])[:, kept]
        train = np.column_stack([train, at_training[:, i]])
        precision = np.append(alpha[kept], at_itself[i] ** 2 / np.var(target))
        end = posterior(train, precision, target, Normal(fit.noise))
        bases = np.append(np.append(new[i], 1.0)[kept], at_itself[i])
        # the spline's cubics cancel: at -9 terms of 1e4 leave a value of ten
        close = {"rbf": 1e-10, "linear-spline": 1e-8}[kernel]
        assert mean[i] == pytest.approx(bases @ end.mean, rel=close, abs=close)
        assert variance[i] == pytest.approx(bases @ end.covariance @ bases, rel=close, abs=close)


def test_targets_that_do_not_vary_leave_nothing_to_the_new_basis():
    x, _ = noisy_cosine(20)
    problem = EvidenceProblem(design_matrix("rbf", x, x, 1.5), np.zeros(20))
    fit = fit_rvm(problem)
    new, own = np.empty((1, 0)), design_matrix("rbf", x, x[:1], 1.5)
    assert len(fit.active) == 0
    mean, variance = star_moments(new, own, np.ones(1), fit, augmentation(problem, fit))
    assert mean[0] == 0
    assert variance[0] == 0


def test_star_covers_outside_the_data_and_loses_none_inside():
    """cos x observed on [-4, 4]: coverage of 95 % intervals of new targets on [-4, 4] and beyond."""
    inside_plain, inside_star, outside_plain, outside_star = [], [], [], []
    for seed in range(10):
        x, target = noisy_cosine(40, seed)
        x_new, target_new = noisy_cosine(600, 1000 + seed, spread=(-10.0, 10.0))
        problem = EvidenceProblem(design_matrix("rbf", x, x, 1.5), target)
        fit = fit_rvm(problem)
        new = design_matrix("rbf", x_new, x, 1.5)[:, fit.active]
        star = star_moments(
            new, design_matrix("rbf", x, x_new, 1.5), np.ones(600), fit, augmentation(problem, fit)
        )
        within = np.abs(x_new[:, 0]) <= 4
        for (mean, variance), inner, outer in (
            (predictive_moments(new, fit), inside_plain, outside_plain),
            (star, inside_star, outside_star),
        ):
            covered = np.abs(target_new - mean) <= 1.96 * np.sqrt(variance + fit.noise**2)
            inner.append(covered[within].mean())
            outer.append(covered[~within].mean())
    assert np.mean(outside_plain) < 0.4
    assert np.mean(outside_star) >= 0.75
    assert np.mean(inside_star) >= np.mean(inside_plain)


@pytest.mark.parametrize("seed", range(3))
def test_outliers_pull_a_student_t_machine_less(seed):
    rng = np.random.default_rng(seed)
    x = np.linspace(-8, 8, 80)[:, None]
    clean = np.sinc(x[:, 0] / np.pi)
    target = clean + 0.05 * rng.normal(size=80)
    target[rng.choice(80, 8, replace=False)] += rng.choice([-1.5, 1.5], 8)
    Phi = design_matrix("rbf", x, x, 2.0)
    error = {
        name: np.sqrt(np.mean((fit_rvm(EvidenceProblem(Phi, target, name)).latent - clean) ** 2))
        for name in ("normal", "student-t")
    }
    assert error["student-t"] < 0.6 * error["normal"]
    assert error["student-t"] < 0.1


class Unbounded(Logit):
    """A logit whose curvature is not known to be bounded, and which takes labels alone."""

    bound = np.inf

    @classmethod
    def check_targets(cls, target):
        if not np.isin(target, (-1.0, 1.0)).all():
            raise ValueError("needed labels")


@pytest.mark.parametrize("method", ["sequential", "batch"])
def test_a_likelihood_without_a_bound_of_its_curvature_has_the_same_evidence(method):
    x, target = noisy_cosine(40)
    Phi, label = design_matrix("rbf", x, x, 1.5), np.where(target > 0.2, 1.0, -1.0)
    bounded, other = (
        fit_rvm(EvidenceProblem(Phi, label, likelihood), method=method)
        for likelihood in (Logit(), Unbounded())
    )
    np.testing.assert_array_equal(other.active, bounded.active)
    assert other.log_evidence == pytest.approx(bounded.log_evidence, abs=1e-3)


def test_a_likelihood_refuses_targets_that_are_not_its_own():
    with pytest.raises(ValueError, match="needed labels"):
        EvidenceProblem(np.eye(2), np.array([0.0, 1.0]), Unbounded())
    with pytest.raises(TypeError, match="'logit' are classes; they have no mean"):
        Unbounded().target_moments(np.zeros(2), np.ones(2))
