"""The sparse probit of Figueiredo & Jain (2001) for scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, override

import numpy as np

from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces import kernels
from pcvm_pymc.core.pieces.centres import Centres, as_centres
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, named_prior
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.candidates import Candidate
from pcvm_pymc.estimators.chooser import choose
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.estimation import CHOSEN, Estimation, Fitted, estimator, is_named, refuse
from pcvm_pymc.estimators.formulation import Formulation, loosened
from pcvm_pymc.estimators.predictors import Mode, modes_of
from pcvm_pymc.estimators.training import STREAMED, TrainingData

_BIASES = {"penalised": "prior", "free": "free"}


@dataclass(frozen=True, kw_only=True)
class SparseMode(Estimation):
    """The posterior mode by EM, of several classes one against the rest."""

    model: KernelClassifier
    prior: Any
    gamma: float

    @override
    def fit(self, data: TrainingData) -> Fitted:
        """Fit a machine for each class against the rest, for two classes one."""
        # what is fitted, and at which width
        model: Any = self.model
        model._check_rows(data)
        formulation = self.formulation(data, model._basis_of(data))
        many = model._on_kernels and not is_named(self.prior, "student")
        formulation = model._streamed(formulation, many=many)
        rng, few, most = np.random.default_rng(0), data, None
        if model._width_rule in CHOSEN:
            few, most = model._search_rows(data, rng, in_chunks=formulation.rows is not None)
        choice = choose(self, few, rng, most=most)
        width = choice.search.best.width
        problem, results = self.solved(formulation, width)

        # what a user reads
        mode = self.mode(formulation, width, results)
        attributes = {"selected_": mode.basis, "weight_": mode.weight.T, "bias_": mode.bias}
        if model._on_kernels:
            attributes |= mode.attributes(data, formulation.centres)
        attributes["coef_"] = np.stack([result.weight for result in results])
        attributes["prior_"] = problem.hyperprior
        attributes["log_posterior_"] = sum(result.log_posterior for result in results)
        n_iter, statuses = max(r.n_iter for r in results), [r.status for r in results]
        return Fitted(mode, attributes, choice, n_iter=n_iter, statuses=statuses, solver="EM")

    @override
    def check(self, in_chunks: bool) -> None:
        if not in_chunks:
            self.how.check_in_memory()
        if in_chunks and is_named(self.prior, "student"):
            needed = "another prior than 'student', which is scaled to all basis functions: a "
            refuse(self.model, "prior", f"{STREAMED} {needed}Hyperprior(c, d, e, f), for instance")

    @override
    def formulation(self, data: TrainingData, basis: Any, most: int | None = None) -> Formulation:
        prior = named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)
        pieces = self.model._centres(data, basis), self.model._kernel_at(None), Probit()
        bias = self.model._bias(by_em=True)
        return Formulation(data, *pieces, lambda _: prior, self.how, bias=bias)

    def solved(self, formulation: Formulation, width: Any) -> tuple[Problem, list[EMResult]]:
        """Return the problem at a width, and its mode or that of each class against the rest."""
        problem = formulation.at({"width": width, "scale": 1.0})
        if formulation.rows is None:  # a prior at the scale of the basis functions
            prior = named_prior(self.prior, problem.Phi, gamma=self.gamma)
            problem = replace(problem, hyperprior=prior)
        machines = problem.machines(len(self.model.classes_))
        return problem, [formulation.solved(machine) for machine in machines]

    def mode(self, formulation: Formulation, width: Any, results: list[EMResult]) -> Mode:
        """Return the modes of several classes as one."""
        weight, bias = results[0].weight, results[0].bias
        if len(results) > 1:
            weight = np.column_stack([result.weight for result in results])
            bias = np.array([result.bias for result in results])
        both = replace(results[0], weight=weight, bias=bias)
        return modes_of(formulation, [Candidate({"width": width, "scale": 1.0}, result=both)])[0]

    @override
    def fitted(self, data: TrainingData, width: Any, basis: Any) -> Mode:
        formulation = self.formulation(data, basis)
        return self.mode(formulation, width, self.solved(formulation, width)[1])

    @override
    def rough(self, data: TrainingData, most: int | None) -> tuple["SparseMode", int | None]:
        return replace(self, options=loosened(self.how, "folds, improper")), most


def _drawn(model: Any) -> Estimation:
    from pcvm_pymc.estimators.posterior import SparsePosterior  # slow: compiled

    return SparsePosterior.of(model, chooser=SparseMode.of(model, options=None))


@estimator
class SparseProbitClassifier(KernelClassifier):
    """Sparse probit classifier, fitted by EM to its posterior mode.

    Several classes are fitted one against the rest, and the probabilities normalised.

    Parameters
    ----------
    kernel : "rbf", "laplacian", "linear-spline", "precomputed" or callable
        For ``features="kernel"``.
    width : float, array_like, "median", "shared" or "auto"
        Of the kernel, in the unit of X; the paper's h is ``width / sqrt(2)``. ``"median"`` is the median
        distance of the training rows; ``"shared"`` and ``"auto"`` are chosen by five folds, one width or one
        for each feature, as for `RVMClassifier`. Standardise columns of different units first.
    basis : "auto", None, int or array_like, shape (n_basis, n_features)
        For ``features="kernel"``: kernels on all training rows, None; on so many of them, chosen by
        k-means++; or at given centres. ``"auto"`` is None up to 3,000 rows, 2,000 centres above.
    estimation : {"auto", "posterior"}
        ``"auto"`` is the posterior mode by EM. ``"posterior"`` draws, as for `PCVMClassifier`, under
        ``prior="laplace"`` or another proper one; a kernel's bases are then 30 k-means centres, or `basis`.
    random_state
        As for `PCVMClassifier`, for the posterior only.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        As for `PCVMClassifier`, missing values included (indicators alone). ``"linear"`` and
        ``"quadratic"`` features are made of these columns.
    options : EMOptions or PosteriorOptions, optional
        As for `PCVMClassifier`; ``EMOptions(update="em")`` is the paper's own EM.
    memory_limit
        As for `PCVMClassifier`, for any features; Dask arrays are taken too, for ``features="kernel"``. A
        width that is not a number is then chosen on at most 5000 rows.
    class_weight : dict, "balanced" or None
        As for `PCVMClassifier`.
    features : {"linear", "quadratic", "kernel"}
        The components of x; also their squares and pairwise products; or a kernel at each training row.
    prior : {"jeffreys", "laplace", "student"}, Laplace or Hyperprior
        ``"jeffreys"`` is the paper's, without a parameter. ``"laplace"`` has the L1 penalty
        ``sqrt(gamma)``, ``"student"`` is the proper `Hyperprior.default`, which keeps all weights.
    gamma : float
        For ``prior="laplace"``.
    bias : {"penalised", "free"}
        Whether the bias has the prior of a weight or a flat one.
    verbose
        As for `PCVMClassifier`.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    selected_ : ndarray of int, shape (n_selected,)
        Features whose weight is not zero (in any of several machines), in the order of
        `pcvm_pymc.core.pieces.kernels.feature_matrix`; for a kernel, its centres.
    relevance_vectors_ : ndarray, shape (n_selected, n_columns)
        These centres, for a kernel only; columns as for `PCVMClassifier`.
    support_ : ndarray of int, shape (n_selected,)
        Their numbers among the training rows, for a kernel only; -1 for centres that are none.
    weight_ : ndarray, shape (n_selected,)
        Their weights; for several classes (n_classes, n_selected).
    coef_ : ndarray, shape (1, n_all) or (n_classes, n_all)
        The weights of all features, most of them zero.
    bias_ : float, or ndarray, shape (n_classes,)
        Value of the latent function where all features, or all kernels, are zero.
    prior_ : Laplace or Hyperprior
    width_ : float
        For a kernel only.
    feature_widths_, feature_relevance_, feature_relevance_folds_
        As for `RVMClassifier`, for the RBF only.
    log_posterior_ : float
        At the mode, variances integrated out; the sum for several classes.
    n_iter_ : int
        Iterations of EM, the most of several machines.
    status_ : Status or list of Status
        How EM ended; an empty model predicts by its bias alone.
    idata_ : xarray.DataTree
        Of a posterior only, as for `PCVMClassifier`; of the attributes above it has those of the bases alone.

    References
    ----------
    M. Figueiredo and A. Jain (2001), "Bayesian learning of sparse classifiers", CVPR, eqs. 8-16,
    corrected: see `pcvm_pymc.core.em`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(80, 6))
    >>> noise = np.random.default_rng(1).normal(size=80)
    >>> y = np.where(X[:, 2] + 0.5 * noise > 0, "yes", "no")
    >>> model = SparseProbitClassifier().fit(X, y)
    >>> 2 in model.selected_, len(model.selected_) < 6
    (True, True)
    """

    width: Any = "median"
    features: str = "linear"
    prior: str | Laplace | Hyperprior = "jeffreys"
    gamma: float = 1.0
    bias: str = "penalised"

    _system = FAMILY["sparse_probit"]
    _beside_width = "features kernel"
    _parameter_constraints = base.constraints(
        "median shared auto",
        features=" ".join(kernels.FEATURES),
        bias=" ".join(_BIASES),
        estimation="auto em posterior",
    )
    _estimations: ClassVar[Mapping[str, Any]] = {
        "auto": SparseMode.of,
        "em": SparseMode.of,
        "posterior": _drawn,
    }

    @override
    def _check(self, in_chunks: bool) -> None:
        for name in ("basis", "kernel"):
            self._needs(name, self._on_kernels, "features", "features='kernel'")
        self._needs("gamma", is_named(self.prior, "laplace"), "prior", "prior='laplace'")
        named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)

    @override
    def _dask_training(self, X: Any, y: Any, sample_weight: Any) -> TrainingData:
        if not self._on_kernels:
            refuse(self, "features", "rows in Dask arrays need features='kernel'")
        return super()._dask_training(X, y, sample_weight)

    @property
    def _on_kernels(self) -> bool:
        return self.features == "kernel"

    @property
    @override
    def _has_width(self) -> bool:
        return self._on_kernels and super()._has_width

    @override
    def _likelihood(self) -> Likelihood:
        return Probit()

    @override
    def _bias(self, *, by_em: bool) -> str:
        return _BIASES[self.bias]

    @override
    def _kernel_at(self, width: Any) -> kernels.KernelPiece:
        if self._on_kernels:
            return super()._kernel_at(width)
        return kernels.FeatureColumns(features=self.features)

    @override
    def _centres(self, data: TrainingData, basis: Any, most: int | None = None) -> Centres:
        if self._on_kernels:
            return replace(as_centres(basis, data.X, None), sign=None)
        number = np.arange(kernels.feature_matrix(data.X[:1], self.features).shape[1])
        return Centres(number[:, None].astype(float), None, np.full(len(number), -1))

    @override
    def _check_rows(self, data: TrainingData, *, n_modes: int = 1, n_scores: int = 1) -> None:
        if self._on_kernels:
            super()._check_rows(data, n_modes=n_modes, n_scores=n_scores)
