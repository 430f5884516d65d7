"""Starts of EM that Chen et al. (2009) choose among, and the PCVM of the best of eight."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.estimators.pcvm import PCVMClassifier

type StartRecipe = Callable[[Problem, np.random.Generator], Start]


def random_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return sizes uniform on [0.2, 1.2], as in the authors' program, for weights and bias.

    Several scores: precisions of one and random first responses, as the mRVM's authors have.
    """
    if problem.n_scores > 1:
        own = problem.label[:, None] == np.arange(problem.n_scores)
        response = 10.0 * own + rng.uniform(size=own.shape)
        bias = np.full(problem.n_scores, 0.0 if problem.bias == "none" else 1.0)
        return Start(problem.weight_sign.copy(), bias, response)
    size = rng.uniform(0.2, 1.2, problem.Phi.shape[1])
    own = float(rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 1.2))
    return Start(problem.weight_sign * size, 0.0 if problem.bias == "none" else own)


def authors_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return the start of the authors' program: random sizes and latent responses ``10 u y + u'``."""
    if problem.n_scores > 1:
        raise ValueError("authors_start is for two classes; use random_start")
    label = problem.label
    start = random_start(problem, rng)
    response = 10 * rng.uniform(size=len(label)) * label + rng.uniform(size=len(label))
    return replace(start, response=response)


def solution_start(problem: Problem, weight: Array, bias: float, rng: np.random.Generator) -> Start:
    """Return another machine's solution as a start (Chen et al. 2009, footnote 9).

    Zero and wrong-signed weights become small random values, so that they are not pruned at once.
    """
    small = problem.weight_sign * rng.uniform(0.01, 0.1, len(weight))
    right = weight * problem.weight_sign > 0
    return Start(np.where(right, weight, small), bias if bias != 0 else 0.1)


def relevance_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an RVM-like start: fifty iterations of EM without the sign rule (footnote 9)."""
    free = replace(problem, sign=None, hyperprior=Hyperprior.jeffreys(), moves=None)
    machine = fit_em(free, Start(problem.weight_sign.copy(), 0.1), EMOptions(max_iter=50))
    return solution_start(problem, machine.weight, machine.bias, rng)


def support_vector_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an SVM's dual coefficients as a start (footnote 9).

    On other bases than the rows they are the weights of a linear SVM on the basis functions.
    """
    n_obs, n_basis = problem.Phi.shape
    label, each = problem.label, problem.row_weight
    if n_obs == n_basis:
        machine = SVC(kernel="precomputed").fit(problem.Phi, label, each)
        weight = np.zeros(n_basis)
        weight[machine.support_] = machine.dual_coef_[0]
    else:
        machine = SVC(kernel="linear").fit(problem.Phi, label, each)
        weight = machine.coef_[0]
    return solution_start(problem, weight, float(machine.intercept_[0]), rng)


def start_recipes(n_starts: int) -> list[StartRecipe]:
    """Return the first starts: default, RVM-like, SVM-like, then random ones."""
    first: list[StartRecipe] = [
        lambda problem, rng: Start.default(problem),
        relevance_start,
        support_vector_start,
    ]
    return (first + [random_start] * max(0, n_starts - len(first)))[:n_starts]


def best_of_starts(
    problem: Problem, n_starts: int, options: EMOptions, rng: np.random.Generator, *, cv: int = 5
) -> EMResult:
    """Return EM's end from the start whose fits have the smallest cross-validated log loss.

    Each row is a centre: a held-out row's own basis is left out with it.
    """
    recipes, label = start_recipes(n_starts), problem.label
    n_folds = min(cv, int(np.unique(label, return_counts=True)[1].min()))
    seeds, loss = rng.integers(2**31, size=n_starts), np.zeros(n_starts)
    if n_folds > 1 and n_starts > 1:
        folds = StratifiedKFold(n_folds, shuffle=True, random_state=int(rng.integers(2**31)))
        for train, test in folds.split(label, label):
            assert problem.sign is not None
            part = problem.part(train, train)
            for k, recipe in enumerate(recipes):
                found = fit_em(part, recipe(part, np.random.default_rng(seeds[k])), options)
                latent = problem.Phi[np.ix_(test, train)] @ found.weight + found.bias
                value = problem.observed[test].log_likelihood(latent)
                loss[k] -= value / len(test)
    best = int(loss.argmin())
    start = recipes[best](problem, np.random.default_rng(seeds[best]))
    return fit_em(problem, start, options)


class EightStartsPCVM(PCVMClassifier):
    """A PCVM by EM from the best of eight starts by cross-validation; arguments of `PCVMClassifier`."""

    def _solved(self, problem: Problem) -> EMResult:
        options, rng = self.options or EMOptions(), np.random.default_rng(self.random_state)
        return best_of_starts(problem, 8, options, rng)
