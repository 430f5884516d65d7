"""The family's distributions, used as any other of PyMC's."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from calibration import assert_law, assert_share
from problems import refused
from pymc.logprob.utils import ParameterValueError
from scipy import stats

from pcvm_pymc import MarginalBias, MarginalWeight, MultinomialProbit, ProbitBernoulli
from pcvm_pymc.model.distributions import FreeWeight, SharedWeight

SHAPE, RATE = np.array([[0.6], [2.0], [30.0]]), np.array([[3.0], [0.2], [11.0]])
AT = np.array([-1e4, -30.0, -1.0, -1e-3, 0.0, 1e-6, 0.3, 2.0, 50.0, 1e5])
LATENT = np.array([-40.0, -1.0, 0.0, 2.0])


def student():
    return stats.t(2 * SHAPE, scale=np.sqrt(RATE / SHAPE))


def values(graphs):
    return pytensor.function([], graphs, mode="FAST_COMPILE")()


def test_distribution_functions_and_quantiles_are_the_student_ts():
    bias, weight = MarginalBias.dist(e=SHAPE, f=RATE), MarginalWeight.dist(c=SHAPE, d=RATE)
    share = np.array([0.0, 1e-4, 0.2, 0.5, 0.9, 1.0])
    with np.errstate(divide="ignore"):
        size = np.log(np.where(AT > 0, 1 - 2 * student().sf(np.maximum(AT, 0)), 0.0))
    pairs = [
        (pm.logcdf(bias, AT), student().logcdf(AT)),
        (pm.logcdf(weight, AT), size),
        (pm.icdf(bias, share), student().ppf(share)),
        (pm.icdf(weight, share), student().ppf((1 + share) / 2)),
        (pm.logp(weight, AT), np.where(AT >= 0, np.log(2) + student().logpdf(AT), -np.inf)),
        (pm.icdf(bias, 1e-30), student().ppf(1e-30)),
    ]
    graphs, wanted = zip(*pairs, strict=True)
    for one, other in zip(values(list(graphs)), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_the_probits_distribution_function_keeps_both_tails():
    label = ProbitBernoulli.dist(latent=LATENT)
    below, zero, one = values([pm.logcdf(label, each) for each in (-1, 0, 1)])
    assert (below == -np.inf).all()
    assert (one == 0).all()
    np.testing.assert_allclose(zero, stats.norm.logsf(LATENT), rtol=1e-12)
    (least,) = values([pm.icdf(label, 0.6)])
    assert least.tolist() == [0, 0, 1, 1]
    assert (values([pm.logp(label, 2)])[0] == -np.inf).all()


BAD_PARAMETERS = [
    (MarginalWeight, {"c": 1.0, "d": 0.5}),
    (MarginalBias, {"e": 1.0, "f": 0.5}),
    (FreeWeight, {"c": 1.0, "d": 0.5}),
    (SharedWeight, {"c": 1.0, "d": 0.5, "n_scores": 3}),
]


@pytest.mark.parametrize(("distribution", "good"), BAD_PARAMETERS)
def test_parameters_that_cannot_be_raise_as_pymcs_do(distribution, good):
    at = np.ones(3) if distribution is SharedWeight else 1.0
    names = [name for name in good if name != "n_scores"]
    for name in names:
        graph = pm.logp(distribution.dist(**{**good, name: -1.0}), at)
        with pytest.raises(ParameterValueError, match=f"{names[0]} > 0, {names[1]} > 0"):
            graph.eval(mode="FAST_COMPILE")
    refused("missing", distribution.dist, error=TypeError)


def test_classes_need_a_dimension_of_two_or_more():
    for latent in (0.3, np.zeros((4, 1))):
        with pytest.raises(ValueError, match=r"needed \(\.\.\., n_classes\), two classes or more"):
            MultinomialProbit.dist(latent=latent)
    with pytest.raises(NotImplementedError):  # classes have no order
        pm.logcdf(MultinomialProbit.dist(latent=np.zeros(3)), 1)


def test_all_four_are_variables_of_a_model_with_starting_values_of_their_dims():
    with pm.Model(coords={"row": range(4), "basis": range(3)}) as model:
        MarginalWeight("w", c=1.0, d=[4.0, 1.0, 0.25], dims="basis")
        MarginalBias("b", e=2.0, f=1.0)
        ProbitBernoulli("y", latent=LATENT, dims="row")
        MultinomialProbit("k", latent=np.eye(4)[:, :3], dims="row")
    start = model.initial_point()
    assert np.exp(start["w_log__"]) == pytest.approx([2.0, 1.0, 0.5])
    assert start["b"] == 0
    assert start["y"].tolist() == [0, 0, 0, 1]
    assert start["k"].tolist() == [0, 1, 2, 0]


def test_they_are_mixed_truncated_and_censored():
    weight, wide = MarginalWeight.dist(c=2.0, d=0.2), MarginalWeight.dist(c=2.0, d=20.0)
    cut = pm.Truncated.dist(MarginalBias.dist(e=2.0, f=0.2), lower=-0.1, upper=0.5)
    at_most = pm.Censored.dist(weight, lower=None, upper=0.4)
    both = [ProbitBernoulli.dist(latent=each) for each in (2.0, -2.0)]
    flips = pm.Mixture.dist([0.9, 0.1], both)
    slab = pm.Mixture.dist([0.3, 0.7], [weight, wide])
    asked = {cut: 0.2, at_most: 0.4, flips: 1, slab: 0.2}
    found = values([pm.logp(*each) for each in asked.items()])
    law = stats.t(4.0, scale=np.sqrt(0.1))
    other = stats.t(4.0, scale=np.sqrt(10.0))
    wanted = [
        law.logpdf(0.2) - np.log(law.cdf(0.5) - law.cdf(-0.1)),
        np.log(2 * law.sf(0.4)),
        np.log(0.9 * stats.norm.cdf(2) + 0.1 * stats.norm.cdf(-2)),
        np.log(0.6 * law.pdf(0.2) + 1.4 * other.pdf(0.2)),
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    many = pm.Truncated.dist(MarginalBias.dist(e=2.0, f=0.2, size=4000), lower=-0.1, upper=0.5)
    draws = pm.draw(many, random_seed=1)
    assert draws.min() >= -0.1
    assert draws.max() <= 0.5
    share = (law.cdf(0.1) - law.cdf(-0.1)) / (law.cdf(0.5) - law.cdf(-0.1))
    assert_share(draws < 0.1, share)


def test_draws_follow_the_distribution_functions():
    weight = MarginalWeight.dist(c=1.5, d=0.7, size=4000)
    sizes, biases = pm.draw([weight, MarginalBias.dist(e=1.5, f=0.7, size=4000)], random_seed=2)
    law = stats.t(3.0, scale=np.sqrt(0.7 / 1.5))
    assert_law(biases, law.cdf)
    assert_law(sizes, lambda x: 1 - 2 * law.sf(x))
    labels = pm.draw(ProbitBernoulli.dist(latent=LATENT), 4000, random_seed=3)
    assert_share(labels == 1, stats.norm.cdf(LATENT))


def test_gradients_of_distribution_functions_are_the_densities():
    x = pt.dvector("x")
    value = pm.logcdf(MarginalBias.dist(e=1.5, f=0.7), x)
    slope = pytensor.function([x], pt.grad(value.sum(), x), mode="FAST_COMPILE")
    law, at = stats.t(3.0, scale=np.sqrt(0.7 / 1.5)), np.array([-3.0, -0.2, 0.4, 6.0])
    np.testing.assert_allclose(slope(at), law.pdf(at) / law.cdf(at), rtol=1e-9)
