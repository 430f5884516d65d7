"""Tables as inputs: pandas, polars, or whatever has columns; their names and index become coordinates."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features

__all__ = ["Frame", "feature_names"]


def feature_names(X: Any) -> list[str] | None:
    """Return the names of a table's columns; None for an array, or where they are not all strings."""
    columns = getattr(X, "columns", None)
    names = [] if columns is None else list(columns)
    return names if names and all(isinstance(each, str) for each in names) else None


@dataclass(frozen=True)
class Frame:
    """Inputs with what rows and columns are called.

    Attributes
    ----------
    values : ndarray, shape (n_obs, n_features)
    index : ndarray, shape (n_obs,)
        The index of a pandas table, otherwise numbers from 0.
    columns : ndarray, shape (n_features,)
        The names of a table's columns, otherwise numbers from 0.
    """

    values: Array
    index: NDArray[Any]
    columns: NDArray[Any]

    @classmethod
    def of(cls, X: Any, name: str = "X", known: Any = None, n_features: int | None = None) -> Self:
        """Return inputs as a frame; raise where they cannot be used.

        Parameters
        ----------
        X : array_like or table, shape (n_obs, n_features)
        name : str
            What it is called in messages.
        known : sequence, optional
            What the columns of the training rows are called. A table with other names, or in another order,
            raises; an array is taken as it is.
        n_features : int, optional

        Raises
        ------
        ValueError
        """
        names = feature_names(X)
        if names is not None and known is not None:
            _check_names(
                names, [each.item() if hasattr(each, "item") else each for each in known], name
            )
        values = as_features(X, name, n_features)
        index = getattr(X, "index", None)
        has_index = index is not None and not callable(index) and len(index) == len(values)
        return cls(
            values,
            np.asarray(index) if has_index else np.arange(len(values)),
            np.arange(values.shape[1]) if names is None else np.asarray(names),
        )


def _check_names(found: list[str], known: list[Any], name: str) -> None:
    if found == known or not all(isinstance(each, str) for each in known):
        return
    missing = [each for each in known if each not in found]
    extra = [each for each in found if each not in known]
    if missing or extra:
        parts = [f"lacks the columns {missing}"] if missing else []
        parts += [f"has columns that the training rows lack, {extra}"] if extra else []
        raise ValueError(f"{name} {' and '.join(parts)}; needed {known}, in this order")
    raise ValueError(
        f"{name} has its columns in another order than the training rows: {found}; needed {known}: "
        f"{name}[{known}]"
    )
