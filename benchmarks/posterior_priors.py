"""Held-out log loss of the posterior mean under several priors of the weights, and how chains mix.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/posterior_priors.py

Gibbs, two chains of 7500 sweeps, the last 5000 kept; the width is chosen once for each set by
`select_width`. Sets of the folder are left out where there is none.
"""

import logging
import time

import numpy as np
import pandas as pd
from sklearn.datasets import make_moons
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import Hyperprior, PCVMClassifier, pcvm_model, predict, sample, select_width
from pcvm_pymc.assessment.comparison import convergence
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.core.pieces.priors import prior_latent_size
from pcvm_pymc.experiments import datasets

REAL = {"banana": 200, "heart": 150, "pima_ripley": 200, "wisconsin_diagnostic": 200, "german": 300}
# c, the prior median size of the centred latent function, shape of d's hyperprior
PRIORS = [
    (5.0, 3.0, None),
    (5.0, 2.0, 0.5),
    (2.0, 2.0, None),
    (2.0, 2.0, 0.5),
    (1.0, 1.0, None),
    (1.0, 2.0, None),
    (1.0, 3.0, None),
    (1.0, 2.0, 0.5),
    (0.5, 2.0, None),
    (0.5, 2.0, 0.5),
]


def moons(n, random_state):
    X, y = make_moons(n, noise=0.25, random_state=random_state)
    return X, 2.0 * y - 1.0


GENERATED = {
    "ripley, 100": (datasets.ripley_mixture, 100),
    "ripley, 250": (datasets.ripley_mixture, 250),
    "moons, 100": (moons, 100),
    "moons, 250": (moons, 250),
    "twonorm, 200": (datasets.twonorm, 200),
    "ringnorm, 200": (datasets.ringnorm, 200),
    "waveform, 200": (datasets.waveform, 200),
}


def sets():
    """Yield name, training inputs and labels, test inputs and labels."""
    for name, (make, n) in GENERATED.items():
        X, y = make(n + 2000, random_state=1)
        yield name, *standardised(X, y, n)
    there = datasets.available()
    for name, n in REAL.items():
        if name in there:
            data = datasets.load(name)
            order = np.random.default_rng(1).permutation(len(data.X))
            label = np.where(data.y == np.unique(data.y)[1], 1.0, -1.0)
            yield f"{name}, {n}", *standardised(data.X[order], label[order], n)


def standardised(X, y, n):
    scaler = StandardScaler().fit(X[:n])
    X = scaler.transform(X)
    return X[:n], y[:n], X[n:], y[n:]


def prior_of(c, size, rate_shape, Phi, signs):
    scale = size / prior_latent_size(Phi, signs, c)
    return Hyperprior(c, c * scale**2, 0.5, 0.5, rate_shape)


def evaluate(width, prior, data):
    """Return held-out log loss, worst r-hat and smallest ESS per CPU second."""
    X, y, X_test, y_test = data
    Phi = design_matrix("rbf", X, X, width)
    model = pcvm_model(X, y, width=width, hyperprior=prior_of(*prior, Phi, y))
    began = time.process_time()
    posterior = sample(
        model,
        method="gibbs",
        chains=2,
        draws=1000,
        tune=2500,
        thin=5,
        max_sweeps=7500,
        random_seed=1,
        quiet=True,
    )
    seconds = time.process_time() - began
    probability = predict(posterior, X_test)["predictions"]["probability"].mean(("chain", "draw"))
    found = convergence(posterior)
    return log_loss(y_test > 0, probability.values), found.rhat, found.ess / seconds


def main():
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    losses, rhats, speeds = {}, {}, {}
    for name, X, y, X_test, y_test in sets():
        width = select_width(X, y, random_state=1).width
        plug_in = PCVMClassifier(width=width).fit(X, y).predict_proba(X_test)
        losses["MAP, `plug_in()`", name] = log_loss(y_test > 0, plug_in[:, 1])
        for prior in PRIORS:
            c, size, shape = prior
            row = f"c = {c:g}, size {size:g}{', d learned' if shape else ''}"
            result = evaluate(width, prior, (X, y, X_test, y_test))
            losses[row, name], rhats[row, name], speeds[row, name] = result
    table = pd.Series(losses).unstack()[list(dict.fromkeys(name for _, name in losses))]
    table = table.loc[list(dict.fromkeys(row for row, _ in losses))]
    summary = pd.DataFrame({"mean": table.mean(axis=1), "mean rank": table.rank().mean(axis=1)})
    summary["median r-hat"] = pd.Series(rhats).unstack().median(axis=1)
    summary["median ESS / CPU s"] = pd.Series(speeds).unstack().median(axis=1)
    whole = pd.concat([summary, table], axis=1)
    print("| prior | " + " | ".join(whole.columns) + " |")
    print("|" + " --- |" * (len(whole.columns) + 1))
    for row, values in whole.iterrows():
        cells = [
            "" if np.isnan(v) else f"{v:.3g}" if k == 3 else f"{v:.3f}"
            for k, v in enumerate(values)
        ]
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
