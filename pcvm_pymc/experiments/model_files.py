"""Classifiers for tables, kept in a file of numbers and names, which cannot run code."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from pcvm_pymc import __version__
from pcvm_pymc.core.pieces.kernels import KernelPiece, PerCentre, as_kernel
from pcvm_pymc.core.pieces.likelihood_base import normalised
from pcvm_pymc.core.pieces.likelihoods import Likelihood, MultinomialProbit, Probit
from pcvm_pymc.core.pieces.transforms import NormalScores, Ranks, Viewed
from pcvm_pymc.core.probabilities import class_probability
from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.tables import MISSING, fields_of
from pcvm_pymc.inference.files import read_arrays, write_arrays

_KIND = "pcvm model"
_PICKLED = b"pcvm model "  # how files of versions before this format began
_NEEDED = "needed a file that `pcvm fit --out` wrote"
_MOST_CATEGORIES = 50
# a number with thousands set apart, a decimal comma or point, per cent
_SPELT = r"(?=.*\d)[+\-\u2212]?(\d{1,3}([\s'’.,]\d{3})+|\d*)([.,]\d+)?(e[+-]?\d+)?\s*%?"
_MOST_CODES = 20  # more distinct numbers with a few other values are no categories
_ROWS = 4096  # whose basis functions are in memory at once


class TableScaler(TransformerMixin, BaseEstimator):
    """Standardised numbers of a table, with an indicator for each category of its columns of text.

    Parameters
    ----------
    numbers, text : list of str
        Columns.
    impute : {"median", "mean", "most_frequent"}, optional
        What missing numbers become; missing texts become the most frequent one. Default: none may be missing.
    categories : list of list of str, optional
        Of each column of text. Default: those of the rows that it is fitted to.
    """

    def __init__(
        self,
        numbers: list[str],
        text: list[str],
        impute: str | None = None,
        categories: list[list[str]] | None = None,
    ) -> None:
        self.numbers = numbers
        self.text = text
        self.impute = impute
        self.categories = categories

    @classmethod
    def of(
        cls, path: Path, frame: pd.DataFrame, *, categorical: bool, impute: str | None
    ) -> "TableScaler":
        """Return the scaler of a table; raise where text or missing values need an option.

        Raises
        ------
        UsageError
            With the columns, and the option that takes them.
        """
        numeric = pd.api.types.is_numeric_dtype
        numbers = [str(each) for each in frame if numeric(frame[each].dtype)]
        text = [str(each) for each in frame if str(each) not in numbers]
        for each in text:
            few = not categorical or frame[each].nunique() > _MOST_CODES
            _check_odd_fields(path, frame[each], few=few)
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
        if impute is None:
            _check_missing(path, frame, "fill them in with --impute, or remove those rows")
        return cls(numbers, text, impute, [_texts_in(frame[each]) for each in text])

    def fit(self, X: pd.DataFrame, y: Any = None) -> Self:
        """Learn means, scales, categories and the values that replace missing entries."""
        numbers = X[self.numbers].astype(float)
        if self.impute == "most_frequent":
            self.fill_ = np.array([numbers[each].mode().iloc[0] for each in self.numbers], float)
        else:
            self.fill_ = getattr(numbers, self.impute or "mean")().to_numpy(float)
        filled = numbers.fillna(dict(zip(self.numbers, self.fill_, strict=True)))
        self.mean_ = filled.mean().to_numpy(float)
        scale = filled.std(ddof=0).to_numpy(float)
        # a column of equal numbers has a deviation of rounding
        self.scale_ = np.where(scale > 1e-12 * np.abs(self.mean_), scale, 1.0)
        self.common_ = [str(X[each].mode().iloc[0]) for each in self.text]
        known = self.categories
        self.categories_ = [_texts_in(X[each]) for each in self.text] if known is None else known
        return self

    def transform(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Return numbers, shape (n_rows, n_numbers + n_categories)."""
        numbers = X[self.numbers].to_numpy(float)
        numbers = np.where(np.isnan(numbers), self.fill_, numbers)
        columns = [(numbers - self.mean_) / self.scale_]
        for name, common, known in zip(self.text, self.common_, self.categories_, strict=True):
            text = X[name].fillna(common).astype(str).to_numpy(object)
            columns.append((text[:, None] == np.array(known, dtype=object)).astype(float))
        return np.column_stack(columns)

    def check(self, path: Path, frame: pd.DataFrame) -> None:
        """Raise a UsageError for a new table with missing columns, or values that were not fitted."""
        missing = [each for each in (*self.numbers, *self.text) if each not in frame.columns]
        if missing:
            raise UsageError(
                f"{path} lacks the columns {', '.join(missing[:8])}, which the model was fitted with"
            )
        numeric = pd.api.types.is_numeric_dtype
        text = [each for each in self.numbers if not numeric(frame[each].dtype)]
        for each in text:
            _check_odd_fields(path, frame[each])
        if text:
            raise UsageError(
                f"{path} has text in {', '.join(text[:5])}, which were numbers when the model was fitted"
            )
        table = frame[[*self.numbers, *self.text]]
        if self.impute is None:
            _check_missing(path, table, "remove those rows, or fit the model with --impute")
        _check_infinite(path, table, self.numbers)
        for name, seen in zip(self.text, self.categories_, strict=True):
            other = sorted(set(_texts_in(table[name])) - set(seen))
            if other:
                raise UsageError(
                    f"{path} has {', '.join(map(repr, other[:3]))} in {name!r}, which the model was not "
                    f"fitted with; it knows {', '.join(map(repr, seen[:8]))}"
                )


