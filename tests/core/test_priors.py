from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import refused
from scipy.integrate import quad
from scipy.stats import gamma, multivariate_t, norm
from scipy.stats import t as student

from pcvm_pymc.core.pieces import priors
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.priors import Hyperprior


@given(st.floats(0.3, 8), st.floats(0.05, 8), st.floats(0, 5))
def test_marginal_density_is_half_student(c, d, w):
    found = Hyperprior(c, d, 1, 1).log_weight_density(np.array([w]))[0]
    wanted = np.log(2) + student.logpdf(w, 2 * c, scale=np.sqrt(d / c))
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("c", "d", "w"), [(1.0, 1.0, 0.3), (5.0, 5.0, 1.2), (0.5, 0.1, 2.0)])
def test_marginal_density_and_expected_precision_by_quadrature(c, d, w):
    def weighted(alpha, power):
        return alpha**power * norm.pdf(w, 0, alpha**-0.5) * gamma.pdf(alpha, c, scale=1 / d)

    integral, first = (quad(weighted, 0, np.inf, args=(power,))[0] for power in (0, 1))
    prior, wanted = Hyperprior(c, d, c, d), first / integral
    # on a half-line twice that of the bias
    found = prior.log_weight_density(np.array([w]))[0]
    assert np.log(2 * integral) == pytest.approx(found, rel=1e-6)
    assert prior.log_bias_density(w) == pytest.approx(np.log(integral), rel=1e-6)
    assert prior.weight_precision(np.array([w]))[0] == pytest.approx(wanted, rel=1e-6)
    assert prior.bias_precision(w) == pytest.approx(wanted, rel=1e-6)


@given(st.floats(0.5, 5.0), st.floats(0.01, 9.0), st.floats(-20.0, 20.0))
def test_the_bend_is_the_second_derivative_in_units_of_the_expected_precision(c, d, w):
    prior, step = Hyperprior(c, d, c, d), 1e-4 * np.sqrt(d)
    at = w + step * np.array([-1.0, 0.0, 1.0])
    unit, bend = prior.weight_precision(at), prior.weight_curvature_ratio(at)
    second = (at[2] * unit[2] - at[0] * unit[0]) / (2 * step)
    assert bend[1] * unit[1] == pytest.approx(second, abs=1e-5 * unit[1])
    assert (prior.bias_curvature_ratio(at) == bend).all()
    # of a bias of zero under a scale-free prior
    of_bias = Hyperprior(1.0, 1.0, 0.0, 0.0).bias_curvature_ratio
    assert of_bias(np.array([0.0, 1.0])).tolist() == [1.0, -1.0]


def test_papers_priors():
    w = np.array([0.1, 2.0])
    # chen2009, appendix C: 1 / (2 w^2) belongs to |w|^(-1/2)
    for prior, share in ((Hyperprior.jeffreys(), 1.0), (Hyperprior.chen2009(), 0.5)):
        for precision in (prior.weight_precision(w), prior.bias_precision(w)):
            np.testing.assert_allclose(precision, share / w**2)
        np.testing.assert_allclose(prior.log_weight_density(w), -share * np.log(w))
        assert not prior.is_proper
    assert Hyperprior.plug_in().is_proper
    assert Hyperprior.plug_in() == Hyperprior(5.0, 5.0, 1.0, 1.0)
    assert priors.Laplace(2.0).is_proper
    Phi = np.random.default_rng(0).normal(size=(6, 4))
    assert priors.named_prior("student", Phi) == Hyperprior.default(Phi, None)
    assert Hyperprior.default(np.ones((6, 6)), np.array([1.0, -1, 1, -1, 1, -1])).is_proper


def test_improper_density_is_constant_below_the_cutoff():
    density = Hyperprior.jeffreys().log_weight_density(np.array([0.0, priors.WEIGHT_CUTOFF, 2e-12]))
    assert density[0] == density[1] == pytest.approx(np.log(priors.PRUNING_PRECISION))
    assert density[2] < density[1]


