"""scikit-learn estimators over the same models."""

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.bases import (
    Kernel,
    design_matrix,
    median_distance,
)
from pcvm_pymc.core.em import EMOptions, EMResult, Problem, Status, fit_em, log_posterior
from pcvm_pymc.core.family import own_label
from pcvm_pymc.core.priors import Hyperprior
from pcvm_pymc.core.probit import Array, ndtr
from pcvm_pymc.core.validation import as_labels, as_seed, as_width
from pcvm_pymc.projection import Projection, Reference, project_reference
from pcvm_pymc.selection import problem_at, select_start, select_width

__all__ = ["PCVMClassifier"]

_HYPERPRIORS = {
    "default": Hyperprior.plug_in,
    "jeffreys": Hyperprior.jeffreys,
    "chen2009": Hyperprior.chen2009,
}


class PCVMClassifier(ClassifierMixin, BaseEstimator):
    """Probabilistic classification vector machine, fitted by EM to its posterior mode.

    Parameters
    ----------
    kernel : "rbf" or callable
        ``exp(-||x - z||^2 / width^2)``, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "evidence", "validity" or "em"
        Width of the basis functions, in the unit of X. ``"auto"`` chooses it inside the training data by
        cross-validated log loss, ``"evidence"`` and ``"validity"`` by the scores of `select_width`, ``"em"``
        by maximising the posterior within EM. Standardise columns of different units first, as in
        ``make_pipeline(StandardScaler(), PCVMClassifier())``.
    hyperprior : "default", "jeffreys", "chen2009" or Hyperprior
        ``"default"``, `Hyperprior.plug_in`, is proper: the most accurate, with most weights
        non-zero. ``"jeffreys"`` (the paper) and ``"chen2009"`` (its authors'
        program) are improper: few vectors, less accurate.
    estimation : {"em", "projection"}
        ``"em"`` keeps the posterior mode as it is. ``"projection"`` finds the submodel of few vectors
        that is nearest to it, see `project`: nearly as accurate under the default hyperprior, and sparse.
    n_vectors : "auto" or int
        Number of vectors at most, for ``estimation="projection"``. ``"auto"`` chooses it by cross-validated
        expected log predictive density.
    n_init : int
        Number of starts of EM, chosen among by cross-validated log loss: the default start, an RVM-like
        one, an SVM-like one, then random ones. The paper uses eight. It matters for improper hyperpriors.
    cv : int
        Folds of the inner cross-validation.
    update : {"auto", "newton", "em", "clip"}
        How EM steps, see `EMOptions`; ``"clip"`` with ``hyperprior="chen2009"`` is the authors' recipe.
    max_iter : int
    tol : float
        Largest change of a latent value at which EM stops.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Training rows whose weight is not zero.
    support_ : ndarray of int, shape (n_relevance,)
        Their row numbers.
    weight_ : ndarray, shape (n_relevance,)
        Their weights: positive for rows of ``classes_[1]``, negative for those of ``classes_[0]``.
    bias_ : float
    width_ : float
    hyperprior_ : Hyperprior
    log_posterior_ : float
        Of these weights and bias, precisions integrated out.
    n_iter_ : int
    status_ : Status
        How EM ended; an empty model predicts by its bias alone.
    width_selection_ : WidthSelection
        Scores of the candidates, where ``width`` is ``"auto"``, ``"evidence"`` or ``"validity"``.
    projection_ : Projection
        Path, scores and choice, where ``estimation="projection"``.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), 901-914.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = PCVMClassifier(random_state=0).fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    >>> model.predict([[2.0, 0.0]])
    array(['yes'], dtype='<U3')
    """

    def __init__(
        self,
        *,
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        hyperprior: Hyperprior | str = "default",
        estimation: str = "em",
        n_vectors: int | str = "auto",
        n_init: int = 1,
        cv: int = 5,
        update: str = "auto",
        max_iter: int = 10_000,
        tol: float = 1e-5,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.kernel = kernel
        self.width = width
        self.hyperprior = hyperprior
        self.estimation = estimation
        self.n_vectors = n_vectors
        self.n_init = n_init
        self.cv = cv
        self.update = update
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
            Labels of any type, two classes.

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        X, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        label, self.classes_ = as_labels(y, len(X))
        options = self._options()
        self.hyperprior_ = self._hyperprior()
        rng = np.random.default_rng(as_seed(self.random_state))
        width = self._width(X, label, options, rng)
        recipe = select_start(
            X,
            label,
            lambda rows, labels: self._problem(rows, labels, width),
            n_init=self.n_init,
            cv=self.cv,
            options=options,
            design=lambda rows, centres, at: design_matrix(self.kernel, rows, centres, at),
            rng=rng,
        )
        problem = self._problem(X, label, width)
        result = fit_em(problem, recipe(problem, rng), options)
        self._set_weights(X, result.weight, result.bias, result.width)
        self.log_posterior_ = result.log_posterior
        self.n_iter_ = result.n_iter
        self.status_ = result.status
        if self.estimation == "projection":
            self._project(X, label, result, options, rng)
        if result.status is not Status.CONVERGED:
            warnings.warn(f"EM: {result.status.value}", ConvergenceWarning, stacklevel=2)
        return self

    def _set_weights(self, X: Array, weight: Array, bias: float, width: float) -> None:
        self.support_ = np.flatnonzero(weight)
        self.relevance_vectors_ = X[self.support_]
        self.weight_ = weight[self.support_]
        self.bias_ = bias
        self.width_ = width

    def _project(
        self,
        X: Array,
        label: Array,
        dense: EMResult,
        options: EMOptions,
        rng: np.random.Generator,
    ) -> None:
        """Replace the dense mode by its projection."""
        reference = Reference(
            X=X,
            label=label,
            classes=self.classes_,
            sign=own_label(label),
            probability=ndtr(dense.latent),
            kernel=self.kernel,
            width=dense.width,
            hyperprior=self.hyperprior_,
        )
        size = self.n_vectors if self.n_vectors == "auto" else min(self.n_vectors, len(X))
        self._take(
            project_reference(
                reference, size=size, cv=self.cv, em_options=options, random_state=rng
            )
        )

    def _take(self, projection: Projection) -> None:
        """Take over weights and bias of a projection's chosen submodel."""
        reference, i = projection.reference, projection.index
        weight = projection.path.dense_weight(i, len(reference.X))
        self._set_weights(reference.X, weight, float(projection.path.bias[i]), reference.width)
        problem = self._problem(reference.X, reference.label, reference.width)
        latent = problem.Phi @ weight + self.bias_
        self.log_posterior_ = log_posterior(problem, weight, self.bias_, latent)
        self.projection_ = projection

    @classmethod
    def from_projection(cls, projection: Projection) -> Self:
        """Return a projection's chosen submodel as a fitted classifier.

        `n_iter_` is 0, since no EM was run here, and `status_` is ``CONVERGED``.
        """
        reference = projection.reference
        model = cls(
            kernel=reference.kernel,
            width=reference.width,
            hyperprior=reference.hyperprior,
            estimation="projection",
            n_vectors=projection.size,
        )
        model.classes_ = reference.classes
        model.n_features_in_ = reference.X.shape[1]
        model.hyperprior_ = reference.hyperprior
        model._take(projection)
        model.n_iter_, model.status_ = 0, Status.CONVERGED
        return model

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the latent function, shape (n_new,): positive where ``classes_[1]`` is likelier."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        Phi = design_matrix(self.kernel, X, self.relevance_vectors_, self.width_)
        return Phi @ self.weight_ + self.bias_

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, 2), in the order of ``classes_``."""
        latent = self.decision_function(X)
        return np.column_stack([ndtr(-latent), ndtr(latent)])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likelier class of each row, shape (n_new,)."""
        latent = self.decision_function(X)
        return self.classes_[(latent > 0).astype(int)]

    def _options(self) -> EMOptions:
        """Check the parameters that are not data, and return EM's options."""
        if self.estimation not in ("em", "projection"):
            raise ValueError(f"estimation={self.estimation!r} is unknown; use 'em' or 'projection'")
        for name, least in (("n_init", 1), ("cv", 2), ("max_iter", 1), ("n_vectors", 1)):
            value = getattr(self, name)
            if name == "n_vectors" and value == "auto":
                continue
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name}={value!r}; needed a whole number of at least {least}")
        if self.update == "clip":
            options = replace(EMOptions.chen2009(), max_iter=self.max_iter)
            return replace(options, tol=max(options.tol, self.tol))
        return EMOptions(update=self.update, max_iter=self.max_iter, tol=self.tol)

    def _hyperprior(self) -> Hyperprior:
        if isinstance(self.hyperprior, Hyperprior):
            return self.hyperprior
        if self.hyperprior in _HYPERPRIORS:
            return _HYPERPRIORS[self.hyperprior]()
        raise ValueError(
            f"hyperprior={self.hyperprior!r} is unknown; use one of {sorted(_HYPERPRIORS)} or a "
            "Hyperprior(c, d, e, f)"
        )

    def _width(self, X: Array, label: Array, options: EMOptions, rng: np.random.Generator) -> float:
        """Return the width to fit with, or at which EM starts to move it."""
        if self.width in ("auto", "evidence", "validity"):
            self.width_selection_ = select_width(
                X,
                label,
                hyperprior=self.hyperprior_,
                kernel=self.kernel,
                cv=self.cv,
                method="cv" if self.width == "auto" else self.width,
                options=options,
                random_state=rng,
            )
            return self.width_selection_.width
        if self.width == "em":
            if self.kernel != "rbf":
                raise ValueError(f"width='em' needs kernel='rbf'; found {self.kernel!r}")
            return median_distance(X)
        if not isinstance(self.width, Real):
            raise ValueError(
                f"width={self.width!r}; needed a positive number, 'auto', 'evidence', 'validity' or 'em'"
            )
        return as_width(self.width)

    def _problem(self, X: Array, label: Array, width: float) -> Problem:
        return problem_at(
            X, label, self.hyperprior_, width, kernel=self.kernel, free_width=self.width == "em"
        )

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
