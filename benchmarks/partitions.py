"""The default classifiers on the partitions of the papers: stored realisations, or 80/20 partitions.

``OMP_NUM_THREADS=1 PCVM_DATA=... python benchmarks/partitions.py [--repeats 20] [SET[:CLASSES] ...]`` prints
for each set the mean error, 1 - RMSE and log loss of the default, of the papers' mPCVM2 (several classes) and
of a tuned SVC, and seconds of the processor. ``SET:CLASSES`` takes the first classes only. Image has stored
realisations of 1300 rows. With ``--one-cell`` the classifier of several classes is one mode, of scale 5 and
half the rows' median distance as width.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist
from sklearn.preprocessing import StandardScaler

from pcvm_pymc.assessment.comparison import scores
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.baselines import TunedSVC
from pcvm_pymc.experiments.datasets import source_of
from pcvm_pymc.experiments.head_to_head import fitted_rival
from pcvm_pymc.experiments.protocols import Protocol, realise

SETS = ("image", "iris", "wine", "glass", "wisconsin_original", "vowel", "leaves_margin:20")
MEASURES = ["error", "1-RMSE", "log loss", "vectors", "seconds"]


def one_cell(X, seed: int) -> MPCVMClassifier:
    """Return the classifier at one width and scale, of standardised inputs."""
    some = StandardScaler().fit_transform(X)[:500]
    width = 0.5 * float(np.median(pdist(some)))
    return MPCVMClassifier(estimation="em", width=width, scale=5.0, random_state=seed)


def rivals(n_classes: int, bottom_up: bool, seed: int) -> dict:
    """Return what is compared."""
    default = (PCVMClassifier if n_classes == 2 else MPCVMClassifier)(random_state=seed)
    found = {"default": default, "SVC, tuned": TunedSVC(random_state=seed)}
    if bottom_up:
        found["mPCVM2"] = MPCVMClassifier(estimation="bottom-up", random_state=seed)
    return found


def parts_of(name: str, n_classes: int | None, repeats: int):
    """Yield the parts of each realisation: the stored ones, or partitions of all rows.

    Rows of other classes than the first are left out, labels are counted from zero.
    """
    has_splits = source_of(name).splits.endswith(".npz")
    protocol = Protocol("partitions", "stored" if has_splits else "shares")
    problem = realise(name, protocol, repeats, seed=0)
    for k in range(repeats):
        X, y, X_test, y_test = problem.parts(k)
        classes = np.unique(problem.y)[:n_classes]
        some, test = np.isin(y, classes), np.isin(y_test, classes)
        labels, test_labels = (np.searchsorted(classes, part) for part in (y[some], y_test[test]))
        yield X[some], labels, X_test[test], test_labels


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-bottom-up", action="store_true")
    parser.add_argument("--one-cell", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for each in options.sets:
        name, _, first = each.partition(":")
        tables = []
        for k, (X, y, X_test, y_test) in enumerate(
            parts_of(name, int(first) if first else None, options.repeats)
        ):
            rows, n_classes = {}, int(y.max()) + 1
            several = n_classes > 2 and not options.no_bottom_up
            compared = rivals(n_classes, several, k)
            if options.one_cell:
                compared["default"] = one_cell(X, k)
            for label, model in compared.items():
                rival = fitted_rival(model, X, y, X_test)
                measured = scores(y_test, np.clip(rival.probability, 1e-12, 1 - 1e-12))
                rows[label] = {**measured, "vectors": rival.vectors, "seconds": rival.seconds}
            tables.append(pd.DataFrame(rows).T[MEASURES])
        mean = pd.concat(tables).groupby(level=0).mean()
        mean["error"] *= 100
        print(f"\n{each}, {len(y)} rows, {n_classes} classes, {options.repeats} partitions")
        print(mean.to_string(float_format="{:.4g}".format), flush=True)


if __name__ == "__main__":
    main()
