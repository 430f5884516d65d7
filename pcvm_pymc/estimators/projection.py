"""From a dense PCVM or its posterior to a classifier of few vectors."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.submodels import (
    ProjectionPath,
    SearchOptions,
    Target,
    default_sizes,
    project_path,
)
from pcvm_pymc.estimators.figures import plot_projection_path
from pcvm_pymc.estimators.parameters import is_rbf
from pcvm_pymc.estimators.selection import stratified_folds

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = [
    "Projection",
    "Reference",
    "check_projectable",
    "project_reference",
    "smallest_within_one_se",
]

_MOST_VECTORS = 50  # of the sizes tried by default


@dataclass(frozen=True)
class Reference:
    """A fitted dense model, as far as a projection needs it.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
        Training inputs.
    label : ndarray of -1. and +1., shape (n_obs,)
    classes : ndarray, shape (2,)
    centres : Centres
        Of the bases that may be chosen.
    probability : ndarray, shape (n_obs,)
        Of the greater class at the training inputs: the posterior mean, or the MAP's.
    kernel : "rbf" or callable
    width : float
    hyperprior : Hyperprior
        For the references of the folds.
    likelihood : Likelihood
    make_classifier : callable
        ``(projection) -> classifier``, of the chosen submodel: ``PCVMClassifier.from_projection``.
    """

    X: Array
    label: Array
    classes: NDArray[Any]
    centres: Centres
    probability: Array
    kernel: Kernel
    width: Any
    hyperprior: Any
    likelihood: Likelihood
    make_classifier: Callable[["Projection"], Any]


@dataclass(frozen=True)
class Projection:
    """Submodels of a reference, their honest scores, and the one that was chosen.

    Attributes
    ----------
    path : ProjectionPath
        The best submodel found of each size, from all training rows.
    size : int
        The chosen number of vectors.
    log_density : ndarray, shape (n_sizes, n_obs)
        Cross-validated log predictive density of each training label under each size;
        shape (n_sizes, 0) where none was computed.
    reference_log_density : ndarray, shape (n_obs,)
        The same of the folds' dense references.
    reference : Reference
    """

    path: ProjectionPath
    size: int
    log_density: Array = field(repr=False)
    reference_log_density: Array = field(repr=False)
    reference: Reference = field(repr=False)

    @property
    def index(self) -> int:
        """Position of the chosen size in the path."""
        return int(np.searchsorted(self.path.sizes, self.size))

    @property
    def elpd(self) -> Array:
        """Expected log predictive density, summed over the training rows, shape (n_sizes,)."""
        return _sum(self.log_density)

    @property
    def elpd_se(self) -> Array:
        """Standard error of `elpd`, shape (n_sizes,)."""
        return _standard_error(self.log_density)

    @property
    def difference_se(self) -> Array:
        """Standard error of the difference between `elpd` and the best one, shape (n_sizes,)."""
        best = self.log_density[np.argmax(self.elpd)]
        return _standard_error(self.log_density - best)

    @property
    def reference_elpd(self) -> float:
        """`elpd` of the dense references."""
        return float(_sum(self.reference_log_density[None])[0])

    @property
    def classifier(self) -> Any:
        """The chosen submodel as an ordinary fitted `PCVMClassifier`."""
        return self.classifier_of(self.size)

    def classifier_of(self, size: int) -> Any:
        """Return the submodel of another size of the path as a fitted `PCVMClassifier`.

        Raises
        ------
        ValueError
            If the path has no such size.
        """
        if size not in self.path.sizes:
            raise ValueError(f"size={size!r} is not on the path; it has {self.path.sizes.tolist()}")
        return self.reference.make_classifier(replace(self, size=int(size)))

    def plot(self) -> "Figure":
        """Draw elpd and divergence against the number of vectors."""
        return plot_projection_path(self)

    def to_datatree(self) -> "xr.DataTree":
        """Return the result as groups ``projection`` and ``constant_data``, for `save`."""
        import xarray as xr  # slow, and seldom needed

        path, reference, n_basis = self.path, self.reference, len(self.reference.centres)
        weight = np.stack([path.dense_weight(i, n_basis) for i in range(len(path.sizes))])
        scores = {"elpd": self.elpd, "elpd_se": self.elpd_se, "difference_se": self.difference_se}
        projection = xr.Dataset(
            {
                "weight": (("size", "basis"), weight),
                "bias": ("size", path.bias),
                "kl": ("size", path.kl),
                **{name: ("size", value) for name, value in scores.items()},
                "reference_elpd": self.reference_elpd,
                "chosen_size": self.size,
            },
            {"size": path.sizes, "basis": np.arange(n_basis)},
        )
        name = "width" if is_rbf(reference.kernel) else "kernel_width"
        data = xr.Dataset(
            {
                "centres": (("basis", "feature"), reference.centres.points),
                "signs": ("basis", reference.centres.sign),
                "probability": ("obs", reference.probability),
                name: reference.width,
            }
        )
        tree = xr.DataTree.from_dict({"projection": projection, "constant_data": data})
        tree.attrs["classes"] = json.dumps(reference.classes.tolist())
        return tree


def _sum(log_density: Array) -> Array:
    if log_density.shape[1] == 0:
        return np.full(len(log_density), np.nan)
    return log_density.sum(axis=1)


def _standard_error(log_density: Array) -> Array:
    """Return the standard error of a sum over independent rows."""
    n = log_density.shape[1]
    if n < 2:
        return np.full(len(log_density), np.nan)
    return np.sqrt(n) * log_density.std(axis=1, ddof=1)


def check_projectable(likelihood: Likelihood) -> None:
    """Raise unless submodels can be sought under a likelihood: `project_path` has the probit's."""
    if likelihood.name != Probit.name:
        raise ValueError(
            f"a projection seeks submodels under the probit; found likelihood={likelihood.name!r}, needed "
            "'probit' (estimation='bottom-up' gives few vectors too)"
        )


