"""Rows that equal another row in all features, missing ones included, and with which labels.

``PCVM_DATA=... python benchmarks/copies.py [SET ...]`` prints a line for each set at hand that has any: rows,
different rows, rows that equal another, those of them with another row's label, and whether held-out
comparisons (`stratified_draws`) keep equal rows on one side. Targets that are numbers differ unless equal.
"""

import argparse

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from pcvm_pymc.experiments.datasets.loading import available, load
from pcvm_pymc.experiments.datasets.registry import SOURCES
from pcvm_pymc.experiments.head_to_head import equal_rows


def sets(names):
    """Yield name, inputs and labels; nothing that is drawn anew."""
    for name in names or available():
        if not SOURCES[name].generate:
            data = load(name, random_state=0)
            yield name, data.X, data.y
    if not names:
        yield "diabetes_progression", *load_diabetes(return_X_y=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*")
    print("| set | rows | different | equal another | with another label | kept together |")
    print("| --- " * 6 + "|")
    without = []
    for name, X, y in sets(parser.parse_args().sets):
        frame = pd.DataFrame(X)
        number = frame.groupby(list(frame), dropna=False, sort=False).ngroup()
        repeated = number.duplicated(keep=False)
        if not repeated.any():
            without.append(name)
            continue
        contradict = pd.Series(y).groupby(number).transform("nunique") > 1
        together = len(np.unique(equal_rows(X, y))) < len(y)
        print(
            f"| {name} | {len(y)} | {number.nunique()} | {repeated.sum()} | {contradict.sum()} "
            f"| {'yes' if together else 'no'} |"
        )
    print(f"\nnone in {len(without)}: {', '.join(without)}")


if __name__ == "__main__":
    main()
