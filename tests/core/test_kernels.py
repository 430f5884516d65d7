import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcvm_pymc.core.design import latent_in_blocks
from pcvm_pymc.core.pieces.kernels import RBF, FunctionKernel, PerCentre

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 3))
def test_widths_of_each_centre_are_machines_of_one_width_added_up(seed, n_scores):
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(9, 3)), rng.normal(size=(6, 3))
    width = rng.choice([0.5, 1.0, 2.5], 6)
    weight = rng.normal(size=(6, n_scores))
    kernel = PerCentre(RBF(), width)
    alone = sum(RBF(w)(X, centres[width == w]) @ weight[width == w] for w in np.unique(width))
    np.testing.assert_allclose(kernel(X, centres) @ weight, alone, atol=1e-12)
    latent = latent_in_blocks(X, centres, weight, np.zeros(n_scores), kernel=kernel)
    np.testing.assert_allclose(latent, alone, atol=1e-12)


@given(SEEDS)
def test_a_width_for_each_feature_of_each_centre(seed):
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    width = rng.uniform(0.5, 2, size=(4, 2))
    Phi = PerCentre(RBF(), width)(X, centres)
    for j in range(4):
        np.testing.assert_allclose(Phi[:, [j]], RBF(width[j])(X, centres[[j]]), atol=1e-14)


def test_other_kernels_and_other_widths():
    X, centres = np.arange(6.0).reshape(3, 2), np.ones((2, 2))
    kernel = FunctionKernel(lambda X, Z, width: width * (X @ Z.T), 1.0)
    Phi = PerCentre(kernel, np.array([1.0, 3.0]))(X, centres)
    np.testing.assert_array_equal(Phi, (X @ centres.T) * [1.0, 3.0])
    wider = PerCentre(RBF(), np.ones(2)).with_width(np.array([2.0, 2.0]))
    np.testing.assert_array_equal(wider(X, centres), RBF(2.0)(X, centres))
    with pytest.raises(ValueError, match="width has 3 values; needed 2, one for each centre"):
        PerCentre(RBF(), np.ones(3))(X, centres)
