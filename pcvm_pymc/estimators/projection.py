"""From a dense PCVM or its posterior to a classifier of few vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.em.binary import EMOptions, Problem, fit_em
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, log_ndtr, ndtr
from pcvm_pymc.core.pieces.validation import as_features, as_labels
from pcvm_pymc.core.submodels import (
    ProjectionPath,
    SearchOptions,
    Target,
    default_sizes,
    project_path,
)
from pcvm_pymc.estimators.selection import stratified_folds

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from pcvm_pymc.estimators.pcvm import PCVMClassifier

__all__ = ["Projection", "Reference", "project", "project_reference"]

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
    """

    X: Array
    label: Array
    classes: NDArray[Any]
    centres: Centres
    probability: Array
    kernel: Kernel
    width: float
    hyperprior: Hyperprior


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
    def classifier(self) -> "PCVMClassifier":
        """The chosen submodel as an ordinary fitted `PCVMClassifier`."""
        return self.classifier_of(self.size)

    def classifier_of(self, size: int) -> "PCVMClassifier":
        """Return the submodel of another size of the path as a fitted `PCVMClassifier`.

        Raises
        ------
        ValueError
            If the path has no such size.
        """
        from pcvm_pymc.estimators.pcvm import PCVMClassifier

        if size not in self.path.sizes:
            raise ValueError(f"size={size!r} is not on the path; it has {self.path.sizes.tolist()}")
        return PCVMClassifier.from_projection(replace(self, size=int(size)))

    def plot(self) -> "Figure":
        """Draw elpd and divergence against the number of vectors."""
        from pcvm_pymc.assessment.plots import plot_projection_path

        return plot_projection_path(self)

    def to_datatree(self) -> "xr.DataTree":
        """Return the result as groups ``projection`` and ``constant_data``, for `save`."""
        import xarray as xr

        from pcvm_pymc.inference.results import with_classes

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
        name = "width" if reference.kernel == "rbf" else "kernel_width"
        data = xr.Dataset(
            {
                "centres": (("basis", "feature"), reference.centres.points),
                "signs": ("basis", reference.centres.sign),
                "probability": ("obs", reference.probability),
                name: reference.width,
            }
        )
        tree = xr.DataTree.from_dict({"projection": projection, "constant_data": data})
        return with_classes(tree, reference.classes)


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


