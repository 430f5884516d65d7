"""The default, the RBF alone, one width, and peers on the same draws: scores and CPU seconds.

``OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/peers.py [--draws 3] [--seed 7000]
[--peers NAME ...] [--sets SET:ROWS ...]`` prints a line for each set and estimator, then means and mean
ranks; without sets, of the 21 that README.md has. Equal rows are on one side of a split. CatBoost
(``uv sync --group benchmarks``) has the rows as they come, missing values and `CATEGORIES` included; so has
the default, with its numbers standardised; the others have medians and standardised columns.

Sets: a name, ``motif-D`` (letters, eight of which are a motif with errors), ``two-of-D``, ``three-of-D`` (by
their sum) and ``xor-of-D`` (by the sign of a product), or one of `REGRESSIONS`, whose loss is the error in
standard deviations, and which compare the posterior with the default.
"""

import argparse
import itertools
import resource
import warnings

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from pcvm_pymc import MPCVMClassifier, PCVMClassifier, RVMRegressor
from pcvm_pymc.experiments.baselines import TunedSVC
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import stratified_draws

try:
    import catboost
except ImportError:
    catboost = None

SETS = (
    *("image:300", "image:200", "thyroid:140", "crabs_sex:100", "diabetis:300", "australian:300"),
    *("wisconsin_diagnostic:120", "wisconsin_original:150", "breast_cancer:200", "heart:170"),
    *("ringnorm:200", "twonorm:200", "waveform:200", "german:300", "cleveland:200"),
    *("heart_hungarian:200", "pima_ripley:200", "letter_2:200", "banana:300", "ripley:200"),
    "titanic:150",
)
HEART = (1, 2, 5, 6, 8, 10, 12)  # sex, chest pain, sugar, ECG, angina, slope, thallium scan
# columns whose numbers are codes of categories, from 0, in the order of UCI's descriptions
CATEGORIES = {
    "australian": (0, 3, 4, 5, 7, 8, 10, 11),
    "breast_cancer": (1, 4, 6, 7, 8),  # age, size and the like are in order
    "cleveland": HEART,
    "german": (0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16, 18, 19),
    "heart": HEART,
    "heart_hungarian": HEART,
    "titanic": (0, 1, 2),
}
PEERS = ("SVC", "boosting", "CatBoost", "forest", "logistic", "GP", "GP, widths")
MOST_TESTED = 2000
LEAST_ROWS = 8  # of a class: others are left out
NOISY = {  # the class, of normal features of which two or three have an effect
    "two-of-": lambda X: np.abs(X[:, 0]) + 0.5 * X[:, 1] ** 2 > 1.0,
    "three-of-": lambda X: X[:, :3].sum(axis=1) > 0,
    "xor-of-": lambda X: X[:, 0] * X[:, 1] > 0,
}
REGRESSIONS = {
    "friedman1": lambda n, seed: make_friedman1(n, noise=1.0, random_state=seed),
    "friedman2": lambda n, seed: make_friedman2(n, noise=125.0, random_state=seed),
    "friedman3": lambda n, seed: make_friedman3(n, noise=0.1, random_state=seed),
    "diabetes_progression": lambda n, seed: load_diabetes(return_X_y=True),
}
STORED = ("boston_housing", "airfoil_self_noise", "winequality_white")
REGRESSIONS |= {name: lambda n, seed, name=name: numbers_of(name) for name in STORED}
#: how often each letter of the motif is there
MOTIF = (0.9, 0.8, 0.7, 0.95, 0.95, 0.75, 0.6, 0.55)


def letters(n: int, d: int, seed: int):
    """Return rows of four letters, half of them with a motif in the middle; others have two letters of it."""
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 4, (n, d)).astype(float), rng.random(n) < 0.5
    motif, first = rng.integers(0, 4, len(MOTIF)), d // 3
    for k, probability in enumerate(MOTIF):
        X[y & (rng.random(n) < probability), first + k] = motif[k]
    decoy = rng.random(n) < 0.5
    X[~y & decoy, first + 3], X[~y & ~decoy, first + 4] = motif[3], motif[4]
    return X, y.astype(int)


def numbers_of(name: str):
    """Return inputs and targets of a stored regression."""
    data = load(name, random_state=0)
    return data.X, data.y.astype(float)


