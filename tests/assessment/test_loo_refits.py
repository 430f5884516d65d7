"""`loo` beside refits of single rows by another optimiser, over likelihoods, priors, signs and classes."""

import numpy as np
import pytest
from problems import fixed_rng, without
from scipy.optimize import minimize

from pcvm_pymc.assessment.leave_one_out import FittedMode, _scored
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.pieces import likelihoods
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Normal, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, SharedHyperprior
from pcvm_pymc.core.problem import Problem

LIKELIHOODS = [Probit(), Logit(), NoisyProbit(0.1), likelihoods.NormalProbability(), Normal(0.5)]
LIKELIHOODS += [likelihoods.StudentT(0.3, 4.0), MultinomialProbit(3), MultinomialProbit(4)]
PRIORS = ["gamma", "wide gamma", "Laplace", "Jeffreys", "shared"]


def random_problem(likelihood, prior, rng, *, widest=0.7, largest=2.0):
    """Return a problem of random rows, width, scale, signs and bias, and the rows of its bases.

    Logs of the width in medians and of the scale are at most the given ones; where widths are up to ten
    medians, two fifths of the problems have centres that are no rows.
    """
    n, several = int(rng.integers(12, 50)), likelihood.n_scores > 1
    X = rng.normal(size=(n, int(rng.integers(1, 4))))
    truth = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, -1]
    if likelihood.targets == "numbers":
        label = truth + 0.3 * rng.standard_t(3, size=n)
    elif several:
        label = np.argsort(np.argsort(truth + 0.5 * rng.normal(size=n))) * likelihood.n_scores // n
    else:
        label = np.where(truth + 0.7 * rng.normal(size=n) > 0, 1.0, -1.0)
        label[:2] = 1.0, -1.0
    own = rng.permutation(n)[: int(rng.integers(n // 2, n + 1))]
    Phi = RBF(np.exp(rng.uniform(-1.0, widest)) * median_distance(X))(X, X[own])
    scale = np.exp(rng.uniform(-1.0, largest))
    kind = {
        "gamma": Hyperprior(5.0, 5.0 * scale**2, 1.0, 1.0),
        "wide gamma": Hyperprior(1.0, scale**2, 0.5, 0.5),
        "Laplace": Laplace(float(np.exp(rng.uniform(-2.0, 2.0)))),
        "Jeffreys": Hyperprior.jeffreys(),
        "shared": SharedHyperprior(1.0, scale**2, 1.0, 1.0),
    }[prior]
    sign = None
    if rng.uniform() < 0.6 and likelihood.targets != "numbers" and prior != "shared":
        sign = class_signs(label, likelihood.n_scores)[own] if several else label[own]
    bias = "none" if prior == "shared" else rng.choice(["prior", "free", "none"], p=[0.6, 0.2, 0.2])
    options = {"bias": str(bias), "shared": prior == "shared"}
    if widest > 2.0 and rng.uniform() < 0.4:
        own = np.full(len(own), -1)
    return Problem(Phi, label, sign, kind, likelihood, **options), own


def maximum(part, weight, bias):
    """Return weights and biases of the nearest maximum by SciPy, each value split into its two sides."""
    shape, n, C = weight.shape, weight.size, part.n_scores
    prior, likelihood = part.hyperprior, part.likelihood
    penalty = np.append(np.full(n, prior.penalty), np.full(C, prior.penalty))
    penalty[n:] *= part.bias == "prior"

    def value(sides):
        up, down = np.split(sides, 2)
        w, b = (up - down)[:n].reshape(shape), (up - down)[n:]
        latent = part.Phi @ w + (b if C > 1 else b[0])
        score = likelihood.score(latent, part.label).reshape(len(latent), C)
        slope = -np.append((part.Phi.T @ score).ravel(), score.sum(axis=0))
        total = -likelihood.log_density(latent, part.label).sum() + penalty @ (up + down)
        if not prior.penalty:
            total -= part.log_prior(w, b)
            slope[:n] += (prior.weight_precision(w) * w).ravel()
            if part.bias == "prior":
                slope[n:] += prior.bias_precision(b) * b
        return total, np.concatenate([slope + penalty, penalty - slope])

    start = np.append(weight.ravel(), np.broadcast_to(bias, (C,)))
    most = np.full((2, n + C), np.inf)
    if part.sign is not None:
        most[0, :n][part.sign.ravel() < 0] = 0.0
        most[1, :n][part.sign.ravel() > 0] = 0.0
    if part.bias == "none":
        most[:, n:] = 0.0
    sides = np.concatenate([np.maximum(start, 0.0), np.maximum(-start, 0.0)])
    bounds = [(0.0, each) for each in most.ravel()]
    stop = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": stop}
    found = minimize(value, sides, **how)
    up, down = np.split(found.x, 2)
    return (up - down)[:n].reshape(shape), (up - down)[n:] if C > 1 else (up - down)[n]


def errors(likelihood, prior, seed, n_rows, **ranges):
    """Return how far rows' scores are from their refits, and the number of rows not converged.

    Refits start at the mode, as a maximum is only a local one but under concave pieces: SciPy's, or EM's if
    that is nearer (for d = 0 the density is infinite at zero, and EM's alone).
    """
    rng = fixed_rng(seed)
    whole, own = random_problem(likelihood, prior, rng, **ranges)
    fit = fit_em(whole)
    found = _scored([FittedMode(1.0, whole, fit.weight, fit.bias, own)])
    out = []
    for row in rng.permutation(len(whole.label))[:n_rows]:
        part, columns = without(whole, row, own)

        def error(weight, bias, row=row, columns=columns):
            latent = (whole.Phi[row, columns] @ weight + bias)[None]
            density = whole.likelihood.log_density(latent, whole.label[[row]])[0]
            return abs(float(found.elpd_i[row]) - density)

        start = fit.weight[columns], fit.bias
        off = np.inf if prior == "Jeffreys" else error(*maximum(part, *start))
        if off > 0.01:
            end = fit_em(part, Start(*start), EMOptions(tol=1e-9))
            off = min(off, error(end.weight, end.bias))
        out.append(off)
    return out, found.n_not_converged


CASES = [
    pytest.param(likelihood, prior, id=f"{likelihood.name}-{likelihood.n_scores}-{prior}")
    for likelihood in LIKELIHOODS
    for prior in PRIORS
    if prior != "shared" or likelihood.n_scores > 1
]


TWO_THOUSAND = pytest.param(range(100, 108), 8, marks=pytest.mark.slow)


@pytest.mark.parametrize(("seeds", "n_rows"), [([7], 2), TWO_THOUSAND])
@pytest.mark.parametrize(("likelihood", "prior"), CASES)
def test_rows_have_the_scores_of_their_refits(likelihood, prior, seeds, n_rows):
    for seed in seeds:
        found, n_not_converged = errors(likelihood, prior, seed, n_rows)
        assert np.sum(np.array(found) > 0.01) <= n_not_converged, (seed, found)


#: problems with a row that was off by .01 to .2 nats without a doubt: a weight that came to zero without it,
#: a curvature that is another where the latent value ends, refits that ended at a lower maximum
SURE_AND_WRONG = [
    (Probit(), "wide gamma", 5),
    *((Logit(), "gamma", seed) for seed in (5, 6, 41)),
    *((NoisyProbit(0.3), "gamma", seed) for seed in (5, 6, 47, 50)),
]
WIDE = [
    pytest.param(likelihood, prior, seed, marks=pytest.mark.slow)
    for likelihood in LIKELIHOODS[:4]
    for prior in PRIORS[:3]
    for seed in range(200, 210)
]


@pytest.mark.parametrize(("likelihood", "prior", "seed"), SURE_AND_WRONG + WIDE)
def test_wide_kernels_and_centres_without_rows_leave_no_row_sure_and_wrong(likelihood, prior, seed):
    found, n_not_converged = errors(likelihood, prior, seed, 50, widest=2.7, largest=3.0)
    assert np.sum(np.array(found) > 0.01) <= n_not_converged, found
