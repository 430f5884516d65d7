"""Why a mean is not the paper's: the sentences that reports put beside deviations."""

from functools import cache
from importlib.resources import files

import pandas as pd

from pcvm_pymc.experiments.catalogue.experiment import Experiment

__all__ = ["DEVIATION_COLUMNS", "deviations", "sentence_of", "sentences"]

DEVIATION_COLUMNS = ("run", "measure", "set", "classifier", "side", "sentence")
_ANY = "*"
_ROUNDING = 1e-9  # of a mean: of realisations that are alike


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
            each == _ANY or value in each.split(";")
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
