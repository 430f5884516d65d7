"""scikit-learn estimators of the relevance vector machine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.base import RegressorMixin, clone
from sklearn.utils import gen_batches
from sklearn.utils.validation import validate_data

from pcvm_pymc.core.em.rows import chunk_rows, row_blocks
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    augmentation,
    rotated_problem,
    star_moments,
)
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import CentresLike, choose_share
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, ScaleLikelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, as_seed, as_targets, check_flag, check_real
from pcvm_pymc.estimators.base import CV_EFFECT, WIDTH_EFFECT
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.documented import of_rows
from pcvm_pymc.estimators.em_classifier import WIDTH_ROWS
from pcvm_pymc.estimators.intervals import LatentNormal, of_machines
from pcvm_pymc.estimators.parameters import Conditional
from pcvm_pymc.estimators.relevance import RelevanceVectorMachine

__all__ = ["RVMClassifier", "RVMRegressor"]

_ROWS = 1024  # predicted at a time


class RVMClassifier(KernelClassifier, RelevanceVectorMachine):
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
    link : {"logit", "probit"} or Likelihood
        The likelihood.
    method : {"sequential", "batch", "random"}
        One basis at a time, or all downwards; the former is faster and sparser. Both end at a local
        maximum of the evidence, in which no single change gains, and neither always at the higher one.
        ``"random"`` draws the one basis among those that gain (Chmielewski-Anders et al. 2019).
    cv : int
        Folds of the inner cross-validation, for ``width="auto"``.
    max_iter : int
        Most changes of the active set, or sweeps; a fit that needs more warns.
    tol : float
        Log evidence to be gained at which to stop.
    random_state : int, numpy.random.Generator or None
        For the folds, and ``method="random"``.
    memory_limit : float, optional
        Bytes for basis functions. With a limit they are computed when they are needed, some rows and columns
        at a time, and only those of the vectors and of 64 candidates are held (those of the vectors beside
        the limit): for many rows, all of which may be candidates; ``"sequential"`` only. RBFs of few features
        that a few hundred of them span to rounding are looked at by factors, in half of the limit. A width
        that is not a number is then chosen on at most 5000 rows.
    class_weight : dict, "balanced" or None
        As for `PCVMClassifier`.

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
        The widths that were tried, and what they were chosen by; two classes only. With ``"auto"`` the mean
        held-out log density of the folds; a width that is behind the best, or like it, is
        refitted no more (its score: the best's, less that difference), and none beyond it is tried.
    machines_ : list of RVMClassifier
        One for each class against the rest; itself for two classes.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244, eqs. 25-27; M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for
    sparse Bayesian models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 11-15, corrected: see
    `pcvm_pymc.core.evidence`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = RVMClassifier().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    >>> model.predict([[2.0, 0.0]])
    array(['yes'], dtype='<U3')
    """

    _system = FAMILY["rvm_classification"]
    _argument = "link"

    def __init__(
        self,
        *,
        link: str = "logit",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: CentresLike = None,
        method: str = "sequential",
        cv: int = 5,
        max_iter: int = 100_000,
        tol: float = 1e-4,
        random_state: int | np.random.Generator | None = None,
        memory_limit: float | None = None,
        class_weight: Any = None,
    ) -> None:
        self._keep(locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.memory_limit is not None:
            self._check_sequential()

    def _fit(self, X: Any, y: Any) -> None:
        X, number = self._arrays(X, y)
        if len(self.classes_) > 2:
            self._fit_against_rest(X, number)
        else:
            self._fit_evidence(X, number)
            self.machines_ = [self]

    def _target(self, y: NDArray[Any]) -> Array:
        return 2.0 * y - 1.0

    def _share(self, y: NDArray[Any], rng: np.random.Generator) -> NDArray[np.intp]:
        return choose_share(y, WIDTH_ROWS, rng)

    def _fit_against_rest(self, X: Array, number: NDArray[Any]) -> None:
        """Fit a machine for each class against the rest, each of a width of its own."""
        single = clone(self).set_params(class_weight=None)  # in the weights of the rows
        weights = self._weights_of(slice(None))
        machines = [clone(single).fit(X, number == c, **weights) for c in range(len(self.classes_))]
        centres, active = self._bases(X), [each._result_.active for each in machines]
        kept = np.unique(np.concatenate(active))
        self.support_, self.relevance_vectors_ = centres.rows[kept], centres.points[kept]
        self.weight_ = np.zeros((len(machines), len(kept)))
        for row, each, own in zip(self.weight_, machines, active, strict=True):
            row[np.searchsorted(kept, own)] = each.weight_
        self.bias_ = np.array([each.bias_ for each in machines])
        self.width_ = np.array([each.width_ for each in machines])
        self.log_evidence_ = sum(each.log_evidence_ for each in machines)
        self.n_iter_ = max(each.n_iter_ for each in machines)
        self.machines_, self.status_ = machines, [each.status_ for each in machines]

    def _values(self, X: Array) -> Array:
        """Return the posterior mean, moved towards zero such that it gives the mean probability.

        Exactly for the probit, by MacKay's approximation for the logit.
        """
        if len(self.classes_) > 2:
            return np.column_stack([each._values(X) for each in self.machines_])
        return self._likelihood_.moderated(*self._moments(X))

    def _posterior(self) -> Callable[[Array], list[LatentNormal]]:
        return lambda X: [of_machines([each._moments(X) for each in self.machines_])]

    @of_rows("mean, variance : ndarray, shape (n_new,), or (n_new, n_classes) for several classes")
    def latent_moments(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent function, shape (n_new,) each.

        For several classes (n_new, n_classes) each.
        """
        X = self._inputs(X)
        if len(self.classes_) == 2:
            return self._moments(X)
        mean, variance = zip(*(each._moments(X) for each in self.machines_), strict=True)
        return np.column_stack(mean), np.column_stack(variance)


def _estimates_noise(model: Any) -> bool:
    given = model.likelihood
    known = isinstance(given, ScaleLikelihood) and not np.isnan(given.noise)
    return model.noise is None and not known


class RVMRegressor(RegressorMixin, RelevanceVectorMachine):
    """Relevance vector machine for regression, fitted by maximising its evidence.

    Parameters
    ----------
    kernel, width, basis
        As for `RVMClassifier`; the width is one.
    likelihood : "normal", "student-t" or Likelihood
        How targets scatter around the function: a name, or a piece with its parameters, that the row
        ``"rvm_regression"`` of `FAMILY` has. A scale in it that is NaN is estimated.
    star : bool
        Predict as RVM*, with one more basis on each new row: the variance grows away from the data,
        where the plain machine's falls back to the noise. The training rows are kept for it.
    noise : float, optional
        Known scale of the targets, under the normal their standard deviation; None estimates it.
    noise_starts : tuple of float
        Where the noise starts, as multiples of the targets' standard deviation; the best evidence
        wins. ``(0.1, 0.3, 0.7)`` is the careful choice.
    method, cv, max_iter, tol
        As for `RVMClassifier`.
    memory_limit : float, optional
        Bytes for what the fit holds beside the data, without `star`; the evidence is that of all rows and
        bases. For a normal likelihood and few bases, at most a quarter of the rows, one triangular factor of
        their size says all of the rows, which go through one chunk after the other; otherwise, or where it
        does not fit, basis functions are computed when needed, as for `RVMClassifier`. A width that is
        not a number is then chosen on at most 5000 rows.
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
        The widths that were tried, and what they were chosen by, as for `RVMClassifier`.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; C. E. Rasmussen and J. Quinonero-Candela (2005), "Healing the relevance vector machine
    through augmentation", ICML, 689-696; A. Chmielewski-Anders et al. (2019), eqs. 6-9 and 13-16,
    corrected: see `pcvm_pymc.core.evidence`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-5, 5, 40)[:, None]
    >>> model = RVMRegressor(star=True, width=1.0).fit(x, np.sinc(x[:, 0]))
    >>> mean, std = model.predict([[0.0], [50.0]], return_std=True)
    >>> bool(std[1] > 10 * std[0])
    True
    """

    _system = FAMILY["rvm_regression"]
    _likelihood_: Any
    _conditional = (
        WIDTH_EFFECT,
        CV_EFFECT,
        Conditional(
            "noise_starts",
            (0.3,),
            ("noise", "likelihood"),
            _estimates_noise,
            "a noise to be estimated",
        ),
    )

    def __init__(
        self,
        *,
        likelihood: str | Likelihood = "normal",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: CentresLike = None,
        star: bool = False,
        noise: float | None = None,
        noise_starts: tuple[float, ...] = (0.3,),
        method: str = "sequential",
        cv: int = 5,
        random_state: int | np.random.Generator | None = None,
        memory_limit: float | None = None,
        max_iter: int = 100_000,
        tol: float = 1e-4,
    ) -> None:
        self._keep(locals())

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit the regressor.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        self._begin()
        as_numbers(X, "X")
        if y is not None:
            as_numbers(y, "y")
        rows, target = validate_data(self, X, y, dtype=float, y_numeric=True)
        target = as_targets(target, len(rows))
        chunk = self._chunk(rows)
        if chunk:
            self._fit_to_factor(rows, target, chunk)
        else:
            with self._threads(rows):
                problem = self._fit_evidence(rows, target)
            if self.star:
                self._augmentation_, self._rows_ = augmentation(problem, self._result_), rows
        self.noise_ = self._result_.noise
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        likelihood = self._likelihood_
        check_real("noise", self.noise, also=(None,))
        if self.noise is not None and not np.isnan(getattr(likelihood, "noise", np.nan)):
            raise ValueError(
                f"noise={self.noise!r} was given with likelihood={likelihood!r}, which has one; give either"
            )
        if self.star and self.memory_limit is not None:
            raise ValueError(
                "star=True keeps all training rows; needed star=False with a memory_limit"
            )
        if self.star and not likelihood.is_quadratic:
            raise ValueError(f"star=True needs likelihood='normal'; found {likelihood.name!r}")

    @property
    def _options(self) -> EvidenceOptions:
        return replace(super()._options, noise_starts=tuple(self.noise_starts))

    def _chunk(self, X: Array) -> int:
        """Return how many rows at a time make a triangular factor; 0 where none is to be made."""
        if self.memory_limit is None:
            return 0
        n_basis, limit = int(self._n_basis(X)), self.memory_limit
        one_by_one = self.method == "sequential"
        if self._likelihood_.is_quadratic and not (one_by_one and 4 * n_basis > len(X)):
            try:  # the factor, a chunk below it, and what LAPACK makes of both
                return chunk_rows(limit, n_basis + 2, X.shape[1], copies=3)
            except ValueError:
                if not one_by_one or limit < ComputedBases.least_bytes(len(X)):
                    raise
        self._check_sequential()
        return 0

    def _fit_to_factor(self, X: Array, y: Array, chunk: int) -> None:
        """Fit to the triangular factor of all rows, which comes from one chunk after the other."""
        centres = self._bases(X)
        width = self._width_by_some(X, y, np.random.default_rng(as_seed(self.random_state)))
        kernel = as_kernel(self.kernel, width)
        blocks = ((kernel(X[rows], centres.points), y[rows]) for rows in row_blocks(len(X), chunk))
        noise = self.noise
        if noise is None and not _estimates_noise(self):
            noise = self._likelihood_.noise
        self._set_fit(rotated_problem(blocks, noise=noise), centres, width)

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

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used.
        """
        check_flag("return_std", return_std)
        new = self._inputs(X)
        moments = [self._some_moments(new[rows]) for rows in gen_batches(len(new), _ROWS)]
        mean, variance = (np.concatenate(each) for each in zip(*moments, strict=True))
        return (mean, np.sqrt(variance + self._noise_at_end.variance)) if return_std else mean

    @property
    def _noise_at_end(self) -> Any:
        """The likelihood, of the noise that the fit ended with."""
        return self._likelihood_.with_noise(self.noise_)

    def _some_moments(self, X: Array) -> tuple[Array, Array]:
        if "_augmentation_" not in vars(self):
            return self._moments(X)
        return star_moments(
            self._kernel_(X, self.relevance_vectors_),
            self._kernel_(self._rows_, X),
            np.diag(self._kernel_(X, X)),
            self._result_,
            self._augmentation_,
        )

    def _log_densities(self, X: Array, y: NDArray[Any]) -> Array:
        mean, std = self.predict(X, return_std=True)
        if self._likelihood_.is_quadratic:
            return np.asarray(norm.logpdf(y, mean, std))
        return self._noise_at_end.log_density(mean, y)
