"""One width, a width for each feature, and several kernels, on the same draws: scores and CPU seconds.

``OMP_NUM_THREADS=1 PCVM_DATA=... python benchmarks/feature_widths.py [--draws 3] [--seed 7000]
[--peers [NAME,...] | --svc] [--estimator NAME] [--table | SET:ROWS ...]`` prints a line for each set and
estimator, then means and the worst set; ``--table`` takes the README's 21 sets. Equal rows are on one side.
CatBoost (``uv sync --group benchmarks``) has the rows as they come, missing values and `CATEGORIES` included;
so has the default, with its numbers standardised; the others, and the default as ``numbers``, have medians
and standardised columns alone.

Sets: a name, ``informative-D`` (D features, ten informative), ``six-D`` (six classes, eight informative),
``motif-D`` (letters, eight of which are a motif with errors), ``two-of-D``, ``three-of-D`` (by their sum) and
``xor-of-D`` (by the sign of a product), or ``friedman1`` to ``friedman3`` and ``diabetes_progression`` for a
regression, whose loss is the error in standard deviations.
"""

import argparse
import itertools
import re
import resource
import warnings
from functools import partial

import numpy as np
import pandas as pd
from sklearn.datasets import (
    load_diabetes,
    make_classification,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)
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

import pcvm_pymc
from pcvm_pymc.experiments.baselines import TunedSVC
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import stratified_draws

