"""Estimators of the comparisons, made from what is known of their parameters, and how these are chosen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, SVR

from pcvm_pymc import validity
from pcvm_pymc.core.em import EMOptions, WidthMoves, fit_em
from pcvm_pymc.core.em.options import CLASS_TOLERANCE
from pcvm_pymc.core.evidence import BottomUpOptions
from pcvm_pymc.core.pieces.kernels import (
    median_distance,
    squared_distances,
    width_bounds,
    width_grid,
)
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.pieces.validation import as_labels
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.estimators.sparse_probit import SparseProbitClassifier
from pcvm_pymc.experiments.baselines import CalibratedSVC, gamma_of
from pcvm_pymc.experiments.classifiers.tuning import (
    Candidates,
    Classifier,
    Maker,
    Setting,
    TuningTask,
    middle_of_best,
    test_errors,
    tune,
)
from pcvm_pymc.experiments.other_kernels import FeatureWidthPCVM, MatrixRVM
from pcvm_pymc.experiments.replicas.starts import start_recipes
from pcvm_pymc.experiments.sampled import ModelPCVM

MAX_ITER = 3000
_EM = EMOptions(max_iter=MAX_ITER)
HARD_MARGIN = 1e4
_RVMS = RVMClassifier, RVMRegressor
_SVM_STEPS = 200_000  # a hard margin that does not exist is searched for ever
MARGINS = tuple(np.geomspace(0.1, 1000.0, 5).tolist())
# Kropotov et al. (2006), section V.B, in their form exp(-d^2 / (2 sigma^2))
KROPOTOV_WIDTHS = tuple((np.sqrt(2.0) * np.array([0.01, 0.1, 0.3, 1, 2, 3, 4, 5, 7, 10])).tolist())
# gamma of the Laplace prior: L1 penalties from 0.1 to 3
EXPONENTIAL_RATES = (0.01, 0.1, 1.0, 9.0)
# multiples of the root of the number of features, for Lyu's protocol
LYU_FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def widths_around(n_widths: int) -> Candidates:
    """Return candidates around the median distance of the training rows."""
    return lambda X: {"width": width_grid(X, n_widths).tolist()}


def lyu_widths(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    """Return widths in multiples of the root of the number of features."""
    return {"width": (np.array(LYU_FACTORS) * np.sqrt(X.shape[1])).tolist()}


def exponential_candidates(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    """Return widths around the median distance, and rates of the exponential variances."""
    return {**widths_around(5)(X), "gamma": EXPONENTIAL_RATES}


def svm_candidates(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    """Return values of C, and widths around the median distance."""
    return {"C": MARGINS, "width": width_grid(X, 7).tolist()}


def pcvm(
    hyperprior: Any, kind: type[PCVMClassifier] = PCVMClassifier, **options: Any
) -> Callable[[Setting], PCVMClassifier]:
    """Return a maker of PCVMs."""
    return lambda setting: kind(
        width=setting.parameters.get("width", "shared"),
        hyperprior=hyperprior,
        options=_EM,
        random_state=setting.seed,
        **options,
    )


def exponential(setting: Setting) -> PCVMClassifier:
    """Return a PCVM whose weights' variances are exponential: a Laplace prior on each half-line."""
    return pcvm(Laplace(setting.parameters.get("gamma", 1.0)), estimation="em")(setting)


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
        width = setting.parameters.get("width", "shared")
        common = {
            "width": width if kernel == "rbf" else "auto",  # the spline has none
            "kernel": kernel,
            "method": method,
            "random_state": setting.seed,
            **options,
        }
        if setting.is_regression:
            noise = setting.parameters.get("noise")
            return kinds[1](star=star, noise=noise, std="weights", **common)  # the papers' own
        return kinds[0](**common)

    return make


def sparse_probit(features: str) -> Callable[[Setting], SparseProbitClassifier]:
    """Return a maker of sparse probit classifiers."""

    def make(setting: Setting) -> SparseProbitClassifier:
        width = setting.parameters.get("width", "median") if features == "kernel" else "median"
        return SparseProbitClassifier(features=features, width=width, options=_EM)

    return make


