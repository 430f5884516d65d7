"""Growth of time, memory and error with rows and bases, peers next to it.

``uv run python benchmarks/scale.py run.jsonl [--limit S] [--largest N] [--plot FILE]``

Each job is a fresh process on Breiman's ringnorm (20 features), killed at the limit, whose rows are mapped
from a file; what `run.jsonl` has already is not run again. Seconds are those of the clock.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from joblib import parallel_config
from processes import fresh, held, resumed, watched

WIDTH = 6.0  # near the choice by cross-validation at N = 1000
THREADS = 2
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
BASES = (50, 100, 200, 1_000, 2_000)
# the method, and the most rows that it can take
PEERS = {"SVC": 300_000, "GaussianProcessClassifier": 1_000, "SGD, Nystroem (500)": 1_000_000}
SINGLE = ("PCVM, one thread", "PCVM, Dask, two workers")


def jobs(largest):
    """Return the jobs as (method, n_rows, n_basis)."""
    found = [("PCVM", n, 500) for n in ROWS]
    found += [(method, n, 500) for method in SINGLE for n in (100_000, 1_000_000)]
    found += [("PCVM", 100_000, m) for m in BASES]
    found += [("PCVM, all rows", n, n) for n in (1_000, 2_000, 4_000)]
    found += [(method, n, 0) for method, most in PEERS.items() for n in ROWS if n <= most]
    return [job for job in found if job[1] <= largest]


def estimator(method, n_basis):
    """Return what a job fits; only what it needs is imported, since that is memory."""
    gamma = WIDTH**-2
    if method == "SVC":
        from sklearn.svm import SVC

        return SVC(gamma=gamma)
    if method == "GaussianProcessClassifier":
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        return GaussianProcessClassifier(ConstantKernel(10.0) * RBF(WIDTH / np.sqrt(2)))
    if method.startswith("SGD"):
        from sklearn.kernel_approximation import Nystroem
        from sklearn.linear_model import SGDClassifier
        from sklearn.pipeline import make_pipeline

        features = Nystroem(gamma=gamma, n_components=500, random_state=0)
        return make_pipeline(features, SGDClassifier(loss="log_loss", random_state=0))
    from pcvm_pymc import EMOptions, PCVMClassifier

    if method == "PCVM, all rows":
        return PCVMClassifier(width=WIDTH)
    options = {"memory_limit": 512 * 2**20, "options": EMOptions(tol=1e-4)}
    return PCVMClassifier(width=WIDTH, basis=n_basis, **options)


def fit_dask(model, X, y):
    """Fit on a local cluster of two workers; return the seconds of the fit, without the cluster's start."""
    import dask.array as da
    from distributed import Client, LocalCluster

    options = {"dashboard_address": None, "silence_logs": 50}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, **options)
    with cluster, Client(cluster):
        chunks = [(len(X) // 8, *each.shape[1:]) for each in (X, y)]
        rows, label = (
            da.from_array(each, chunks=chunk).persist()
            for each, chunk in zip((X, y), chunks, strict=True)
        )
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


def fitted(method, n, n_basis):
    """Fit once, in this process; return what it took, memory in MiB, and the error in per cent."""
    from pcvm_pymc.experiments.datasets import ringnorm

    X_test, y_test = ringnorm(20_000, random_state=1)
    with tempfile.TemporaryDirectory() as folder:
        X, y = mapped_rows(n, Path(folder) / "X.npy")
        model = estimator(method, n_basis)
        began = time.perf_counter()
        n_jobs = 1 if method in SINGLE else THREADS
        with watched() as most, parallel_config(n_jobs=n_jobs):
            if "Dask" in method:
                seconds = fit_dask(model, np.asarray(X), y)
            else:
                model.fit(X, y)
                seconds = time.perf_counter() - began
            found = {"seconds": seconds, "MiB": held("VmHWM"), "own MiB": most()}
    return found | {"error": 100 * float(np.mean(model.predict(X_test) != y_test))}


def plot(table, file):
    """Draw seconds and memory over rows, and seconds over bases."""
    import matplotlib.pyplot as plt

    figure, (first, second, third) = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    ours = table[table["method"] == "PCVM"]
    kinds = {"PCVM, 500 bases": ours[ours["bases"] == 500]}
    kinds |= {name: table[table["method"] == name] for name in ("PCVM, all rows", *PEERS)}
    for (name, rows), marker in zip(kinds.items(), "osDvP", strict=True):
        rows = rows.sort_values("rows")  # noqa: PLW2901
        first.loglog(rows["rows"], rows["seconds"], marker=marker, ms=5, label=name)
        second.loglog(rows["rows"], rows["MiB"], marker=marker, ms=5)
    few = ours[ours["rows"] == 100_000].sort_values("bases")
    third.loglog(few["bases"], few["seconds"], "o-")
    first.set(xlabel="rows", ylabel="seconds of a fit")
    second.set(xlabel="rows", ylabel="peak of the process (MiB)")
    third.set(xlabel="bases, at 100,000 rows", ylabel="seconds of a fit")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(file, dpi=110)


def main():
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a job")
    parser.add_argument("--largest", type=int, default=max(ROWS), help="rows")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()

    def measure(method, n, n_basis):
        threads = 1 if method in SINGLE else THREADS
        found = fresh(fitted, method, n, n_basis, limit=options.limit, threads=threads)
        done = {"failed": found} if isinstance(found, str) else found
        return {"method": method, "rows": n, "bases": n_basis, **done}

    table = resumed(options.path, jobs(options.largest), measure).drop(columns="job")
    print(table.to_string(float_format="{:.2f}".format, na_rep=""))
    if options.plot:
        plot(table, options.plot)


if __name__ == "__main__":
    main()
