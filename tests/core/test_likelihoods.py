"""What likelihoods of numbers say of a target's spread."""

import numpy as np
import pytest
from scipy import stats

from pcvm_pymc.core.pieces.likelihoods import Normal, StudentT


@pytest.mark.parametrize("degrees", [2.1, 4.0, 30.0])
def test_the_variance_of_a_target_is_its_laws(degrees):
    assert Normal(0.3).variance == pytest.approx(0.09)
    wanted = stats.t(degrees, scale=0.3).var()
    assert StudentT(0.3, degrees).variance == pytest.approx(wanted)


@pytest.mark.parametrize("degrees", [2.0, 0.7])
def test_a_students_variance_is_infinite_up_to_two_degrees(degrees):
    assert StudentT(0.3, degrees).variance == np.inf
