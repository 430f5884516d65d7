"""Classifiers for tables, kept in a file of numbers and names, which cannot run code."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from pcvm_pymc import __version__
from pcvm_pymc.core.pieces.encoding import Column, Encoding
from pcvm_pymc.core.pieces.kernels import KernelPiece, PerCentre, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, MultinomialProbit, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.transforms import NormalScores, View, Viewed
from pcvm_pymc.estimators import predictors
from pcvm_pymc.estimators.tables import Levels
from pcvm_pymc.estimators.training import TrainingData
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
    """A table with standardised numbers, and categories for columns of text; missing values stay.

    Parameters
    ----------
    numbers, text : list of str
        Columns.
    impute : bool
        Whether values may be missing: the estimators take them.
    """

    def __init__(self, numbers: list[str], text: list[str], impute: bool = False) -> None:
        self.numbers = numbers
        self.text = text
        self.impute = impute

    @classmethod
    def of(
        cls, path: Path, frame: pd.DataFrame, *, categorical: bool, impute: bool
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
        if not impute:
            _check_missing(path, frame, "fill them in with --impute, or remove those rows")
        return cls(numbers, text, impute)

    def fit(self, X: pd.DataFrame, y: Any = None) -> Self:
        """Learn mean and scale of the numbers that are there."""
        numbers = X[self.numbers].astype(float)
        self.mean_ = numbers.mean().fillna(0.0).to_numpy(float)
        scale = numbers.std(ddof=0).to_numpy(float)
        # a column of equal numbers has a deviation of rounding, one of none has NaN
        self.scale_ = np.where(scale > 1e-12 * np.abs(self.mean_), scale, 1.0)
        return self

    def transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the numbers, standardised, and after them the categories."""
        numbers = (X[self.numbers].astype(float) - self.mean_) / self.scale_
        return pd.concat([numbers, X[self.text].astype("category")], axis=1)

    def check(self, path: Path, frame: pd.DataFrame) -> None:
        """Raise a UsageError for a new table with missing columns, or values that cannot be read."""
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
        if not self.impute:
            _check_missing(path, table, "remove those rows, or fit the model with --impute")
        _check_infinite(path, table, self.numbers)


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
    view : View, optional
        The columns as the kernel sees them, where it does not take them as they are.
    width : ndarray
        One, one for each column, or (as `per_centre` says) those of each centre.
    centres : ndarray, shape (n_centres, n_columns)
    weight : ndarray, shape (n_centres,) or (n_centres, n_classes)
    bias : ndarray
    prior : Hyperprior
    """

    share: float
    kernel: str
    view: View | None
    width: NDArray[Any]
    per_centre: bool
    centres: NDArray[Any]
    weight: NDArray[Any]
    bias: NDArray[Any]
    prior: Hyperprior

    def fitted(self, likelihood: Likelihood) -> predictors.Mode:
        """Return what predicts."""
        width = self.width[()] if self.width.ndim == 0 else self.width
        kernel: KernelPiece = as_kernel(self.kernel, None if self.per_centre else width)
        kernel = PerCentre(kernel, width) if self.per_centre else kernel
        kernel = kernel if self.view is None else Viewed(kernel, self.view, width)
        own, given = np.arange(len(self.centres)), (self.weight, self.bias)
        return predictors.Mode(
            kernel, {}, self.centres, own, *given, np.nan, own, likelihood, self.prior
        )

    @classmethod
    def of(cls, share: float, mode: Any) -> Self:
        """Return a mode of an estimator."""
        kernel = mode.kernel
        view = kernel.view if isinstance(kernel, Viewed) else None
        per_centre = isinstance(kernel, PerCentre)
        plain = kernel.kernel if per_centre or view is not None else kernel
        width = np.asarray(kernel.width, dtype=float)
        bias = np.asarray(mode.bias, dtype=float)
        how = plain.name, view, width, per_centre
        return cls(share, *how, mode.relevance_vectors, mode.weight, bias, mode.prior)


@dataclass(frozen=True)
class FittedTable:
    """What a file of `pcvm fit` contains.

    Attributes
    ----------
    scaler : TableScaler
    levels : Levels
        Of the categories, by which they are numbers.
    encoding : Encoding
        Of these and the other numbers in the columns that are fitted.
    classes : ndarray, shape (n_classes,)
    modes : list of Mode
    target : str
        The label column.
    missing : tuple of str
        What marks missing fields in tables, besides emptiness.
    id : str, optional
        The column that is no feature, and that predictions begin with.
    rows : TrainingData, optional
        By which intervals are computed, of an average of rows in memory.
    """

    scaler: TableScaler
    levels: Levels
    encoding: Encoding
    classes: NDArray[Any]
    modes: list[Mode]
    target: str
    missing: tuple[str, ...] = ()
    id: str | None = None
    rows: TrainingData | None = None

    @classmethod
    def of(cls, scaler: TableScaler, model: Any, target: str) -> "FittedTable":
        """Return what predictions of a fitted PCVMClassifier or MPCVMClassifier are computed from."""
        modes = getattr(model, "components_", [model._predictor_])
        shares = getattr(model, "component_weights_", [1.0])
        averages = hasattr(model, "components_")
        return cls(
            scaler,
            model._levels_,
            model._encoding_,
            np.asarray(model.classes_).astype(str),
            [Mode.of(float(share), mode) for share, mode in zip(shares, modes, strict=True)],
            target,
            rows=vars(model).get("_training_") if averages else None,
        )

    @property
    def features(self) -> list[str]:
        """Names of the columns that are needed."""
        return [*self.scaler.numbers, *self.scaler.text]

    def probabilities(
        self, path: Path, frame: pd.DataFrame, interval: float | None = None
    ) -> pd.DataFrame:
        """Return the likeliest class and the probability of each, for every row of a table.

        Parameters
        ----------
        path : Path
            Of the table, for messages.
        frame : DataFrame
        interval : float, optional
            Probability of intervals, whose lower and upper ends are further columns; needs `rows`.

        Raises
        ------
        UsageError
            If columns are missing, of another kind, or have values that cannot be read.
        """
        self.scaler.check(path, frame)
        X = self.encoding(self.levels.numbers(self.scaler.transform(frame)))
        probability = np.vstack([self.average.probability(part) for part in _blocks(X)])
        out = pd.DataFrame(probability, columns=[f"P({each})" for each in self.classes])
        out.insert(0, self.target, self.classes[probability.argmax(axis=1)])
        if interval is not None:
            ends = self.average.interval(X, interval, self.rows)
            for each, (low, high) in zip(self.classes, np.moveaxis(ends, 0, -1), strict=True):
                out[f"P({each}) low"], out[f"P({each}) high"] = low, high
        return out

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """Return the columns of a table with texts that no training row has: their names, texts and rows."""
        found, fitted = [], self.encoding.levels
        for j, levels in self.levels.of_feature.items():
            column = frame[self.features[j]]
            known = column.isin(levels) | (column.isna() & np.isnan(fitted[j]).any())
            if n := int((~known).sum()):
                texts = ", ".join(map(repr, column[~known].fillna("").unique()[:3]))
                found.append(f"{column.name} ({texts} in {n} row{'s' * (n > 1)})")
        return found

    @property
    def average(self) -> predictors.Average:
        """What predicts."""
        n_classes = len(self.classes)
        likelihood: Likelihood = Probit() if n_classes == 2 else MultinomialProbit(n_classes)
        modes = [mode.fitted(likelihood) for mode in self.modes]
        return predictors.Average(modes, np.array([mode.share for mode in self.modes]), likelihood)

    def save(self, path: Path) -> None:
        """Write the file: arrays, and names as JSON, with a checksum."""
        scaler = self.scaler
        # modes that see the columns otherwise do so in one way; texts have no order, so no codes
        view = next((mode.view for mode in self.modes if mode.view is not None), View())
        names = {
            "version": __version__,
            "target": self.target,
            "id": self.id,
            "missing": self.missing,
            "priors": [asdict(mode.prior) for mode in self.modes],
            "numbers": scaler.numbers,
            "text": scaler.text,
            "impute": scaler.impute,
            "levels": [levels.tolist() for levels in self.levels.of_feature.values()],
            "without": np.asarray(view.without).tolist(),
        }
        # modes share most of their centres, which are rows: each is kept once
        parts = [mode.centres for mode in self.modes]
        parts += [] if self.rows is None else [self.rows.X]
        points, place = np.unique(np.vstack(parts), axis=0, return_inverse=True)
        ends = np.cumsum([len(each) for each in parts])[:-1]
        owned = np.split(place.ravel(), ends)
        arrays: dict[str, Any] = {
            "names": np.array(json.dumps(names)),
            "classes": self.classes,
            "mean": scaler.mean_,
            "scale": scaler.scale_,
            "columns": _array_of(self.encoding),
            "points": points,
            "share": np.array([mode.share for mode in self.modes]),
        }
        for i, mode in enumerate(self.modes):
            arrays[f"own {i}"], arrays[f"per centre {i}"] = owned[i], np.array(mode.per_centre)
            arrays[f"kernel {i}"] = np.array(mode.kernel)
            arrays[f"of view {i}"] = np.array(mode.view is not None)
            for name in ("width", "weight", "bias"):
                arrays[f"{name} {i}"] = getattr(mode, name)
        if self.rows is not None:
            arrays |= {"rows": owned[-1], "labels": self.rows.label, "counts": self.rows.count}
        for j, scores in view.ranks.items():
            arrays[f"knots {j}"], arrays[f"scores {j}"] = scores.knots, scores.scores
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
            found.average.probability(found.encoding(np.zeros((1, len(found.features)))))
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise UsageError(f"{path} has no model ({type(error).__name__}); {_NEEDED}") from None
        return found

    @classmethod
    def _from(cls, arrays: dict[str, NDArray[Any]]) -> "FittedTable":
        names = json.loads(str(arrays["names"]))
        scaler = TableScaler(names["numbers"], names["text"], names["impute"])
        scaler.mean_, scaler.scale_ = arrays["mean"], arrays["scale"]
        n, known = len(scaler.numbers), names["levels"]
        levels = Levels({n + i: np.array(each, dtype=object) for i, each in enumerate(known)})
        encoding = _encoding_of(arrays["columns"])
        n_columns = arrays["points"].shape[1]
        if (
            {arrays[name].shape for name in ("mean", "scale")} != {(n,)}
            or len(known) != len(scaler.text)
            or len(encoding.columns) != n_columns
            or set(encoding.features) != set(range(n + len(known)))
        ):
            raise ValueError("the table has other columns than the classifier")
        texts = [*scaler.numbers, *scaler.text, *(each for column in known for each in column)]
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("names are no texts")
        ranks = {
            j: NormalScores(arrays[f"knots {j}"], arrays[f"scores {j}"])
            for j in range(n_columns)
            if f"knots {j}" in arrays
        }
        view = View(ranks=ranks, without=names["without"])
        modes = [
            Mode(
                float(share),
                str(arrays[f"kernel {i}"]),
                view if arrays[f"of view {i}"] else None,
                arrays[f"width {i}"],
                bool(arrays[f"per centre {i}"]),
                arrays["points"][arrays[f"own {i}"]],
                arrays[f"weight {i}"],
                arrays[f"bias {i}"],
                Hyperprior(**names["priors"][i]),
            )
            for i, share in enumerate(arrays["share"])
        ]
        classes, marks = arrays["classes"].astype(str), tuple(names.get("missing", ()))
        found = cls(scaler, levels, encoding, classes, modes, names["target"], marks, names["id"])
        if "rows" not in arrays:
            return found
        own, label, count = (arrays[name] for name in ("rows", "labels", "counts"))
        kinds = np.arange(len(classes)) if len(classes) > 2 else [-1.0, 1.0]
        if not (len(own),) == own.shape == label.shape == count.shape or set(label) - set(kinds):
            raise ValueError("the training rows are not the classifier's")
        return replace(found, rows=TrainingData(arrays["points"][own], label, count))


def _array_of(encoding: Encoding) -> NDArray[Any]:
    """Return columns as rows of numbers: feature, width, level (infinite for a number itself), median."""
    levels = [np.inf if each.level is None else each.level for each in encoding.columns]
    parts = zip(encoding.columns, levels, strict=True)
    return np.array([(each.feature, each.width, level, each.median) for each, level in parts])


def _encoding_of(columns: NDArray[Any]) -> Encoding:
    return Encoding(
        tuple(
            Column(int(feature), int(width), None if np.isinf(level) else level, median)
            for feature, width, level, median in columns.tolist()
        )
    )


def _blocks(X: NDArray[Any]) -> list[NDArray[Any]]:
    return np.array_split(X, max(1, -(-len(X) // _ROWS)))
