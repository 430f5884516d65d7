"""What a run consists of: which cells tune, which are scored, and with which parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from pcvm_pymc.experiments.catalogue import Experiment
from pcvm_pymc.experiments.classifiers import (
    Classifier,
    classifier_of,
    middle_of_best,
    own_classifier,
)
from pcvm_pymc.experiments.protocols import Problem
from pcvm_pymc.experiments.running.cells import CellTask
from pcvm_pymc.experiments.running.progress import PartFile
from pcvm_pymc.experiments.running.records import Cell
from pcvm_pymc.experiments.running.store import Store

__all__ = ["Run"]


@dataclass(frozen=True, eq=False)
class Run:
    """An experiment in a folder, with all that was asked of it.

    Attributes
    ----------
    experiment : Experiment
    store : Store
    problems : dict of str to Problem
        The sets that are there.
    classifiers : tuple of str
    repeats, seed : int
    own : dict of str to estimator
        A user's classifiers, by name.
    """

    experiment: Experiment
    store: Store
    problems: dict[str, Problem]
    classifiers: tuple[str, ...]
    repeats: int
    seed: int
    own: dict[str, BaseEstimator] = field(default_factory=dict)

    def row(self, name: str) -> Classifier:
        """Return a classifier's row of the table."""
        return own_classifier(name, self.own[name]) if name in self.own else classifier_of(name)

    def task(self, cell: Cell, given: Mapping[str, Any]) -> CellTask:
        """Return what a worker needs for a cell."""
        fixed = self.experiment.fixed.get(cell.set, {})
        extra = self.experiment.extra if cell.stage == "score" and cell.realisation == 0 else ""
        return CellTask(
            cell,
            self.problems[cell.set],
            self.seed,
            self.experiment.protocol.tuning,
            {**fixed, **given},
            self.own.get(cell.classifier),
            extra,
            PartFile(self.store.progress(cell)),
        )

    def suited(self, set_name: str, names: Iterable[str]) -> list[str]:
        """Return the classifiers that can learn a set's targets."""
        task = "regression" if self.problems[set_name].is_regression else "classification"
        return [name for name in names if task in self.row(name).tasks]

    def is_tuned(self, name: str) -> bool:
        """Whether parameters of a classifier are chosen before any cell is scored."""
        tuning = self.experiment.protocol.tuning
        return tuning in ("median", "mean") and self.row(name).has_parameters

    def tuning_waves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the classifiers that tune first, and those that wait for another's parameters."""
        tuned = [name for name in self.classifiers if self.is_tuned(name)]
        followers = tuple(name for name in tuned if self.row(name).follows)
        leaders = dict.fromkeys(self.row(name).follows for name in followers)
        first = dict.fromkeys([*(name for name in tuned if name not in followers), *leaders])
        return tuple(first), followers

    def tuning_tasks(self, names: Iterable[str]) -> list[CellTask]:
        """Return the tasks that choose parameters."""
        tasks = []
        for set_name, problem in self.problems.items():
            for name in self.suited(set_name, names):
                leader = self.row(name).follows
                given = self.chosen(set_name, leader) if leader else {}
                if given is None:
                    continue  # the leader failed; scoring says so
                for k in self.experiment.protocol.tuned(self.repeats):
                    if k < len(problem.splits):
                        tasks.append(self.task(Cell(set_name, name, "tune", k), given))
        return tasks

    def chosen(self, set_name: str, name: str) -> dict[str, Any] | None:
        """Return the parameters that the tuning cells agree on; None if none of them succeeded."""
        if not self.is_tuned(name):
            return {}
        tuned = self.experiment.protocol.tuned(self.repeats)
        cells = [Cell(set_name, name, "tune", k) for k in tuned]
        records = [record for record in map(self.store.read, cells) if record is not None]
        records = [record for record in records if record["status"] == "done"]
        kind = "choices" if self.experiment.protocol.tuning == "mean" else "chosen"
        records = [record for record in records if kind in record]
        if not records:
            return None
        if kind == "choices":
            choices = records[0]["choices"]
            errors = [record["errors"] for record in records if record.get("choices") == choices]
            return dict(choices[middle_of_best(np.mean(errors, axis=0).tolist())])
        # the lower median: a mean of two may be a width that none has chosen, and a bad one
        chosen = [record["chosen"] for record in records]
        return {
            key: value if isinstance(value, str) else median_low(_numbers(chosen, key))
            for key, value in chosen[0].items()
        }

    def scoring_tasks(self) -> tuple[list[CellTask], list[CellTask]]:
        """Return the tasks that can be scored, and those that have no parameters."""
        ready: list[CellTask] = []
        stuck: list[CellTask] = []
        for set_name in self.problems:
            for name in self.suited(set_name, self.classifiers):
                given = self.chosen(set_name, name)
                for cell in self.scored_cells(set_name, name):
                    (stuck if given is None else ready).append(self.task(cell, given or {}))
        return ready, stuck

    def scored_cells(self, set_name: str, name: str) -> list[Cell]:
        """Return the cells of a set and a classifier that a table is the mean of."""
        n_splits = len(self.problems[set_name].splits)
        scored = self.experiment.protocol.scored(self.repeats)
        return [Cell(set_name, name, "score", k) for k in scored if k < n_splits]


def _numbers(chosen: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [each[key] for each in chosen if isinstance(each.get(key), int | float)]
