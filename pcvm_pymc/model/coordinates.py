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
        kept = _in_seconds(array)
        if kept is not None:
            return kept
    given = array.tolist()
    text = [_text(each) for each in given]
    changed = [i for i, each in enumerate(given) if not isinstance(each, str) or each != text[i]]
    if changed:
        i = changed[0]
        _log.warning("%s is kept as text, such as %r for %s", what, text[i], shown(given[i]))
    return np.array(text, dtype=str)


def _in_seconds(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return dates or spans of time in a unit that files have; None where that would change them."""
    if np.datetime_data(array.dtype)[0] in _UNITS:
        return array
    out = array.astype(f"{array.dtype.kind}8[s]")
    exact = np.can_cast(array.dtype, out.dtype, "safe") and np.array_equal(
        out.astype(array.dtype), array, equal_nan=True
    )
    return out if exact else None


def _text(value: Any) -> str:
    """Return a value as text that every file can keep: without the character of code zero."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
