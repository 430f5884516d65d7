"""scikit-learn estimators of the relevance vector machine."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, Self, override

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import StrOptions

from pcvm_pymc.core.evidence import METHODS
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import as_noise_std, check_noise
from pcvm_pymc.core.pieces.validation import (
    as_finite,
    as_targets,
    as_weights,
    check_flag,
    check_real,
)
from pcvm_pymc.core.probabilities import student_t_interval
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.estimation import estimator, refuse
from pcvm_pymc.estimators.evidence import Evidence, RegressionEvidence
from pcvm_pymc.estimators.formulation import named_likelihood
from pcvm_pymc.estimators.posterior import Posterior, ProcessDraws
from pcvm_pymc.estimators.training import TrainingData

_ROWS = 1024  # predicted at a time
_CONSTRAINTS = base.constraints(
    "auto shared evidence validity", method=" ".join(METHODS), estimation="auto posterior"
)


@estimator
class RVMClassifier(KernelClassifier):
    """Relevance vector machine for two or more classes, fitted by maximising its evidence.

    Several classes are fitted one against the rest, and the probabilities normalised; `MRVMClassifier` has
    them all in one model.

    Parameters
    ----------
    kernel : "rbf", "laplacian", "linear-spline", "precomputed" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``. It need
        not be positive definite. ``"precomputed"`` and objects of scikit-learn as for `PCVMClassifier`.
    width : float, array_like, "auto", "shared", "evidence" or "validity"
        Width of the basis functions, in the unit of X: one, or one for each feature. Of nine, ``"shared"``
        takes that of the highest cross-validated log density; ``"auto"`` (of the RBF) also learns relative
        widths of the features, chooses their common factor, and takes them where the folds favour them.
        ``"evidence"`` takes that of the highest evidence, which is quicker but favours narrow bases,
        ``"validity"`` that of the highest kernel validity (Kropotov et al. 2006, the RBF only), which
        penalises them. Several classes have one each. Standardise columns of different units first.
    basis : "auto", None, int or array_like, shape (n_basis, n_features)
        Centres of the basis functions: None is all training rows; a number so many of them, chosen by
        k-means++; or given centres. ``"auto"`` is None up to 3,000 rows, 2,000 centres above; the width is
        then chosen on 2,000 rows and 500 bases.
    estimation : {"auto", "posterior"}
        ``"auto"`` maximises the evidence. ``"posterior"`` draws, as for `PCVMClassifier`, at a width that is
        chosen as for the former, one for all classes, and under the proper prior of `rvm_model`. Its bases
        are 30 k-means centres, or `basis` of them.
    random_state : int, numpy.random.Generator or None
        For the folds.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        As for `PCVMClassifier`, missing values included (indicators alone).
    options : EvidenceOptions or PosteriorOptions, optional
        How the evidence is maximised and when that stops, or how many draws ``"posterior"`` takes. A fit that
        needs more steps than its options allow warns.
    memory_limit : float, optional
        Bytes for basis functions. With a limit they are computed when they are needed, some rows and columns
        at a time, and only those of 64 candidates are kept, and those of the vectors, which the limit does
        not count: for many rows, all of which may be candidates; ``"sequential"`` only. A width that is not
        a number is then chosen on at most 5000 rows. Dask arrays are taken too, with a number of bases or
        given centres: the limit is then that of a chunk, and no column of all rows is ever in memory.
    class_weight : dict, "balanced" or None
        As for `PCVMClassifier`.
    link : {"logit", "probit"} or Likelihood
        The likelihood.
    method : {"sequential", "batch"}
        One basis at a time, or all downwards; the former is faster and sparser. Both end at a local
        maximum of the evidence, in which no single change gains, and neither always at the higher one.
    cv : int, splitter or iterable
        As for `PCVMClassifier`. Folds of the inner cross-validation, for ``width="auto"`` and ``"shared"``.
    verbose : bool
        Whether to print how far a fit is, a line every two seconds at most.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    relevance_vectors_ : ndarray, shape (n_relevance, n_columns)
        Centres (by default training rows) with a weight that is not zero (in any of several machines);
        columns as for `PCVMClassifier`.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Posterior mode; for several classes (n_classes, n_relevance).
    bias_ : float
        Value of the latent function far from all centres; for several classes (n_classes,).
    width_, log_evidence_ : float
        For several classes a width for each class, and the sum of the evidences.
    n_iter_ : int
        Steps of the search (changes of one basis function, or rounds of the batch search), the most of
        several classes; for a posterior, transitions of each chain.
    status_ : Status
        How the fit ended; for several classes one for each.
    feature_widths_ : ndarray, shape (n_features,)
        Width of each feature, in units of X, of the RBF only; for several classes (n_classes, n_features).
    feature_relevance_ : ndarray, shape (n_features,)
        1 / width^2, normalised to sum one; for several classes the mean of their machines'. NaN where none
        learned a width for each feature, see `PCVMClassifier`.
    feature_relevance_folds_ : ndarray, shape (n_folds, n_features)
        The same, learned from the rows outside each fold: how sure it is; no rows where none was learned.
    covariance_ : ndarray, shape (n_relevance + 1, n_relevance + 1)
        Of the weights and, last, the bias (Laplace's approximation); two classes only.
    width_selection_ : HyperparameterSearch
        Widths that were tried and their ``scores``; two classes only. With ``"auto"`` the mean held-out log
        density; a width behind the best is refitted no more (its score: the best's less that difference).
    machines_ : list of RVMClassifier
        One for each class against the rest; none for two classes.
    idata_ : xarray.DataTree
        Of a posterior only, as for `PCVMClassifier`; of the attributes above it has bases and widths.

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

    link: str = "logit"
    method: str = "sequential"
    cv: Any = 5

    _system = FAMILY["rvm_classification"]
    _scores_all_rows = True
    _copies = 4  # the triangular factor of a chunk takes as much as itself, twice
    _parameter_constraints = _CONSTRAINTS
    _estimations: ClassVar[Mapping[str, Any]] = {
        "auto": Evidence.of,
        "posterior": lambda model: Posterior.of(model, chooser=Evidence.of(model, options=None)),
    }

    _centres = base.KernelMachine._centres  # without the classes' signs

    @override
    def _likelihood(self) -> Likelihood:
        return named_likelihood(self.link, self._system.likelihoods, "link")

    def latent_moments(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent function.

        Parameters
        ----------
        X : array_like, shape (n_new, n_features)
            With the columns of the training rows, in their order.

        Returns
        -------
        mean, variance : ndarray, shape (n_new,), or (n_new, n_classes) for several classes

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used.
        """
        moments: tuple[Array, Array] = self._predictor_.moments(self._inputs(X))
        return moments


@estimator
class RVMRegressor(RegressorMixin, base.KernelMachine):
    """Relevance vector machine for regression, fitted by maximising its evidence.

    Parameters
    ----------
    kernel : "auto", "rbf", "laplacian", "linear-spline", "precomputed" or callable
        As for `RVMClassifier`. ``"auto"`` is the RBF, of the columns or of the ranks of those that are skewed
        or have long tails, `kernel_` says which: folds that choose the width choose that, too. Where the
        width, or centres, are given it is of the columns.
    width, basis
        As for `RVMClassifier`; the width is one.
    estimation : {"auto", "posterior"}
        As for `RVMClassifier`. A noise that is not given is drawn with the weights; `predict` has the
        posterior's mean and, noise included, standard deviation, `predict_interval` quantiles of the draws.
        Under normal noise, with the RBF and no given bases, the posterior is that of a Gaussian process of
        all rows, or of 500 of them where they are more. Weights, amplitude, noise and bias are drawn, and the
        width around that which folds chose; one that is given stays. Draws are exact and independent.
    random_state : int, numpy.random.Generator or None
        For the folds.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        As for `RVMClassifier`.
    options : EvidenceOptions or PosteriorOptions, optional
        As for `RVMClassifier`. ``EvidenceOptions(noise_starts=(0.1, 0.3, 0.7))`` is the careful choice of
        where the noise starts.
    memory_limit : float, optional
        Bytes for the fit, the data not counted, without `star`; the evidence is that of all rows and bases.
        For a normal likelihood and few bases, at most a quarter of the rows, the fit needs one triangular
        factor of their size, to which the rows add chunk by chunk; otherwise, or where it does not fit, basis
        functions are computed when needed, as for `RVMClassifier`. A width that is not a number is then
        chosen on at most 5000 rows.
    likelihood : "normal", "student-t" or Likelihood
        How targets scatter around the function: a name, or, of `pcvm_pymc.core.pieces.likelihoods`, an
        object with its parameters, such as ``StudentT(0.3, 3.0)``. A scale that is NaN is estimated.
    std : {"auto", "process", "weights"}
        What the standard deviation of a prediction includes. ``"weights"``: the posterior of the weights and
        the noise (Tipping 2001, eq. 21), too narrow in gaps and outside the rows, where all basis functions
        vanish. ``"process"``: the error expected of the mean under a Gaussian process with the same kernel,
        whose amplitude and noise maximise the evidence of the rows. At most 500 of them are taken, fewer
        under a small `memory_limit`, and kept. Its 89 % intervals contained 87 to 92 % on six regressions,
        90 to 93 % in gaps. Far outside the rows neither is wide enough where the function goes on to grow.
        ``"auto"``: ``"process"`` under normal noise without `star`, with the RBF; else ``"weights"``.
    star : bool
        Predict as RVM*, with one more basis on each new row: the variance grows in gaps between the rows.
        Under a wide kernel it hardly does, and outside the rows it may stay too small. Keeps the rows.
    noise : float, optional
        Known scale of the targets, under the normal their standard deviation; None estimates it.
    method, cv, verbose
        As for `RVMClassifier`.

    Attributes
    ----------
    relevance_vectors_ : ndarray, shape (n_relevance, n_columns)
        Centres (by default training rows) with a weight that is not zero; columns as for `PCVMClassifier`.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Posterior mean.
    bias_ : float
        Prediction far from all centres.
    width_, noise_, log_evidence_ : float
        The noise is a standard deviation, of a row that counts once; of a posterior its root mean square, and
        zero where `fit` was given each row's, as that of new rows is not known.
    idata_ : xarray.DataTree
        Of a posterior only, as for `RVMClassifier`. A process has an ``amplitude``, the variance of its
        function, in place of a ``rate``.
    feature_widths_, feature_relevance_, feature_relevance_folds_
        As for `RVMClassifier`.
    kernel_ : str
        Name of the kernel, such as ``"rbf of ranks"``.
    covariance_ : ndarray, shape (n_relevance + 1, n_relevance + 1)
        Of the weights and, last, the bias.
    n_iter_ : int
        Steps of the search: changes of one basis function, or rounds of the batch search. For a posterior,
        transitions of each chain.
    status_ : Status
        How the fit ended.
    width_selection_
        As for `RVMClassifier`.

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

    kernel: Kernel = "auto"
    likelihood: str | Likelihood = "normal"
    std: str = "auto"
    star: bool = False
    noise: float | None = None
    method: str = "sequential"
    cv: Any = 5

    _system = FAMILY["rvm_regression"]
    _weighed = ("rbf",)
    _scores_all_rows = True
    _parameter_constraints = _CONSTRAINTS | {"std": [StrOptions({"auto", "process", "weights"})]}
    _estimations: ClassVar[Mapping[str, Any]] = {
        "auto": RegressionEvidence.of,
        "posterior": lambda model: (
            ProcessDraws
            if model._has_process and (model.basis is None or isinstance(model.basis, str))
            else Posterior
        ).of(model, chooser=RegressionEvidence.of(model, options=None)),
    }

    @override
    def _check(self, in_chunks: bool) -> None:
        likelihood: Any = named_likelihood(self.likelihood, self._system.likelihoods)
        drawn = self.estimation == "posterior"
        self._needs("std", not drawn, "estimation", "estimation='auto'")
        if self.noise is not None and not np.isnan(likelihood.noise):
            refuse(self, "noise likelihood", "the likelihood has a noise; give either")
        if self.star and not likelihood.is_quadratic:
            raise ValueError(f"star=True needs likelihood='normal'; found {likelihood.name!r}")
        if self.std == "process" and not self._has_process:
            needed = "a process needs the RBF and normal noise, and RVM* has a variance of its own; needed "
            refuse(self, "std kernel likelihood star", needed + "std='auto' or 'weights'")
        if self.star and (in_chunks or drawn):
            refuse(self, "star", "it keeps all training rows; needed no memory_limit or posterior")

    @override
    def _likelihood(self) -> Likelihood:
        likelihood = named_likelihood(self.likelihood, self._system.likelihoods)
        return likelihood if self.noise is None else likelihood.with_noise(self.noise)

    @property
    @override
    def _weighs_ranks(self) -> bool:
        chosen = self.basis is None or isinstance(self.basis, str | Integral)
        return self._weighs_kernels and chosen

    @property
    def _has_process(self) -> bool:
        return self._is_rbf and self._likelihood().is_quadratic and not self.star

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        noise: ArrayLike | None = None,
    ) -> Self:
        """Fit the regressor.

        Copies of a row, target included, are one row of that weight.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
        sample_weight : array_like, shape (n_obs,), optional
            How often each row counts: two is the row twice, without a second basis function on it; rows of
            weight zero are left out. Held-out rows count as often where the width is chosen.
        groups : array_like, shape (n_obs,), optional
            Rows of one group are held out together where the width is chosen, see `RVMClassifier.fit`.
        noise : array_like, shape (n_obs,), optional
            Known standard deviation of each row's normal noise, ``y_i ~ N(f(x_i), noise_i^2)``, in the
            unit of y; none is estimated then. `GaussianProcessRegressor` has variances, ``alpha``, among the
            arguments of its constructor. Here it is one of `fit`, since it belongs to rows: folds and
            searches pass on what their rows have (``set_fit_request(noise=True)``).

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For what cannot be used, as a noise beyond 1e-8 to 1e8 times the standard deviation of y.
        """
        estimation = self._begin()
        others: dict[str, Any] = {"groups": groups, "noise": noise}
        check_same_rows(X, y=y, sample_weight=sample_weight, **others)
        y = y if y is None else as_finite(y, "y", "drop those rows first")
        rows, target = self._read(X, y, y_numeric=True)
        target = as_targets(target, len(rows))
        held_out = self._groups_and_splits(rows, target, groups)
        weight = None if sample_weight is None else as_weights(sample_weight, len(rows))
        known = self._known_noise(noise, target, estimation)
        data = TrainingData(rows, target, weight, noise=known, **held_out).counting()
        data = self._encoded(data).merged()
        with self._running(data):
            self._publish(estimation.fit(data))
        return self

    def _known_noise(self, noise: Any, target: Array, estimation: Any) -> Array | None:
        """Return the known noise of rows, if given; raise where something else says what the noise is."""
        likelihood: Any = self._likelihood()
        if noise is None:
            check_noise("noise", likelihood.noise, target)
            return None
        needed = "each row's noise is known by noise of fit, and normal; needed "
        if self.noise is not None:
            refuse(self, "noise", f"{needed}noise=None, the default, or none in fit")
        if not likelihood.is_quadratic or not np.isnan(likelihood.noise):
            refuse(self, "likelihood", needed + "likelihood='normal', or no noise in fit")
        if isinstance(estimation, RegressionEvidence):
            estimation.check_known_noise("likelihood")
        known = as_noise_std(noise, len(target))
        check_noise("noise", known, target)
        return known

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the mean of new targets and, if asked, their standard deviation, noise included.

        After a fit with known noise of each row it is the standard deviation of the function alone, since the
        noise of new rows is not known: add its square.

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
        moments = [self._predictor_.moments(new[rows]) for rows in gen_batches(len(new), _ROWS)]
        mean, variance = (np.concatenate(parts) for parts in zip(*moments, strict=True))
        mean, variance = self._likelihood_.with_noise(self.noise_).target_moments(mean, variance)
        if return_std and "_process_" in vars(self):
            parts = [self._process_.moments(new[rows]) for rows in gen_batches(len(new), _ROWS)]
            of_process, variance = (np.concatenate(batches) for batches in zip(*parts, strict=True))
            variance += (of_process - mean) ** 2  # the mean is the machine's, not the process's
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_interval(self, X: ArrayLike, *, probability: float = 0.89) -> Array:
        """Return equal-tailed intervals of new targets, noise included.

        Quantiles of the normal of `predict`, of the latent normal with Student-t noise, or of the posterior's
        draws; after a fit with known noise of each row without noise, as that of new rows is not known.

        Parameters
        ----------
        X : array_like, shape (n_new, n_features)
        probability : float
            Of the interval, above 0 and below 1.

        Returns
        -------
        ndarray, shape (n_new, 2)
            Lower and upper end.

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows or the probability cannot be used.
        """
        check_real("probability", probability, 0.0, 1.0)
        new, likelihood = self._inputs(X), self._likelihood_.with_noise(self.noise_)
        if "idata_" in vars(self):
            return np.asarray(self._predictor_.interval(new, probability))
        if not likelihood.is_quadratic:
            mean, variance = self._predictor_.moments(new)
            return student_t_interval(likelihood, mean, variance, probability)
        mean, std = self.predict(X, return_std=True)
        ends = ndtri([0.5 - 0.5 * probability, 0.5 + 0.5 * probability])
        return mean[:, None] + ends * std[:, None]