def _texts_in(column: pd.Series) -> list[str]:
    return sorted({str(each) for each in column.dropna()})


def _check_missing(path: Path, frame: pd.DataFrame, remedy: str) -> None:
    holes = [each for each in frame if frame[each].isna().any()]
    if holes:
        shown = ", ".join(fields_of(frame[each], frame[each].isna()) for each in holes[:5])
        raise UsageError(f"{path} has missing values in {shown}; {remedy}")


def _check_infinite(path: Path, frame: pd.DataFrame, numbers: list[str]) -> None:
    infinite = [each for each in numbers if np.isinf(frame[each].to_numpy(float)).any()]
    if infinite:
        shown = ", ".join(fields_of(frame[each], np.isinf(frame[each])) for each in infinite[:5])
        raise UsageError(f"{path} has infinite values in {shown}; remove them")


def _check_odd_fields(path: Path, column: pd.Series, *, few: bool = True) -> None:
    """Raise where a column of text has numbers in another spelling, or (`few`) some fields that are none."""
    present = column.notna() & ~column.isin(MISSING)
    strange = present & pd.to_numeric(column, errors="coerce").isna()
    odd = strange & ~column.str.fullmatch(_SPELT, na=False)
    if present.any() and not odd.any():
        # without a strange one they have points, in a table of decimal commas
        shown = fields_of(column, strange if strange.any() else present)
        raise UsageError(
            f"{path} has numbers with a mark that may part thousands or decimals, or a unit, in column "
            f"{shown}; write them as -1234.5, with a point and nothing else (decimal "
            "commas: in every number of the table)"
        )
    if few and 0 < odd.sum() < present.sum() / 2:
        raise UsageError(
            f"{path} has numbers and {odd.sum()} values that are none in column {fields_of(column, odd)}; "
            "write numbers as in 1234.5, leave missing values empty, or name what marks them in --missing"
        )


