"""Posteriors of one unknown width, of one after `select`'s relative widths, and of a width for each feature.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/unknown_feature_widths.py [--draws 2]

Log loss on held-out rows, CPU seconds, and effective draws of 400, the least of the rows' latent values. All
have 30 k-means centres, weights of both signs and chains of the same length. In the first set two features of
ten matter.
"""

import argparse
import time
import warnings

import arviz as az
import numpy as np
import pymc as pm
from posterior_priors import standardised
from scipy.special import ndtr
from sklearn.metrics import log_loss
from tables import markdown

from pcvm_pymc import pcvm_model, predict, sample, select
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.experiments import datasets

SETS = {"two of ten": 200, "image": 300, "crabs": 100, "pima_ripley": 300, "heart": 170}
WAYS = ("one width", "one, on `X / select(...).width`", "one for each feature")
SHORT = {"chains": 2, "draws": 200, "tune": 1000, "thin": 10, "max_sweeps": 3000, "quiet": True}


def drawn(name, n, seed):
    """Return standardised rows and labels, for training and for testing."""
    rng = np.random.default_rng(seed)
    if name == "two of ten":
        X = rng.normal(size=(n + 2000, 10))
        y = rng.uniform(size=len(X)) < ndtr(1.5 * np.sin(1.5 * X[:, 0]) + 1.5 * X[:, 1])
    else:
        data = datasets.load(name)
        order = rng.permutation(len(data.X))[: n + 2000]
        X, y = data.X[order].astype(float), data.y[order] == np.unique(data.y)[1]
    return standardised(X, y, n)


def fitted(way, X, y, new):
    """Return probabilities of the new rows, and the effective draws."""
    width = "lognormal"
    if way == WAYS[1]:
        unit = np.asarray(select(X, y, over=("width", "scale", "features"), random_state=0).width)
        X, new = X / unit, new / unit
    elif way == WAYS[2]:
        width = pm.LogNormal.dist(np.log(median_distance(X)), 0.7, shape=X.shape[1])
    model = pcvm_model(X, y, width=width, basis="kmeans", signs="both")
    posterior = sample(model, method="gibbs", random_seed=1, **SHORT)
    p = predict(posterior, new)["predictions"]["probability"].mean(("chain", "draw"))
    return p.to_numpy(), float(az.ess(posterior["posterior"].to_dataset())["latent"].min())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, n in SETS.items():
        found = np.empty((options.draws, len(WAYS), 3))
        for seed in range(options.draws):
            X, y, new, truth = drawn(name, n, seed)
            for k, way in enumerate(WAYS):
                began = time.process_time()
                p, effective = fitted(way, X, y, new)
                seconds = time.process_time() - began
                found[seed, k] = log_loss(truth, p), seconds, effective
            print(name, seed, found[seed].round(4).tolist(), flush=True)
        loss, seconds, effective = found.mean(axis=0).T
        each = zip(loss, seconds, effective, strict=True)
        rows.append([f"{name}, {n}", *(f"{v:.3f}; {s:.1f} s; {e:.0f}" for v, s, e in each)])
    print(markdown(["log loss; CPU s; effective draws", *WAYS], rows))


if __name__ == "__main__":
    main()
