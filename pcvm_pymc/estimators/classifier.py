"""Predictions of classifiers, of one score or several; classes told one from the rest."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.base import ClassifierMixin
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import gen_batches
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_labels, as_numbers, check_real, present_labels
from pcvm_pymc.estimators.base import KernelMachine
from pcvm_pymc.estimators.documented import of_rows
from pcvm_pymc.estimators.intervals import LatentNormal, probability_interval
from pcvm_pymc.estimators.weights import counted_rows

__all__ = ["KernelClassifier", "class_probability", "for_dask", "is_dask", "log_class_probability"]

_INTERVAL_ROWS = 200  # whose draws are held at a time


def is_dask(X: Any) -> bool:
    """Whether an input is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def for_dask(method: Any, X: Any, dtype: Any, n_columns: int | None = None) -> Any:
    """Return a Dask array of what a method of an estimator gives for each block of rows."""
    from pcvm_pymc.estimators.cluster import map_rows

    return map_rows(method, X, dtype, n_columns)


def class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return probabilities, shape (n_new, n_classes), at latent values.

    Parameters
    ----------
    likelihood : Likelihood
        Of several scores; or of one, then with one latent value for two classes, and with one for each of
        several that are told one from the rest.
    latent : ndarray, shape (n_new,) or (n_new, n_classes)
    """
    if latent.ndim == 1:  # the likelihoods of labels are mirror images
        return np.column_stack([likelihood.probability(-latent), likelihood.probability(latent)])
    if likelihood.n_scores > 1:
        probability = likelihood.probability(latent)
        return probability / probability.sum(axis=1, keepdims=True)  # of one but for rounding
    return np.exp(log_class_probability(likelihood, latent))


def log_class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return logarithms of class probabilities, exact in the tails; see `class_probability`."""
    ones = np.ones(len(latent))
    if latent.ndim == 1:
        return np.column_stack([likelihood.log_density(latent, sign * ones) for sign in (-1, 1)])
    if likelihood.n_scores > 1:
        numbers = range(latent.shape[1])
        each = [likelihood.log_density(latent, np.full(len(latent), c)) for c in numbers]
        return np.column_stack(each)
    # all machines may say no
    yes = np.column_stack([likelihood.log_density(each, ones) for each in latent.T])
    return yes - logsumexp(yes, axis=1, keepdims=True)


