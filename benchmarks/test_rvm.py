"""Seconds, evidence and held-out error of the RVM beside two packages from the index, in one run.

OMP_NUM_THREADS=1 uv run --with fastrvm --with sklearn-rvm pytest benchmarks/test_rvm.py
    -n0 --benchmark-timer=time.process_time --benchmark-json=rvm.json
uv run python benchmarks/rvm_table.py rvm.json

All fit the same bases, without a bias. The evidence is what each program says (fastrvm with the constant
that it leaves out); that of sklearn-rvm is computed from the precisions and the noise with which it ends.
A peer that is not installed, or fails, is skipped with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import make_friedman2
from sklearn.preprocessing import StandardScaler

from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm, posterior
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.experiments.datasets import ripley_mixture

SIZES = (100, 400, 1000, 2000, 4000)  # sequential and fastrvm; the others take N^3 a sweep
BATCH_SIZES = {
    "sinc": (100, 400, 1000, 2000),
    "friedman2": (100, 400, 1000),
    "ripley": (100, 400, 1000),
}


@dataclass(frozen=True)
class Task:
    """Training rows, clean test rows, kernel and likelihood."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    gamma: float
    likelihood: str

    @property
    def width(self) -> float:
        """Width of the same RBF."""
        return self.gamma**-0.5


@dataclass(frozen=True)
class Fit:
    """What every program ends with: the number of rows kept, log evidence, and predictions."""

    vectors: int
    log_evidence: float
    predict: Callable[[np.ndarray], np.ndarray]


def sinc(n):
    rng = np.random.default_rng(n)
    x, x_test = rng.uniform(-10, 10, (n, 1)), rng.uniform(-10, 10, (2000, 1))
    clean = np.sinc(x[:, 0] / np.pi)
    noisy = clean + 0.1 * rng.normal(size=n)
    return Task(x, noisy, x_test, np.sinc(x_test[:, 0] / np.pi), 0.25, "gaussian")


def friedman2(n):
    X, y = make_friedman2(n, noise=125.0, random_state=n)
    X_test, y_test = make_friedman2(2000, noise=0.0, random_state=n + 1)
    scaler = StandardScaler().fit(X)
    return Task(scaler.transform(X), y, scaler.transform(X_test), y_test, 0.0625, "gaussian")


def ripley(n):
    X, label = ripley_mixture(n, random_state=0)
    return Task(X, label, *ripley_mixture(4000, random_state=1), 4.0, "logit")


TASKS = {"sinc": sinc, "friedman2": friedman2, "ripley": ripley}


def ours(task, method):
    Phi = design_matrix("rbf", task.X, task.X, task.width)
    fit = fit_rvm(EvidenceProblem(Phi, task.y, task.likelihood, bias=False), method=method)
    kept = task.X[fit.active]

    def predict(X):
        return design_matrix("rbf", X, kept, task.width) @ fit.weight[fit.active]

    return Fit(len(kept), fit.log_evidence, predict)


def fastrvm(task, module: ModuleType):
    kind = module.RVR if task.likelihood == "gaussian" else module.RVC
    fit = kind(kernel="rbf", gamma=task.gamma, fit_intercept=False).fit(task.X, task.y)
    evidence = float(np.ravel(fit.scores_)[-1])
    if task.likelihood == "gaussian":  # theirs lacks this constant
        evidence -= 0.5 * len(task.y) * np.log(2 * np.pi)
    return Fit(len(fit.relevance_), evidence, fit.predict)


def sklearn_rvm(task, module: ModuleType):
    kind = module.EMRVR if task.likelihood == "gaussian" else module.EMRVC
    fit = kind(kernel="rbf", gamma=task.gamma, bias_used=False)
    fit.fit(task.X, task.y)
    noise = float(fit.beta_) ** -0.5 if task.likelihood == "gaussian" else np.nan
    rows = np.asarray(fit.relevance_, dtype=int)
    likelihood = EvidenceProblem(task.X, task.y, task.likelihood).likelihood.with_noise(noise)
    Phi = design_matrix("rbf", task.X, task.X[rows], task.width)
    end = posterior(Phi, np.ravel(fit.alpha_), task.y, likelihood)
    return Fit(len(rows), end.log_evidence, fit.predict)


def measured(task, fit):
    """Return log evidence, vectors and held-out error of a fit."""
    predicted = fit.predict(task.X_test)
    if task.likelihood == "gaussian":
        error = float(np.sqrt(np.mean((predicted - task.y_test) ** 2)))
    else:
        error = float(np.mean(np.sign(predicted) != task.y_test))
    return {
        "log_evidence": round(fit.log_evidence, 2),
        "vectors": fit.vectors,
        "error": error,
    }


def run(benchmark, task, function, *, is_short=True):
    n = len(task.y)
    few = 3 if n <= 400 else 1  # the others take minutes
    rounds = (25 if n <= 400 else 5 if n <= 2000 else few) if is_short else few
    fit = benchmark.pedantic(function, rounds=rounds, warmup_rounds=int(rounds > 1))
    benchmark.extra_info.update(measured(task, fit))


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("n", SIZES)
def test_sequential(benchmark, name, n):
    task = TASKS[name](n)
    run(benchmark, task, lambda: ours(task, "sequential"))


@pytest.mark.parametrize(("name", "n"), [(k, n) for k, sizes in BATCH_SIZES.items() for n in sizes])
def test_batch(benchmark, name, n):
    task = TASKS[name](n)
    run(benchmark, task, lambda: ours(task, "batch"), is_short=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("n", SIZES)
def test_fastrvm(benchmark, name, n):
    module = pytest.importorskip("fastrvm")
    task = TASKS[name](n)
    run(benchmark, task, lambda: fastrvm(task, module))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "n"), [(k, n) for k, sizes in BATCH_SIZES.items() for n in sizes])
def test_sklearn_rvm(benchmark, name, n):
    module = pytest.importorskip("sklearn_rvm")
    task = TASKS[name](n)
    run(benchmark, task, lambda: sklearn_rvm(task, module), is_short=False)
