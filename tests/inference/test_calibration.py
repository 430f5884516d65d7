"""Simulation-based calibration with the signs held fixed (Talts et al. 2018), and its negative control.

With signs taken from the simulated labels the model is another one for each data set: calibration must fail.

A rank, moved to where it would be uniform, has a normal score; of so many replications the variance of the
scores notices draws whose spread is 5 % wrong with a probability of at least .7, which is shown by
injecting it. Ranks in ten bins alone notice that of 600 replications in one run of a hundred.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
from calibration import FALSE_ALARM, mean_p_value, spread_p_value
from scipy.special import ndtri
from scipy.stats import chisquare

import pcvm_pymc as pcvm
from pcvm_pymc.core.gibbs import GibbsChains, GibbsProblem
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
from pcvm_pymc.core.problem import Problem, Values
from pcvm_pymc.core.process import _LOG_PRIOR, NOISE_RATE, NOISE_SHAPE, RATIOS, ProcessPosterior
from pcvm_pymc.model.parts import find_parts

N = 10
KEPT = 49
BINS = 10
#: replications of the slow tests, and least p-value (of all comparisons together) of a calibrated sampler.
#: A smaller one is looked into by twice as many other replications: both are as small with a probability
#: of 1e-6, and a wrong spread is noticed by both with one of at least .7
REPLICATIONS = 5000
LEAST = 1e-3
FIXED = pcvm.Hyperprior(2.0, 0.4, 2.0, 1.0)
PRIORS = {"fixed": FIXED, "learned": replace(FIXED, rate_shape=2.0)}


# --- ranks and scores ---------------------------------------------------------------------------


def ranks(truth, draws, rng):
    """Return how many of the draws, shape (n_draws, n_quantities), are below the truth; ties at random."""
    return np.sum(draws < truth, axis=0) + rng.binomial(np.sum(draws == truth, axis=0), 0.5)


def scores(rank, n_draws, rng):
    """Return normal scores of ranks, which are exactly normal where ranks are uniform."""
    return ndtri((rank + rng.uniform(size=rank.shape)) / (n_draws + 1))


def p_values(rank, n_draws=KEPT, seed=0):
    """Return p-values of uniform ranks, and of mean and variance of their scores, (3, n_quantities)."""
    counts = [np.bincount(each * BINS // (n_draws + 1), minlength=BINS) for each in rank.T]
    z = scores(rank, n_draws, np.random.default_rng(seed))
    of_scores = [[test(each) for each in z.T] for test in (mean_p_value, spread_p_value)]
    return np.array([[chisquare(each).pvalue for each in counts], *of_scores])


def stretched(draws, factor):
    """Return draws of another spread around the same mean."""
    mean = draws.mean(axis=0)
    return mean + factor * (draws - mean)


def power(rank, n_draws=KEPT, n_resamples=200):
    """Return how often resampled ranks are noticed by the variance of a quantity's scores."""
    z, rng = scores(rank, n_draws, np.random.default_rng(1)), np.random.default_rng(2)
    found = 0
    for _ in range(n_resamples):
        some = z[rng.integers(len(z), size=len(z))]
        found += min(spread_p_value(each) for each in some.T) < LEAST / (3 * z.shape[1])
    return found / n_resamples


def assert_calibrated(replicate, replications):
    """Fail where ranks are twice far from uniform, or a spread 5 % wrong would not be noticed."""

    def least(rank):
        return p_values(rank).min() * 3 * rank.shape[1]

    found = replicate(replications, seed=4, factors=(0.95, 1.0, 1.05))
    for factor in (0.95, 1.05):
        assert power(found[factor]) > 0.7
    if least(found[1.0]) < LEAST:
        assert least(replicate(2 * replications, seed=5)[1.0]) > LEAST


# --- Gibbs --------------------------------------------------------------------------------------


