"""Seconds of the multi-class machines, and of the phases of an iteration."""

import numpy as np
import pytest

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import fit_bottom_up
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import BorderedGram


def classes(n, n_classes, seed=0):
    """Return basis functions and labels of Gaussian classes in four dimensions."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(n_classes, 4))
    label = np.arange(n) % n_classes
    X = centres[label] + rng.normal(size=(n, 4))
    return rbf(squared_distances(X, X), 3.0), label


PRIORS = {"jeffreys": Hyperprior.jeffreys(), "plug_in": Hyperprior.plug_in()}


def problem_of(Phi, label, n_classes, prior, **kwargs):
    sign = class_signs(label, n_classes)
    return Problem(Phi, label, sign, prior, MultinomialProbit(n_classes), **kwargs)


@pytest.mark.parametrize(
    ("n", "n_classes", "prior"),
    [
        (250, 2, "jeffreys"),
        (1000, 8, "jeffreys"),
        (1000, 26, "jeffreys"),
        (2000, 8, "jeffreys"),
        (250, 3, "plug_in"),
        (500, 6, "plug_in"),
    ],
)
def test_top_down(benchmark, n, n_classes, prior):
    Phi, label = classes(n, n_classes)
    problem = problem_of(Phi, label, n_classes, PRIORS[prior])
    options = EMOptions(tol=1e-4)
    benchmark.pedantic(lambda: fit_em(problem, None, options), rounds=1, warmup_rounds=0)


@pytest.mark.parametrize(("n", "n_classes"), [(250, 2), (1000, 8), (1000, 26), (4000, 8)])
def test_bottom_up(benchmark, n, n_classes):
    Phi, label = classes(n, n_classes)
    problem = problem_of(Phi, label, n_classes, PRIORS["jeffreys"], bias="none")
    benchmark.pedantic(lambda: fit_bottom_up(problem), rounds=1, warmup_rounds=0)


@pytest.mark.parametrize(("n", "n_classes"), [(4000, 8), (4000, 26)])
def test_e_step(benchmark, n, n_classes):
    rng = np.random.default_rng(0)
    latent, label = 3 * rng.normal(size=(n, n_classes)), rng.integers(n_classes, size=n)
    benchmark(lambda: class_terms(latent, label))


def test_gram_product(benchmark):
    Phi, _ = classes(2000, 8)
    benchmark(lambda: BorderedGram.of(Phi))
