"""What is known of a classifier of the comparisons, and the choice of its parameters on a grid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score

type Parameters = Mapping[str, Any]

_FOLDS = 5


@dataclass(frozen=True)
class Setting:
    """What an estimator is made with.

    Attributes
    ----------
    parameters : mapping
        Those that are known: ``width``, ``C``, ``k``. An estimator without its width chooses one.
    seed : int
    is_regression : bool
    n_rows, n_classes, n_features : int
        To be trained on.
    """

    parameters: Parameters = field(default_factory=dict)
    seed: int = 0
    is_regression: bool = False
    n_rows: int = 0
    n_classes: int = 2
    n_features: int = 1


@dataclass(frozen=True, eq=False)
class TuningTask:
    """A training part on which parameters are to be chosen.

    Attributes
    ----------
    X, y, X_test, y_test : ndarray
        Only the oracles use the test part.
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
        """Return these parameters and those that are given."""
        merged = {**self.given, **parameters}
        n_classes = 0 if self.is_regression else len(np.unique(self.y))
        return Setting(
            merged, self.seed, self.is_regression, len(self.X), n_classes, self.X.shape[1]
        )

    def folds(self, n_folds: int) -> KFold | StratifiedKFold:
        """Return seeded folds, stratified where every class has enough rows."""
        if self.is_regression or np.unique(self.y, return_counts=True)[1].min() < n_folds:
            return KFold(n_folds, shuffle=True, random_state=self.seed)
        return StratifiedKFold(n_folds, shuffle=True, random_state=self.seed)


type Candidates = Callable[[NDArray[np.float64]], dict[str, Sequence[Any]]]
type Maker = Callable[[Setting], Any]


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
    make: Maker
    candidates: Candidates | None = None
    draft: Maker | None = None
    tuner: Callable[[TuningTask], dict[str, Any]] | None = None
    follows: str = ""
    n_folds: int = _FOLDS
    tasks: tuple[str, ...] = ("classification",)

    @property
    def has_parameters(self) -> bool:
        """Whether there is anything to tune."""
        return self.candidates is not None or self.tuner is not None


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

    def loss(choice: dict[str, Any]) -> float:
        model = make(task.setting(choice))
        return -float(np.mean(cross_val_score(model, task.X, task.y, cv=folds, error_score=0)))

    return {**task.given, **choices[middle_of_best([loss(each) for each in choices])]}


def test_errors(row: Classifier, task: TuningTask) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the candidates and the error of each on the test part (Lyu's protocol tunes by it)."""
    make, choices = row.draft or row.make, combinations_of(row, task)

    def error(choice: dict[str, Any]) -> float:
        model = make(task.setting(choice)).fit(task.X, task.y)
        return 1.0 - float(model.score(task.X_test, task.y_test))

    return choices, [error(each) for each in choices]


def middle_of_best(loss: Sequence[float]) -> int:
    """Return the index of the smallest loss, the middle one of equals."""
    best = np.flatnonzero(np.asarray(loss) <= np.min(loss) + 1e-12)
    return int(best[len(best) // 2])


# --- what a fitted estimator keeps of its training part -----------------------------------------


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


def opposed_rows(model: Any, X: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the training rows that are vectors whose weight's sign opposes their label, of two classes.

    Parameters
    ----------
    model : estimator
        Fitted, with a weight for each of its vectors.
    X, y : ndarray
        What it was fitted to.
    """
    rows = vector_rows(model, X)
    machine = getattr(model, "machine_", None)
    weight = model.weight_ if machine is None else machine.dual_coef_
    sign = np.where(y[rows] == model.classes_[1], 1.0, -1.0)
    return rows[np.ravel(weight) * sign < 0]
