"""Tables of users: which columns are categories, their levels as numbers, and how an estimator reads them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.pieces.encoding import UNKNOWN, Encoding
from pcvm_pymc.core.pieces.kernels import Precomputed, as_width
from pcvm_pymc.core.pieces.names import check_columns, column_names, column_types, columns_of
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, is_real, shown, warn_input
from pcvm_pymc.estimators.estimation import refuse
from pcvm_pymc.estimators.training import TrainingData

MOST_LEVELS = 255  # of a category: one with more is an identifier
# how the names of types of pandas, polars and pyarrow begin
_CATEGORIES = ("category", "Categorical", "Enum", "dictionary")


def categories_among(X: Any, which: Any) -> list[int]:
    """Return the numbers of the columns of a table that are categories.

    Parameters
    ----------
    X : array or table, shape (n_obs, n_features)
    which : "from_dtype", None, array_like of bool, int or str
        Columns of a table's type for categories; none; a mask; numbers; or names.

    Raises
    ------
    ValueError
        For a mask of another length, numbers or names of no column.
    """
    if which is None:
        return []
    if isinstance(which, str):
        types = enumerate(map(str, column_types(X)))
        return [j for j, kind in types if kind.startswith(_CATEGORIES)]
    asked, names = np.asarray(which, dtype=object), column_names(X) or []
    is_mask = all(isinstance(each, bool | np.bool_) for each in asked.flat)
    n_features = np.shape(X)[1] if np.ndim(X) == 2 else len(names)
    if is_mask and asked.shape == (n_features,):
        return np.flatnonzero(asked).tolist()
    found = []
    given: list[Any] = asked.tolist() if asked.ndim == 1 else [None]
    for each in given:
        if isinstance(each, str) and each in names:
            found.append(names.index(each))
        elif is_real(each, Integral) and 0 <= each < n_features:
            found.append(each)
        else:
            needed = f"'from_dtype', None, or a mask, numbers or names of the {n_features} columns"
            odd = f"categorical_features has {each!r}, which is no column of X"
            raise ValueError(f"{odd}; needed {needed}")
    return found


def _table(X: Any) -> Any:
    """Return a table, or an array of two dimensions, as one of pandas; None of what is none."""
    import pandas as pd  # slow

    table = X.to_pandas() if hasattr(X, "to_pandas") else X
    if np.ndim(table) != 2:
        return None
    is_list = not (hasattr(table, "dtype") or isinstance(table, pd.DataFrame))
    return pd.DataFrame(np.array(table, dtype=object) if is_list else table)


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of the categories of a table, by which they become numbers.

    Attributes
    ----------
    of_feature : mapping of int to ndarray
        Of each category, by its number, in order.
    ordered : tuple of int
        Categories whose levels have an order: numbers, or an ordered type.
    """

    of_feature: Mapping[int, NDArray[Any]] = field(default_factory=dict)
    ordered: tuple[int, ...] = ()

    @classmethod
    def of(cls, X: Any, which: Any) -> "Levels":
        """Return the levels of the columns that are categories, see `categories_among`.

        Raises
        ------
        ValueError
            For a category of more than 255 levels.
        """
        found, ordered = {}, []
        categories = categories_among(X, which)
        table: Any = _table(X) if categories else None
        for j in categories:
            found[j], is_ordered = _levels(table.iloc[:, j])
            ordered += [j] * is_ordered
            if len(found[j]) > MOST_LEVELS:
                words = f"the category {table.columns[j]!r} has {len(found[j])} levels"
                raise ValueError(f"{words}; needed at most {MOST_LEVELS}: an identifier? drop it")
        return cls(found, tuple(ordered))

    def numbers(self, X: Any, name: str = "X") -> Array:
        """Return a table as numbers, codes of the levels among them, shape (n_obs, n_features).

        NaN is a missing value, -1 a level that is unknown.

        Raises
        ------
        ValueError
            For a category without a known level, whose values would all say nothing: of several levels, or of
            one that is a known level in another type. Of any other one, as in a single row, it warns.
        """
        table = _table(X) if self.of_feature else None
        if table is None:
            return as_features(X, name, missing=True)
        import pandas as pd  # slow

        for j, levels in self.of_feature.items():
            if j < table.shape[1]:
                values = np.asarray(table.iloc[:, j], dtype=object)
                codes = pd.Index(levels, dtype=object).get_indexer(values).astype(float)
                codes[pd.isna(values)] = np.nan
                if (codes == UNKNOWN).any() and not (codes >= 0).any():
                    found = pd.unique(values[codes == UNKNOWN]).tolist()
                    _tell_unknown(table.columns[j], found, levels.tolist())
                table.isetitem(j, codes)
        return as_features(table, name, missing=True)


