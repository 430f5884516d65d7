"""scikit-learn estimators over the same models."""

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em.binary import EMOptions, EMResult, Problem, Status, fit_em, log_posterior
from pcvm_pymc.core.em.chunked import ChunkedProblem, fit_chunked
from pcvm_pymc.core.em.rows import ArrayRows, Rows, chunk_rows, latent_in_blocks
from pcvm_pymc.core.pieces.centres import Basis, Centres, Index, as_centres, choose_share
from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix, median_distance
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, ndtr
from pcvm_pymc.core.pieces.validation import as_labels, as_seed, as_width
from pcvm_pymc.estimators.many_rows import (
    WIDTH_ROWS,
    check_chunk_parameters,
    for_dask,
    is_dask,
    rows_of_dask,
)
from pcvm_pymc.estimators.projection import Projection, Reference, project_reference
from pcvm_pymc.estimators.selection import problem_at, select_start, select_width

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
    basis : None, int or (array_like, array_like)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++ within
        each class, see `choose_basis`; or at centres, shape (n_basis, n_features), with the signs of
        their weights.
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
    memory_limit : float, optional
        Bytes for what the fit holds beside the data. With a limit the rows go through EM in chunks: the
        basis functions are never held whole, and are computed anew in every iteration. For many rows and few
        bases. A width that is not a number is then chosen on at most 5000 rows.
    kernel_dtype : {"float64", "float32"}
        Precision of the basis functions within a chunk; ``"float32"`` is about twice as fast, its
        probabilities agree to about 1e-4. Needs rows in chunks.
    n_jobs : int, optional
        Threads for rows in chunks, and for predictions; None is one, -1 all processors.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) whose weight is not zero.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
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

    Notes
    -----
    `fit` accepts Dask arrays (the extra ``pcvm-pymc[dask]``): the rows stay where Dask keeps them, in chunks,
    and only sums of the size of the basis travel. Predictions for a Dask array are Dask arrays.

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
        basis: Basis = None,
        hyperprior: Hyperprior | str = "default",
        estimation: str = "em",
        n_vectors: int | str = "auto",
        n_init: int = 1,
        cv: int = 5,
        update: str = "auto",
        max_iter: int = 10_000,
        tol: float = 1e-5,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.hyperprior = hyperprior
        self.estimation = estimation
        self.n_vectors = n_vectors
        self.n_init = n_init
        self.cv = cv
        self.update = update
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.kernel_dtype = kernel_dtype
        self.n_jobs = n_jobs
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
        options = self._options()
        check_chunk_parameters(
            self.memory_limit,
            self.kernel_dtype,
            in_chunks=self.memory_limit is not None or is_dask(X),
        )
        self.hyperprior_ = self._hyperprior()
        rng = np.random.default_rng(as_seed(self.random_state))
        if is_dask(X):
            result, centres = self._fit_dask(X, y, options, rng)
        else:
            X, y = validate_data(self, X, y, dtype=float)
            check_classification_targets(y)
            label, self.classes_ = as_labels(y, len(X))
            centres = self._centres(X, label)
            fit = self._fit_whole if self.memory_limit is None else self._fit_array
            result = fit(X, label, centres, options, rng)
        self._set_weights(centres, result.weight, result.bias, result.width)
        self.log_posterior_ = result.log_posterior
        self.n_iter_ = result.n_iter
        self.status_ = result.status
        if self.estimation == "projection":
            self._project(X, label, centres, result, options=options, rng=rng)
        if result.status is not Status.CONVERGED:
            warnings.warn(f"EM: {result.status.value}", ConvergenceWarning, stacklevel=2)
        return self

    def _centres(self, X: Array, label: Array) -> Centres:
        return as_centres(self.basis, X, label)

    def _fit_whole(
        self,
        X: Array,
        label: Array,
        centres: Centres,
        options: EMOptions,
        rng: np.random.Generator,
    ) -> EMResult:
        """Fit with the basis functions of all rows in memory."""
        width = self._width(X, label, options, rng)

        def design(test: Index, train: Index, at: float) -> Array:
            columns = centres.columns_of(train)
            return design_matrix(self.kernel, X[test], centres.points[columns], at)

        recipe = select_start(
            X,
            label,
            lambda train: self._problem(X, label, centres, width, rows=train),
            n_init=self.n_init,
            cv=self.cv,
            options=options,
            design=design,
            rng=rng,
        )
        problem = self._problem(X, label, centres, width)
        return fit_em(problem, recipe(problem, rng), options)

    def _fit_array(
        self,
        X: Array,
        label: Array,
        centres: Centres,
        options: EMOptions,
        rng: np.random.Generator,
    ) -> EMResult:
        """Fit with the rows of an array in chunks."""
        n_jobs = effective_n_jobs(self.n_jobs)
        chunk = chunk_rows(self.memory_limit, len(centres), X.shape[1], n_jobs)
        some = choose_share(label, WIDTH_ROWS, rng)
        return self._fit_rows(
            ArrayRows(X, label, chunk, n_jobs), centres, (X[some], label[some]), options, rng
        )

    def _fit_dask(
        self, X: Any, y: Any, options: EMOptions, rng: np.random.Generator
    ) -> tuple[EMResult, Centres]:
        """Fit with the rows of Dask arrays in chunks."""
        rows, self.classes_, some, label = rows_of_dask(X, y, self.basis, self.memory_limit)
        self.n_features_in_ = X.shape[1]
        centres = self._centres(some, label)
        centres = replace(centres, rows=np.full(len(centres), -1))
        few = choose_share(label, WIDTH_ROWS, rng)
        result = self._fit_rows(rows, centres, (some[few], label[few]), options, rng)
        return result, centres

    def _fit_rows(
        self,
        rows: Rows,
        centres: Centres,
        some: tuple[Array, Array],
        options: EMOptions,
        rng: np.random.Generator,
    ) -> EMResult:
        """Fit with rows in chunks; `some` of them, with their labels, are for the choice of a width."""
        if self.width == "em" or self.n_init != 1 or self.estimation != "em":
            raise ValueError(
                f"width={self.width!r}, n_init={self.n_init}, estimation={self.estimation!r}: rows in chunks "
                "(memory_limit, or Dask arrays) need a width that is not 'em', n_init=1 and estimation='em'"
            )
        problem = ChunkedProblem(
            centres=centres.points,
            sign=centres.sign,
            hyperprior=self.hyperprior_,
            width=self._width(*some, options, rng),
            kernel=self.kernel,
            majority=1.0 if some[1].sum() >= 0 else -1.0,
            single=self.kernel_dtype == "float32",
        )
        return fit_chunked(rows, problem, options)

    def _set_weights(self, centres: Centres, weight: Array, bias: float, width: float) -> None:
        kept = np.flatnonzero(weight)
        self.support_ = centres.rows[kept]
        self.relevance_vectors_ = centres.points[kept]
        self.weight_ = weight[kept]
        self.bias_ = bias
        self.width_ = width

    def _project(
        self,
        X: Array,
        label: Array,
        centres: Centres,
        dense: EMResult,
        *,
        options: EMOptions,
        rng: np.random.Generator,
    ) -> None:
        """Replace the dense mode by its projection."""
        reference = Reference(
            X=X,
            label=label,
            classes=self.classes_,
            centres=centres,
            probability=ndtr(dense.latent),
            kernel=self.kernel,
            width=dense.width,
            hyperprior=self.hyperprior_,
        )
        size = self.n_vectors if self.n_vectors == "auto" else min(self.n_vectors, len(centres))
        self._take(
            project_reference(
                reference, size=size, cv=self.cv, em_options=options, random_state=rng
            )
        )

    def _take(self, projection: Projection) -> None:
        """Take over weights and bias of a projection's chosen submodel."""
        reference, i = projection.reference, projection.index
        centres = reference.centres
        weight = projection.path.dense_weight(i, len(centres))
        self._set_weights(centres, weight, float(projection.path.bias[i]), reference.width)
        problem = self._problem(reference.X, reference.label, centres, reference.width)
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
            basis=_basis_of(reference),
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
        if is_dask(X):
            return for_dask(self.decision_function, X, float)
        X = validate_data(self, X, dtype=float, reset=False)
        return latent_in_blocks(
            X,
            self.relevance_vectors_,
            self.weight_,
            self.bias_,
            kernel=self.kernel,
            width=self.width_,
            n_jobs=effective_n_jobs(self.n_jobs),
        )

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, 2), in the order of ``classes_``."""
        if is_dask(X):
            return for_dask(self.predict_proba, X, float, 2)
        latent = self.decision_function(X)
        return np.column_stack([ndtr(-latent), ndtr(latent)])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likelier class of each row, shape (n_new,)."""
        if is_dask(X):
            return for_dask(self.predict, X, self.classes_.dtype)
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
                basis=min(self.basis, len(X)) if isinstance(self.basis, Integral) else self.basis,
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

    def _problem(
        self,
        X: Array,
        label: Array,
        centres: Centres,
        width: float,
        rows: Index | None = None,
    ) -> Problem:
        """Return the problem, or that of some rows and of the bases that remain with them."""
        if rows is not None:
            X, label, kept = X[rows], label[rows], centres.columns_of(rows)
            centres = Centres(centres.points[kept], centres.sign[kept], centres.rows[kept])
        return problem_at(
            X,
            label,
            self.hyperprior_,
            width,
            centres=centres,
            kernel=self.kernel,
            free_width=self.width == "em",
        )

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _basis_of(reference: Reference) -> Basis:
    """Return the argument ``basis=`` that stands for a reference's centres."""
    centres = reference.centres
    if np.array_equal(centres.points, reference.X):
        return None
    return centres.points, centres.sign
