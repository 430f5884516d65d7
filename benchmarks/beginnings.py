"""The relevance vector machine by default, and from the empty model alone, on sets of two classes.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/beginnings.py [--draws 7] [SET:ROWS ...]
"""

import argparse
import time
import warnings

import numpy as np
from defaults import SETS
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import RVMClassifier
from pcvm_pymc.core.evidence import sequential
from pcvm_pymc.experiments.datasets import load


def draw(data, n, seed):
    """Return standardised training and test rows."""
    order = np.random.default_rng(1000 + seed).permutation(len(data.y))
    train, test = order[:n], order[n : n + 2000]
    scaler = StandardScaler().fit(data.X[train])
    return (
        scaler.transform(data.X[train]),
        data.y[train],
        scaler.transform(data.X[test]),
        data.y[test],
    )


def scored(data, n, seed):
    """Return error in per cent, log loss, vectors and seconds of a fit."""
    X, y, new, truth = draw(data, n, seed)
    began = time.process_time()
    model = RVMClassifier(random_state=seed).fit(X, y)
    seconds, probability = time.process_time() - began, model.predict_proba(new)
    error = 100 * np.mean(model.predict(new) != truth)
    loss = log_loss(truth, probability, labels=model.classes_)
    return error, loss, len(model.support_), seconds


def main():
    """Print a line for each set, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=7)
    parser.add_argument("sets", nargs="*", default=SETS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    beginnings = {"default": sequential._TRAPPED, "empty model alone": -1}
    means = {name: [] for name in beginnings}
    for each in options.sets:
        name, n = each.split(":")
        data = load(name, random_state=0)
        if len(np.unique(data.y)) > 2:
            continue
        for way, most in beginnings.items():
            sequential._TRAPPED = most
            rows = [scored(data, int(n), seed) for seed in range(options.draws)]
            means[way].append(np.mean(rows, axis=0))
            print(each, way, np.round(means[way][-1], 4), flush=True)
    for way, rows in means.items():
        print("mean", way, np.round(np.mean(rows, axis=0), 4))


if __name__ == "__main__":
    main()
