"""Data as they come, each estimator without arguments, with peers.

Many rows, repeated measurements, many features, rare classes, wrong labels.

``OMP_NUM_THREADS=1 python benchmarks/as_they_come.py [NAME ...]``, names of `CASES`. A line for each
estimator: error in per cent (of a regression the root mean square), mean negative log probability in nats,
seconds of the processor, peak of the process in GiB. Each runs in a process of its own. The SVC is tuned by a
grid search of 30 pairs on 2,000 rows and fitted to all of them; its log loss is left out.
"""

import multiprocessing
import resource
import sys
import time
import warnings

import numpy as np
from sklearn.datasets import make_classification, make_friedman1, make_moons
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegressionCV, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import pcvm_pymc as pcvm

TEST, TUNED = 5000, 2000
GRID = {"C": np.geomspace(0.1, 1000, 5), "gamma": np.geomspace(0.03, 10, 6)}


class TunedSVC:
    """A support vector machine, tuned on some of the rows and fitted to all."""

    def __init__(self, kind=SVC):
        self.kind = kind

    def fit(self, X, y):
        """Fit the machine."""
        grid = {"C": GRID["C"], "gamma": GRID["gamma"] / X.shape[1]}
        rows = np.random.default_rng(0).choice(len(X), min(TUNED, len(X)), replace=False)
        best = GridSearchCV(self.kind(), grid).fit(X[rows], y[rows]).best_params_
        self.model = self.kind(**best).fit(X, y)
        self.classes_ = getattr(self.model, "classes_", None)

    def predict(self, X):
        """Return labels or values."""
        return self.model.predict(X)


def synthetic(n, n_classes=2):
    """Return rows of ten features, eight or nine of them of effect."""
    informative, clusters = (6, 3) if n_classes == 2 else (8, 2)
    return make_classification(
        n + TEST,
        n_features=10,
        n_informative=informative,
        n_redundant=2,
        n_classes=n_classes,
        n_clusters_per_class=clusters,
        random_state=0,
    )


def letters(n):
    """Return letters, A to M against N to Z, one of equal rows."""
    from pcvm_pymc.experiments.datasets import load

    data = load("letter", random_state=0)
    once = np.unique(data.X, axis=0, return_index=True)[1]
    order = np.random.default_rng(0).permutation(once)[: n + TEST]
    names, number = np.unique(data.y, return_inverse=True)
    return data.X[order], (number >= len(names) // 2).astype(int)[order]


def copies(n):
    """Return moons, a tenth of the labels flipped, each row three times with noise; the test rows once."""
    X, y = make_moons(n // 3 + TEST, noise=0.2, random_state=0)
    rng = np.random.default_rng(0)
    flipped = np.where((rng.uniform(size=len(y)) < 0.1) & (np.arange(len(y)) < n // 3), 1 - y, y)
    X, y = (np.concatenate([np.repeat(e[: n // 3], 3, axis=0), e[n // 3 :]]) for e in (X, flipped))
    X[:n] += 1e-3 * rng.normal(size=(n, 2))
    return X, y


def wide(n, d):
    """Return rows of many features, of which five have an effect."""
    return make_classification(
        n + TEST, d, n_informative=5, n_redundant=0, n_clusters_per_class=1, random_state=0
    )


def rare(n):
    """Return five normal features, two of which are shifted in five per cent of the rows."""
    rng = np.random.default_rng(0)
    y = (rng.uniform(size=n + TEST) < 0.05).astype(int)
    X = rng.normal(size=(n + TEST, 5))
    X[:, :2] += 1.5 * y[:, None]
    return X, y


def flipped(n):
    """Return moons, a tenth of the labels flipped, of the test rows too."""
    X, y = make_moons(n + TEST, noise=0.15, random_state=0)
    return X, np.where(np.random.default_rng(0).uniform(size=len(y)) < 0.1, 1 - y, y)


#: rows, training rows, estimator, more arguments of its `fit`
CASES = {
    "two classes, 20,000 rows": (synthetic, 20_000, pcvm.PCVMClassifier, {}),
    "two classes, 100,000 rows": (synthetic, 100_000, pcvm.PCVMClassifier, {}),
    "letters, 15,000 rows": (letters, 15_000, pcvm.PCVMClassifier, {}),
    "ten classes, 20,000 rows": (lambda n: synthetic(n, 10), 20_000, pcvm.MPCVMClassifier, {}),
    "regression, 20,000 rows": (
        lambda n: make_friedman1(n + TEST, n_features=10, noise=1.0, random_state=0),
        20_000,
        pcvm.RVMRegressor,
        {},
    ),
    "repeated, without groups": (copies, 300, pcvm.PCVMClassifier, {}),
    "repeated, with groups": (
        copies,
        300,
        pcvm.PCVMClassifier,
        {"groups": np.repeat(np.arange(100), 3)},
    ),
    "60 rows of 1,000 features": (lambda n: wide(n, 1000), 60, pcvm.PCVMClassifier, {}),
    "100 rows of 200 features": (lambda n: wide(n, 200), 100, pcvm.PCVMClassifier, {}),
    "five per cent of 400 rows": (rare, 400, pcvm.PCVMClassifier, {}),
    "a tenth of the labels wrong": (flipped, 200, pcvm.PCVMClassifier, {}),
}


def peers(kind):
    """Return the estimators of a case by their names."""
    scaled = [make_pipeline(StandardScaler(), each) for each in (LogisticRegressionCV(), Ridge())]
    if kind is pcvm.RVMRegressor:
        return {
            "SVR": TunedSVC(SVR),
            "boosting": HistGradientBoostingRegressor(),
            "ridge": scaled[1],
        }
    return {"SVC": TunedSVC(), "boosting": HistGradientBoostingClassifier(), "logistic": scaled[0]}


def scored(case, name):
    """Print the line of an estimator."""
    warnings.simplefilter("ignore")
    make, n, kind, more = CASES[case]
    X, y = make(n)
    spread = X[:n].std(axis=0)
    X = (X - X[:n].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    model = kind() if name == kind.__name__ else peers(kind)[name]
    began = time.process_time()
    model.fit(X[:n], y[:n], **(more if name == kind.__name__ else {}))
    seconds, found, loss = time.process_time() - began, model.predict(X[n:]), np.nan
    if kind is pcvm.RVMRegressor:
        error = f"{np.sqrt(np.mean((found - y[n:]) ** 2)):.3f}"
    else:
        error = f"{100 * np.mean(found != y[n:]):.1f}"
        if hasattr(model, "predict_proba"):
            column = np.searchsorted(model.classes_, y[n:])
            probability = model.predict_proba(X[n:])[np.arange(len(column)), column]
            loss = -np.log(probability.clip(1e-12)).mean()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {case} | {name} | {error} | {loss:.3f} | {seconds:.1f} | {peak:.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    print("| | | error | nats | CPU s | GiB |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    spawn = multiprocessing.get_context("spawn")
    for case in sys.argv[1:] or CASES:
        kind = CASES[case][2]
        for name in (kind.__name__, *peers(kind)):
            job = spawn.Process(target=scored, args=(case, name))
            job.start()
            job.join()


if __name__ == "__main__":
    main()
