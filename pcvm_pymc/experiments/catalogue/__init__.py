"""The papers' experiments by name, and their printed tables."""

from pcvm_pymc.experiments.catalogue.experiment import Experiment
from pcvm_pymc.experiments.catalogue.names import EXPERIMENTS, experiment_of
from pcvm_pymc.experiments.catalogue.printed import printed_of, printed_table

__all__ = ["EXPERIMENTS", "Experiment", "experiment_of", "printed_of", "printed_table"]
