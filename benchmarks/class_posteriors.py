"""The posterior of several classes beside the average of modes and logistic regression, held out.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/class_posteriors.py [--draws 2] [SET:ROWS ...]

Log loss and error in per cent, CPU seconds of the fit, and how the chains converged: the largest r-hat of the
latent function over all draws, and the effective draws of the mixture, the least of those of a width over
its share.
"""

import argparse
import time
import warnings

import arviz as az
import numpy as np

from pcvm_pymc import MPCVMClassifier
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import peers, stratified_draws

SETS = ("iris:100", "wine:100", "glass:140", "vowel:200", "leaves:120")
NAMES = ("posterior", "average", "logistic regression")


def estimator(name: str, n_classes: int, shape: tuple[int, int]):
    """Return an estimator by its name."""
    if name == "logistic regression":
        return peers(n_classes, *shape, seed=0)[name]
    return MPCVMClassifier(
        estimation="posterior" if name == "posterior" else "auto", random_state=0
    )


def rows_of(name: str, n_train: int):
    """Return inputs and class numbers; of the leaves the first ten classes."""
    data = load("leaves_margin" if name == "leaves" else name, random_state=0)
    X, y = np.asarray(data.X, dtype=float), np.unique(data.y, return_inverse=True)[1]
    few = y < (10 if name == "leaves" else 99)
    return X[few], y[few], min(500, few.sum() - n_train)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=NAMES, choices=NAMES)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| set, rows | | log loss | error, % | CPU s | r-hat | ESS |\n" + "| --- " * 7 + "|")
    for each in options.sets:
        name, n_train = each.split(":")
        X, y, n_test = rows_of(name, int(n_train))
        for way in options.ways:
            found = []
            draws = stratified_draws(X, y, int(n_train), n_test, seed=1000)
            for _ in range(options.draws):
                few, labels, new, truth = next(draws)
                model = estimator(way, len(np.unique(y)), few.shape)
                began = time.process_time()
                model.fit(few, labels)
                seconds, p = time.process_time() - began, model.predict_proba(new)
                loss = -np.log(np.clip(p[np.arange(len(truth)), truth], 1e-12, None)).mean()
                how = (np.nan, np.nan)
                if way == "posterior":
                    chains = model.idata_["convergence"]
                    latent = model.idata_["posterior"]["latent"]
                    latent = latent - latent.mean("class")  # a common shift does not show
                    how = (float(az.rhat(latent).max()), chains["ess"].item())
                found.append((loss, 100 * np.mean(p.argmax(axis=1) != truth), seconds, *how))
            loss, error, seconds, rhat, ess = np.mean(found, axis=0)
            shown = f"{loss:.3f} | {error:.1f} | {seconds:.1f} | {rhat:.3f} | {ess:.0f}"
            print(f"| {each} | {way} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
