"""The search for the best submodel of each size."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.pieces.validation import check_flag, check_real, check_whole
from pcvm_pymc.core.submodels.l1 import l1_supports
from pcvm_pymc.core.submodels.refit import Submodel, fit_submodel, null_model
from pcvm_pymc.core.submodels.scans import addition_gains, best_additions, best_exchanges, scan
from pcvm_pymc.core.submodels.target import Columns, Target

__all__ = ["ProjectionPath", "SearchOptions", "default_sizes", "project_path"]

_LEAST_SHARE = 1e-3  # of the divergence, for an exchange to be worth its refits
_MAX_ROUNDS = 6  # additions at one size, where each drives another weight to zero


@dataclass(frozen=True)
class SearchOptions:
    """How hard the search for each size tries.

    Parameters
    ----------
    candidates : int
        Additions with the largest score statistics that are refitted; the best one is taken.
    exchanges : int
        Exchanges of one vector with the largest predicted gain that are refitted at a time.
    max_exchanges : int
        Exchanges made at each size at most.
    l1 : bool
        Whether supports of an L1 path, refitted, compete at each size.
    backward : bool
        Whether backward elimination from the largest model competes.
    tol : float
        Nats per row: the search ends, and later sizes repeat its last model, once no addition gains
        more.

    Notes
    -----
    Several classes: exchanges, the L1 path and backward elimination are of one score alone.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier, project
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> dense = PCVMClassifier(width=1.0).fit(X, X[:, 0] > 0)
    >>> quick = project(dense, X, X[:, 0] > 0, size=2, options=SearchOptions.greedy(), random_state=0)
    >>> quick.path.sizes.tolist()
    [2]
    """

    candidates: int = 5
    exchanges: int = 4
    max_exchanges: int = 20
    l1: bool = True
    backward: bool = True
    tol: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("candidates", 1), ("exchanges", 1), ("max_exchanges", 0)):
            check_whole(name, getattr(self, name), least)
        for name in ("l1", "backward"):
            check_flag(name, getattr(self, name))
        check_real("tol", self.tol)

    @classmethod
    def greedy(cls) -> "SearchOptions":
        """Return plain forward selection: the largest score statistic is added, and stays."""
        return cls(candidates=1, max_exchanges=0, l1=False, backward=False)

    @property
    def is_forward(self) -> bool:
        """Whether the search only adds vectors."""
        return not (self.max_exchanges or self.l1 or self.backward)


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
    columns: tuple[Columns, ...]
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


def _ranking_tolerance(model: Submodel, options: SearchOptions) -> float:
    """Return at which gain Newton stops for a rival of `model`: the best one is refitted to the end."""
    return max(0.1 * options.tol, 0.01 * model.objective)


def _grow(target: Target, model: Submodel, size: int, options: SearchOptions) -> Submodel:
    """Return the model with vectors added until it has `size`, or none lowers the objective.

    An addition may drive another weight to zero; after a few of these the model stays smaller.
    """
    for _ in range(max(size - model.n_vectors, 0) + _MAX_ROUNDS):
        if model.n_vectors >= size:
            break
        fits = [
            fit_submodel(target, [*model.columns, j], model, tol=_ranking_tolerance(model, options))
            for j in best_additions(target, scan(target, model), options.candidates)
        ]
        best = min(fits, key=lambda each: each.objective, default=model)
        if not best.objective < model.objective - options.tol:
            break
        model = fit_submodel(target, best.columns, best)
    return model


def _exchange(target: Target, model: Submodel, options: SearchOptions) -> Submodel:
    """Return the model after exchanges of single vectors, as long as one lowers the objective."""
    for _ in range(options.max_exchanges):
        fits = []
        for leaving, entering in best_exchanges(
            target, model, scan(target, model), options.exchanges
        ):
            columns = [*(j for j in model.columns if j != leaving), entering]
            fits.append(
                fit_submodel(target, columns, model, tol=_ranking_tolerance(model, options))
            )
        best = min(fits, key=lambda each: each.objective, default=model)
        least = max(options.tol, _LEAST_SHARE * model.objective)
        if not best.objective < model.objective - least:
            break
        model = fit_submodel(target, best.columns, best)
    return model


def _shrink(target: Target, model: Submodel, options: SearchOptions) -> Submodel:
    """Return the model without the vector that is missed least."""
    found = scan(target, model)
    loss = model.weight**2 / found.variance
    fits = []
    for i in np.argsort(loss, kind="stable")[: options.candidates]:
        fits.append(
            fit_submodel(
                target, np.delete(model.columns, i), model, tol=_ranking_tolerance(model, options)
            )
        )
    best = min(fits, key=lambda each: each.objective)
    return fit_submodel(target, best.columns, best)


def _is_complete(target: Target, model: Submodel, options: SearchOptions) -> bool:
    """Whether no column promises to lower the objective by more than the tolerance."""
    return bool(addition_gains(target, scan(target, model)).max(initial=0.0) <= options.tol)


def _best(models: Iterable[Submodel]) -> Submodel:
    return min(models, key=lambda each: each.objective)


def _exchanged(target: Target, starts: list[Submodel], options: SearchOptions) -> Submodel:
    """Return the best of what exchanges make of each distinct start."""
    distinct = {each.columns.tobytes(): each for each in starts}
    return _best(_exchange(target, each, options) for each in distinct.values())


def _ascend(
    target: Target,
    sizes: Sequence[int],
    options: SearchOptions,
    until: Callable[[Submodel], bool] | None,
) -> dict[int, Submodel]:
    """Return a submodel of each size by forward selection, up to the first that is enough.

    Plain selection goes on beside the one that exchanges have changed: earlier improvements need not
    help later. The L1 path's supports are a third start.
    """
    supports = l1_supports(target, max(sizes), tol=options.tol) if options.l1 else {}
    model = plain = null_model(target)
    models = {0: model}
    for size in range(1, max(sizes) + 1):
        if until is not None and size - 1 in sizes and until(model):
            break
        if model.n_vectors < size - 1 and _is_complete(target, model, options):
            models[size] = model
            continue
        same = np.array_equal(plain.columns, model.columns)
        model = _grow(target, model, size, options)
        plain = model if same else _grow(target, plain, size, options)
        if size in sizes:
            starts = [model, plain]
            if size in supports:
                start = fit_submodel(target, supports[size], model)
                starts.append(_grow(target, start, size, options))
            model = _exchanged(target, starts, options)
        models[size] = _best([model, plain])
    return models


def _descend(
    target: Target, models: dict[int, Submodel], sizes: Sequence[int], options: SearchOptions
) -> None:
    """Let what backward elimination from the largest model finds compete at each size."""
    model = models[max(models)]
    for size in range(max(models) - 1, 0, -1):
        if model.n_vectors <= size:
            continue
        model = _shrink(target, model, options)
        if size in sizes:
            model = _exchange(target, model, options)
        model = models[size] = _best([models[size], model])


def _never_worse(
    target: Target, models: dict[int, Submodel], options: SearchOptions
) -> list[Submodel]:
    """Return the models in order of size, each at least as near as the one before."""
    path = [models[0]]
    for size in range(1, max(models) + 1):
        best = models[size]
        if best.objective > path[-1].objective:
            best = _grow(target, path[-1], size, options)
        path.append(best)
    return path


@threads_by_size
def project_path(
    target: Target,
    sizes: Sequence[int] | None = None,
    options: SearchOptions | None = None,
    *,
    until: Callable[[Submodel], bool] | None = None,
) -> ProjectionPath:
    """Find the submodels of given sizes that lose least in Kullback-Leibler divergence.

    Forward selection by Rao's score statistic, where the best of several candidates is found by
    refitting; then exchanges of single vectors by the exact gain of the quadratic model,
    accepted when a refit confirms them; the same from the support of an L1 path; then backward
    elimination from the largest model. The best submodel of each size is kept, so that none is worse than
    forward selection's. It is a local optimum, not a certificate: the best subset is NP-hard.

    Parameters
    ----------
    target : Target
    sizes : sequence of int, optional
        Numbers of vectors, 0 being the bias alone. Default: `default_sizes` up to 30.
    options : SearchOptions, optional
        Default: all that there is; for several classes or free weights forward selection,
        `SearchOptions.greedy`.
    until : callable, optional
        ``(submodel) -> bool``, asked at each of the sizes as forward selection grows: the path ends with the
        first that is enough.

    Returns
    -------
    ProjectionPath

    Raises
    ------
    ValueError
        If `sizes` is empty, or one is negative or exceeds the number of columns; for several classes, if
        options ask for more than forward selection.

    References
    ----------
    J. Piironen, M. Paasiniemi and A. Vehtari (2020), "Projective inference in high-dimensional problems:
    prediction and feature selection", Electronic Journal of Statistics 14(1).
    """
    if options is None:
        plain = target.n_scores > 1 or target.sign is None
        options = SearchOptions.greedy() if plain else SearchOptions()
    _check_search(target, options)
    n_basis = target.Phi.shape[1]
    if sizes is None:
        sizes = default_sizes(min(30, n_basis)).tolist()
    wanted = sorted({int(size) for size in sizes})
    if not wanted or wanted[0] < 0 or wanted[-1] > n_basis:
        raise ValueError(f"sizes={wanted}; needed whole numbers from 0 to {n_basis}, the bases")
    models = _ascend(target, wanted, options, until)
    wanted = [size for size in wanted if size in models]
    if wanted[-1] == n_basis:  # nothing to choose: the constrained optimum on all columns
        models[n_basis] = _best([models[n_basis], fit_submodel(target, range(n_basis))])
    if options.backward:
        _descend(target, models, wanted, options)
    path = _never_worse(target, models, options)
    chosen = [path[size] for size in wanted]
    return ProjectionPath(
        sizes=np.array(wanted),
        columns=tuple(model.columns for model in chosen),
        weights=tuple(_balanced(target, model) for model in chosen),
        bias=np.array(
            [model.bias - np.mean(model.bias) * (target.n_scores > 1) for model in chosen]
        ),
        kl=np.array([target.divergence(model.latent) for model in chosen]),
        objective=np.array([model.objective for model in chosen]),
    )


def _check_search(target: Target, options: SearchOptions) -> None:
    if target.n_scores > 1 and not options.is_forward:
        raise ValueError(
            f"{options}: exchanges, the L1 path and backward elimination are of one score; for several "
            "classes needed SearchOptions(max_exchanges=0, l1=False, backward=False)"
        )
    if target.sign is None and options.l1:
        raise ValueError(
            f"{options}: the L1 path goes by signs; for free weights needed SearchOptions(l1=False)"
        )


def _balanced(target: Target, model: Submodel) -> Array:
    """Return weights, moved by a constant for each vector of several classes to the least squares.

    As far as the sign rule lets them: the own class' weight is zero in a `Submodel`.
    """
    if target.n_scores == 1:
        return model.weight
    if target.sign is None:
        return model.weight - model.weight.mean(axis=1, keepdims=True)
    own = ~target.free[model.columns]
    below = np.where(own, -np.inf, model.weight).max(axis=1)
    return model.weight + np.minimum(-model.weight.mean(axis=1), -below)[:, None]
