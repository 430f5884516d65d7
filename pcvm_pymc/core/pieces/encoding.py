"""Columns of numbers made of the features of a table: of categories, and where values are missing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import weighted_median
from pcvm_pymc.core.pieces.transforms import Codes, FeatureTransform

UNKNOWN = -1.0  # code of a level that no training row has
#: of an indicator: levels are as far apart as a standardised column from its mirror image
UNIT = float(np.sqrt(2.0))


class Column(NamedTuple):
    """A column of an encoded table: a feature, or the indicator of a level or of missing values.

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
    features, width_numbers : ndarray of int, shape (n_columns,)
        Number of the feature, and of the width, of each column.
    levels : mapping of int to ndarray
        Codes of the levels of each category, by its number.
    """

    columns: tuple[Column, ...]
    features: NDArray[np.intp] = field(init=False, repr=False)
    width_numbers: NDArray[np.intp] = field(init=False, repr=False)
    levels: Mapping[int, Array] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        features = np.array([column.feature for column in self.columns])
        codes = np.array(
            [np.nan if column.level is None else column.level for column in self.columns]
        )
        is_unknown = codes == UNKNOWN
        levels = {j: codes[~is_unknown & (features == j)] for j in features[is_unknown].tolist()}
        numbers = np.array([column.width for column in self.columns])
        vars(self).update(features=features, width_numbers=numbers, levels=levels)

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
        for k, column in enumerate(self.columns):
            value = values[:, column.feature]
            missing = np.isnan(value)
            if column.level is None:
                out[:, k] = np.where(missing, column.median, value)
            elif column.level == UNKNOWN:
                codes = self.levels[column.feature]
                is_known = np.where(missing, np.isnan(codes).any(), np.isin(value, codes))
                out[:, k] = np.where(is_known, 0.0, UNIT)
            else:
                out[:, k] = UNIT * (missing if np.isnan(column.level) else value == column.level)
        return out

    @property
    def is_plain(self) -> bool:
        """Whether each feature is a number that no training row lacks."""
        return all(column.level is None for column in self.columns)

    def transform(self, X: Array, count: Array | None = None) -> FeatureTransform:
        """Return the transform without indicators: codes of ordered levels, medians alone.

        Parameters
        ----------
        X : ndarray, shape (n_obs, n_columns)
        count : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        codes = []
        for j, levels in self.levels.items():
            indicators = np.flatnonzero(self.features == j)[:-1]  # the last is of unknown ones
            # two: the same either way
            if self.columns[indicators[0]].ordered and len(indicators) > 2:
                codes.append(Codes.of(indicators, levels, X, count))
        known = enumerate(self.columns)
        missing = [k for k, e in known if e.level is not None and e.feature not in self.levels]
        return FeatureTransform(codes=codes, without=missing)

    @classmethod
    def of(
        cls,
        values: Array,
        categories: Collection[int] = (),
        ordered: Collection[int] = (),
        count: Array | None = None,
    ) -> "Encoding":
        """Return the encoding of the categories and missing values of a table.

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
                columns += [Column(j, n_widths, level, ordered=j in ordered) for level in levels]
            else:
                known = values[~lacking, j]
                often = np.ones(len(known)) if count is None else count[~lacking]
                middle = weighted_median(known, often) if len(known) else 0.0
                columns.append(Column(j, n_widths, median=middle))
                if lacking.any() and not lacking.all():
                    n_widths += 1
                    columns.append(Column(j, n_widths, np.nan))
            n_widths += 1
        return cls(tuple(columns))
