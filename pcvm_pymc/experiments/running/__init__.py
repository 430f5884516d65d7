"""Running an experiment job by job, so that it can be killed at any moment and go on later."""

from pcvm_pymc.experiments.running.jobs import Job, run_job
from pcvm_pymc.experiments.running.run import Run, reproduce
from pcvm_pymc.experiments.running.store import JobName, NoSetError, RunError, Store

__all__ = ["Job", "JobName", "NoSetError", "Run", "RunError", "Store", "reproduce", "run_job"]
