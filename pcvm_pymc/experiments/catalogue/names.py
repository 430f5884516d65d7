"""The experiments of all papers by name."""

from pcvm_pymc.experiments.catalogue import (
    chen2009,
    chmielewski2019,
    figueiredo2001,
    kropotov2006,
    lyu2020,
)
from pcvm_pymc.experiments.catalogue.experiment import Experiment
from pcvm_pymc.experiments.errors import suggestion

__all__ = ["EXPERIMENTS", "experiment_of"]

_PAPERS = (chen2009, figueiredo2001, chmielewski2019, kropotov2006, lyu2020)
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for paper in _PAPERS for each in paper.EXPERIMENTS
}


def experiment_of(name: str) -> Experiment:
    """Return an experiment by name.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest names.
    """
    if name not in EXPERIMENTS:
        hint = suggestion(name, EXPERIMENTS)
        raise ValueError(f"experiment {name!r} is unknown; {hint}`pcvm list` names them")
    return EXPERIMENTS[name]
