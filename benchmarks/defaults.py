"""Defaults beside what a user would take instead: held-out scores on several stratified draws of each set.

``OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/defaults.py [SET:ROWS ...] [--draws 5]
[--only NAME ...]`` prints a row for each set and estimator, and at the end mean ranks: of those named, or of
all but the posterior, which takes ten times as long. Every estimator sees the same draws; seconds are those
of the processor. ``PCVM, width by CV`` is one mode at scale 1, ``one width`` the average over one width.

``--models README paper`` in place of that: log loss of the mode and of the posterior mean of each model, and
the share of draws in which the mode's ``rate`` is within the posterior's 99 %.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

from pcvm_pymc import find_map_em, pcvm_model, predict, sample, select
from pcvm_pymc.estimators.measures import scores
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.baselines import gaussian_process
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import (
    estimators,
    fitted_rival,
    mean_and_error,
    peers,
    stratified_draws,
)
from pcvm_pymc.inference.sampling import sampler_for
from pcvm_pymc.model.read import read

SETS = (
    *("wisconsin_diagnostic:120", "banana:300", "heart:170", "diabetis:300", "german:300"),
    *("thyroid:140", "titanic:150", "image:300", "ringnorm:200", "twonorm:200", "waveform:300"),
    *("ripley:200", "crabs_sex:100", "australian:300", "iris:100", "wine:100", "glass:140"),
)
MEASURES = ["error", "AUC", "1-RMSE", "log loss", "vectors", "seconds"]


MODELS = {
    "README": lambda X, y: pcvm_model(X, y, basis="kmeans", signs="both", width="lognormal"),
    "paper": lambda X, y: pcvm_model(X, y, width=select(X, y, over=("width",)).width),
}


_TRANSITIONS = {"hmc": 1000, "gibbs": 10_000}  # of a chain at most: what a mean over rows needs


def mode_and_posterior(model, X_test, y_test) -> dict[str, float]:
    """Return how a mode and a posterior predict, and whether their scales are the same."""
    most = _TRANSITIONS[sampler_for(read(model))[0]]
    how = {"draws": 250, "random_seed": 1, "quiet": True, "cores": 1, "max_iter": most}
    found = {"mode": find_map_em(model, progressbar=False), "posterior": sample(model, **how)}
    row = {}
    for name, tree in found.items():
        p = predict(tree, X_test)["predictions"]["probability"].mean(("chain", "draw")).values
        row[name] = -np.log(np.where(y_test, p, 1.0 - p).clip(1e-12)).mean()
    rate, draws = (tree["posterior"]["rate"].values.ravel() for tree in found.values())
    low, middle, high = np.quantile(draws, (0.005, 0.5, 0.995))
    return row | {"within 99 %": low <= rate[0] <= high, "rate": rate[0], "its median": middle}


def rivals(n_classes: int, shape: tuple[int, int], seed: int) -> dict:
    """Return the estimators that are compared."""
    ours = estimators(n_classes, seed=seed)
    del ours["paper's sparse MAP"]
    kind = PCVMClassifier if n_classes == 2 else MPCVMClassifier
    ours["one width"] = kind(width="shared", random_state=seed)
    if n_classes == 2:
        ours["PCVM, width by CV"] = PCVMClassifier(width="cv", random_state=seed)
        ours["from the bottom up"] = PCVMClassifier(estimation="bottom-up", random_state=seed)
    ours["posterior"] = kind(estimation="posterior", random_state=seed)
    others = peers(n_classes, *shape, seed=seed)
    others["random forest"] = RandomForestClassifier(500, random_state=seed)
    if "Gaussian process" in others:
        others["Gaussian process, widths"] = gaussian_process(shape[1], seed, per_feature=True)
    return {**ours, **others}


def draws_of(
    name: str, n_rows: int, n_draws: int, only: list[str], models: list[str]
) -> list[pd.DataFrame]:
    """Return the scores of some estimators, or of models' modes and posteriors, on each draw of a set."""
    data = load(name, random_state=0)
    y = np.unique(data.y, return_inverse=True)[1]
    draws = stratified_draws(data.X, y, n_rows, min(2000, len(y) - n_rows), seed=1000)
    tables = []
    for seed, (X, labels, X_test, y_test) in zip(range(n_draws), draws, strict=False):
        if models:
            rows = {k: mode_and_posterior(MODELS[k](X, labels), X_test, y_test) for k in models}
            tables.append(pd.DataFrame(rows).T.astype(float))
            continue
        compared = rivals(int(y.max()) + 1, X.shape, seed)
        rows = {}
        for label in (each for each in compared if each in only):
            rival = fitted_rival(compared[label], X, labels, X_test)
            measured = scores(y_test, np.clip(rival.probability, 1e-12, 1 - 1e-12))
            rows[label] = {**measured, "vectors": rival.vectors, "seconds": rival.seconds}
        tables.append(pd.DataFrame(rows).T[MEASURES])
    return tables


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET:ROWS")
    parser.add_argument("--draws", type=int, default=5)
    names = list(rivals(2, (100, 2), 0) | rivals(3, (100, 2), 0))
    usual = [name for name in names if name != "posterior"]
    parser.add_argument("--only", nargs="+", default=usual, choices=names)
    parser.add_argument("--models", nargs="+", default=[], choices=MODELS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    means = {}
    for each in options.sets:
        name, rows = each.split(":")
        chosen = options.only, options.models
        mean, error = mean_and_error(draws_of(name, int(rows), options.draws, *chosen))
        means[each] = mean
        print(f"\n{name}, {rows} rows, {options.draws} draws")
        shown = mean if options.models else mean.assign(**{"± log loss": error["log loss"]})
        print(shown.to_string(float_format="{:.4g}".format), flush=True)
    if options.models:
        print(pd.concat(means).groupby(level=1).mean().to_string(float_format="{:.4g}".format))
        return
    print(f"\nmeans over {len(means)} sets, of the sets that each was run on; mean ranks")
    every = pd.concat(means)
    ranks = every.assign(AUC=-every["AUC"]).groupby(level=0).rank()[["log loss", "AUC", "error"]]
    table = every.join(ranks.add_prefix("rank: ")).groupby(level=1).mean()
    print(table.sort_values("rank: log loss").to_string(float_format="{:.4g}".format))


if __name__ == "__main__":
    main()
