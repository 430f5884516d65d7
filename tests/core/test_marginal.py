"""Estimates of unknown hyperparameters: Laplace's approximation against importance sampling."""

from dataclasses import replace

import numpy as np
import pytest
from problems import blobs, slopes
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from pcvm_pymc.core.em import EMOptions, Start, WidthMoves, fit_em
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.core.marginal import fit_hyperparameters, log_marginal
from pcvm_pymc.core.pieces import likelihoods
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, SharedHyperprior
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import QuadraticModel

GRID = np.linspace(-3.0, 9.0, 25)  # log d
N_DRAWS = 3000


def problem(seed=0, n_obs=80, n_basis=6, likelihood=None, noise=0.5, c=5.0, **of_rate):
    """Return labels of a smooth function and a basis without signs."""
    rng = np.random.default_rng(seed)
    X, centres = rng.normal(size=(n_obs, 2)), rng.normal(size=(n_basis, 2))
    latent = 1.5 * X[:, 0] + X[:, 1] ** 2 - 1.0 + noise * rng.logistic(size=n_obs)
    likelihood = likelihoods.Probit() if likelihood is None else likelihood
    label = np.where(latent > 0, 1.0, -1.0)
    if likelihood.targets == "classes":
        label = np.digitize(latent, [-1.0, 1.0])
    prior = Hyperprior(c, 10.0, 0.5, 0.5, **(of_rate or {"rate_spread": 2.5}))
    return Problem(RBF(1.5)(X, centres), label, None, prior, likelihood, width=1.5)


SMALL = {
    "probit": problem(0),
    "more rows and bases": problem(1, 120, 12),
    "logit": problem(2, 80, 8, likelihoods.Logit()),
    "under a Gamma": problem(5, 100, 8, rate_shape=0.5),
    "weights of rows": replace(problem(6, 80, 6), row_weight=np.linspace(0.2, 2.0, 80)),
    "noisy labels": problem(7, 100, 6, noise=1.0),
}


def sampled_log_marginal(of, mode, normal, rng):
    """Return the log density of the labels by importance sampling from a multivariate t at the mode."""
    weight, bias, prior = mode.weight[:, None], np.array([mode.bias]), of.hyperprior
    known = prior.weight_precision(weight), np.array([of.bias_precision(mode.bias)])
    H = QuadraticModel(weight, bias, *known).over([(of.Phi, of.observed)])
    v = H.value + normal @ H.root
    place = H.scale * v
    latent = place[:, :-1] @ of.Phi.T + place[:, -1:]
    label = np.tile(of.label.T, len(place)).T
    value = of.likelihood.log_density(latent.ravel(), label).reshape(latent.shape).sum(axis=1)
    value += np.array([prior.log_weights_density(w, free=True) for w in place[:, :-1]])
    value += prior.log_bias_density(place[:, -1])
    log_volume = np.log(H.factor.diagonal() / H.scale).sum()
    density = multivariate_t(np.zeros(len(H.scale)), df=6).logpdf(normal) + log_volume
    return logsumexp(value - density) - np.log(len(place))


def peak(values):
    """Return where a curve over the grid is highest."""
    fine = np.linspace(GRID[0], GRID[-1], 2401)
    return fine[CubicSpline(GRID, values)(fine).argmax()]


QUICK = ("probit", "logit")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]


@pytest.mark.parametrize("name", EACH)
def test_the_rate_is_where_importance_sampling_has_the_maximum(name):
    of, rng, sampled, start = SMALL[name], np.random.default_rng(1), [], None
    n = of.Phi.shape[1] + 1
    normal = multivariate_t(np.zeros(n), df=6).rvs(N_DRAWS, random_state=rng)
    for log_d in GRID:
        known = of.given(d=np.exp(log_d))
        mode = fit_em(known, start)
        start = Start(mode.weight, mode.bias)
        sampled.append(sampled_log_marginal(known, mode, normal, rng))
    sampled = np.array(sampled) + of.hyperprior.log_rate_density(GRID)[0]
    found = fit_hyperparameters(of)
    assert np.log(found.rate) == pytest.approx(peak(sampled), abs=0.15)
    assert found.criterion["log_marginal"] == pytest.approx(sampled.max(), abs=2.0)


