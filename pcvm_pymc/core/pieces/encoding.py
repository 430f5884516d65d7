"""Columns of numbers made of the features of a table: of categories, and where values are missing."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.transforms import Codes

UNKNOWN = -1.0  # code of a level that no training row has
#: of an indicator: levels are as far apart as a standardised column from its mirror image
UNIT = float(np.sqrt(2.0))


class Column(NamedTuple):
    """A column that is a feature, or part of what is known of it.

    Attributes
    ----------
    feature : int
        Number of the feature.
    width : int
        Number of the width that the column has; the levels of a category have one in common.
    level : float, optional
        Code of the level that an indicator is of; NaN for a missing value. None for a number itself.
    median : float
        In place of a number that is missing.
    ordered : bool
        Whether the codes of the category have an order.
    """

    feature: int
    width: int
    level: float | None = None
    median: float = 0.0
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class Encoding:
    """A map of features to columns, fitted to rows without their labels.

    A number is one column, with the median where it is missing, and an indicator of that where some training
    row lacks it. A category is an indicator for each level, a missing one included, and one for all levels
    that no training row has, so that these are as far from the others as those are from each other.

    Attributes
    ----------
    columns : tuple of Column
    """

    columns: tuple[Column, ...]

    def __call__(self, values: Array) -> Array:
        """Return the columns, shape (n_rows, n_columns).

        Parameters
        ----------
        values : ndarray, shape (n_rows, n_features)
            Numbers, and codes of categories; NaN where one is missing.
        """
        if self.is_plain and not np.isnan(values).any():
            return values
        out = np.empty((len(values), len(self.columns)))
        known = self.levels()
        for k, each in enumerate(self.columns):
            value = values[:, each.feature]
            missing = np.isnan(value)
            if each.level is None:
                out[:, k] = np.where(missing, each.median, value)
            elif each.level == UNKNOWN:
                codes = known[each.feature]
                is_known = np.where(missing, np.isnan(codes).any(), np.isin(value, codes))
                out[:, k] = np.where(is_known, 0.0, UNIT)
            else:
                out[:, k] = UNIT * (missing if np.isnan(each.level) else value == each.level)
        return out

    @property
    def is_plain(self) -> bool:
        """Whether each feature is a number that no training row lacks."""
        return all(each.level is None for each in self.columns)

    def levels(self) -> dict[int, Array]:
        """Return the codes of the levels of each category, by its number."""
        unknown = {each.feature for each in self.columns if each.level == UNKNOWN}
        pairs = [(each.feature, each.level) for each in self.columns]
        return {
            j: np.array([level for feature, level in pairs if feature == j and level != UNKNOWN])
            for j in sorted(unknown)
        }

    def plain(self, X: Array, count: Array | None = None) -> dict[str, Any]:
        """Return what a view without indicators is made of: codes of ordered levels, medians alone.

        Parameters
        ----------
        X : ndarray, shape (n_obs, n_columns)
        count : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        known, codes = self.levels(), []
        for j, levels in known.items():
            mine = np.flatnonzero(self.features == j)[:-1]  # the last is of unknown ones
            if self.columns[mine[0]].ordered and len(mine) > 2:  # two are the same either way
                codes.append(Codes.of(mine, levels, X, count))
        of_missing = [each.level is not None and each.feature not in known for each in self.columns]
        return {"codes": codes, "without": np.flatnonzero(of_missing)}

    @property
    def width_numbers(self) -> NDArray[np.intp]:
        """Number of the width of each column, shape (n_columns,)."""
        return np.array([each.width for each in self.columns])

    @property
    def features(self) -> NDArray[np.intp]:
        """Number of the feature of each column, shape (n_columns,)."""
        return np.array([each.feature for each in self.columns])

    @classmethod
    def of(
        cls,
        values: Array,
        categories: Collection[int] = (),
        ordered: Collection[int] = (),
        count: Array | None = None,
    ) -> "Encoding":
        """Return the map of a table.

        Parameters
        ----------
        values : ndarray, shape (n_obs, n_features)
            Numbers, and codes of categories; NaN where one is missing.
        categories, ordered : collection of int
            Numbers of the features that are categories, and of those whose levels are ordered.
        count : ndarray, shape (n_obs,), optional
            How often each row counts. Default: once.
        """
        missing = np.isnan(values)
        columns: list[Column] = []
        n_widths = 0
        for j, lacking in enumerate(missing.T):
            if j in categories:
                levels = [*np.unique(values[:, j]).tolist(), UNKNOWN]  # NaN once, after all numbers
                columns += [Column(j, n_widths, each, ordered=j in ordered) for each in levels]
            else:
                middle = _median(values[~lacking, j], None if count is None else count[~lacking])
                columns.append(Column(j, n_widths, median=middle))
                if lacking.any() and not lacking.all():
                    n_widths += 1
                    columns.append(Column(j, n_widths, np.nan))
            n_widths += 1
        return cls(tuple(columns))


def _median(values: Array, count: Array | None) -> float:
    """Return the median of values that count so often; zero of none."""
    if not len(values):
        return 0.0
    if count is None:
        return float(np.median(values))
    order = np.argsort(values)
    below = np.cumsum(count[order])
    # as of each value so often: the mean of both in the middle
    half = 0.5 * below[-1]
    first, last = np.searchsorted(below, half, "left"), np.searchsorted(below, half, "right")
    return float(0.5 * (values[order[first]] + values[order[min(last, len(order) - 1)]]))
