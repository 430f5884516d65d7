"""Effective draws of the latent function per CPU second: Gibbs, trajectories, each form and sampler of NUTS.

``OMP_NUM_THREADS=1 uv run python benchmarks/samplers.py run.jsonl [--limit S] [--sizes N ...]
[--forms TEXT]``

Each job is a fresh process (compilation counts), killed at the limit; what `run.jsonl` has already is not run
again.
"""

import argparse
import os
import time
from pathlib import Path

from processes import fresh, resumed

SIZES = (100, 250, 500, 1000)
SETS = ("ripley", "moons")
WIDTH = 0.64  # of both sets, by 5-fold cross-validation at N = 250, rounded
MEANS = {"basis": "kmeans"}
BOTH_SIGNS, ANY_WIDTH = MEANS | {"signs": "both"}, MEANS | {"unknown": True}
ANY_SIGNS_AND_WIDTH = BOTH_SIGNS | ANY_WIDTH
#: hyperprior, method ("gibbs", "hmc", "nuts", "pm.sample"), sampler of NUTS, other arguments of the model
FORMS = {
    "Gibbs, half-t": ("default", "gibbs", ""),
    "Gibbs, half-t, scale learned": ("learned", "gibbs", ""),
    "Gibbs, half-t, scale learned, 30 means": ("learned", "gibbs", "", MEANS),
    "NUTS, half-t, scale learned, 30 means, nutpie": ("learned", "nuts", "nutpie", MEANS),
    "HMC, both signs, 30 means": ("learned", "hmc", "", BOTH_SIGNS),
    "HMC, both signs, 30 means, width unknown": ("learned", "hmc", "", ANY_SIGNS_AND_WIDTH),
    "NUTS, both signs, 30 means, nutpie": ("learned", "nuts", "nutpie", BOTH_SIGNS),
    "NUTS, half-t, 30 means, width unknown, PyMC": ("default", "nuts", "pymc", ANY_WIDTH),
    "NUTS, half-t, 30 means, width unknown, nutpie": ("default", "nuts", "nutpie", ANY_WIDTH),
    "NUTS, half-t, PyMC": ("default", "nuts", "pymc"),
    "NUTS, half-t, nutpie": ("default", "nuts", "nutpie"),
    "NUTS, half-t, numpyro": ("default", "nuts", "numpyro"),
    "NUTS, half-horseshoe, PyMC": ("horseshoe", "nuts", "pymc"),
    "NUTS, half-horseshoe, nutpie": ("horseshoe", "nuts", "nutpie"),
    "NUTS, half-horseshoe, numpyro": ("horseshoe", "nuts", "numpyro"),
    "plain: explicit precisions, pm.sample": ("joint", "pm.sample", ""),
}


def data(name, n):
    """Return inputs and labels."""
    from sklearn.datasets import make_moons

    from pcvm_pymc.experiments.datasets import ripley_mixture

    if name == "ripley":
        return ripley_mixture(n, random_state=1)
    X, y = make_moons(n, noise=0.25, random_state=1)
    return X, 2.0 * y - 1.0


def drawn(name, n, form):
    """Sample once; return what the chains say."""
    import pymc as pm

    from pcvm_pymc import HalfHorseshoe, pcvm_model, sample
    from pcvm_pymc.inference.convergence import convergence

    prior, method, sampler, *choices = FORMS[form]
    options = dict(*choices)
    X, y = data(name, n)
    width = pm.LogNormal.dist(0.0, 0.7) if options.pop("unknown", False) else WIDTH
    hyperprior = {"joint": "default", "horseshoe": HalfHorseshoe.default(n, n)}.get(prior, prior)
    precision = "joint" if prior == "joint" else "marginal"
    model = pcvm_model(X, y, width=width, hyperprior=hyperprior, precision=precision, **options)
    if method == "pm.sample":
        with model:
            tree = pm.sample(progressbar=False, random_seed=1, quiet=True)
    else:
        tree = sample(
            model, method=method, nuts_sampler=sampler or None, progressbar=False, random_seed=1
        )
    found = convergence(tree)
    numbers = {"ESS": found.ess, "r-hat": found.rhat, "divergences": found.divergences}
    return {key: float(value) for key, value in numbers.items()}


def main():
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a job")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--forms", default="", help="only the forms whose name contains this")
    options = parser.parse_args()

    def measure(name, n, form):
        began, before = time.perf_counter(), os.times()
        found = fresh(drawn, name, n, form, limit=options.limit)
        row = {"set": name, "N": n, "form": form}
        if isinstance(found, str):
            return row | {"failed": found}
        cpu = sum(os.times()[2:4]) - sum(before[2:4])  # of processes that have been waited for
        found |= {"CPU s": cpu, "s": time.perf_counter() - began}
        return row | found | {"ESS / CPU s": found["ESS"] / cpu}

    forms = [form for form in FORMS if options.forms in form]
    jobs = [(name, n, form) for n in options.sizes for name in SETS for form in forms]
    table = resumed(options.path, jobs, measure).drop(columns="job")
    print(table.sort_values(["set", "N"]).to_string(float_format="{:.4g}".format, na_rep=""))


if __name__ == "__main__":
    main()
