"""Running an experiment cell by cell, so that it can be killed at any moment and go on later."""

import json
import os
import platform
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits

from pcvm_pymc import __version__
from pcvm_pymc.core.measures import classification_measures, regression_measures
from pcvm_pymc.experiments import pictures
from pcvm_pymc.experiments.catalogue import Experiment, experiment_of
from pcvm_pymc.experiments.classifiers import (
    Classifier,
    Setting,
    TuningTask,
    classifier_of,
    middle_of_best,
    own_classifier,
    test_errors,
    tune,
    vector_counts,
)
from pcvm_pymc.experiments.datasets import source_of
from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.protocols import Problem, cell_seed, realise

__all__ = ["Cell", "Run", "RunError", "Store", "reproduce", "run_cell"]

type Record = dict[str, Any]

_MANIFEST = "experiment.json"
DASK_TIMEOUT = "10s"
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "joblib", "pandas")


class RunError(Exception):
    """A run that cannot begin or go on, in words that say what to do."""


@dataclass(frozen=True, order=True)
class Cell:
    """One piece of work: a classifier on a realisation of a set.

    Attributes
    ----------
    set, classifier : str
    stage : {"tune", "score"}
    realisation : int
        From 0.
    """

    set: str
    classifier: str
    stage: str
    realisation: int

    @property
    def path(self) -> Path:
        """Where its record is, within the folder of a run."""
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.classifier)
        return Path("cells", self.set, safe, f"{self.stage}-{self.realisation:03d}.json")

    def __str__(self) -> str:
        return f"{self.set}, {self.classifier}, {self.stage} {self.realisation}"


