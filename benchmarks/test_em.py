"""Seconds, iterations and memory of the EM, beside scikit-learn's SVC in the same run.

OMP_NUM_THREADS=1 uv run pytest benchmarks --benchmark-columns=min,median,rounds
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from pcvm_pymc import EMOptions, Hyperprior, PCVMClassifier
from pcvm_pymc.core.bases import design_matrix, median_distance, width_grid
from pcvm_pymc.core.em import Problem, fit_em
from pcvm_pymc.experiments.datasets import ripley_mixture, waveform

SIZES = (100, 400, 1300, 4000)
PRIORS = {"plug-in": Hyperprior.plug_in(), "jeffreys": Hyperprior.jeffreys()}
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
        log_posterior=round(result.log_posterior, 4),
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
    note(benchmark, run(benchmark, n, lambda: fit(X, label, PRIORS["plug-in"], options)))


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
def test_pcvm_width_auto(benchmark, n):
    """Choose among nine widths in five folds, then fit."""
    X, label = ripley_mixture(n, random_state=0)
    model = run(benchmark, n, lambda: PCVMClassifier(random_state=0).fit(X, label))
    benchmark.extra_info["vectors"] = len(model.weight_)


@pytest.mark.parametrize("bias", ["joint", "alternating"])
@pytest.mark.parametrize("make", [ripley_mixture, waveform], ids=["ripley", "waveform"])
@pytest.mark.parametrize("prior", sorted(PRIORS))
@pytest.mark.parametrize("update", ["em", "auto"])
def test_joint_or_alternating_bias(benchmark, bias, make, prior, update):
    X, label = make(400, random_state=0)
    options = EMOptions(update=update, bias=bias, max_iter=5000)
    note(benchmark, benchmark.pedantic(lambda: fit(X, label, PRIORS[prior], options), rounds=1))


PEAK = """
import json, re, sys
from pathlib import Path
import numpy as np
from pcvm_pymc.core.bases import design_matrix, median_distance
from pcvm_pymc.core.em import EMOptions, Problem, fit_em
from pcvm_pymc.core.priors import Hyperprior
from pcvm_pymc.experiments.datasets import ripley_mixture

def peak():  # of this program alone: ru_maxrss starts at what the parent held
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

n, prior, update = int(sys.argv[1]), sys.argv[2], sys.argv[3]
hyperprior = {"plug-in": Hyperprior.plug_in(), "jeffreys": Hyperprior.jeffreys()}[prior]
X, label = ripley_mixture(n, random_state=0)
width = median_distance(X[:500])
few = slice(0, 600)
small = Problem(design_matrix("rbf", X[few], X[few], width), label[few], label[few], hyperprior)
fit_em(small, None, EMOptions(update=update))  # the workspaces of BLAS are not the fit's
before = peak()
Phi = design_matrix("rbf", X, X, width)
made = peak()
fit_em(Problem(Phi, label, label.copy(), hyperprior), None, EMOptions(update=update, max_iter=5))
unit = 8 * n * n
print(json.dumps({"phi": (made - before) / unit, "fit": (peak() - before) / unit}))
"""


@pytest.mark.parametrize(
    ("prior", "update"), [("plug-in", "newton"), ("plug-in", "em"), ("jeffreys", "em")]
)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_peak_memory_in_matrices_of_n_by_n(benchmark, prior, update):
    """Phi included; five iterations, since the first ones are the largest."""
    command = [sys.executable, "-c", PEAK, "4000", prior, update]
    finished = benchmark.pedantic(
        lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1
    )
    benchmark.extra_info.update(json.loads(finished.stdout))
