"""Rounds of EM and gradient steps on log posteriors that are written by hand."""

import numpy as np
import pytest
from problems import blobs, refused
from scipy.special import expit

from pcvm_pymc import EMOptions, Hyperprior, Laplace
from pcvm_pymc.core.em.own_terms import Block, OwnProblem, Rows, curvatures, fit_own_terms

X, LABEL = blobs(30, seed=4, fixed=True)
PHI = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=-1))
N, ALL = 30, np.arange(32)


def by_hand(density, *, prior=None, signed=True, penalty=0.0, last=lambda x: (0.0, 0.0, 0.0)):
    """Return the problem of weights, a shift c, and a value x of its own; all but the weights are others.

    `density` gives value, slope and curvature of each row's latent value plus c; `last` the same of x.
    """
    design = PHI * LABEL if signed else PHI
    prior = prior or Hyperprior(1.0, 0.5, 1.0, 1.0)

    def parts(v):
        return design @ v[:N], density(design @ v[:N] + v[N])

    def slopes(v):
        _, (value, g, _) = parts(v)
        of_prior = -penalty * np.sign(v[:N])
        if not penalty:
            of_prior = -prior.weight_precision(v[:N]) * v[:N]
        own, slope, _ = last(v[-1])
        total = value.sum() + prior.log_weight_density(v[:N]).sum() - 0.5 * v[N] ** 2 + own
        return total, np.concatenate([design.T @ g + of_prior, [g.sum() - v[N], slope]])

    def product(v, direction):
        h = parts(v)[1][2]
        J = np.column_stack([design, np.ones(N), np.zeros(N)])
        ratio = prior.weight_curvature_ratio(v[:N])
        bend = np.zeros(N) if penalty else prior.weight_precision(v[:N]) * ratio
        diagonal = np.concatenate([bend, [1.0, last(v[-1])[2]]])
        return -(J.T @ (h * (J @ direction))) - diagonal * direction

    def rows(v):
        latent, (_, g, h) = parts(v)
        return [Rows(design, latent, g, h)]

    block = Block(np.arange(N), np.empty(0, dtype=int), signed, prior, "none")
    penalties = np.where(ALL < N, penalty, 0.0)
    names = [*["w"] * N, "c", "x"]
    others = np.array([N, N + 1])
    return OwnProblem((block,), others, ALL > N, penalties, names, slopes, rows, product)


def logit(f):
    p = expit(LABEL * f)
    return -np.logaddexp(0.0, -LABEL * f), LABEL * (1.0 - p), p * (1.0 - p)


def cauchy(f):
    """Targets with outliers, whose log density is not concave."""
    r = 3.0 * LABEL - f
    return -np.log1p(r**2), 2 * r / (1 + r**2), 2 * (1 - r**2) / (1 + r**2) ** 2


def bell(x):
    return -0.5 * (x - 0.7) ** 2, 0.7 - x, 1.0


CASES = {
    "signed": by_hand(logit, last=bell),
    "free": by_hand(logit, signed=False, last=bell),
    "not concave": by_hand(cauchy, last=bell),
    "lasso": by_hand(logit, prior=Laplace(4.0), signed=False, penalty=2.0, last=bell),
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_rise_to_a_point_that_is_stationary(case):
    problem = CASES[case]
    result = fit_own_terms(problem, np.zeros(32), EMOptions())
    assert result.status.name == "CONVERGED"
    assert (np.diff(result.trace.log_posterior) >= 0).all()
    v, slope = result.values, problem.slopes(result.values)[1]
    zero = np.flatnonzero(v[:N] == 0)
    np.testing.assert_allclose(np.delete(slope, zero), 0.0, atol=1e-7)
    least = np.abs(slope[zero]) if case == "lasso" else slope[zero]
    assert (least <= problem.penalty[zero] + 1e-6).all()
    assert v[-1] == pytest.approx(0.7, abs=1e-7)
    assert case == "free" or 0 < result.n_active < N


def test_curvatures_of_rows_are_those_of_products():
    problem = CASES["not concave"]
    values, where = np.linspace(0.1, 1.0, 32), np.array([3, 0, 31, 7, 30])
    unit = np.eye(32)
    wanted = [-problem.product(values, unit[i])[where] for i in where]
    np.testing.assert_allclose(curvatures(problem, values, where), wanted, rtol=1e-10)


def test_a_start_at_a_saddle_point_is_left():
    """Of a density with a minimum between two maxima, at which the value begins and has no slope."""
    two_bells = by_hand(logit, last=lambda x: (x**2 / 2 - x**4 / 4, x - x**3, 3 * x**2 - 1))
    result = fit_own_terms(two_bells, np.zeros(32), EMOptions())
    assert result.status.name == "CONVERGED"
    assert abs(result.values[-1]) == pytest.approx(1.0, abs=1e-7)
    assert (np.diff(result.trace.log_posterior) >= 0).all()


def test_what_has_no_maximum_is_said_with_its_name():
    rises = by_hand(logit, last=lambda x: (-x, -1.0, 0.0))
    refused(
        r"no maximum: it goes on to rise with \{'x': -",
        fit_own_terms,
        rises,
        np.zeros(32),
        EMOptions(),
    )
    nowhere = by_hand(logit, last=lambda x: (-np.inf, 0.0, 0.0))
    refused("-inf at the start", fit_own_terms, nowhere, np.zeros(32), EMOptions())


def test_too_few_rounds_are_no_convergence():
    result = fit_own_terms(CASES["not concave"], np.zeros(32), EMOptions(max_iter=1))
    assert result.status.name == "ITERATION_LIMIT"
    assert not result.converged
