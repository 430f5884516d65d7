"""Approximations of one posterior beside NUTS, on twelve sets: what they predict and how sure they are.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/approximations.py

The model is `pcvm_model(X, y, width=width, hyperprior="default")`, the width `select_width`'s; the sets are
those of `posterior_priors.py` with two fifths of their rows. Error is the root mean square difference from
NUTS (nutpie, four chains) over held-out rows, of the posterior mean and of the standard deviation of the
probabilities; that of Gibbs, which samples the same posterior, shows how much of it is the draws' own noise.
Variational fits are `pm.fit`'s with its defaults. CPU seconds include what is compiled for each model.
"""

import argparse
import logging
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pymc as pm
from posterior_priors import sets
from sklearn.metrics import log_loss

from pcvm_pymc import approximate, find_map_em, pcvm_model, predict, sample, select_width

SHARE = 0.4  # of the rows that the sets have elsewhere
HELD_OUT = 500
REFERENCE = "NUTS"


def variational(method):
    def fit(model):
        with model:
            found = pm.fit(method=method, random_seed=1, progressbar=False)
            return found.sample(1000, random_seed=1)

    return fit


WAYS = {
    "mode": lambda model: find_map_em(model, progressbar=False),
    "Laplace": lambda model: approximate(model, method="laplace", random_seed=1),
    "EP": lambda model: approximate(model, method="ep", random_seed=1),
    "mean-field ADVI": variational("advi"),
    "full-rank ADVI": variational("fullrank_advi"),
    "Gibbs": lambda model: sample(model, method="gibbs", cores=1, random_seed=1, quiet=True),
    REFERENCE: lambda model: sample(
        model, method="nuts", nuts_sampler="nutpie", cores=1, random_seed=1, quiet=True
    ),
}


def on(X, y, X_test, y_test, ways):
    """Return a table with a row for each way."""
    width = select_width(X, y, random_state=1).width
    X_test, y_test = X_test[:HELD_OUT], y_test[:HELD_OUT]
    found, rows = {}, {}
    for name in ways:
        model = pcvm_model(X, y, width=width, hyperprior="default")
        began = time.process_time()
        result = WAYS[name](model)
        seconds = time.process_time() - began
        drawn = predict(result, X_test)["predictions"]["probability"].values
        found[name] = drawn = drawn.reshape(-1, len(X_test))
        low, high = np.quantile(drawn, [0.055, 0.945], axis=0)
        rows[name] = {
            "log loss": log_loss(y_test > 0, drawn.mean(axis=0)),
            "width": (high - low).mean(),
            "sd": drawn.std(axis=0).mean(),
            "CPU s": seconds,
        }
    exact = found[REFERENCE]
    for name, drawn in found.items():
        for what in ("mean", "std"):
            miss = getattr(drawn, what)(axis=0) - getattr(exact, what)(axis=0)
            rows[name][f"error of {what}"] = np.sqrt(np.mean(miss**2))
    return pd.DataFrame(rows).T


def show(table, digits):
    """Print a table of Markdown, its digits by column."""
    print("| | " + " | ".join(map(str, table.columns)) + " |")
    print("|" + " --- |" * (len(table.columns) + 1))
    for name, row in table.iterrows():
        cells = [f"{v:.{digits.get(c, 3)}f}" for c, v in row.items()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=12, help="only the first so many")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    given = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    tables = {}
    for number, (name, *data) in enumerate(sets(SHARE)):
        if number == given.sets:
            break
        if not number:
            on(*(each[:40] for each in data), given.ways)  # what is compiled once
        began = time.process_time()
        tables[name] = on(*data, given.ways)
        print(f"{name}: {time.process_time() - began:.0f} CPU s", flush=True)
        print(tables[name].round(4).to_string(), file=sys.stderr, flush=True)
    whole = pd.concat(tables)
    show(whole.groupby(level=1, sort=False).mean(), {"log loss": 4, "CPU s": 1})
    for what in ("log loss", "error of mean", "error of std"):
        print(what)
        show(whole[what].unstack(0)[list(tables)].loc[given.ways], {})


if __name__ == "__main__":
    main()
