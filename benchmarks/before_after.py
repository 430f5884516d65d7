"""Two states of the package side by side: CPU seconds and peak memory of the same work, interleaved.

OMP_NUM_THREADS=1 uv run python benchmarks/before_after.py OLD NEW [--repeats 5] [--only WORD ...]

Each run is a process of its own, old and new in turn; seconds are those of the fit alone (after a small one
that compiles and loads), without imports and data. Prints the table of the README.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from memory import peak


def classes(n, n_classes=2, n_features=2, seed=0):
    """Return inputs and classes around a circle, overlapping."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % n_classes
    X = rng.normal(size=(n, n_features))
    angle = 2 * np.pi * label / n_classes
    X[:, :2] += 1.3 * np.column_stack([np.cos(angle), np.sin(angle)])
    return X, label


def sinc(n, seed=0):
    """Return noisy values of sin(x) / x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-10, 10, size=n)
    return x[:, None], np.sinc(x / np.pi) + 0.1 * rng.normal(size=n)


def resolved(keywords):
    """Return keywords with the hyperprior itself for its name, which states do not share."""
    from pcvm_pymc import Hyperprior

    if "hyperprior" not in keywords:
        return keywords
    return {**keywords, "hyperprior": getattr(Hyperprior, keywords["hyperprior"])()}


def fit(name, data, repeat=1, **keywords):
    """Return the work of fitting an estimator."""

    def work():
        import pcvm_pymc

        X, y = data()
        estimator = getattr(pcvm_pymc, name)(**resolved(keywords))
        return lambda: [estimator.fit(X, y) for _ in range(repeat)]

    return work


def prediction(name, data, rows, **keywords):
    """Return the work of predicting probabilities."""

    def work():
        import pcvm_pymc

        X, y = data()
        estimator = getattr(pcvm_pymc, name)(**resolved(keywords)).fit(X, y)
        new = classes(rows, 2, X.shape[1], seed=1)[0]
        return lambda: estimator.predict_proba(new)

    return work


def gibbs(builder, data, sweeps):
    """Return the work of drawing by Gibbs' sampler: one chain, a fixed number of sweeps."""

    def work():
        import pcvm_pymc

        X, y = data()
        model = getattr(pcvm_pymc, builder)(X, y, width=1.0)
        once = {
            "method": "gibbs",
            "tune": 10,
            "chains": 1,
            "cores": 1,
            "random_seed": 0,
            "quiet": True,
        }
        run = {**once, "progressbar": False, "thin": 1}
        pcvm_pymc.sample(model, draws=10, max_sweeps=20, **run)
        return lambda: pcvm_pymc.sample(model, draws=sweeps - 10, max_sweeps=sweeps, **run)

    return work


