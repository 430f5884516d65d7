"""Held-out log loss of the posterior mean under several priors of the weights, beside the modes'.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/posterior_priors.py [--draws 10 --default]

Gibbs, two chains of 5500 sweeps, of which 4000 are kept; the width is chosen once for each set by
`select_width`, or several are weighed by `select`. Sets of the folder are left out where there is none. With
several draws of each set the table holds means over them, and differences from the README's posterior with
their standard errors stand below it; ``--default`` leaves out the other priors and the unknown widths.
"""

import argparse
import time

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.special import ndtr
from sklearn.datasets import make_moons
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from tables import markdown

from pcvm_pymc import (
    Hyperprior,
    PCVMClassifier,
    find_map_em,
    pcvm_model,
    predict,
    sample,
    select,
    select_width,
)
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.pieces.centres import choose_means
from pcvm_pymc.core.pieces.kernels import design_matrix, median_distance
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.priors import prior_latent_size
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.experiments import datasets

REAL = {"banana": 200, "heart": 150, "pima_ripley": 200, "wisconsin_diagnostic": 200, "german": 300}
# c, the prior median size of the centred latent function, shape of d's hyperprior, factor of the width
PRIORS = [
    (1.0, 2.0, None, 1.0),
    (1.0, 2.0, 0.5, 1.0),
    (1.0, 2.0, 0.5, 0.7),
    (0.5, 2.0, 0.5, 1.0),
    (0.5, 4.0, 0.5, 1.0),
    (0.5, 2.0, 0.5, 0.7),
    (0.5, 2.0, 0.5, 1.4),
    (0.25, 2.0, 0.5, 1.0),
    (0.25, 4.0, 0.5, 1.0),
]
DEFAULT = (0.5, 2.0, 0.5, 1.0)
MEANS = 'the same on 30 means of rows, `basis="kmeans"`'
EITHER = (5.0, 2.0, 0.5, 1.0)  # what `Hyperprior.learned` has where weights of either sign cancel
BOTH = 'c = 5, size 2, d learned on those means, `signs="both"`'
MIXTURE = "those at the widths of `select`, by its weights: `mixture`"
UNKNOWN = "width unknown, log-normal around the median distance, on 30 means"
UNKNOWN_BOTH = 'the same with `signs="both"`'
WIDTHS = [prior for prior in PRIORS if prior[:3] == (0.5, 2.0, 0.5)]


def moons(n, random_state):
    X, y = make_moons(n, noise=0.25, random_state=random_state)
    return X, 2.0 * y - 1.0


GENERATED = [
    ("ripley", datasets.ripley_mixture, 100),
    ("ripley", datasets.ripley_mixture, 250),
    ("moons", moons, 100),
    ("moons", moons, 250),
    ("twonorm", datasets.twonorm, 200),
    ("ringnorm", datasets.ringnorm, 200),
    ("waveform", datasets.waveform, 200),
]


def sets(seed=1):
    """Yield name, training inputs and labels, test inputs and labels."""
    for name, make, n in GENERATED:
        X, y = make(n + 2000, random_state=seed)
        yield f"{name}, {n}", *standardised(X, y, n)
    there = datasets.available()
    for name, n in REAL.items():
        if name in there:
            data = datasets.load(name)
            order = np.random.default_rng(seed).permutation(len(data.X))
            label = np.where(data.y == np.unique(data.y)[1], 1.0, -1.0)
            yield f"{name}, {n}", *standardised(data.X[order], label[order], n)


def standardised(X, y, n):
    scaler = StandardScaler().fit(X[:n])
    X = scaler.transform(X)
    return X[:n], y[:n], X[n:], y[n:]


def prior_of(c, size, rate_shape, Phi, signs):
    scale = size / prior_latent_size(Phi, signs, c)
    return Hyperprior(c, c * scale**2, 0.5, 0.5, rate_shape)


def evaluate(width, prior, data, basis=None):
    """Return the posterior mean of the test rows' probabilities, and the worst r-hat.

    `basis` is centres and their weights' signs, by default the rows and their labels.
    """
    X, y, X_test, _ = data
    centres, sign = (X, y.copy()) if basis is None else basis
    *prior, factor = prior
    Phi, ahead = (design_matrix("rbf", rows, centres, width * factor) for rows in (X, X_test))
    problem = GibbsProblem.of(Problem(Phi, y, sign, prior_of(*prior, Phi, sign), Probit()))
    chains = []
    for number in range(2):
        rng = np.random.default_rng([1, number])
        state = problem.start(rng)
        advance(problem, state, rng, draws=1, thin=1500)
        chains.append(advance(problem, state, rng, draws=500, thin=8))
    size, bias, _ = map(np.stack, zip(*chains, strict=True))
    latent = np.stack([problem.latent(*each) for each in zip(size, bias, strict=True)])
    rhat = az.rhat(xr.Dataset({"latent": (("chain", "draw", "obs"), latent)}))["latent"].max()
    weight = (size * problem.sign).reshape(-1, len(sign))
    return ndtr(weight @ ahead.T + bias.reshape(-1, 1)).mean(axis=0), float(rhat)


def either_sign(means):
    """Return each centre twice, with a sign of either kind."""
    return np.tile(means[0], (2, 1)), np.repeat([1.0, -1.0], len(means[0]))


