"""Jobs: a classifier is tuned, or fitted and scored, here, in several processes or on a Dask cluster."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from joblib import delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits

from pcvm_pymc.estimators.measures import classification_measures, regression_measures
from pcvm_pymc.experiments.classifiers.table import classifier_of, own_classifier
from pcvm_pymc.experiments.classifiers.tuning import (
    Classifier,
    TuningTask,
    test_errors,
    tune,
    vector_counts,
)
from pcvm_pymc.experiments.errors import first_line
from pcvm_pymc.experiments.processes import in_processes
from pcvm_pymc.experiments.protocols import Problem, cell_seed
from pcvm_pymc.experiments.running.store import JobName, Record, RunError

type Execute = Callable[[Sequence["Job"]], Iterator[Record]]
DASK_TIMEOUT = "10s"


@dataclass(frozen=True, eq=False)
class Job:
    """All that a worker needs."""

    name: JobName
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
            "data": self.problem.checksum(self.name.realisation)[:16],
            "extra": self.extra,
            "own": "" if self.own is None else repr(self.own),
        }

    @property
    def work(self) -> float:
        """A forecast of its cost: the square of the training rows."""
        return float(len(self.problem.splits[self.name.realisation][0])) ** 2

    @property
    def row(self) -> Classifier:
        """Its classifier."""
        name = self.name.classifier
        return classifier_of(name) if self.own is None else own_classifier(name, self.own)

    def task(self) -> TuningTask:
        """Return the training rows and how parameters are tuned on them."""
        parts, name = self.problem.parts(self.name.realisation), self.name
        seed = cell_seed(self.seed, name.set, name.classifier, name.realisation)
        reference = self.problem.parts(0)[0] if self.tuning == "mean" else parts[0]
        is_regression = self.problem.is_regression
        return TuningTask(*parts, dict(self.given), seed, is_regression, reference)


def run_job(job: Job) -> Record:
    """Tune or score; what goes wrong is part of the record."""
    record: Record = {**asdict(job.name), "inputs": job.inputs, "status": "done"}
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
        warnings.simplefilter("always")
        try:
            record |= _tuned(job) if job.name.stage == "tune" else _scored(job)
        except Exception:  # the other jobs go on
            record |= {"status": "failed", "traceback": traceback.format_exc()}
    record["warnings"] = sorted({f"{each.category.__name__}: {each.message}" for each in caught})
    return record


def failure(job: Job, reason: str) -> Record:
    """Return the record of a job that failed for this reason."""
    failed = {"inputs": job.inputs, "status": "failed", "traceback": reason, "warnings": []}
    return asdict(job.name) | failed


def _tuned(job: Job) -> Record:
    began, task = time.thread_time(), job.task()
    if job.tuning == "mean":
        choices, errors = test_errors(job.row, task)
        outcome: Record = {"choices": choices, "errors": errors}
    else:
        outcome = {"chosen": tune(job.row, task)}
    return outcome | {"tuning seconds": time.thread_time() - began}


def _scored(job: Job) -> Record:
    row, task = job.row, job.task()
    parameters, tuning_seconds = dict(job.given), 0.0
    if job.tuning == "each" and row.has_parameters:
        began = time.thread_time()
        parameters = tune(row, task)
        tuning_seconds = time.thread_time() - began
    model = row.make(task.setting(parameters))
    began = time.thread_time()
    model.fit(task.X, task.y)
    seconds = time.thread_time() - began
    measures = _measures(model, task) if len(task.X_test) else {}
    vectors, weights = vector_counts(model)
    measures |= {"vectors": vectors, "weights": weights, "seconds": seconds}
    record = {
        "parameters": parameters,
        "measures": measures,
        "tuning seconds": tuning_seconds,
        "n_train": len(task.X),
        "n_test": len(task.X_test),
    }
    if job.extra:
        from pcvm_pymc.experiments import pictures  # matplotlib, which most jobs do not need

        extra = pictures.EXTRAS[job.extra](model, task)
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


# --- where they run ----------------------------------------------------------------------------


def executor(jobs: int, dask: str | None) -> Execute:
    """Return what runs jobs: processes of this machine, or a cluster if there is an address."""
    if dask is not None:
        return lambda each: _on_a_cluster(each, dask)
    return lambda each: _in_this_machine(each, jobs)


def _in_this_machine(jobs: Sequence[Job], n_processes: int) -> Iterator[Record]:
    """Yield records as jobs finish."""
    finished: set[JobName] = set()
    try:
        for record in in_processes(map(delayed(run_job), jobs), n_processes):
            finished.add(JobName.of(record))
            yield record
    except TerminatedWorkerError:
        # one of them took its worker down (out of memory): alone, each says which it was
        for job in (each for each in jobs if each.name not in finished):
            try:
                yield from in_processes([delayed(run_job)(job)], 2)
            except TerminatedWorkerError as error:
                reason = f"the worker died, perhaps for want of memory: {first_line(error)}"
                yield failure(job, reason)


def _on_a_cluster(jobs: Sequence[Job], address: str) -> Iterator[Record]:
    """Yield records as the workers of a Dask cluster finish them; these may not see the run's folder."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise RunError('--dask needs the extra: pip install "pcvm-pymc[dask]"') from None
    try:
        client = Client(address, timeout=DASK_TIMEOUT)
    except (OSError, ValueError) as error:
        raise RunError(f"no Dask cluster answers at {address}: {first_line(error)}") from None
    with client:
        futures = {client.submit(run_job, job, pure=False, retries=1): job for job in jobs}
        for future in as_completed(futures):
            raised = future.exception()
            yield failure(futures[future], str(raised)) if raised else future.result()
