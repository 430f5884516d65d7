"""Choosing where EM starts inside the training data."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

from pcvm_pymc.core.em import EMOptions, Start, fit_em, relevance_start
from pcvm_pymc.core.pieces.likelihood import plain_target, weighted_target
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.selection import held_out_loss, stratified_folds

__all__ = ["select_start", "start_recipes", "support_vector_start"]

type StartRecipe = Callable[[Problem, np.random.Generator], Start]


def support_vector_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an SVM's dual coefficients as a start (Chen et al. 2009, footnote 9).

    On other bases than the rows they are the weights of a linear SVM on the basis functions.
    """
    n_obs, n_basis = problem.Phi.shape
    label, each = plain_target(problem.label), problem.row_weight
    if n_obs == n_basis:
        machine = SVC(kernel="precomputed").fit(problem.Phi, label, each)
        weight = np.zeros(n_basis)
        weight[machine.support_] = machine.dual_coef_[0]
    else:
        machine = SVC(kernel="linear").fit(problem.Phi, label, each)
        weight = machine.coef_[0]
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
    make_problem: Callable[[NDArray[np.intp]], Problem],
    *,
    n_init: int,
    cv: int,
    options: EMOptions,
    design: Callable[[NDArray[np.intp], NDArray[np.intp], float], Array],
    rng: np.random.Generator,
    row_weight: Array | None = None,
) -> StartRecipe:
    """Return the start whose fits have the smallest cross-validated log loss.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    label : ndarray, shape (n_obs,)
    make_problem : callable
        ``(train) -> Problem`` on the rows given by their indices, and the bases that remain with them.
    n_init : int
        Number of starts tried.
    cv : int
    options : EMOptions
    design : callable
        ``(test, train, width) -> Phi`` of these bases at other rows.
    rng : numpy.random.Generator
    row_weight : ndarray, shape (n_obs,), optional
        How often each row counts, held out or not.
    """
    recipes = start_recipes(n_init, options)
    folds = stratified_folds(X, label, cv, rng) if n_init > 1 else []
    if not folds:
        return recipes[0]
    seeds = rng.integers(2**31, size=n_init)
    loss = np.zeros(n_init)
    known = label if row_weight is None else weighted_target(label, row_weight)
    for train, test in folds:
        problem = make_problem(train)
        for k, recipe in enumerate(recipes):
            start = recipe(problem, np.random.default_rng(seeds[k]))
            result = fit_em(problem, start, options)
            loss[k] += held_out_loss(
                problem, result, design(test, train, result.width), known[test]
            )
    best = int(loss.argmin())
    return lambda problem, _: recipes[best](problem, np.random.default_rng(seeds[best]))