SETS = (
    "image:300",
    "splice:300",
    "credit:300",
    "thyroid:140",
    "heart:170",
    "hepatitis:100",
    "bupa:200",
    "pima:300",
    "german:400",
    "australian:300",
    "wisconsin_diagnostic:120",
    "waveform:200",
    "banana:300",
    "flare_solar:400",
    "titanic:150",
    "ringnorm:200",
)
TABLE = (  # of the README
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
    "credit": (0, 3, 4, 5, 6, 8, 9, 11, 12),
    "flare_solar": tuple(range(9)),
    "german": (0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16, 18, 19),
    "heart": HEART,
    "heart_hungarian": HEART,
    "hepatitis": (*range(1, 13), 18),
    "splice": tuple(range(60)),
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
INFORMATIVE = {
    "informative-": {"n_informative": 10},
    "six-": {"n_informative": 8, "n_classes": 6},
}
FRIEDMAN = {
    "friedman1": lambda n, seed: make_friedman1(n, noise=1.0, random_state=seed),
    "friedman2": lambda n, seed: make_friedman2(n, noise=125.0, random_state=seed),
    "friedman3": lambda n, seed: make_friedman3(n, noise=0.1, random_state=seed),
}


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


def categories_of(name: str) -> tuple[int, ...]:
    """Return the numbers of the columns that are codes of categories."""
    return tuple(range(int(name[6:]))) if name.startswith("motif-") else CATEGORIES.get(name, ())


def regression_rows(name: str, n: int, seed: int):
    """Return standardised inputs and targets of the training and test rows of a regression."""
    rng = np.random.default_rng(seed)
    if name in FRIEDMAN:
        X, y = FRIEDMAN[name](n + MOST_TESTED, seed)
    elif name == "diabetes_progression":
        X, y = load_diabetes(return_X_y=True)
    else:
        data = load(name, random_state=0)
        X, y = data.X, data.y.astype(float)
    rows = rng.permutation(len(X))[: n + MOST_TESTED]
    X, y = X[rows], y[rows]
    X = (X - X[:n].mean(axis=0)) / (X[:n].std(axis=0) + 1e-12)
    y = (y - y[:n].mean()) / y[:n].std()
    return X[:n], y[:n], X[n:], y[n:]


def draws(name: str, n: int, n_draws: int, seed: int):
    """Yield whether it is a regression, prepared rows with their labels, and rows as they come."""
    if name in FRIEDMAN or name in ("diabetes_progression", "boston_housing", "airfoil_self_noise"):
        for k in range(n_draws):
            data = regression_rows(name, n, seed + k)
            yield True, data, data[::2]
        return
    family = name.rstrip("0123456789")
    if family in NOISY | INFORMATIVE | {"motif-": None}:
        d = int(name.removeprefix(family))
        for k in range(n_draws):
            if family == "motif-":
                X, y = letters(n + 1000, d, seed + k)
            elif family in NOISY:
                X = np.random.default_rng(seed + k).normal(size=(n + 1000, d))
                y = NOISY[family](X).astype(int)
            else:
                options = {"n_redundant": 0, "random_state": seed + k, **INFORMATIVE[family]}
                X, y = make_classification(n + 1000, d, **options)
            raw, X = (X[:n], X[n:]), (X - X[:n].mean(axis=0)) / X[:n].std(axis=0)
            yield False, (X[:n], y[:n], X[n:], y[n:]), raw
        return
    data = load(name, random_state=0)
    y = np.unique(data.y, return_inverse=True)[1]
    frequent = np.bincount(y)[y] >= LEAST_ROWS
    X, y = data.X[frequent], np.unique(y[frequent], return_inverse=True)[1]
    as_they_come = FunctionTransformer()
    every = stratified_draws(X, y, n, min(MOST_TESTED, len(y) - n), seed=seed, scaler=as_they_come)
    for few, label, new, truth in itertools.islice(every, n_draws):
        scaler = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(few)
        data = (scaler.transform(few), label, scaler.transform(new), truth)
        yield False, data, (few, new)


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


def peers(regression: bool, n_classes: int, d: int, seed: int, *, categories, names):
    """Yield those of the peers that there are for the problem."""
    start, several = np.full(d, 2.0), n_classes > 2
    kernel = {"GP": RBF(2.0, (0.1, 1e3)), "GP, widths": RBF(start, (0.1, 1e3))}
    for name in names:
        boost = {"random_seed": seed, "thread_count": 1, "cat_features": list(categories or ())}
        boost |= {"verbose": 0, "allow_writing_files": False}
        match name:
            case "CatBoost":
                import catboost

                kind = catboost.CatBoostRegressor if regression else catboost.CatBoostClassifier
                yield name, kind(**boost)
            case "boosting" if regression:
                yield name, HistGradientBoostingRegressor(random_state=seed)
            case "boosting":
                yield name, HistGradientBoostingClassifier(random_state=seed)
            case "GP, widths" if regression:
                noisy = ConstantKernel() * kernel[name] + WhiteKernel(0.1)
                yield name, GaussianProcessRegressor(noisy, random_state=seed)
            case "GP" | "GP, widths" if not (regression or several):
                scaled = ConstantKernel() * kernel[name]
                yield name, GaussianProcessClassifier(scaled, random_state=seed)
            case "SVC" if not regression:
                yield name, TunedSVC(random_state=seed)
            case "forest" if not regression:
                yield name, RandomForestClassifier(500, random_state=seed)
            case "logistic" if not regression:
                yield name, LogisticRegressionCV(l1_ratios=(0.0,), scoring="neg_log_loss")


def rivals(regression: bool, n_classes: int, d: int, seed: int, *, options, categories=None):
    """Return the estimators that are compared: those of the RBF first, then the default.

    With `categories` also the default without them, as ``numbers``; None of rows that are complete numbers.
    """
    default = (
        "RVMRegressor" if regression else ("PCVM" if n_classes == 2 else "MPCVM") + "Classifier"
    )
    kind = partial(getattr(pcvm_pymc, options.estimator or default), estimation=options.estimation)
    found = {
        "one width": kind(kernel="rbf", width="shared", random_state=seed),
        "RBF": kind(kernel="rbf", random_state=seed),
    }
    if kind().kernel != "rbf":
        found["default"] = kind(random_state=seed)
        if categories is not None:
            found["numbers"] = kind(random_state=seed)
            found["default"].set_params(categorical_features=list(categories))
    return found | dict(
        peers(regression, n_classes, d, seed, categories=categories, names=options.peers)
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of all its threads, and of processes that it waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def scored(model, X, y, X_test, y_test, *, regression: bool) -> dict[str, float]:
    """Return the scores of a fit; of a regression also how often intervals of 89 % hold the target."""
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
    return found


def scores_of(name: str, seed: int, regression: bool, data, raw, *, options):
    """Return the scores of all estimators on one draw."""
    told = categories_of(name) or (() if np.isnan(raw[0]).any() else None)
    n_classes, d = len(np.unique(data[1])), data[0].shape[1]
    found = {}
    for label, model in rivals(
        regression, n_classes, d, seed, options=options, categories=told
    ).items():
        X, y, X_test, y_test = data
        if label == "CatBoost":
            X, X_test = (with_categories(name, part) for part in raw)
        elif label == "default" and told is not None:
            X, X_test = with_standard_numbers(name, *raw)
        found[label] = scored(model, X, y, X_test, y_test, regression=regression)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--table", action="store_true", help="the README's 21 sets")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7000)
    parser.add_argument(
        "--peers",
        nargs="?",
        const=PEERS,
        default=(),
        type=lambda names: tuple(re.split(r",(?! )", names)),
        help=f"all, or some: --peers='{','.join(PEERS)}'",
    )
    parser.add_argument("--svc", dest="peers", action="store_const", const=("SVC",))
    parser.add_argument("--estimator")
    parser.add_argument("--estimation", default="auto", help="of ours, such as posterior")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"peers {', '.join(unknown)} are unknown; use {', '.join(PEERS)}")
    warnings.simplefilter("ignore")
    X = np.random.default_rng(0).normal(size=(40, 2))
    # what is loaded and compiled once
    for target in (X[:, 0], (X[:, 0] > 0).astype(int), np.arange(40) % 3):
        problem = (target.dtype == float, len(np.unique(target)), 2, 0)
        for model in rivals(*problem, options=options).values():
            model.fit(X, target)
    means = {}
    for each in options.sets or (TABLE if options.table else SETS):
        name, rows = each.split(":")
        found = {}
        parts = draws(name, int(rows), options.draws, options.seed)
        try:
            first = next(parts)
        except FileNotFoundError:
            print(f"{each:24s} not at hand", flush=True)
            continue
        for k, part in enumerate(itertools.chain([first], parts)):
            for label, scores in scores_of(name, k, *part, options=options).items():
                found.setdefault(label, []).append(scores)
        if "default" in found:
            found.setdefault("numbers", found["default"])
        tables = {label: pd.DataFrame(scores) for label, scores in found.items()}
        ours, before = ("default", "RBF") if "default" in tables else ("RBF", "one width")
        gain = tables[ours]["loss"] - tables[before]["loss"]
        print(f"{each:24s} {ours} {gain.mean():+.4f} ± {gain.sem():.4f}", flush=True)
        means[each] = pd.DataFrame({label: table.mean() for label, table in tables.items()}).T
        print(means[each].to_string(float_format="{:.4f}".format, header=len(means) == 1))
    every = pd.concat(means)
    change = every["loss"].unstack()
    ours, before = ("default", "RBF") if "default" in change else ("RBF", "one width")
    change = change[ours].fillna(change["RBF"]) - change[before]
    print(f"\nmeans of {len(means)} sets; {ours} worst: {change.idxmax()} {change.max():+.4f}")
    print(every.groupby(level=1, sort=False).mean().to_string(float_format="{:.4f}".format))
    ranks = every.groupby(level=0, sort=False).rank().groupby(level=1, sort=False).mean()
    print("\nmean ranks")
    print(ranks.to_string(float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
