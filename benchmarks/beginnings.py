"""The relevance vector machine by default, and from the empty model alone, on sets of two classes.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/beginnings.py [--draws 7] [SET:ROWS ...]
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from defaults import SETS
from sklearn.exceptions import ConvergenceWarning

from pcvm_pymc import RVMClassifier
from pcvm_pymc.assessment.comparison import scores
from pcvm_pymc.core.evidence import relevance
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import fitted_rival, mean_and_error, stratified_draws

BEGINNINGS = {"default": relevance._TRAPPED, "empty model alone": -1}
MEASURES = ["error", "AUC", "log loss", "vectors", "seconds"]


def of_set(data, n_rows, n_draws):
    """Return the mean scores of one set, by beginning."""
    y = np.unique(data.y, return_inverse=True)[1]
    draws = stratified_draws(data.X, y, n_rows, min(2000, len(y) - n_rows), seed=1000)
    tables = []
    for seed in range(n_draws):
        X, label, X_test, y_test = next(draws)
        rows = {}
        for way, most in BEGINNINGS.items():
            relevance._TRAPPED = most
            rival = fitted_rival(RVMClassifier(random_state=seed), X, label, X_test)
            measured = scores(y_test, np.clip(rival.probability, 1e-12, 1 - 1e-12))
            rows[way] = {**measured, "vectors": rival.vectors, "seconds": rival.seconds}
        tables.append(pd.DataFrame(rows).T[MEASURES])
    return mean_and_error(tables)[0]


def main():
    """Print a table for each set, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=7)
    parser.add_argument("sets", nargs="*", default=SETS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    means = []
    for each in options.sets:
        name, rows = each.split(":")
        data = load(name, random_state=0)
        if len(np.unique(data.y)) > 2:
            continue
        means.append(of_set(data, int(rows), options.draws))
        print(f"{each}\n{means[-1].round(4).to_string()}", flush=True)
    print(f"mean\n{(sum(means) / len(means)).round(4).to_string()}")


if __name__ == "__main__":
    main()
