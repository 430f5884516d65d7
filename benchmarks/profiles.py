"""Where the time goes on the three most used paths: the functions with the largest own time.

``OMP_NUM_THREADS=1 uv run python benchmarks/profiles.py [--rows 400] [--functions 8]``: the default
classifier, its ten vectors, and a posterior by Gibbs' sampler, each after a small run that compiles.
Shares are of CPU seconds under the profiler, which makes many small calls look dearer than they are.
"""

import argparse
import cProfile
import pstats
import time
import warnings
from pathlib import Path

import pcvm_pymc
from pcvm_pymc.experiments.datasets.generators import ripley_mixture


def posterior(X, y):
    """Draw from the posterior of two chains."""
    quiet = {"progressbar": False, "quiet": True, "random_seed": 0, "cores": 1, "chains": 2}
    pcvm_pymc.sample(pcvm_pymc.pcvm_model(X, y, width=0.64), draws=200, **quiet)


PATHS = {
    "`PCVMClassifier().fit(X, y)`": lambda X, y: pcvm_pymc.PCVMClassifier().fit(X, y),
    "`PCVMClassifier(n_vectors=10).fit(X, y)`": lambda X, y: pcvm_pymc.PCVMClassifier(
        n_vectors=10
    ).fit(X, y),
    "`sample(pcvm_model(X, y, width=0.64))`": posterior,
}


def profiled(path, X, y):
    """Return the statistics of a path."""
    path(X[:40], y[:40])
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(path, X, y)
    return pstats.Stats(profiler)


def name_of(function):
    """Return a function's name with its file's."""
    file, _, name = function
    if file == "~":
        return name.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    return f"{Path(file).stem}.{name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--functions", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = ripley_mixture(options.rows, random_state=1)
    print("| path | CPU seconds | calls | functions by own time, share |")
    print("| --- | --- | --- | --- |")
    for path_name, path in PATHS.items():
        stats = profiled(path, X, y)
        most = sorted(stats.stats.items(), key=lambda each: -each[1][2])[: options.functions]
        shares = [f"{name_of(key)} {100 * own[2] / stats.total_tt:.0f} %" for key, own in most]
        calls = f"{stats.total_calls:,}"
        print(f"| {path_name} | {stats.total_tt:.2f} | {calls} | {', '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
