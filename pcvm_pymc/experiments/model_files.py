"""Classifiers for tables, kept in a file: scikit-learn's transformers, the classifier, what they need."""

import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pcvm_pymc import __version__
from pcvm_pymc.experiments.errors import UsageError, first_line
from pcvm_pymc.storage import write_atomically

__all__ = ["Columns", "ModelFile", "transformer"]

_KIND, _FORMAT = b"pcvm model ", b"pcvm model 2\n"  # what a file begins with
_MOST_CATEGORIES = 50
_MOST_CODES = 20  # more numbers with a few other cells are no categories


@dataclass(frozen=True)
class Columns:
    """Names of the features: numbers, and text."""

    numbers: list[str]
    text: list[str]

    @classmethod
    def of(cls, path: Path, frame: pd.DataFrame, *, categorical: bool, impute: bool) -> "Columns":
        """Return the columns of a table; raise where text or missing cells were not asked to be taken.

        Raises
        ------
        UsageError
            With the columns, and the option that takes them.
        """
        numeric = pd.api.types.is_numeric_dtype
        numbers = [str(each) for each in frame if numeric(frame[each].dtype)]
        text = [str(each) for each in frame if str(each) not in numbers]
        for each in text:
            if not categorical or frame[each].nunique() > _MOST_CODES:
                _check_odd_cells(path, frame[each])
        if text and not categorical:
            shown = ", ".join(f"{each} ({frame[each].dropna().iloc[0]!r})" for each in text[:5])
            raise UsageError(
                f"{path} has columns of text: {shown}; encode them with --categorical, or remove them"
            )
        for each in text:
            if frame[each].nunique() > _MOST_CATEGORIES:
                raise UsageError(
                    f"column {each!r} of {path} has {frame[each].nunique()} different texts, more than "
                    f"{_MOST_CATEGORIES}: no categories; remove it"
                )
        _check_infinite(path, frame, numbers)
        missing = frame.isna().sum()
        empty = [str(each) for each in frame if missing[each] == len(frame)]
        if empty:
            raise UsageError(
                f"{path} has columns without a value: {', '.join(empty[:5])}; remove them"
            )
        if missing.any() and not impute:
            shown = ", ".join(f"{each} ({n})" for each, n in missing[missing > 0].iloc[:5].items())
            raise UsageError(
                f"{path} has missing cells in {shown}; fill them in with --impute, or remove those rows"
            )
        return cls(numbers, text)

    def taken(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return these columns of a table, missing texts all of one kind, NaN."""
        table = frame[[*self.numbers, *self.text]].copy()
        for each in self.text:
            values = table[each].to_numpy(dtype=object, copy=True)
            values[table[each].isna()] = np.nan
            table[each] = pd.Series(values, index=table.index, dtype=object)
        return table


def _check_infinite(path: Path, frame: pd.DataFrame, numbers: list[str]) -> None:
    infinite = [each for each in numbers if np.isinf(frame[each].to_numpy(float)).any()]
    if infinite:
        raise UsageError(f"{path} has infinite values in {', '.join(infinite[:5])}; remove them")


def _check_odd_cells(path: Path, column: pd.Series) -> None:
    """Raise where most of a column of text are numbers, with what is none of them."""
    values = column.dropna()
    odd = values[pd.to_numeric(values, errors="coerce").isna()]
    if 0 < len(odd) < len(values) / 2:
        shown = ", ".join(map(repr, odd.unique()[:3]))
        raise UsageError(
            f"column {column.name!r} of {path} has numbers and {len(odd)} cells that are none: {shown}, the "
            f"first in line {int(column.index.get_loc(odd.index[0])) + 2}; write numbers as in 1234.5, leave "
            "missing cells empty"
        )


def transformer(
    columns: Columns, impute: str | None, table: pd.DataFrame | None = None
) -> ColumnTransformer:
    """Return what makes standardised numbers of a table's columns.

    Parameters
    ----------
    columns : Columns
    impute : {"median", "mean", "most_frequent"}, optional
        What missing numbers become; missing texts become the most frequent one. Default: none may be missing.
    table : DataFrame, optional
        Whose texts are the categories. Default: those of the rows to which it is fitted.
    """
    known: Any = "auto"
    if table is not None:
        known = [sorted(table[each].dropna().unique()) for each in columns.text]
    numbers: list[Any] = [StandardScaler()]
    text: list[Any] = [
        OneHotEncoder(categories=known, sparse_output=False, drop="if_binary", dtype=float)
    ]
    if impute is not None:
        numbers.insert(0, SimpleImputer(strategy=impute))
        text.insert(0, SimpleImputer(strategy="most_frequent"))
    parts = []
    if columns.numbers:
        parts.append(("numbers", make_pipeline(*numbers), columns.numbers))
    if columns.text:
        parts.append(("text", make_pipeline(*text), columns.text))
    return ColumnTransformer(parts)


@dataclass(frozen=True)
class ModelFile:
    """What a file of `pcvm fit` holds.

    Attributes
    ----------
    pipeline : Pipeline
    columns : Columns
    target : str
    impute : str or None
    """

    pipeline: Pipeline
    columns: Columns
    target: str
    impute: str | None

    @property
    def features(self) -> list[str]:
        """Names of the columns that are needed."""
        return [*self.columns.numbers, *self.columns.text]

    def save(self, path: Path) -> None:
        """Write the file."""
        # of arrays that several modes share joblib would write one copy for each
        content = pickle.dumps({"version": __version__, "model": self}, protocol=5)
        write_atomically(path, _FORMAT + zlib.compress(content, level=3))

    @classmethod
    def load(cls, path: Path) -> "ModelFile":
        """Read a file; only of `pcvm fit`, and from those whom you trust: reading it runs its code.

        Raises
        ------
        UsageError
            If there is none, or it is something else, damaged, or of another version.
        """
        needed = "needed a file that `pcvm fit --out` wrote"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"{path} does not exist; {needed}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({first_line(error)}); {needed}") from None
        if not content.startswith(_KIND):
            raise UsageError(f"{path} is no model; {needed}")
        try:
            if not content.startswith(_FORMAT):
                raise ValueError("its format is another")
            packed = zlib.decompress(content[len(_FORMAT) :])  # which has a checksum
            found: ModelFile = pickle.loads(packed)["model"]
        except zlib.error as error:
            raise UsageError(f"{path} is damaged ({first_line(error)}); {needed}") from None
        except (ValueError, LookupError, AttributeError, ImportError, TypeError) as error:
            raise UsageError(
                f"{path} was written by another version ({first_line(error)}); fit the model again by "
                f"{__version__}"
            ) from None
        return found

    def probabilities(self, path: Path, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the likeliest class and the probability of each, for every row of a table.

        Raises
        ------
        UsageError
            If columns are missing, of another kind, or have cells or texts that were not seen.
        """
        missing = [each for each in self.features if each not in frame.columns]
        if missing:
            raise UsageError(
                f"{path} lacks the columns {', '.join(missing[:8])}, which the model was fitted with"
            )
        table = self.columns.taken(frame)
        numeric = pd.api.types.is_numeric_dtype
        text = [each for each in self.columns.numbers if not numeric(table[each].dtype)]
        for each in text:
            _check_odd_cells(path, table[each])
        if text:
            raise UsageError(
                f"{path} has text in {', '.join(text[:5])}, which were numbers when the model was fitted"
            )
        if table.isna().any(axis=None) and self.impute is None:
            shown = ", ".join(map(str, table.columns[table.isna().any()][:5]))
            raise UsageError(
                f"{path} has missing cells in {shown}; remove those rows, or fit the model with --impute"
            )
        _check_infinite(path, table, self.columns.numbers)
        self._check_texts(path, table)
        probability = self.pipeline.predict_proba(table)
        classes = self.pipeline.classes_
        out = pd.DataFrame(probability, columns=[f"P({each})" for each in classes])
        out.insert(0, self.target, classes[probability.argmax(axis=1)])
        return out

    def _check_texts(self, path: Path, table: pd.DataFrame) -> None:
        """Raise where a column of text has one that the model was not fitted with."""
        if not self.columns.text:
            return
        known = self.pipeline[0].named_transformers_["text"][-1].categories_
        for name, seen in zip(self.columns.text, known, strict=True):
            other = sorted(set(table[name].dropna()) - set(seen), key=str)
            if other:
                raise UsageError(
                    f"{path} has {', '.join(map(repr, other[:3]))} in {name!r}, which the model was not "
                    f"fitted with; it knows {', '.join(map(repr, list(seen)[:8]))}"
                )
