"""The classifiers of the comparisons by name: this package's, the papers' baselines, and a user's own."""

import importlib
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from pcvm_pymc.estimators.multiclass import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.experiments.baselines import DLSRClassifier
from pcvm_pymc.experiments.classifiers.candidates import (
    EXPONENTIAL_RATES,
    KROPOTOV_WIDTHS,
    MARGINS,
    lyu_widths,
    svm_candidates,
    widths_around,
)
from pcvm_pymc.experiments.classifiers.makers import (
    HARD_MARGIN,
    exponential,
    feature_widths,
    gaussian_process,
    hard,
    matrix_rvm,
    neighbours,
    pairs,
    pcvm,
    plain_svm,
    rest,
    rvm,
    several,
    sparse_probit,
    svm,
)
from pcvm_pymc.experiments.classifiers.own_rows import OWN_ROWS
from pcvm_pymc.experiments.classifiers.rows import Classifier
from pcvm_pymc.experiments.classifiers.tuners import (
    by_log_loss,
    by_matrix_validity,
    by_test_error,
    by_validity,
    eight_starts,
    validity_and_c,
)
from pcvm_pymc.experiments.replicas.chmielewski2019_random import (
    RandomRVMClassifier,
    RandomRVMRegressor,
)
from pcvm_pymc.experiments.replicas.lyu2020_algorithm2 import PrintedMPCVM2

__all__ = ["CLASSIFIERS", "classifier_of", "own_classifier"]

