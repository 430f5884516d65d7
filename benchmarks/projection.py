"""Projection onto few vectors: errors, AUC and 1-RMSE beside the dense model and the paper's PCVM.

OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/projection.py  (writes its table into README.md)
"""

import sys
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import brier_score_loss, roc_auc_score

from pcvm_pymc import PCVMClassifier, project
from pcvm_pymc.experiments import datasets

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- projection: begin -->", "<!-- projection: end -->"
# Chen, Tino & Yao (2009): vectors (Table III), then error, AUC and 1-RMSE (Table I)
PAPER = {
    "twonorm": (13.8, 2.46, 99.78, 85.02),
    "ringnorm": (17.6, 1.53, 99.86, 80.36),
    "waveform": (26.3, 10.40, 96.42, 71.78),
    "banana": (19.8, 10.30, 96.30, 72.13),
    "heart": (5.9, 16.62, 91.08, 64.73),
    "german": (40.9, 23.62, 79.93, 59.89),
}
GENERATORS = {name: getattr(datasets, name) for name in list(PAPER)[:3]}
REALISATIONS, DRAWS = 5, 20


def measures(y_test, latent, probability):
    return (
        100 * np.mean((latent > 0) != (y_test > 0)),
        100 * roc_auc_score(y_test > 0, latent),
        100 * (1 - np.sqrt(brier_score_loss(y_test > 0, probability))),
    )


def of_classifier(model, X_test, y_test):
    latent = model.decision_function(X_test)
    probability = model.predict_proba(X_test)[:, 1]
    return [*measures(y_test, latent, probability), len(model.weight_)]


def splits(name, source):
    if source == "generated":
        for seed in range(DRAWS):
            train = GENERATORS[name](400, random_state=1000 + seed)
            yield *train, *GENERATORS[name](4000, random_state=2000 + seed)
    else:
        data = datasets.load(name)
        for k in range(min(REALISATIONS, len(data.train))):  # of some, one is stored
            yield data.split(k)


def one_split(X, y, X_test, y_test, most):
    """Return rows for dense, projected at the paper's number, projected at the chosen number."""
    dense = PCVMClassifier(kernel="rbf", random_state=0).fit(X, y)  # as few vectors have it
    began = time.process_time()
    few = project(dense, X, y, size=most).classifier
    path_seconds = time.process_time() - began
    began = time.process_time()
    chosen = project(dense, X, y, random_state=0).classifier
    rows = [of_classifier(model, X_test, y_test) for model in (dense, few, chosen)]
    return np.array(rows), (path_seconds, time.process_time() - began)


def shown(scores):
    return " / ".join(f"{value:.2f}" for value in scores)


def table():
    lines = [
        "| data | average of RBFs | the paper's number | chosen number | the paper's PCVM | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for source in ("Rätsch's", "generated"):
        for name in PAPER if source != "generated" else GENERATORS:
            vectors, *paper = PAPER[name]
            found = [one_split(*split, int(vectors)) for split in splits(name, source)]
            scores = np.mean([rows for rows, _ in found], axis=0)
            seconds = np.mean([each for _, each in found], axis=0)
            columns = [f"{row[3]:.1f}: {shown(row[:3])}" for row in scores]
            spent = " / ".join(f"{each:.2f}" for each in seconds)
            columns = [*columns, f"{vectors}: {shown(paper)}", spent]
            lines.append(f"| {name}, {source} ({len(found)}) | {' | '.join(columns)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main():
    text = table()
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + "\n\n" + text + "\n\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(main())
