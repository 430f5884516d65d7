"""Estimators, made from what is known of their parameters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, SVR

from pcvm_pymc.core.pieces.priors import Laplace
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.estimators.sparse_probit import SparseProbitClassifier
from pcvm_pymc.experiments.baselines import CalibratedSVC, gamma_of
from pcvm_pymc.experiments.classifiers.rows import Maker, Setting
from pcvm_pymc.experiments.other_kernels import FeatureWidthPCVM, MatrixRVM

__all__ = [
    "HARD_MARGIN",
    "MAX_ITER",
    "exponential",
    "feature_widths",
    "gaussian_process",
    "hard",
    "matrix_rvm",
    "neighbours",
    "pairs",
    "pcvm",
    "plain_svm",
    "rest",
    "rvm",
    "several",
    "sparse_probit",
    "svm",
]

MAX_ITER = 3000
HARD_MARGIN = 1e4
_RVMS = RVMClassifier, RVMRegressor
_SVM_STEPS = 200_000  # a hard margin that does not exist is searched for ever


def pcvm(hyperprior: str, **options: Any) -> Callable[[Setting], PCVMClassifier]:
    """Return a maker of PCVMs."""
    return lambda setting: PCVMClassifier(
        width=setting.parameters.get("width", "auto"),
        hyperprior=hyperprior,
        max_iter=MAX_ITER,
        random_state=setting.seed,
        **options,
    )


def exponential(setting: Setting) -> PCVMClassifier:
    """Return a PCVM whose weights' variances are exponential: a Laplace prior on each half-line."""
    prior: Any = Laplace(setting.parameters.get("gamma", 1.0))
    return PCVMClassifier(
        width=setting.parameters.get("width", "auto"),
        hyperprior=prior,
        estimation="em",
        max_iter=MAX_ITER,
        random_state=setting.seed,
    )


def feature_widths(setting: Setting) -> FeatureWidthPCVM:
    """Return a PCVM whose widths, one for each feature, EM moves."""
    return FeatureWidthPCVM(
        width=setting.parameters.get("width"), max_iter=MAX_ITER, random_state=setting.seed
    )


def matrix_rvm(setting: Setting) -> MatrixRVM:
    """Return a relevance vector machine with a matrix in its kernel."""
    return MatrixRVM(width=setting.parameters.get("width", 1.0))


def rvm(method: str, *, star: bool = False, kinds: Any = _RVMS, **options: Any) -> Maker:
    """Return a maker of RVMs, of one kind for classes and one for targets, as the setting says."""

    def make(setting: Setting) -> RVMClassifier | RVMRegressor:
        kernel = setting.parameters.get("kernel", "rbf")
        width = setting.parameters.get("width", "auto")
        common = {
            "width": width if kernel == "rbf" else "auto",  # the spline has none
            "kernel": kernel,
            "method": method,
            "random_state": setting.seed,
            **options,
        }
        if setting.is_regression:
            return kinds[1](star=star, noise=setting.parameters.get("noise"), **common)
        return kinds[0](**common)

    return make


def sparse_probit(features: str) -> Callable[[Setting], SparseProbitClassifier]:
    """Return a maker of sparse probit classifiers."""

    def make(setting: Setting) -> SparseProbitClassifier:
        width = setting.parameters.get("width", "median") if features == "kernel" else "median"
        return SparseProbitClassifier(features=features, width=width, max_iter=MAX_ITER)

    return make


def several(kind: type, algorithm: str, **options: Any) -> Maker:
    """Return a maker of classifiers of several classes."""
    return lambda setting: kind(
        algorithm=algorithm,
        width=setting.parameters.get("width", "auto"),
        max_iter=MAX_ITER,
        random_state=setting.seed,
        **options,
    )


def pairs(setting: Setting) -> OneVsOneClassifier:
    """Return PCVMs of each pair of classes, which vote."""
    return OneVsOneClassifier(pcvm("jeffreys")(setting))


def rest(setting: Setting) -> OneVsRestClassifier:
    """Return PCVMs of each class and the rest."""
    return OneVsRestClassifier(pcvm("jeffreys")(setting))


def svm(setting: Setting) -> Any:
    """Return an SVM, of classes with Platt's probabilities."""
    C, width = setting.parameters.get("C", 1.0), setting.parameters.get("width")
    if setting.is_regression:
        return SVR(C=C, gamma=gamma_of(width))
    return CalibratedSVC(C=C, width=width)


def plain_svm(setting: Setting) -> Any:
    """Return an SVM without probabilities, cheaper to tune."""
    if setting.is_regression:
        return svm(setting)
    gamma = gamma_of(setting.parameters.get("width"))
    # one that has not converged by then is no candidate to regret
    return SVC(C=setting.parameters.get("C", 1.0), gamma=gamma, max_iter=_SVM_STEPS)


def hard(make: Maker) -> Maker:
    """Return a maker of the same SVM with a hard margin."""

    def made(setting: Setting) -> Any:
        fixed = {**setting.parameters, "C": HARD_MARGIN}
        estimator = make(replace(setting, parameters=fixed))
        return estimator.set_params(max_iter=_SVM_STEPS)

    return made


def neighbours(setting: Setting) -> KNeighborsClassifier:
    """Return k nearest neighbours, no more than there are rows."""
    k = round(setting.parameters.get("k", 5))
    return KNeighborsClassifier(min(k, setting.n_rows) if setting.n_rows else k)


def gaussian_process(setting: Setting) -> GaussianProcessClassifier:
    """Return a Gaussian process by Laplace's approximation."""
    kernel = ConstantKernel(1.0) * RBF(1.0)
    return GaussianProcessClassifier(kernel, random_state=setting.seed)
