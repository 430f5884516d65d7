"""Seconds of the processor of a whole default fit, beside the grid search of an SVC in the same run.

``OMP_NUM_THREADS=1 PCVM_DATA=... python benchmarks/default_seconds.py [--large] [SET:ROWS[:CLASSES] ...]``.
Medians of three seeds of the default. ``mixture`` is Ripley's; CLASSES takes the first classes only; with
``--large`` also 4,000 rows with and without `basis`, and 100,000 rows with it, one seed, without the SVC.
"""

import argparse
import time
import warnings

import numpy as np

from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.baselines import TunedSVC
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.datasets.generators import ripley_mixture
from pcvm_pymc.experiments.head_to_head import stratified_draws

SETS = (
    "mixture:400",
    "banana:400",
    "image:400",
    "mixture:1300",
    "image:1300",
    "winequality_white:1300",
    "letter:1300:6",
)
SEEDS = (0, 1, 2)  # they draw the rows on which cells are told apart, and with that seconds vary
LARGE = ((4000, None), (4000, 500), (100_000, 300))
_LEAST = 50  # rows of a class, of which a share is drawn


def rows_of(name: str, n: int, classes: int | None = None):
    """Return training rows and labels, and rows and labels to score."""
    if name == "mixture":
        X, y = ripley_mixture(n + 5000, random_state=1)
        return X[:n], y[:n] > 0, X[n:], y[n:] > 0
    data = load(name, random_state=0)
    number = np.unique(data.y, return_inverse=True)[1]
    kept = np.bincount(number)[number] >= min(_LEAST, len(number) // 20)
    if classes is not None:
        kept &= number < classes
    y = np.unique(number[kept], return_inverse=True)[1]
    return next(stratified_draws(data.X[kept], y, n, min(2000, len(y) - n), seed=1000))


def scored(models, X, y, X_test, y_test) -> str:
    """Return seconds, error and log loss of fits, medians where there are several."""
    found = []
    for model in models:
        began = time.process_time()
        model.fit(X, y)
        seconds = time.process_time() - began
        probability = model.predict_proba(X_test)
        column = np.searchsorted(model.classes_, y_test)
        own = probability[np.arange(len(column)), column].clip(1e-12)
        error = 100 * np.mean(probability.argmax(axis=1) != column)
        found.append((seconds, error, -np.log(own).mean()))
    seconds, error, loss = np.median(found, axis=0)
    return f"{seconds:.2f} s, {error:.1f} %, {loss:.3f} nats"


def main() -> None:
    """Print a line for each set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    PCVMClassifier().fit(*ripley_mixture(60, random_state=0))  # what is loaded and compiled once
    for each in options.sets:
        name, *numbers = each.split(":")
        rows = rows_of(name, *map(int, numbers))
        kind = PCVMClassifier if len(np.unique(rows[1])) == 2 else MPCVMClassifier
        print(
            each,
            "| default",
            scored([kind(random_state=seed) for seed in SEEDS], *rows),
            "| SVC",
            scored([TunedSVC()], *rows),
            flush=True,
        )
    for n, basis in LARGE if options.large else ():
        print(
            f"mixture:{n}, basis={basis} |",
            scored([PCVMClassifier(basis=basis)], *rows_of("mixture", n)),
        )


if __name__ == "__main__":
    main()
