"""What `ratios.py` times: a work of ours, what a user would take instead, and what cannot be avoided.

A work is ``work(X, y)``, which prepares and returns the function that is timed. Not a script.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

WIDTH = 0.6  # of the mixture's basis functions

type Work = Callable[[np.ndarray, np.ndarray], Callable[[], Any]]
type Data = Callable[[], tuple[np.ndarray, np.ndarray]]


class Case(NamedTuple):
    """Works on the same rows.

    Attributes
    ----------
    data : callable
        Returns inputs and targets.
    ours : callable
    peer, floor : tuple of (str, callable), optional
        With what it is called.
    repeats : int
        Of which the least is taken.
    large : bool
        Whether it takes minutes.
    clock : bool
        Whether the seconds are those of the clock, as of whole processes.
    threads : int
    """

    data: Data
    ours: Work
    peer: tuple[str, Work] | None = None
    floor: tuple[str, Work] | None = None
    repeats: int = 3
    large: bool = False
    clock: bool = False
    threads: int = 1


# --- rows --------------------------------------------------------------------------------------


def mixture(n, n_classes=2):
    """Return rows of Ripley's mixture; of three classes by a cut through the second."""
    from pcvm_pymc.experiments.datasets.generators import ripley_mixture

    X, y = ripley_mixture(n, random_state=1)
    return X, (y if n_classes == 2 else (y > 0).astype(int) + (X[:, 0] > 0.3))


def friedman(n):
    """Return standardised rows of Friedman's second function."""
    from sklearn.datasets import make_friedman2
    from sklearn.preprocessing import StandardScaler

    X, y = make_friedman2(n, noise=125.0, random_state=n)
    return StandardScaler().fit_transform(X), y


def letters(n, n_classes):
    """Return standardised rows of the first letters."""
    from sklearn.preprocessing import StandardScaler

    from pcvm_pymc.experiments.datasets import load

    data = load("letter", random_state=0)
    number = np.unique(data.y, return_inverse=True)[1]
    rows = np.flatnonzero(number < n_classes)[:n]
    return StandardScaler().fit_transform(data.X[rows]), number[rows]


def many(n):
    """Return rows of Breiman's ringnorm, 20 features."""
    from pcvm_pymc.experiments.datasets.generators import ringnorm

    return ringnorm(n, random_state=0)


def noise(n, d):
    """Return normal rows and two classes by chance."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)), rng.integers(2, size=n)


def fit(name, **options):
    """Return the fit of an estimator of ours; its folds are those of `random_state` 0."""

    def work(X, y):
        import pcvm_pymc

        model = getattr(pcvm_pymc, name)(**options)
        if "random_state" in model.get_params():
            model.set_params(random_state=0)
        return lambda: model.fit(X, y)

    return work


def one_against_rest(X, y):
    """Return the fits of each class against the rest."""
    from pcvm_pymc import PCVMClassifier

    def fits():
        for c in np.unique(y):
            PCVMClassifier(width=4.0).fit(X, y == c)

    return fits


def with_threads(work, threads):
    """Return a work whose BLAS may take so many threads, whatever the environment says."""

    def limited(X, y):
        from threadpoolctl import threadpool_limits

        run = work(X, y)

        def within():
            with threadpool_limits(threads):
                return run()

        return within

    return limited


def decision(X, y):
    """Return the decisions of twenty vectors on 200,000 rows."""
    from pcvm_pymc import PCVMClassifier

    few = slice(200)
    machine = PCVMClassifier(width=6.0, estimation="projection", n_vectors=20).fit(X[few], y[few])
    return lambda: machine.decision_function(X)


def sweeps(X, y):
    """Return 1,000 sweeps of Gibbs' sampler, one chain, the scale learned."""
    from pcvm_pymc import pcvm_model, sample

    model = pcvm_model(X, y, width=WIDTH, hyperprior="learned")
    once = {"method": "gibbs", "chains": 1, "cores": 1, "random_seed": 0, "quiet": True, "thin": 1}
    sample(model, draws=10, tune=10, max_iter=20, progressbar=False, **once)  # compiles
    return lambda: sample(model, draws=900, tune=100, max_iter=1000, progressbar=False, **once)


_FIT = "import numpy as np; X = np.random.default_rng(0).normal(size=(100, 2)); "


def process(code):
    """Return a process of its own that runs a line."""

    def work(X, y):
        command = [sys.executable, "-c", code]
        subprocess.run(command, check=True, capture_output=True)  # byte code
        return lambda: subprocess.run(command, check=True, capture_output=True)

    return work


