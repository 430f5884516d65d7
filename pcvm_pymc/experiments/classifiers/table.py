"""The classifiers of the comparisons by name: this package's, the papers' baselines, and a user's own."""

import importlib
import tomllib
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from pcvm_pymc.core.evidence import EvidenceOptions
from pcvm_pymc.estimators.multiclass import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.experiments import baselines
from pcvm_pymc.experiments.classifiers import makers
from pcvm_pymc.experiments.classifiers.makers import lyu_widths, pcvm, rvm, several, widths_around
from pcvm_pymc.experiments.classifiers.tuning import Classifier, Maker
from pcvm_pymc.experiments.replicas.chen2009_em import AuthorsPCVM
from pcvm_pymc.experiments.replicas.chmielewski2019_random import (
    RandomRVMClassifier,
    RandomRVMRegressor,
)
from pcvm_pymc.experiments.replicas.lyu2020_algorithm2 import PrintedMPCVM2
from pcvm_pymc.experiments.replicas.starts import EightStartsPCVM

_TITLES = tomllib.loads((files(__package__) / "titles.toml").read_text(encoding="utf-8"))
_BOTH = {"tasks": ("classification", "regression")}
_RANKED = {"candidates": widths_around(7), "n_folds": 3}  # of machines that take minutes to tune
_LYU = {"candidates": lyu_widths}
_KROPOTOV = {"candidates": lambda X: {"width": makers.KROPOTOV_WIDTHS}}
CLASSIFIERS: dict[str, Classifier] = {}


def _add(name: str, make: Maker, **options: Any) -> None:
    CLASSIFIERS[name] = Classifier(name, _TITLES[name], make, **options)


# PCVMs
_add("PCVM", pcvm("chen2009", EightStartsPCVM), draft=pcvm("chen2009"), candidates=widths_around(9))
_add("PCVM_jeffreys", pcvm("jeffreys"), candidates=widths_around(9))
_add("PCVM_exponential", makers.exponential, candidates=makers.exponential_candidates)
_add("PCVM_normal", pcvm("chen2009", likelihood="normal-probability"), candidates=widths_around(9))
_add("PCVM_widths", makers.feature_widths, candidates=widths_around(3))
_DEFAULT: dict[str, Any] = {"tuner": makers.by_log_loss, "candidates": widths_around(9)}
_add("PCVM_plug_in", pcvm("default"), **_DEFAULT)
_add("PCVM_projection", pcvm("default", estimation="projection"), **_DEFAULT)
_add("PCVM_authors", pcvm("chen2009", AuthorsPCVM), candidates=widths_around(9))
_add("PCVM_eight_starts", pcvm("chen2009", EightStartsPCVM), tuner=makers.eight_starts)
# relevance vector machines and sparse probit
_add(
    "RVM",
    rvm("sequential"),
    draft=rvm("sequential", options=EvidenceOptions(tol=1e-3)),
    **_RANKED,
    **_BOTH,
)
_add(
    "RVM_batch",
    rvm("batch"),
    draft=rvm("batch", options=EvidenceOptions(tol=1e-3)),
    **_RANKED,
    **_BOTH,
)
_RANDOM: dict[str, Any] = {"kinds": (RandomRVMClassifier, RandomRVMRegressor)}
_add(
    "RVM_random",
    rvm("sequential", **_RANDOM),
    draft=rvm("sequential", options=EvidenceOptions(tol=1e-3), **_RANDOM),
    **_RANKED,
    **_BOTH,
)
_add("RVM_star", rvm("sequential", star=True), **_RANKED, tasks=("regression",))
_add("sparse_probit", makers.sparse_probit("kernel"), candidates=widths_around(7))
_add("sparse_probit_linear", makers.sparse_probit("linear"))
_add("sparse_probit_quadratic", makers.sparse_probit("quadratic"))
# several classes
_add("mPCVM1", several(MPCVMClassifier, "em", hyperprior="jeffreys"), **_LYU)
_add("mPCVM1_chen2009", several(MPCVMClassifier, "em", hyperprior="chen2009"), **_LYU)
_add("mPCVM2", several(MPCVMClassifier, "bottom-up"), **_LYU)
_add("mPCVM2_printed", several(PrintedMPCVM2, "bottom-up"), **_LYU)
_add("PCVM_pairs", makers.pairs, **_LYU)
_add("PCVM_rest", makers.rest, **_LYU)
_add("mRVM1", several(MRVMClassifier, "bottom-up"), **_LYU)
_add("mRVM2", several(MRVMClassifier, "em"), **_LYU)
# the papers' baselines
_add("SVM", makers.svm, candidates=makers.svm_candidates, draft=makers.plain_svm, **_BOTH)
_add(
    "SVM_hard",
    makers.hard(makers.svm),
    candidates=widths_around(7),
    draft=makers.hard(makers.plain_svm),
)
_add(
    "SVM_PCVM",
    makers.svm,
    candidates=lambda X: {"C": makers.MARGINS},
    draft=makers.plain_svm,
    follows="PCVM",
)
_add("1NN", lambda setting: KNeighborsClassifier(1))
_add("kNN", makers.neighbours, candidates=lambda X: {"k": list(range(1, min(20, len(X) // 2) + 1))})
_add("LDA", lambda setting: LinearDiscriminantAnalysis())
_add("QDA", lambda setting: QuadraticDiscriminantAnalysis(reg_param=1e-4, tol=1e-8))
_add("MLR", lambda setting: LogisticRegression(max_iter=5000))
_add("GP", makers.gaussian_process)
_add(
    "DLSR",
    lambda setting: baselines.DLSRClassifier(ridge=setting.parameters.get("ridge", 1.0)),
    candidates=lambda X: {"ridge": np.geomspace(1e-3, 1e2, 6).tolist()},
)
# Kropotov's: widths by cross-validation, by validity, and by an oracle
_add("RVM_CV", rvm("sequential"), **_KROPOTOV, **_BOTH)
_add("RVM_MV", rvm("sequential"), tuner=makers.by_validity, **_BOTH)
_add("RVM_matrix_CV", makers.matrix_rvm, **_KROPOTOV)
_add("RVM_matrix_MV", makers.matrix_rvm, tuner=makers.by_matrix_validity)
_add(
    "SVM_CV",
    makers.svm,
    candidates=lambda X: {"C": makers.MARGINS, "width": makers.KROPOTOV_WIDTHS},
    draft=makers.plain_svm,
)
_add("SVM_MV", makers.svm, tuner=partial(makers.validity_and_c, CLASSIFIERS["SVM"]))
_add("RVM_best", rvm("sequential"), tuner=partial(makers.by_test_error, CLASSIFIERS["RVM_CV"]))
# this package's defaults, and what a user would take instead
_add("default", makers.default())
for _n in (2, 4, 8, 16, 32):
    _add(f"default_{_n}", makers.default(_n))
_add("PCVM_posterior", makers.of_model("posterior"), tuner=makers.by_log_loss)
_add("PCVM_mode", makers.of_model("mode"), tuner=makers.by_log_loss)
_add("SVC_tuned", lambda setting: baselines.TunedSVC(random_state=setting.seed))
_add("GP_tuned", lambda setting: baselines.gaussian_process(setting.n_features, setting.seed))
_add("LR_tuned", lambda setting: baselines.tuned_logistic_regression(setting.seed))
_add("RF", lambda setting: RandomForestClassifier(500, random_state=setting.seed))
_add("HGB", lambda setting: HistGradientBoostingClassifier(random_state=setting.seed))


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