def averaged(data, basis):
    """Return the average over the widths that `select` finds, and the worst r-hat of its parts."""
    X, y, *_ = data
    widths, weights = select(X, y, random_state=1).by_width()
    parts = [evaluate(width, EITHER, data, basis) for width in widths]
    mean = sum(weight * each for weight, (each, _) in zip(weights, parts, strict=True))
    return mean, max(rhat for _, rhat in parts)


def over_widths(data, signs):
    """Return the same of a posterior over the width, too, on means of rows."""
    X, y, X_test, _ = data
    around = pm.LogNormal.dist(np.log(median_distance(X)), 1.0)
    model = pcvm_model(X, y, basis="kmeans", signs=signs, width=around)
    options = {"chains": 2, "thin": 10, "max_sweeps": 11_000, "random_seed": 1, "quiet": True}
    posterior = sample(model, method="gibbs", draws=500, **options)
    rhat = az.rhat(posterior["posterior"].to_dataset()[["latent"]])["latent"].max()
    probability = predict(posterior, X_test)["predictions"]["probability"]
    return probability.mean(("chain", "draw")).to_numpy(), float(rhat)


def name_of(c, size, shape, factor):
    learned = ", d learned" if shape else ""
    return f"c = {c:g}, size {size:g}{learned}{'' if factor == 1 else f', width times {factor:g}'}"


def on(X, y, X_test, y_test, priors):
    """Return log losses on one set, and r-hats of the posteriors."""
    width = select_width(X, y, random_state=1).width
    at_width = PCVMClassifier(width=width, hyperprior="plug_in", estimation="em")
    modes = {
        "MAP, `plug_in()`": at_width,
        "averaged MAP, `PCVMClassifier()`": PCVMClassifier(random_state=1),
        "posterior, `PCVMClassifier(estimation='posterior', width='shared')`": PCVMClassifier(
            estimation="posterior", width="shared", random_state=1
        ),
    }
    probability = {name: m.fit(X, y).predict_proba(X_test)[:, 1] for name, m in modes.items()}
    point = find_map_em(pcvm_model(X, y, width=width), progressbar=False)
    found = predict(point, X_test)["predictions"]["probability"]
    probability["MAP, `pcvm_model(X, y)`"] = found.values.ravel()
    rhat = {}
    for prior in priors:
        name = name_of(*prior)
        probability[name], rhat[name] = evaluate(width, prior, (X, y, X_test, y_test))
    means = choose_means(X, y, random_state=0)
    probability[MEANS], rhat[MEANS] = evaluate(width, DEFAULT, (X, y, X_test, y_test), means)
    both = either_sign(means)
    probability[BOTH], rhat[BOTH] = evaluate(width, EITHER, (X, y, X_test, y_test), both)
    probability[MIXTURE], rhat[MIXTURE] = averaged((X, y, X_test, y_test), both)
    if len(priors) > 1:
        for name, signs in ((UNKNOWN, None), (UNKNOWN_BOTH, "both")):
            probability[name], rhat[name] = over_widths((X, y, X_test, y_test), signs)
    if set(WIDTHS) <= set(priors):
        three = [probability[name_of(*prior)] for prior in WIDTHS]
        probability["mean of c = 0.5, size 2, d learned over the three widths"] = np.mean(
            three, axis=0
        )
    return {name: log_loss(y_test > 0, each) for name, each in probability.items()}, rhat


def differences(draws):
    """Return how much each row loses to the README's posterior, and the standard error over draws.

    The error of a mean over sets adds those of its sets, which are fixed: only the draws are random.
    """
    behind = [draw - draw.loc[MIXTURE] for draw in draws]
    stacked = np.stack([each.to_numpy() for each in behind])
    error = stacked.std(axis=0, ddof=1) / np.sqrt(len(draws))
    mean = pd.DataFrame(stacked.mean(axis=0), index=draws[0].index, columns=draws[0].columns)
    mean.insert(0, "mean", mean.mean(axis=1))
    mean.insert(1, "±", np.sqrt((error**2).sum(axis=1)) / error.shape[1])
    return mean


def rows_of(table, digits):
    """Return the header and the rows of a table for the page of benchmarks."""
    rows = [
        [name, *("" if np.isnan(v) else f"{v:.{digits.get(k, 4)}f}" for k, v in values.items())]
        for name, values in table.iterrows()
    ]
    return ["prior", *table.columns], rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--default", action="store_true")
    options = parser.parse_args()
    priors = [DEFAULT] if options.default else PRIORS
    tables, rhats = [], {}
    for seed in range(1, options.draws + 1):
        losses = {}
        for name, *data in sets(seed=seed):
            began = time.process_time()
            losses[name], rhats[name, seed] = on(*data, priors)
            print(f"{name}, draw {seed}: {time.process_time() - began:.0f} CPU s", flush=True)
        tables.append(pd.DataFrame(losses))
    table = sum(tables) / len(tables)
    summary = pd.DataFrame({"mean": table.mean(axis=1), "mean rank": table.rank().mean(axis=1)})
    summary["median r-hat"] = pd.DataFrame(rhats).median(axis=1)
    print(markdown(*rows_of(pd.concat([summary, table], axis=1), {"mean rank": 1})))
    if options.draws > 1:
        print("\nbehind the mixture (positive: worse than it)\n")
        print(markdown(*rows_of(differences(tables), {})))


if __name__ == "__main__":
    main()