def first_compare(X, y):
    """Return `pcvm compare` of one split where nothing has been compiled but to byte code."""
    root = Path(importlib.import_module("pcvm_pymc").__file__).parent
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(root)], check=True)

    def run():
        with tempfile.TemporaryDirectory() as folder:
            fresh: Mapping[str, str] = {
                "NUMBA_CACHE_DIR": f"{folder}/numba",
                "PYTENSOR_FLAGS": f"base_compiledir={folder}/pytensor",
            }
            few = ["--splits", "1", "--draws", "100", "--chains", "2", "--out", f"{folder}/out"]
            subprocess.run(
                [sys.executable, "-m", "pcvm_pymc", "compare", *few],
                env={**os.environ, **fresh},
                check=True,
                capture_output=True,
            )

    return run


def tuned_svc(X, y):
    """Return the search of an SVC over thirty pairs in five folds, with Platt's probabilities."""
    from pcvm_pymc.experiments.baselines import TunedSVC

    return lambda: TunedSVC().fit(X, y)


def tuned_svr(X, y):
    """Return the search of an SVR over thirty pairs in five folds."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVR

    scale = float(np.std(y))
    grid = {"C": scale * 10.0 ** np.arange(-1, 4), "gamma": 10.0 ** np.linspace(-2, 1, 6)}
    return lambda: GridSearchCV(SVR(epsilon=0.05 * scale), grid, cv=5).fit(X, y)


def one_svc(C, gamma):
    """Return one fit of an SVC."""

    def work(X, y):
        from sklearn.svm import SVC

        return lambda: SVC(C=C, gamma=gamma).fit(X, y)

    return work


def fastrvm(kind):
    """Return the relevance vector machine in C++."""

    def work(X, y):
        machine = getattr(importlib.import_module("fastrvm"), kind)
        return lambda: machine(kernel="rbf", gamma=1.0).fit(X, y)

    return work


def sgd(X, y):
    """Return stochastic gradients on 500 Nystroem features."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline

    features = Nystroem(gamma=1.0 / 36.0, n_components=500, random_state=0)
    return lambda: make_pipeline(features, SGDClassifier(loss="log_loss", random_state=0)).fit(X, y)


def kernel_matrix(width, n_centres=None):
    """Return the making of the kernel matrix, in blocks of rows where there are many."""

    def work(X, y):
        from pcvm_pymc.core.pieces.kernels import as_kernel

        centres, block = X[:n_centres], 4096 if n_centres else len(X)

        def make():
            for start in range(0, len(X), block):
                as_kernel("rbf", width)(X[start : start + block], centres)

        return make

    return work


def factors_of_a_fit(X, y):
    """Return a kernel matrix, a Gram product, and a Cholesky factor of each size that a fit solved for."""
    from scipy.linalg import lapack

    from pcvm_pymc.core import nonnegative
    from pcvm_pymc.core.pieces.kernels import as_kernel

    sizes, solve = [], nonnegative._Scaled._solved

    def recorded(self, passive, rhs):
        sizes.append(int(passive.sum()) + 1)
        return solve(self, passive, rhs)

    with patch.object(nonnegative._Scaled, "_solved", recorded):
        fit("PCVMClassifier", width=WIDTH, estimation="em")(X, y)()
    Phi = as_kernel("rbf", WIDTH)(X, X)
    gram = Phi.T @ Phi + np.eye(len(X))
    matrices = [gram[:m, :m].copy(order="F") for m in (min(m, len(X)) for m in sizes)]

    def run():
        as_kernel("rbf", WIDTH)(X, X)
        _ = Phi.T @ Phi
        for each in matrices:
            lapack.dpotrf(each, lower=1)

    return run


def factors(number):
    """Return so many Cholesky factors of the Gram matrix of kernels."""

    def work(X, y):
        from scipy.linalg import lapack

        from pcvm_pymc.core.pieces.kernels import as_kernel

        Phi = as_kernel("rbf", WIDTH)(X, X)
        gram = Phi.T @ Phi + np.eye(len(X))
        return lambda: [lapack.dpotrf(gram, lower=1) for _ in range(number)]

    return work


def kernel_and_gram(width, n_basis):
    """Return kernels of all rows with so many centres, and their Gram matrix, once, in blocks."""

    def work(X, y):
        from scipy.linalg.blas import dsyrk

        from pcvm_pymc.core.pieces.kernels import as_kernel

        def run():
            gram = np.zeros((n_basis, n_basis), order="F")
            for start in range(0, len(X), 4096):
                Phi = as_kernel("rbf", width)(X[start : start + 4096], X[:n_basis])
                gram = dsyrk(1.0, Phi.T, beta=1.0, c=gram, overwrite_c=True)

        return run

    return work


# --- the cases ----------------------------------------------------------------------------------

