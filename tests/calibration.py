"""Tests of draws with a stated probability of a false alarm: normal scores, uniform ranks, batch means.

A right sampler fails one test (one set of parameters) with a probability of at most `FALSE_ALARM`, which its
comparisons share equally (Bonferroni). What is compared is bounded or exactly normal, so that the stated
probability is true: no Monte Carlo standard errors of heavy-tailed values.

Power: of `N_DRAWS` independent draws a spread that is 5 % wrong is noticed with a probability above .99, a
mean that is .06 standard deviations off as well.
"""

import numpy as np
from scipy import stats
from scipy.integrate import cumulative_trapezoid
from scipy.special import log_ndtr, ndtri

#: probability that a right sampler fails one test
FALSE_ALARM = 1e-7
#: draws with which the variance of a spread of 1.05 or .95 is at least 8 standard errors off
N_DRAWS = 15_000
#: batches of a chain, whose means are all but independent
N_BATCHES = 40


def spread_p_value(scores):
    """Return the two-sided p-value of the variance of normal scores (mean zero, variance one)."""
    n, total = len(scores), float(np.square(scores).sum())
    return 2.0 * min(stats.chi2.cdf(total, n), stats.chi2.sf(total, n))


def mean_p_value(scores):
    """Return the two-sided p-value of the mean of normal scores."""
    return 2.0 * float(stats.norm.sf(abs(scores.sum()) / np.sqrt(len(scores))))


def assert_normal(scores):
    """Fail unless independent scores have the mean and the variance of normal ones."""
    assert np.isfinite(scores).all()
    least = min(mean_p_value(scores), spread_p_value(scores))
    assert least > FALSE_ALARM / 2, f"p = {least:.1g}"


def assert_law(draws, cdf):
    """Fail unless independent draws follow a distribution function (Kolmogorov, mean, variance)."""
    u = np.clip(cdf(np.ravel(draws)), 1e-15, 1 - 1e-15)
    scores = ndtri(u)
    p = stats.kstest(u, "uniform").pvalue, mean_p_value(scores), spread_p_value(scores)
    assert min(p) > FALSE_ALARM / 3, f"p = {min(p):.1g}"


def assert_share(hits, probability):
    """Fail unless independent trials, (n, k) or (n,), succeed as often as their probabilities say.

    The number of successes of a column is a sum of Bernoulli variables, whose law is exact by convolution.
    """
    hits, probability = np.broadcast_arrays(hits, probability)
    hits, probability = (each.reshape(len(each), -1) for each in (hits, probability))
    for found, each in zip(hits.sum(axis=0), probability.T, strict=True):
        if np.ptp(each) == 0:
            law = stats.binom.pmf(np.arange(len(each) + 1), len(each), each[0])
        else:
            law = np.ones(1)
            for one in each:
                law = np.convolve(law, [1 - one, one])
        p = 2 * min(law[: found + 1].sum(), law[found:].sum())
        assert p > FALSE_ALARM / hits.shape[1], f"p = {p:.1g}"


def batch_means(values):
    """Return the means of the batches of chains, (n_batches, k): values have shape (..., n_draws, k)."""
    values = np.asarray(values, dtype=float)
    values = values.reshape(-1, *values.shape[-2:])
    per_chain = max(1, N_BATCHES // len(values))
    length = values.shape[1] // per_chain
    used = values[:, values.shape[1] - per_chain * length :]
    return used.reshape(-1, length, values.shape[-1]).mean(axis=1)


def assert_means(values, wanted):
    """Fail unless bounded functions of correlated draws have the means that they should (Student's t)."""
    batches = batch_means(values)
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    assert (error > 0).all(), "what never changes tells nothing"
    p = 2 * stats.t.sf(np.abs(batches.mean(axis=0) - wanted) / error, len(batches) - 1)
    assert p.min() > FALSE_ALARM / p.size, f"p = {p.min():.1g} of comparison {p.argmin()}"


def assert_uniform(u):
    """Fail unless correlated u, (..., n_draws, k), have the mean and the variance of uniform ones."""
    u = np.asarray(u)
    both = np.concatenate([u, np.square(u - 0.5)], axis=-1)
    k = u.shape[-1]
    assert_means(both, np.repeat([1 / 2, 1 / 12], k))


def assert_same_law(*samples):
    """Fail unless two runs, each (n_chains, n_draws, k), have the same means of their pooled ranks."""
    pooled = np.concatenate([np.reshape(each, (-1, each.shape[-1])) for each in samples])
    rank = stats.rankdata(pooled, axis=0) / (len(pooled) + 1)
    of_each = np.split(rank, [np.size(samples[0]) // pooled.shape[1]])
    parts = zip(of_each, samples, strict=True)
    first, second = (batch_means(part.reshape(sample.shape)) for part, sample in parts)
    p = stats.ttest_ind(first, second, equal_var=False).pvalue
    assert p.min() > FALSE_ALARM / p.size, f"p = {p.min():.1g} of comparison {p.argmin()}"


class Law:
    """A density on a grid, by quadrature: its distribution function `cdf`, `draws`, and normal `scores`."""

    def __init__(self, grid, log_density):
        density = np.exp(log_density - log_density.max())
        self.grid, self.cumulative = grid, cumulative_trapezoid(density, grid, initial=0.0)
        self.cumulative /= self.cumulative[-1]

    def cdf(self, values):
        return np.interp(values, self.grid, self.cumulative)

    def draws(self, rng, n=N_DRAWS):
        kept = np.append(True, np.diff(self.cumulative) > 0)
        return np.interp(rng.uniform(size=n), self.cumulative[kept], self.grid[kept])

    def scores(self, draws):
        return ndtri(np.clip(self.cdf(draws), 1e-12, 1 - 1e-12))


def truncated_scores(mean, value):
    """Return normal scores of values under N(mean, 1) above zero, exact in the tails."""
    return -ndtri(np.exp(log_ndtr(mean - value) - log_ndtr(mean)))


def posterior_on_a_grid(Phi, label, sign, prior, likelihood, floor=(0.0, 0.0)):
    """Return points (n, 3) of two sizes and a bias, and their posterior probabilities, by quadrature.

    The trapezoid rule in the logarithms of the sizes above their `floor` and in the arcsinh of the bias.
    """
    x, t = np.linspace(-11.0, 7.0, 100), np.linspace(-5.0, 5.0, 81)
    sizes = [low + np.exp(x) for low in floor]
    bias = np.sinh(t)
    one, two, b = (each.ravel() for each in np.meshgrid(*sizes, bias, indexing="ij"))
    log_p = prior.log_weight_density(one) + prior.log_weight_density(two)
    log_p += prior.log_bias_density(bias)[np.tile(np.arange(len(bias)), len(x) ** 2)]
    log_p += np.log(one - floor[0]) + np.log(two - floor[1]) + 0.5 * np.log1p(b**2)
    for row, y in zip(Phi, label, strict=True):
        latent = row[0] * sign[0] * one + row[1] * sign[1] * two + b
        log_p += likelihood.log_density(latent, np.full_like(latent, y))
    p = np.exp(log_p - log_p.max())
    return np.column_stack([one, two, b]), p / p.sum()