_RANKING_FOLDS = 3  # of the machines that take minutes to tune
_SVM = Classifier(
    "SVM",
    "soft-margin SVM, Platt's probabilities",
    svm,
    candidates=svm_candidates,
    draft=plain_svm,
    tasks=("classification", "regression"),
)
_RVM_CV = Classifier(
    "RVM_CV",
    "RVM, width by 5-fold cross-validation",
    rvm("sequential"),
    candidates=lambda X: {"width": KROPOTOV_WIDTHS},
    tasks=("classification", "regression"),
)
_ROWS = (
    Classifier(
        "PCVM",
        "PCVM by EM under the authors' hyperprior, abs(w)^(-1/2); of eight starts the best by "
        "cross-validation",
        pcvm("chen2009", n_init=8),
        draft=pcvm("chen2009"),
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_jeffreys",
        "PCVM by EM under the paper's hyperprior, c = d = 0",
        pcvm("jeffreys"),
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_exponential",
        "PCVM by EM with exponential variances of the weights (chen2009, appendix A); width and rate by "
        "cross-validation",
        exponential,
        candidates=lambda X: {**widths_around(5)(X), "gamma": EXPONENTIAL_RATES},
    ),
    Classifier(
        "PCVM_normal",
        "PCVM by EM whose labels are normal around their probability (chen2009, section IV)",
        pcvm("chen2009", likelihood="normal-probability"),
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_widths",
        "PCVM by EM that moves a width for each feature, from one for all that is chosen by cross-validation",
        feature_widths,
        candidates=widths_around(3),
    ),
    Classifier(
        "PCVM_plug_in",
        "PCVM by EM under this package's default hyperprior (most weights stay)",
        pcvm("default"),
        tuner=by_log_loss,
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_projection",
        "the same, projected onto few vectors",
        pcvm("default", estimation="projection"),
        tuner=by_log_loss,
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_authors",
        "PCVM by the authors' program: clipped M-steps, random starts",
        pcvm("chen2009", update="clip"),
        candidates=widths_around(9),
    ),
    Classifier(
        "PCVM_eight_starts",
        "the same, its width by EM from eight starts, chosen by test error as in the paper "
        "(optimistic)",
        pcvm("chen2009", n_init=8),
        tuner=eight_starts,
    ),
    *(
        Classifier(
            name,
            f"relevance vector machine, {method} ({paper})",
            rvm(method, kinds=kinds),
            candidates=widths_around(7),
            draft=rvm(method, kinds=kinds, tol=1e-3),
            n_folds=_RANKING_FOLDS,
            tasks=("classification", "regression"),
        )
        for name, method, kinds, paper in (
            ("RVM", "sequential", (RVMClassifier, RVMRegressor), "Tipping & Faul 2003"),
            ("RVM_batch", "batch", (RVMClassifier, RVMRegressor), "Tipping 2001"),
            (
                "RVM_random",
                "sequential",
                (RandomRVMClassifier, RandomRVMRegressor),
                "a random basis at each step: Chmielewski-Anders et al. 2019",
            ),
        )
    ),
    Classifier(
        "RVM_star",
        "RVM* (Rasmussen & Quinonero-Candela 2005), regression only",
        rvm("sequential", star=True),
        candidates=widths_around(7),
        n_folds=_RANKING_FOLDS,
        tasks=("regression",),
    ),
    Classifier(
        "sparse_probit",
        "sparse probit with kernels (Figueiredo & Jain 2001)",
        sparse_probit("kernel"),
        candidates=widths_around(7),
    ),
    Classifier("sparse_probit_linear", "sparse probit, linear", sparse_probit("linear")),
    Classifier("sparse_probit_quadratic", "sparse probit, quadratic", sparse_probit("quadratic")),
    Classifier(
        "mPCVM1",
        "mPCVM1, top-down under Jeffreys' hyperprior",
        several(MPCVMClassifier, "top-down", hyperprior="jeffreys"),
        candidates=lyu_widths,
    ),
    Classifier(
        "mPCVM1_chen2009",
        "mPCVM1, top-down under abs(w)^(-1/2)",
        several(MPCVMClassifier, "top-down", hyperprior="chen2009"),
        candidates=lyu_widths,
    ),
    Classifier(
        "mPCVM2",
        "mPCVM2, bottom-up",
        several(MPCVMClassifier, "bottom-up"),
        candidates=lyu_widths,
    ),
    Classifier(
        "mPCVM2_printed",
        "mPCVM2, Algorithm 2 as printed: diverges on many sets, and is stopped",
        several(PrintedMPCVM2, "bottom-up"),
        candidates=lyu_widths,
    ),
    Classifier(
        "PCVM_pairs",
        "PCVM of each pair of classes (one-vs-one), c = d = 0",
        pairs,
        candidates=lyu_widths,
    ),
    Classifier(
        "PCVM_rest",
        "PCVM of each class and the rest (one-vs-rest), c = d = 0",
        rest,
        candidates=lyu_widths,
    ),
    Classifier(
        "mRVM1",
        "mRVM1, bottom-up",
        several(MRVMClassifier, "bottom-up", search="paper"),
        candidates=lyu_widths,
    ),
    Classifier(
        "mRVM2",
        "mRVM2, top-down",
        several(MRVMClassifier, "top-down"),
        candidates=lyu_widths,
    ),
    _SVM,
    Classifier(
        "SVM_hard",
        f"SVM with C = {HARD_MARGIN:g}",
        hard(svm),
        candidates=widths_around(7),
        draft=hard(plain_svm),
    ),
    Classifier(
        "SVM_PCVM",
        "soft-margin SVM at the width of the PCVM",
        svm,
        candidates=lambda X: {"C": MARGINS},
        draft=plain_svm,
        follows="PCVM",
    ),
    Classifier("1NN", "nearest neighbour", lambda setting: KNeighborsClassifier(1)),
    Classifier(
        "kNN",
        "k nearest neighbours, k = 1..20",
        neighbours,
        candidates=lambda X: {"k": list(range(1, min(20, len(X) // 2) + 1))},
    ),
    Classifier("LDA", "linear discriminant analysis", lambda setting: LinearDiscriminantAnalysis()),
    Classifier(
        "QDA",
        "quadratic discriminant analysis, singular covariances shrunk by 1e-4",
        lambda setting: QuadraticDiscriminantAnalysis(reg_param=1e-4),
    ),
    Classifier(
        "MLR",
        "multinomial logistic regression, scikit-learn's ridge",
        lambda setting: LogisticRegression(max_iter=5000),
    ),
    Classifier("GP", "Gaussian process, Laplace", gaussian_process),
    Classifier(
        "DLSR",
        "discriminative least squares regression (Xiang et al. 2012)",
        lambda setting: DLSRClassifier(ridge=setting.parameters.get("ridge", 1.0)),
        candidates=lambda X: {"ridge": np.geomspace(1e-3, 1e2, 6).tolist()},
    ),
    _RVM_CV,
    Classifier(
        "RVM_MV",
        "RVM, width of maximal validity",
        rvm("sequential"),
        tuner=by_validity,
        tasks=("classification", "regression"),
    ),
    Classifier(
        "RVM_matrix_CV",
        "RVM, the covariance within classes in its kernel; width by 5-fold cross-validation",
        matrix_rvm,
        candidates=lambda X: {"width": KROPOTOV_WIDTHS},
    ),
    Classifier(
        "RVM_matrix_MV",
        "the same, width of maximal validity",
        matrix_rvm,
        tuner=by_matrix_validity,
    ),
    Classifier(
        "SVM_CV",
        "SVM, width and C by 5-fold cross-validation",
        svm,
        candidates=lambda X: {"C": MARGINS, "width": KROPOTOV_WIDTHS},
        draft=plain_svm,
    ),
    Classifier(
        "SVM_MV",
        "SVM at the RVM's width of maximal validity",
        svm,
        tuner=partial(validity_and_c, _SVM),
    ),
    Classifier(
        "RVM_best",
        "RVM at the width of the smallest test error (an oracle)",
        rvm("sequential"),
        tuner=partial(by_test_error, _RVM_CV),
    ),
)
CLASSIFIERS: dict[str, Classifier] = {row.name: row for row in (*_ROWS, *OWN_ROWS)}


def classifier_of(name: str) -> Classifier:
    """Return a row of the table, or one for a user's estimator named ``module:attribute``.

    The attribute is a scikit-learn estimator, or a class or function that makes one.

    Raises
    ------
    ValueError
        If there is no such classifier or estimator.
    """
    if name in CLASSIFIERS:
        return CLASSIFIERS[name]
    if ":" not in name:
        raise ValueError(
            f"classifier {name!r} is unknown; known: {', '.join(CLASSIFIERS)}, "
            "or module:attribute for one of your own"
        )
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"classifier {name!r} cannot be imported: {error}") from None
    return own_classifier(name, found)


def own_classifier(name: str, found: Any) -> Classifier:
    """Return a row for an estimator, or for a class or function that makes one."""
    try:
        template = found if isinstance(found, BaseEstimator) else found()
        clone(template)
    except Exception as error:  # whatever a user's code raises is named
        raise ValueError(
            f"classifier {name!r} makes no scikit-learn estimator: {type(error).__name__}: {error}"
        ) from None
    title = f"{type(template).__name__} of {name}"
    tasks = ("regression",) if is_regressor(template) else ("classification",)
    return Classifier(name, title, lambda setting: clone(template), tasks=tasks)
