"""The sparse probit of Figueiredo & Jain (2001) for scikit-learn."""

import warnings
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em.binary import EMOptions, EMResult, Status
from pcvm_pymc.core.em.sparse_probit import (
    FEATURES,
    SparseProblem,
    feature_matrix,
    fit_sparse_probit,
    named_prior,
)
from pcvm_pymc.core.pieces.centres import Basis, as_centres
from pcvm_pymc.core.pieces.kernels import Kernel, median_distance
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.pieces.probit import Array, log_ndtr, ndtr
from pcvm_pymc.core.pieces.validation import as_labels, as_width

__all__ = ["SparseProbitClassifier"]


class SparseProbitClassifier(ClassifierMixin, BaseEstimator):
    """Sparse probit classifier, fitted by EM to its posterior mode.

    Several classes are told one from the rest, and the probabilities normalised.

    Parameters
    ----------
    features : {"linear", "quadratic", "kernel"}
        The components of x; also their squares and pairwise products; or a kernel at each training row.
    prior : {"jeffreys", "laplace", "student"}, Laplace or Hyperprior
        ``"jeffreys"`` is the paper's, without a parameter. ``"laplace"`` has the L1 penalty
        ``sqrt(gamma)``, ``"student"`` is the proper `Hyperprior.default`, which keeps all weights.
    gamma : float
        For ``prior="laplace"``.
    bias : {"penalised", "free"}
        Whether the bias has the prior of a weight or a flat one.
    kernel : "rbf", "linear-spline" or callable
        For ``features="kernel"``.
    width : float or "median"
        Of the kernel, in the unit of X; the paper's h is ``width / sqrt(2)``. ``"median"`` is the median
        distance of the training rows. Standardise columns of different units first.
    basis : None, int or array_like, shape (n_basis, n_features)
        For ``features="kernel"``: kernels on all training rows; on so many of them, chosen by
        k-means++; or at given centres.
    update : {"auto", "newton", "em"}
        How EM steps, see `EMOptions`; ``"em"`` is the paper's own.
    max_iter : int
    tol : float
        Largest change of a latent value at which EM stops.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    selected_ : ndarray of int, shape (n_selected,)
        Features whose weight is not zero (in any of several machines), in the order of
        `pcvm_pymc.core.em.sparse_probit.feature_matrix`; for a kernel, its centres.
    relevance_vectors_ : ndarray, shape (n_selected, n_features_in_)
        These centres, for a kernel only.
    weight_ : ndarray, shape (n_selected,)
        Their weights; for several classes (n_classes, n_selected).
    coef_ : ndarray, shape (1, n_all) or (n_classes, n_all)
        The weights of all features, most of them zero.
    bias_ : float, or ndarray, shape (n_classes,)
    prior_ : Laplace or Hyperprior
    width_ : float
        For a kernel only.
    log_posterior_ : float
        At the mode, variances integrated out; the sum for several classes.
    n_iter_ : int
        The most of several machines.
    status_ : Status or list of Status
        How EM ended; an empty model predicts by its bias alone.

    References
    ----------
    M. Figueiredo and A. Jain (2001), "Bayesian learning of sparse classifiers", CVPR, corrected.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(80, 6))
    >>> noise = np.random.default_rng(1).normal(size=80)
    >>> model = SparseProbitClassifier().fit(X, np.where(X[:, 2] + 0.5 * noise > 0, "yes", "no"))
    >>> 2 in model.selected_, len(model.selected_) < 6
    (True, True)
    """

    def __init__(
        self,
        *,
        features: str = "linear",
        prior: str | Laplace | Hyperprior = "jeffreys",
        gamma: float = 1.0,
        bias: str = "penalised",
        kernel: Kernel = "rbf",
        width: float | str = "median",
        basis: Basis = None,
        update: str = "auto",
        max_iter: int = 10_000,
        tol: float = 1e-5,
    ) -> None:
        self.features = features
        self.prior = prior
        self.gamma = gamma
        self.bias = bias
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.update = update
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
            Labels of any type, two classes or more.

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        X, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        options = self._options()
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            labels = [np.where(y == each, 1.0, -1.0) for each in self.classes_]
        else:
            label, self.classes_ = as_labels(y, len(X))
            labels = [label]
        if self.features == "kernel":
            self.width_ = self._width(X)
        centres = as_centres(self.basis, X, None)
        Phi = self._features(X, centres.points)
        self.prior_ = named_prior(self.prior, Phi, gamma=self.gamma)
        problems = [SparseProblem(Phi, label, self.prior_, self.bias) for label in labels]
        self._store(centres.points, [fit_sparse_probit(each, options=options) for each in problems])
        return self

    def _store(self, points: Array, results: list[EMResult]) -> None:
        """Set the fitted attributes."""
        one = len(results) == 1
        self.coef_ = np.stack([each.weight for each in results])
        self.selected_ = np.flatnonzero(self.coef_.any(axis=0))
        self.weight_ = self.coef_[0, self.selected_] if one else self.coef_[:, self.selected_]
        if self.features == "kernel":
            self.relevance_vectors_ = points[self.selected_]
        biases, statuses = [each.bias for each in results], [each.status for each in results]
        self.bias_ = biases[0] if one else np.array(biases)
        self.status_ = statuses[0] if one else statuses
        self.log_posterior_ = sum(each.log_posterior for each in results)
        self.n_iter_ = max(each.n_iter for each in results)
        for status in dict.fromkeys(statuses):
            if status is not Status.CONVERGED:
                warnings.warn(f"EM: {status.value}", ConvergenceWarning, stacklevel=3)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the latent function, shape (n_new,), or (n_new, n_classes) for several classes."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        if self.features == "kernel":
            Phi = self._features(X, self.relevance_vectors_)
        else:
            Phi = self._features(X)[:, self.selected_]
        return Phi @ self.weight_.T + self.bias_

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, n_classes), in the order of ``classes_``."""
        latent = self.decision_function(X)
        if latent.ndim == 1:
            return np.column_stack([ndtr(-latent), ndtr(latent)])
        # on the log scale, since all machines may say no
        log_probability = log_ndtr(latent)
        return np.exp(log_probability - logsumexp(log_probability, axis=1, keepdims=True))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, shape (n_new,)."""
        latent = self.decision_function(X)
        if latent.ndim == 1:
            return self.classes_[(latent > 0).astype(int)]
        return self.classes_[latent.argmax(axis=1)]

    def _features(self, X: Array, centres: Array | None = None) -> Array:
        return feature_matrix(
            X,
            self.features,
            centres=centres,
            kernel=self.kernel,
            width=getattr(self, "width_", 1.0),
        )

    def _width(self, X: Array) -> float:
        if self.width == "median":
            return median_distance(X)
        if not isinstance(self.width, Real):
            raise ValueError(f"width={self.width!r}; needed a positive number or 'median'")
        return as_width(self.width)

    def _options(self) -> EMOptions:
        """Check the parameters that are not data, and return EM's options."""
        if self.features not in FEATURES:
            raise ValueError(f"features={self.features!r} is unknown; use one of {FEATURES}")
        if self.basis is not None and self.features != "kernel":
            raise ValueError(
                f"basis was given with features={self.features!r}; needed features='kernel'"
            )
        if self.bias not in ("penalised", "free"):
            raise ValueError(f"bias={self.bias!r} is unknown; use 'penalised' or 'free'")
        if self.update not in ("auto", "newton", "em"):
            raise ValueError(f"update={self.update!r} is unknown; use 'auto', 'newton' or 'em'")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise ValueError(f"max_iter={self.max_iter!r}; needed a whole number of at least 1")
        return EMOptions(update=self.update, max_iter=self.max_iter, tol=self.tol)
