"""Effective draws of the latent function per CPU second: each row of the family by the samplers that take it.

``OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/samplers.py run.jsonl [--limit S] [--only TEXT]``

Each job is a fresh process that imports, compiles, and draws four chains of 1000, killed at the limit; what
`run.jsonl` has already is not run again.
"""

import argparse
import os
import time
from pathlib import Path

from processes import fresh, resumed

TWO = ("moons:100", "moons:200", "moons:500", "heart:170", "crabs_sex:100")
SEVERAL, NUMBERS = (
    ("iris:120", "glass:140", "vowel:200"),
    ("friedman2:200", "airfoil_self_noise:200"),
)
MEANS = {"basis": "kmeans", "signs": "both"}
SMOOTH = {"basis": "kmeans"}  # of regressions, which have no signs
#: name of a row, its sets, methods of `sample` (a sampler of NUTS by its name), arguments of the model
ROWS = (
    ("unconstrained", TWO, ("hmc", "nutpie"), MEANS),
    ("unconstrained, width unknown", TWO, ("hmc", "nutpie"), MEANS | {"width": "lognormal"}),
    ("unconstrained, logit", TWO[1::2], ("hmc", "nutpie"), MEANS | {"likelihood": "logit"}),
    ("unconstrained, label noise", TWO[1::2], ("hmc", "nutpie"), MEANS | {"likelihood": "noise"}),
    ("signs of labels", TWO, ("gibbs", "nutpie", "pymc"), {}),
    ("signs of labels, logit", TWO[1::2], ("nutpie", "pymc"), {"likelihood": "logit"}),
    ("unconstrained, classes", SEVERAL, ("hmc", "nutpie"), MEANS),
    ("signs of labels, classes", SEVERAL, ("nutpie", "pymc"), {}),
    ("regression", NUMBERS, ("hmc", "nutpie"), SMOOTH),
    ("regression, Student-t", NUMBERS, ("hmc", "nutpie"), SMOOTH | {"likelihood": "student-t"}),
    ("regression, weights of rows", NUMBERS, ("hmc", "nutpie"), SMOOTH | {"weighted": True}),
)


def data(name, n):
    """Return standardised inputs of some rows, labels or targets, and how many classes (0: targets)."""
    import numpy as np
    from sklearn.datasets import make_moons

    from pcvm_pymc.experiments.datasets import load

    if name == "moons":
        X, y = make_moons(n, noise=0.25, random_state=1)
    else:
        loaded = load(name, random_state=0)
        some = np.random.default_rng(1).permutation(len(loaded.X))[:n]
        X, y = loaded.X[some], loaded.y[some]
    X, numbers = (X - X.mean(axis=0)) / X.std(axis=0).clip(1e-9), f"{name}:{n}" in NUMBERS
    return X, (y - y.mean()) / y.std() if numbers else y, 0 if numbers else len(np.unique(y))


def drawn(at, method, row):
    """Sample once; return what the chains say."""
    import numpy as np

    from pcvm_pymc import mpcvm_model, pcvm_model, rvm_model, sample
    from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
    from pcvm_pymc.inference.convergence import convergence

    options = next(dict(options) for name, _, _, options in ROWS if name == row)
    name, n = at.split(":")
    X, y, n_classes = data(name, int(n))
    if options.get("likelihood") == "noise":
        options["likelihood"] = NoisyProbit(0.05)
    if options.pop("weighted", False):
        options["sample_weight"] = np.random.default_rng(2).integers(1, 4, len(X)).astype(float)
    build = {0: rvm_model, 2: pcvm_model}.get(n_classes, mpcvm_model)
    model = build(X, y, **options)
    how = {"method": method} if method in ("gibbs", "hmc") else {"nuts_sampler": method}
    tree = sample(model, progressbar=False, quiet=True, random_seed=1, cores=1, **how)
    found = convergence(tree)
    numbers = {"ESS": found.ess, "r-hat": found.rhat, "divergences": found.divergences}
    return {key: float(value) for key, value in numbers.items()}


def main():
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a job")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()

    def measure(at, method, row):
        began, before = time.perf_counter(), os.times()
        found = fresh(drawn, at, method, row, limit=options.limit)
        if isinstance(found, str):
            return {"failed": found}
        cpu = sum(os.times()[2:4]) - sum(before[2:4])  # of processes that have been waited for
        found |= {"CPU s": cpu, "s": time.perf_counter() - began}
        return found | {"ESS / CPU s": found["ESS"] / cpu}

    rows = [row for row in ROWS if options.only in row[0]]
    jobs = [
        (at, method, name) for name, sets, methods, _ in rows for at in sets for method in methods
    ]
    table = resumed(options.path, jobs, measure)
    print(table.to_string(float_format="{:.4g}".format, na_rep="", index=False))


if __name__ == "__main__":
    main()
