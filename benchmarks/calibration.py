"""Calibration of samplers at length: a row of the table for each case of the calibration tests.

``OMP_NUM_THREADS=1 uv run python benchmarks/calibration.py [CASE ...] [--replications 5000]``; without cases,
all of Gibbs and of NUTS, in turn. The CPU seconds leave out the compilation of a model.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "inference")]
import test_calibration as calibration  # noqa: E402

FACTORS = (0.95, 1.0, 1.05)
HEADS = ["", "replications", "uniform", "mean", "variance", "at .95", "at 1.05", "CPU seconds"]


def drawer(name: str):
    """Return the function that draws replications of a case."""
    if name.startswith("Gibbs, "):
        cases = calibration.ByGibbs(*calibration.GIBBS[name.removeprefix("Gibbs, ")])
        return lambda n: cases.replicate(n, seed=4, thin=10, factors=FACTORS)
    cases = calibration.ByNUTS(calibration.NUTS[name.removeprefix("NUTS, ")]())
    return lambda n: cases.replicate(n, seed=5, factors=FACTORS)


def row(name: str, replications: int) -> list[str]:
    """Return least p-values, and how often a wrong spread is noticed in resampled runs."""
    draw = drawer(name)
    begin = time.process_time()
    found = draw(replications)
    seconds = time.process_time() - begin
    least = calibration.p_values(found[1.0]).min(axis=1)
    noticed = [calibration.power(found[factor]) for factor in (0.95, 1.05)]
    numbers = [f"{value:.2g}".removeprefix("0") for value in [*least, *noticed]]
    return [name, str(replications), *numbers, f"{seconds:.0f}"]


def main() -> None:
    """Print the table, a row as soon as it is known."""
    every = [f"Gibbs, {name}" for name in calibration.GIBBS]
    every += [f"NUTS, {name}" for name in calibration.NUTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=every, choices=every, metavar="CASE")
    parser.add_argument("--replications", type=int, default=calibration.REPLICATIONS)
    options = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}", sep="\n", flush=True)
    for name in options.cases:
        print(f"| {' | '.join(row(name, options.replications))} |", flush=True)


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