def _tell_unknown(category: Any, found: list[Any], known: list[Any]) -> None:
    """Raise, or warn, of a category without a known level; see `Levels.numbers`."""
    # as text, in which a number is that of its text, whatever its type
    text = [[str(e).strip().casefold().removesuffix(".0") for e in of] for of in (found, known)]
    same = [each for each, its in zip(known, text[1], strict=True) if its in text[0]]
    words = f"category {category!r} has no known level: found {found[:5]}, trained on {known[:5]}"
    if same or len(found) > 1:
        kind = f"type {type(same[0]).__name__}, as {same[0]!r}" if same else "levels of fitted rows"
        raise ValueError(f"{words}; needed {kind}")
    warn_input(f"{words}; it is predicted as any level that no training row has")


def _levels(column: Any) -> tuple[NDArray[Any], bool]:
    """Return the values of a column that are not missing, and whether their order says something."""
    import pandas as pd  # slow

    values = np.asarray(column, dtype=object)
    found = list(dict.fromkeys(values[~pd.isna(values)].tolist()))
    is_ordered, kind = all(is_real(each) for each in found), pd.Series(column).dtype
    if isinstance(kind, pd.CategoricalDtype) and kind.ordered:
        found, is_ordered = [each for each in kind.categories if each in found], True
    else:
        try:
            found.sort()
        except TypeError:  # of several types
            found.sort(key=lambda each: (type(each).__name__, str(each)))
    return np.array([*found, None], dtype=object)[:-1], is_ordered


# --- what an estimator reads --------------------------------------------------------------------


def is_dask(X: Any) -> bool:
    """Whether an input is a Dask collection, as Dask says."""
    # nothing is one before Dask is imported
    return "dask" in sys.modules and bool(sys.modules["dask"].is_dask_collection(X))


def with_names(values: Array, names: list[str] | None) -> Any:
    """Return values as a table whose columns have names, or as they are."""
    if names is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, columns=names)


def _numbered(values: Array) -> Array:
    """Return the matrix of a kernel with the numbers of its rows behind, as `Precomputed` needs it.

    Raise for missing values: there is no median that could take their place.
    """
    if np.isnan(values).any():
        fault = f"X has shape {values.shape} and missing values with kernel='precomputed'"
        raise ValueError(f"{fault}; needed the kernel of all rows with all training rows")
    return np.column_stack([values, np.arange(len(values))])