def several(kind: type, estimation: str, **options: Any) -> Maker:
    """Return a function that makes multi-class classifiers."""
    by_em = EMOptions(max_iter=MAX_ITER, tol=CLASS_TOLERANCE)
    return lambda setting: kind(
        estimation=estimation,
        width=setting.parameters.get("width", "shared"),
        options=by_em if estimation == "em" else BottomUpOptions(max_iter=MAX_ITER),
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


def default(n_vectors: int | None = None) -> Maker:
    """Return a maker of this package's default classifier, for two classes or more as the setting says."""

    def make(setting: Setting) -> PCVMClassifier | MPCVMClassifier:
        kind = PCVMClassifier if setting.n_classes == 2 else MPCVMClassifier
        return kind(n_vectors=n_vectors, random_state=setting.seed)

    return make


def of_model(by: str) -> Maker:
    """Return a maker of the posterior, or of the mode, of one model."""
    return lambda setting: ModelPCVM(
        width=setting.parameters.get("width", 1.0), by=by, random_state=setting.seed
    )


# --- choices of parameters other than a grid search by cross-validated error ---------------------


def by_log_loss(task: TuningTask) -> dict[str, Any]:
    """Return the width of this package's default classifier, by its cross-validated log loss."""
    if "width" in task.given:
        return {}
    model = PCVMClassifier(width="cv", hyperprior="plug_in", options=_EM, random_state=task.seed)
    return {"width": model.fit(task.X, task.y).width_}


def eight_starts(task: TuningTask) -> dict[str, Any]:
    """Return the width that EM reaches from the one of eight starts with the smallest test error.

    As Chen et al. (2009), section III-B: it uses the test part and is mildly optimistic.
    """
    label, _ = as_labels(task.y, len(task.X))
    moves = WidthMoves(squared_distances(task.X, task.X), width_bounds(task.X))
    width = median_distance(task.X)
    prior = Hyperprior.chen2009()
    problem = Problem(moves.basis(width), label, label, prior, width=width, moves=moves)
    options, rng = _EM, np.random.default_rng(task.seed)
    widths, errors = [], []
    for recipe in start_recipes(8):
        width = fit_em(problem, recipe(problem, rng), options).width
        model = pcvm("chen2009")(Setting({"width": width})).fit(task.X, task.y)
        widths.append(width)
        errors.append(1.0 - model.score(task.X_test, task.y_test))
    return {"width": float(widths[middle_of_best(errors)])}


def log_validity(task: TuningTask, width: float) -> float:
    """Return the log of the kernel validity of an RVM of this width on the training part."""
    model = rvm("sequential")(task.setting({"width": width})).fit(task.X, task.y)
    return validity(model, task.X, task.y).log_validity


def by_validity(task: TuningTask) -> dict[str, Any]:
    """Return the width of the highest kernel validity of the RVM, of Kropotov's ten."""
    scores = [log_validity(task, width) for width in KROPOTOV_WIDTHS]
    return {"width": KROPOTOV_WIDTHS[int(np.argmax(scores))]}


def by_matrix_validity(task: TuningTask) -> dict[str, Any]:
    """Return the same of an RVM whose kernel has a matrix."""
    scores = []
    for width in KROPOTOV_WIDTHS:
        model = matrix_rvm(task.setting({"width": width})).fit(task.X, task.y).model_
        scores.append(validity(model, task.X, task.y).log_validity)
    return {"width": KROPOTOV_WIDTHS[int(np.argmax(scores))]}


def validity_and_c(machine: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the RVM's width of the highest validity, and an SVM's cross-validated C at it."""
    alone = replace(task, given=by_validity(task), reference=None)
    return tune(machine, alone)


def by_test_error(machine: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the width of the smallest test error: what no selector can do better than."""
    choices, errors = test_errors(machine, task)
    return choices[middle_of_best(errors)]
