"""scikit-learn estimators of the relevance vector machine."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils import gen_batches
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em.binary import Status
from pcvm_pymc.core.em.rows import chunk_rows, row_blocks
from pcvm_pymc.core.evidence import (
    METHODS,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    augmentation,
    fit_rvm,
    predictive_moments,
    rotated_problem,
    star_moments,
)
from pcvm_pymc.core.pieces.centres import Basis, Centres, as_centres
from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix, width_grid
from pcvm_pymc.core.pieces.likelihoods import LINKS
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_labels, as_seed, as_width
from pcvm_pymc.core.validity import rvm_validity
from pcvm_pymc.estimators.many_rows import WIDTH_ROWS, check_chunk_parameters

__all__ = ["RVMClassifier", "RVMRegressor"]

_ROWS = 1024  # predicted at a time


_RANKING_TOLERANCE = 1e-3  # a fit that only ranks a width need not be run to its last digit


class _RelevanceVectorMachine(BaseEstimator):
    """What classifier and regressor share: the choice of the width, and a fit of maximal evidence."""

    def _fit_evidence(
        self, X: Array, y: NDArray[Any], problem_at: Callable[[Array, float], EvidenceProblem]
    ) -> EvidenceProblem:
        """Choose the width and fit; return the problem at the width chosen.

        `problem_at` gives the problem with centres at a width, `y` is what folds are scored by.
        """
        self._centres = self._all_centres(X)
        widths = self._widths(X)
        scores = self._scores(X, y, problem_at, widths) if len(widths) > 1 else np.zeros(1)
        self.width_ = float(widths[scores.argmax()])
        if len(widths) > 1:
            self.widths_, self.width_scores_ = widths, scores
        problem = problem_at(self._centres.points, self.width_)
        self._set_fit(fit_rvm(problem, method=self.method, options=self._options()))
        return problem

    def _all_centres(self, X: Array) -> Centres:
        basis = min(self.basis, len(X)) if isinstance(self.basis, Integral) else self.basis
        return as_centres(basis, X, None)

    def _scores(
        self,
        X: Array,
        y: NDArray[Any],
        problem_at: Callable[[Array, float], EvidenceProblem],
        widths: Array,
    ) -> Array:
        """Return each width's held-out mean log density, evidence or validity; more is better."""
        folds = self._folds(y) if self.width == "auto" else None
        if folds is None:
            points = self._centres.points
            return np.array(
                [self._score_of_all(X, problem_at(points, width), width) for width in widths]
            )
        candidate = clone(self).set_params(tol=max(self.tol, _RANKING_TOLERANCE))
        with warnings.catch_warnings():  # about fits that are thrown away
            warnings.simplefilter("ignore", ConvergenceWarning)
            return np.array(
                [
                    cross_val_score(
                        candidate.set_params(width=width), X, y, cv=folds, scoring=_log_density
                    ).mean()
                    for width in widths
                ]
            )

    def _score_of_all(self, X: Array, problem: EvidenceProblem, width: float) -> float:
        """Return the log evidence of a fit to all rows, or the log validity of its kernels."""
        options = replace(self._options(), tol=max(self.tol, _RANKING_TOLERANCE))
        result = fit_rvm(problem, method=self.method, options=options)
        if self.width == "validity":
            return rvm_validity(
                X, problem, result, width=width, centres=self._centres.points
            ).log_validity
        return result.log_evidence

    def _folds(self, y: NDArray[Any]) -> KFold | StratifiedKFold | None:
        """Return folds for the targets; None where there are too few rows to hold any out."""
        n_folds = min(self.cv, len(y))
        if isinstance(self, ClassifierMixin):
            n_folds = min(n_folds, int(np.unique(y, return_counts=True)[1].min()))
        if n_folds < 2:
            return None
        seed = int(np.random.default_rng(as_seed(self.random_state)).integers(2**31))
        kind = StratifiedKFold if isinstance(self, ClassifierMixin) else KFold
        return kind(n_folds, shuffle=True, random_state=seed)

    def _set_fit(self, result: EvidenceResult) -> None:
        self._result = result
        self.support_ = self._centres.rows[result.active]
        self.relevance_vectors_ = self._centres.points[result.active]
        self.weight_ = result.weight[result.active]
        self.bias_ = result.bias
        self.covariance_ = result.covariance
        self.log_evidence_ = result.log_evidence
        self.n_iter_ = result.n_iter
        self.status_ = result.status
        if result.status is Status.ITERATION_LIMIT:
            warnings.warn(f"evidence: {result.status.value}", ConvergenceWarning, stacklevel=3)

    def _check_parameters(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r} is unknown; use one of {tuple(METHODS)}")
        if self.width not in ("auto", "evidence", "validity") and not isinstance(self.width, Real):
            raise ValueError(
                f"width={self.width!r}; needed a positive number, 'auto', 'evidence' or 'validity'"
            )
        if self.width == "validity" and self.kernel != "rbf":
            raise ValueError(f"width='validity' needs kernel='rbf'; found {self.kernel!r}")
        if not isinstance(self.cv, Integral) or self.cv < 2:
            raise ValueError(f"cv={self.cv!r}; needed a whole number of at least 2")
        self._options()

    def _widths(self, X: Array) -> Array:
        """Return the candidates: a grid, the given one, or any for a kernel that has no width."""
        if self.kernel == "linear-spline":
            return np.ones(1)
        if isinstance(self.width, str):
            return width_grid(X)
        return np.array([as_width(self.width)])

    def _options(self) -> EvidenceOptions:
        return EvidenceOptions(max_iter=self.max_iter, tol=self.tol)

    def _design(self, X: Array, centres: Array, width: float) -> Array:
        return design_matrix(self.kernel, X, centres, width)

    def _moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of the latent function at new rows."""
        return predictive_moments(
            self._design(X, self.relevance_vectors_, self.width_), self._result
        )


def _log_density(model: "RVMClassifier | RVMRegressor", X: Array, y: NDArray[Any]) -> float:
    """Return the mean log predictive density of held-out labels or targets (a scorer)."""
    if isinstance(model, RVMRegressor):
        mean, std = model.predict(X, return_std=True)
        return float(norm.logpdf(y, mean, std).mean())
    return -float(log_loss(y, model.predict_proba(X), labels=model.classes_))


class RVMClassifier(ClassifierMixin, _RelevanceVectorMachine):
    """Relevance vector machine for two or more classes, fitted by maximising its evidence.

    Several classes are told one from the rest, and the probabilities normalised; `MRVMClassifier` has
    them all in one model.

    Parameters
    ----------
    kernel : "rbf", "linear-spline" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``. It need
        not be positive definite.
    width : float, "auto", "evidence" or "validity"
        Width of the basis functions, in the unit of X. Of nine, ``"auto"`` takes that of the highest
        cross-validated log density, ``"evidence"`` that of the highest evidence, which is quicker but
        favours narrow bases, ``"validity"`` that of the highest kernel validity (Kropotov et al. 2006,
        the RBF only), which penalises them. Several classes have one each. Standardise columns of
        different units first.
    basis : None, int or array_like, shape (n_basis, n_features)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++; or at
        given centres.
    link : {"logit", "probit"}
    method : {"sequential", "batch"}
        One basis at a time, or all downwards; the former is faster and sparser.
    cv : int
        Folds of the inner cross-validation.
    max_iter : int
    tol : float
        Log evidence to be gained at which to stop.
    random_state : int, numpy.random.Generator or None
        For the folds.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) with a weight that is not zero (in any of several machines).
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Posterior mode; for several classes (n_classes, n_relevance).
    bias_, width_, log_evidence_, n_iter_, status_
        For several classes, one for each, but for the evidence (the sum) and the iterations (the
        most).
    covariance_ : ndarray, shape (n_relevance + 1, n_relevance + 1)
        Of the weights and, last, the bias (Laplace's approximation); two classes only.
    widths_, width_scores_ : ndarray, shape (n_widths,)
        What the width was chosen among, and by; two classes only.
    machines_ : list of RVMClassifier
        One for each class against the rest; itself for two classes.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse
    Bayesian models", AISTATS.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = RVMClassifier().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    >>> model.predict([[2.0, 0.0]])
    array(['yes'], dtype='<U3')
    """

    def __init__(
        self,
        *,
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Basis = None,
        link: str = "logit",
        method: str = "sequential",
        cv: int = 5,
        max_iter: int = 10_000,
        tol: float = 1e-4,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.link = link
        self.method = method
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

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
        if self.link not in LINKS:
            raise ValueError(f"link={self.link!r} is unknown; use one of {tuple(LINKS)}")
        self._check_parameters()
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            self._fit_one_vs_rest(X, y)
        else:
            label, self.classes_ = as_labels(y, len(X))
            self._fit_evidence(
                X,
                y,
                lambda centres, width: EvidenceProblem(
                    self._design(X, centres, width), label, self.link
                ),
            )
            self.machines_ = [self]
        return self

    def _fit_one_vs_rest(self, X: Array, y: NDArray[Any]) -> None:
        self._all = OneVsRestClassifier(clone(self)).fit(X, y)
        self.machines_ = self._all.estimators_
        active = [each._result.active for each in self.machines_]
        kept = np.unique(np.concatenate(active))
        centres = self.machines_[0]._centres  # those of all of them
        self.support_, self.relevance_vectors_ = centres.rows[kept], centres.points[kept]
        self.weight_ = np.zeros((len(self.machines_), len(kept)))
        for row, each, own in zip(self.weight_, self.machines_, active, strict=True):
            row[np.searchsorted(kept, own)] = each.weight_
        self.bias_ = np.array([each.bias_ for each in self.machines_])
        self.width_ = np.array([each.width_ for each in self.machines_])
        self.log_evidence_ = sum(each.log_evidence_ for each in self.machines_)
        self.n_iter_ = max(each.n_iter_ for each in self.machines_)
        self.status_ = [each.status_ for each in self.machines_]

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the latent function, shape (n_new,), or (n_new, n_classes) for several classes.

        Its posterior mean, moved towards zero by its variance such that the link gives the mean
        probability (exactly for the probit, by MacKay's approximation for the logit).
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        if len(self.classes_) > 2:
            return self._all.decision_function(X)
        return LINKS[self.link].moderated(*self._moments(X))

    def latent_moments(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent function, shape (n_new,) each.

        For several classes (n_new, n_classes) each.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        if len(self.classes_) == 2:
            return self._moments(X)
        mean, variance = zip(*(each.latent_moments(X) for each in self.machines_), strict=True)
        return np.column_stack(mean), np.column_stack(variance)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities, shape (n_new, n_classes), in the order of ``classes_``."""
        latent = self.decision_function(X)
        inverse_link = LINKS[self.link].probability
        if latent.ndim == 1:
            return np.column_stack([inverse_link(-latent), inverse_link(latent)])
        each = np.maximum(inverse_link(latent), np.finfo(float).tiny)
        return each / each.sum(axis=1, keepdims=True)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, shape (n_new,)."""
        latent = self.decision_function(X)
        if latent.ndim == 1:
            return self.classes_[(latent > 0).astype(int)]
        return self.classes_[latent.argmax(axis=1)]


class RVMRegressor(RegressorMixin, _RelevanceVectorMachine):
    """Relevance vector machine for regression, fitted by maximising its evidence.

    Parameters
    ----------
    kernel : "rbf", "linear-spline" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``. It need
        not be positive definite.
    width : float, "auto", "evidence" or "validity"
        Width of the basis functions, in the unit of X. Of nine, ``"auto"`` takes that of the highest
        cross-validated log density, ``"evidence"`` that of the highest evidence, which is quicker but
        favours narrow bases, ``"validity"`` that of the highest kernel validity (Kropotov et al. 2006,
        the RBF only), which penalises them. Standardise columns of different units first.
    basis : None, int or array_like, shape (n_basis, n_features)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++; or at
        given centres.
    star : bool
        Predict as RVM*, with one more basis on each new row: the variance grows away from the data,
        where the plain machine's falls back to the noise. The training rows are kept for it.
    noise : float, optional
        Known standard deviation of the targets; None estimates it.
    noise_starts : tuple of float
        Where the noise starts, as multiples of the targets' standard deviation; the best evidence
        wins. ``(0.1, 0.3, 0.7)`` is the careful choice.
    method : {"sequential", "batch"}
        One basis at a time, or all downwards; the former is faster and sparser.
    cv : int
        Folds of the inner cross-validation.
    max_iter : int
    tol : float
        Log evidence to be gained at which to stop.
    memory_limit : float, optional
        Bytes for what the fit holds beside the data. With a limit the rows go through one chunk after the
        other, and the evidence is that of all of them; for many rows and few bases, without `star`. A
        width that is not a number is then chosen on at most 5000 rows.
    random_state : int, numpy.random.Generator or None
        For the folds.

    Attributes
    ----------
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) with a weight that is not zero.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Posterior mean.
    bias_, width_, noise_, log_evidence_ : float
    covariance_ : ndarray, shape (n_relevance + 1, n_relevance + 1)
        Of the weights and, last, the bias.
    n_iter_ : int
    status_ : Status
    widths_, width_scores_ : ndarray, shape (n_widths,)
        What the width was chosen among, and by.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; C. E. Rasmussen and J. Quinonero-Candela (2005), "Healing the relevance vector machine
    through augmentation", ICML, 689-696.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-5, 5, 40)[:, None]
    >>> model = RVMRegressor(star=True, width=1.0).fit(x, np.sinc(x[:, 0]))
    >>> mean, std = model.predict([[0.0], [50.0]], return_std=True)
    >>> bool(std[1] > 10 * std[0])
    True
    """

    def __init__(
        self,
        *,
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Basis = None,
        star: bool = False,
        noise: float | None = None,
        noise_starts: tuple[float, ...] = (0.3,),
        method: str = "sequential",
        cv: int = 5,
        max_iter: int = 10_000,
        tol: float = 1e-4,
        memory_limit: float | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.kernel = kernel
        self.width = width
        self.basis = basis
        self.star = star
        self.noise = noise
        self.noise_starts = noise_starts
        self.method = method
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the regressor.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        X, y = validate_data(self, X, y, dtype=float, y_numeric=True)
        y = np.asarray(y, dtype=float)
        self._check_parameters()
        check_chunk_parameters(self.memory_limit)
        if self.memory_limit is not None:
            return self._fit_in_chunks(X, y)
        problem = self._fit_evidence(
            X,
            y,
            lambda centres, width: EvidenceProblem(
                self._design(X, centres, width), y, noise=self.noise
            ),
        )
        self.noise_ = self._result.noise
        self._augmentation = augmentation(problem, self._result) if self.star else None
        self._rows = X if self.star else None
        return self

    def _fit_in_chunks(self, X: Array, y: Array) -> Self:
        """Fit to the triangular factor of all rows, which comes from one chunk after the other."""
        if self.star:
            raise ValueError(
                "star=True keeps all training rows; needed star=False with a memory_limit"
            )
        self._centres = self._all_centres(X)
        points = self._centres.points
        # the factor, a chunk below it, and what LAPACK makes of both
        chunk = chunk_rows(self.memory_limit / 3, len(points) + 2, X.shape[1])
        widths = self._widths(X)
        self.width_ = float(widths[0]) if len(widths) == 1 else self._width_of_some(X, y)
        blocks = (
            (self._design(X[rows], points, self.width_), y[rows])
            for rows in row_blocks(len(X), chunk)
        )
        problem = rotated_problem(blocks, noise=self.noise)
        self._set_fit(fit_rvm(problem, method=self.method, options=self._options()))
        self.noise_ = self._result.noise
        self._augmentation = self._rows = None
        return self

    def _width_of_some(self, X: Array, y: Array) -> float:
        """Return the width that rows drawn at random choose, and note what it was chosen by."""
        rng = np.random.default_rng(as_seed(self.random_state))
        some = np.sort(rng.choice(len(X), min(len(X), WIDTH_ROWS), replace=False))
        few = clone(self).set_params(memory_limit=None).fit(X[some], y[some])
        self.widths_, self.width_scores_ = few.widths_, few.width_scores_
        return few.width_

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the mean of new targets and, if asked, their standard deviation, noise included.

        Parameters
        ----------
        X : array_like, shape (n_new, n_features)
        return_std : bool

        Returns
        -------
        mean : ndarray, shape (n_new,)
        std : ndarray, shape (n_new,)
            With ``return_std`` only.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        moments = [self._some_moments(X[rows]) for rows in gen_batches(len(X), _ROWS)]
        mean, variance = (np.concatenate(each) for each in zip(*moments, strict=True))
        return (mean, np.sqrt(variance + self.noise_**2)) if return_std else mean

    def _options(self) -> EvidenceOptions:
        return EvidenceOptions(
            max_iter=self.max_iter, tol=self.tol, noise_starts=tuple(self.noise_starts)
        )

    def _some_moments(self, X: Array) -> tuple[Array, Array]:
        if self._augmentation is None:
            return self._moments(X)
        return star_moments(
            self._design(X, self.relevance_vectors_, self.width_),
            self._design(self._rows, X, self.width_),
            np.diag(self._design(X, X, self.width_)),
            self._result,
            self._augmentation,
        )
