"""Seconds, iterations and memory of the EM, beside scikit-learn's SVC in the same run.

OMP_NUM_THREADS=1 uv run pytest benchmarks --benchmark-columns=min,median,rounds
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cases import recorded_sizes
from scipy.linalg import lapack
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from pcvm_pymc import EMOptions, Hyperprior, PCVMClassifier
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.pieces.kernels import design_matrix, median_distance, width_grid
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import BorderedGram
from pcvm_pymc.experiments.datasets import ringnorm, ripley_mixture

SIZES = (100, 400, 1300, 4000)
PRIORS = {"plug_in": Hyperprior.plug_in(), "jeffreys": Hyperprior.jeffreys()}
ROUNDS = {100: 5, 400: 5, 1300: 3, 4000: 1}


def run(benchmark, n, function):
    """Time a whole fit: a warm-up and a few rounds, one for the largest."""
    return benchmark.pedantic(function, rounds=ROUNDS[n], warmup_rounds=int(n < 4000))


def fit(X, label, hyperprior, options=None):
    width = median_distance(X)
    Phi = design_matrix("rbf", X, X, width)
    return fit_em(Problem(Phi, label, label.copy(), hyperprior, width=width), None, options)


def note(benchmark, result):
    benchmark.extra_info.update(
        iterations=result.n_iter,
        log_posterior=round(result.log_posterior, 6),
        vectors=int(np.count_nonzero(result.weight)),
        status=result.status.name,
    )


@pytest.mark.parametrize("prior", sorted(PRIORS))
@pytest.mark.parametrize("n", SIZES)
def test_em_at_fixed_width(benchmark, n, prior):
    X, label = ripley_mixture(n, random_state=0)
    result = run(benchmark, n, lambda: fit(X, label, PRIORS[prior]))
    note(benchmark, result)


@pytest.mark.parametrize("n", [100, 400])
def test_plain_em_at_fixed_width(benchmark, n):
    X, label = ripley_mixture(n, random_state=0)
    options = EMOptions(update="em", max_iter=20_000)
    note(benchmark, run(benchmark, n, lambda: fit(X, label, PRIORS["plug_in"], options)))


@pytest.mark.parametrize("n", SIZES)
def test_svc_single_fit(benchmark, n):
    X, label = ripley_mixture(n, random_state=0)
    model = SVC(C=1.0, gamma=median_distance(X) ** -2)
    benchmark.extra_info["vectors"] = int(
        run(benchmark, n, lambda: model.fit(X, label)).n_support_.sum()
    )


@pytest.mark.parametrize("n", SIZES[:3])
def test_svc_grid_search(benchmark, n):
    """Search 30 pairs of width and C in five folds."""
    X, label = ripley_mixture(n, random_state=0)
    grid = {"gamma": width_grid(X, 6) ** -2, "C": np.geomspace(0.1, 1000, 5)}
    search = GridSearchCV(SVC(), grid, cv=5)
    run(benchmark, n, lambda: search.fit(X, label))


@pytest.mark.parametrize("n", SIZES[:3])
def test_pcvm_default(benchmark, n):
    """Average modes over width and scale, weighted by leaving one out."""
    X, label = ripley_mixture(n, random_state=0)
    model = run(benchmark, n, lambda: PCVMClassifier(random_state=0).fit(X, label))
    benchmark.extra_info["vectors"] = len(model.weight_)


def seconds_of(function):
    """Return CPU seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def test_fit_on_all_rows_beside_its_unavoidable_work(benchmark):
    """One Gram product and the Cholesky factorisations of the sizes that the fit solves for."""
    X, label = ringnorm(4000, random_state=0)
    Phi = design_matrix("rbf", X, X, 6.0)
    problem = Problem(Phi, label, label.copy(), PRIORS["plug_in"], width=6.0)
    began = time.process_time()
    with recorded_sizes() as sizes:
        result = benchmark.pedantic(lambda: fit_em(problem), rounds=1)
    whole = time.process_time() - began
    product = seconds_of(lambda: BorderedGram.of(Phi))
    gram = BorderedGram.of(Phi).gram
    matrices = ((gram[:n, :n] + np.eye(n)).copy(order="F") for n in (min(n, 4000) for n in sizes))
    factors = sum(
        seconds_of(lambda A=A: lapack.dpotrf(A, lower=1, overwrite_a=1)) for A in matrices
    )
    note(benchmark, result)
    benchmark.extra_info.update(
        cpu_seconds=round(whole, 2),
        gram_seconds=round(product, 2),
        n_factorisations=len(sizes),
        cholesky_seconds=round(factors, 2),
        ratio=round(whole / (product + factors), 2),
    )


PEAK = """
import json, re, sys, tracemalloc
from pathlib import Path
from pcvm_pymc.core import quadratic as gram
from pcvm_pymc.core.pieces.kernels import design_matrix, median_distance
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.experiments.datasets import ripley_mixture

def peak():  # ru_maxrss would start at what the parent held: exec hands it on
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def traced(function):  # the largest total held while it runs
    def wrapper(*args, **kwargs):
        tracemalloc.reset_peak()
        result = function(*args, **kwargs)
        found[function.__name__] = max(
            found.get(function.__name__, 0.0), tracemalloc.get_traced_memory()[1] / unit
        )
        return result
    return wrapper

n, prior, arrays = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "arrays"
hyperprior, unit, found = getattr(Hyperprior, prior)(), 8 * n * n, {}
X, label = ripley_mixture(n, random_state=0)
width = median_distance(X[:500])
if arrays:
    for name in ("cross_product", "lower_block"):
        setattr(gram, name, traced(getattr(gram, name)))
    tracemalloc.start()
before = peak()
Phi = design_matrix("rbf", X, X, width)
if arrays:
    found["design_matrix"] = tracemalloc.get_traced_memory()[1] / unit
else:
    found["process, making Phi"] = (peak() - before) / unit
fit_em(Problem(Phi, label, label.copy(), hyperprior), None)
if not arrays:
    found["process, whole fit"] = (peak() - before) / unit
print(json.dumps(found))
"""


@pytest.mark.parametrize("view", ["process", "arrays"])
@pytest.mark.parametrize("prior", ["plug_in", "jeffreys"])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_peak_memory_in_matrices_of_n_by_n(benchmark, prior, view):
    """Phi included: of the process since its imports, and of the arrays alone, by function."""
    command = [sys.executable, "-c", PEAK, "4000", prior, view]
    finished = benchmark.pedantic(
        lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1
    )
    benchmark.extra_info.update(
        {key: round(value, 3) for key, value in json.loads(finished.stdout).items()}
    )
