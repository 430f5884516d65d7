"""How often intervals of 89 % hold the true probability: of the classifiers, and of sampled posteriors."""

import numpy as np
from scipy.special import ndtr

from pcvm_pymc import (
    MPCVMClassifier,
    PCVMClassifier,
    RVMClassifier,
    pcvm_model,
    predict,
    sample,
)

SETS = 20
SAMPLED = 5  # sets that are sampled


def truth(X):
    return ndtr(1.5 * np.sin(1.5 * X[:, 0]) + X[:, 1])


def simulated(seed, n):
    rng = np.random.default_rng(seed)
    X, new = 1.3 * rng.normal(size=(n, 2)), 1.3 * rng.normal(size=(200, 2))
    return X, rng.uniform(size=n) < truth(X), new


def of_classifier(model):
    return lambda X, y, new: model.fit(X, y).predict_interval(new)[:, 1].T


def of_posterior(hyperprior, basis=None, signs=None):
    def interval(X, y, new):
        width = PCVMClassifier(estimation="em").fit(X, y).width_
        model = pcvm_model(X, y, width=width, hyperprior=hyperprior, basis=basis, signs=signs)
        result = predict(sample(model, random_seed=1, progressbar=False), new)
        draws = result["predictions"]["probability"].values.reshape(-1, len(new))
        return np.quantile(draws, [0.055, 0.945], axis=0)

    return interval


WAYS = {
    "`PCVMClassifier()`": (of_classifier(PCVMClassifier()), (100, 300)),
    "`RVMClassifier()`": (of_classifier(RVMClassifier()), (100, 300)),
    "`MPCVMClassifier()`": (of_classifier(MPCVMClassifier()), (100, 300)),
    '`sample`, `hyperprior="plug_in"`': (of_posterior("plug_in"), (100,)),
    '`sample`, `hyperprior="learned"`': (of_posterior("learned"), (100,)),
    '`sample`, `basis="kmeans"`': (of_posterior("learned", "kmeans"), (100, 300)),
    '`sample`, `basis="kmeans", signs="both"`': (
        of_posterior("learned", "kmeans", "both"),
        (100, 300),
    ),
}


def main():
    print("| | N = 100: held | width | N = 300: held | width |\n| --- | --- | --- | --- | --- |")
    for name, (interval, sizes) in WAYS.items():
        cells = []
        for n in sizes:
            found = []
            for seed in range(SAMPLED if name.startswith("`sample`") else SETS):
                X, y, new = simulated(seed, n)
                (low, high), p = interval(X, y, new), truth(new)
                found.append((np.mean((low <= p) & (p <= high)), np.mean(high - low)))
            cells += [f"{value:.2f}" for value in np.mean(found, axis=0)]
        print(f"| {name} | {' | '.join(cells + [''] * (4 - len(cells)))} |", flush=True)


if __name__ == "__main__":
    main()