def project_reference(
    reference: Reference,
    *,
    size: int | str = "auto",
    sizes: Sequence[int] | None = None,
    cv: int = 5,
    em_options: EMOptions | None = None,
    options: SearchOptions | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Projection:
    """Project a reference that is at hand as arrays; see `project`."""
    check_projectable(reference.likelihood)
    centres = reference.centres
    wanted = _sizes(size, sizes, len(centres))
    Phi = as_kernel(reference.kernel, reference.width)(reference.X, centres.points)
    path = project_path(Target(Phi, centres.sign, reference.probability), wanted, options)
    nothing = Projection(path, wanted[-1], np.empty((len(wanted), 0)), np.empty(0), reference)
    if size != "auto":
        return replace(nothing, size=int(size))
    folds = stratified_folds(reference.X, reference.label, cv, random_state)
    if not folds:  # a class has a single point, so that nothing can be held out
        return nothing
    scores = _cross_validate(reference, Phi, wanted, folds, em_options=em_options, options=options)
    return replace(
        nothing,
        size=smallest_within_one_se(path.sizes, scores[:-1]),
        log_density=scores[:-1],
        reference_log_density=scores[-1],
    )


def smallest_within_one_se(sizes: NDArray[np.int64], log_density: Array) -> int:
    """Return the smallest size whose elpd is within one standard error of the best.

    The error is that of the paired difference to the best.

    Parameters
    ----------
    sizes : ndarray of int, shape (n_sizes,)
    log_density : ndarray, shape (n_sizes, n_obs)
    """
    total = log_density.sum(axis=1)
    best = int(total.argmax())
    error = _standard_error(log_density[best] - log_density)
    return int(sizes[np.flatnonzero(total + error >= total[best])[0]])


def _cross_validate(
    reference: Reference,
    Phi: Array,
    sizes: Sequence[int],
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    em_options: EMOptions | None = None,
    options: SearchOptions | None = None,
) -> Array:
    """Return held-out log densities, shape (n_sizes + 1, n_obs); the last is the dense reference's."""
    density = np.empty((len(sizes) + 1, len(Phi)))
    for train, test in folds:
        columns = reference.centres.columns_of(train)
        basis, held_out = Phi[np.ix_(train, columns)], Phi[np.ix_(test, columns)]
        sign = reference.centres.sign[columns]
        label, likelihood = reference.label[train], reference.likelihood
        problem = Problem(basis, label, sign, reference.hyperprior, likelihood)
        dense = fit_em(problem, None, em_options)
        possible = [min(size, len(columns)) for size in sizes]
        path = project_path(
            Target(basis, sign, likelihood.probability(dense.latent)), possible, options
        )
        at = np.searchsorted(path.sizes, possible)
        latent = np.vstack([path.latent(held_out)[at], held_out @ dense.weight + dense.bias])
        density[:, test] = [likelihood.log_density(each, reference.label[test]) for each in latent]
    return density


def _sizes(size: int | str, sizes: Sequence[int] | None, n_basis: int) -> list[int]:
    """Return the path's sizes in ascending order, the chosen one among them."""
    largest = min(_MOST_VECTORS, n_basis)
    if size != "auto":
        if isinstance(size, bool) or not isinstance(size, Integral) or not 0 <= size <= n_basis:
            raise ValueError(
                f"size={size!r}; needed 'auto' or a whole number from 0 to {n_basis}, the bases"
            )
        return sorted({*(sizes if sizes is not None else ()), int(size)})
    if sizes is None:
        return default_sizes(largest).tolist()
    return sorted(set(sizes))
