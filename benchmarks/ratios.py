"""Seconds beside what cannot be avoided and beside peers, in one run: ratios to keep, and a guard on them.

``uv run --with fastrvm python benchmarks/ratios.py [CASE ...] [--large] [--save] [--check]``
with OMP_NUM_THREADS=1.

Each case is a fit of ours and a yardstick on the same rows: BLAS work of the same size, or what a user
would take instead. The table is printed; ``--save`` writes ratios to ratios.json, ``--check`` compares with
those there and ends with code 1 where one has grown by half. CPU seconds, the least of the repeats. Ratios
are what counts: seconds are those of a machine.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from sklearn.datasets import make_friedman2
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import pcvm_pymc
from pcvm_pymc.core.em import nonnegative
from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.experiments.baselines import TunedSVC
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.datasets.generators import ringnorm, ripley_mixture

STORED = Path(__file__).with_name("ratios.json")
GROWN = 1.5  # by which a ratio may grow before it is a fault: machines differ


class Case(NamedTuple):
    """A function of ours, its yardstick (from ours' result, or None) and what that is."""

    ours: Callable[[], object]
    yardstick: Callable[[], object]
    beside: str
    repeats: int = 3
    large: bool = False


def mixture(n, n_classes=2):
    X, y = ripley_mixture(n, random_state=1)
    return X, (y if n_classes == 2 else (y > 0).astype(int) + (X[:, 0] > 0.3))


def friedman(n):
    X, y = make_friedman2(n, noise=125.0, random_state=n)
    return StandardScaler().fit_transform(X), y


def tuned_svr(X, y):
    scale = float(np.std(y))
    grid = {"C": scale * 10.0 ** np.arange(-1, 4), "gamma": 10.0 ** np.linspace(-2, 1, 6)}
    return GridSearchCV(SVR(epsilon=0.05 * scale), grid, cv=5).fit(X, y)


@contextmanager
def recorded_sizes():
    """Yield a list that gets the size of each system of equations that is solved within."""
    sizes, solve = [], nonnegative._Scaled._solved

    def recorded(self, passive, rhs):
        sizes.append(int(passive.sum()) + 1)
        return solve(self, passive, rhs)

    nonnegative._Scaled._solved = recorded
    try:
        yield sizes
    finally:
        nonnegative._Scaled._solved = solve


def cell(n, **options):
    """Return a fit of one cell beside one Gram product and the factorisations of the sizes it solved for."""
    X, y = mixture(n)

    def fit():
        return pcvm_pymc.PCVMClassifier(width=0.6, estimation="em", **options).fit(X, y)

    with recorded_sizes() as sizes:
        fit()
    Phi = design_matrix("rbf", X, X, 0.6)
    gram = Phi.T @ Phi + np.eye(n)
    matrices = [gram[: min(m, n), : min(m, n)].copy(order="F") for m in sizes]

    def work():
        design_matrix("rbf", X, X, 0.6)
        _ = Phi.T @ Phi
        for each in matrices:
            lapack.dpotrf(each, lower=1)

    return Case(fit, work, f"kernel, Gram product, {len(sizes)} Cholesky factors", large=n > 2000)


def rvm_beside_fastrvm(rows, n, likelihood):
    X, y = rows(n)
    kind = "RVR" if likelihood == "normal" else "RVC"

    def ours():
        return fit_rvm(EvidenceProblem(design_matrix("rbf", X, X, 1.0), y, likelihood, bias=False))

    def theirs():
        module = importlib.import_module("fastrvm")
        getattr(module, kind)(kernel="rbf", gamma=1.0, fit_intercept=False).fit(X, y)

    return Case(ours, theirs, "fastrvm (C++)", repeats=3 if n > 400 else 25, large=n > 1000)


def default(name, n, n_classes=2):
    X, y = mixture(n, n_classes)
    model = getattr(pcvm_pymc, name)()
    if "random_state" in model.get_params():
        model.set_params(random_state=0)  # which folds there are decides how many fits a race takes
    return Case(
        lambda: model.fit(X, y),
        lambda: TunedSVC().fit(X, y),
        "SVC, grid of 30",
        repeats=1,
        large=n > 1300,
    )


def regression_default(n):
    X, y = friedman(n)
    return Case(
        lambda: pcvm_pymc.RVMRegressor().fit(X, y),
        lambda: tuned_svr(X, y),
        "SVR, grid of 30",
        repeats=1,
        large=n > 1300,
    )


def several_classes(n, n_classes):
    """Return one cell of several classes beside the fits of each class against the rest."""
    data = load("letter", random_state=0)
    number = np.unique(data.y, return_inverse=True)[1]
    rows = np.flatnonzero(number < n_classes)[:n]
    X, y = StandardScaler().fit_transform(data.X[rows]), number[rows]

    def binary():
        for c in range(n_classes):
            pcvm_pymc.PCVMClassifier(width=4.0, estimation="em").fit(X, y == c)

    return Case(
        lambda: pcvm_pymc.MPCVMClassifier(width=4.0, estimation="em").fit(X, y),
        binary,
        f"{n_classes} fits of two classes",
    )


def all_letters():
    data = load("letter", random_state=0)
    X, y = StandardScaler().fit_transform(data.X[:16000]), data.y[:16000]
    machine = pcvm_pymc.MPCVMClassifier(width=2.5, estimation="em", basis=500, random_state=0)
    return Case(
        lambda: machine.fit(X, y),
        lambda: SVC(C=10.0, gamma=0.16).fit(X, y),
        "SVC, one fit",
        repeats=1,
        large=True,
    )


def many_rows(n):
    X, y = ringnorm(n, random_state=0)
    machine = pcvm_pymc.PCVMClassifier(
        width=6.0,
        estimation="em",
        basis=500,
        memory_limit=5e8,
        kernel_dtype="float32",
        random_state=0,
    )
    gamma = 1.0 / 36.0
    sgd = make_pipeline(
        Nystroem(gamma=gamma, n_components=500, random_state=0),
        SGDClassifier(loss="log_loss", random_state=0),
    )
    return Case(
        lambda: machine.fit(X, y), lambda: sgd.fit(X, y), "SGD on Nystroem", 1, large=n > 100_000
    )


def prediction():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 20)), rng.integers(2, size=200)
    machine = pcvm_pymc.PCVMClassifier(width=6.0, n_vectors=20).fit(X, y)
    new, centres = rng.normal(size=(200_000, 20)), X[:20]
    return Case(
        lambda: machine.decision_function(new),
        lambda: design_matrix("rbf", new, centres, 6.0),
        "its kernel matrix",
    )