def categories_of(name: str) -> tuple[int, ...]:
    """Return the numbers of the columns that are codes of categories."""
    return tuple(range(int(name[6:]))) if name.startswith("motif-") else CATEGORIES.get(name, ())


def regression_rows(name: str, n: int, seed: int):
    """Return standardised rows with their targets, and the inputs again, of a regression."""
    X, y = REGRESSIONS[name](n + MOST_TESTED, seed)
    rows = np.random.default_rng(seed).permutation(len(X))[: n + MOST_TESTED]
    X, y = X[rows], y[rows]
    X = (X - X[:n].mean(axis=0)) / (X[:n].std(axis=0) + 1e-12)
    y = (y - y[:n].mean()) / y[:n].std()
    data = X[:n], y[:n], X[n:], y[n:]
    return data, data[::2]


def simulated_rows(name: str, n: int, seed: int):
    """Return standardised rows with their labels, and rows as they come, of simulated classes."""
    family = name.rstrip("0123456789")
    d = int(name.removeprefix(family))
    if family == "motif-":
        X, y = letters(n + 1000, d, seed)
    else:
        X = np.random.default_rng(seed).normal(size=(n + 1000, d))
        y = NOISY[family](X).astype(int)
    raw, X = (X[:n], X[n:]), (X - X[:n].mean(axis=0)) / X[:n].std(axis=0)
    return (X[:n], y[:n], X[n:], y[n:]), raw


def draws(name: str, n: int, n_draws: int, seed: int):
    """Yield prepared rows with their labels, and rows as they come."""
    if name in REGRESSIONS or name.rstrip("0123456789") in (*NOISY, "motif-"):
        made = regression_rows if name in REGRESSIONS else simulated_rows
        yield from (made(name, n, seed + k) for k in range(n_draws))
        return
    data = load(name, random_state=0)
    y = np.unique(data.y, return_inverse=True)[1]
    frequent = np.bincount(y)[y] >= LEAST_ROWS
    X, y = data.X[frequent], np.unique(y[frequent], return_inverse=True)[1]
    as_they_come = FunctionTransformer()
    every = stratified_draws(X, y, n, min(MOST_TESTED, len(y) - n), seed=seed, scaler=as_they_come)
    for few, label, new, truth in itertools.islice(every, n_draws):
        scaler = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(few)
        yield (scaler.transform(few), label, scaler.transform(new), truth), (few, new)


def with_categories(name: str, X):
    """Return a table in which the columns of categories are texts, missing ones included."""
    frame = pd.DataFrame(X)
    columns = list(categories_of(name))
    frame[columns] = frame[columns].map(str)
    return frame


def with_standard_numbers(name: str, train, test):
    """Return rows with their numbers standardised by the training rows; codes and gaps stay."""
    numbers = np.setdiff1d(np.arange(train.shape[1]), categories_of(name))
    mean, deviation = (f(train[:, numbers], axis=0) for f in (np.nanmean, np.nanstd))
    found = []
    for rows in (train, test):
        found.append(rows.copy())
        found[-1][:, numbers] = (rows[:, numbers] - mean) / np.where(deviation > 0, deviation, 1.0)
    return found


def peers_of(regression: bool, n_classes: int, d: int, seed: int, categories):
    """Return the peers that there are for a problem; CatBoost where it is installed."""
    kernel, kernels = (RBF(start, (0.1, 1e3)) for start in (2.0, np.full(d, 2.0)))
    if regression:
        noisy = ConstantKernel() * kernels + WhiteKernel(0.1)
        found = {"boosting": HistGradientBoostingRegressor(random_state=seed)}
        found["GP, widths"] = GaussianProcessRegressor(noisy, random_state=seed)
    else:
        found = {
            "SVC": TunedSVC(random_state=seed),
            "boosting": HistGradientBoostingClassifier(random_state=seed),
            "forest": RandomForestClassifier(500, random_state=seed),
            "logistic": LogisticRegressionCV(l1_ratios=(0.0,), scoring="neg_log_loss"),
        }
    if n_classes == 2:
        for name, each in (("GP", kernel), ("GP, widths", kernels)):
            found[name] = GaussianProcessClassifier(ConstantKernel() * each, random_state=seed)
    if catboost:
        kind = catboost.CatBoostRegressor if regression else catboost.CatBoostClassifier
        options = {"thread_count": 1, "verbose": 0, "allow_writing_files": False}
        found["CatBoost"] = kind(random_seed=seed, cat_features=list(categories), **options)
    return found


