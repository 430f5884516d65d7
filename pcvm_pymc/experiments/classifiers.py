"""Classifiers of the comparisons by name: this package's, the papers' baselines, and a user's own."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, SVR

from pcvm_pymc.core.em.binary import EMOptions, fit_em
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import design_matrix, median_distance, width_grid
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.validation import as_labels
from pcvm_pymc.core.validity import rvm_validity
from pcvm_pymc.estimators.multiclass import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.estimators.selection import problem_at, select_width, start_recipes
from pcvm_pymc.estimators.sparse_probit import SparseProbitClassifier
from pcvm_pymc.experiments.baselines import CalibratedSVC, DLSRClassifier, gamma_of

__all__ = [
    "CLASSIFIERS",
    "Classifier",
    "Setting",
    "TuningTask",
    "classifier_of",
    "tune",
    "vector_counts",
    "vector_rows",
]

type Parameters = Mapping[str, Any]

_MAX_ITER = 3000
_FOLDS = 5
_RANKING_FOLDS = 3  # of the machines that take minutes to tune
_HARD_MARGIN = 1e4
_SVM_STEPS = 200_000  # a hard margin that does not exist is searched for ever
_C = tuple(np.geomspace(0.1, 1000.0, 5).tolist())
# Kropotov et al. (2006), section V.B, in their form exp(-d^2 / (2 sigma^2))
KROPOTOV_WIDTHS = tuple((np.sqrt(2.0) * np.array([0.01, 0.1, 0.3, 1, 2, 3, 4, 5, 7, 10])).tolist())
# multiples of the root of the number of features, for Lyu's protocol
LYU_FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


@dataclass(frozen=True)
class Setting:
    """What an estimator is made with.

    Attributes
    ----------
    parameters : mapping
        Those that are known: ``width``, ``C``, ``k``. An estimator without its width chooses one.
    seed : int
    is_regression : bool
    n_rows : int
        To be trained on.
    """

    parameters: Parameters = field(default_factory=dict)
    seed: int = 0
    is_regression: bool = False
    n_rows: int = 0


@dataclass(frozen=True, eq=False)
class TuningTask:
    """A training part on which parameters are to be chosen.

    Attributes
    ----------
    X, y, X_test, y_test : ndarray
        Only the oracles look at the test part.
    given : mapping
        What is known already, as the width that another machine chose.
    seed : int
    is_regression : bool
    reference : ndarray, optional
        Rows that the candidates are made for, where several realisations have to share them.
    """

    X: NDArray[np.float64]
    y: NDArray[Any]
    X_test: NDArray[np.float64]
    y_test: NDArray[Any]
    given: Parameters = field(default_factory=dict)
    seed: int = 0
    is_regression: bool = False
    reference: NDArray[np.float64] | None = None

    def setting(self, parameters: Parameters) -> Setting:
        """Return these parameters beside those that are given."""
        merged = {**self.given, **parameters}
        return Setting(merged, self.seed, self.is_regression, len(self.X))

    def folds(self, n_folds: int) -> KFold | StratifiedKFold:
        """Return seeded folds, stratified where every class has enough rows."""
        if self.is_regression or np.unique(self.y, return_counts=True)[1].min() < n_folds:
            return KFold(n_folds, shuffle=True, random_state=self.seed)
        return StratifiedKFold(n_folds, shuffle=True, random_state=self.seed)


@dataclass(frozen=True)
class Classifier:
    """A row of the table of classifiers.

    Attributes
    ----------
    name, title : str
    make : callable
        ``(Setting) -> estimator``.
    candidates : callable, optional
        ``(X) -> {name: values}``; None for nothing to tune.
    draft : callable, optional
        A cheaper `make` for tuning by error.
    tuner : callable, optional
        ``(TuningTask) -> parameters``, in place of a grid search by cross-validated error.
    follows : str
        The classifier whose tuned parameters this one is given.
    n_folds : int
        Of the grid search.
    tasks : tuple of str
        ``"classification"``, ``"regression"`` or both.
    """

    name: str
    title: str
    make: Callable[[Setting], Any]
    candidates: Callable[[NDArray[np.float64]], dict[str, Sequence[Any]]] | None = None
    draft: Callable[[Setting], Any] | None = None
    tuner: Callable[[TuningTask], dict[str, Any]] | None = None
    follows: str = ""
    n_folds: int = _FOLDS
    tasks: tuple[str, ...] = ("classification",)

    @property
    def has_parameters(self) -> bool:
        """Whether there is anything to tune."""
        return self.candidates is not None or self.tuner is not None


# --- tuning ----------------------------------------------------------------------------------


def combinations_of(row: Classifier, task: TuningTask) -> list[dict[str, Any]]:
    """Return the candidates, without what is given."""
    rows = task.X if task.reference is None else task.reference
    grid = row.candidates(rows) if row.candidates is not None else {}
    free = {name: values for name, values in grid.items() if name not in task.given}
    return [dict(zip(free, values, strict=True)) for values in product(*free.values())]


def tune(row: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the parameters that a classifier chooses on a training part, the given ones included."""
    if row.tuner is not None:
        return {**task.given, **row.tuner(task)}
    choices = combinations_of(row, task)
    if len(choices) < 2:
        return {**task.given, **(choices[0] if choices else {})}
    make, folds = row.draft or row.make, task.folds(row.n_folds)
    loss = [
        -np.mean(cross_val_score(make(task.setting(each)), task.X, task.y, cv=folds, error_score=0))
        for each in choices
    ]
    return {**task.given, **choices[middle_of_best(loss)]}


