"""Which number of vectors a projection keeps, and what it needs of the dense model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.centres import Centres, Index
from pcvm_pymc.core.pieces.kernels import Kernel, KernelPiece, PerCentre, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import is_real, shown
from pcvm_pymc.core.probabilities import class_probability
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.core.projection.path import ProjectionPath, default_sizes, project_path
from pcvm_pymc.core.projection.submodel import Submodel, Target

# nats per row that a submodel may lose against an average, at the training rows: on two or three draws of 26
# tasks this took 13 vectors and cost .007 nats and .4 points on new rows; .002 took 17 and cost .006 and .2;
# to be within one standard error of the average took 7 and cost .013 and .6
_NEAR = 3e-3
#: widths that vectors may have where a model is an average over widths, times that of its best mode
WIDTH_FACTORS = (0.6, 1.0, 1.7)


@dataclass(frozen=True)
class Reference:
    """A fitted dense model, as far as a projection needs it.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
        Training inputs.
    label : ndarray, shape (n_obs,)
        -1. and +1.; numbers of the classes under a likelihood of several scores.
    classes : ndarray, shape (n_classes,)
    centres : Centres
        Of the bases that may be chosen; several may share a place and differ in width.
    probability : ndarray, shape (n_obs,), or (n_obs, n_classes) for several scores
        Of the greater class, or of each, at the training inputs: the posterior mean, the MAP's or an
        average's.
    kernel : str or callable
    width : float or ndarray, shape (n_features,)
        Of all bases, or of an average's best mode.
    hyperprior : Hyperprior
        For the references of the folds.
    likelihood : Likelihood
    kind : type
        Estimator that a submodel becomes.
    basis_width : ndarray, shape (n_basis,) or (n_basis, n_features), optional
        Width of each basis, where they differ.
    held_out : ndarray, shape of `probability`, optional
        The same of each row, itself and its own bases left out. With it no fold is needed to
        choose the number of vectors.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    given : ndarray of int, shape (n_obs,), optional
        Numbers of the rows among those that were given, where these are not all.
    groups : ndarray, shape (n_obs,), optional
        Rows of one group are held out together.
    reading : mapping of str, optional
        Attributes of the estimator by which it reads tables.
    """

    X: Array
    label: NDArray[Any]
    classes: NDArray[Any]
    centres: Centres
    probability: Array
    kernel: Kernel
    width: Any
    hyperprior: Any
    likelihood: Likelihood
    kind: Any
    basis_width: Array | None = None
    held_out: Array | None = None
    weight: Array | None = None
    given: Index | None = None
    groups: NDArray[Any] | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def averaged(self, held_out: Array) -> "Reference":
        """Return the same of an average of class probabilities, with bases of several widths.

        Parameters
        ----------
        held_out : ndarray, shape (n_obs, n_classes)
            Averages without each row and the bases on it; `probability` has the shape as well.
        """
        both = [share / share.sum(axis=1, keepdims=True) for share in (self.probability, held_out)]
        if self.likelihood.n_scores == 1:
            both = [share[:, 1] for share in both]
        centres, basis_width, n = self.centres, None, len(self.centres)
        if not np.isnan(as_kernel(self.kernel, 1.0).width):
            places = np.tile(np.arange(n), len(WIDTH_FACTORS))
            rows, sign = centres.rows[places], centres.signs_of(places)
            centres = Centres(centres.points[places], sign, rows)
            basis_width = np.multiply.outer(np.repeat(WIDTH_FACTORS, n), self.width)
        return replace(
            self, centres=centres, probability=both[0], held_out=both[1], basis_width=basis_width
        )

    def kernel_of(self, columns: Index | slice = slice(None)) -> KernelPiece:
        """Return the kernel of some of the bases, of their widths."""
        if self.basis_width is None:
            return as_kernel(self.kernel, self.width)
        return PerCentre(as_kernel(self.kernel), self.basis_width[columns])

    def design(self) -> Array:
        """Return all basis functions at the training inputs, shape (n_obs, n_basis)."""
        return self.kernel_of()(self.X, self.centres.points)

    def problem(
        self, Phi: Array, columns: Index | slice = slice(None), rows: Index | slice = slice(None)
    ) -> Problem:
        """Return the problem of a fit of some of the bases to some of the rows."""
        sign, label = self.centres.signs_of(columns), self.label[rows]
        weight = None if self.weight is None else self.weight[rows]
        pieces = self.hyperprior, self.likelihood
        return Problem(Phi, label, sign, *pieces, row_weight=weight)

    def target(
        self,
        Phi: Array,
        columns: Index | slice = slice(None),
        probability: Array | None = None,
        rows: Index | slice = slice(None),
    ) -> Target:
        """Return the class probabilities to approximate by some of the bases on some of the rows."""
        p = self.probability if probability is None else probability
        weight = None if self.weight is None else self.weight[rows]
        sign, likelihood = self.centres.signs_of(columns), self.likelihood.of_labels
        return Target(Phi, sign, p, weight, likelihood=likelihood)


class Scored(NamedTuple):
    """A path of submodels of an average, and their losses against it; see `Projection`."""

    path: ProjectionPath
    size: int
    log_density: Array
    reference_log_density: Array
    loss_se: Array


def standard_error(log_density: Array) -> Array:
    """Return standard errors of sums over independent rows, shape (n_sizes,)."""
    n_sizes, n = log_density.shape
    return np.sqrt(n) * log_density.std(axis=1, ddof=1) if n > 1 else np.full(n_sizes, np.nan)


def grown(reference: Reference, sizes: Sequence[int] | None) -> Scored:
    """Add vectors until almost nothing is lost against an average.

    The loss of a row is the average's divergence from the submodel: what a comparison on observed labels
    estimates, without the noise of these. Its error is that of labels drawn from the average.
    """
    n_basis, Phi = len(reference.centres), reference.design()
    likelihood = reference.likelihood.of_labels
    target = reference.target(Phi)

    def near(model: Submodel) -> bool:
        return target.divergence(model.latent) <= _NEAR

    path = project_path(target, sizes_of("auto", sizes, n_basis, n_basis), until=near)
    enough = np.flatnonzero(path.kl <= _NEAR)
    fitted = [class_probability(likelihood, latent) for latent in path.latent(Phi)]
    expected, held_out = reference.probability, np.asarray(reference.held_out)
    number = reference.label
    if likelihood.n_scores == 1:
        expected, held_out = (np.column_stack([1.0 - p, p]) for p in (expected, held_out))
        number = (number > 0).astype(int)
    tiny, n = np.finfo(float).tiny, len(number)
    weight = np.ones(n) if reference.weight is None else reference.weight
    ratio = np.log(np.maximum(expected, tiny)) - np.log(np.maximum(fitted, tiny))
    loss = np.einsum("ic,sic->si", expected, ratio)
    square = np.average(np.einsum("ic,sic->si", expected, ratio**2), axis=1, weights=weight)
    variance = square - np.average(loss, axis=1, weights=weight) ** 2
    density = weight * np.log(np.maximum(held_out[np.arange(n), number], tiny))
    size = int(path.sizes[enough[0] if len(enough) else -1])
    error = np.sqrt(weight.sum() * np.maximum(variance, 0.0))
    return Scored(path, size, density - weight * loss, density, error)


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
    error = standard_error(log_density[best] - log_density)
    return int(sizes[np.flatnonzero(total + error >= total[best])[0]])


def cross_validated(
    reference: Reference,
    Phi: Array,
    sizes: Sequence[int],
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
    fit: Callable[[Problem], EMResult],
) -> Array:
    """Return held-out log densities, shape (n_sizes + 1, n_obs); the last is the dense reference's.

    `fit` is that of a fold's reference.
    """
    density = np.empty((len(sizes) + 1, len(Phi)))
    likelihood = reference.likelihood.of_labels
    for train, test in folds:
        columns = reference.centres.columns_of(train)
        basis, held_out = Phi[np.ix_(train, columns)], Phi[np.ix_(test, columns)]
        dense = fit(reference.problem(basis, columns, train))
        possible = [min(size, len(columns)) for size in sizes]
        probability = likelihood.probability(dense.latent)
        path = project_path(reference.target(basis, columns, probability, train), possible)
        at = np.searchsorted(path.sizes, possible)
        latent = [*path.latent(held_out)[at], held_out @ dense.weight + dense.bias]
        density[:, test] = [
            likelihood.log_density(values, reference.label[test]) for values in latent
        ]
    return density if reference.weight is None else density * reference.weight


def sizes_of(size: Any, sizes: Any, n_basis: int, most: int) -> list[int]:
    """Return the path's sizes in ascending order, the chosen one among them; by default up to `most`."""

    def fits(n: Any) -> bool:
        return is_real(n, Integral) and 0 <= n <= n_basis

    given = list(sizes) if isinstance(sizes, list | tuple | range | np.ndarray) else []
    if sizes is not None and not (given and all(map(fits, given))):
        needed = f"needed whole numbers from 0 to {n_basis}, the bases"
        raise ValueError(f"sizes={shown(sizes)}; {needed}")
    if isinstance(size, str) and size == "auto":
        return sorted(set(map(int, given))) or default_sizes(most).tolist()
    if not fits(size):
        raise ValueError(f"size={shown(size)}; needed 'auto' or a whole number from 0 to {n_basis}")
    return sorted({*map(int, given), int(size)})
