"""The papers' experiments by name, and their printed tables."""

from pcvm_pymc.experiments.catalogue.deviations import deviations, sentence_of, sentences
from pcvm_pymc.experiments.catalogue.experiment import Experiment, Sketch, Small
from pcvm_pymc.experiments.catalogue.names import (
    EXPERIMENTS,
    SKETCHES,
    entries,
    experiment_of,
    listed,
)
from pcvm_pymc.experiments.catalogue.printed import printed_of, printed_table

__all__ = [
    "EXPERIMENTS",
    "SKETCHES",
    "Experiment",
    "Sketch",
    "Small",
    "deviations",
    "entries",
    "experiment_of",
    "listed",
    "printed_of",
    "printed_table",
    "sentence_of",
    "sentences",
]
