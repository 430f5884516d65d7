"""Seconds and memory of an RVM regression on many rows, in chunks.

OMP_NUM_THREADS=1 uv run python benchmarks/regression_rows.py [--rows N ...]
"""

import argparse
import resource
import time

import numpy as np

from pcvm_pymc import RVMRegressor


def peak():
    """Return the largest size of the process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    """Print a line for each number of rows: 20 features, 500 bases, a limit of 256 MiB."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    rng = np.random.default_rng(0)
    for n in parser.parse_args().rows:
        X = rng.normal(size=(n, 20))
        y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.5 * rng.normal(size=n)
        before, began = peak(), time.perf_counter()
        model = RVMRegressor(width=8.0, basis=500, memory_limit=256 * 2**20).fit(X, y)
        seconds = time.perf_counter() - began
        beyond = peak() - before
        print(
            f"{n:9,d} rows: {seconds:5.1f} s, {len(model.weight_)} vectors, "
            f"noise {model.noise_:.3f} (0.5 drawn), "
            f"{beyond:4.0f} MiB beyond the {before:.0f} before the fit",
            flush=True,
        )


if __name__ == "__main__":
    main()