def test_errors(row: Classifier, task: TuningTask) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the candidates and the error of each on the test part (Lyu's protocol tunes by it)."""
    make, choices = row.draft or row.make, combinations_of(row, task)
    errors = [
        1.0 - make(task.setting(each)).fit(task.X, task.y).score(task.X_test, task.y_test)
        for each in choices
    ]
    return choices, errors


def middle_of_best(loss: Sequence[float]) -> int:
    """Return the index of the smallest loss, the middle one of equals."""
    best = np.flatnonzero(np.asarray(loss) <= np.min(loss) + 1e-12)
    return int(best[len(best) // 2])


def _by_log_loss(task: TuningTask) -> dict[str, Any]:
    """Return the width of this package's default classifier, by its cross-validated log loss."""
    if "width" in task.given:
        return {}
    options = EMOptions(max_iter=_MAX_ITER)
    return {"width": select_width(task.X, task.y, options=options, random_state=task.seed).width}


def _eight_starts(task: TuningTask) -> dict[str, Any]:
    """Return the width that EM reaches from the one of eight starts with the smallest test error.

    As Chen et al. (2009), section III-B: it looks at the test part and is mildly optimistic.
    """
    label, _ = as_labels(task.y, len(task.X))
    problem = problem_at(
        task.X, label, Hyperprior.chen2009(), median_distance(task.X), free_width=True
    )
    options, rng = EMOptions(max_iter=_MAX_ITER), np.random.default_rng(task.seed)
    widths, errors = [], []
    for recipe in start_recipes(8, options):
        width = fit_em(problem, recipe(problem, rng), options).width
        model = _pcvm("chen2009")(Setting({"width": width})).fit(task.X, task.y)
        widths.append(width)
        errors.append(1.0 - model.score(task.X_test, task.y_test))
    return {"width": float(widths[middle_of_best(errors)])}


def log_validity(task: TuningTask, width: float, options: EvidenceOptions | None = None) -> float:
    """Return the log of the kernel validity of an RVM of this width on the training part."""
    label, _ = as_labels(task.y, len(task.X))
    problem = EvidenceProblem(design_matrix("rbf", task.X, task.X, width), label, "logit")
    result = fit_rvm(problem, options=options or EvidenceOptions())
    return rvm_validity(task.X, problem, result, width=width, centres=task.X).log_validity


def _by_validity(task: TuningTask) -> dict[str, Any]:
    """Return the width of the highest kernel validity of the RVM, of Kropotov's ten."""
    options = EvidenceOptions(max_iter=_MAX_ITER)
    scores = [log_validity(task, width, options) for width in KROPOTOV_WIDTHS]
    return {"width": KROPOTOV_WIDTHS[int(np.argmax(scores))]}


def _validity_and_c(task: TuningTask) -> dict[str, Any]:
    """Return the RVM's width of the highest validity, and the SVM's cross-validated C at it."""
    alone = replace(task, given=_by_validity(task), reference=None)
    return tune(CLASSIFIERS["SVM"], alone)


def _by_test_error(task: TuningTask) -> dict[str, Any]:
    """Return the width of the smallest test error: what no selector can do better than."""
    choices, errors = test_errors(CLASSIFIERS["RVM_CV"], task)
    return choices[middle_of_best(errors)]


# --- the table -------------------------------------------------------------------------------


def _widths(n_widths: int) -> Callable[[NDArray[np.float64]], dict[str, Sequence[Any]]]:
    return lambda X: {"width": width_grid(X, n_widths).tolist()}


def _lyu_widths(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    return {"width": (np.array(LYU_FACTORS) * np.sqrt(X.shape[1])).tolist()}


def _svm_candidates(X: NDArray[np.float64]) -> dict[str, Sequence[Any]]:
    return {"C": _C, "width": width_grid(X, 7).tolist()}


def _pcvm(hyperprior: str, **options: Any) -> Callable[[Setting], PCVMClassifier]:
    return lambda setting: PCVMClassifier(
        width=setting.parameters.get("width", "auto"),
        hyperprior=hyperprior,
        max_iter=_MAX_ITER,
        random_state=setting.seed,
        **options,
    )


def _rvm(method: str, *, star: bool = False, **options: Any) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> RVMClassifier | RVMRegressor:
        common = {
            "width": setting.parameters.get("width", "auto"),
            "kernel": setting.parameters.get("kernel", "rbf"),
            "method": method,
            "random_state": setting.seed,
            **options,
        }
        if setting.is_regression:
            return RVMRegressor(star=star, noise=setting.parameters.get("noise"), **common)
        return RVMClassifier(**common)

    return make


def _sparse_probit(features: str) -> Callable[[Setting], SparseProbitClassifier]:
    return lambda setting: SparseProbitClassifier(
        features=features, width=setting.parameters.get("width", "median"), max_iter=_MAX_ITER
    )


def _several(kind: type, algorithm: str, **options: Any) -> Callable[[Setting], Any]:
    return lambda setting: kind(
        algorithm=algorithm,
        width=setting.parameters.get("width", "auto"),
        max_iter=_MAX_ITER,
        random_state=setting.seed,
        **options,
    )


def _svm(setting: Setting) -> Any:
    C, width = setting.parameters.get("C", 1.0), setting.parameters.get("width")
    if setting.is_regression:
        return SVR(C=C, gamma=gamma_of(width))
    return CalibratedSVC(C=C, width=width)


def _plain_svm(setting: Setting) -> Any:
    if setting.is_regression:
        return _svm(setting)
    gamma = gamma_of(setting.parameters.get("width"))
    # one that has not converged by then is no candidate to regret
    return SVC(C=setting.parameters.get("C", 1.0), gamma=gamma, max_iter=_SVM_STEPS)


def _hard(make: Callable[[Setting], Any]) -> Callable[[Setting], Any]:
    def made(setting: Setting) -> Any:
        fixed = {**setting.parameters, "C": _HARD_MARGIN}
        estimator = make(Setting(fixed, setting.seed, setting.is_regression, setting.n_rows))
        return estimator.set_params(max_iter=_SVM_STEPS)

    return made


def _neighbours(setting: Setting) -> KNeighborsClassifier:
    k = round(setting.parameters.get("k", 5))
    return KNeighborsClassifier(min(k, setting.n_rows) if setting.n_rows else k)


def _gaussian_process(setting: Setting) -> GaussianProcessClassifier:
    kernel = ConstantKernel(1.0) * RBF(1.0)
    return GaussianProcessClassifier(kernel, random_state=setting.seed)


_ROWS = (
    Classifier(
        "PCVM",
        "PCVM by EM under the authors' hyperprior, abs(w)^(-1/2); of eight starts the best by "
        "cross-validation",
        _pcvm("chen2009", n_init=8),
        draft=_pcvm("chen2009"),
        candidates=_widths(9),
    ),
    Classifier(
        "PCVM_jeffreys",
        "PCVM by EM under the paper's hyperprior, c = d = 0",
        _pcvm("jeffreys"),
        candidates=_widths(9),
    ),
    Classifier(
        "PCVM_plug_in",
        "PCVM by EM under this package's default hyperprior (most weights stay)",
        _pcvm("default"),
        tuner=_by_log_loss,
        candidates=_widths(9),
    ),
    Classifier(
        "PCVM_projection",
        "the same, projected onto few vectors",
        _pcvm("default", estimation="projection"),
        tuner=_by_log_loss,
        candidates=_widths(9),
    ),
    Classifier(
        "PCVM_authors",
        "PCVM by the authors' program: clipped M-steps, random starts",
        _pcvm("chen2009", update="clip"),
        candidates=_widths(9),
    ),
    Classifier(
        "PCVM_eight_starts",
        "the same, its width by EM from eight starts, chosen by test error as in the paper "
        "(optimistic)",
        _pcvm("chen2009", n_init=8),
        tuner=_eight_starts,
    ),
    Classifier(
        "RVM",
        "relevance vector machine, sequential (Tipping & Faul 2003)",
        _rvm("sequential"),
        candidates=_widths(7),
        draft=_rvm("sequential", tol=1e-3),
        n_folds=_RANKING_FOLDS,
        tasks=("classification", "regression"),
    ),
    Classifier(
        "RVM_batch",
        "relevance vector machine, batch (Tipping 2001)",
        _rvm("batch"),
        candidates=_widths(7),
        draft=_rvm("batch", tol=1e-3),
        n_folds=_RANKING_FOLDS,
        tasks=("classification", "regression"),
    ),
    Classifier(
        "RVM_star",
        "RVM* (Rasmussen & Quinonero-Candela 2005), regression only",
        _rvm("sequential", star=True),
        candidates=_widths(7),
        n_folds=_RANKING_FOLDS,
        tasks=("regression",),
    ),
    Classifier(
        "sparse_probit",
        "sparse probit with kernels (Figueiredo & Jain 2001)",
        _sparse_probit("kernel"),
        candidates=_widths(7),
    ),
    Classifier("sparse_probit_linear", "sparse probit, linear", _sparse_probit("linear")),
    Classifier("sparse_probit_quadratic", "sparse probit, quadratic", _sparse_probit("quadratic")),
    Classifier(
        "mPCVM1",
        "mPCVM1, top-down under Jeffreys' hyperprior",
        _several(MPCVMClassifier, "top-down"),
        candidates=_lyu_widths,
    ),
    Classifier(
        "mPCVM1_chen2009",
        "mPCVM1, top-down under abs(w)^(-1/2)",
        _several(MPCVMClassifier, "top-down", hyperprior="chen2009"),
        candidates=_lyu_widths,
    ),
    Classifier(
        "mPCVM2",
        "mPCVM2, bottom-up",
        _several(MPCVMClassifier, "bottom-up"),
        candidates=_lyu_widths,
    ),
    Classifier(
        "mRVM1",
        "mRVM1, bottom-up",
        _several(MRVMClassifier, "bottom-up"),
        candidates=_lyu_widths,
    ),
    Classifier(
        "mRVM2",
        "mRVM2, top-down",
        _several(MRVMClassifier, "top-down"),
        candidates=_lyu_widths,
    ),
    Classifier(
        "SVM",
        "soft-margin SVM, Platt's probabilities",
        _svm,
        candidates=_svm_candidates,
        draft=_plain_svm,
        tasks=("classification", "regression"),
    ),
    Classifier(
        "SVM_hard",
        f"SVM with C = {_HARD_MARGIN:g}",
        _hard(_svm),
        candidates=_widths(7),
        draft=_hard(_plain_svm),
    ),
    Classifier(
        "SVM_PCVM",
        "soft-margin SVM at the width of the PCVM",
        _svm,
        candidates=lambda X: {"C": _C},
        draft=_plain_svm,
        follows="PCVM",
    ),
    Classifier("1NN", "nearest neighbour", lambda setting: KNeighborsClassifier(1)),
    Classifier(
        "kNN",
        "k nearest neighbours, k = 1..20",
        _neighbours,
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
    Classifier("GP", "Gaussian process, Laplace", _gaussian_process),
    Classifier(
        "DLSR",
        "discriminative least squares regression (Xiang et al. 2012)",
        lambda setting: DLSRClassifier(ridge=setting.parameters.get("ridge", 1.0)),
        candidates=lambda X: {"ridge": np.geomspace(1e-3, 1e2, 6).tolist()},
    ),
    Classifier(
        "RVM_CV",
        "RVM, width by 5-fold cross-validation",
        _rvm("sequential"),
        candidates=lambda X: {"width": KROPOTOV_WIDTHS},
    ),
    Classifier("RVM_MV", "RVM, width of maximal validity", _rvm("sequential"), tuner=_by_validity),
    Classifier(
        "SVM_CV",
        "SVM, width and C by 5-fold cross-validation",
        _svm,
        candidates=lambda X: {"C": _C, "width": KROPOTOV_WIDTHS},
        draft=_plain_svm,
    ),
    Classifier("SVM_MV", "SVM at the RVM's width of maximal validity", _svm, tuner=_validity_and_c),
    Classifier(
        "RVM_best",
        "RVM at the width of the smallest test error (an oracle)",
        _rvm("sequential"),
        tuner=_by_test_error,
    ),
)
CLASSIFIERS: dict[str, Classifier] = {row.name: row for row in _ROWS}


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


def vector_counts(model: Any) -> tuple[float, float]:
    """Return the support or relevance vectors of a fitted estimator, and its non-zero weights.

    NaN where the notion does not apply.
    """
    vectors = getattr(model, "relevance_vectors_", getattr(model, "support_", None))
    weight = getattr(model, "weight_", None)
    if weight is None and hasattr(model, "machine_"):
        weight = model.machine_.dual_coef_
    return (
        np.nan if vectors is None else float(len(vectors)),
        np.nan if weight is None else float(np.count_nonzero(weight)),
    )


def vector_rows(model: Any, X: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the training rows that are support or relevance vectors of a fitted estimator."""
    support = getattr(model, "support_", None)
    if support is not None:
        return np.asarray(support, dtype=np.int64)
    vectors = getattr(model, "relevance_vectors_", np.empty((0, X.shape[1])))
    return cdist(vectors, X).argmin(axis=1) if len(vectors) else np.empty(0, np.int64)
