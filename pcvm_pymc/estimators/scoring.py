"""Held-out predictions at a candidate: from one factorisation, class by class, or without folds of rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.em import Start, fit_em
from pcvm_pymc.core.loo import LeaveOneOut, leave_one_out
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.probabilities import log_normalised
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.estimators.candidates import Candidate
from pcvm_pymc.estimators.formulation import Formulation, loosened
from pcvm_pymc.estimators.training import Fold


def start_near(near: Candidate | None, problem: Problem) -> Start | None:
    """Return a neighbour's solution as a start."""
    prior: Any = problem.hyperprior
    if near is None or near.result is None or prior.holds_zeros:  # else zeros would stay zero
        return None
    return Start(near.result.weight, near.result.bias)


def held_out(
    formulation: Formulation, problem: Problem, result: EMResult, folds: Sequence[Fold]
) -> LeaveOneOut:
    """Return latent values and log densities of rows left out, each with its bases.

    By a refit without each fold, or without folds from one factorisation at the mode.
    """
    centres = formulation.centres
    if not folds:
        return leave_one_out(problem, result.weight, result.bias, centres.rows)
    options = loosened(formulation.options, "leave-one-out")
    latent = np.empty_like(result.latent)
    for train, test in folds:
        columns = centres.columns_of(train)
        fit = fit_em(problem.part(train, columns), None, options)
        latent[test] = problem.Phi[:, columns][test] @ fit.weight + fit.bias
    return LeaveOneOut(latent, problem.observed.log_density(latent))


def score_of_rows(
    formulation: Formulation,
    candidate: Candidate,
    near: Candidate | None,
    folds: Sequence[Fold] = (),
) -> Candidate:
    """Return a candidate with its mode, and its predictions of rows left out one by one, or by folds."""
    problem = formulation.at(candidate.at)
    options = loosened(formulation.options, "leave-one-out")
    result = fit_em(problem, start_near(near, problem), options)
    return replace(candidate, result=result, loo=held_out(formulation, problem, result, folds))


def score_class_by_class(
    formulation: Formulation, candidate: Candidate, near: Candidate | None
) -> Candidate:
    """Return a candidate scored by leave-one-out of each class against the rest, probabilities normalised.

    For many classes and rows, where fits of all scores together cost too much at every candidate.
    """
    joint, fits, yes = formulation.at(candidate.at), [], []
    options, start = loosened(formulation.options, "class by class"), start_near(near, joint)
    for c in range(joint.n_scores):
        problem = joint.against_rest(c)
        of_class = None if start is None else Start(start.weight[:, c], float(start.bias[c]))
        fit = fit_em(problem, of_class, options)
        loo = leave_one_out(problem, fit.weight, fit.bias, formulation.centres.rows)
        fits.append(fit)
        yes.append(problem.likelihood.log_density(loo.latent, np.ones(len(problem.label))))
    weight = np.column_stack([fit.weight for fit in fits])
    result = replace(fits[0], weight=weight, bias=np.array([fit.bias for fit in fits]))
    log_probability = log_normalised(np.column_stack(yes))
    density = log_probability[np.arange(len(joint.label)), joint.label.astype(int)]
    density = times_weight(joint.row_weight, density)
    return replace(candidate, result=result, loo=LeaveOneOut(log_probability, density))
