"""The experiments of all papers by name."""

from pcvm_pymc.experiments.catalogue import (
    chen2009,
    chmielewski2019,
    figueiredo2001,
    kropotov2006,
    lyu2020,
)
from pcvm_pymc.experiments.catalogue.experiment import Experiment
from pcvm_pymc.experiments.errors import entry_of

__all__ = ["EXPERIMENTS", "experiment_of"]

_PAPERS = (chen2009, figueiredo2001, chmielewski2019, kropotov2006, lyu2020)
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for paper in _PAPERS for each in paper.EXPERIMENTS
}


def experiment_of(name: str) -> Experiment:
    """Return an experiment by name; an unknown one is a ValueError with the nearest names."""
    return entry_of("experiment", name, EXPERIMENTS, "`pcvm list` names them")
