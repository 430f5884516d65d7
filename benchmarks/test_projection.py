"""Seconds of a projection path, beside scikit-learn's ways to few columns of the same basis.

OMP_NUM_THREADS=1 uv run pytest benchmarks/test_projection.py --benchmark-columns=min,median,rounds
"""

from functools import cache

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, orthogonal_mp_gram

from pcvm_pymc import Hyperprior
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces.kernels import design_matrix, median_distance
from pcvm_pymc.core.pieces.probit import ndtr
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.projection import Target, project_path
from pcvm_pymc.experiments.datasets import waveform

ROWS = (400, 1300, 4000)
SIZES = (0, 1, 2, 5, 10, 20, 30)


@cache
def target(n):
    """Return the projection of a dense MAP on waveform, its latent function and the labels."""
    X, label = waveform(n, random_state=0)
    width = median_distance(X[:500])
    Phi = design_matrix("rbf", X, X, width)
    problem = Problem(Phi, label, label.copy(), Hyperprior.plug_in(), width=width)
    dense = fit_em(problem, None, EMOptions(tol=1e-3))
    return Target(Phi, label, ndtr(dense.latent)), dense.latent, label


def run(benchmark, n, function):
    return benchmark.pedantic(function, rounds=1 if n == 4000 else 3, warmup_rounds=int(n < 4000))


@pytest.mark.parametrize("n", ROWS)
def test_path(benchmark, n):
    problem, *_ = target(n)
    path = run(benchmark, n, lambda: project_path(problem, SIZES))
    benchmark.extra_info.update(
        {
            f"millinats at {size}": round(1e3 * kl, 3)
            for size, kl in zip(SIZES, path.kl, strict=True)
        }
    )


@pytest.mark.parametrize("n", ROWS)
def test_orthogonal_matching_pursuit(benchmark, n):
    """Approximate the latent function by least squares, without the sign rule, to 30 columns."""
    problem, latent, _ = target(n)

    def fit():
        centred = problem.Phi - problem.Phi.mean(axis=0)
        gram, goal = centred.T @ centred, centred.T @ (latent - latent.mean())
        weight = orthogonal_mp_gram(gram, goal, n_nonzero_coefs=30)
        return centred @ weight + latent.mean()

    found = run(benchmark, n, fit)
    benchmark.extra_info["millinats at 30"] = round(1e3 * problem.divergence(found), 3)


@pytest.mark.parametrize("n", ROWS[:2])
def test_l1_logistic_path(benchmark, n):
    """Fit labels by liblinear's L1 logistic regression for ten penalties, as scikit-learn offers it.

    It cannot be given the reference's probabilities; the column nearest to 30 is noted.
    """
    problem, _, label = target(n)

    def fit():
        model = LogisticRegression(l1_ratio=1.0, solver="liblinear", random_state=0)
        return [
            np.count_nonzero(model.set_params(C=C).fit(problem.Phi, label).coef_)
            for C in np.geomspace(0.1, 100, 10)
        ]

    benchmark.extra_info["vectors"] = ", ".join(map(str, run(benchmark, n, fit)))
