"""Machines for several classes with the multinomial probit, for scikit-learn."""

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em.binary import EMOptions, Status
from pcvm_pymc.core.em.chunked import ChunkedProblem
from pcvm_pymc.core.em.chunked_classes import fit_classes_chunked
from pcvm_pymc.core.em.mpcvm import (
    ClassProblem,
    ClassResult,
    ClassStart,
    fit_top_down,
    start_response,
)
from pcvm_pymc.core.em.rows import ArrayRows, Rows, chunk_rows, latent_in_blocks
from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up
from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces.centres import choose_rows, choose_share
from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix, width_grid
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import Labels, class_probabilities, log_class_probability
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, as_labels, as_seed, as_width
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.many_rows import (
    WIDTH_ROWS,
    check_chunk_parameters,
    for_dask,
    is_dask,
    rows_of_dask,
)
from pcvm_pymc.estimators.selection import class_width_scores

__all__ = ["MPCVMClassifier", "MRVMClassifier"]

type Bases = tuple[Array, Labels, NDArray[np.intp]]

_HYPERPRIORS = {
    "jeffreys": Hyperprior.jeffreys,
    "chen2009": Hyperprior.chen2009,
    "plug_in": Hyperprior.plug_in,
}
_ALGORITHMS = ("bottom-up", "top-down")
_WIDTH_METHODS = ("auto", "evidence", "validity")


