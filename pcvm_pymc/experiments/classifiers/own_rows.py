"""Rows for experiments of our own: this package's defaults, and what a user would take instead."""

from collections.abc import Callable
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.baselines import (
    TunedSVC,
    gaussian_process,
    tuned_logistic_regression,
)
from pcvm_pymc.experiments.classifiers.rows import Classifier, Setting
from pcvm_pymc.experiments.classifiers.tuners import by_log_loss
from pcvm_pymc.experiments.sampled import ModelPCVM

__all__ = ["FEW_VECTORS", "OWN_ROWS"]

FEW_VECTORS = (2, 4, 8, 16, 32)


def _default(n_vectors: int | None = None) -> Callable[[Setting], Any]:
    """Return a maker of this package's default classifier, for two classes or more as the setting says."""

    def make(setting: Setting) -> PCVMClassifier | MPCVMClassifier:
        kind = PCVMClassifier if setting.n_classes == 2 else MPCVMClassifier
        return kind(n_vectors=n_vectors, random_state=setting.seed)

    return make


def _of_model(by: str) -> Callable[[Setting], ModelPCVM]:
    return lambda setting: ModelPCVM(
        width=setting.parameters.get("width", 1.0), by=by, random_state=setting.seed
    )


OWN_ROWS = (
    Classifier("default", "this package's default: averaged modes", _default()),
    *(
        Classifier(f"default_{n}", f"the default, projected onto {n} vectors", _default(n))
        for n in FEW_VECTORS
    ),
    Classifier(
        "PCVM_posterior",
        "the posterior of pcvm_model at one width, four chains of Gibbs",
        _of_model("posterior"),
        tuner=by_log_loss,
    ),
    Classifier(
        "PCVM_mode", "the mode of the same model at one width", _of_model("mode"), tuner=by_log_loss
    ),
    Classifier(
        "SVC_tuned",
        "SVM, C and width by 5-fold cross-validation within the fit, Platt's probabilities",
        lambda setting: TunedSVC(random_state=setting.seed),
    ),
    Classifier(
        "GP_tuned",
        "Gaussian process, Laplace, its width by the evidence",
        lambda setting: gaussian_process(setting.n_features, setting.seed),
    ),
    Classifier(
        "LR_tuned",
        "logistic regression, ridge by 5-fold cross-validation within the fit",
        lambda setting: tuned_logistic_regression(setting.seed),
    ),
    Classifier(
        "RF",
        "random forest, 500 trees",
        lambda setting: RandomForestClassifier(500, random_state=setting.seed),
    ),
    Classifier(
        "HGB",
        "histogram gradient boosting, scikit-learn's defaults",
        lambda setting: HistGradientBoostingClassifier(random_state=setting.seed),
    ),
)
