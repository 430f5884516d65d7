"""Effective draws of the latent function per CPU second: Gibbs, each form and sampler of NUTS.

OMP_NUM_THREADS=1 uv run python benchmarks/samplers.py run.jsonl [--limit S] [--sizes N ...] [--forms TEXT]

Each cell is a fresh process (compilation counts), killed at the limit; what `run.jsonl` holds already
is not run again. Without arguments for `--sizes` all are run. ``--table`` only prints the table.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SIZES = (100, 250, 500, 1000)
SETS = ("ripley", "moons")
# width by 5-fold cross-validation at N = 250, rounded
WIDTHS = {"ripley": 0.64, "moons": 0.64}
MEANS = {"basis": "kmeans"}
BOTH_SIGNS, ANY_WIDTH = MEANS | {"signs": "both"}, MEANS | {"unknown": True}
FORMS = {
    "Gibbs, half-t": ("default", "gibbs", ""),
    "Gibbs, half-t, scale learned": ("learned", "gibbs", ""),
    "Gibbs, half-t, scale learned, 30 means": ("learned", "gibbs", "", MEANS),
    "NUTS, half-t, scale learned, 30 means, nutpie": ("learned", "nuts", "nutpie", MEANS),
    "Gibbs, both signs, 30 means": ("learned", "gibbs", "", BOTH_SIGNS),
    "NUTS, both signs, 30 means, nutpie": ("learned", "nuts", "nutpie", BOTH_SIGNS),
    "Gibbs, half-t, 30 means, width unknown": ("default", "gibbs", "", ANY_WIDTH),
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


def build(name, n, prior, unknown=False, **choices):
    """Return the model of a cell."""
    import pymc as pm

    from pcvm_pymc import HalfHorseshoe, pcvm_model

    X, y = data(name, n)
    width = pm.LogNormal.dist(0.0, 0.7) if unknown else WIDTHS[name]
    hyperprior = {"joint": "default", "horseshoe": HalfHorseshoe.default(n, n)}.get(prior, prior)
    precision = "joint" if prior == "joint" else "marginal"
    return pcvm_model(X, y, width=width, hyperprior=hyperprior, precision=precision, **choices)


def cell(name, n, form):
    """Sample once; print what the chains say."""
    import pymc as pm

    from pcvm_pymc import sample
    from pcvm_pymc.assessment.comparison import convergence

    prior, method, sampler, *choices = FORMS[form]
    model = build(name, n, prior, **dict(*choices))
    if method == "pm.sample":
        with model:
            tree = pm.sample(progressbar=False, random_seed=1, quiet=True)
    else:
        options = {"nuts_sampler": sampler} if sampler else {}
        tree = sample(model, method=method, progressbar=False, random_seed=1, **options)
    found = convergence(tree)
    print(
        "RESULT "
        + json.dumps(
            {
                "ess": found.ess,
                "rhat": found.rhat,
                "divergences": found.divergences,
                "draws": found.n_draws,
            }
        )
    )


def run(name, n, form, limit):
    """Run a cell in a process of its own; return its record."""
    command = [sys.executable, __file__, "--cell", name, str(n), form]
    began = time.perf_counter()
    before = os.times()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    record = {"set": name, "n": n, "form": form}
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {**record, "limit": limit}
    after = os.times()
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    record["wall"] = time.perf_counter() - began
    cpu = after.children_user + after.children_system
    record["cpu"] = cpu - before.children_user - before.children_system
    return {**record, **(json.loads(lines[0][7:]) if lines else {"failed": process.returncode})}


def table(records):
    """Return the records as a Markdown table."""
    lines = [
        "| data | N | sampler | min ESS | r-hat | divergences | CPU s | wall s | ESS / CPU s |",
        "|" + " --- |" * 9,
    ]
    for each in sorted(
        records, key=lambda r: (SETS.index(r["set"]), r["n"], list(FORMS).index(r["form"]))
    ):
        head = f"| {each['set']} | {each['n']} | {each['form']} |"
        if "ess" not in each:
            why = f"not done in {each['limit']:.0f} s" if "limit" in each else "failed"
            lines.append(f"{head} {why} | | | | | |")
            continue
        lines.append(
            f"{head} {each['ess']:.0f} | {each['rhat']:.3f} | {each['divergences']} | {each['cpu']:.0f} | "
            f"{each['wall']:.0f} | {each['ess'] / each['cpu']:.2f} |"
        )
    return "\n".join(lines)


def main():
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--cell", nargs=3, metavar=("SET", "N", "FORM"))
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--forms", default="", help="only the forms whose name holds this")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.cell:
        cell(options.cell[0], int(options.cell[1]), options.cell[2])
        return
    records = (
        [json.loads(line) for line in options.file.read_text().splitlines()]
        if options.file.exists()
        else []
    )
    done = {(r["set"], r["n"], r["form"]) for r in records}
    for n in () if options.table else options.sizes:
        for name in SETS:
            for form in FORMS:
                if (name, n, form) in done or options.forms not in form:
                    continue
                records.append(run(name, n, form, options.limit))
                with options.file.open("a") as stream:
                    stream.write(json.dumps(records[-1]) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
