"""From a dense PCVM or its posterior to a classifier of few vectors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, override

import numpy as np

from pcvm_pymc.core.em import EMOptions, fit_em, log_posterior
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_seed, check_whole
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.projection import ProjectionPath, project_path
from pcvm_pymc.core.projection.choice import (
    Reference,
    cross_validated,
    grown,
    sizes_of,
    smallest_within_one_se,
    standard_error,
)
from pcvm_pymc.estimators.estimation import Estimation, Fitted, refuse
from pcvm_pymc.estimators.predictors import Mode
from pcvm_pymc.estimators.training import STREAMED, Fold, TrainingData, inner_folds
from pcvm_pymc.figures import plot_projection_path

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_MOST_VECTORS = 50  # of the sizes tried by default with folds


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
    >>> full = PCVMClassifier(width=1.0).fit(X, y)
    >>> found = project(full, X, y, size=2, random_state=0)
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
        return standard_error(self.log_density)

    @property
    def difference_se(self) -> Array:
        """Standard error of the difference between `elpd` and the best one, shape (n_sizes,).

        For an average that of the difference to the average, `loss_se`.
        """
        if self.loss_se is not None:
            return self.loss_se
        best = self.log_density[np.argmax(self.elpd)]
        return standard_error(self.log_density - best)

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
        of_class = ("class",) if weight.ndim == 3 else ()
        projection = xr.Dataset(
            {
                "weight": (("size", "basis", *of_class), weight),
                "bias": (("size", *of_class), path.bias),
                "kl": ("size", path.kl),
                **{name: ("size", value) for name, value in scores.items()},
                "reference_elpd": self.reference_elpd,
                "chosen_size": self.size,
            },
            {"size": path.sizes, "basis": np.arange(n_basis)},
        )
        name = "width" if as_kernel(reference.kernel).name == "rbf" else "kernel_width"
        of_features = ("feature",) if np.ndim(reference.width) else ()
        data = {
            "centres": (("basis", "feature"), reference.centres.points),
            "probability": (("obs", *of_class), reference.probability),
            name: (of_features, reference.width),
            "signs": (("basis", *of_class), reference.centres.sign),
            "basis_width": (("basis", *of_features), reference.basis_width),
            "held_out": (("obs", *of_class), reference.held_out),
        }
        known = xr.Dataset({name: pair for name, pair in data.items() if pair[1] is not None})
        tree = xr.DataTree.from_dict({"projection": projection, "constant_data": known})
        tree.attrs["classes"] = json.dumps(reference.classes.tolist())
        return tree


def project_reference(
    reference: Reference,
    *,
    size: int | str = "auto",
    sizes: Sequence[int] | None = None,
    cv: int | list[Fold] | None = None,
    em_options: EMOptions | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Projection:
    """Project a reference that is at hand as arrays; see `project`.

    Raises
    ------
    ValueError
        For sizes that cannot be used, or folds for a reference that has held-out probabilities.
    """
    if not isinstance(cv, list):
        check_whole("cv", cv, 2, optional=True)
    check_seed("random_state", random_state)
    if reference.held_out is not None:
        if cv is not None:
            raise ValueError(f"cv={cv!r} has no effect on an average of held-out rows; omit it")
        if isinstance(size, str) and size == "auto":
            grew = grown(reference, sizes)
            return Projection(*grew[:4], reference, grew.loss_se)
    n_basis = len(reference.centres)
    wanted = sizes_of(size, sizes, n_basis, min(_MOST_VECTORS, n_basis))
    Phi = reference.design()
    path = project_path(reference.target(Phi), wanted)
    nothing = Projection(path, wanted[-1], np.empty((len(wanted), 0)), np.empty(0), reference)
    if not isinstance(size, str):
        return replace(nothing, size=int(size))
    label, groups = reference.label, reference.groups
    folds = cv if isinstance(cv, list) else inner_folds(label, cv or 5, random_state, groups=groups)
    if not folds:  # a class has a single point, so that nothing can be held out
        return nothing
    fit = partial(fit_em, start=None, options=em_options)
    scores = cross_validated(reference, Phi, wanted, folds, fit)
    chosen = smallest_within_one_se(path.sizes, scores[:-1])
    return Projection(path, chosen, scores[:-1], scores[-1], reference)


@dataclass(frozen=True, kw_only=True)
class FewVectors(Estimation):
    """The projection of a dense fit onto few vectors.

    Attributes
    ----------
    n_vectors : int or "auto"
    cv : int
        Folds that choose the number, where leave-one-out does not.
    full : Estimation
        Of the fit with all vectors: modes or draws.
    """

    n_vectors: int | str | None
    cv: Any
    full: Any

    @property
    @override
    def solver_options(self) -> type:
        return self.full.solver_options

    @override
    def arguments(self) -> set[str]:
        by_folds = not self.full.averages and self.n_vectors in (None, "auto")
        return self.full.arguments() | {"n_vectors"} | ({"cv"} if by_folds else set())

    @override
    def check(self, in_chunks: bool) -> None:
        self.full.check(in_chunks)
        if in_chunks and self.n_vectors is not None:
            refuse(self.model, "n_vectors", f"{STREAMED} None")
        if in_chunks:
            needed = f"{STREAMED} another estimation than 'projection'"
            refuse(self.model, "width estimation", needed)

    @override
    def fit(self, data: TrainingData) -> Fitted:
        """Fit all vectors, and replace them by few."""
        model, full = self.model, self.full.fit(data)
        size, folds, centres = self.n_vectors or "auto", self.cv, full.formulation.centres
        if data.splits is not None:
            folds = data.folds(folds, full.rng, once=True)
        projection = project_reference(
            reference_of(model, model._attributes_of(full), data, centres, full.left_out),
            size=size if size == "auto" else min(size, len(centres)),
            cv=folds if full.left_out is None else None,
            em_options=full.formulation.options,
            random_state=full.rng,
        )
        few = few_vectors(model, projection, full.attributes.get("hyperprior_"))
        return replace(full, predictor=few.predictor, attributes=full.attributes | few.attributes)


def reference_of(
    model: Any, fit: Mapping[str, Any], data: TrainingData, centres: Centres, held_out: Any
) -> Reference:
    """Return a classifier with its fitted attributes as a reference; with `held_out` it is an average."""
    likelihood, width, search = fit["_likelihood_"], fit["width_"], fit.get("selection_")
    probability = fit["_predictor_"].probability(data.X)
    if search is not None and search.kernels:  # vectors are of the first kernel
        width = search.of_kernel(as_kernel(model._kernel).name).best.width
    reference = Reference(
        data.X,
        data.label,
        model.classes_,
        centres,
        probability[:, 1] if likelihood.n_scores == 1 and held_out is None else probability,
        kernel=model._kernel,
        width=width,
        hyperprior=fit.get("hyperprior_", Hyperprior.plug_in()),
        likelihood=likelihood,
        kind=type(model),
        weight=data.weight,
        given=data.given,
        groups=data.groups,
        reading=model._reading(),
    )
    return reference if held_out is None else reference.averaged(held_out)


def few_vectors(model: Any, projection: Projection, hyperprior: Any) -> Fitted:
    """Return a projection's chosen submodel as the result of a fit, in which no EM was run."""
    reference, prior = projection.reference, hyperprior or Hyperprior.jeffreys()
    centres, Phi, i = reference.centres, reference.design(), projection.index
    bias: Any = projection.path.bias[i]
    bias = float(bias) if np.ndim(bias) == 0 else bias
    weight = projection.path.dense_weight(i, len(centres))
    kept = np.flatnonzero(weight.reshape(len(weight), -1).any(axis=1))
    at, every = {"width": reference.width, "scale": np.nan}, np.arange(len(kept))
    where = reference.kernel_of(kept), at, centres.points[kept], every
    mode = Mode(*where, weight[kept], bias, np.nan, kept, reference.likelihood, prior)
    no_bias = vars(model).get("bias") is False
    problem = replace(reference.problem(Phi), hyperprior=prior, bias="none" if no_bias else "prior")
    data = TrainingData(reference.X, reference.label, reference.weight, reference.given)
    attributes = mode.attributes(data, centres) | {"projection_": projection}
    attributes["log_posterior_"] = log_posterior(problem, weight, bias, Phi @ weight + bias)
    if reference.basis_width is not None:
        attributes["vector_widths_"] = reference.basis_width[kept]
    if hyperprior is not None:
        attributes["hyperprior_"] = hyperprior
    return Fitted(mode, attributes, n_iter=0, statuses=[Status.CONVERGED])