class ByGibbs:
    """Problems of fixed signs and their replications."""

    def __init__(self, likelihood, prior):
        X, label = np.random.default_rng(8).normal(size=(N, 2)), 1 - 2 * (np.arange(N) % 2)
        pieces = label, label.astype(float), prior, likelihood
        self.problem, self.prior = GibbsProblem.of(Problem(RBF(1.0)(X, X), *pieces)), prior

    def draw_prior(self, rng):
        """Return a state of the prior."""
        prior, d = self.prior, self.prior.d
        if prior.rate_shape is not None:
            d *= rng.gamma(prior.rate_shape) / prior.rate_shape
        size = np.sqrt(d / prior.c) * np.abs(rng.standard_t(2 * prior.c, size=(1, N)))
        bias = np.sqrt(prior.f / prior.e) * rng.standard_t(2 * prior.e, size=(1, 1))
        return Values((size * self.problem.sign)[..., None], bias, np.array([d]), np.ones(1))

    def quantities(self, problem, values):
        """Return latent values, biases, weights, log likelihood and a learned d, a row for each state."""
        latent = problem.latent(values)
        log_likelihood = problem.log_density(values, latent).sum(axis=1)
        log_size = np.log(np.abs(values.weight))[:, :4]
        columns = [latent[:, :4], values.bias, log_size, log_likelihood]
        columns += [np.log(values.rate)] if self.prior.rate_shape is not None else []
        return np.hstack([np.reshape(each, (len(latent), -1)) for each in columns])

    def replicate(self, replications, seed, thin, factors=(1.0,), signs_of=None):
        """Return ranks of the truth, for each factor by which draws are stretched."""
        rng, found = np.random.default_rng(seed), {factor: [] for factor in factors}
        for _ in range(replications):
            truth = self.draw_prior(rng)
            p = self.problem.likelihood.probability(self.problem.latent(truth)[0, :, 0])
            label = np.where(rng.uniform(size=N) < p, 1, -1)
            sign = self.problem.sign if signs_of is None else signs_of(label)
            given = replace(self.problem, label=label, sign=sign)
            chains = GibbsChains(given, rng, n_chains=1)
            chains.warm_up(5 * thin)
            states = Values(*(x if x is None else x[0] for x in chains.draw(KEPT, thin)[0]))
            draws, true = (self.quantities(given, each) for each in (states, truth))
            for factor in factors:
                found[factor].append(ranks(true, stretched(draws, factor), rng))
        return {factor: np.array(each) for factor, each in found.items()}


GIBBS = {
    "probit": (Probit(), PRIORS["fixed"]),
    "probit, learned": (Probit(), PRIORS["learned"]),
    "label noise": (NoisyProbit(0.1), PRIORS["fixed"]),
}


def take_labels(label):
    return label.astype(float)


@pytest.mark.parametrize("name", ["probit", "probit, learned"])
def test_gibbs_is_calibrated_in_short(name):
    found = ByGibbs(*GIBBS[name]).replicate(100, seed=1, thin=10)[1.0]
    assert p_values(found)[1:].min() > FALSE_ALARM / (2 * found.shape[1])


def test_signs_from_simulated_labels_are_not_calibrated():
    cases = ByGibbs(Probit(), pcvm.Hyperprior(1.0, 0.2, 1.0, 1.0))
    assert p_values(cases.replicate(250, seed=2, thin=10, signs_of=take_labels)[1.0]).min() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", GIBBS)
def test_gibbs_is_calibrated_and_a_wrong_spread_would_be_noticed(name):
    assert_calibrated(partial(ByGibbs(*GIBBS[name]).replicate, thin=10), REPLICATIONS)


# --- a process, whose draws are independent -----------------------------------------------------