class TableReader:
    """How an estimator reads tables: the columns of a fit are those of all later tables.

    Attributes
    ----------
    _levels_ : Levels
        Of the categories.
    _encoding_ : Encoding or None
        How the features become the columns that are fitted; None of rows on Dask.
    """

    _levels_ = Levels()
    _columns_: Sequence[Any] = ()
    _encoding_: Encoding | None = None
    _kernel: Any
    n_features_in_: int
    categorical_features: Any
    basis: Any
    width: Any

    @property
    def _is_precomputed(self) -> bool:
        """Whether the inputs are the matrix of a kernel."""
        return isinstance(self._kernel, Precomputed)

    def _check_precomputed(self, X: Any) -> None:
        """Raise for what needs features, where the inputs are the matrix of a kernel."""
        if is_dask(X):
            raise ValueError("X is a Dask array with kernel='precomputed'; needed it in memory")
        if not (self.basis is None or isinstance(self.basis, str | Integral)):
            refuse(self, "kernel basis", "the bases are training rows; needed 'auto' or a number")
        if vars(self).get("star"):
            refuse(self, "kernel star", "needs the kernel of a new row with itself; leave it out")

    def _inputs(self, X: Any) -> Array:
        """Return new inputs for a fitted estimator, in the columns that it was fitted to."""
        check_is_fitted(self)
        if self._encoding_ is None:
            return np.asarray(self._named(X, as_features(X), reset=False))
        names = column_names(X) if self._levels_.of_feature else None
        if names is not None:  # before categories are read by their places
            self._named(X, np.zeros((1, len(names))), reset=False)
        values = self._named(X, self._levels_.numbers(X), reset=False)
        return self._encoding_(_numbered(values) if self._is_precomputed else values)

    def _read(self, X: Any, *y: Any, **how: Any) -> Any:
        """Return training inputs as numbers, and targets where they are given, checked.

        Categories are codes, and missing values NaN. As scikit-learn's `validate_data`.
        """
        self._levels_ = Levels.of(X, self.categorical_features)
        read = self._named(X, self._levels_.numbers(X), *y, **how)
        if not self._is_precomputed:
            return read
        values, *targets = read if isinstance(read, tuple) else (read,)
        if values.shape[0] != values.shape[1]:
            needed = "needed the kernel of all pairs of training rows, shape (n_obs, n_obs)"
            raise ValueError(f"X has shape {values.shape} with kernel='precomputed'; {needed}")
        check_columns(X)
        rows = _numbered(values)
        return (rows, *targets) if targets else rows

    def _reading(self) -> dict[str, Any]:
        """Return the attributes by which a fitted estimator reads tables."""
        names = ("n_features_in_", "feature_names_in_", "_columns_", "_levels_", "_encoding_")
        return {name: vars(self)[name] for name in names if name in vars(self)}

    def _encoded(self, data: TrainingData) -> TrainingData:
        """Return training rows that were read in the columns that are fitted, and keep how.

        Warn of features without any value, which are constant; raise where there are no others.
        """
        empty = np.flatnonzero(np.isnan(data.X).all(axis=0))
        if empty.size:
            names = vars(self).get("feature_names_in_", np.arange(data.X.shape[1]))
            fault = f"X has no value in columns {shown(names[empty].tolist())}"
            if empty.size == len(names):
                raise ValueError(f"{fault}, which are all; needed values: check how it was read")
            warn_input(f"{fault}, which have no effect; drop them, or check how it was read")
        levels = self._levels_
        encoding = Encoding.of(data.X, levels.of_feature, levels.ordered, data.weight)
        self._encoding_ = encoding
        return replace(data, X=encoding(data.X), encoding=encoding)

    def _widths_of_features(self, width: Any) -> Array:
        """Return the width of each feature, of the first of the columns made of it."""
        if self._encoding_ is not None and np.ndim(width):
            width = width[np.unique(self._encoding_.features, return_index=True)[1]]
        return np.array(np.broadcast_to(width, self.n_features_in_))

    def _given_width(self) -> Any:
        """Return the given width, of each column that is fitted where there is one for each feature."""
        width = as_width(self.width)
        if self._encoding_ is None or np.ndim(width) == 0:
            return width
        if len(width) != self.n_features_in_:
            needed = f"needed one or {self.n_features_in_}, the features"
            raise ValueError(f"width has {len(width)} values; {needed}")
        return width[self._encoding_.features]

    def _named(self, X: Any, values: Array, *y: Any, **how: Any) -> Any:
        """Return values under the names of the columns of `X`; they are kept, or compared with known ones."""
        table = with_names(values, column_names(X))
        if how.get("reset", True):
            self._columns_ = columns_of(X)
        elif "feature_names_in_" not in vars(self):  # which scikit-learn compares
            check_columns(X, self._columns_ or range(self.n_features_in_))
        return validate_data(self, table, *y, dtype=float, ensure_all_finite="allow-nan", **how)
