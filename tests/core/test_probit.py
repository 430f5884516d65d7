"""The probit by high precision, and the variances of the other likelihoods' targets."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import mp_log_ndtr, mp_mills
from scipy import stats

from pcvm_pymc.core.pieces.likelihoods import Normal, StudentT
from pcvm_pymc.core.pieces.probit import curvature, density, inverse_mills, log_ndtr

GRID = np.concatenate([np.linspace(-100, 100, 81), [-1e3, -1.0, 0.0, 1e-8, -1e-8, 5.0, -37.6]])


@pytest.mark.parametrize(("ours", "exact"), [(log_ndtr, mp_log_ndtr), (inverse_mills, mp_mills)])
def test_high_precision(ours, exact):
    # beyond 37 the true value is below the smallest normal number
    wanted = np.array([float(exact(x)) for x in GRID])
    np.testing.assert_allclose(ours(GRID), wanted, rtol=1e-12, atol=1e-300)


@given(st.floats(-30, 30), st.sampled_from([-1.0, 1.0]))
def test_curvature_is_minus_the_second_derivative(latent, label):
    x = label * latent
    with mpmath.workdps(40):
        mills = mp_mills(x)
        wanted = float(mills * (mills + mpmath.mpf(x)))
    # lambda (lambda + x) cancels by about x^2 units in the last place
    assert curvature(np.array([latent]), np.array([label]))[0] == pytest.approx(wanted, abs=1e-12)


def test_curvature_stays_in_the_unit_interval():
    values = curvature(np.linspace(-1e4, 1e4, 2001), np.array([[-1.0], [1.0]]))
    assert values.min() >= 0
    assert values.max() <= 1


@pytest.mark.parametrize("degrees", [0.7, 2.0, 2.1, 4.0, 30.0])
def test_the_variance_of_a_target_is_its_laws(degrees):
    assert Normal(0.3).variance == pytest.approx(0.09)
    wanted = stats.t(degrees, scale=0.3).var() if degrees > 2 else np.inf
    likelihood, law = StudentT(0.3, degrees), stats.t(degrees, scale=0.3)
    assert likelihood.variance == pytest.approx(wanted)
    assert likelihood.curvature(np.zeros(1), np.zeros(1)) == pytest.approx(likelihood.bound)
    at, h = np.linspace(-3.0, 3.0, 7), 1e-5
    np.testing.assert_allclose(likelihood.log_density(at, 0.0 * at), law.logpdf(at), rtol=1e-12)
    slope = (law.logpdf(at + h) - law.logpdf(at - h)) / (2 * h)
    np.testing.assert_allclose(likelihood.score(at, 0.0 * at), slope, atol=1e-8)
    np.testing.assert_allclose(density(at), stats.norm.pdf(at), rtol=1e-12)
