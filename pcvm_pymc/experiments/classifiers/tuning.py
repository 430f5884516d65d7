"""The choice of parameters on a grid: by cross-validated error, or by test error as one protocol has it."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.model_selection import cross_val_score

from pcvm_pymc.experiments.classifiers.rows import Classifier, TuningTask

__all__ = ["combinations_of", "middle_of_best", "test_errors", "tune"]


def combinations_of(row: Classifier, task: TuningTask) -> list[dict[str, Any]]:
    """Return the candidates, without what is given."""
    rows = task.X if task.reference is None else task.reference
    grid = row.candidates(rows) if row.candidates is not None else {}
    free = {name: values for name, values in grid.items() if name not in task.given}
    return [dict(zip(free, values, strict=True)) for values in product(*free.values())]


def tune(row: Classifier, task: TuningTask) -> dict[str, Any]:
    """Return the parameters that a classifier chooses on a training part, the given ones included."""
    if row.tuner is not None:
        return {**task.given, **row.tuner(task)}
    choices = combinations_of(row, task)
    if len(choices) < 2:
        return {**task.given, **(choices[0] if choices else {})}
    make, folds = row.draft or row.make, task.folds(row.n_folds)

    def loss(choice: dict[str, Any]) -> float:
        model = make(task.setting(choice))
        return -float(np.mean(cross_val_score(model, task.X, task.y, cv=folds, error_score=0)))

    losses = [task.kept(each, partial(loss, each)) for each in choices]
    return {**task.given, **choices[middle_of_best(losses)]}


def test_errors(row: Classifier, task: TuningTask) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the candidates and the error of each on the test part (Lyu's protocol tunes by it)."""
    make, choices = row.draft or row.make, combinations_of(row, task)

    def error(choice: dict[str, Any]) -> float:
        model = make(task.setting(choice)).fit(task.X, task.y)
        return 1.0 - float(model.score(task.X_test, task.y_test))

    return choices, [task.kept(each, partial(error, each)) for each in choices]


def middle_of_best(loss: Sequence[float]) -> int:
    """Return the index of the smallest loss, the middle one of equals."""
    best = np.flatnonzero(np.asarray(loss) <= np.min(loss) + 1e-12)
    return int(best[len(best) // 2])
