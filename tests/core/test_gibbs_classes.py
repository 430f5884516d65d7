from dataclasses import replace

import numpy as np

from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.gibbs.ahead import compile_sampler
from pcvm_pymc.core.gibbs.chain import run
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.multinomial import log_class_probability
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem

PRIOR = Hyperprior(2.0, 0.8, 2.0, 1.0)


def gibbs_problem(Phi, label, sign, prior):
    return GibbsProblem.of(Problem(Phi, label, sign, prior, MultinomialProbit(sign.shape[1])))


def problem(n=9, n_classes=3, seed=0, prior=PRIOR):
    rng = np.random.default_rng(seed)
    X, label = rng.normal(size=(n, 2)), np.arange(n) % n_classes
    Phi = rbf(squared_distances(X, X), 1.2)
    return gibbs_problem(Phi, label, class_signs(label, n_classes), prior), Phi


def test_scores_and_probabilities_of_draws():
    p, Phi = problem()
    state = p.start(np.random.default_rng(0))
    size, bias, rate = advance(p, state, np.random.default_rng(1), draws=4)
    latent = p.latent(size, bias)
    assert latent.shape == (4, 9, 3)
    np.testing.assert_allclose(latent[2], Phi @ (size[2] * p.sign) + bias[2], atol=1e-12)
    wanted = log_class_probability(latent[3], p.label)
    np.testing.assert_allclose(p.log_likelihood(latent)[3], wanted, atol=1e-12)
    assert (rate == PRIOR.d).all()


def one_score(likelihood):
    Phi, sign = np.eye(6) + 0.2, np.array([-1, 1] * 3)
    return GibbsProblem.of(Problem(Phi, sign, sign, Hyperprior(1.0, 1.0, 1.0, 1.0), likelihood))


def test_what_is_compiled_ahead_serves_every_problem():
    compile_sampler()
    compile_sampler(3)
    compiled = list(run.signatures)
    several = (problem()[0], problem(n_classes=2, prior=replace(PRIOR, rate_shape=0.5))[0])
    for found in (*several, one_score(Probit()), one_score(NoisyProbit(0.1))):
        rng = np.random.default_rng(0)
        advance(found, found.start(rng), rng, draws=2)
    assert run.signatures == compiled
