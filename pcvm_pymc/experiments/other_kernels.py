"""Machines with kernels of several widths, or of a matrix, as classifiers of the comparisons."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.covariance import LedoitWolf
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.em.widths import FeatureWidthMoves
from pcvm_pymc.core.pieces.kernels import MatrixRBF, median_distance, width_bounds
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.validation import as_labels
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.rvm import RVMClassifier

_FAR = 100.0  # times the largest distance: a feature of that width does not matter


class _AroundAModel(ClassifierMixin, BaseEstimator):
    """What predicts as the machine within it does."""

    model_: Any

    def _keep(self, model: Any) -> Self:
        """Keep a fitted machine, and what comparisons count of it."""
        self.model_, self.classes_ = model, model.classes_
        self.support_, self.weight_ = model.support_, model.weight_
        self.relevance_vectors_ = model.relevance_vectors_
        self.n_iter_ = model.n_iter_
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the machine's labels."""
        check_is_fitted(self)
        return self.model_.predict(validate_data(self, X, dtype=float, reset=False))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the machine's probabilities, shape (n_new, 2)."""
        check_is_fitted(self)
        return self.model_.predict_proba(validate_data(self, X, dtype=float, reset=False))


class FeatureWidthPCVM(_AroundAModel):
    """A PCVM with a width for each feature, which EM moves from one for all (chen2009 eq. 10, corrected).

    Parameters
    ----------
    width : float or None
        Where all of them start; None is the median distance between rows.
    max_iter : int
    random_state : int

    Attributes
    ----------
    model_ : PCVMClassifier
        At the widths where EM ended.
    width_ : ndarray, shape (n_features,)
    """

    def __init__(
        self, *, width: float | None = None, max_iter: int = 3000, random_state: int = 0
    ) -> None:
        self.width = width
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Move the widths under the authors' hyperprior, and fit the machine at their end."""
        X, y = validate_data(self, X, y, dtype=float)
        label, _ = as_labels(y, len(X))
        start = np.full(X.shape[1], self.width or median_distance(X))
        low, high = width_bounds(X)
        squared = np.square(X.T[:, :, None] - X.T[:, None, :])
        moves = FeatureWidthMoves(squared, (low, _FAR * high))
        problem = Problem(
            moves.basis(start), label, label.copy(), Hyperprior.chen2009(), width=start, moves=moves
        )
        self.width_ = fit_em(problem, None, EMOptions(max_iter=self.max_iter)).width
        model = PCVMClassifier(
            width=self.width_,
            hyperprior="chen2009",
            options=EMOptions(max_iter=self.max_iter),
            random_state=self.random_state,
        )
        return self._keep(model.fit(X, y))


class MatrixRVM(_AroundAModel):
    """A relevance vector machine whose kernel has the covariance within the classes for its matrix.

    The covariance is pooled over the classes and shrunk towards a multiple of the identity (Ledoit & Wolf).

    Parameters
    ----------
    width : float
        Of the `MatrixRBF`.

    Attributes
    ----------
    model_ : RVMClassifier
    """

    def __init__(self, *, width: float = 1.0) -> None:
        self.width = width

    def fit(self, X: Any, y: Any) -> Self:
        """Estimate the matrix, and fit the machine."""
        X, y = validate_data(self, X, y, dtype=float)
        within = X.copy()
        for each in np.unique(y):
            within[y == each] -= X[y == each].mean(axis=0)
        kernel = MatrixRBF(LedoitWolf(assume_centered=True).fit(within).covariance_)
        return self._keep(RVMClassifier(kernel=kernel, width=self.width).fit(X, y))
