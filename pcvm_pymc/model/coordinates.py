"""What rows, columns and classes are called, as coordinates that a file of results can keep."""

import logging
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.validation import shown

_log = logging.getLogger("pymc.pcvm_pymc")

# what pandas finds in objects that are all of one kind, and NumPy has a type for
_NATIVE = ("boolean", "integer", "floating", "datetime", "datetime64", "timedelta", "timedelta64")
_UNITS = ("s", "ms", "us", "ns")  # of dates, that files have


def native(values: Any) -> NDArray[Any]:
    """Return values as an array, of numbers or dates where objects are all of one such kind."""
    array = np.asarray(values)
    if array.ndim > 1:  # tuples
        array = np.empty(len(values), dtype=object)
        array[:] = list(map(tuple, values))
    if array.dtype.kind == "O" and pd.api.types.infer_dtype(array, skipna=False) in _NATIVE:
        return np.asarray(pd.Index(array.tolist()).to_numpy())
    return array


def storable(values: Any, what: str) -> NDArray[Any]:
    """Return coordinates as numbers, text or dates; others become text, which is logged.

    Parameters
    ----------
    values : array_like, shape (n,)
        Such as the index of a table.
    what : str
        What has them, for the message.
    """
    array = native(values)
    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
        return array
    if array.dtype.kind in "mM":
        known = np.datetime_data(array.dtype)[0] in _UNITS
        return array if known else array.astype(f"{array.dtype.kind}8[s]", casting="safe")
    given = array.tolist()
    changed = [value for value in given if not isinstance(value, str)]
    if changed:
        example = str(changed[0]), shown(changed[0])
        _log.warning("%s is kept as text, such as %r for %s", what, *example)
    return np.array(list(map(str, given)), dtype=str)