class _MultinomialProbitMachine(ClassifierMixin, BaseEstimator):
    """What the machines share: the choice of a width, bases and signs, and predictions."""

    _rows: dict[str, str]  # of the family table, by algorithm

    @property
    def _system(self) -> System:
        return FAMILY[self._rows[self.algorithm]]

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
        self._check_parameters()
        in_chunks = self.memory_limit is not None or is_dask(X)
        check_chunk_parameters(self.memory_limit, self.kernel_dtype, in_chunks=in_chunks)
        if in_chunks and (self.algorithm != "top-down" or self.start != "default"):
            raise ValueError(
                f"algorithm={self.algorithm!r}, start={self.start!r}: rows in chunks (memory_limit, or "
                "Dask arrays) need algorithm='top-down' and start='default'"
            )
        rng = np.random.default_rng(as_seed(self.random_state))
        if is_dask(X):
            basis, result = self._fit_dask(X, y, rng)
        else:
            X, y = validate_data(self, X, y, dtype=float)
            check_classification_targets(y)
            label = self._labels(y, len(X))
            basis = self._centres(X, label)
            if in_chunks:
                result = self._fit_array(X, label, basis, rng)
            else:
                self.width_ = self._width(X, label, rng)
                result = self._fit_at(X, label, basis[:2], self.width_, rng)
        self._set_result(basis, result)
        if result.status is not Status.CONVERGED:
            warnings.warn(result.status.value, ConvergenceWarning, stacklevel=2)
        return self

    def _labels(self, y: NDArray[Any], n_obs: int) -> Labels:
        """Return the numbers of the rows' classes, and note the classes."""
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 3:
            two, self.classes_ = as_labels(y, n_obs)
            label = (two > 0).astype(np.int64)
        return label

    def _set_result(self, basis: Bases, result: ClassResult) -> None:
        centres, _, rows = basis
        kept = result.support
        self.support_ = rows[kept]
        self.relevance_vectors_ = centres[kept]
        self.weight_ = result.weight[kept].T
        self.bias_ = result.bias
        self.log_posterior_ = result.log_posterior
        self.n_iter_ = result.n_iter
        self.status_ = result.status

    def _fit_array(
        self, X: Array, label: Labels, basis: Bases, rng: np.random.Generator
    ) -> ClassResult:
        """Fit with the rows of an array in chunks."""
        n_jobs = effective_n_jobs(self.n_jobs)
        chunk = chunk_rows(self.memory_limit, len(basis[0]), X.shape[1], n_jobs, len(self.classes_))
        some = choose_share(label, WIDTH_ROWS, rng)
        self.width_ = self._width(X[some], label[some], rng)
        return self._fit_rows(ArrayRows(X, label, chunk, n_jobs), basis)

    def _fit_dask(self, X: Any, y: Any, rng: np.random.Generator) -> tuple[Bases, ClassResult]:
        """Fit with the rows of Dask arrays in chunks."""
        rows, self.classes_, some, label = rows_of_dask(
            X, y, self.basis, self.memory_limit, several=True
        )
        self.n_features_in_ = X.shape[1]
        centres, kind, _ = self._centres(some, label)
        few = choose_share(label, WIDTH_ROWS, rng)
        self.width_ = self._width(some[few], label[few], rng)
        basis = (centres, kind, np.full(len(centres), -1))
        return basis, self._fit_rows(rows, basis)

    def _fit_rows(self, rows: Rows, basis: Bases) -> ClassResult:
        """Fit from the top down with rows in chunks."""
        centres, kind, _ = basis
        problem = ChunkedProblem(
            centres=centres,
            sign=self._sign(kind),
            hyperprior=self._hyperprior,
            width=self.width_,
            kernel=self.kernel,
            single=self.kernel_dtype == "float32",
        )
        return fit_classes_chunked(
            rows,
            problem,
            len(self.classes_),
            has_bias=self._has_bias,
            shared=problem.sign is None,
            options=self._em_options,
        )

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the scores of the classes, shape (n_new, n_classes).

        For two classes their difference, shape (n_new,): positive where ``classes_[1]`` is likelier.
        """
        check_is_fitted(self)
        if is_dask(X):
            n_columns = None if len(self.classes_) == 2 else len(self.classes_)
            return for_dask(self.decision_function, X, float, n_columns)
        latent = self._latent(X)
        return latent[:, 1] - latent[:, 0] if len(self.classes_) == 2 else latent

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities (eq. 10), shape (n_new, n_classes), in the order of ``classes_``."""
        check_is_fitted(self)
        if is_dask(X):
            return for_dask(self.predict_proba, X, float, len(self.classes_))
        probability = class_probabilities(self._latent(X))
        return probability / probability.sum(axis=1, keepdims=True)  # of one but for rounding

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, shape (n_new,)."""
        check_is_fitted(self)
        if is_dask(X):
            return for_dask(self.predict, X, self.classes_.dtype)
        latent = self._latent(X)
        return self.classes_[latent.argmax(axis=1)]

    def _latent(self, X: ArrayLike) -> Array:
        X = validate_data(self, X, dtype=float, reset=False)
        return latent_in_blocks(
            X,
            self.relevance_vectors_,
            self.weight_.T,
            self.bias_,
            kernel=self.kernel,
            width=self.width_,
            n_jobs=effective_n_jobs(self.n_jobs),
        )

    def _centres(self, X: Array, label: Labels) -> Bases:
        """Return centres of the bases, their classes, and the rows that they are (-1 for none)."""
        if self.basis is None or isinstance(self.basis, Integral):
            n_basis = len(X) if self.basis is None else min(self.basis, len(X))
            rows = choose_rows(X, label, n_basis, random_state=0)
            return X[rows], label[rows], rows
        if not isinstance(self.basis, tuple) or len(self.basis) != 2:
            raise ValueError(
                f"basis={self.basis!r}; needed None, a number of rows to choose, or (centres, labels)"
            )
        points = as_features(self.basis[0], "basis", X.shape[1])
        kind = np.asarray(self.basis[1])
        if kind.shape != (len(points),) or not np.isin(kind, self.classes_).all():
            raise ValueError(
                f"the basis' labels are {kind!r}; needed one of {self.classes_.tolist()} for each centre"
            )
        return points, np.searchsorted(self.classes_, kind), np.full(len(points), -1)

    def _fit_at(
        self,
        X: Array,
        label: Labels,
        basis: tuple[Array, Labels],
        width: float,
        rng: np.random.Generator,
    ) -> ClassResult:
        """Fit at a width, the bases at centres of given classes."""
        centres, kind = basis
        n_classes = len(self.classes_)
        Phi = design_matrix(self.kernel, X, centres, width)
        sign = self._sign(kind)
        response = start_response(label, n_classes, rng if self.start == "random" else None)
        if self.algorithm == "bottom-up":
            problem = Problem(
                Phi,
                label,
                sign,
                self._hyperprior,
                MultinomialProbit(n_classes),
                bias="prior" if self._has_bias else "none",
                shared=sign is None,
            )
            options = BottomUpOptions(max_iter=self.max_iter, tol=self.tol or 1e-2)
            return fit_bottom_up(problem, response, options)
        whole = ClassProblem(
            Phi,
            label,
            n_classes,
            sign,
            self._hyperprior,
            has_bias=self._has_bias,
            shared=sign is None,
        )
        start = replace(ClassStart.default(whole), response=response)
        return fit_top_down(whole, start, self._em_options)

    @property
    def _has_bias(self) -> bool:
        return False

    @property
    def _hyperprior(self) -> Hyperprior:
        return Hyperprior.jeffreys()

    @property
    def _em_options(self) -> EMOptions:
        return EMOptions(max_iter=self.max_iter, tol=self.tol or 1e-4)

    def _width(self, X: Array, label: Labels, rng: np.random.Generator) -> float:
        """Return the given width, or the one of nine with the best score."""
        if self.width not in _WIDTH_METHODS:
            return as_width(self.width)
        widths = width_grid(X)
        if self.width != "auto":
            points, kind, _ = self._centres(X, label)
            scores = class_width_scores(
                X,
                label,
                points,
                self._sign(kind),
                method=self.width,
                widths=widths,
                kernel=self.kernel,
                hyperprior=self._hyperprior,
            )
        else:
            n_folds = min(self.cv, int(np.bincount(label).min()))
            if n_folds < 2:  # a class of a single point: nothing can be held out
                return float(np.median(widths))
            folds = StratifiedKFold(n_folds, shuffle=True, random_state=int(rng.integers(2**31)))
            scores = -self._held_out_loss(X, label, widths, folds, rng)
        self.widths_, self.width_scores_ = widths, scores
        return float(widths[scores.argmax()])

    def _held_out_loss(
        self,
        X: Array,
        label: Labels,
        widths: Array,
        folds: StratifiedKFold,
        rng: np.random.Generator,
    ) -> Array:
        """Return each width's cross-validated log loss, in nats per row."""
        loss = np.zeros(len(widths))
        for train, test in folds.split(X, label):
            centres, kind, _ = self._centres(X[train], label[train])
            for i, width in enumerate(widths):
                result = self._fit_at(X[train], label[train], (centres, kind), width, rng)
                kept = result.support
                Phi = design_matrix(self.kernel, X[test], centres[kept], width)
                latent = Phi @ result.weight[kept] + result.bias
                loss[i] -= log_class_probability(latent, label[test]).sum()
        return loss / len(X)

    def _sign(self, kind: Labels) -> Array | None:
        """Return the signs of the weights of bases of given classes, None without a sign rule."""
        signs = self._system.signs
        return None if signs is None else signs(kind, len(self.classes_))

    def _check_parameters(self) -> None:
        if self.algorithm not in _ALGORITHMS:
            raise ValueError(f"algorithm={self.algorithm!r} is unknown; use one of {_ALGORITHMS}")
        if self.width not in _WIDTH_METHODS and not isinstance(self.width, Real):
            raise ValueError(
                f"width={self.width!r}; needed a positive number, 'auto', 'evidence' or 'validity'"
            )
        if self.width == "validity" and self.kernel != "rbf":
            raise ValueError(f"width='validity' needs kernel='rbf'; found {self.kernel!r}")
        if self.start not in ("default", "random"):
            raise ValueError(f"start={self.start!r} is unknown; use 'default' or 'random'")
        for name, least in (("cv", 2), ("max_iter", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name}={value!r}; needed a whole number of at least {least}")
        if self.tol is not None and not (isinstance(self.tol, Real) and self.tol > 0):
            raise ValueError(f"tol={self.tol!r}; needed a positive number or None")


class MPCVMClassifier(_MultinomialProbitMachine):
    """Multi-class probabilistic classification vector machine: mPCVM1 and mPCVM2.

    A score for each class, each a sum of basis functions; the weight of a row's basis is positive in its own
    class and negative in the others; the class is that of the largest score plus normal noise (the
    multinomial probit).

    Parameters
    ----------
    algorithm : {"bottom-up", "top-down"}
        ``"bottom-up"``, mPCVM2, adds and deletes bases one at a time by the evidence of their precisions;
        ``"top-down"``, mPCVM1, is EM from all bases.
    kernel : "rbf" or callable
        ``exp(-||x - z||^2 / width^2)``, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "evidence" or "validity"
        Width of the basis functions, in the unit of X. ``"auto"`` takes, of nine, that of the smallest
        cross-validated log loss; ``"evidence"`` and ``"validity"`` the one with the best score of
        `select_width`, summed over the classes, each against the rest. They take a fit for each
        class and width. Standardise columns of different units first.
    basis : None, int or (array_like, array_like)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++ within
        each class; or at centres, shape (n_basis, n_features), with their classes.
    hyperprior : "jeffreys", "chen2009", "plug_in" or Hyperprior
        For ``"top-down"``: ``"jeffreys"`` is the paper's; ``"plug_in"`` is proper and keeps most weights.
    bias : bool, optional
        Whether each class has a bias. Default: from the top down only, as in the paper.
    start : {"default", "random"}
        First latent responses: 10.5 for the own class and 0.5 for others, or drawn around these.
    update : {"auto", "newton", "em", "clip"}
        How EM steps from the top down, see `EMOptions`; ``"clip"`` is the paper's own, which is not
        monotone.
    cv : int
        Folds of the inner cross-validation.
    max_iter : int
    tol : float, optional
        Largest change at which to stop: of a log precision from the bottom up, by default 1e-2, of a latent
        score from the top down, by default 1e-4.
    memory_limit : float, optional
        Bytes for what the fit holds beside the data, ``"top-down"`` only: the rows go through EM in
        chunks, see `PCVMClassifier`. Dask arrays are taken too. A width that is not a number is then
        chosen on at most 5000 rows.
    kernel_dtype : {"float64", "float32"}
        Precision of the basis functions within a chunk. Needs rows in chunks.
    n_jobs : int, optional
        Threads for rows in chunks, and for predictions; None is one, -1 all processors.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) with a weight that is not zero in any class.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for given centres.
    weight_ : ndarray, shape (n_classes, n_relevance)
    bias_ : ndarray, shape (n_classes,)
    width_ : float
    log_posterior_ : float
        Precisions integrated out; from the bottom up, given the precisions.
    n_iter_ : int
    status_ : Status
    widths_, width_scores_ : ndarray, shape (n_widths,)
        What the width was chosen among, and by: minus the log loss, or the log of evidence or validity.

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), corrected: see
    `pcvm_pymc.core.em.mpcvm` and `pcvm_pymc.core.evidence.bottom_up`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MPCVMClassifier(width=2.0).fit(X, y)
    >>> len(model.relevance_vectors_) < 15, bool(model.score(X, y) > 0.95)
    (True, True)
    """

    _rows = {"bottom-up": "mpcvm_bottom_up", "top-down": "mpcvm_top_down"}  # noqa: RUF012

    def __init__(
        self,
        *,
        algorithm: str = "bottom-up",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Any = None,
        hyperprior: Hyperprior | str = "jeffreys",
        bias: bool | None = None,
        start: str = "default",
        update: str = "auto",
        cv: int = 5,
        max_iter: int = 10_000,
        tol: float | None = None,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.hyperprior = hyperprior
        self.bias = bias
        self.start = start
        self.update = update
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.kernel_dtype = kernel_dtype
        self.n_jobs = n_jobs
        self.random_state = random_state

    @property
    def _has_bias(self) -> bool:
        return self.algorithm == "top-down" if self.bias is None else bool(self.bias)

    @property
    def _hyperprior(self) -> Hyperprior:
        if isinstance(self.hyperprior, Hyperprior):
            return self.hyperprior
        return _HYPERPRIORS[self.hyperprior]()

    @property
    def _em_options(self) -> EMOptions:
        if self.update == "clip":
            options = replace(EMOptions.chen2009(), max_iter=self.max_iter)
            return options if self.tol is None else replace(options, tol=self.tol)
        return EMOptions(update=self.update, max_iter=self.max_iter, tol=self.tol or 1e-4)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        known = isinstance(self.hyperprior, Hyperprior) or self.hyperprior in _HYPERPRIORS
        if not known:
            raise ValueError(
                f"hyperprior={self.hyperprior!r} is unknown; use one of {sorted(_HYPERPRIORS)} or a "
                "Hyperprior(c, d, e, f)"
            )
        if self.bias not in (None, True, False):
            raise ValueError(f"bias={self.bias!r}; needed True, False or None")
        EMOptions(update=self.update)


class MRVMClassifier(_MultinomialProbitMachine):
    """Multi-class relevance vector machine with the multinomial probit: mRVM1 and mRVM2.

    As `MPCVMClassifier`, without a sign rule and without biases.

    Parameters
    ----------
    algorithm : {"bottom-up", "top-down"}
        ``"bottom-up"``, mRVM1, adds and deletes bases one at a time, each with one precision for all classes;
        ``"top-down"``, mRVM2, is EM from all bases with a precision for each class, and drops a basis
        when it is out of all of them.
    kernel : "rbf", "linear-spline" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "evidence" or "validity"
        As for `MPCVMClassifier`; the validity is the relevance vector machine's.
    basis : None, int or (array_like, array_like)
        As for `MPCVMClassifier`.
    start : {"default", "random"}
        First latent responses: 10.5 for the own class and 0.5 for others, or drawn around these, as
        the authors do.
    cv : int
        Folds of the inner cross-validation.
    max_iter : int
    tol : float, optional
        As for `MPCVMClassifier`.
    memory_limit, kernel_dtype, n_jobs
        As for `MPCVMClassifier`.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_, relevance_vectors_, support_, weight_, bias_, width_, log_posterior_, n_iter_, status_
        As for `MPCVMClassifier`; the biases are zero.
    widths_, width_scores_ : ndarray, shape (n_widths,)

    References
    ----------
    T. Damoulas, Y. Ying, M. A. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and
    relevance vectors", ICMLA; I. Psorakis, T. Damoulas and M. A. Girolami (2010), "Multiclass
    relevance vector machines: sparsity and accuracy", IEEE Transactions on Neural Networks 21(10).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MRVMClassifier(width=2.0).fit(X, y).weight_.shape[0]
    3
    """

    _rows = {"bottom-up": "mrvm_bottom_up", "top-down": "mrvm_top_down"}  # noqa: RUF012

    def __init__(
        self,
        *,
        algorithm: str = "bottom-up",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Any = None,
        start: str = "default",
        cv: int = 5,
        max_iter: int = 10_000,
        tol: float | None = None,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.start = start
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.kernel_dtype = kernel_dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
