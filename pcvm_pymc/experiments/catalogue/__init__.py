"""The papers' experiments, as the tables in TOML here say them, and their printed tables."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from pcvm_pymc.experiments.errors import entry_of
from pcvm_pymc.experiments.protocols import Protocol

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Small",
    "deviations",
    "experiment_of",
    "printed_of",
    "printed_table",
    "sentence_of",
    "sentences",
]

DEVIATION_COLUMNS = ("run", "measure", "set", "classifier", "side", "sentence")
_ROUNDING = 1e-9  # of a mean: of realisations that are alike


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
        Experiments of the same run share their jobs.
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


def _experiment(
    said: dict[str, Any], paper: dict[str, Any], by_name: Mapping[str, Any]
) -> Experiment:
    """Return an experiment from its table in TOML: fields of the one that it is `like`, then its own."""
    said = dict(said)
    like = said.pop("like", None)
    given: dict[str, Any] = {} if like is None else vars(by_name[like]) | {"run": like}
    for name in ("sets", "classifiers"):  # a list, or the name of one
        if isinstance(said.get(name), str):
            said[name] = paper["lists"][said[name]]
    protocol = said.get("protocol")
    if protocol is not None:
        told = paper["protocols"][protocol] if isinstance(protocol, str) else protocol
        said["protocol"] = Protocol(**told)
    if "small" in said:
        said["small"] = Small(**_tuples(said["small"]))
    return Experiment(**(given | {"paper": paper["paper"]} | _tuples(said)))


def _tuples(said: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if isinstance(each, list) else each for name, each in said.items()}


_PAPERS = ("chen2009", "figueiredo2001", "chmielewski2019", "kropotov2006", "lyu2020", "own")
EXPERIMENTS: dict[str, Experiment] = {}
for _name in _PAPERS:
    _paper = tomllib.loads((files(__name__) / f"{_name}.toml").read_text(encoding="utf-8"))
    for _said in _paper["experiment"]:
        EXPERIMENTS[_said["name"]] = _experiment(_said, _paper, EXPERIMENTS)
OWN = EXPERIMENTS["own-accuracy"].paper


def experiment_of(name: str) -> Experiment:
    """Return an experiment by name; an unknown one is a ValueError with the nearest names."""
    return entry_of("experiment", name, EXPERIMENTS, "`pcvm list` names them")


@cache
def printed_table(name: str) -> pd.DataFrame:
    """Return a paper's printed table, in the paper's units (per cent for error, AUC, 1-RMSE).

    Parameters
    ----------
    name : str
        Such as ``"chen2009-table1"``.

    Returns
    -------
    DataFrame
        Columns ``set``, ``classifier``, ``measure``, ``mean`` and ``std`` (NaN where none is printed).

    Raises
    ------
    ValueError
        If the table is not here.
    """
    path = files("pcvm_pymc.experiments") / "printed" / f"{name}.csv"
    if not path.is_file():
        raise ValueError(f"no printed table {name!r}")
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, na_values={"std": [""]})


def printed_of(experiment: Experiment) -> pd.DataFrame | None:
    """Return the printed table that an experiment is compared with; None if there is none."""
    return printed_table(experiment.printed) if experiment.printed else None


@cache
def sentences() -> pd.DataFrame:
    """Return the table of sentences: a row for each reason, of which the first that fits counts.

    Returns
    -------
    DataFrame
        Columns ``run`` (of an experiment), ``measure``, ``set``, ``classifier`` (several are parted by
        semicolons, ``*`` is any), ``side`` (``above`` or ``below`` the paper's mean, ``*`` for both) and
        ``sentence``.
    """
    path = files("pcvm_pymc.experiments") / "printed" / "deviations.csv"
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def sentence_of(
    experiment: Experiment, measure: str, set_name: str, classifier: str, deviation: float
) -> str:
    """Return why a mean deviates, empty where nobody has said so yet."""
    side = "above" if deviation > 0 else "below"
    found = (experiment.run, measure, set_name, classifier, side)
    for row in sentences().itertuples(index=False):
        named = (row.run, row.measure, row.set, row.classifier, row.side)
        if all(
            each == "*" or value in each.split(";")
            for each, value in zip(named, found, strict=True)
        ):
            return str(row.sentence)
    return ""


def deviations(table: pd.DataFrame) -> pd.Series:
    """Return how far each mean is from the paper's, in standard deviations.

    The paper's standard deviation counts; where it prints none, or zero, the measured one, unless that is
    rounding alone. NaN where neither is known.

    Parameters
    ----------
    table : DataFrame
        Columns ``mean``, ``std``, ``paper mean`` and ``paper std``.
    """
    printed = table["paper std"].where(table["paper std"] > 0)
    own = table["std"].where(table["std"] > _ROUNDING * table["mean"].abs())
    scale = printed.fillna(own).astype(float)
    return (table["mean"] - table["paper mean"]).astype(float) / scale
