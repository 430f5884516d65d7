"""Modes of `find_map_em` at the median distance, at a chosen width and of an unknown one, on held-out rows.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/unknown_width.py

The sets are those of `posterior_priors.py`.
"""

import warnings

import numpy as np
from posterior_priors import sets
from sklearn.metrics import log_loss
from tables import markdown

from pcvm_pymc import find_map_em, pcvm_model, predict, select

WIDTHS = ("median distance", "`select`", '`"lognormal"`')
MODELS = {"on each row": {}, "30 means, both signs": {"basis": "kmeans", "signs": "both"}}


def main():
    warnings.simplefilter("ignore")
    rows = []
    for name, X, y, X_test, y_test in sets():
        chosen = select(X, y, over=("width",), random_state=0).width
        losses = []
        for options in MODELS.values():
            for width in (None, chosen, "lognormal"):
                mode = find_map_em(pcvm_model(X, y, width=width, **options), progressbar=False)
                p = predict(mode, X_test)["predictions"]["probability"].values.ravel()
                losses.append(log_loss(y_test > 0, np.clip(p, 1e-12, 1.0 - 1e-12)))
        rows.append([name, *losses])
    rows.append(["mean", *np.mean([row[1:] for row in rows], axis=0)])
    names = [f"{model}: {width}" for model in MODELS for width in WIDTHS]
    print(markdown(["log loss", *names], [[r[0], *(f"{v:.4f}" for v in r[1:])] for r in rows]))


if __name__ == "__main__":
    main()
