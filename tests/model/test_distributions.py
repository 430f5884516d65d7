"""The family's distributions, used as any other of PyMC's."""

import numpy as np
import pymc as pm
import pytensor
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


def test_densities_are_the_student_ts():
    bias, weight = MarginalBias.dist(e=SHAPE, f=RATE), MarginalWeight.dist(c=SHAPE, d=RATE)
    found = values([pm.logp(bias, AT), pm.logp(weight, AT)])
    of_weight = np.where(AT >= 0, np.log(2) + student().logpdf(AT), -np.inf)
    for one, other in zip(found, (student().logpdf(AT), of_weight), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_the_probits_density_keeps_both_tails():
    label = ProbitBernoulli.dist(latent=LATENT)
    zero, one, two = values([pm.logp(label, each) for each in (0, 1, 2)])
    np.testing.assert_allclose(zero, stats.norm.logsf(LATENT), rtol=1e-12)
    np.testing.assert_allclose(one, stats.norm.logcdf(LATENT), rtol=1e-12)
    assert (two == -np.inf).all()


BAD_PARAMETERS = [
    (MarginalWeight, {"c": 1.0, "d": 0.5}),
    (MarginalBias, {"e": 1.0, "f": 0.5}),
    (FreeWeight, {"e": 1.0, "f": 0.5}),
    (SharedWeight, {"c": 1.0, "d": 0.5, "n_scores": 3}),
]


@pytest.mark.parametrize(("distribution", "good"), BAD_PARAMETERS)
def test_parameters_that_cannot_be_raise_as_pymcs_do(distribution, good):
    at = np.ones(3) if distribution is SharedWeight else 1.0
    for name in set(good) - {"n_scores"}:
        graph = pm.logp(distribution.dist(**{**good, name: -1.0}), at)
        with pytest.raises(ParameterValueError, match="shape > 0, rate > 0"):
            graph.eval(mode="FAST_COMPILE")
    refused("missing", distribution.dist, error=TypeError)


def test_classes_need_a_dimension_of_two_or_more():
    for latent in (0.3, np.zeros((4, 1))):
        with pytest.raises(ValueError, match=r"needed \(\.\.\., n_classes\), two classes or more"):
            MultinomialProbit.dist(latent=latent)


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


def test_draws_follow_the_distribution_functions():
    weight = MarginalWeight.dist(c=1.5, d=0.7, size=4000)
    sizes, biases = pm.draw([weight, MarginalBias.dist(e=1.5, f=0.7, size=4000)], random_seed=2)
    law = stats.t(3.0, scale=np.sqrt(0.7 / 1.5))
    assert_law(biases, law.cdf)
    assert_law(sizes, lambda x: 1 - 2 * law.sf(x))
    labels = pm.draw(ProbitBernoulli.dist(latent=LATENT), 4000, random_seed=3)
    assert_share(labels == 1, stats.norm.cdf(LATENT))
