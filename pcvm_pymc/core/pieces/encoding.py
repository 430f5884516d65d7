"""Columns of numbers that stand for the features of a table, categories and missing values among them."""

from collections.abc import Collection, Iterator
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
    """A column that stands for a feature, or for part of what is known of it.

    Attributes
    ----------
    feature : int
        Number of the feature.
    width : int
        Number of the width that the column has; the levels of a category have one in common.
    level : float, optional
        Code of the level that an indicator is of; NaN for a missing value. None for a number itself.
    absent : float
        In place of a number that is missing: the median. Of an indicator, where the level is unknown.
    ordered : bool
        Whether the codes of the category have an order.
    """

    feature: int
    width: int
    level: float | None = None
    absent: float = 0.0
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class Encoding:
    """A map of features to columns, fitted to rows without their labels.

    A number is one column, with the median where it is missing, and an indicator of that where some training
    row lacks it. A category is an indicator for each level, a missing one included. A level that is unknown
    is as far from each known one as they are from each other, in squared distance.

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
        out = np.empty((len(values), len(self.columns)))
        known = self._known(values)
        for k, each in enumerate(self.columns):
            value = values[:, each.feature]
            if each.level is None:
                out[:, k] = np.where(np.isnan(value), each.absent, value)
                continue
            there = np.isnan(value) if np.isnan(each.level) else value == each.level
            out[:, k] = np.where(there, UNIT, np.where(known[:, each.feature], 0.0, each.absent))
        return out

    def _known(self, values: Array) -> NDArray[np.bool_]:
        """Return whether the level of each row and feature is known; numbers are."""
        known = np.ones(values.shape, dtype=bool)
        for j, levels in self.levels().items():
            lacking = np.isnan(values[:, j])
            known[:, j] = np.where(lacking, np.isnan(levels).any(), np.isin(values[:, j], levels))
        return known

    def levels(self) -> dict[int, list[float]]:
        """Return the codes of the levels of each category, by its number."""
        numbers = {each.feature for each in self.columns if each.level is None}
        found: dict[int, list[float]] = {}
        for each in self.columns:
            if each.feature not in numbers:
                found.setdefault(each.feature, []).append(float(each.level or 0.0))
        return found

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
            mine = np.flatnonzero(self.features == j)
            if self.columns[mine[0]].ordered and len(mine) > 2:  # two are the same either way
                codes.append(Codes.of(mine, np.array(levels), X, count))
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
    ) -> "Encoding | None":
        """Return the map of a table; None where each feature is a number that no row lacks.

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
        if not categories and not missing.any():
            return None
        columns: list[Column] = []
        n_widths = 0
        for j, lacking in enumerate(missing.T):
            if j in categories:
                columns += cls._of_levels(j, n_widths, values[:, j], j in ordered)
            else:
                middle = _median(values[~lacking, j], None if count is None else count[~lacking])
                columns.append(Column(j, n_widths, absent=middle))
                if lacking.any() and not lacking.all():
                    n_widths += 1
                    columns.append(Column(j, n_widths, np.nan))
            n_widths += 1
        return cls(tuple(columns))

    @staticmethod
    def _of_levels(feature: int, width: int, codes: Array, ordered: bool) -> Iterator[Column]:
        levels = np.unique(codes)  # NaN last, once
        n = len(levels)
        # the point of equal coordinates that is as far from each unit vector as they are from each other
        unknown = UNIT * (1.0 - np.sqrt(1.0 + n)) / n
        for level in levels.tolist():
            yield Column(feature, width, level, unknown, ordered)


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
