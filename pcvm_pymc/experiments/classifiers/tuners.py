"""Choices of parameters other than a grid search by cross-validated error."""

from dataclasses import replace
from typing import Any

import numpy as np

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.validation import as_labels
from pcvm_pymc.estimators.problems import problem_at
from pcvm_pymc.estimators.select import select_width
from pcvm_pymc.estimators.validity import validity
from pcvm_pymc.experiments.classifiers.candidates import KROPOTOV_WIDTHS
from pcvm_pymc.experiments.classifiers.makers import MAX_ITER, matrix_rvm, pcvm, rvm
from pcvm_pymc.experiments.classifiers.rows import Classifier, Setting, TuningTask
from pcvm_pymc.experiments.classifiers.tuning import middle_of_best, test_errors, tune
from pcvm_pymc.experiments.replicas.starts import start_recipes

__all__ = [
    "by_log_loss",
    "by_matrix_validity",
    "by_test_error",
    "by_validity",
    "eight_starts",
    "log_validity",
    "validity_and_c",
]


def by_log_loss(task: TuningTask) -> dict[str, Any]:
    """Return the width of this package's default classifier, by its cross-validated log loss."""
    if "width" in task.given:
        return {}
    options = EMOptions(max_iter=MAX_ITER)
    return {"width": select_width(task.X, task.y, options=options, random_state=task.seed).width}


def eight_starts(task: TuningTask) -> dict[str, Any]:
    """Return the width that EM reaches from the one of eight starts with the smallest test error.

    As Chen et al. (2009), section III-B: it looks at the test part and is mildly optimistic.
    """
    label, _ = as_labels(task.y, len(task.X))
    problem = problem_at(
        task.X, label, Hyperprior.chen2009(), median_distance(task.X), free_width=True
    )
    options, rng = EMOptions(max_iter=MAX_ITER), np.random.default_rng(task.seed)
    widths, errors = [], []
    for recipe in start_recipes(8, options):
        width = fit_em(problem, recipe(problem, rng), options).width
        model = pcvm("chen2009")(Setting({"width": width})).fit(task.X, task.y)
        widths.append(width)
        errors.append(1.0 - model.score(task.X_test, task.y_test))
    return {"width": float(widths[middle_of_best(errors)])}


def log_validity(task: TuningTask, width: float) -> float:
    """Return the log of the kernel validity of an RVM of this width on the training part."""
    model = rvm("sequential")(task.setting({"width": width})).fit(task.X, task.y)
    return validity(model, task.X, task.y).log_validity


def by_validity(task: TuningTask) -> dict[str, Any]:
    """Return the width of the highest kernel validity of the RVM, of Kropotov's ten."""
    scores = [log_validity(task, width) for width in KROPOTOV_WIDTHS]
    return {"width": KROPOTOV_WIDTHS[int(np.argmax(scores))]}


def by_matrix_validity(task: TuningTask) -> dict[str, Any]:
    """Return the same of an RVM whose kernel has a matrix."""
    models = [matrix_rvm(task.setting({"width": width})) for width in KROPOTOV_WIDTHS]
    scores = [
        validity(each.fit(task.X, task.y).model_, task.X, task.y).log_validity for each in models
    ]
    return {"width": KROPOTOV_WIDTHS[int(np.argmax(scores))]}


def validity_and_c(machine: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the RVM's width of the highest validity, and an SVM's cross-validated C at it."""
    alone = replace(task, given=by_validity(task), reference=None)
    return tune(machine, alone)


def by_test_error(machine: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the width of the smallest test error: what no selector can do better than."""
    choices, errors = test_errors(machine, task)
    return choices[middle_of_best(errors)]