def project(
    reference: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    size: int | str = "auto",
    sizes: Sequence[int] | None = None,
    kernel: Kernel = "rbf",
    cv: int = 5,
    hyperprior: Hyperprior | None = None,
    options: SearchOptions | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Projection:
    """Project a posterior or a dense classifier onto few vectors.

    For each number of vectors, the sign-constrained submodel is sought that loses least in
    Kullback-Leibler divergence from the reference's class probabilities at the training rows. The number
    is the smallest whose cross-validated expected log predictive density (elpd) lies within one standard
    error, of the difference, of the best.

    Parameters
    ----------
    reference : DataTree or PCVMClassifier
        From `sample` or `find_map_em` (then its posterior mean probabilities are projected), or a
        fitted classifier.
    X : array_like, shape (n_obs, n_features), optional
        Training inputs. Needed with a classifier, and where the bases of the posterior do not stand on
        the training rows.
    y : array_like, shape (n_obs,), optional
        Training labels. Needed with a classifier.
    size : "auto" or int
        Number of vectors. With a number nothing is cross-validated.
    sizes : sequence of int, optional
        Sizes of the path, 0 being the bias alone. Default: 0, 1, 2, 3, ... in growing steps up to 50.
    kernel : "rbf" or callable
        The kernel of the posterior's model; a classifier brings its own.
    cv : int
        Folds; fewer where a class has fewer points.
    hyperprior : Hyperprior, optional
        Of the folds' references. Default: the classifier's, `Hyperprior.plug_in` for a posterior.
    options : SearchOptions, optional
    random_state : int or numpy.random.Generator, optional
        For the folds.

    Returns
    -------
    Projection

    Raises
    ------
    ValueError
        For input that cannot be used.

    Notes
    -----
    In each fold the reference is fitted anew without the held-out rows and without their bases, whose
    signs would tell their labels. It is a dense proper MAP at the reference's width, also where the
    reference itself is a posterior: it costs a fraction of a second. The width is not chosen anew.
    The posterior's uncertainty enters through its mean probabilities alone: a submodel is one point.

    References
    ----------
    J. Piironen, M. Paasiniemi and A. Vehtari (2020), "Projective inference in high-dimensional problems:
    prediction and feature selection", Electronic Journal of Statistics 14(1).

    Examples
    --------
    >>> from pcvm_pymc import PCVMClassifier
    >>> from pcvm_pymc.experiments.datasets import ripley_mixture
    >>> X, y = ripley_mixture(100, random_state=0)
    >>> dense = PCVMClassifier(random_state=0).fit(X, y)
    >>> sparse = project(dense, X, y, size=5).classifier
    >>> len(dense.weight_) > 50, len(sparse.weight_)
    (True, 5)
    """
    if hasattr(reference, "decision_function"):
        found = _from_classifier(reference, X, y)
    else:
        found = _from_datatree(reference, X, y, kernel)
    if hyperprior is not None:
        found = replace(found, hyperprior=hyperprior)
    return project_reference(
        found, size=size, sizes=sizes, cv=cv, options=options, random_state=random_state
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
    centres = reference.centres
    wanted = _sizes(size, sizes, len(centres))
    Phi = design_matrix(reference.kernel, reference.X, centres.points, reference.width)
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
        dense = fit_em(
            Problem(basis, reference.label[train], sign, reference.hyperprior), None, em_options
        )
        possible = [min(size, len(columns)) for size in sizes]
        path = project_path(Target(basis, sign, ndtr(dense.latent)), possible, options)
        at = np.searchsorted(path.sizes, possible)
        latent = np.vstack([path.latent(held_out)[at], held_out @ dense.weight + dense.bias])
        density[:, test] = log_ndtr(reference.label[test] * latent)
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


def _from_classifier(model: Any, X: ArrayLike | None, y: ArrayLike | None) -> Reference:
    """Return a fitted classifier as a reference."""
    if X is None or y is None:
        raise ValueError(
            "a classifier does not hold its training data; needed project(classifier, X, y)"
        )
    inputs = as_features(X, n_features=model.n_features_in_)
    label, classes = as_labels(y, len(inputs))
    if not np.array_equal(classes, model.classes_):
        raise ValueError(
            f"y has the classes {classes.tolist()}; needed the classifier's {model.classes_.tolist()}"
        )
    return Reference(
        X=inputs,
        label=label,
        classes=classes,
        centres=model._centres(inputs, label),
        probability=ndtr(model.decision_function(X)),
        kernel=model.kernel,
        width=model.width_,
        hyperprior=model.hyperprior_,
    )


def _from_datatree(
    tree: "xr.DataTree", X: ArrayLike | None, y: ArrayLike | None, kernel: Kernel
) -> Reference:
    """Return a posterior as a reference: the mean of its draws' probabilities."""
    from pcvm_pymc.inference.results import classes_of
    from pcvm_pymc.model.builders import stored_width

    if not (hasattr(tree, "children") and "posterior" in tree and "constant_data" in tree):
        raise ValueError(
            f"reference is a {type(tree).__name__}; needed a DataTree from sample or find_map_em "
            "with the groups posterior and constant_data, or a fitted PCVMClassifier"
        )
    if (kernel != "rbf" and not callable(kernel)) or hasattr(kernel, "full"):
        raise ValueError(
            f"kernel={kernel!r}; needed 'rbf' or a function (X, Z, width), such as "
            "lambda X, Z, width: covariance.full(X, Z).eval() for a PyMC covariance"
        )
    data, posterior = tree["constant_data"].to_dataset(), tree["posterior"].to_dataset()
    label = np.where(tree["observed_data"]["label"].values > 0, 1.0, -1.0)
    classes = classes_of(tree)
    centres = data["centres"].values
    inputs = centres if X is None else as_features(X, n_features=centres.shape[1])
    if len(inputs) != len(label):
        raise ValueError(
            f"the posterior has {len(label)} rows and {'X' if X is not None else 'its bases'} "
            f"{len(inputs)}; needed the training inputs as X"
        )
    if y is not None and not np.array_equal(np.asarray(y) == classes[1], label > 0):
        raise ValueError("y differs from the labels that the posterior holds; leave it out")
    width = posterior["width"].median() if "width" in posterior else stored_width(kernel, data)
    return Reference(
        X=inputs,
        label=label,
        classes=classes,
        centres=Centres.among(inputs, centres, data["signs"].values.astype(float)),
        probability=ndtr(posterior["latent"].transpose(..., "obs").values)
        .reshape(-1, len(label))
        .mean(axis=0),
        kernel=kernel,
        width=float(width),
        hyperprior=Hyperprior.plug_in(),
    )
