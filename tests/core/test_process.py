"""The posterior of a Gaussian process against closed forms, given its ratio and integrated over noise."""

from dataclasses import replace

import numpy as np
import pytest
from calibration import assert_normal
from problems import fixed_rng
from scipy.linalg import cholesky, null_space, solve_triangular
from scipy.stats import multivariate_t

from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.process import NOISE_RATE, NOISE_SHAPE, RATIOS, ProcessPosterior

KERNEL = RBF(1.2)
X = fixed_rng(3).normal(size=(14, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + 2.0
GRAM, ONES = KERNEL(X, X), np.ones((14, 1))
LOG_PRIOR = np.log(np.sqrt(RATIOS / 9.0) / (1.0 + RATIOS / 9.0))


def test_the_density_of_a_ratio_is_the_student_t_of_contrasts():
    """Without the mean, which a flat prior of the bias leaves out; the noise is integrated out."""
    found = ProcessPosterior.of(GRAM, GRAM, Y, np.nan)
    contrasts, expected = null_space(ONES.T), []
    for ratio, log_prior in zip(RATIOS, LOG_PRIOR, strict=True):
        covariance = contrasts.T @ (np.eye(14) + ratio * GRAM) @ contrasts
        of_unit = NOISE_RATE / NOISE_SHAPE * covariance
        law = multivariate_t(np.zeros(13), of_unit, df=2.0 * NOISE_SHAPE)
        expected.append(law.logpdf(contrasts.T @ Y) + log_prior)
    np.testing.assert_allclose(np.ptp(found.log_density - expected), 0.0, atol=1e-6)


@pytest.mark.parametrize("k", [20, 50, 90])
def test_draws_given_a_ratio_are_those_of_kriging(k):
    """Rasmussen & Williams (2006), eqs. 2.41 and 2.42, of one flat basis; noise .3."""
    one = np.where(np.arange(len(RATIOS)) == k, 0.0, -np.inf)
    process = replace(ProcessPosterior.of(GRAM, GRAM, Y, 0.3), log_density=one)
    weight, bias, amplitude, noise = process.draws(4000, np.random.default_rng(1))
    np.testing.assert_allclose(amplitude, 0.09 * RATIOS[k])
    np.testing.assert_allclose(noise, 0.3)
    new = np.linspace(-1.0, 1.0, 5)[:, None] * [1.0, -0.5]
    cross, solved = KERNEL(new, X), np.linalg.inv(0.09 * (np.eye(14) + RATIOS[k] * GRAM))
    of_bias = 1.0 / solved.sum()
    middle = of_bias * (solved @ Y).sum()
    slope = amplitude[0] * cross @ solved
    mean = middle + slope @ (Y - middle)
    part = (1.0 - slope @ ONES) * np.sqrt(of_bias)
    covariance = amplitude[0] * (KERNEL(new, new) - slope @ cross.T) + part @ part.T
    # what is left over away from the rows is not in the weights
    inverse = np.linalg.inv(GRAM)
    left_over = KERNEL(new, new) - cross @ inverse @ cross.T
    drawn = weight @ cross.T + bias[:, None] - mean
    root = cholesky(covariance - amplitude[0] * left_over, lower=True)
    assert_normal(solve_triangular(root, drawn.T, lower=True).ravel())
    share = 1.0 - np.square(cross @ process.root).sum(axis=1)
    np.testing.assert_allclose(share, np.diag(left_over), rtol=1e-5)


@pytest.mark.parametrize("noise", [0.3, np.nan])
def test_rows_that_count_are_repeated_rows(noise):
    times = np.arange(14) % 3 + 1
    found = ProcessPosterior.of(GRAM, GRAM, Y, noise, times)
    rows = np.repeat(np.arange(14), times)
    copies = ProcessPosterior.of(GRAM[rows], GRAM, Y[rows], noise)
    np.testing.assert_allclose(found.log_density, copies.log_density, rtol=1e-7)
    np.testing.assert_allclose(found.eigenvalues, copies.eigenvalues, atol=1e-8)
    assert found.shape == copies.shape
