"""The papers' printed tables."""

from functools import cache
from importlib.resources import files

import pandas as pd

from pcvm_pymc.experiments.catalogue.experiment import Experiment, Sketch

__all__ = ["printed_of", "printed_table"]


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


def printed_of(experiment: Experiment | Sketch) -> pd.DataFrame | None:
    """Return the printed table that an experiment is compared with; None if there is none."""
    return printed_table(experiment.printed) if experiment.printed else None