@pytest.mark.parametrize("latent_size", [1.0, 3.0])
@pytest.mark.parametrize(
    ("n", "n_features", "width"), [(60, 2, 0.7), (300, 2, 0.7), (200, 20, 5.0)]
)
def test_default_scales_the_prior_of_the_latent_function(n, n_features, width, latent_size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, n_features))
    signs = np.where(X[:, 0] > 0, 1.0, -1.0)
    Phi = RBF(width)(X, X)
    prior = Hyperprior.default(Phi, signs, latent_size=latent_size)
    size = np.abs(rng.standard_t(2 * prior.c, (4000, n))) * np.sqrt(prior.d / prior.c)
    latent = (size * signs) @ Phi.T
    median = np.median(np.abs(latent - latent.mean(axis=1, keepdims=True)))
    assert 0.7 * latent_size < median < 1.3 * latent_size
    assert priors.typical_size(np.zeros(n)) == 1.0
    assert prior.is_proper


def test_learned_has_more_mass_near_zero_where_weights_have_one_sign():
    X = np.random.default_rng(0).normal(size=(60, 2))
    signs, Phi = np.where(X[:, 0] > 0, 1.0, -1.0), RBF(0.7)(X, X)
    found = [Hyperprior.learned(Phi, each) for each in (signs, None)]
    assert [(each.c, each.rate_spread) for each in found] == [(0.5, None), (5.0, 1.5)]
    assert not any(each.has_mode for each in found)
    median = priors.prior_latent_size(np.array([[1.0], [-1.0]]), None, 5.0)  # of 200 draws
    assert median == pytest.approx(student(10).ppf(0.75), rel=0.25)


BAD_VALUES = [
    ((1, -1, 1, 1), "d=-1; needed a finite number of at least 0"),
    ((1, 1, 1, -2), "f=-2"),
    ((0, 1, 1, 1), "c=0 must be greater than 0.0"),
    ((-0.5, 0, 0, 0), "c=-0.5 must be greater than -0.5"),
    ((1, 1, np.nan, 1), "e=nan; needed a finite number"),
    ((np.inf, 1, 1, 1), "c=inf; needed a finite number"),
]


@pytest.mark.parametrize(("values", "words"), BAD_VALUES)
def test_bad_values_are_named(values, words):
    refused(words, Hyperprior, *values)


@pytest.mark.parametrize(("n_basis", "few"), [(100, 5), (8, 4), (3, 1), (1, 1)])
def test_a_horseshoe_expects_few_large_weights(n_basis, few):
    found = priors.HalfHorseshoe.default(n_basis, 49)
    assert found.global_scale == pytest.approx(few / (max(n_basis - few, 1) * np.sqrt(49)))
    assert found.is_proper


STORED_PRIORS = [
    priors.Laplace(0.7),
    priors.HalfHorseshoe(0.1, 2.0, 5.0),
    Hyperprior(1.0, 2.0, 3.0, 4.0, rate_shape=0.5),
    Hyperprior(1.0, 2.0, 3.0, 4.0, rate_spread=2.5),
    priors.SharedHyperprior(1.0, 2.0, 3.0, 4.0),
]


@pytest.mark.parametrize("prior", STORED_PRIORS, ids=lambda each: type(each).__name__)
def test_a_prior_comes_back_from_its_numbers(prior):
    numbers = {name: each for name, each in asdict(prior).items() if each is not None}
    if isinstance(prior, priors.SharedHyperprior):
        numbers["n_scores"] = 2
    assert priors.hyperprior_from(numbers.keys(), numbers.values()) == prior


@pytest.mark.parametrize(("c", "d"), [(0.0, 0.0), (0.4, 0.0)])
def test_a_shared_precision_without_rate_leaves_a_power(c, d):
    """Integrated out, p(w) is proportional to ||w||^-(2c + C), whatever C."""
    weight = np.array([[0.3, -0.4, 1.2], [3.0, -4.0, 12.0], [1e-200, 0.0, 0.0]])
    found = priors.SharedHyperprior(c, d, 1.0, 1.0).log_weight_density(weight)
    assert found[1] - found[0] == pytest.approx(-(2 * c + 3) * np.log(10.0))
    assert np.isfinite(found[2])
    proper = priors.SharedHyperprior(1.5, 0.6, 1.0, 1.0).log_weight_density(weight)
    density = multivariate_t(shape=0.4 * np.eye(3), df=3.0).logpdf(np.abs(weight))
    np.testing.assert_allclose(proper, density + 3 * np.log(2))
