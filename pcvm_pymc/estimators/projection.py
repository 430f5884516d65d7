"""From a dense PCVM or its posterior to a classifier of few vectors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, override

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_instance, check_seed, check_whole, shown
from pcvm_pymc.core.projection import (
    ProjectionPath,
    SearchOptions,
    Submodel,
    default_sizes,
    project_path,
)
from pcvm_pymc.estimators.base import STREAMED, Estimation
from pcvm_pymc.estimators.predictors import class_probability
from pcvm_pymc.estimators.reference import Reference, classifier_of, reference_of, set_projection
from pcvm_pymc.estimators.training import TrainingData, inner_folds
from pcvm_pymc.figures import plot_projection_path

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_MOST_VECTORS = 50  # of the sizes tried by default with folds
# nats per row that a submodel may lose against an average: on 18 draws of ten sets this took 18 vectors
# on average and cost .006 nats on new rows; to be within one standard error took 9 and cost .023
_NEAR = 2e-3


@dataclass(frozen=True, repr=False)
class Projection:
    """Submodels of a reference, their honest scores, and the one that was chosen.

    Attributes
    ----------
    path : ProjectionPath
        The best submodel found of each size, from all training rows.
    size : int
        The chosen number of vectors.
    log_density : ndarray, shape (n_sizes, n_obs)
        Held-out log predictive density of each training label under each size, times how often the row
        counts, by cross-validation, or
        that of an average's leave-one-out predictions less the divergence from it;
        shape (n_sizes, 0) where none was computed.
    reference_log_density : ndarray, shape (n_obs,)
        The same of the dense references.
    reference : Reference
    loss_se : ndarray, shape (n_sizes,), optional
        For an average: standard error of the loss against it, summed over the rows, over the labels that
        it expects.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier, project
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> y = X[:, 0] > 0
    >>> found = project(PCVMClassifier(width=1.0).fit(X, y), X, y, size=2, random_state=0)
    >>> found.size, len(found.classifier.relevance_vectors_)
    (2, 2)
    """

    path: ProjectionPath
    size: int
    log_density: Array
    reference_log_density: Array
    reference: Reference
    loss_se: Array | None = None

    def __repr__(self) -> str:
        """Return the chosen size, and the scores of the sizes around it, in ten lines at most."""
        sizes, n, chosen = self.path.sizes, self.log_density.shape[1], self.index
        first = max(0, min(chosen - 3, len(sizes) - 7))
        lines = [
            f"Projection onto {self.size} vectors, of {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}",
            "vectors  KL per row" + "   elpd per row  s.e. of difference to the best" * (n > 0),
        ]
        for i in range(first, min(first + 7, len(sizes))):
            line = f"{sizes[i]:7d}  {self.path.kl[i]:10.2e}"
            if n:
                line += f"  {self.elpd[i] / n:13.4f}  {self.difference_se[i] / n:.4f}"
            lines.append(line + "  <- chosen" * (i == chosen))
        return "\n".join(lines)

    @property
    def index(self) -> int:
        """Position of the chosen size in the path."""
        return int(np.searchsorted(self.path.sizes, self.size))

    @property
    def elpd(self) -> Array:
        """Expected log predictive density, summed over the training rows, shape (n_sizes,)."""
        density = self.log_density
        return density.sum(axis=1) if density.size else np.full(len(density), np.nan)

    @property
    def elpd_se(self) -> Array:
        """Standard error of `elpd`, shape (n_sizes,)."""
        return _standard_error(self.log_density)

    @property
    def difference_se(self) -> Array:
        """Standard error of the difference between `elpd` and the best one, shape (n_sizes,).

        For an average that of the difference to the average, `loss_se`.
        """
        if self.loss_se is not None:
            return self.loss_se
        best = self.log_density[np.argmax(self.elpd)]
        return _standard_error(self.log_density - best)

    @property
    def reference_elpd(self) -> float:
        """`elpd` of the dense references."""
        density = self.reference_log_density
        return float(density.sum()) if density.size else np.nan

    @property
    def classifier(self) -> Any:
        """The chosen submodel as an ordinary fitted classifier."""
        return self.classifier_of(self.size)

    def classifier_of(self, size: int) -> Any:
        """Return the submodel of another size of the path as a fitted classifier.

        Parameters
        ----------
        size : int
            Vectors; one of ``path.sizes``.

        Returns
        -------
        PCVMClassifier, MPCVMClassifier or MRVMClassifier

        Raises
        ------
        ValueError
            If the path has no such size.
        """
        if size not in self.path.sizes:
            raise ValueError(f"size={size!r} is not on the path; it has {self.path.sizes.tolist()}")
        return classifier_of(replace(self, size=int(size)))

    def plot(self) -> "Figure":
        """Draw elpd and divergence against the number of vectors.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return plot_projection_path(self)

    def to_datatree(self) -> "xr.DataTree":
        """Return the result for `save`.

        Returns
        -------
        DataTree
            Groups ``projection`` (weights, biases, scores, by ``size``) and ``constant_data``.
        """
        import xarray as xr  # slow, and seldom needed

        path, reference, n_basis = self.path, self.reference, len(self.reference.centres)
        weight = np.stack([path.dense_weight(i, n_basis) for i in range(len(path.sizes))])
        scores = {"elpd": self.elpd, "elpd_se": self.elpd_se, "difference_se": self.difference_se}
        each = ("class",) if weight.ndim == 3 else ()
        projection = xr.Dataset(
            {
                "weight": (("size", "basis", *each), weight),
                "bias": (("size", *each), path.bias),
                "kl": ("size", path.kl),
                **{name: ("size", value) for name, value in scores.items()},
                "reference_elpd": self.reference_elpd,
                "chosen_size": self.size,
            },
            {"size": path.sizes, "basis": np.arange(n_basis)},
        )
        name = "width" if reference.is_rbf else "kernel_width"
        of_features = ("feature",) if np.ndim(reference.width) else ()
        data = {
            "centres": (("basis", "feature"), reference.centres.points),
            "probability": (("obs", *each), reference.probability),
            name: (of_features, reference.width),
        }
        if reference.centres.sign is not None:
            data["signs"] = (("basis", *each), reference.centres.sign)
        if reference.basis_width is not None:
            data["basis_width"] = (("basis", *of_features), reference.basis_width)
        if reference.held_out is not None:
            data["held_out"] = (("obs", *each), reference.held_out)
        tree = xr.DataTree.from_dict({"projection": projection, "constant_data": xr.Dataset(data)})
        tree.attrs["classes"] = json.dumps(reference.classes.tolist())
        return tree