def rivals(name: str, n_classes: int, d: int, seed: int, peers):
    """Return the estimators that are compared, the default first."""
    regression, categories = name in REGRESSIONS, categories_of(name)
    kind, found = PCVMClassifier if n_classes == 2 else MPCVMClassifier, {}
    if regression:
        kind = RVMRegressor
        found["posterior"] = kind(estimation="posterior", random_state=seed)
    found["default"] = kind(random_state=seed, categorical_features=list(categories) or None)
    found["RBF"] = kind(kernel="rbf", random_state=seed)
    found["RBF, one width"] = kind(kernel="rbf", width="shared", random_state=seed)
    others = peers_of(regression, n_classes, d, seed, categories)
    return found | {each: others[each] for each in peers if each in others}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of all its threads, and of processes that it waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def scored(model, X, y, X_test, y_test, *, regression: bool) -> dict[str, float]:
    """Return the scores of a fit; of a regression also log density and how often 89 % intervals are right."""
    began = cpu_seconds()
    model.fit(X, y)
    seconds = cpu_seconds() - began
    if not regression:
        probability = model.predict_proba(X_test)
        own = probability[np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)]
        error = 100 * np.mean(model.classes_[probability.argmax(axis=1)] != y_test)
        scores = probability[:, 1] if probability.shape[1] == 2 else probability
        auc = roc_auc_score(y_test, scores, multi_class="ovr", labels=model.classes_)
        loss = -np.log(own.clip(1e-12)).mean()
        return {"loss": loss, "error": error, "1 - auc": 1.0 - auc, "seconds": seconds}
    mean = model.predict(X_test)
    found = {"loss": np.sqrt(np.mean((mean - y_test) ** 2)), "seconds": seconds}
    if "Boost" not in type(model).__name__:
        sd = model.predict(X_test, return_std=True)[1]
        found["covered"] = np.mean(np.abs(y_test - mean) < 1.5982 * sd)
        found["log density"] = norm.logpdf(y_test, mean, sd).mean()
    return found


def scores_of(name: str, seed: int, data, raw, peers):
    """Return the scores of all estimators on one draw."""
    told = categories_of(name) or np.isnan(raw[0]).any()
    n_classes, d = len(np.unique(data[1])), data[0].shape[1]
    found = {}
    for label, model in rivals(name, n_classes, d, seed, peers).items():
        X, y, X_test, y_test = data
        if label == "CatBoost":
            X, X_test = (with_categories(name, part) for part in raw)
        elif label == "default" and told:
            X, X_test = with_standard_numbers(name, *raw)
        found[label] = scored(model, X, y, X_test, y_test, regression=name in REGRESSIONS)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="SET:ROWS")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7000)
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, help="default: all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # what is loaded and compiled once
    for each in ("two-of-2", "friedman1"):
        scores_of(each, 0, *next(draws(each, 40, 1, 0)), ())
    means = {}
    for each in options.sets:
        name, rows = each.split(":")
        found = [
            pd.DataFrame(scores_of(name, k, *part, options.peers)).T
            for k, part in enumerate(draws(name, int(rows), options.draws, options.seed))
        ]
        means[each] = pd.concat(found).groupby(level=0, sort=False).mean()
        loss = pd.DataFrame({k: table["loss"] for k, table in enumerate(found)})
        gain = loss.iloc[0] - loss.iloc[1]
        names = f"{loss.index[0]} less {loss.index[1]}"
        print(f"\n{each}, loss of {names}: {gain.mean():+.4f} ± {gain.sem():.4f}")
        print(means[each].to_string(float_format="{:.4f}".format), flush=True)
    every = pd.concat(means)
    print(f"\nmeans of {len(means)} sets")
    print(every.groupby(level=1, sort=False).mean().to_string(float_format="{:.4f}".format))
    ranks = every.groupby(level=0, sort=False).rank().groupby(level=1, sort=False).mean()
    print("\nmean ranks")
    print(ranks.to_string(float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