def first_use(ours, theirs, beside):
    """Return whole processes, by the clock on the wall."""

    def run(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    return Case(run(ours), run(theirs), beside)


_FIT = "import numpy as np; X = np.random.default_rng(0).normal(size=(100, 2)); "
CASES: dict[str, Callable[[], Case]] = {
    "import pcvm_pymc": lambda: first_use("import pcvm_pymc", "import numpy", "import numpy"),
    "a process that fits PCVMClassifier()": lambda: first_use(
        _FIT + "import pcvm_pymc; pcvm_pymc.PCVMClassifier().fit(X, X[:, 0] > 0)",
        _FIT + "from sklearn.svm import SVC; SVC().fit(X, X[:, 0] > 0)",
        "one with SVC()",
    ),
    **{
        f"{name}(), N = {n}": lambda name=name, n=n, c=c: default(name, n, c)
        for n in (300, 1200, 4000)
        for name, c in (
            ("PCVMClassifier", 2),
            ("RVMClassifier", 2),
            ("SparseProbitClassifier", 2),
            ("MPCVMClassifier", 3),
            ("MRVMClassifier", 3),
        )
    },
    "RVMRegressor(), N = 300": lambda: regression_default(
        300
    ),  # the grid takes 347 s on 1,200 rows
    **{f"one cell, N = {n}": lambda n=n: cell(n) for n in (100, 400, 1300, 4000)},
    **{
        f"RVM, {kind}, N = {n}": lambda rows=rows, n=n, k=kind: rvm_beside_fastrvm(rows, n, k)
        for rows, kind in ((friedman, "normal"), (mixture, "logit"))
        for n in (100, 400, 1000, 2000, 4000)
    },
    "one cell of six letters, N = 600": lambda: several_classes(600, 6),
    "26 letters, 16,000 rows, 500 bases": all_letters,
    "100,000 rows, 500 bases": lambda: many_rows(100_000),
    "1,000,000 rows, 500 bases": lambda: many_rows(1_000_000),
    "200,000 predictions, 20 vectors": prediction,
}


def measured(case, is_process):
    """Return seconds of ours and of the yardstick; wall seconds of whole processes."""
    clock = time.perf_counter if is_process else time.process_time

    def least(function):
        found = []
        for _ in range(case.repeats):
            began = clock()
            function()
            found.append(clock() - began)
        return min(found)

    return least(case.ours), least(case.yardstick)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="those whose name contains it")
    parser.add_argument("--large", action="store_true", help="also those that take minutes")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for small in ("PCVMClassifier", "RVMClassifier", "RVMRegressor", "MPCVMClassifier"):
        getattr(pcvm_pymc, small)().fit(*mixture(60, 3 if small[0] == "M" else 2))  # compiles
    grown = []
    print("| case | ours, s | yardstick, s | ratio | stored | beside |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in CASES.items():
        if options.cases and not any(part in name for part in options.cases):
            continue
        case = make()
        if case.large and not options.large:
            continue
        try:
            ours, theirs = measured(case, name.startswith(("import", "a process")))
        except ModuleNotFoundError as missing:
            print(f"| {name} | | | | | {missing} |")
            continue
        ratio = ours / theirs
        before = stored.get(name)
        shown = "" if before is None else f"{before:.2f}"
        print(
            f"| {name} | {ours:.3g} | {theirs:.3g} | {ratio:.2f} | {shown} | {case.beside} |",
            flush=True,
        )
        if before is not None and ratio > GROWN * before:
            grown.append(name)
        stored[name] = round(ratio, 3)
    if options.save:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    if options.check and grown:
        sys.exit(f"grown by more than {GROWN}: {', '.join(grown)}")


if __name__ == "__main__":
    main()