_CLASSES = dict.fromkeys(("PCVMClassifier", "RVMClassifier", "SparseProbitClassifier"), 2)
_CLASSES |= dict.fromkeys(("MPCVMClassifier", "MRVMClassifier"), 3)


def _default(name, n, n_classes):
    return Case(
        lambda: mixture(n, n_classes),
        fit(name),
        ("SVC, grid of 30", tuned_svc),
        repeats=1 if n > 300 else 2,
        large=n > 1300,
    )


def _one_fit(n):
    floor = ("kernel, Gram, its Cholesky factors", factors_of_a_fit)
    one = fit("PCVMClassifier", width=WIDTH, estimation="em")
    return Case(
        lambda: mixture(n),
        one,
        ("SVC, one fit", one_svc(1.0, WIDTH**-2)),
        floor,
        repeats=25 if n < 1000 else 3,
        large=n > 2000,
    )


def _rvm(name, kind, rows, n):
    return Case(
        lambda: rows(n),
        fit(name, width=1.0),
        ("fastrvm (C++)", fastrvm(kind)),
        ("kernel", kernel_matrix(1.0)),
        repeats=3 if n > 400 else 25,
        large=n > 1000,
    )


def _many(n):
    options = {"basis": 500, "memory_limit": 5e8}
    return Case(
        lambda: many(n),
        fit("PCVMClassifier", width=6.0, estimation="em", **options),
        ("SGD on Nystroem", sgd),
        ("kernel and Gram, once", kernel_and_gram(6.0, 500)),
        repeats=1,
        large=n > 100_000,
    )


_NO_ROWS: Data = lambda: (np.empty(0), np.empty(0))  # noqa: E731

CASES: dict[str, Case] = {
    "import pcvm_pymc": Case(
        _NO_ROWS,
        process("import pcvm_pymc"),
        ("import sklearn", process("import sklearn")),
        ("import numpy", process("import numpy")),
        clock=True,
    ),
    "a process that fits PCVMClassifier()": Case(
        _NO_ROWS,
        process(_FIT + "import pcvm_pymc; pcvm_pymc.PCVMClassifier().fit(X, X[:, 0] > 0)"),
        (
            "one with SVC()",
            process(_FIT + "from sklearn.svm import SVC; SVC().fit(X, X[:, 0] > 0)"),
        ),
        clock=True,
    ),
    "pcvm compare, nothing compiled": Case(
        _NO_ROWS,
        first_compare,
        None,
        ("import pymc, matplotlib", process("import pymc, matplotlib.pyplot")),
        repeats=1,
        clock=True,
        threads=2,
    ),
    **{
        f"{name}(), N = {n}": _default(name, n, c)
        for n in (300, 1200, 4000)
        for name, c in _CLASSES.items()
    },
    "RVMRegressor(), N = 300": Case(
        lambda: friedman(300), fit("RVMRegressor"), ("SVR, grid of 30", tuned_svr), repeats=1
    ),
    "RVMClassifier(width=0.6), N = 300, two threads": Case(
        lambda: mixture(300),
        with_threads(fit("RVMClassifier", width=WIDTH), 2),
        ("one thread", with_threads(fit("RVMClassifier", width=WIDTH), 1)),
        threads=2,
        repeats=10,
    ),
    **{f"one width and scale, N = {n}": _one_fit(n) for n in (100, 400, 1300, 4000)},
    **{
        f"RVM, {kind}, N = {n}": _rvm(name, machine, rows, n)
        for kind, name, machine, rows in (
            ("regression", "RVMRegressor", "RVR", friedman),
            ("logit", "RVMClassifier", "RVC", mixture),
        )
        for n in (100, 400, 1000, 2000, 4000)
    },
    "six letters, one width and scale, N = 600": Case(
        lambda: letters(600, 6),
        fit("MPCVMClassifier", width=4.0),
        ("6 fits of two classes", one_against_rest),
    ),
    "26 letters, 16,000 rows, 500 bases": Case(
        lambda: letters(16_000, 26),
        fit("MPCVMClassifier", width=2.5, basis=500, estimation="em"),
        ("SVC, one fit", one_svc(10.0, 0.16)),
        repeats=1,
        large=True,
    ),
    "1,000 Gibbs sweeps, N = 250": Case(
        lambda: mixture(250), sweeps, None, ("1,000 Cholesky factors", factors(1000))
    ),
    "100,000 rows, 500 bases": _many(100_000),
    "1,000,000 rows, 500 bases": _many(1_000_000),
    "200,000 predictions, 20 vectors": Case(
        lambda: noise(200_000, 20),
        decision,
        None,
        ("its kernel matrix", kernel_matrix(6.0, 20)),
    ),
}
