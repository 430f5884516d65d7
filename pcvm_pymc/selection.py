"""Choosing a kernel width, and a start of EM, inside the training data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from pcvm_pymc.core.bases import (
    Kernel,
    design_matrix,
    median_distance,
    rbf,
    squared_distances,
    width_bounds,
    width_grid,
)
from pcvm_pymc.core.em import EMOptions, EMResult, Problem, Start, fit_em, relevance_start
from pcvm_pymc.core.family import own_label
from pcvm_pymc.core.priors import Hyperprior
from pcvm_pymc.core.probit import Array, log_likelihood
from pcvm_pymc.core.validation import as_features, as_labels

__all__ = [
    "WidthSelection",
    "select_start",
    "select_width",
    "start_recipes",
    "stratified_folds",
]

type StartRecipe = Callable[[Problem, np.random.Generator], Start]
type Fold = tuple[np.ndarray, np.ndarray]

# a fit that only ranks candidates need not be run to its last digit: these give held-out log losses to
# about 1e-4, by Newton's steps and by EM's smaller ones
_RANKING_TOLERANCE = {"proper": 0.05, "improper": 1e-3}


@dataclass(frozen=True)
class WidthSelection:
    """A chosen width, and the scores that it was chosen by.

    Attributes
    ----------
    width : float
        The chosen one.
    widths : ndarray, shape (n_widths,)
    log_loss : ndarray, shape (n_widths, n_folds)
        Held-out mean negative log probability of the labels, in nats per row.
    """

    width: float
    widths: Array
    log_loss: Array


def select_width(
    X: ArrayLike,
    y: ArrayLike,
    *,
    hyperprior: Hyperprior | None = None,
    kernel: Kernel = "rbf",
    widths: Sequence[float] | None = None,
    cv: int = 5,
    method: str = "cv",
    options: EMOptions | None = None,
    random_state: int | np.random.Generator | None = None,
    progressbar: bool = False,
) -> WidthSelection:
    """Choose the kernel width of a PCVM.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels, two classes.
    hyperprior : Hyperprior, optional
        Default: `Hyperprior.plug_in`, since it is the MAP that is scored.
    kernel : "rbf" or callable
    widths : sequence of float, optional
        Candidates. Default: nine in geometric progression between 0.2 and 2.5 times the median distance.
    cv : int
        Folds; fewer where a class has fewer points. The bases of held-out rows are left out with them.
    method : {"cv", "em"}
        ``"cv"`` takes the width of smallest cross-validated log loss; ``"em"`` maximises the
        log posterior over the width within EM (Chen et al. 2009 eq. 10, corrected).
    options : EMOptions, optional
    random_state : int or numpy.random.Generator, optional
        For the folds.
    progressbar : bool

    Returns
    -------
    WidthSelection
        `log_loss` is empty for ``"em"``, for a single candidate, and where a class has a single point
        so that nothing can be held out (then the median candidate is taken).

    Raises
    ------
    ValueError
        For input that cannot be used, or an unknown method.
    """
    X = as_features(X)
    label, _ = as_labels(y, len(X))
    hyperprior = hyperprior or Hyperprior.plug_in()
    options = options or EMOptions()
    candidates = width_grid(X) if widths is None else np.asarray(widths, float)
    if candidates.ndim != 1 or len(candidates) == 0 or not (candidates > 0).all():
        raise ValueError(f"widths={widths!r}; needed one or more positive numbers")
    if method == "em":
        if kernel != "rbf":
            raise ValueError(f"method='em' needs kernel='rbf'; found {kernel!r}")
        problem = problem_at(X, label, hyperprior, median_distance(X), free_width=True)
        result = fit_em(problem, None, options)
        return WidthSelection(result.width, candidates, np.empty((len(candidates), 0)))
    if method != "cv":
        raise ValueError(f"method={method!r} is unknown; use 'cv' or 'em'")
    folds = stratified_folds(X, label, cv, random_state)
    if len(candidates) == 1 or not folds:
        middle = float(np.median(candidates))
        return WidthSelection(middle, candidates, np.empty((len(candidates), 0)))
    tolerance = _RANKING_TOLERANCE["proper" if hyperprior.is_proper else "improper"]
    options = replace(options, tol=max(options.tol, tolerance))
    squared = squared_distances(X, X) if kernel == "rbf" else None
    loss = np.empty((len(candidates), len(folds)))
    steps = track(
        list(enumerate(candidates)),
        "width by cross-validation",
        console=Console(stderr=True),
        disable=not progressbar,
    )
    starts: list[Start | None] = [None] * len(folds)
    previous = np.nan
    for i, width in steps:
        Phi = _design(kernel, X, float(width), squared)
        total = float(np.abs(Phi).sum())
        for j, (train, test) in enumerate(folds):
            start = _rescaled(starts[j], previous, total)
            result = fit_em(_fold_problem(Phi, label, hyperprior, train), start, options)
            loss[i, j] = _log_loss(Phi[np.ix_(test, train)], label[test], result)
            if hyperprior.is_proper:  # else what is pruned would stay so
                starts[j] = Start(result.weight, result.bias)
        previous = total
    return WidthSelection(float(candidates[loss.mean(axis=1).argmin()]), candidates, loss)


def _rescaled(start: Start | None, previous: float, total: float) -> Start | None:
    """Return the last width's solution as a start: bases that sum to more need smaller weights."""
    if start is None:
        return None
    factor = np.clip(previous / max(total, np.finfo(float).tiny), 1e-3, 1e3)
    return Start(start.weight * factor, start.bias)