SMALL = {"width": 1.0, "tol": 1e-5, "random_state": 0}
TOP_DOWN = {"width": 1.0, "tol": 1e-4}
CASES = {
    "EM, N = 100, plug_in": fit(
        "PCVMClassifier", lambda: classes(100), 20, hyperprior="plug_in", **SMALL
    ),
    "EM, N = 400, plug_in": fit(
        "PCVMClassifier", lambda: classes(400), 5, hyperprior="plug_in", **SMALL
    ),
    "EM, N = 1300, plug_in": fit(
        "PCVMClassifier", lambda: classes(1300), hyperprior="plug_in", **SMALL
    ),
    "EM, N = 300, jeffreys": fit(
        "PCVMClassifier", lambda: classes(300), 5, hyperprior="jeffreys", **SMALL
    ),
    "EM, N = 1300, jeffreys": fit(
        "PCVMClassifier", lambda: classes(1300), hyperprior="jeffreys", **SMALL
    ),
    "EM, N = 300, width chosen": fit("PCVMClassifier", lambda: classes(300), hyperprior="plug_in"),
    "EM in chunks, N = 20000, 200 bases": fit(
        "PCVMClassifier",
        lambda: classes(20000),
        basis=200,
        hyperprior="plug_in",
        memory_limit=2e7,
        **SMALL,
    ),
    "projection, N = 300": fit(
        "PCVMClassifier",
        lambda: classes(300),
        estimation="projection",
        hyperprior="plug_in",
        **SMALL,
    ),
    "three classes, N = 200, plug_in": fit(
        "MPCVMClassifier", lambda: classes(200, 3), hyperprior="plug_in", **TOP_DOWN
    ),
    "six classes, N = 300, plug_in": fit(
        "MPCVMClassifier", lambda: classes(300, 6), hyperprior="plug_in", max_iter=500, **TOP_DOWN
    ),
    "three classes, N = 300, jeffreys": fit(
        "MPCVMClassifier", lambda: classes(300, 3), hyperprior="jeffreys", **TOP_DOWN
    ),
    "three classes, N = 300, mRVM2": fit("MRVMClassifier", lambda: classes(300, 3), **TOP_DOWN),
    "three classes, N = 300, bottom-up": fit("MPCVMClassifier", lambda: classes(300, 3), width=1.0),
    "three classes, N = 150, bottom-up, width chosen": fit(
        "MPCVMClassifier", lambda: classes(150, 3), random_state=0
    ),
    "RVM, N = 400, logit": fit("RVMClassifier", lambda: classes(400), 5, width=1.0),
    "RVM, N = 500, regression": fit("RVMRegressor", lambda: sinc(500), 5, width=2.0),
    "RVM in chunks, N = 20000, 200 bases": fit(
        "RVMRegressor", lambda: sinc(20000), basis=200, memory_limit=2e7, width=2.0, random_state=0
    ),
    "sparse probit, N = 300, kernel": fit(
        "SparseProbitClassifier", lambda: classes(300), 20, features="kernel"
    ),
    "sparse probit, N = 300, laplace": fit(
        "SparseProbitClassifier", lambda: classes(300), 3, features="kernel", prior="laplace"
    ),
    "Gibbs, N = 200, 3000 sweeps": gibbs("pcvm_model", lambda: classes(200), 3000),
    "Gibbs, three classes, N = 100, 1000 sweeps": gibbs(
        "mpcvm_model", lambda: classes(100, 3), 1000
    ),
    "predict, 100000 rows, 400 bases": prediction(
        "PCVMClassifier", lambda: classes(400), 100_000, hyperprior="plug_in", **SMALL
    ),
}


def child(name):
    """Run one case and print what it took."""
    work = CASES[name]()
    if not name.startswith(("Gibbs", "predict")):
        fit("PCVMClassifier", lambda: classes(30), **SMALL)()()
    if name.startswith("RVM"):
        fit("RVMClassifier", lambda: classes(40), width=1.0)()()
        fit("RVMRegressor", lambda: sinc(40), width=2.0)()()
    if "class" in name:
        fit("MPCVMClassifier", lambda: classes(30, 3), width=1.0)()()
    began = time.process_time()
    work()
    seconds = time.process_time() - began
    print(json.dumps([seconds, peak()]))


def measured(path, name):
    """Return seconds and peak memory (MiB) of a case in one state; None where it cannot run there."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} in {path}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        return child(given.child)
    print("| case | before, CPU s | after, CPU s | ratio | before, MiB | after, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in CASES:
        if not any(word in name for word in given.only):
            continue
        runs = [[measured(path, name) for path in given.paths] for _ in range(given.repeats)]
        if any(None in pair for pair in runs):
            continue
        old, new = (np.array([pair[k] for pair in runs]) for k in range(2))
        before, after = (statistics.median(each[:, 0]) for each in (old, new))
        peaks = " | ".join(f"{np.median(each[:, 1]):.0f}" for each in (old, new))
        print(
            f"| {name} | {before:.3g} | {after:.3g} | {after / before:.2f} | {peaks} |", flush=True
        )
    return None


if __name__ == "__main__":
    main()