@dataclass(frozen=True)
class Mode:
    """A mode of the average, or the only one.

    Attributes
    ----------
    share : float
        In the average.
    kernel : str
        Its name.
    ranks : Ranks, optional
        Of the features, where the kernel is of ranks.
    width : ndarray
        One, one for each feature, or (as `per_centre` says) those of each centre.
    centres : ndarray, shape (n_centres, n_features)
    weight : ndarray, shape (n_centres,) or (n_centres, n_classes)
    bias : ndarray
    """

    share: float
    kernel: str
    ranks: Ranks | None
    width: NDArray[Any]
    per_centre: bool
    centres: NDArray[Any]
    weight: NDArray[Any]
    bias: NDArray[Any]

    def latent(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the latent function at some rows."""
        width = self.width[()] if self.width.ndim == 0 else self.width
        kernel: KernelPiece = as_kernel(self.kernel, None if self.per_centre else width)
        kernel = PerCentre(kernel, width) if self.per_centre else kernel
        kernel = kernel if self.ranks is None else Viewed(kernel, self.ranks)
        return kernel(X, self.centres) @ self.weight + self.bias


@dataclass(frozen=True)
class FittedTable:
    """What a file of `pcvm fit` contains.

    Attributes
    ----------
    scaler : TableScaler
    classes : ndarray, shape (n_classes,)
    modes : list of Mode
    target : str
        The label column.
    missing : tuple of str
        What marks missing fields in tables, besides emptiness.
    """

    scaler: TableScaler
    classes: NDArray[Any]
    modes: list[Mode]
    target: str
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, scaler: TableScaler, model: Any, target: str) -> "FittedTable":
        """Return what predictions of a fitted PCVMClassifier or MPCVMClassifier are computed from."""
        if hasattr(model, "components_"):
            modes = [
                Mode(
                    float(share),
                    *_named(each.kernel),
                    np.asarray(each.width, dtype=float),
                    False,
                    each.relevance_vectors,
                    each.weight,
                    np.asarray(each.bias, dtype=float),
                )
                for share, each in zip(model.component_weights_, model.components_, strict=True)
            ]
        else:
            own = getattr(model, "vector_widths_", None)
            width = np.asarray(model.width_ if own is None else own, dtype=float)
            bias = np.asarray(model.bias_, dtype=float)
            vectors = model.relevance_vectors_
            parts = "rbf", None, width, own is not None, vectors, model.weight_.T, bias
            modes = [Mode(1.0, *parts)]
        return cls(scaler, np.asarray(model.classes_).astype(str), modes, target)

    @property
    def features(self) -> list[str]:
        """Names of the columns that are needed."""
        return [*self.scaler.numbers, *self.scaler.text]

    def probabilities(self, path: Path, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the likeliest class and the probability of each, for every row of a table.

        Raises
        ------
        UsageError
            If columns are missing, of another kind, or have values or texts that were not fitted.
        """
        self.scaler.check(path, frame)
        X = self.scaler.transform(frame)
        probability = np.vstack([self._probability(part) for part in _blocks(X)])
        out = pd.DataFrame(probability, columns=[f"P({each})" for each in self.classes])
        out.insert(0, self.target, self.classes[probability.argmax(axis=1)])
        return out

    def _probability(self, X: NDArray[Any]) -> NDArray[Any]:
        n_classes = len(self.classes)
        likelihood: Likelihood = Probit() if n_classes == 2 else MultinomialProbit(n_classes)
        parts = [mode.share * class_probability(likelihood, mode.latent(X)) for mode in self.modes]
        return normalised(np.sum(parts, axis=0))

    def save(self, path: Path) -> None:
        """Write the file: arrays, and names as JSON, with a checksum."""
        scaler = self.scaler
        names = {
            "version": __version__,
            "target": self.target,
            "missing": self.missing,
            "numbers": scaler.numbers,
            "text": scaler.text,
            "impute": scaler.impute,
            "common": scaler.common_,
            "categories": scaler.categories_,
        }
        # modes share most of their centres: each is kept once
        points, place = np.unique(
            np.vstack([mode.centres for mode in self.modes]), axis=0, return_inverse=True
        )
        ends = np.cumsum([len(mode.centres) for mode in self.modes])[:-1]
        arrays: dict[str, Any] = {
            "names": np.array(json.dumps(names)),
            "classes": self.classes,
            "fill": scaler.fill_,
            "mean": scaler.mean_,
            "scale": scaler.scale_,
            "points": points,
            "share": np.array([mode.share for mode in self.modes]),
        }
        for i, (mode, own) in enumerate(
            zip(self.modes, np.split(place.ravel(), ends), strict=True)
        ):
            arrays[f"own {i}"], arrays[f"per centre {i}"] = own, np.array(mode.per_centre)
            arrays[f"kernel {i}"] = np.array(mode.kernel)
            arrays[f"of ranks {i}"] = np.array(mode.ranks is not None)
            for name in ("width", "weight", "bias"):
                arrays[f"{name} {i}"] = getattr(mode, name)
        # modes whose kernels are of ranks have these in common
        ranks = next((mode.ranks for mode in self.modes if mode.ranks is not None), Ranks(()))
        for j, column in enumerate(ranks.columns):
            if column is not None:
                arrays[f"knots {j}"], arrays[f"scores {j}"] = column.knots, column.scores
        write_arrays(path, _KIND, arrays, compressed=True)

    @classmethod
    def load(cls, path: Path) -> "FittedTable":
        """Read a file of `pcvm fit`.

        Raises
        ------
        UsageError
            If there is none, or it is something else, damaged, or of another version.
        StoreError
            If it is damaged.
        """
        try:
            with path.open("rb") as file:
                begins = file.read(len(_PICKLED))
        except FileNotFoundError:
            raise UsageError(f"{path} does not exist; {_NEEDED}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}); {_NEEDED}") from None
        if begins == _PICKLED:
            raise UsageError(
                f"{path} was written by an earlier version, as a pickle, which could run code and is not "
                f"read; fit the model again by pcvm {__version__}"
            )
        if not begins.startswith(b"PK"):
            raise UsageError(f"{path} is no model; {_NEEDED}")
        arrays = read_arrays(path, _KIND, _NEEDED)
        try:
            found = cls._from(arrays)
            found._probability(np.zeros((1, arrays["points"].shape[1])))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} has no model ({type(error).__name__}); {_NEEDED}") from None
        return found

    @classmethod
    def _from(cls, arrays: dict[str, NDArray[Any]]) -> "FittedTable":
        names = json.loads(str(arrays["names"]))
        scaler = TableScaler(names["numbers"], names["text"], names["impute"])
        scaler.fill_, scaler.mean_, scaler.scale_ = (arrays[n] for n in ("fill", "mean", "scale"))
        scaler.common_, scaler.categories_ = names["common"], names["categories"]
        known = [each for column in scaler.categories_ for each in column]
        texts = [*scaler.numbers, *scaler.text, *scaler.common_, *known]
        shapes = {arrays[name].shape for name in ("fill", "mean", "scale")}
        if shapes != {(len(scaler.numbers),)} or (
            arrays["points"].shape[1] != len(scaler.numbers) + len(known)
        ):
            raise ValueError("the scaler has other columns than the classifier")
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("names are no texts")
        ranks = Ranks(
            tuple(
                NormalScores(arrays[f"knots {j}"], arrays[f"scores {j}"])
                if f"knots {j}" in arrays
                else None
                for j in range(arrays["points"].shape[1])
            )
        )
        modes = [
            Mode(
                float(share),
                str(arrays[f"kernel {i}"]),
                ranks if arrays[f"of ranks {i}"] else None,
                arrays[f"width {i}"],
                bool(arrays[f"per centre {i}"]),
                arrays["points"][arrays[f"own {i}"]],
                arrays[f"weight {i}"],
                arrays[f"bias {i}"],
            )
            for i, share in enumerate(arrays["share"])
        ]
        marks = tuple(names.get("missing", ()))
        return cls(scaler, arrays["classes"].astype(str), modes, names["target"], marks)


def _named(kernel: Any) -> tuple[str, Ranks | None]:
    """Return a kernel's name, and the ranks that it is of."""
    if isinstance(kernel, Viewed):
        return str(kernel.kernel.name), kernel.ranks
    return str(kernel.name), None


def _blocks(X: NDArray[Any]) -> list[NDArray[Any]]:
    return np.array_split(X, max(1, -(-len(X) // _ROWS)))
