"""Held-out log loss of several classes: posterior means under two priors of the weights, beside the modes'.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/class_priors.py

Half of the rows, at most 150, are trained on, two stratified draws; the width is chosen by `select`.
Gibbs, two chains of 400 draws, at most 15000 sweeps.
"""

import warnings

import numpy as np
import pandas as pd
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import log_loss

from pcvm_pymc import MPCVMClassifier, find_map_em, mpcvm_model, predict, sample, select
from pcvm_pymc.experiments import datasets
from pcvm_pymc.experiments.head_to_head import stratified_draws

DRAWN = {"draws": 400, "chains": 2, "method": "gibbs", "max_sweeps": 15000, "random_seed": 1}


def sets():
    """Yield name, inputs and numbers of classes."""
    yield "iris", *load_iris(return_X_y=True)
    yield "wine", *load_wine(return_X_y=True)
    if "glass" in datasets.available():
        glass = datasets.load("glass")
        yield "glass", glass.X, np.unique(glass.y, return_inverse=True)[1]


def on(X, y, seed):
    """Return log losses on one draw."""
    size = min(150, len(y) // 2)
    X, y, X_test, y_test = next(stratified_draws(X, y, size, len(y) - size, seed=seed))
    width = float(select(X, y, over=("width",), random_state=1).width)
    average = MPCVMClassifier(random_state=1).fit(X, y)
    loss = {"averaged MAP": log_loss(y_test, average.predict_proba(X_test))}
    for name in ("plug_in", "learned"):
        model = mpcvm_model(X, y, width=width, hyperprior=name)
        loss[f"MAP, {name}"] = of_result(find_map_em(model, progressbar=False), X_test, y_test)
    for name, basis in (("default", None), ("learned", None), ("learned", "kmeans")):
        model = mpcvm_model(X, y, width=width, hyperprior=name, basis=basis)
        posterior = sample(model, quiet=True, **DRAWN)
        means = ", means of rows" if basis else ""
        loss[f"posterior, {name}{means}"] = of_result(posterior, X_test, y_test)
    return loss


def of_result(result, X, y):
    found = predict(result, X)["predictions"]["probability"]
    return log_loss(y, found.mean(("chain", "draw")))


def main():
    warnings.simplefilter("ignore")
    rows = {}
    for name, X, y in sets():
        for seed in (1, 2):
            rows[f"{name}, {seed}"] = on(X, y, seed)
            print(
                f"{name}, {seed}",
                {k: round(v, 4) for k, v in rows[f"{name}, {seed}"].items()},
                flush=True,
            )
    table = pd.DataFrame(rows).T
    table.loc["mean"] = table.mean()
    print("| set | " + " | ".join(table.columns) + " |\n|" + " --- |" * (table.shape[1] + 1))
    for name, values in table.iterrows():
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in values) + " |")


if __name__ == "__main__":
    main()
