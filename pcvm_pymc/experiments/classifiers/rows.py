"""What a row of the table of classifiers says, and what it is asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

__all__ = ["Candidates", "Classifier", "Maker", "Parameters", "Setting", "TuningTask"]

type Parameters = Mapping[str, Any]

_FOLDS = 5


def _computed(candidate: Parameters, compute: Callable[[], float]) -> float:
    """Return a candidate's loss, and keep nothing."""
    return compute()


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
        Only the oracles look at the test part.
    given : mapping
        What is known already, as the width that another machine chose.
    seed : int
    is_regression : bool
    reference : ndarray, optional
        Rows that the candidates are made for, where several realisations have to share them.
    kept : callable
        ``(candidate, compute) -> loss``: computes it, or remembers it from a run that was stopped.
    """

    X: NDArray[np.float64]
    y: NDArray[Any]
    X_test: NDArray[np.float64]
    y_test: NDArray[Any]
    given: Parameters = field(default_factory=dict)
    seed: int = 0
    is_regression: bool = False
    reference: NDArray[np.float64] | None = None
    kept: Callable[[Parameters, Callable[[], float]], float] = _computed

    def setting(self, parameters: Parameters) -> Setting:
        """Return these parameters beside those that are given."""
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
