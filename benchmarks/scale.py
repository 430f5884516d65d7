"""Growth of time, memory and error with rows and bases, peers beside it; and iterations of EM.

    uv run python benchmarks/scale.py run.jsonl [--limit S] [--largest N] [--table] [--plot FILE]
    uv run python benchmarks/scale.py --iterations

Each cell is a fresh process on Breiman's ringnorm (20 features), killed at the limit; what `run.jsonl` holds
already is not run again. ``--table`` only prints the table. Iterations need PCVM_DATA.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from memory import peak, watched

WIDTH = 6.0  # near the choice by cross-validation at N = 1000
THREADS = 2
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
BASES = (50, 100, 200, 500, 1_000, 2_000)
N_TEST = 20_000
# the method, what is varied, and where it ends
PEERS = {"SVC": 300_000, "GaussianProcessClassifier": 1_000, "SGD, Nystroem (500)": 1_000_000}
OURS = {
    "PCVM, 500 bases": "float64",
    "PCVM, 500 bases, float32 kernels": "float32",
    "PCVM, 500 bases, one thread": "float64",
    "PCVM, 500 bases, Dask, two workers": "dask",
}


def cells(largest):
    """Return the cells as (method, n_rows, n_basis)."""
    found = []
    for method in OURS:
        special = "Dask" in method or "one thread" in method
        sizes = (100_000, 1_000_000) if special else ROWS
        found += [(method, n, 500) for n in sizes]
    found += [("PCVM", 100_000, m) for m in BASES if m != 500]
    found += [("PCVM, all rows", n, n) for n in (1_000, 2_000, 4_000)]
    found += [(method, n, 0) for method, most in PEERS.items() for n in ROWS if n <= most]
    return [cell for cell in found if cell[1] <= largest]


def estimator(method, n_basis):
    """Return what a cell fits."""
    if method.startswith("PCVM"):
        from pcvm_pymc import PCVMClassifier

        if method == "PCVM, all rows":
            return PCVMClassifier(width=WIDTH)
        one = "one thread" in method or "Dask" in method
        return PCVMClassifier(
            width=WIDTH,
            basis=n_basis,
            memory_limit=512 * 2**20,
            kernel_dtype="float32" if "float32" in method else "float64",
            n_jobs=1 if one else THREADS,
            tol=1e-4,
        )
    if method == "SVC":
        from sklearn.svm import SVC

        return SVC(gamma=1 / WIDTH**2)
    if method == "GaussianProcessClassifier":
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        return GaussianProcessClassifier(ConstantKernel(10.0) * RBF(WIDTH / np.sqrt(2)))
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline

    return make_pipeline(
        Nystroem(gamma=1 / WIDTH**2, n_components=500, random_state=0),
        SGDClassifier(loss="log_loss", random_state=0),
    )


def fit_dask(model, X, y):
    """Fit on a local cluster of two workers; return the seconds of the fit, without the cluster's start."""
    import dask.array as da
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster),
    ):
        rows, label = (
            da.from_array(each, chunks=(len(X) // 8, *each.shape[1:])) for each in (X, y)
        )
        rows, label = rows.persist(), label.persist()
        began = time.perf_counter()
        model.fit(rows, label)
        return time.perf_counter() - began


def mapped_rows(n, path):
    """Return rows mapped from a file, a million of which are made at a time, and their labels."""
    from pcvm_pymc.experiments.datasets import ringnorm

    X, y = np.lib.format.open_memmap(path, "w+", shape=(n, 20)), np.empty(n)
    for k, start in enumerate(range(0, n, 1_000_000)):
        part = slice(start, start + 1_000_000)
        X[part], y[part] = ringnorm(len(y[part]), random_state=0 if k == 0 else 10 + k)
    del X
    return np.load(path, mmap_mode="r"), y


def cell(method, n, n_basis):
    """Fit once, in this process; print what it took."""
    from sklearn.metrics import roc_auc_score

    from pcvm_pymc.experiments.datasets import ringnorm

    X_test, y_test = ringnorm(N_TEST, random_state=1)
    with tempfile.TemporaryDirectory() as folder:
        X, y = mapped_rows(n, Path(folder) / "X.npy")
        model = estimator(method, n_basis)
        began = time.perf_counter()
        with watched() as most:
            if "Dask" in method:
                seconds = fit_dask(model, np.asarray(X), y)
            else:
                model.fit(X, y)
                seconds = time.perf_counter() - began
            own = most()
    if hasattr(model, "decision_function"):
        score = model.decision_function(X_test)
    else:  # the Gaussian process has probabilities alone
        score = model.predict_proba(X_test)[:, 1] - 0.5
    out = {
        "seconds": seconds,
        "peak": int(2**20 * peak()),
        "own": int(2**20 * own),
        "error": float(np.mean((score > 0) != (y_test > 0))),
        "auc": float(roc_auc_score(y_test, score)),
        "iterations": int(np.sum(getattr(model, "n_iter_", 0))),
    }
    print(json.dumps(out))


def measured(path):
    """Return what a file holds, by cell."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["method"], row["n"], row["basis"]): row for row in rows}


def run(path, limit, largest):
    """Measure the cells that are missing, each in a process of its own."""
    for method, n, n_basis in cells(largest):
        if (method, n, n_basis) in measured(path):
            continue
        command = [sys.executable, __file__, "--cell", method, str(n), str(n_basis)]
        single = "Dask" in method or "one thread" in method
        environment = os.environ | {"OMP_NUM_THREADS": str(1 if single else THREADS)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, env=environment, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = {"seconds": None}
        row = {"method": method, "n": n, "basis": n_basis, **found}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row)


def table(path):
    """Print the figures as Markdown."""
    print(
        "| method | rows | bases | seconds | peak of the process, MiB | error, % | AUC | iterations |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (method, n, n_basis), row in measured(path).items():
        if row["seconds"] is None:
            print(f"| {method} | {n:,} | {n_basis or ''} | over the limit | | | | |")
            continue
        iterations = row["iterations"] if method.startswith("PCVM") else ""
        print(
            f"| {method} | {n:,} | {n_basis or ''} | {row['seconds']:.2f} | {row['peak'] / 2**20:.0f} "
            f"| {100 * row['error']:.2f} | {row['auc']:.4f} | {iterations} |"
        )


def plot(path, file):
    """Draw seconds and memory over rows, and seconds over bases."""
    import matplotlib.pyplot as plt

    found = [row for row in measured(path).values() if row["seconds"] is not None]
    figure, (first, second, third) = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    names = ["PCVM, 500 bases", "PCVM, 500 bases, float32 kernels", "PCVM, all rows", *PEERS]
    for name, marker in zip(names, "os^DvP", strict=True):
        rows = sorted((row for row in found if row["method"] == name), key=lambda row: row["n"])
        size = [row["n"] for row in rows]
        first.loglog(size, [row["seconds"] for row in rows], marker=marker, ms=5, label=name)
        second.loglog(size, [row["peak"] / 2**20 for row in rows], marker=marker, ms=5)
    few = sorted(
        (
            row
            for row in found
            if row["method"] in ("PCVM", "PCVM, 500 bases") and row["n"] == 100_000
        ),
        key=lambda row: row["basis"],
    )
    third.loglog([row["basis"] for row in few], [row["seconds"] for row in few], "o-")
    first.set(xlabel="rows", ylabel="seconds of a fit")
    second.set(xlabel="rows", ylabel="peak of the process (MiB)")
    third.set(xlabel="bases, at 100,000 rows", ylabel="seconds of a fit")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(file, dpi=110)


def iterations():
    """Print how many iterations EM and its accelerated form take to the same log posterior."""
    from dataclasses import replace

    from pcvm_pymc.assessment.select import select_width
    from pcvm_pymc.core.em import EMOptions, Start, fit_em
    from pcvm_pymc.core.pieces.kernels import design_matrix
    from pcvm_pymc.core.pieces.priors import Hyperprior
    from pcvm_pymc.core.problem import Problem
    from pcvm_pymc.experiments import datasets

    print('| set | rows | hyperprior | `"em"` | `"auto"` | ratio |')
    print("| --- | --- | --- | --- | --- | --- |")
    ratios = []
    for name in (
        "ripley",
        "banana",
        "breast_cancer",
        "diabetis",
        "heart",
        "ringnorm",
        "thyroid",
        "titanic",
        "twonorm",
        "waveform",
        "german",
        "esl_mixture",
    ):
        loaded = datasets.load(name)
        X, y, *_ = loaded.split(0) if loaded.train else (loaded.X, loaded.y)
        X, y = X[:400], np.where(y[:400] == np.max(y), 1.0, -1.0)
        X = (X - X.mean(axis=0)) / np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1.0)
        width = select_width(X, y, random_state=0).width
        for title, prior in (
            ("plug_in", Hyperprior.plug_in()),
            ("jeffreys", Hyperprior.jeffreys()),
        ):
            problem = Problem(design_matrix("rbf", X, X, width), y, y, prior, width=width)
            fast = fit_em(problem, None, EMOptions(tol=1e-9, max_iter=2000))
            start = None
            if title == "jeffreys":  # from a state of the same vectors: the ends would differ else
                careful = fit_em(problem, None, EMOptions(update="em", tol=0.05))
                start = Start(careful.weight, careful.bias)
                fast = fit_em(
                    problem, start, replace(EMOptions(), update="newton", tol=1e-9, max_iter=2000)
                )
            plain = fit_em(problem, start, EMOptions(update="em", tol=1e-9, max_iter=20_000))
            end = min(fast.log_posterior, plain.log_posterior)
            if abs(fast.log_posterior - plain.log_posterior) > 1e-5:
                print(f"| {name} | {len(X)} | {title} | other end | | |")
                continue
            counts = [
                int(np.argmax(each.trace.log_posterior >= end - 1e-6)) for each in (plain, fast)
            ]
            ratios.append(counts[0] / max(1, counts[1]))
            print(f"| {name} | {len(X)} | {title} | {counts[0]} | {counts[1]} | {ratios[-1]:.1f} |")
    print(f"\nmedian ratio {np.median(ratios):.1f}")


def main():
    """Read the arguments, and measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--largest", type=int, default=max(ROWS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--iterations", action="store_true")
    parser.add_argument("--cell", nargs=3)
    options = parser.parse_args()
    if options.cell:
        cell(options.cell[0], int(options.cell[1]), int(options.cell[2]))
        return
    if options.iterations:
        iterations()
        return
    if options.path is None:
        parser.error("a file for the figures is needed")
    if not options.table:
        run(options.path, options.limit, options.largest)
    table(options.path)
    if options.plot:
        plot(options.path, options.plot)


if __name__ == "__main__":
    main()
