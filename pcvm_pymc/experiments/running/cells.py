"""One cell: a classifier is tuned, or fitted and scored, on one realisation of a set."""

import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits

from pcvm_pymc.assessment.measures import classification_measures, regression_measures
from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.classifiers import (
    Classifier,
    TuningTask,
    classifier_of,
    own_classifier,
    test_errors,
    tune,
    vector_counts,
)
from pcvm_pymc.experiments.protocols import Problem, cell_seed
from pcvm_pymc.experiments.running.progress import Keeper, Progress
from pcvm_pymc.experiments.running.records import Cell, Record

__all__ = ["CellTask", "failure", "run_cell"]


@dataclass(frozen=True, eq=False)
class CellTask:
    """All that a worker needs; `progress` is where it keeps what it has of an unfinished cell."""

    cell: Cell
    problem: Problem
    seed: int
    tuning: str
    given: Mapping[str, Any] = field(default_factory=dict)
    own: BaseEstimator | None = None
    extra: str = ""
    progress: Keeper | None = None

    @cached_property
    def inputs(self) -> Record:
        """What decides the outcome: a record with other inputs is stale."""
        return {
            "seed": self.seed,
            "tuning": self.tuning,
            "given": dict(self.given),
            "data": self.problem.checksum(self.cell.realisation)[:16],
            "extra": self.extra,
            "own": "" if self.own is None else repr(self.own),
        }

    @property
    def work(self) -> float:
        """A forecast of its cost: the square of the training rows."""
        return float(len(self.problem.splits[self.cell.realisation][0])) ** 2


def run_cell(task: CellTask) -> Record:
    """Tune or score one cell; what goes wrong is part of the record."""
    record: Record = {**asdict(task.cell), "inputs": task.inputs, "status": "done"}
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
        warnings.simplefilter("always")
        try:
            record |= _tuned(task) if task.cell.stage == "tune" else _scored(task)
        except Exception:  # the other cells go on
            record |= {"status": "failed", "traceback": traceback.format_exc()}
    record["warnings"] = sorted({f"{each.category.__name__}: {each.message}" for each in caught})
    return record


def failure(task: CellTask, reason: str) -> Record:
    """Return the record of a cell that failed for this reason."""
    return {
        **asdict(task.cell),
        "inputs": task.inputs,
        "status": "failed",
        "traceback": reason,
        "warnings": [],
    }


def _row(task: CellTask) -> Classifier:
    if task.own is not None:
        return own_classifier(task.cell.classifier, task.own)
    return classifier_of(task.cell.classifier)


def _tuning_task(task: CellTask, kept: Progress) -> TuningTask:
    parts = task.problem.parts(task.cell.realisation)
    cell = task.cell
    seed = cell_seed(task.seed, cell.set, cell.classifier, cell.realisation)
    reference = task.problem.parts(0)[0] if task.tuning == "mean" else parts[0]
    return TuningTask(*parts, dict(task.given), seed, task.problem.is_regression, reference, kept)


def _tuned(task: CellTask) -> Record:
    progress = Progress(task.progress, task.inputs)
    row, tuning = _row(task), _tuning_task(task, progress)
    if task.tuning == "mean":
        choices, errors = test_errors(row, tuning)
        outcome: Record = {"choices": choices, "errors": errors}
    else:
        outcome = {"chosen": tune(row, tuning)}
    return outcome | {"tuning seconds": progress.seconds}


def _scored(task: CellTask) -> Record:
    progress = Progress(task.progress, task.inputs)
    row, tuning = _row(task), _tuning_task(task, progress)
    parameters, tuning_seconds = dict(task.given), 0.0
    if task.tuning == "each" and row.has_parameters:
        parameters = tune(row, tuning)
        tuning_seconds = progress.seconds
    model = row.make(tuning.setting(parameters))
    began = time.thread_time()
    model.fit(tuning.X, tuning.y)
    seconds = time.thread_time() - began
    measures = _measures(model, tuning) if len(tuning.X_test) else {}
    vectors, weights = vector_counts(model)
    measures |= {"vectors": vectors, "weights": weights, "seconds": seconds}
    record = {
        "parameters": parameters,
        "measures": measures,
        "tuning seconds": tuning_seconds,
        "n_train": len(tuning.X),
        "n_test": len(tuning.X_test),
    }
    if task.extra:
        extra = pictures.EXTRAS[task.extra](model, tuning)
        measures |= extra.pop("measures", {})
        record["extra"] = extra
    return record


def _measures(model: Any, task: TuningTask) -> dict[str, float]:
    predicted = model.predict(task.X_test)
    if task.is_regression:
        return regression_measures(task.y_test, predicted)
    probability = score = None
    if hasattr(model, "predict_proba"):
        probability = model.predict_proba(task.X_test)
    elif hasattr(model, "decision_function"):
        score = model.decision_function(task.X_test)
        score = np.column_stack([-score, score]) if score.ndim == 1 else score
    return classification_measures(task.y_test, predicted, model.classes_, probability, score)
