"""Error and time of the machines for several classes by each way to choose the width.

OMP_NUM_THREADS=1 uv run python benchmarks/class_widths.py [--partitions N]

80/20 partitions, equal rows on one side, standardised on the training part. Needs PCVM_DATA for glass.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import kept_together

METHODS = ("auto", "evidence", "validity")


def sets():
    """Return the sets by name."""
    glass = load("glass")
    return {
        "iris": load_iris(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "glass": (glass.X, glass.y),
    }


def main():
    """Print a line for each set, machine and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=10)
    n_partitions = parser.parse_args().partitions
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name, (X, y) in sets().items():
        for kind in (MPCVMClassifier, MRVMClassifier):
            for method in METHODS:
                errors, widths, began = [], [], time.process_time()
                splitter = StratifiedShuffleSplit(n_partitions, test_size=0.2, random_state=0)
                for train, test in kept_together(splitter, X, y):
                    model = make_pipeline(StandardScaler(), kind(width=method, random_state=0))
                    model.fit(X[train], y[train])
                    errors.append(100 * (1 - model.score(X[test], y[test])))
                    widths.append(model[-1].width_ / np.sqrt(X.shape[1]))
                seconds = (time.process_time() - began) / n_partitions
                print(
                    f"{name:6s} {kind.__name__:16s} {method:9s} error {np.mean(errors):5.2f} %, median "
                    f"width / sqrt(d) {np.median(widths):4.2f}, {seconds:5.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