def classifier_of(projection: Any) -> Any:
    """Return a projection's chosen submodel as a fitted classifier.

    `n_iter_` is 0, since no EM was run here, and `status_` is ``CONVERGED``.
    """
    reference, centres = projection.reference, projection.reference.centres
    if reference.basis_width is not None:  # the same places once for each width
        n = len(centres) // len(np.unique(reference.basis_width, axis=0))
        centres = Centres(centres.points[:n], centres.signs_of(slice(n)), centres.rows[:n])
    basis: Any = None
    if not np.array_equal(centres.points, reference.X):
        signs = centres.sign
        if signs is None:  # unused there, but required
            signs = np.repeat(reference.classes[:1], len(centres))
        elif signs.ndim == 2:
            signs = reference.classes[signs.argmax(axis=1)]
        basis = (centres.points, signs)
    arguments = {
        "kernel": reference.kernel,
        "width": reference.width,
        "basis": basis,
        "hyperprior": reference.hyperprior,
        "likelihood": reference.likelihood,
        "estimation": "projection",
        "n_vectors": max(projection.size, 1),
    }
    known = reference.kind._get_param_names()
    if "n_vectors" not in known:  # a machine without that estimation: that of the dense one
        arguments["estimation"] = "em"
    model = reference.kind(**{n: value for n, value in arguments.items() if n in known})
    model.classes_, model.n_features_in_ = reference.classes, reference.X.shape[1]
    vars(model).update(reference.reading)
    prior = reference.hyperprior if "hyperprior" in known else None
    model._publish(few_vectors(model, projection, prior))
    return model
