"""The quadratic model of the log posterior at a mode."""

import numpy as np
import pytest

from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal
from pcvm_pymc.core.quadratic import QuadraticModel


@pytest.mark.parametrize(
    "likelihood", [Logit(), MultinomialProbit(2), MultinomialProbit(3)], ids=str
)
def test_covariance_of_latent_values_by_the_whole_matrix(likelihood):
    """H + diag(precision) over all scores' values, those of infinite precision left out."""
    rng, C = np.random.default_rng(5), likelihood.n_scores
    design, new = rng.normal(size=(20, 4)), rng.normal(size=(3, 4))
    target = rng.integers(C, size=20) if C > 1 else rng.choice([-1.0, 1.0], 20)
    theta, precision = rng.normal(size=(4, C)), rng.uniform(0.5, 3.0, (4, C))
    theta[1, 0], precision[1, 0] = 0.0, np.inf
    bias = rng.normal(size=C)
    latent = design @ theta + bias
    bend = likelihood.hessian(latent if C > 1 else latent[:, 0], target)
    # values score by score
    whole = np.einsum("na,ncd,nb->cadb", design, bend, design).reshape(4 * C, 4 * C)
    kept = np.flatnonzero(np.isfinite(precision.T.ravel()))
    matrix = whole[np.ix_(kept, kept)] + np.diag(precision.T.ravel()[kept])
    covariance = np.zeros_like(whole)
    covariance[np.ix_(kept, kept)] = np.linalg.inv(matrix)
    wanted = np.einsum("na,cadb,nb->ncd", new, covariance.reshape(C, 4, C, 4), new)
    parts = [(design[:8], target[:8]), (design[8:], target[8:])]
    given_ = {"precision": precision, "bias_precision": np.full(C, np.inf)}
    model = QuadraticModel.at(parts, likelihood, theta, bias, **given_)
    mean, found = model.latent(new)
    np.testing.assert_allclose(mean, new @ theta + bias)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)
    inverse = model.scale[:, None] * model.inverse * model.scale
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-9, atol=1e-14)


def test_a_matrix_that_is_singular_to_rounding_is_factored_all_the_same():
    ends = {"precision": np.full((2, 1), 1e-20), "bias_precision": np.full(1, np.inf)}
    parts = [(np.ones((4, 2)), np.zeros(4))]  # two columns that are one
    model = QuadraticModel.at(parts, Normal(1.0), np.zeros((2, 1)), np.zeros(1), **ends)
    factor = np.tril(model.factor)
    np.testing.assert_allclose(factor @ factor.T, 4e20, rtol=1e-7)
    assert np.diag(factor).min() > 0