def _standard_error(log_density: Array) -> Array:
    """Return standard errors of sums over independent rows, shape (n_sizes,)."""
    n_sizes, n = log_density.shape
    return np.sqrt(n) * log_density.std(axis=1, ddof=1) if n > 1 else np.full(n_sizes, np.nan)


def project_reference(
    reference: Reference,
    *,
    size: int | str = "auto",
    sizes: Sequence[int] | None = None,
    cv: int | None = None,
    em_options: EMOptions | None = None,
    options: SearchOptions | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Projection:
    """Project a reference that is at hand as arrays; see `project`.

    Raises
    ------
    ValueError
        For sizes that cannot be used, or folds for a reference that has held-out probabilities.
    """
    check_whole("cv", cv, 2, optional=True)
    check_seed("random_state", random_state)
    check_instance("options", options, SearchOptions, "SearchOptions", optional=True)
    if reference.held_out is not None:
        if cv is not None:
            raise ValueError(
                f"cv={cv!r} has no effect on an average, whose held-out probabilities are known; leave it out"
            )
        if isinstance(size, str) and size == "auto":
            return _grow(reference, sizes, options)
    n_basis = len(reference.centres)
    wanted = _sizes(size, sizes, n_basis, min(_MOST_VECTORS, n_basis))
    Phi = reference.design()
    path = project_path(reference.target(Phi), wanted, options)
    nothing = Projection(path, wanted[-1], np.empty((len(wanted), 0)), np.empty(0), reference)
    if not isinstance(size, str):
        return replace(nothing, size=int(size))
    folds = inner_folds(reference.label, cv or 5, random_state, groups=reference.groups)
    if not folds:  # a class has a single point, so that nothing can be held out
        return nothing
    scores = _cross_validate(reference, Phi, wanted, folds, em_options=em_options, options=options)
    return replace(
        nothing,
        size=smallest_within_one_se(path.sizes, scores[:-1]),
        log_density=scores[:-1],
        reference_log_density=scores[-1],
    )


@dataclass(frozen=True, kw_only=True)
class FewVectors(Estimation):
    """The projection of a dense fit onto few vectors.

    Attributes
    ----------
    n_vectors : int or "auto"
    cv : int
        Folds that choose the number, where leave-one-out does not.
    dense : Estimation
        Of the fit that is projected: modes or draws.
    """

    n_vectors: int | str | None
    cv: int
    dense: Any

    @override
    def arguments(self) -> set[str]:
        by_folds = not self.dense.leaves_out and self.n_vectors in (None, "auto")
        return self.dense.arguments() | {"n_vectors"} | ({"cv"} if by_folds else set())

    @override
    def check(self, in_chunks: bool) -> None:
        self.dense.check(in_chunks)
        if in_chunks and self.n_vectors is not None:
            self.refuse("n_vectors", f"{STREAMED} None")
        if in_chunks:
            self.refuse("width estimation", f"{STREAMED} another estimation than 'projection'")

    @override
    def fit(self, data: TrainingData) -> None:
        """Fit all vectors, and replace the fit by its projection onto few."""
        dense = self.dense.fit(data, projected=True)
        size = self.n_vectors or "auto"
        found = project_reference(
            reference_of(self.model, data, dense.formulation.centres, dense.held_out),
            size=size if size == "auto" else min(size, len(dense.formulation.centres)),
            cv=self.cv if dense.held_out is None else None,
            em_options=dense.formulation.options,
            random_state=dense.rng,
        )
        set_projection(self.model, found)


def _grow(
    reference: Reference, sizes: Sequence[int] | None, options: SearchOptions | None
) -> Projection:
    """Add vectors until almost nothing is lost against an average.

    The loss of a row is the average's divergence from the submodel: what a comparison on observed labels
    estimates, without the noise of these. Its error is that of labels drawn from the average.
    """
    n_basis, likelihood, Phi = len(reference.centres), reference.labels, reference.design()
    target = reference.target(Phi)

    def near(model: Submodel) -> bool:
        return target.divergence(model.latent) <= _NEAR

    path = project_path(target, _sizes("auto", sizes, n_basis, n_basis), options, until=near)
    enough = np.flatnonzero(path.kl <= _NEAR)
    each = [class_probability(likelihood, latent) for latent in path.latent(Phi)]
    expected, held_out = reference.probability, np.asarray(reference.held_out)
    number = reference.label
    if likelihood.n_scores == 1:
        expected, held_out = (np.column_stack([1.0 - p, p]) for p in (expected, held_out))
        number = (number > 0).astype(int)
    tiny, n = np.finfo(float).tiny, len(number)
    weight = np.ones(n) if reference.weight is None else reference.weight
    ratio = np.log(np.maximum(expected, tiny)) - np.log(np.maximum(each, tiny))
    loss = np.einsum("ic,sic->si", expected, ratio)
    square = np.average(np.einsum("ic,sic->si", expected, ratio**2), axis=1, weights=weight)
    variance = square - np.average(loss, axis=1, weights=weight) ** 2
    density = weight * np.log(np.maximum(held_out[np.arange(n), number], tiny))
    return Projection(
        path,
        int(path.sizes[enough[0] if len(enough) else -1]),
        density - weight * loss,
        density,
        reference,
        np.sqrt(weight.sum() * np.maximum(variance, 0.0)),
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
    likelihood = reference.labels
    for train, test in folds:
        columns = reference.centres.columns_of(train)
        basis, held_out = Phi[np.ix_(train, columns)], Phi[np.ix_(test, columns)]
        dense = fit_em(reference.problem(basis, columns, train), None, em_options)
        possible = [min(size, len(columns)) for size in sizes]
        probability = likelihood.probability(dense.latent)
        path = project_path(reference.target(basis, columns, probability, train), possible, options)
        at = np.searchsorted(path.sizes, possible)
        latent = [*path.latent(held_out)[at], held_out @ dense.weight + dense.bias]
        density[:, test] = [likelihood.log_density(each, reference.label[test]) for each in latent]
    return density if reference.weight is None else density * reference.weight


def _sizes(size: Any, sizes: Any, n_basis: int, most: int) -> list[int]:
    """Return the path's sizes in ascending order, the chosen one among them; by default up to `most`."""

    def fits(n: Any) -> bool:
        return isinstance(n, Integral) and not isinstance(n, bool) and 0 <= int(n) <= n_basis

    given = list(sizes) if isinstance(sizes, list | tuple | range | np.ndarray) else []
    if sizes is not None and not (given and all(map(fits, given))):
        raise ValueError(
            f"sizes={shown(sizes)}; needed one or more whole numbers from 0 to {n_basis}, the bases"
        )
    if isinstance(size, str) and size == "auto":
        return sorted(set(map(int, given))) or default_sizes(most).tolist()
    if not fits(size):
        raise ValueError(
            f"size={shown(size)}; needed 'auto' or a whole number from 0 to {n_basis}, the bases"
        )
    return sorted({*map(int, given), int(size)})