def _design(kernel: Kernel, X: Array, width: float, squared: Array | None) -> Array:
    return design_matrix(kernel, X, X, width) if squared is None else rbf(squared, width)


def problem_at(
    X: Array,
    label: Array,
    hyperprior: Hyperprior,
    width: float,
    *,
    kernel: Kernel = "rbf",
    free_width: bool = False,
) -> Problem:
    """Return the PCVM's problem with a basis at each row; `free_width` lets EM move the RBF's."""
    if not free_width:
        Phi = design_matrix(kernel, X, X, width)
        return Problem(Phi, label, own_label(label), hyperprior, width=width)
    squared = squared_distances(X, X)
    return Problem(
        rbf(squared, width),
        label,
        own_label(label),
        hyperprior,
        squared_distance=squared,
        width=width,
        width_bounds=width_bounds(X),
    )


def _fold_problem(Phi: Array, label: Array, hyperprior: Hyperprior, train: np.ndarray) -> Problem:
    """Return the problem without the held-out rows and without their bases."""
    return Problem(Phi[np.ix_(train, train)], label[train], own_label(label[train]), hyperprior)


def _log_loss(Phi: Array, label: Array, result: EMResult) -> float:
    return -log_likelihood(Phi @ result.weight + result.bias, label) / len(label)


def stratified_folds(
    X: Array, label: Array, cv: int, random_state: int | np.random.Generator | None
) -> list[Fold]:
    """Return stratified folds, as many as the smaller class allows; none if it has one point."""
    n_folds = min(cv, int(min(np.sum(label > 0), np.sum(label < 0))))
    if n_folds < 2:
        return []
    seed = int(np.random.default_rng(random_state).integers(2**31))
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    return list(folds.split(X, label))


def support_vector_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an SVM's dual coefficients as a start (Chen et al. 2009, footnote 9)."""
    machine = SVC(kernel="precomputed").fit(problem.Phi, problem.label)
    weight = np.zeros(problem.Phi.shape[1])
    weight[machine.support_] = machine.dual_coef_[0]
    return Start.from_solution(problem, weight, float(machine.intercept_[0]), rng)


def start_recipes(n_init: int, options: EMOptions) -> list[StartRecipe]:
    """Return the first `n_init` starts: default, RVM-like, SVM-like, then random ones.

    The authors' recipe starts as their program does, each time at random.
    """
    if options.update == "clip":
        return [Start.chen2009] * n_init
    first: list[StartRecipe] = [
        lambda problem, rng: Start.default(problem),
        relevance_start,
        support_vector_start,
    ]
    return (first + [Start.random] * max(0, n_init - len(first)))[:n_init]


def select_start(
    X: Array,
    label: Array,
    make_problem: Callable[[Array, Array], Problem],
    *,
    n_init: int,
    cv: int,
    options: EMOptions,
    design: Callable[[Array, Array, float], Array],
    rng: np.random.Generator,
) -> StartRecipe:
    """Return the start whose fits have the smallest cross-validated log loss.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    label : ndarray, shape (n_obs,)
    make_problem : callable
        ``(X, label) -> Problem`` on the rows given.
    n_init : int
        Number of starts tried.
    cv : int
    options : EMOptions
    design : callable
        ``(X, centres, width) -> Phi``.
    rng : numpy.random.Generator
    """
    recipes = start_recipes(n_init, options)
    folds = stratified_folds(X, label, cv, rng) if n_init > 1 else []
    if not folds:
        return recipes[0]
    seeds = rng.integers(2**31, size=n_init)
    loss = np.zeros(n_init)
    for train, test in folds:
        problem = make_problem(X[train], label[train])
        for k, recipe in enumerate(recipes):
            start = recipe(problem, np.random.default_rng(seeds[k]))
            result = fit_em(problem, start, options)
            Phi = design(X[test], X[train], result.width)
            loss[k] += _log_loss(Phi, label[test], result)
    best = int(loss.argmin())
    return lambda problem, _: recipes[best](problem, np.random.default_rng(seeds[best]))
