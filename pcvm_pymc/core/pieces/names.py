"""Names of a table's rows and columns: of pandas, polars, pyarrow, Dask and xarray."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def coordinate(X: Any, axis: int) -> NDArray[Any] | None:
    """Return the coordinate of a dimension of an xarray.DataArray; None for one without, and for others."""
    dims = getattr(X, "dims", None)
    known = isinstance(dims, tuple) and len(dims) > axis and dims[axis] in X.coords
    return np.asarray(X.coords[dims[axis]]) if known else None  # type: ignore[index]


def columns_of(X: Any) -> list[Any]:
    """Return the names of a table's columns, whatever their type; none of an array."""
    columns = coordinate(X, 1)
    if columns is None:
        columns = getattr(X, "column_names", getattr(X, "columns", None))
    return [] if columns is None or callable(columns) else list(columns)


def column_names(X: Any, name: str = "X") -> list[str] | None:
    """Return the names of a table's columns; None for an array, or where none of them is text.

    Of pandas, polars, pyarrow and Dask, or the second coordinate of an xarray.DataArray.

    Raises
    ------
    ValueError
        For a name that several columns have, or names some of which alone are text.
    """
    names = columns_of(X)
    if not any(isinstance(name, str) for name in names):
        return None
    bad = [name for name, k in Counter(names).items() if k > 1 or not isinstance(name, str)]
    if bad:
        raise ValueError(f"{name} has the column name {bad[0]!r}; needed texts, and each once")
    return list(map(str, names))


def check_columns(X: Any, known: Iterable[Any] | None = None) -> None:
    """Raise where a table's columns have other names than known ones, or these in another order.

    Numbers from 0 are no names, unless in another order. Another number of columns is not compared.

    Parameters
    ----------
    X : array_like or table
    known : iterable, optional
        Names of the training rows' columns. Default: those of the rows of X, the matrix of a kernel.
    """
    rows = row_index(X) if known is None else known
    columns, names = columns_of(X), [] if rows is None else list(rows)
    is_plain = list(range(len(names))) in (columns, names) and Counter(columns) != Counter(names)
    if len(columns) == len(names) and columns != names and not is_plain:
        i = [column == other for column, other in zip(columns, names, strict=True)].index(False)
        whose, at = ("row", "names") if known is None else ("training column", ":")
        words = f"X has the column {columns[i]!r} where the {whose} is {names[i]!r}"
        raise ValueError(f"{words}; needed the same names in the same order: X.loc[{at}, names]")


def column_types(X: Any) -> list[Any]:
    """Return the types of a table's columns, of pandas, polars and pyarrow; none of an array."""
    if not hasattr(X, "shape"):  # nor of what is lazy
        return []
    types = getattr(X, "dtypes", getattr(getattr(X, "schema", None), "types", ()))
    return list(types) if isinstance(types, Iterable) else []  # one type of a single column


def row_index(X: Any) -> Any:
    """Return the index of a pandas table or series, or a DataArray's first coordinate; None of others."""
    index = coordinate(X, 0) if hasattr(X, "dims") else getattr(X, "index", None)
    return index if hasattr(index, "__len__") else None  # lists have a method of that name


def check_same_rows(X: Any, name: str = "X", **others: Any) -> None:
    """Raise where labels, weights or groups have the index of `X` in another order.

    Rows are paired by their place, as in scikit-learn. An index of other values is taken as it is, since the
    index of `X` is often lost on the way, as in a scaler.

    Parameters
    ----------
    X : array_like or table
    name : str
        Of the argument, for messages.
    **others : array_like, table or None
        By their names.
    """
    index = row_index(X)
    for other, values in others.items():
        order = row_index(values)
        if index is None or order is None or order is index or len(index) != len(order):
            continue
        known, its = list(index), list(order)
        if known != its and Counter(known) == Counter(its):
            i = next(i for i, pair in enumerate(zip(known, its, strict=True)) if pair[0] != pair[1])
            raise ValueError(
                f"{other} has the index of {name} in another order, in row {i} {its[i]!s} where {name} has "
                f"{known[i]!s}; needed the same order: {other}.loc[{name}.index], or np.asarray({other})"
            )
