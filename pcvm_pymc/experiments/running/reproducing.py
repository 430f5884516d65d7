"""An experiment of the papers, from its name to finished cells in a folder."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from sklearn.base import BaseEstimator

from pcvm_pymc import __version__
from pcvm_pymc.experiments.catalogue import experiment_of
from pcvm_pymc.experiments.classifiers import classifier_of, own_classifier
from pcvm_pymc.experiments.datasets import source_of, without_folder
from pcvm_pymc.experiments.protocols import Problem, Protocol, realise, thinned
from pcvm_pymc.experiments.running.records import NoSetError, Record
from pcvm_pymc.experiments.running.run import Run
from pcvm_pymc.experiments.running.store import Store
from pcvm_pymc.experiments.running.waves import run_waves
from pcvm_pymc.experiments.running.workers import executor
from pcvm_pymc.storage import as_path

__all__ = ["reproduce", "versions"]

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "joblib", "pandas")


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
        If the folder holds something else, or (`NoSetError`) no set is there.
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
        run_waves(run, executor(jobs, dask), console=console, retry=retry)
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
            len(run.scored_cells(each, classifier))
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
