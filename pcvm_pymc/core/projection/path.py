"""Greedy forward selection of the columns of submodels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.projection.submodel import Submodel, Target, addition_gains, fit_submodel
from pcvm_pymc.core.quadratic import Index

_LEAST_GAIN = 1e-6  # nats per row of a further column, below which the path stops to grow
_MOST_PRUNED = 6  # additions at one size of which each brings another weight to zero


@dataclass(frozen=True)
class ProjectionPath:
    """The best submodel found of each size.

    Attributes
    ----------
    sizes : ndarray of int, shape (n_sizes,)
        Numbers of vectors asked for. A submodel has fewer where more do not lower the divergence.
    columns : tuple of ndarray of int
        Chosen columns of each.
    weights : tuple of ndarray
        Their weights, one for each class where there are several.
    bias : ndarray, shape (n_sizes,), or (n_sizes, n_classes) for several classes
    kl : ndarray, shape (n_sizes,)
        Mean divergence from the reference, nats per row.
    objective : ndarray, shape (n_sizes,)
        The same with the ridge, which is negligible unless weights are huge; never increases.
    """

    sizes: NDArray[np.int64]
    columns: tuple[Index, ...]
    weights: tuple[Array, ...]
    bias: Array
    kl: Array
    objective: Array

    def dense_weight(self, i: int, n_basis: int) -> Array:
        """Return the weights of the i-th submodel among zeros, shape (n_basis,) or (n_basis, n_classes)."""
        weight = np.zeros((n_basis, *self.bias.shape[1:]))
        weight[self.columns[i]] = self.weights[i]
        return weight

    def latent(self, Phi: Array) -> Array:
        """Return each submodel's latent function at rows of `Phi`.

        Shape (n_sizes, n_obs), or (n_sizes, n_obs, n_classes) for several classes.
        """
        parts = zip(self.columns, self.weights, self.bias, strict=True)
        return np.stack([Phi[:, columns] @ weight + b for columns, weight, b in parts])


def default_sizes(largest: int) -> NDArray[np.int64]:
    """Return 0, 1, 2, 3, ... in steps that grow with the size, up to `largest`."""
    sizes, size = {0, largest}, 1
    while size < largest:
        sizes.add(size)
        size = max(size + 1, round(1.2 * size))
    return np.array(sorted(sizes))


def _grown(target: Target, model: Submodel, size: int) -> Submodel:
    """Return the model with columns added until it has `size`, or none gains enough.

    An addition may bring another weight to zero; after a few of these the model stays smaller.
    """
    for _ in range(size - model.n_vectors + _MOST_PRUNED):
        if model.n_vectors >= size:
            break
        gain = addition_gains(target, model)
        new = fit_submodel(target, [*model.columns, int(gain.argmax())], model)
        if not new.objective < model.objective - _LEAST_GAIN:
            break
        model = new
    return model


@threads_by_size
def project_path(
    target: Target,
    sizes: Sequence[int],
    *,
    until: Callable[[Submodel], bool] | None = None,
) -> ProjectionPath:
    """Select the columns of submodels of given sizes, to lose little in Kullback-Leibler divergence.

    Forward selection: the column with the largest score statistic (Rao's, at the submodel) is added, and all
    weights are refitted. The best subset of a size is NP-hard to find; this is a local optimum.

    Parameters
    ----------
    target : Target
    sizes : sequence of int
        Numbers of vectors, 0 being the bias alone, at most that of the columns.
    until : callable, optional
        ``(submodel) -> bool``, asked at each of the sizes: the path ends with the first that is enough.

    Returns
    -------
    ProjectionPath

    References
    ----------
    J. Piironen, M. Paasiniemi and A. Vehtari (2020), "Projective inference in high-dimensional problems:
    prediction and feature selection", Electronic Journal of Statistics 14(1).
    """
    n_basis = target.Phi.shape[1]
    wanted = sorted({int(size) for size in sizes})
    path: list[Submodel] = []
    model = fit_submodel(target, [])
    for size in wanted:
        if size < n_basis:
            model = _grown(target, model, size)
        else:  # nothing to select: the constrained optimum on all columns
            full = fit_submodel(target, range(n_basis), model)
            model = min(model, full, key=lambda model: model.objective)
        path.append(model)
        if until is not None and until(model):
            break
    return ProjectionPath(
        sizes=np.array(wanted[: len(path)]),
        columns=tuple(model.columns for model in path),
        weights=tuple(_balanced(target, model) for model in path),
        bias=np.array([model.bias - np.mean(model.bias) * (target.n_scores > 1) for model in path]),
        kl=np.array([target.divergence(model.latent) for model in path]),
        objective=np.array([model.objective for model in path]),
    )


def _balanced(target: Target, model: Submodel) -> Array:
    """Return weights of several classes, each vector's shifted by a constant to the least squares.

    As far as the sign rule allows it: in a `Submodel` the weight in the vector's own class is zero.
    """
    if target.n_scores == 1:
        return model.weight
    mean = model.weight.mean(axis=1, keepdims=True)
    if target.sign is None:
        return model.weight - mean
    others = np.where(target.free[model.columns], model.weight, -np.inf)
    return model.weight - np.maximum(mean, others.max(axis=1, keepdims=True))
