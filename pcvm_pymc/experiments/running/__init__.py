"""Running an experiment cell by cell, so that it can be killed at any moment and go on later."""

from pcvm_pymc.experiments.running.cells import run_cell
from pcvm_pymc.experiments.running.records import Cell, NoSetError, RunError
from pcvm_pymc.experiments.running.reproducing import reproduce
from pcvm_pymc.experiments.running.run import Run
from pcvm_pymc.experiments.running.store import Store

__all__ = ["Cell", "NoSetError", "Run", "RunError", "Store", "reproduce", "run_cell"]
