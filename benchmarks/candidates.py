"""CPU seconds and memory of relevance vector machines, a basis function on every row a candidate.

    OMP_NUM_THREADS=1 uv run python benchmarks/candidates.py [--rows N ...] [--held N] [--tasks NAME ...]
    OMP_NUM_THREADS=1 uv run python benchmarks/candidates.py --look N

Each line is a fresh process. Up to ``--held`` rows the fit without a memory limit stands beside it.
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
from memory import peak

LIMIT = 512 * 2**20
N_TEST = 20_000


def labels(n, seed):
    """Return a wavy border in 10 dimensions, of which 2 matter, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    latent = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 - 1
    return X, np.where(latent + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)


def friedman(n, seed):
    """Return Friedman's first function of 5 of 10 features, with noise of 1."""
    from sklearn.datasets import make_friedman1

    return make_friedman1(n, n_features=10, noise=float(seed == 0), random_state=seed)


def sine(n, seed):
    """Return a sine and a slope in 2 of 10 dimensions, with noise of 1/2."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.5 * (seed == 0) * rng.normal(size=n)


def ripples(n, seed):
    """Return a sine and a parabola in 2 dimensions, with noise of 1/5."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.2 * (seed == 0) * rng.normal(size=n)


def ringnorm(n, seed):
    """Return Breiman's ringnorm, 20 features."""
    from pcvm_pymc.experiments import datasets

    return datasets.ringnorm(n, random_state=seed)


def mixture(n, seed):
    """Return Ripley's mixture, 2 features."""
    from pcvm_pymc.experiments import datasets

    return datasets.ripley_mixture(n, random_state=seed)


# rows, width, and whether they are labels
TASKS = {
    "wave, logit": (labels, 4.0, True),
    "ringnorm, logit": (ringnorm, 6.0, True),
    "mixture, logit": (mixture, 0.6, True),
    "friedman1, normal": (friedman, 1.5, False),
    "sine, normal": (sine, 8.0, False),
    "ripples, normal": (ripples, 1.5, False),
}


def cell(task, n, held, tol):
    """Fit once, in this process; print what it took."""
    from pcvm_pymc import RVMClassifier, RVMRegressor

    rows, width, is_labels = TASKS[task]
    kind = RVMClassifier if is_labels else RVMRegressor
    X, y = rows(n, 0)
    few = min(n, 300)  # what is compiled or imported at the first use
    kind(width=width, memory_limit=1e8).fit(X[:few], y[:few])
    model = kind(width=width, memory_limit=None if held else LIMIT, tol=tol, max_iter=100_000)
    before, began = peak(), time.process_time()
    model.fit(X, y)
    seconds, most = time.process_time() - began, peak()
    X_test, y_test = rows(N_TEST, 1)
    miss = model.predict(X_test) - y_test
    out = {
        "seconds": seconds,
        "before": before,
        "peak": most,
        "vectors": len(model.weight_),
        "changes": model.n_iter_,
        "log_evidence": model.log_evidence_,
        "status": model.status_.name.lower(),
        "error": float(np.mean(miss != 0) if is_labels else np.sqrt(np.mean(miss**2))),
    }
    print(json.dumps(out))


def look(n):
    """Print what a full scan of all candidates takes, with 100 vectors in the model of the wave's labels."""
    from pcvm_pymc.core.evidence import ComputedBases, EvidenceProblem
    from pcvm_pymc.core.evidence.active_set import scanned
    from pcvm_pymc.core.evidence.problem import columns_of
    from pcvm_pymc.core.pieces.kernels import RBF

    X, y = labels(n, 0)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(4.0), LIMIT), y, "logit")
    began = time.process_time()
    columns = columns_of(problem)
    norms = time.process_time() - began
    began = time.process_time()
    scanned(columns, y, problem.likelihood, (np.arange(100), np.ones(100), np.zeros(100)))
    print(
        f"{n:,} rows and candidates: norms {norms:.0f} CPU s, one scan {time.process_time() - began:.0f} "
        f"CPU s, peak {peak():.0f} MiB"
    )


def main():
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[3_000, 10_000, 30_000])
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--cell", nargs=3)
    parser.add_argument("--look", type=int)
    options = parser.parse_args()
    if options.look:
        look(options.look)
        return
    if options.cell:
        task, n, held = options.cell
        cell(task, int(n), held == "held", options.tol)
        return
    print(
        "| task | rows | bases | CPU s | peak MiB (before the fit) | vectors | changes | log evidence "
        "| ended | error |"
    )
    print("| --- " * 10 + "|")
    for task in options.tasks:
        for n in options.rows:
            for held in ["held", "computed"] if n <= options.held else ["computed"]:
                call = [sys.executable, __file__, "--tol", str(options.tol)]
                call += ["--cell", task, str(n), held]
                done = subprocess.run(call, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                print(
                    f"| {task} | {n:,} | {held} | {found['seconds']:.1f} | {found['peak']:.0f} "
                    f"({found['before']:.0f}) | {found['vectors']} | {found['changes']} "
                    f"| {found['log_evidence']:.4f} | {found['status']} | {found['error']:.4f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
