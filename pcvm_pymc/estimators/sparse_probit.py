"""The sparse probit of Figueiredo & Jain (2001) for scikit-learn."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMResult
from pcvm_pymc.core.em.rows import Rows
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import Centres, CentresLike, as_centres
from pcvm_pymc.core.pieces.kernels import (
    FEATURES,
    FeatureColumns,
    Kernel,
    KernelPiece,
    feature_matrix,
    median_distance,
    n_features,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood, as_likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, named_prior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.em_classifier import IN_CHUNKS, EMClassifier, Mode, Training
from pcvm_pymc.estimators.parameters import Conditional, has_width

__all__ = ["SparseProbitClassifier"]

_ROW = FAMILY["sparse_probit"]
_BIASES = {"penalised": "prior", "free": "free"}


def _on_kernels(model: "SparseProbitClassifier") -> bool:
    return model.features == "kernel"


class SparseProbitClassifier(EMClassifier):
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
        Most iterations of EM; a fit that needs more warns.
    tol : float
        Largest change of a latent value at which EM stops.
    memory_limit, kernel_dtype, n_jobs
        As for `PCVMClassifier`, for any features; Dask arrays are taken too, for ``features="kernel"``. A
        width that is not a number is then chosen on at most 5000 rows.
    class_weight : dict, "balanced" or None
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
    log_posterior_ : float
        At the mode, variances integrated out; the sum for several classes.
    n_iter_ : int
        The most of several machines.
    status_ : Status or list of Status
        How EM ended; an empty model predicts by its bias alone.

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

    _system = _ROW
    _methods = ("median",)
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "features": FEATURES,
        "bias": tuple(_BIASES),
        "update": ("auto", "newton", "em"),
        "kernel_dtype": ("float64", "float32"),
    }
    _least: ClassVar[dict[str, int]] = {"max_iter": 1}
    _conditional = (
        *(
            Conditional(name, default, ("features",), _on_kernels, "features='kernel'")
            for name, default in (("basis", None), ("kernel", "rbf"))
        ),
        Conditional(
            "width",
            "median",
            ("features", "kernel"),
            lambda model: _on_kernels(model) and has_width(model.kernel),
            "features='kernel' and a kernel that has a width",
        ),
        Conditional(
            "gamma",
            1.0,
            ("prior",),
            lambda model: isinstance(model.prior, str) and model.prior == "laplace",
            "prior='laplace'",
        ),
        IN_CHUNKS,
    )
    _chunk_rules: ClassVar[dict[str, Any]] = {
        "prior": lambda value: not (isinstance(value, str) and value == "student"),
    }
    _chunk_words = (
        "another prior than 'student', which is scaled to all basis functions: a Hyperprior(c, d, e, f), "
        "for instance"
    )

    def __init__(
        self,
        *,
        features: str = "linear",
        prior: str | Laplace | Hyperprior = "jeffreys",
        gamma: float = 1.0,
        bias: str = "penalised",
        kernel: Kernel = "rbf",
        width: float | str = "median",
        basis: CentresLike = None,
        update: str = "auto",
        max_iter: int = 10_000,
        tol: float = 1e-5,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        class_weight: Any = None,
    ) -> None:
        self._keep(locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)
        if self._is_lazy_ and not _on_kernels(self):
            raise ValueError(
                f"features={self.features!r}: rows in Dask arrays need features='kernel'"
            )

    def _likelihood(self, n_classes: int) -> Likelihood:
        return as_likelihood(_ROW.likelihood, _ROW.likelihoods)

    def _centres_at(self, basis: Any, X: Array, label: NDArray[Any]) -> Centres:
        if _on_kernels(self):
            return as_centres(basis, X, None)
        number = np.arange(n_features(X.shape[1], self.features))
        return Centres(number[:, None].astype(float), None, np.full(len(number), -1))

    def _kernel(self, width: Any) -> KernelPiece:
        return (
            super()._kernel(width) if _on_kernels(self) else FeatureColumns(features=self.features)
        )

    def _width(self, X: Array, y: NDArray[Any], rng: np.random.Generator) -> Any:
        return super()._width(X, y, rng) if _on_kernels(self) else np.nan

    def _chosen_width(self, X: Array, label: NDArray[Any], rng: np.random.Generator) -> float:
        return median_distance(X)

    def _problem(self, Phi: Any, label: Any, centres: Centres, width: Any) -> Problem:
        bias: Any = _BIASES[self.bias]
        return Problem(Phi, label, None, self.prior_, self._likelihood_, bias=bias, width=width)

    def _fit_whole(self, data: Training, width: Any, rng: np.random.Generator) -> list[EMResult]:
        """Fit a machine for each class against the rest; for two classes one."""
        X, label, centres, weight = data
        Phi = feature_matrix(
            X, self.features, centres=centres.points, kernel=self.kernel, width=width
        )
        self.prior_ = named_prior(self.prior, Phi, gamma=self.gamma)
        each = (np.where(label == c, 1.0, -1.0) for c in self._against_rest)
        return [
            self._solved(self._problem(Phi, one, centres, width).weighted(weight)) for one in each
        ]

    def _fit_rows(self, rows: Rows, data: Training, width: Any) -> list[EMResult]:
        self.prior_ = named_prior(self.prior, np.empty((0, 0)), gamma=self.gamma)
        return [
            self._solved(self._chunked(rows.against_rest(c), data.centres, width))
            for c in self._against_rest
        ]

    @property
    def _against_rest(self) -> range:
        """The classes that are told from the rest."""
        n_classes = len(self.classes_)
        return range(1, 2) if n_classes == 2 else range(n_classes)

    @property
    def _prior(self) -> Laplace | Hyperprior:
        return self.prior_

    def _basis_functions(self, X: Array) -> Array:
        if self._features_ == "kernel":
            return super()._basis_functions(X)
        return feature_matrix(X, self._features_)[:, self.selected_]

    def _bias_precision(self, mode: Mode) -> Any:
        return 0.0 * mode.bias if self.bias == "free" else super()._bias_precision(mode)

    def _machines(self, label: NDArray[Any]) -> list[tuple[slice, NDArray[Any]]]:
        return [
            (slice(i, i + 1), np.where(label == c, 1.0, -1.0))
            for i, c in enumerate(self._against_rest)
        ]

    def _store(self, centres: Centres, results: list[EMResult]) -> None:
        self._features_ = self.features
        one = len(results) == 1
        self.coef_ = np.stack([each.weight for each in results])
        biases, statuses = [each.bias for each in results], [each.status for each in results]
        bias = biases[0] if one else np.array(biases)
        weight = self.coef_[0] if one else self.coef_.T
        if _on_kernels(self):
            self.selected_ = self._set_weights(centres, weight, bias, results[0].width)
        else:
            self.selected_ = np.flatnonzero(self.coef_.any(axis=0))
            self.weight_, self.bias_ = weight[self.selected_].T, bias
        self.status_ = statuses[0] if one else statuses
        self.log_posterior_ = sum(each.log_posterior for each in results)
        self.n_iter_ = max(each.n_iter for each in results)

    def _values(self, X: Array) -> Array:
        if self._features_ == "kernel":
            return super()._values(X)
        return self._basis_functions(X) @ self.weight_.T + self.bias_
