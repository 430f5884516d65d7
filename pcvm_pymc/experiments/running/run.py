"""An experiment of the papers, from its name to finished jobs in a folder."""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from sklearn.base import BaseEstimator

from pcvm_pymc import __version__
from pcvm_pymc.core.pieces.files import as_path
from pcvm_pymc.experiments.catalogue import Experiment, experiment_of
from pcvm_pymc.experiments.classifiers.table import classifier_of, own_classifier
from pcvm_pymc.experiments.classifiers.tuning import Classifier, middle_of_best
from pcvm_pymc.experiments.datasets.files import without_folder
from pcvm_pymc.experiments.datasets.registry import source_of
from pcvm_pymc.experiments.protocols import Problem, Protocol, realise, thinned
from pcvm_pymc.experiments.running.jobs import Execute, Job, executor, failure
from pcvm_pymc.experiments.running.store import JobName, NoSetError, Record, Store
from pcvm_pymc.inference.progress import progress_bars

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "joblib", "pandas")


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

    def job(self, name: JobName, given: Mapping[str, Any]) -> Job:
        """Return what a worker needs."""
        fixed = self.experiment.fixed.get(name.set, {})
        extra = self.experiment.extra if name.stage == "score" and name.realisation == 0 else ""
        return Job(
            name,
            self.problems[name.set],
            self.seed,
            self.experiment.protocol.tuning,
            {**fixed, **given},
            self.own.get(name.classifier),
            extra,
        )

    def suited(self, set_name: str, names: Iterable[str]) -> list[str]:
        """Return the classifiers that can learn a set's targets."""
        task = "regression" if self.problems[set_name].is_regression else "classification"
        return [name for name in names if task in self.row(name).tasks]

    def is_tuned(self, name: str) -> bool:
        """Whether parameters of a classifier are chosen before any job is scored."""
        tuning = self.experiment.protocol.tuning
        return tuning in ("median", "mean") and self.row(name).has_parameters

    def tuning_waves(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the classifiers that tune first, and those that wait for another's parameters."""
        tuned = [name for name in self.classifiers if self.is_tuned(name)]
        followers = tuple(name for name in tuned if self.row(name).follows)
        leaders = dict.fromkeys(self.row(name).follows for name in followers)
        first = dict.fromkeys([*(name for name in tuned if name not in followers), *leaders])
        return tuple(first), followers

    def tuning_jobs(self, names: Iterable[str]) -> list[Job]:
        """Return the jobs that choose parameters."""
        jobs = []
        for set_name, problem in self.problems.items():
            for name in self.suited(set_name, names):
                leader = self.row(name).follows
                given = self.chosen(set_name, leader) if leader else {}
                if given is None:
                    continue  # the leader failed; scoring says so
                for k in self.experiment.protocol.tuned(self.repeats):
                    if k < len(problem.splits):
                        jobs.append(self.job(JobName(set_name, name, "tune", k), given))
        return jobs

    def chosen(self, set_name: str, name: str) -> dict[str, Any] | None:
        """Return the parameters that the tuning jobs agree on; None if none of them succeeded."""
        if not self.is_tuned(name):
            return {}
        tuned = self.experiment.protocol.tuned(self.repeats)
        found = [self.store.read(JobName(set_name, name, "tune", k)) for k in tuned]
        records = [each for each in found if each is not None and each["status"] == "done"]
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

    def scoring_jobs(self) -> tuple[list[Job], list[Job]]:
        """Return the jobs that can be scored, and those without parameters."""
        ready: list[Job] = []
        stuck: list[Job] = []
        for set_name in self.problems:
            for name in self.suited(set_name, self.classifiers):
                given = self.chosen(set_name, name)
                for each in self.scored(set_name, name):
                    (stuck if given is None else ready).append(self.job(each, given or {}))
        return ready, stuck

    def scored(self, set_name: str, name: str) -> list[JobName]:
        """Return the jobs of a set and a classifier, over which a table averages."""
        n_splits = len(self.problems[set_name].splits)
        scored = self.experiment.protocol.scored(self.repeats)
        return [JobName(set_name, name, "score", k) for k in scored if k < n_splits]


def _numbers(chosen: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [each[key] for each in chosen if isinstance(each.get(key), int | float)]


def _run_waves(run: Run, execute: Execute, *, console: Console | None, retry: bool) -> None:
    """Tune the classifiers, then those that follow another's parameters, then score them all."""
    first, followers = run.tuning_waves()
    waves: dict[str, Callable[[], Sequence[Job]]] = {
        "choosing parameters": lambda: run.tuning_jobs(first),
        "choosing parameters that follow": lambda: run.tuning_jobs(followers),
        "scoring": lambda: _with_failures(run),
    }
    for title, jobs in waves.items():
        _run_wave(run, title, jobs(), execute, console=console, retry=retry)


def _run_wave(
    run: Run,
    title: str,
    jobs: Sequence[Job],
    execute: Execute,
    *,
    console: Console | None,
    retry: bool,
) -> None:
    """Run the jobs that have no record yet, the longest first, and write each when it is done."""
    missing = [job for job in jobs if _is_missing(run.store, job, retry)]
    missing.sort(key=lambda job: -job.work)
    if not missing:
        return
    work, count = {job.name: job.work for job in missing}, len(jobs) - len(missing)
    total = sum(job.work for job in jobs)
    with progress_bars(console is not None, title, "{task.fields[jobs]} jobs") as progress:
        done: Any = total - sum(work.values())
        bar = progress.add_task("", total=total, completed=done, jobs=f"{count}/{len(jobs)}")
        for record in execute(missing):
            name = JobName.of(record)
            run.store.write(name, record)
            count += 1
            progress.update(bar, advance=work[name], jobs=f"{count}/{len(jobs)}")
            if record["status"] == "failed" and console is not None:
                last = record["traceback"].strip().splitlines()[-1]
                sys.stderr.write(f"failed {name}: {last}\n")  # above the bar


def _is_missing(store: Store, job: Job, retry: bool) -> bool:
    """Whether a job has no record, a stale one, or one of a failure that is to be tried again."""
    record = store.read(job.name)
    if record is None or record["inputs"] != job.inputs:
        return True
    return bool(retry and record["status"] == "failed")


def _with_failures(run: Run) -> list[Job]:
    """Return the jobs to score; those whose tuning failed are recorded as failed."""
    ready, stuck = run.scoring_jobs()
    for job in stuck:
        reason = f"no parameters: every tuning job of {job.name.classifier} failed"
        run.store.write(job.name, failure(job, reason))
    return ready


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
    small: bool = False,
    progressbar: bool = True,
) -> Run:
    """Run an experiment of the papers, or go on with it.

    Every finished job is written at once; a run that was stopped or killed goes on where it was, and ends
    with the same figures as one that was not.

    Parameters
    ----------
    name : str
        Of `pcvm_pymc.experiments.catalogue.EXPERIMENTS`.
    out : path
        Folder for the jobs; one that has the same experiment goes on.
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
        Address of a Dask scheduler that is to run the jobs.
    folder : path, optional
        Of data sets. Default: the one that ``PCVM_DATA`` names.
    download : bool
        Whether to ask openml.org for sets that are missing.
    retry : bool
        Whether to run failed jobs again.
    small : bool
        Whether to run the part of it that the catalogue declares for a first look: fewer rows, and sets and
        classifiers where none are named here.
    progressbar : bool

    Returns
    -------
    Run

    Raises
    ------
    RunError
        If the folder has something else, or (`NoSetError`) no set is there.
    ValueError
        If a name is unknown or a number cannot be used.
    TypeError
        If `out` is no path.
    """
    experiment, store = experiment_of(name), Store(as_path(out, "out"))
    own = _own(classifiers)
    all_sets, all_names = experiment.sets, experiment.classifiers
    if small:
        part = experiment.small
        all_sets, all_names = part.sets or all_sets, part.classifiers or all_names
    names = tuple(classifiers) if classifiers is not None else all_names
    wanted = tuple(sets) if sets is not None else all_sets
    repeats = experiment.repeats if repeats is None else repeats
    _check(wanted, names, own, {"repeats": (repeats, 1), "jobs": (jobs, 1), "seed": (seed, 0)})
    n_all = experiment.protocol.scored(repeats).stop
    problems, missing = _realised(
        wanted, experiment.protocol, n_all, seed=seed, folder=folder, download=download
    )
    if not problems:  # before a folder is made
        reasons = "; ".join(f"{k}: {v}" for k, v in missing.items())
        raise NoSetError(f"none of the sets is there: {reasons}")
    if small:
        most = {"rows": experiment.small.rows, "test_rows": experiment.small.test_rows}
        problems = {key: thinned(each, **most, seed=seed) for key, each in problems.items()}
    run = Run(experiment, store, problems, names, repeats, seed, own)
    console = Console(stderr=True) if progressbar else None
    with run.store.held():
        told = {each: without_folder(reason, folder) for each, reason in missing.items()}
        run.store.begin(_manifest(name, run, wanted, told) | {"small": small})
        _say_missing(missing, console)
        for problem in problems.values():
            run.store.write_splits(problem)
        _run_waves(run, executor(jobs, dask), console=console, retry=retry)
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


def _realised(
    sets: Iterable[str], protocol: Protocol, n_realisations: int, **how: Any
) -> tuple[dict[str, Problem], dict[str, str]]:
    """Return the sets that are there, and why the others are not."""
    problems, missing = {}, {}
    for each in sets:
        try:
            problems[each] = realise(each, protocol, n_realisations, **how)
        except (OSError, ValueError) as error:
            missing[each] = str(error)
    return problems, missing


def _manifest(name: str, run: Run, sets: Iterable[str], missing: dict[str, str]) -> Record:
    """Return what the folder says of itself."""
    return {
        "experiment": name,
        "run": run.experiment.run,
        "seed": run.seed,
        "repeats": run.repeats,
        "sets": list(sets),
        "classifiers": list(run.classifiers),
        "missing": missing,
        "notes": {each: _notes(problem) for each, problem in run.problems.items()},
        "versions": versions(),
        "expected": sum(
            len(run.scored(each, classifier))
            for each in run.problems
            for classifier in run.suited(each, run.classifiers)
        ),
    }


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


def _say_missing(missing: Mapping[str, str], console: Console | None) -> None:
    if console is None:
        return
    for each, reason in missing.items():
        said = escape(f"{each}: {reason}")
        console.print(f"[yellow]missing[/yellow] {said}", highlight=False, soft_wrap=True)
