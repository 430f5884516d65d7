"""The sections that the docstrings of all predictions share."""

from collections.abc import Callable
from typing import Any

__all__ = ["of_rows"]

_SECTIONS = """

Parameters
----------
X : array_like or Dask array, shape (n_new, n_features)
    With the columns of the training rows, in their order.

Returns
-------
{returns}

Raises
------
NotFittedError
    Before a fit.
ValueError
    If the rows cannot be used; a table's columns of other names, or in another order, are named.
"""


def of_rows[F: Callable[..., Any]](returns: str) -> Callable[[F], F]:
    """Return a decorator that adds to a docstring what is said of any prediction for rows.

    Parameters
    ----------
    returns : str
        What comes back, with its shape.
    """

    def documented(method: F) -> F:
        lines = (method.__doc__ or "").strip().split("\n")
        text = "\n".join(line.strip() for line in lines)
        method.__doc__ = text + _SECTIONS.format(returns=returns)
        return method

    return documented
