"""Starts of EM that Chen et al. (2009) choose among."""

from collections.abc import Callable

import numpy as np
from sklearn.svm import SVC

from pcvm_pymc.core.em import EMOptions, Start, relevance_start
from pcvm_pymc.core.pieces.likelihood import plain_target
from pcvm_pymc.core.problem import Problem

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