# --- the folder of a run ---------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """The folder that holds a run's manifest, realisations and finished cells."""

    folder: Path

    def read(self, cell: Cell) -> Record | None:
        """Return the record of a finished cell; None if there is none or it is damaged."""
        try:
            record = json.loads((self.folder / cell.path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return record if _is_record(record, cell) else None

    def cells(self, set_name: str, classifier: str) -> list[Cell]:
        """Return the cells of a set and a classifier that have a file, damaged or not."""
        folder = self.folder / Cell(set_name, classifier, "score", 0).path.parent
        found = []
        for path in sorted(folder.glob("*.json")):
            stage, _, number = path.stem.partition("-")
            if stage in ("tune", "score") and number.isdecimal():
                found.append(Cell(set_name, classifier, stage, int(number)))
        return found

    def write(self, cell: Cell, record: Record) -> None:
        """Write a record so that it is there as a whole or not at all."""
        write_atomically(self.folder / cell.path, json.dumps(record, indent=1).encode())

    def manifest(self) -> Record:
        """Return what the run is.

        Raises
        ------
        RunError
            If the folder holds no run, or its manifest is damaged.
        """
        path = self.folder / _MANIFEST
        if not self.folder.is_dir() or not path.is_file():
            raise RunError(f"{self.folder} holds no run ({_MANIFEST} is missing)")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{path} is damaged ({first_line(error)}); "
                "run `pcvm reproduce` again with the same --out, which mends it and keeps the cells"
            ) from None
        if not _is_manifest(found):
            raise RunError(
                f"{path} is damaged (names, seed or repeats are missing); "
                "run `pcvm reproduce` again with the same --out, which mends it and keeps the cells"
            )
        return found

    def begin(self, manifest: Record) -> None:
        """Write the manifest, unless the folder holds another experiment.

        Raises
        ------
        RunError
        """
        path = self.folder / _MANIFEST
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file; needed a folder")
        if path.exists():
            try:
                found = self.manifest()
            except RunError:
                found = manifest  # damaged: what it was is not known, the cells say it themselves
            for key in ("run", "seed"):
                if found[key] != manifest[key]:
                    raise RunError(
                        f"{self.folder} holds {key} {found[key]!r}, asked for {manifest[key]!r}; "
                        "use another --out"
                    )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise RunError(f"{self.folder} is not empty and holds no run; use another --out")
        try:
            write_atomically(path, json.dumps(manifest, indent=1).encode())
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written: {error.strerror}") from None

    def write_splits(self, problem: Problem) -> None:
        """Write down the row numbers of a set's realisations."""
        arrays = {}
        for k, (train, test) in enumerate(problem.splits):
            arrays |= {f"train_{k}": train, f"test_{k}": test}
        path = self.folder / "splits" / f"{problem.name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            np.savez_compressed(file, **arrays)
        os.replace(file.name, path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by way of another, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def _is_record(record: Any, cell: Cell) -> bool:
    """Whether a file's content is a record of this cell, of the types that a report relies on."""
    if not isinstance(record, dict) or record.get("status") not in ("done", "failed"):
        return False
    if any(record.get(key) != value for key, value in asdict(cell).items()):
        return False
    if not isinstance(record.get("inputs"), dict):
        return False
    if record["status"] == "failed":
        return isinstance(record.get("traceback"), str)
    if cell.stage == "tune":
        return _are_parameters(record.get("chosen")) or _are_choices(record)
    measures = record.get("measures")
    return (
        isinstance(measures, dict)
        and isinstance(record.get("tuning seconds"), int | float)
        and all(isinstance(each, int | float) for each in measures.values())
        and isinstance(record.get("parameters"), dict)
        and isinstance(record.get("extra", {}), dict)
    )


def _are_choices(record: Record) -> bool:
    choices, errors = record.get("choices"), record.get("errors")
    return (
        isinstance(choices, list)
        and isinstance(errors, list)
        and 0 < len(choices) == len(errors)
        and all(_are_parameters(each) for each in choices)
        and all(isinstance(each, int | float) for each in errors)
    )


def _are_parameters(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(each, int | float | str) for each in found.values()
    )


def _is_manifest(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    strings = all(isinstance(found.get(key), str) for key in ("experiment", "run"))
    numbers = all(isinstance(found.get(key), int) for key in ("seed", "repeats", "expected"))
    lists = all(
        isinstance(found.get(key), list) and all(isinstance(each, str) for each in found[key])
        for key in ("sets", "classifiers")
    )
    maps = all(
        isinstance(found.get(key), dict)
        and all(isinstance(each, kind) for each in found[key].values())
        for key, kind in (("missing", str), ("versions", str), ("notes", dict))
    )
    return strings and numbers and lists and maps


# --- one cell --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CellTask:
    """All that a worker needs."""

    cell: Cell
    problem: Problem
    seed: int
    tuning: str
    given: Mapping[str, Any] = field(default_factory=dict)
    own: BaseEstimator | None = None
    extra: str = ""

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


def _row(task: CellTask) -> Classifier:
    if task.own is not None:
        return own_classifier(task.cell.classifier, task.own)
    return classifier_of(task.cell.classifier)


def _tuning_task(task: CellTask) -> TuningTask:
    parts = task.problem.parts(task.cell.realisation)
    cell = task.cell
    seed = cell_seed(task.seed, cell.set, cell.classifier, cell.realisation)
    reference = task.problem.parts(0)[0] if task.tuning == "mean" else parts[0]
    return TuningTask(*parts, dict(task.given), seed, task.problem.is_regression, reference)


def _tuned(task: CellTask) -> Record:
    began = time.thread_time()
    row, tuning = _row(task), _tuning_task(task)
    if task.tuning == "mean":
        choices, errors = test_errors(row, tuning)
        outcome: Record = {"choices": choices, "errors": errors}
    else:
        outcome = {"chosen": tune(row, tuning)}
    return outcome | {"tuning seconds": time.thread_time() - began}


def _scored(task: CellTask) -> Record:
    row, tuning = _row(task), _tuning_task(task)
    parameters, tuning_seconds = dict(task.given), 0.0
    if task.tuning == "each" and row.has_parameters:
        began = time.thread_time()
        parameters = tune(row, tuning)
        tuning_seconds = time.thread_time() - began
    model = row.make(Setting(parameters, tuning.seed, tuning.is_regression, len(tuning.X)))
    began = time.thread_time()
    model.fit(tuning.X, tuning.y)
    seconds = time.thread_time() - began
    measures = _measures(model, tuning) if len(tuning.X_test) else {}
    vectors, weights = vector_counts(model)
    record = {
        "parameters": parameters,
        "measures": {**measures, "vectors": vectors, "weights": weights, "seconds": seconds},
        "tuning seconds": tuning_seconds,
        "n_train": len(tuning.X),
        "n_test": len(tuning.X_test),
    }
    if task.extra:
        record["extra"] = pictures.EXTRAS[task.extra](model, tuning)
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


# --- many cells ------------------------------------------------------------------------------


def _in_this_machine(tasks: Sequence[CellTask], jobs: int) -> Iterator[Record]:
    """Yield records as cells finish."""
    if jobs == 1:
        yield from map(run_cell, tasks)
        return
    finished: set[Cell] = set()
    try:
        for record in _parallel(tasks, jobs):
            finished.add(_cell_of(record))
            yield record
    except TerminatedWorkerError:
        # one of them took its worker down (out of memory): alone, each says which it was
        for task in (each for each in tasks if each.cell not in finished):
            yield _alone(task)


def _parallel(tasks: Iterable[CellTask], jobs: int) -> Iterator[Record]:
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(
            delayed(run_cell)(task) for task in tasks
        )


def _alone(task: CellTask) -> Record:
    try:
        return next(iter(_parallel([task], 2)))
    except TerminatedWorkerError as error:
        reason = f"the worker died, perhaps for want of memory: {first_line(error)}"
        return _failure(task, reason)


def _failure(task: CellTask, reason: str) -> Record:
    return {
        **asdict(task.cell),
        "inputs": task.inputs,
        "status": "failed",
        "traceback": reason,
        "warnings": [],
    }


def _cell_of(record: Record) -> Cell:
    return Cell(record["set"], record["classifier"], record["stage"], record["realisation"])


def _on_a_cluster(tasks: Sequence[CellTask], address: str) -> Iterator[Record]:
    """Yield records as the workers of a Dask cluster finish them."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise RunError('--dask needs the extra: pip install "pcvm-pymc[dask]"') from None
    try:
        client = Client(address, timeout=DASK_TIMEOUT)
    except (OSError, ValueError) as error:
        raise RunError(f"no Dask cluster answers at {address}: {first_line(error)}") from None
    with client:
        futures = {client.submit(run_cell, task, pure=False, retries=1): task for task in tasks}
        for future in as_completed(futures):
            error = future.exception()
            yield _failure(futures[future], str(error)) if error else future.result()


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
            return dict(choices[middle_of_best(np.mean(errors, axis=0))])
        # the lower median: a mean of two may be a width that none has chosen, and a bad one
        chosen = [record["chosen"] for record in records]
        return {
            key: value if isinstance(value, str) else median_low(_numbers(chosen, key))
            for key, value in chosen[0].items()
        }

    def scoring_tasks(self) -> tuple[list[CellTask], list[CellTask]]:
        """Return the tasks that can be scored, and those that have no parameters."""
        ready, stuck = [], []
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


def reproduce(
    name: str,
    *,
    out: str | Path,
    sets: Sequence[str] | None = None,
    classifiers: Sequence[str] | Mapping[str, BaseEstimator | None] | None = None,
    repeats: int | None = None,
    jobs: int = 1,
    seed: int = 0,
    dask: str | None = None,
    folder: str | Path | None = None,
    download: bool = False,
    retry: bool = False,
    progressbar: bool = True,
) -> Run:
    """Run an experiment of the papers, or go on with it.

    Every finished cell is written at once; a run that was stopped or killed goes on where it was, and ends
    with the same figures as one that was not.

    Parameters
    ----------
    name : str
        Of `pcvm_pymc.experiments.catalogue.EXPERIMENTS`.
    out : path
        Folder for the cells; one that holds the same experiment goes on.
    sets : sequence of str, optional
        Default: all of the experiment.
    classifiers : sequence of str, or mapping of str to estimator, optional
        Names of the table, ``module:attribute`` for one of your own, or (a mapping) your own estimators by
        name, None for one of the table. Default: those of the paper.
    repeats : int, optional
        Realisations that are scored. Default: the paper's.
    jobs : int
        Processes, each with one thread.
    seed : int
        For realisations that are not stored, folds and starts.
    dask : str, optional
        Address of a Dask scheduler that is to run the cells.
    folder : path, optional
        Of data sets. Default: the one that ``PCVM_DATA`` names.
    download : bool
        Whether to ask openml.org for sets that are missing.
    retry : bool
        Whether to run failed cells again.
    progressbar : bool

    Returns
    -------
    Run

    Raises
    ------
    RunError
        If the folder holds something else, or no set is there.
    ValueError
        If a name is unknown or a number cannot be used.
    """
    experiment = experiment_of(name)
    own = _own(classifiers)
    names = tuple(classifiers) if classifiers is not None else experiment.classifiers
    wanted = tuple(sets) if sets is not None else experiment.sets
    repeats = experiment.repeats if repeats is None else repeats
    _check(wanted, names, own, {"repeats": (repeats, 1), "jobs": (jobs, 1), "seed": (seed, 0)})
    console = Console(stderr=True)
    store = Store(Path(out))
    n_all = experiment.protocol.scored(repeats).stop
    problems, missing = {}, {}
    for each in wanted:
        try:
            problems[each] = realise(
                each, experiment.protocol, n_all, seed=seed, folder=folder, download=download
            )
        except (OSError, ValueError) as error:
            missing[each] = str(error)
    run = Run(experiment, store, problems, names, repeats, seed, own)
    manifest = {
        "experiment": name,
        "run": experiment.run,
        "seed": seed,
        "repeats": repeats,
        "sets": list(wanted),
        "classifiers": list(names),
        "missing": missing,
        "notes": {each: _notes(problem) for each, problem in problems.items()},
        "versions": versions(),
        "expected": sum(
            len(run.scored_cells(each, classifier))
            for each in problems
            for classifier in run.suited(each, names)
        ),
    }
    store.begin(manifest)
    for each, reason in missing.items():
        if progressbar:
            console.print(
                f"[yellow]missing[/yellow] {each}: {reason}", highlight=False, soft_wrap=True
            )
    if not problems:
        raise RunError(
            "none of the sets is there: " + "; ".join(f"{k}: {v}" for k, v in missing.items())
        )
    for problem in problems.values():
        store.write_splits(problem)
    execute = _executor(jobs, dask)
    first, followers = run.tuning_waves()
    for title, tasks in (
        ("choosing parameters", lambda: run.tuning_tasks(first)),
        ("choosing parameters that follow", lambda: run.tuning_tasks(followers)),
        ("scoring", lambda: _with_failures(run)),
    ):
        _run_wave(
            run,
            title,
            tasks(),
            execute,
            console=console if progressbar else None,
            retry=retry,
        )
    return run


def _own(
    classifiers: Sequence[str] | Mapping[str, BaseEstimator | None] | None,
) -> dict[str, BaseEstimator]:
    if not isinstance(classifiers, Mapping):
        return {}
    return {name: estimator for name, estimator in classifiers.items() if estimator is not None}


def _check(
    sets: Sequence[str],
    names: Sequence[str],
    own: Mapping[str, BaseEstimator],
    numbers: Mapping[str, tuple[int, int]],
) -> None:
    for key, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{key}={value!r}; needed a whole number of at least {least}")
    if not sets or not names:
        raise ValueError("no sets or no classifiers; needed at least one of each")
    for each in sets:
        source_of(each)
    for each in names:
        if each in own:
            own_classifier(each, own[each])
        else:
            classifier_of(each)


def _notes(problem: Problem) -> Record:
    origins = list(dict.fromkeys(each.split(",")[0] for each in problem.origins))
    return {
        "rows": len(problem.X),
        "n_train": len(problem.splits[0][0]),
        "n_test": len(problem.splits[0][1]),
        "realisations": {
            kind: sum(each.startswith(kind) for each in problem.origins) for kind in origins
        },
        "rows left out for missing cells": problem.left_out,
        "missing cells filled in": int(np.isnan(problem.X).sum()),
    }


def versions() -> dict[str, str]:
    """Return the versions that figures depend on, and the machine."""
    found = {"python": platform.python_version(), "pcvm-pymc": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}


def _executor(jobs: int, dask: str | None) -> Callable[[Sequence[CellTask]], Iterator[Record]]:
    if dask is not None:
        return lambda tasks: _on_a_cluster(tasks, dask)
    return lambda tasks: _in_this_machine(tasks, jobs)


def _with_failures(run: Run) -> list[CellTask]:
    """Return the tasks to score; those whose tuning failed are recorded as failed."""
    ready, stuck = run.scoring_tasks()
    for task in stuck:
        reason = f"no parameters: every tuning cell of {task.cell.classifier} failed"
        run.store.write(task.cell, _failure(task, reason))
    return ready


def _run_wave(
    run: Run,
    title: str,
    tasks: Sequence[CellTask],
    execute: Callable[[Sequence[CellTask]], Iterator[Record]],
    *,
    console: Console | None,
    retry: bool,
) -> None:
    """Run the cells that have no record yet, the longest first, and write each when it is done."""
    missing = []
    for task in tasks:
        record = run.store.read(task.cell)
        fresh = record is not None and record["inputs"] == task.inputs
        if not fresh or (retry and record["status"] == "failed"):
            missing.append(task)
    missing.sort(key=lambda task: -task.work)
    if not missing:
        return
    done = sum(task.work for task in tasks) - sum(task.work for task in missing)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[cells]} cells"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    by_cell = {task.cell: task for task in missing}
    count = len(tasks) - len(missing)
    with Progress(*columns, console=console, disable=console is None) as progress:
        bar = progress.add_task(
            title,
            total=sum(task.work for task in tasks),
            completed=done,
            cells=f"{count}/{len(tasks)}",
        )
        for record in execute(missing):
            cell = _cell_of(record)
            run.store.write(cell, record)
            count += 1
            progress.update(bar, advance=by_cell[cell].work, cells=f"{count}/{len(tasks)}")
            if record["status"] == "failed" and console is not None:
                last = record["traceback"].strip().splitlines()[-1]
                console.print(f"failed {cell}: {last}", style="red", highlight=False, markup=False)
