"""One table: seconds of ours next to peers and what cannot be avoided; and a guard on the ratios.

``OMP_NUM_THREADS=1 uv run --with fastrvm python benchmarks/ratios.py [CASE ...] [--large] [--save]
[--check]``; PCVM_DATA for the letters.

Each case (`cases.py`) is a work of ours on the same rows as a peer, which is what a user would take instead,
and a floor: products, factors and kernels that cannot be avoided. Each runs in a process of its own, after a
small fit that compiles and loads. CPU seconds, the least of the repeats; of whole processes those of the
clock. Ratios are what counts: seconds are those of a machine.

``--save`` writes the ratios to peer and floor to ratios.json; ``--check`` compares with those there and ends
with code 1 where one has grown by half.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from cases import CASES, noise
from processes import fresh

STORED = Path(__file__).with_name("ratios.json")
GROWN = 1.5  # by which a ratio may grow before it is a fault: machines differ


def _warm():
    """Fit small problems, which compiles and loads."""
    import pcvm_pymc

    names = ("PCVMClassifier", "RVMClassifier", "RVMRegressor", "MPCVMClassifier", "MRVMClassifier")
    for name in names:
        X, y = noise(60, 2)
        y[:9] = 2 * (name[0] == "M")  # a third class
        getattr(pcvm_pymc, name)(width=1.0).fit(X, y)


def seconds(name, role):
    """Return what one work of a case takes in this process."""
    case = CASES[name]
    work = case.ours if role == "ours" else getattr(case, role)[1]
    if role == "ours" and not case.clock:
        _warm()
    run = work(*case.data())
    clock, found = time.perf_counter if case.clock else time.process_time, []
    for _ in range(case.repeats):
        began = clock()
        run()
        found.append(clock() - began)
    return min(found)


def measured(name):
    """Return a line of the table, and the ratios to peer and floor that could be measured."""
    case, ratios = CASES[name], {}
    ours = fresh(seconds, name, "ours", threads=case.threads)
    cells = [name + " (s)" * case.clock, ours if isinstance(ours, str) else f"{ours:.3g}"]
    for role in ("peer", "floor"):
        if getattr(case, role) is None:
            cells += ["", ""]
            continue
        other = fresh(seconds, name, role, threads=case.threads)
        if isinstance(ours, str) or isinstance(other, str):
            cells += [str(other), ""]
            continue
        ratios[f"{name}, {role}"] = round(ours / other, 3)
        cells += [f"{other:.3g} ({getattr(case, role)[0]})", f"{ours / other:.2f}"]
    return f"| {' | '.join(cells)} |", ratios


def main():
    """Run the cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="those whose name contains it")
    parser.add_argument("--large", action="store_true", help="also those that take minutes")
    parser.add_argument("--save", action="store_true", help="the ratios, in ratios.json")
    parser.add_argument("--check", action="store_true", help="compare with those in ratios.json")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have byte code
    stored = json.loads(STORED.read_text())
    print("| work | ours | peer | ratio | floor | ratio |", "|" + " --- |" * 6, sep="\n")
    found = {}
    for name, case in CASES.items():
        chosen = not options.cases or any(part in name for part in options.cases)
        if chosen and (options.large or not case.large):
            line, ratios = measured(name)
            print(line, flush=True)
            found |= ratios
    grown = [each for each in found if found[each] > GROWN * stored.get(each, float("inf"))]
    if options.save:
        STORED.write_text(json.dumps(stored | found, indent=1) + "\n")
    if options.check and grown:
        sys.exit(f"grown by more than {GROWN}: {', '.join(grown)}")


if __name__ == "__main__":
    main()
