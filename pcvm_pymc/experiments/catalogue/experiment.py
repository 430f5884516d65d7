"""What an experiment of a paper is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pcvm_pymc.experiments.protocols import Protocol

__all__ = ["Experiment", "Sketch", "Small", "ranked"]


@dataclass(frozen=True)
class Small:
    """The part of an experiment that ``--small`` runs: a first look, in minutes.

    Attributes
    ----------
    sets, classifiers : tuple of str
        Empty for those of the experiment.
    rows, test_rows : int
        Training and test rows of a realisation at most, drawn class by class.
    """

    sets: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()
    rows: int = 100
    test_rows: int = 500


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes
    ----------
    name, title : str
    paper : str
    sets, classifiers : tuple of str
    protocol : Protocol
    repeats : int
        The paper's.
    measures : tuple of str
        That its report shows, keys of `pcvm_pymc.experiments.statistics.MEASURES`.
    run : str
        Experiments of the same run share their cells.
    printed : str
        Name of the paper's table, empty for none.
    control : str
        That ranks and tests compare the others with.
    fixed : mapping of str to mapping
        Parameters that the paper sets, by set.
    extra : str
        What the first realisation records for a picture, a key of `pictures.EXTRAS`.
    figure : str
        What the report draws, a key of `pictures.FIGURES`.
    view : {"table", "points", "ranks", "seconds", "tests", "classes"}
        What the report is about: measures, the same with ranks summed as points, mean ranks and their tests,
        mean ranks of seconds, 5x2cv F tests, or vectors by class.
    remarks : tuple of str
        What a reader has to know before comparing.
    small : Small
        What ``--small`` runs of it.
    """

    name: str
    title: str
    paper: str
    sets: tuple[str, ...]
    classifiers: tuple[str, ...]
    protocol: Protocol
    repeats: int
    measures: tuple[str, ...]
    run: str = ""
    printed: str = ""
    control: str = ""
    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra: str = ""
    figure: str = ""
    view: str = "table"
    remarks: tuple[str, ...] = ()
    small: Small = Small()

    def __post_init__(self) -> None:
        if not self.run:
            object.__setattr__(self, "run", self.name)


@dataclass(frozen=True)
class Sketch:
    """A table or figure of a paper for which no classifier is fitted.

    Attributes
    ----------
    name, title, paper : str
    drawing : str
        What draws or counts it, a key of `pcvm_pymc.experiments.drawings.DRAWINGS`; empty where the paper
        gives nothing to run.
    why_none : str
        The sentence that says why there is nothing to run, empty where there is.
    sets : tuple of str
        That it shows.
    printed : str
        Name of the paper's table, empty for none.
    remarks : tuple of str
        What a reader has to know before comparing.
    """

    name: str
    title: str
    paper: str
    drawing: str = ""
    why_none: str = ""
    sets: tuple[str, ...] = ()
    printed: str = ""
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.drawing) == bool(self.why_none):
            raise ValueError(
                f"{self.name} has drawing={self.drawing!r} and why_none={self.why_none!r}; needed one of them"
            )


def ranked(base: Experiment, name: str, title: str, **changes: Any) -> Experiment:
    """Return the view of an experiment that is about ranks."""
    common = {"name": name, "title": title, "run": base.run, "view": "ranks", "printed": name}
    return replace(base, **(common | changes))
