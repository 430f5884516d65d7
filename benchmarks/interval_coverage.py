"""How often intervals of 89 and 50 % contain the true probability, how wide they are, and the log loss.

``OMP_NUM_THREADS=1 uv run python benchmarks/interval_coverage.py [--repeats 2] [--rows 100 200]
[--ways NAME ...]``

Ten kinds of simulated data whose probabilities are known; 200 new rows each. The log loss is the expected
one, over labels of the true probability.
"""

import argparse
import itertools
import time
import warnings

import numpy as np
from scipy.special import expit, ndtr
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from pcvm_pymc import (
    PCVMClassifier,
    RVMClassifier,
    SparseProbitClassifier,
    pcvm_model,
    predict,
    sample,
    select,
)

NEW = 200
TAILS = [0.055, 0.945, 0.25, 0.75]


def mixture_odds(X):
    """Return the log odds of two pairs of bumps."""
    bumps = [np.exp(-((X[:, 0] - a) ** 2 + (X[:, 1] - b) ** 2)) for a, b in _CENTRES]
    return 4.0 * (bumps[0] + bumps[1] - bumps[2] - bumps[3])


_CENTRES = [(-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)]

#: name, number of features, probability of the greater class
KINDS = {
    "wave": (2, lambda X: ndtr(1.5 * np.sin(1.5 * X[:, 0]) + X[:, 1])),
    "plane": (2, lambda X: expit(1.5 * X[:, 0] - X[:, 1])),
    "ring": (2, lambda X: expit(3.0 - 2.0 * (X**2).sum(axis=1))),
    "checks": (2, lambda X: expit(mixture_odds(X))),
    "noise": (2, lambda X: np.full(len(X), 0.5)),
    "rare": (2, lambda X: ndtr(0.8 * X[:, 0] - 1.3)),
    "one feature": (1, lambda X: ndtr(1.5 * np.sin(2.5 * X[:, 0]))),
    "steep": (2, lambda X: expit(6.0 * (X[:, 0] + 0.5 * X[:, 1] ** 2 - 0.7))),
    "five features": (5, lambda X: ndtr(X[:, 0] + np.abs(X[:, 1]) - 0.8 + 0.5 * X[:, 2])),
    "ten features": (10, lambda X: expit(X[:, :5].sum(axis=1))),
}


def of_classifier(model):
    def quantiles(X, y, new):
        fitted = model.fit(X, y)
        both = [fitted.predict_interval(new, probability=p)[:, 1].T for p in (0.89, 0.5)]
        return np.concatenate(both), fitted.predict_proba(new)[:, 1]

    return quantiles


def of_model(width_of, **options):
    def quantiles(X, y, new):
        model = pcvm_model(X, y, width=width_of(X, y), **options)
        result = predict(sample(model, random_seed=1, progressbar=False, quiet=True), new)
        draws = result["predictions"]["probability"].values.reshape(-1, len(new))
        return np.quantile(draws, TAILS, axis=0), draws.mean(axis=0)

    return quantiles


def of_gaussian_process(X, y, new):
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(1.0, (1e-2, 1e3))
    fitted = GaussianProcessClassifier(kernel, random_state=0).fit(X, y)
    mean, variance = fitted.latent_mean_and_variance(new)
    normal = np.array([-1.598, 1.598, -0.6745, 0.6745])
    return expit(mean + normal[:, None] * np.sqrt(variance)), fitted.predict_proba(new)[:, 1]


def chosen(X, y):
    return select(X, y, over=("width",), random_state=0).width


DRAWN = {"estimation": "posterior", "random_state": 0}
#: `(X, y, new) -> (quantiles, mean)`
WAYS = {
    "posterior": of_classifier(PCVMClassifier(width="shared", **DRAWN)),
    "average": of_classifier(PCVMClassifier(width="shared", random_state=0)),
    "rvm": of_classifier(RVMClassifier(width="shared", **DRAWN)),
    "sparse": of_classifier(SparseProbitClassifier(features="kernel", prior="laplace", **DRAWN)),
    "signed": of_model(chosen),  # the paper's
    "both": of_model(chosen, basis="kmeans", signs="both"),
    "width": of_model(lambda X, y: "lognormal", basis="kmeans", signs="both"),
    "gp": of_gaussian_process,
}


def once(name, kind, n, seed):
    """Return shares and widths of the intervals of 89 and of 50 %, log loss and seconds on one draw."""
    d, truth = KINDS[kind]
    rng = np.random.default_rng([seed, n])
    X, new = rng.normal(size=(n, d)), rng.normal(size=(NEW, d))
    y, p, began = rng.uniform(size=n) < truth(X), truth(new), time.process_time()
    quantiles, mean = WAYS[name](X, y, new)
    found = []
    for low, high in (quantiles[:2], quantiles[2:]):
        found += [np.mean((low <= p) & (p <= high)), np.mean(high - low)]
    loss = -np.mean(p * np.log(mean) + (1.0 - p) * np.log1p(-mean))
    return [*found, loss, time.process_time() - began]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 200, 500])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    heads = "rows | 89 %: share | width | 50 %: share | width | log loss | CPU s | lowest, 89 %"
    print(f"| | {heads} |", "| --- " * 9 + "|", sep="\n")
    for name, n in itertools.product(options.ways, options.rows):
        shares = {
            kind: np.mean([once(name, kind, n, seed) for seed in range(options.repeats)], axis=0)
            for kind in KINDS
        }
        row = np.mean(list(shares.values()), axis=0)
        least = min(shares, key=lambda kind: shares[kind][0])
        shown = [f"{v:.2f}" for v in row[:4]] + [f"{row[4]:.4f}", f"{row[5]:.1f}"]
        kind = f"{least} {shares[least][0]:.2f}"
        print(f"| {name} | {n} | {' | '.join(shown)} | {kind} |", flush=True)


if __name__ == "__main__":
    main()
