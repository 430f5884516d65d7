"""The tables and figures of all papers by name."""

from pcvm_pymc.experiments.catalogue import (
    chen2009,
    chmielewski2019,
    figueiredo2001,
    kropotov2006,
    lyu2020,
    own,
)
from pcvm_pymc.experiments.catalogue.experiment import Experiment, Sketch
from pcvm_pymc.experiments.errors import entry_of

__all__ = ["EXPERIMENTS", "SKETCHES", "entries", "experiment_of", "listed"]

_PAPERS = (chen2009, figueiredo2001, chmielewski2019, kropotov2006, lyu2020, own)
_REMEDY = "`pcvm list` names them"
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for paper in _PAPERS for each in paper.EXPERIMENTS
}
SKETCHES: dict[str, Sketch] = {
    each.name: each for paper in _PAPERS for each in getattr(paper, "SKETCHES", ())
}


def entries() -> list[Experiment | Sketch]:
    """Return every table and figure, paper by paper: those that are run, then those that are drawn."""
    every: list[Experiment | Sketch] = [*EXPERIMENTS.values(), *SKETCHES.values()]
    papers = list(dict.fromkeys(each.paper for each in every))
    return sorted(every, key=lambda each: papers.index(each.paper))


def listed(name: str) -> Experiment | Sketch:
    """Return a table or figure by name; an unknown one is a ValueError with the nearest names."""
    known: dict[str, Experiment | Sketch] = {**EXPERIMENTS, **SKETCHES}
    return entry_of("experiment", name, known, _REMEDY)


def experiment_of(name: str) -> Experiment:
    """Return an experiment by name.

    Raises
    ------
    ValueError
        If it is unknown (with the nearest names), or one that has no cells to run (with the reason).
    """
    if name in SKETCHES:
        why = SKETCHES[name].why_none or "no classifier is fitted; `pcvm reproduce` draws it"
        raise ValueError(f"{name} has no cells: {why}")
    return entry_of("experiment", name, EXPERIMENTS, _REMEDY)