def replicate_process(replications, seed, factors=(1.0,), *, known=False):
    """Return ranks of the truth, for each factor by which draws are stretched; the bias, flat, is 1.7."""
    rng, found = np.random.default_rng(seed), {factor: [] for factor in factors}
    X = np.random.default_rng(8).normal(size=(N, 2))
    gram, shares = RBF(1.0)(X, X), np.exp(_LOG_PRIOR - _LOG_PRIOR.max())
    root = np.linalg.cholesky(np.linalg.inv(gram))

    def quantities(weight, bias, amplitude, noise):
        latent = weight @ gram[:, :4] + bias[:, None]
        scales = np.log(np.column_stack([amplitude, noise]))
        scales += 1e-9 * rng.standard_normal(scales.shape)  # of a grid, or known: no ties
        return np.column_stack([latent, bias, scales, weight[:, :2]])

    for _ in range(replications):
        noise = 0.3 if known else np.sqrt(NOISE_RATE / rng.gamma(NOISE_SHAPE))
        amplitude = noise**2 * rng.choice(RATIOS, p=shares / shares.sum())
        weight = np.sqrt(amplitude) * root @ rng.standard_normal(N)
        y = gram @ weight + 1.7 + noise * rng.standard_normal(N)
        process = ProcessPosterior.of(gram, gram, y, noise if known else np.nan)
        truth = weight[None], *(np.array([each]) for each in (1.7, amplitude, noise))
        draws = quantities(*process.draws(KEPT, rng))
        for factor in factors:
            found[factor].append(ranks(quantities(*truth), stretched(draws, factor), rng))
    return {factor: np.array(each) for factor, each in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_draws_of_a_process_are_calibrated_and_a_wrong_spread_would_be_noticed(known):
    assert_calibrated(partial(replicate_process, known=known), REPLICATIONS)


# --- NUTS, of every row -------------------------------------------------------------------------


X = np.random.default_rng(8).normal(size=(N, 2))
SIGNS = np.where(np.arange(N) % 2 == 0, 1, -1)
PCVM = {"signs": SIGNS, "width": 1.0, "hyperprior": PRIORS["fixed"]}
FREE = {"width": 1.0, "hyperprior": PRIORS["fixed"]}
BY_CLASS = {"signs": class_signs(np.arange(N) % 3, 3), "width": 1.0, "hyperprior": PRIORS["fixed"]}
WIDTH = pm.LogNormal.dist(0.0, 0.5)
HORSESHOE = pcvm.HalfHorseshoe(0.3, 2.0, 1.0, 1.0)


def binary(build, **options):
    return build(X, (SIGNS > 0).astype(int), **options)


def of_numbers(**options):
    return pcvm.rvm_model(X, X[:, 0], noise=pm.LogNormal.dist(-1.0, 0.4), **FREE, **options)


NUTS = {
    "PCVM": lambda: binary(pcvm.pcvm_model, **PCVM),
    "PCVM, half-horseshoe": lambda: binary(pcvm.pcvm_model, **PCVM | {"hyperprior": HORSESHOE}),
    "PCVM, random width": lambda: binary(pcvm.pcvm_model, **PCVM | {"width": WIDTH}),
    "PCVM, explicit precisions": lambda: binary(pcvm.pcvm_model, **PCVM, precision="joint"),
    "PCVM, logit": lambda: binary(pcvm.pcvm_model, **PCVM, likelihood="logit"),
    "PCVM, label noise": lambda: binary(pcvm.pcvm_model, **PCVM, likelihood=NoisyProbit(0.1)),
    "sparse probit": lambda: binary(pcvm.sparse_probit_model, prior=pcvm.Laplace(2.0)),
    "sparse probit, kernel": lambda: binary(
        pcvm.sparse_probit_model, features="kernel", prior=PRIORS["fixed"], width=1.0
    ),
    "RVM, logit": lambda: binary(pcvm.rvm_model, **FREE, likelihood="logit"),
    "RVM, probit": lambda: binary(pcvm.rvm_model, **FREE, likelihood="probit"),
    "RVM": of_numbers,
    "RVM, Student-t": lambda: of_numbers(likelihood="student-t"),
    "mPCVM": lambda: pcvm.mpcvm_model(X, np.arange(N) % 3, **BY_CLASS),
    "mRVM": lambda: pcvm.mrvm_model(X, np.arange(N) % 3, **FREE),
    "mRVM, shared": lambda: pcvm.mrvm_model(X, np.arange(N) % 3, **FREE, shared=True),
}


def last_draws(raw, names, number, thin):
    """Return each variable's draws after tuning, (number, ...), of the one chain of nutpie's raw trace."""
    pyarrow = pytest.importorskip("pyarrow")
    (batch,), _ = raw.get_arrow_trace()
    values = {}
    for name in names:
        column = batch.column(name)
        shape = [int(n) for n in column.field.metadata.get(b"shape", b"").split(b",") if n]
        flat = pyarrow.array(column)
        flat = flat.flatten() if shape else flat
        draws = flat.to_numpy(zero_copy_only=False).reshape(-1, *shape)[-number * thin :]
        values[name] = draws[thin - 1 :: thin]
    return values


class ByNUTS:
    """A model's own prior draws, observations of them, and posteriors by a compiled NUTS."""

    def __init__(self, model, thin=4):
        nutpie = pytest.importorskip("nutpie")
        self.model, self.thin, self.sample = model, thin, nutpie.sample
        self.compiled = nutpie.compile_pymc_model(model)
        self.likelihood = find_parts(model).likelihood
        self.names = [variable.name for variable in model.free_RVs]

    def observe(self, latent, nuisance, rng):
        """Return targets of latent values, as the model's data have them."""
        piece = replace(self.likelihood, **nuisance) if nuisance else self.likelihood
        if piece.targets == "numbers":
            has_degrees = "degrees" in vars(piece)
            noise = rng.standard_t(piece.degrees, N) if has_degrees else rng.normal(size=N)
            return latent + piece.noise * noise
        if piece.n_scores > 1:
            return (latent + rng.normal(size=latent.shape)).argmax(axis=1)
        return (rng.uniform(size=N) < piece.probability(latent)).astype("int64")

    def quantities(self, values, log_likelihood):
        """Return latent values, log likelihood and free variables, as the spread of draws is even, by row."""
        n = len(values["latent"])
        columns = [values["latent"].reshape(n, -1)[:, :4], log_likelihood[:, None]]
        for name in self.names:
            flat = values[name].reshape(n, -1)[:, :4]
            positive = name in ("magnitude", "width", "noise", "precision", "bias_precision")
            columns.append(np.log(flat) if positive else np.arcsinh(3.0 * flat))
        return np.hstack(columns)

    def log_likelihood(self, values, y):
        target = np.where(y > 0, 1.0, -1.0) if self.likelihood.targets == "labels" else y
        drawn = {name: values[name] for name in vars(self.likelihood) if name in values}
        pieces = [
            replace(self.likelihood, **{name: float(each[i]) for name, each in drawn.items()})
            for i in range(len(values["latent"]))
        ]
        rows = zip(pieces, values["latent"], strict=True)
        return np.array([piece.log_density(f, target).sum() for piece, f in rows])

    def replicate(self, replications, seed, factors=(1.0,)):
        """Return ranks of the truth, for each factor by which draws are stretched."""
        rng, names = np.random.default_rng(seed), [*self.names, "latent"]
        drawn = pm.draw([self.model[name] for name in names], replications, random_seed=seed)
        prior = dict(zip(names, drawn, strict=True))
        nuisance = [name for name in vars(self.likelihood) if name in prior]
        found = {factor: [] for factor in factors}
        for i in range(replications):
            truth = {name: values[[i]] for name, values in prior.items()}
            given = {name: float(truth[name][0]) for name in nuisance}
            y = self.observe(truth["latent"][0], given, rng)
            # a DataTree takes three times as long as the draws
            options = {"target_accept": 0.95, "progress_bar": False, "return_raw_trace": True}
            options |= {"draws": KEPT * self.thin, "tune": 300, "chains": 1, "cores": 1}
            seed_now, model = int(rng.integers(2**31)), self.compiled.with_data(y=y)
            raw = self.sample(model, **options, seed=seed_now)
            values = last_draws(raw, names, KEPT, self.thin)
            true = self.quantities(truth, self.log_likelihood(truth, y))
            draws = self.quantities(values, self.log_likelihood(values, y))
            for factor in factors:
                found[factor].append(ranks(true, stretched(draws, factor), rng))
        return {factor: np.array(each) for factor, each in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NUTS)
def test_nuts_is_calibrated_and_a_wrong_spread_would_be_noticed(name):
    assert_calibrated(ByNUTS(NUTS[name]()).replicate, REPLICATIONS)
