"""The sparse probit of Figueiredo & Jain (2001) for scikit-learn."""

from dataclasses import dataclass, replace
from typing import Any, override

import numpy as np

from pcvm_pymc.core.em.options import TOLERANCE
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces import kernels
from pcvm_pymc.core.pieces.centres import Centres, as_centres
from pcvm_pymc.core.pieces.likelihoods import as_likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, named_prior
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.average import modes_of
from pcvm_pymc.estimators.base import STREAMED, Rule, is_named
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.features import Metric, set_features
from pcvm_pymc.estimators.fit import em_options, fixed_width
from pcvm_pymc.estimators.problems import Problems, TrainingData, against_rest, width_rows
from pcvm_pymc.estimators.search import GridPoint

_BIASES = {"penalised": "prior", "free": "free"}


def _on_kernels(model: Any, _: bool = False) -> bool:
    return bool(model.features == "kernel")


def _is_proper(prior: Any) -> bool:
    return bool(getattr(prior, "is_proper", not is_named(prior, "jeffreys")))


@dataclass(kw_only=True, eq=False, repr=False)
class SparseProbitClassifier(KernelClassifier):
    """Sparse probit classifier, fitted by EM to its posterior mode.

    Several classes are fitted one against the rest, and the probabilities normalised.

    Parameters
    ----------
    kernel : "rbf", "linear-spline" or callable
        For ``features="kernel"``.
    width : float, array_like, "median", "shared" or "auto"
        Of the kernel, in the unit of X; the paper's h is ``width / sqrt(2)``. ``"median"`` is the median
        distance of the training rows; ``"shared"`` and ``"auto"`` are chosen by five folds, one width or one
        for each feature, as for `RVMClassifier`. Standardise columns of different units first.
    basis : "auto", None, int or array_like, shape (n_basis, n_features)
        For ``features="kernel"``: kernels on all training rows, None; on so many of them, chosen by
        k-means++; or at given centres. ``"auto"`` is None up to 3,000 rows, 2,000 centres above.
    max_iter : int
        Most iterations of EM, or transitions of a chain; a fit that needs more warns.
    tol : float
        Largest change of a latent value at which EM stops.
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
    estimation : {"auto", "posterior"}
        ``"auto"`` is the posterior mode by EM. ``"posterior"`` draws, as for `PCVMClassifier`, under
        ``prior="laplace"`` or another proper one; a kernel's bases are then 30 k-means centres, or `basis`.
    draws, random_state
        As for `PCVMClassifier`, for the posterior only.
    update : {"auto", "newton", "em"}
        How EM steps, see `EMOptions`; ``"em"`` is the paper's own.
    kernel_dtype, n_jobs, verbose
        As for `PCVMClassifier`.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    selected_ : ndarray of int, shape (n_selected,)
        Features whose weight is not zero (in any of several machines), in the order of
        `pcvm_pymc.core.pieces.kernels.feature_matrix`; for a kernel, its centres.
    relevance_vectors_ : ndarray, shape (n_selected, n_features)
        These centres, for a kernel only.
    support_ : ndarray of int, shape (n_selected,)
        Their numbers among the training rows, for a kernel only; -1 for centres that are none.
    weight_ : ndarray, shape (n_selected,)
        Their weights; for several classes (n_classes, n_selected).
    coef_ : ndarray, shape (1, n_all) or (n_classes, n_all)
        The weights of all features, most of them zero.
    bias_ : float, or ndarray, shape (n_classes,)
    prior_ : Laplace or Hyperprior
    width_ : float
        For a kernel only.
    feature_widths_, feature_relevance_, feature_relevance_folds_
        As for `RVMClassifier`, for the RBF only.
    log_posterior_ : float
        At the mode, variances integrated out; the sum for several classes.
    n_iter_ : int
        The most of several machines.
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
    >>> model = SparseProbitClassifier().fit(X, np.where(X[:, 2] + 0.5 * noise > 0, "yes", "no"))
    >>> 2 in model.selected_, len(model.selected_) < 6
    (True, True)
    """

    width: Any = "median"
    max_iter: int = 10_000
    tol: float = TOLERANCE
    memory_limit: float | None = None
    class_weight: Any = None
    features: str = "linear"
    prior: str | Laplace | Hyperprior = "jeffreys"
    gamma: float = 1.0
    bias: str = "penalised"
    estimation: str = "auto"
    draws: int = 250
    random_state: Any = None
    update: str = "auto"
    kernel_dtype: str = "float64"
    n_jobs: int | None = None
    verbose: bool = False

    _system = FAMILY["sparse_probit"]
    _parameter_constraints = base.constraints(
        "median shared auto",
        features=" ".join(kernels.FEATURES),
        bias=" ".join(_BIASES),
        estimation="auto posterior",
        update="auto newton em",
    )
    _rules = (
        Rule("basis features", "features='kernel'", _on_kernels, "auto"),
        Rule("kernel features", "features='kernel'", _on_kernels, "rbf"),
        Rule(
            "width features kernel",
            "features='kernel' and a kernel that has a width",
            lambda m, _: _on_kernels(m) and base.has_width(m.kernel),
            "median",
        ),
        Rule("gamma prior", "prior='laplace'", lambda m, _: is_named(m.prior, "laplace"), 1.0),
        base.IN_CHUNKS,
        *base.DRAWN,
        *base.fit_effect(update="auto", tol=TOLERANCE),
        Rule(
            "estimation prior",
            "an improper prior has no posterior; needed prior='laplace', 'student' or another proper one",
            lambda m, _: not base.is_drawn(m) or _is_proper(m.prior),
        ),
        Rule(
            "prior",
            f"{STREAMED} another prior than 'student', which is scaled to all basis functions: a "
            "Hyperprior(c, d, e, f), for instance",
            lambda m, chunks: not (chunks and is_named(m.prior, "student")),
        ),
    )

    @override
    def _begin(self, X: Any = None) -> None:
        super()._begin(X)
        self.prior_ = named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)
        self._likelihood_ = as_likelihood(self._system.likelihood, self._system.likelihoods)
        if base.is_dask(X) and not _on_kernels(self):
            raise ValueError(
                f"features={self.features!r}: rows in Dask arrays need features='kernel'"
            )

    @override
    def _fit(self, data: TrainingData) -> None:
        """Fit a machine for each class against the rest, for two classes one."""
        # the basis functions, and the prior at their scale
        piece, centres, metric = self._basis_functions(data)
        width = piece.width
        problems = Problems(
            data,
            centres,
            piece,
            self._likelihood_,
            lambda _: self.prior_,
            em_options(self),
            bias=_BIASES[self.bias],
        ).for_model(self, chunks=_on_kernels(self) and not is_named(self.prior, "student"))
        problem = problems.at(width)
        if problems.rows is None:
            self.prior_ = named_prior(self.prior, problem.Phi, gamma=self.gamma)
            problem = replace(problem, hyperprior=self.prior_)
        n_classes = len(self.classes_)
        machines = range(n_classes) if n_classes > 2 else range(1, 2)
        results = [problems.solved(against_rest(problem, c)) for c in machines]

        # what a user reads
        self.coef_ = np.stack([one.weight for one in results])
        weight, bias = self.coef_.T, np.array([one.bias for one in results])
        if len(results) == 1:
            weight, bias = weight[:, 0], results[0].bias
        both = replace(results[0], weight=weight, bias=bias)
        (self._predictor_,) = modes_of(problems, [GridPoint((), width, 1.0, result=both)])
        self.selected_ = self._set_vectors(data, centres, weight, bias, width)
        self._kernel_ = piece
        if _on_kernels(self):
            set_features(self, width, metric)
        else:  # there are no vectors
            del self.support_, self.relevance_vectors_, self.width_, self._kernel_
        self.log_posterior_ = sum(one.log_posterior for one in results)
        self._set_fit("EM", results)

    def _basis_functions(
        self, data: TrainingData
    ) -> tuple[kernels.KernelPiece, Centres, Metric | None]:
        """Return the kernel and its centres, or linear or quadratic features and their numbers.

        Of a kernel also the relative widths of the features where they were learned.
        """
        X = data.X
        if not _on_kernels(self):
            number = np.arange(kernels.feature_matrix(X[:1], self.features).shape[1])
            centres = Centres(number[:, None].astype(float), None, np.full(len(number), -1))
            return kernels.FeatureColumns(features=self.features), centres, None
        base.check_size_and_scales(self, X, data.groups)
        centres = replace(as_centres(data.basis(self), X, None), sign=None)
        if is_named(self.width, "median"):
            return kernels.as_kernel(self.kernel, kernels.median_distance(X)), centres, None
        rng, in_chunks = np.random.default_rng(0), self.memory_limit is not None
        rows, most = width_rows(self, data, in_chunks or data.stream is not None, rng)
        width, metric = fixed_width(self, data if rows is None else data.some(rows), rng, most)
        return kernels.as_kernel(self.kernel, width), centres, metric