class KernelClassifier(ClassifierMixin, KernelMachine):
    """Base of the classifiers.

    Within an estimator rows are known by labels -1. and +1. or, where it takes several classes, by
    their numbers.
    """

    _takes_several: ClassVar[bool] = True

    class_weight: Any
    #: what takes more than two classes in place of an estimator that does not
    _for_several: ClassVar[str] = ""

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
            Labels of any type: two classes, or more where the estimator takes them.
        sample_weight : array_like, shape (n_obs,), optional
            How often each row counts: two is the row twice, without a second basis function on it; rows of
            weight zero are left out. What is chosen by leaving rows out leaves a row out as often as it
            counts.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        self._begin(_is_lazy_=is_dask(X), _given_weight_=sample_weight)
        if self._is_lazy_ and not (sample_weight is None and self.class_weight is None):
            raise ValueError(
                "sample_weight or class_weight was given with Dask arrays, whose rows count once each; "
                "needed arrays in memory (with a memory_limit they go in chunks)"
            )
        with nullcontext() if self._is_lazy_ else self._threads(X):
            self._fit(X, y)
        rows = self.__dict__.pop("_counted_rows_", None)
        if rows is not None and hasattr(self, "support_"):  # numbers among the rows that were given
            self.support_ = np.where(self.support_ < 0, -1, rows[self.support_])
        return self

    def _fit(self, X: Any, y: Any) -> None:
        """Fit with arguments that are checked."""
        raise NotImplementedError

    def _arrays(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[Any]]:
        """Return inputs and what rows are known by, and note the classes."""
        as_numbers(X, "X")
        y = y if y is None else present_labels(y)
        rows, known = validate_data(self, X, y, dtype=float)
        check_classification_targets(known)
        rows, known = self._counted(rows, known)
        self.classes_, number = np.unique(known, return_inverse=True)
        if self._takes_several and len(self.classes_) > 2:
            return rows, number
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported by {type(self).__name__}. y has "
                f"{len(self.classes_)} classes; needed two: for several use {self._for_several}"
            )
        if len(self.classes_) < 2:
            as_labels(known, len(rows))  # raises
        if self._takes_several:
            return rows, number.astype(np.int64)
        return rows, np.where(number == 1, 1.0, -1.0)

    def _counted(self, X: Array, y: NDArray[Any]) -> tuple[Array, NDArray[Any]]:
        """Return the rows that count, and note how often."""
        given = self.__dict__.pop("_given_weight_", None)
        rows, weight = counted_rows(given, self.class_weight, X, y)
        if weight is None:
            return X, y
        self._check_weighted()
        self._row_weight_ = weight
        if len(weight) < len(X):
            self._counted_rows_ = rows
        return X[rows], y[rows]

    def _check_weighted(self) -> None:
        """Raise where weights of the rows cannot be taken."""

    def _as_given(self, y: NDArray[Any]) -> NDArray[Any]:
        return self.classes_[y if self._takes_several else (y > 0).astype(int)]

    def _folds(self, y: NDArray[Any], rng: np.random.Generator) -> Any:
        n_folds = min(self.cv, int(np.unique(y, return_counts=True)[1].min()))
        if n_folds < 2:
            return None
        return StratifiedKFold(n_folds, shuffle=True, random_state=int(rng.integers(2**31)))

    def _log_densities(self, X: Array, y: NDArray[Any]) -> Array:
        number, rows = np.searchsorted(self.classes_, y), np.arange(len(y))
        latent = self._values(X)
        if latent.ndim == 1:
            return self._likelihood_.log_density(latent, 2.0 * number - 1.0)
        if self._likelihood_.n_scores > 1:
            return self._likelihood_.log_density(latent, number)
        return np.log(class_probability(self._likelihood_, latent)[rows, number])

    @of_rows("ndarray, shape (n_new,), or (n_new, n_classes) for several classes")
    def decision_function(self, X: ArrayLike) -> Array:
        """Return the latent function, shape (n_new,): positive where ``classes_[1]`` is likelier.

        For several classes that of each, shape (n_new, n_classes); of two classes with a score each the
        difference.
        """
        check_is_fitted(self)
        n_classes = len(self.classes_)
        if is_dask(X):
            return for_dask(self.decision_function, X, float, n_classes if n_classes > 2 else None)
        latent = self._values(self._inputs(X))
        return latent[:, 1] - latent[:, 0] if latent.ndim == 2 and n_classes == 2 else latent

    @of_rows("ndarray, shape (n_new, n_classes)")
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, n_classes), in the order of ``classes_``."""
        check_is_fitted(self)
        if is_dask(X):
            return for_dask(self.predict_proba, X, float, len(self.classes_))
        return class_probability(self._likelihood_, self._values(self._inputs(X)))

    @of_rows("ndarray, shape (n_new, n_classes)")
    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return logarithms of class probabilities, shape (n_new, n_classes), exact in the tails."""
        check_is_fitted(self)
        if is_dask(X):
            return for_dask(self.predict_log_proba, X, float, len(self.classes_))
        return self._log_probability(self._inputs(X))

    def _log_probability(self, X: Array) -> Array:
        return log_class_probability(self._likelihood_, self._values(X))

    def predict_interval(self, X: ArrayLike, *, probability: float = 0.89) -> Array:
        """Return equal-tailed posterior intervals of the class probabilities.

        The posterior is the normal one around the fitted mode, of the weights that are not zero, given the
        precisions expected there (of an RVM those of the highest evidence), the width and the scale;
        for an average over width and scale, the mixture over its modes. Precisions, signs and a
        width that is no average's are not uncertain in it; `sample` has them all. Of several scores the ends
        are quantiles of 1000 draws, always the same.

        Parameters
        ----------
        X : array_like, shape (n_new, n_features)
            With the columns of the training rows, in their order.
        probability : float
            That an interval holds, above 0 and below 1.

        Returns
        -------
        ndarray, shape (n_new, n_classes, 2)
            Lower and upper end for each class of ``classes_``.

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows or the probability cannot be used, or the fit has no such posterior: a search from
            the bottom up, a projection onto few vectors, rows in chunks or Dask arrays.

        References
        ----------
        M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1, eqs. 25-27.

        Examples
        --------
        >>> import numpy as np
        >>> from pcvm_pymc import PCVMClassifier
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PCVMClassifier(width=1.5).fit(X, X[:, 0] > 0)
        >>> low, high = model.predict_interval([[0.1, 0.0]])[0, 1]
        >>> bool(low < model.predict_proba([[0.1, 0.0]])[0, 1] < high)
        True
        """
        check_real("probability", probability, 0.0, 1.0)
        check_is_fitted(self)
        if is_dask(X):
            raise ValueError("X is a Dask array; predict_interval needs rows in memory")
        new, at = self._inputs(X), self._posterior()
        to_class = partial(class_probability, self._likelihood_)
        return np.concatenate(
            [
                probability_interval(to_class, at(new[rows]), probability)
                for rows in gen_batches(len(new), _INTERVAL_ROWS)
            ]
        )

    def _posterior(self) -> Callable[[Array], list[LatentNormal]]:
        """Return what gives the latent function's posterior at new rows, as a mixture."""
        raise NotImplementedError

    @of_rows("ndarray, shape (n_new,)")
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, shape (n_new,)."""
        check_is_fitted(self)
        if is_dask(X):
            return for_dask(self.predict, X, self.classes_.dtype)
        latent = self._values(self._inputs(X))
        likeliest = (latent > 0).astype(int) if latent.ndim == 1 else latent.argmax(axis=1)
        return self.classes_[likeliest]

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: whether there may be several classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._takes_several
        return tags
