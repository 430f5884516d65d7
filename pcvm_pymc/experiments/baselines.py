"""Baselines of the papers that scikit-learn has in parts, or lacks."""

import warnings
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.pieces.kernels import width_grid

_FOLDS = 5


def gamma_of(width: float | None) -> float | str:
    """Return scikit-learn's gamma for a width, "scale" for none."""
    return "scale" if width is None else width**-2.0


def gaussian_process(
    n_features: int, seed: int, *, per_feature: bool = False
) -> GaussianProcessClassifier:
    """Return a Gaussian process, its width by the evidence from the root of the number of features.

    `per_feature` gives each feature a width of its own.
    """
    start = np.sqrt(n_features)
    kernel = ConstantKernel(1.0) * RBF(np.full(n_features, start) if per_feature else start)
    return GaussianProcessClassifier(kernel, random_state=seed)


def _minus_log_loss(model: Any, X: Any, y: Any) -> float:
    """Return minus the log loss, also where a fold lacks a class (scikit-learn's own scorer raises)."""
    return -float(log_loss(y, model.predict_proba(X), labels=model.classes_))


class _Searched(GridSearchCV):
    """A search whose own score is the accuracy, as that of every other classifier."""

    def score(self, X: Any, y: Any, **params: Any) -> float:
        return float(accuracy_score(y, self.predict(X)))


def tuned_logistic_regression(seed: int) -> GridSearchCV:
    """Return logistic regression whose ridge is chosen by log loss, of seven in five folds."""
    return _Searched(
        LogisticRegression(max_iter=5000),
        {"C": np.geomspace(1e-3, 1e3, 7)},
        scoring=_minus_log_loss,
        cv=StratifiedKFold(5, shuffle=True, random_state=seed),
    )


#: one machine of all rows, and Platt's sigmoid of its held-out decisions
_with_sigmoid = partial(CalibratedClassifierCV, ensemble=False)


class CalibratedSVC(ClassifierMixin, BaseEstimator):
    """A support vector machine whose labels are its own, and whose probabilities are Platt's.

    Parameters
    ----------
    C : float
    width : float or None
        Of ``exp(-||x - z||^2 / width^2)``; None is scikit-learn's ``gamma="scale"``.
    max_iter : int
    """

    def __init__(self, *, C: float = 1.0, width: float | None = None, max_iter: int = -1) -> None:
        self.C = C
        self.width = width
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the machine, and the sigmoid to its cross-validated decisions."""
        X, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        self.machine_ = SVC(C=self.C, gamma=gamma_of(self.width), max_iter=self.max_iter).fit(X, y)
        self.classes_ = self.machine_.classes_
        self.n_iter_ = int(np.max(self.machine_.n_iter_))
        smallest = np.unique(y, return_counts=True)[1].min()
        self.calibrated_ = None
        if smallest >= 2:
            folds = StratifiedKFold(min(_FOLDS, smallest), shuffle=True, random_state=0)
            self.calibrated_ = _with_sigmoid(clone(self.machine_), cv=folds).fit(X, y)
        self.support_ = self.machine_.support_
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the machine's labels."""
        check_is_fitted(self)
        return self.machine_.predict(validate_data(self, X, dtype=float, reset=False))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return Platt's probabilities, shape (n_new, n_classes).

        Where a class has a single training row, which cannot be held out, certainty in the label.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        if self.calibrated_ is None:
            return (self.machine_.predict(X)[:, None] == self.classes_).astype(float)
        return self.calibrated_.predict_proba(X)


class TunedSVC(ClassifierMixin, BaseEstimator):
    """A support vector machine of which C and width are tuned by accuracy, with Platt's probabilities.

    Thirty pairs: C from 0.1 to 1000, widths from 0.2 to 2.5 times the median distance, by five folds.

    Parameters
    ----------
    random_state : int
        For the folds.
    """

    def __init__(self, *, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Tune and fit the machine, and the sigmoid to its cross-validated decisions."""
        X, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        n_folds = int(np.clip(np.unique(y, return_counts=True)[1].min(), 2, _FOLDS))
        folds = StratifiedKFold(n_folds, shuffle=True, random_state=self.random_state)
        grid = {"C": np.geomspace(0.1, 1000, 5), "gamma": width_grid(X, 6) ** -2}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")
            self.search_ = GridSearchCV(SVC(), grid, cv=folds).fit(X, y)
            self.machine_ = self.search_.best_estimator_
            self.calibrated_ = _with_sigmoid(clone(self.machine_), cv=folds).fit(X, y)
        self.classes_, self.support_ = self.machine_.classes_, self.machine_.support_
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the machine's labels."""
        check_is_fitted(self)
        return self.machine_.predict(validate_data(self, X, dtype=float, reset=False))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return Platt's probabilities, shape (n_new, n_classes)."""
        check_is_fitted(self)
        return self.calibrated_.predict_proba(validate_data(self, X, dtype=float, reset=False))


class DLSRClassifier(ClassifierMixin, BaseEstimator):
    """Discriminative least squares regression (Xiang et al. 2012).

    Ridge regression on one-of-C targets that may move away from each other: with B = +1 on the own class and
    -1 elsewhere, ||X W + 1 t' - (Y + B * M)||^2 + ``ridge`` ||W||^2 is minimised over W, t and
    M >= 0 in turn. Rows are labelled by the greatest score.

    Parameters
    ----------
    ridge : float
    max_iter : int
    tol : float
        Change of ``||W||`` at which to stop, relative.

    References
    ----------
    S. Xiang, F. Nie, G. Meng, C. Pan and C. Zhang (2012), "Discriminative least squares regression for
    multiclass classification and feature selection", IEEE Transactions on Neural Networks and
    Learning Systems 23(11), 1738-1754.
    """

    def __init__(self, *, ridge: float = 1.0, max_iter: int = 200, tol: float = 1e-6) -> None:
        self.ridge = ridge
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any) -> Self:
        """Alternate between weights and targets until the weights stop changing."""
        X, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        if not self.ridge > 0:
            raise ValueError(f"ridge={self.ridge!r}; needed a positive number")
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class ({self.classes_[0]!r}); needed two or more")
        target = np.eye(len(self.classes_))[label]
        direction = 2.0 * target - 1.0
        centre = X.mean(axis=0)
        centred = X - centre
        gram = centred.T @ centred + self.ridge * np.eye(X.shape[1])
        slack = np.zeros_like(target)
        weight = np.zeros((X.shape[1], len(self.classes_)))
        for self.n_iter_ in range(1, self.max_iter + 1):  # noqa: B020, what it stops at
            moved = target + direction * slack
            new = np.linalg.solve(gram, centred.T @ moved)
            change = np.linalg.norm(new - weight)
            weight, offset = new, moved.mean(axis=0) - centre @ new
            slack = np.maximum(direction * (X @ weight + offset - target), 0.0)
            if change <= self.tol * np.linalg.norm(weight):
                break
        self.coef_, self.intercept_ = weight.T, offset
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return scores, shape (n_new, n_classes); for two classes their difference, shape (n_new,)."""
        check_is_fitted(self)
        scores = validate_data(self, X, dtype=float, reset=False) @ self.coef_.T + self.intercept_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of the greatest score."""
        scores = self.decision_function(X)
        if len(self.classes_) == 2:
            return self.classes_[(scores > 0).astype(int)]
        return self.classes_[scores.argmax(axis=1)]
