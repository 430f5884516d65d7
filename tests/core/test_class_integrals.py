"""The compiled normal distribution: log Phi, phi / Phi and what is left of it far below zero."""

import numpy as np
import pytest
from scipy.special import log_ndtr

from pcvm_pymc.core.pieces.class_integrals import gap_of, log_fall, log_ndtr_and_mills
from pcvm_pymc.core.pieces.probit import inverse_mills


def test_log_ndtr_and_its_slope():
    x = np.concatenate([np.linspace(-100, 40, 3001), [-30.0, 0.0, -1e-300, -500.0]])
    log_phi, mills = np.array([log_ndtr_and_mills(each) for each in x]).T
    np.testing.assert_allclose(log_phi, log_ndtr(x), rtol=2e-13, atol=1e-18)
    np.testing.assert_allclose(mills, inverse_mills(x), rtol=2e-12, atol=1e-15)


@pytest.mark.parametrize("x", [-99.0, -101.0, -150.0, -1e4])
def test_the_gap_is_laplaces_continued_fraction(x):
    wanted = -x
    for k in range(40, 1, -1):
        wanted = -x + k / wanted
    rtol = 1e-9 if x > -100.0 else 1e-14  # up to there it is a difference
    assert gap_of(x, float(inverse_mills(x))) == pytest.approx(1.0 / wanted, rel=rtol)


@pytest.mark.parametrize("margin", [[-3.0, 1.0], [-40.0, 0.5, -13.0], [-60.0, -61.0]], ids=str)
@pytest.mark.parametrize("offset", [-0.7, 0.0, 1.3])
def test_the_fall_of_the_integrand_from_its_mode(offset, margin):
    margin, mode = np.array(margin), 1.5
    mills = np.empty(len(margin))
    at = mode + offset
    found = log_fall(mode, offset, margin, mills)
    wanted = 0.5 * (mode**2 - at**2) + (log_ndtr(at + margin) - log_ndtr(mode + margin)).sum()
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    np.testing.assert_allclose(mills, inverse_mills(at + margin), rtol=2e-12)
