"""CPU seconds and memory of searches from the bottom up and the sparse probit, rows in chunks.

    OMP_NUM_THREADS=1 uv run python benchmarks/chunks.py [--rows N ...] [--machines NAME ...]

Each line is a fresh process: 20 features, a limit of 256 MiB, 300 bases (quadratic features: 230).
"""

import argparse
import json
import subprocess
import sys
import time
import warnings

import numpy as np
from memory import peak

LIMIT = 256 * 2**20
BASES = {"width": 8.0, "basis": 300, "memory_limit": LIMIT}


def machines():
    """Return the estimators by name."""
    from pcvm_pymc import MPCVMClassifier, MRVMClassifier, PCVMClassifier, SparseProbitClassifier

    return {
        "PCVM, bottom up": PCVMClassifier(estimation="bottom-up", **BASES),
        "mPCVM2, three classes": MPCVMClassifier(estimation="bottom-up", **BASES),
        "mRVM1, three classes": MRVMClassifier(**BASES),
        "sparse probit, quadratic": SparseProbitClassifier(
            features="quadratic", memory_limit=LIMIT, tol=1e-4
        ),
    }


def rows(n, seed, n_classes):
    """Return rows of a curved border, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20))
    value = X[:, 0] + X[:, 1] ** 2 + 0.5 * rng.normal(size=n)
    return X, np.digitize(value, [0.8, 1.8][: n_classes - 1])


def cell(name, n):
    """Fit once, in this process; print what it took."""
    warnings.simplefilter("ignore")
    model, n_classes = machines()[name], 3 if "three" in name else 2
    X, y = rows(n, 0, n_classes)
    model.fit(X[:1000], y[:1000])  # what is compiled or imported at the first use
    before, began = peak(), time.process_time()
    model.fit(X, y)
    seconds, most = time.process_time() - began, peak()
    X_test, y_test = rows(20_000, 1, n_classes)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "before": before,
                "peak": most,
                "kept": int(model.weight_.shape[-1]),
                "epochs": int(model.n_iter_),
                "error": float(np.mean(model.predict(X_test) != y_test)),
            }
        )
    )


def main():
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[30_000, 100_000])
    parser.add_argument("--machines", nargs="+", default=list(machines()))
    parser.add_argument("--cell", nargs=2)
    options = parser.parse_args()
    if options.cell:
        cell(options.cell[0], int(options.cell[1]))
        return
    print("| machine | rows | CPU s | peak MiB (before the fit) | kept | epochs | error, % |")
    print("| --- " * 7 + "|")
    for name in options.machines:
        for n in options.rows:
            call = [sys.executable, __file__, "--cell", name, str(n)]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {name} | {n:,} | {found['seconds']:.1f} | {found['peak']:.0f} ({found['before']:.0f}) "
                f"| {found['kept']} | {found['epochs']} | {100 * found['error']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