def test_without_a_likelihood_the_rate_is_its_priors_mode():
    """Of the density of log d: that of a Gamma's d has its mode at zero."""
    for of_rate, mode in (({"rate_shape": 0.5}, 10.0), ({"rate_spread": 1.0}, 10.0)):
        blank = replace(problem(**of_rate), Phi=np.zeros((80, 6)))
        assert np.log(fit_hyperparameters(blank).rate) == pytest.approx(np.log(mode), abs=0.15)


@pytest.mark.parametrize("prior", [Hyperprior, SharedHyperprior])
def test_the_mode_of_several_scores_is_at_the_estimate(prior):
    of = problem(8, likelihood=likelihoods.MultinomialProbit(3))
    hyperprior = prior(5.0, 10.0, 0.5, 0.5, rate_spread=2.5)
    of = replace(of, hyperprior=hyperprior, shared=prior is SharedHyperprior)
    found = fit_hyperparameters(of, options=EMOptions(tol=1e-8))
    known = of.given(d=found.rate)
    again = fit_em(known, options=EMOptions(tol=1e-8))
    np.testing.assert_allclose(found.weight, again.weight, atol=1e-5)
    assert found.log_posterior == pytest.approx(again.log_posterior, abs=1e-7)
    of_weight, of_bias = slopes(known, found)
    np.testing.assert_allclose(of_weight, 0.0, atol=1e-4)
    np.testing.assert_allclose(of_bias, 0.0, atol=1e-4)
    for factor in (0.6, 1.6):  # no other d has more
        other = of.given(d=factor * found.rate)
        mode = fit_em(other)
        less = log_marginal(other, mode) + np.log(factor * found.rate)
        assert less < found.criterion["log_marginal"]


def with_width(**kwargs):
    X, label = blobs(40, seed=3)
    distance = ((X[:, None] - X[None, ::4]) ** 2).sum(axis=2)
    moves = WidthMoves(distance, (0.1, 10.0), lambda w: -0.5 * (np.log(w) / 0.5) ** 2 - np.log(w))
    prior = Hyperprior(5.0, 10.0, 0.5, 0.5, **kwargs)
    return Problem(moves.basis(1.0), label, None, prior, width=1.0, moves=moves)


@pytest.mark.parametrize("of_rate", [{}, {"rate_spread": 2.5}], ids=["known", "unknown"])
def test_a_width_without_signs_is_integrated_over_with_the_rate(of_rate):
    of = with_width(**of_rate)
    found = fit_hyperparameters(of)

    def height(d, width):
        known = of.given(d=d, width=width)
        unknown = np.log([width, d][: 1 + len(of_rate)]).sum()
        return log_marginal(known, fit_em(known)) + unknown

    best = height(found.rate, found.width)
    assert found.criterion["log_marginal"] == pytest.approx(best, abs=1e-3)
    for factor in (0.7, 1.4):
        assert height(found.rate, factor * found.width) < best
        assert not of_rate or height(factor**3 * found.rate, found.width) < best


def test_under_signs_the_scale_is_that_of_leave_one_out():
    X, label = blobs(40, seed=4)
    prior = Hyperprior(0.5, 0.01, 0.5, 0.5, rate_shape=0.5)
    of, rows = Problem(RBF(1.0)(X, X), label, label, prior), np.arange(40)
    found = fit_hyperparameters(of, basis_row=rows)

    def score(d):
        mode = fit_em(of.given(d=d))
        held_out = leave_one_out(of.given(d=d), mode.weight, mode.bias, rows).log_density.sum()
        return held_out, held_out - 0.5 * (0.5 * np.log(d / 0.5) / 0.7) ** 2

    elpd, best = score(found.rate)
    assert found.criterion == {"elpd_loo": pytest.approx(elpd, abs=1e-3)}
    assert max(score(factor * found.rate)[1] for factor in (0.3, 0.6, 1.6, 3.0)) < best + 1e-3


def test_nothing_unknown_is_the_mode_as_it_was():
    for prior in (Hyperprior.plug_in(), Hyperprior.jeffreys(), Laplace(2.0)):
        of = replace(problem(), hyperprior=prior)
        found, wanted = fit_hyperparameters(of), fit_em(of)
        np.testing.assert_array_equal(found.weight, wanted.weight)
        assert found.criterion == {}
