"""One table: seconds before and after, beside peers and what cannot be avoided; and a guard on the ratios.

``uv run --with fastrvm python benchmarks/ratios.py [CASE ...] [--large] [--before PATH] [--save] [--check]``
with OMP_NUM_THREADS=1; PCVM_DATA for the letters.

Each case (`cases.py`) is a work of ours on the same rows as a peer, which is what a user would take instead,
and a floor: products, factors and kernels that cannot be avoided. Each runs in a process of its own, after a
small fit that compiles and loads; with ``--before`` ours runs in that working tree, too, an earlier state of
the package. CPU seconds, the least of the repeats; of whole processes those of the clock. Ratios are what
counts: seconds are those of a machine.

``--save`` writes the ratios to peer and floor to ratios.json; ``--check`` compares with those there and ends
with code 1 where one has grown by half. ``--rows FILE`` appends each row as it comes, and leaves out those
that are there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from cases import CASES, noise

STORED = Path(__file__).with_name("ratios.json")
HERE = Path(__file__).resolve().parents[1]
GROWN = 1.5  # by which a ratio may grow before it is a fault: machines differ
ROLES = ("before", "ours", "peer", "floor")
LIMIT = 600.0  # seconds by the clock of one work and its preparation
LIMIT_BEFORE = 150.0  # of an earlier state


def _warm():
    """Fit small problems, which compiles and loads."""
    import pcvm_pymc

    names = ("PCVMClassifier", "RVMClassifier", "RVMRegressor", "MPCVMClassifier", "MRVMClassifier")
    for name in names:
        X, y = noise(60, 2)
        y[:9] = 2 * (name[0] == "M")  # a third class
        getattr(pcvm_pymc, name)(width=1.0).fit(X, y)


def child(name, role, rows):
    """Run one work of a case on the rows of a file, and print what it took."""
    warnings.simplefilter("ignore")
    case, held = CASES[name], np.load(rows)
    work = case.ours if role in {"before", "ours"} else getattr(case, role)[1]
    if case.unit != "s" and role in {"before", "ours"}:
        _warm()
    run = work(held["X"], held["y"])
    clock = time.perf_counter if case.unit == "s" else time.process_time
    found = []
    for _ in range(case.repeats):
        began = clock()
        value = run()
        found.append(clock() - began if case.unit in ("s", "CPU s") else value)
    print(json.dumps(min(found)))


def measured(name, role, rows, path):
    """Return what a role of a case took, with that working tree's package; what went wrong as a str."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": str(CASES[name].threads),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users have byte code
    command = [sys.executable, __file__, "--child", name, role, str(rows)]
    limit = LIMIT_BEFORE if role == "before" else LIMIT
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return f"more than {limit:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["killed"])[-1][:80]
    return json.loads(done.stdout.splitlines()[-1])


def row_of(name, before):
    """Return a case's row: a number, what went wrong, or None for each role."""
    case = CASES[name]
    present = [
        role
        for role in ROLES
        if role == "ours"
        or (role == "before" and before is not None)
        or (role in ("peer", "floor") and getattr(case, role) is not None)
    ]
    with tempfile.TemporaryDirectory() as folder:
        X, y = case.data()
        rows = Path(folder) / "rows.npz"
        np.savez(rows, X=X, y=y)
        found = {
            role: measured(name, role, rows, before if role == "before" else HERE)
            for role in present
        }
    return {"case": name, "unit": case.unit, **found}


def ratio(row, role):
    """Return ours over a role's; NaN where one is not a number."""
    pair = row.get("ours"), row.get(role)
    if not all(isinstance(each, float | int) for each in pair):
        return np.nan
    return pair[0] / pair[1]


def line(row):
    """Return a row of the table."""
    case = CASES[row["case"]]

    def cell(role):
        value = row.get(role)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        return f"{value:.3g}"

    def beside(role):
        named = getattr(case, role)
        if named is None:
            return " | "
        return f"{cell(role)} ({named[0]}) | " + _shown(ratio(row, role))

    faster = _shown(ratio(row, "before"))
    name = row["case"] + ("" if case.unit == "CPU s" else f" ({case.unit})")
    columns = (name, cell("before"), cell("ours"), faster, beside("peer"), beside("floor"))
    return "| " + " | ".join(columns) + " |"


def _shown(value):
    return "" if np.isnan(value) else f"{value:.2f}"


def stored_ratios(row):
    """Return a row's ratios to peer and floor, by the names that ratios.json has them under."""
    found = {f"{row['case']}, {role}": ratio(row, role) for role in ("peer", "floor")}
    return {name: round(value, 3) for name, value in found.items() if np.isfinite(value)}


def main():
    """Run the cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="those whose name contains it")
    parser.add_argument("--large", action="store_true", help="also those that take minutes")
    parser.add_argument("--before", type=Path, help="working tree of an earlier state")
    parser.add_argument("--rows", type=Path, help="keep the rows in this file, and go on from it")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    kept = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    done = {row["case"]: row for row in map(json.loads, kept)}
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    print("| work | before | after | ratio | peer | ratio | floor | ratio |")
    print("|" + " --- |" * 8)
    grown = []
    for name, case in CASES.items():
        chosen = not options.cases or any(part in name for part in options.cases)
        if not chosen or (case.large and not options.large):
            continue
        row = done.get(name) or row_of(name, options.before)
        if options.rows and name not in done:
            with options.rows.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        print(line(row), flush=True)
        ratios = stored_ratios(row)
        grown += [each for each in ratios if ratios[each] > GROWN * stored.get(each, np.inf)]
        stored |= ratios
    if options.save:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    if options.check and grown:
        sys.exit(f"grown by more than {GROWN}: {', '.join(grown)}")


if __name__ == "__main__":
    main()
