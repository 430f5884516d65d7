"""Sets from openml.org."""

import pandas as pd
from sklearn import datasets as sklearn_datasets

from pcvm_pymc.experiments.datasets.records import Dataset
from pcvm_pymc.experiments.datasets.registry import source_of

__all__ = ["coded_column", "fetch"]


def fetch(name: str) -> Dataset:
    """Return a set from openml.org; scikit-learn keeps it and checks OpenML's checksum.

    Text columns are coded by the alphabetical order of their values, empty cells stay missing. The codes of
    labels may differ from those of the csv files.

    Raises
    ------
    ValueError
        If OpenML does not have the set, or has a table of another shape.
    OSError
        If the net cannot be reached or the checksum is wrong.
    """
    source = source_of(name)
    if not source.openml:
        raise ValueError(f"{name} is not at openml.org; it comes from: {source.how}")
    try:
        bunch = sklearn_datasets.fetch_openml(
            data_id=source.openml,
            target_column=source.openml_target,
            as_frame=True,
            parser="liac-arff",
        )
    except KeyError as error:
        raise ValueError(
            f"table {source.openml} of openml.org has no column {source.openml_target!r}: {error}"
        ) from None
    X = bunch.data.apply(coded_column)
    found, needed = X.shape, (source.rows, source.features)
    if found != needed:
        raise ValueError(
            f"table {source.openml} of openml.org has (rows, features) = {found}; {name} needs {needed}"
        )
    y = bunch.target.to_numpy()
    names = tuple(map(str, X.columns))
    return Dataset(name, X.to_numpy(dtype=float), y, names, f"openml.org {source.openml}")


def coded_column(column: pd.Series) -> pd.Series:
    """Return a column as numbers: text by the alphabetical order of its values."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    values = sorted(column.dropna().astype(str).unique())
    return column.astype(str).where(column.notna()).map({v: i for i, v in enumerate(values)})
