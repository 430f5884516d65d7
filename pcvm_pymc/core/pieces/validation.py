"""Checks of arguments and data: each error gives the name, the value found and the value needed."""

import warnings
from collections.abc import Sequence
from datetime import date, timedelta
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.pieces.probit import Array

LARGEST = 1e150  # of a feature, beyond which squared distances overflow
_MOST_DIGITS = 70  # of the spread of targets, up or down: the evidence has its fourth powers
MOST_COUNTS = 1e12  # of a row, beyond which products of the weights lose the prior
MISSING = "{} has {} value(s) that are {}, the first in row {}; {}"
NOT_FINITE = "missing, NaN or infinite"
DROP = "drop or impute those rows first"
_OF_TIME = "{} has dates or spans of time; needed numbers, as days since a first one"


# --- single arguments ---------------------------------------------------------------------------


def shown(value: Any, most: int = 80) -> str:
    """Return a value for an error message: its type alone where the text is long or cannot be made."""
    try:
        text = repr(value)
    except Exception:  # a user's own class may fail here
        text = ""
    if 0 < len(text) <= most and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {shape}" if isinstance(shape, tuple) else ""
    return f"<{type(value).__name__}{of_shape}>"


def is_unknown(value: Any) -> bool:
    """Whether a parameter is NaN, to be estimated or drawn, or a random variable of a PyMC model."""
    is_variable = hasattr(value, "owner") and hasattr(value, "type")
    return is_variable or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def is_real(value: Any, kind: type = Real) -> bool:
    """Whether a value is a real number, or of another kind of numbers; True and False are not."""
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def _require(is_met: Any, name: str, value: Any, needed: str, optional: bool = False) -> None:
    """Raise unless a condition is met, or the value is None where it is optional."""
    if is_met or (optional and value is None):
        return
    raise ValueError(f"{name}={shown(value)}; needed {needed}{' or None' * optional}")


def check_whole(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """Raise unless a value is a whole number of at least `least`, or None where it is optional."""
    inside = is_real(value, Integral) and value >= least
    _require(inside, name, value, f"a whole number of at least {least}", optional)


def check_real(
    name: str, value: Any, above: float = 0.0, below: float = np.inf, *, closed: bool | str = False
) -> None:
    """Raise unless a value is a finite number in a range.

    The range is open, from `above` to `below`; `closed` includes its ends, as ``"above"`` the lower one.
    """
    inside = is_real(value) and np.isfinite(value) and above <= value <= below
    inside = inside and (value != above or closed in (True, "above"))
    inside = inside and (value != below or closed is True)
    needed = f"a finite number {'of at least' if closed else 'above'} {above:g}"
    if below < np.inf:
        ends = {False: "ends excluded", True: "ends included", "above": f"{below:g} excluded"}
        needed = f"a number from {above:g} to {below:g}, {ends[closed]}"
    elif above == -np.inf:
        needed = "a finite number"
    elif above == 0 and not closed:
        needed = "a positive finite number"
    _require(inside, name, value, needed)


def check_flag(name: str, value: Any) -> None:
    """Raise unless a value is True or False."""
    _require(isinstance(value, bool | np.bool_), name, value, "True or False")


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise unless a value is one of some names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={shown(value)} is unknown; use one of {tuple(allowed)}")


def check_instance(
    name: str, value: Any, kinds: type | tuple[type, ...], needed: str, *, optional: bool = False
) -> None:
    """Raise unless a value is an instance of one of some types, or None where it is optional."""
    _require(isinstance(value, kinds), name, value, needed, optional)


def check_seed(name: str, value: Any) -> None:
    """Raise unless a value is a whole number of at least 0, a NumPy generator, or None."""
    is_seed = isinstance(value, np.random.Generator | np.random.RandomState)
    is_seed = is_seed or (is_real(value, Integral) and value >= 0)
    needed = "a whole number of at least 0, a numpy.random.Generator"
    _require(is_seed, name, value, needed, optional=True)


def as_seed(random_state: Any) -> Any:
    """Return a checked seed for NumPy: a number drawn from it where it is scikit-learn's RandomState."""
    check_seed("random_state", random_state)
    if isinstance(random_state, np.random.RandomState):
        return random_state.randint(2**31 - 1)
    return random_state


# --- numbers ------------------------------------------------------------------------------------


_PACKAGE = str(Path(__file__).resolve().parents[2])
_UNEQUAL = 50.0  # times the spread of another column


class InputWarning(UserWarning):
    """Input that can be used, and is hardly meant as it is."""


def warn_input(message: str) -> None:
    """Give an `InputWarning` at the line outside this package that called it."""
    warnings.warn(message, InputWarning, skip_file_prefixes=(_PACKAGE,), stacklevel=2)


def warn_unscaled(X: Array, columns: Sequence[Any] | None = None) -> None:
    """Warn where a column of `X` has fifty times the spread of another, or more.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
        Of more than 5000 rows every so many count. Spread is the standard deviation; constant columns do not
        count.
    columns : sequence, optional
        Names of the columns. Default: their numbers.
    """
    some = X[:: max(1, len(X) // 5000)]
    spread = np.std(some, axis=0)
    varying = np.flatnonzero(spread > 1e-12 * np.abs(some).max(axis=0))
    if not varying.size:
        return
    wide, narrow = (varying[pick(spread[varying])] for pick in (np.argmax, np.argmin))
    if spread[wide] < _UNEQUAL * spread[narrow]:
        return
    names = range(X.shape[1]) if columns is None else columns
    warn_input(
        f"X's column {names[wide]!s} has the standard deviation {spread[wide]:.3g}, column {names[narrow]!s} "
        f"{spread[narrow]:.3g}, so the latter hardly counts; standardise X, as by StandardScaler()"
    )


def warn_constant(X: Array) -> None:
    """Warn where all rows of `X` are the same."""
    if len(X) > 1 and (np.ptp(X, axis=0) == 0).all():
        warn_input(
            "X has rows that are all the same; needed columns that vary: look at how the table was read"
        )


def as_features(
    X: ArrayLike, name: str = "X", n_features: int | None = None, *, missing: bool = False
) -> Array:
    """Return `X` as a float matrix, shape (n_obs, n_features); `missing` leaves missing values as NaN.

    Raises
    ------
    ValueError
        If it is not two-dimensional, is empty, is not numeric, has infinities or (unless `missing`) NaN, or
        has another number of columns than `n_features`.
    TypeError
        If it has objects that are no numbers.
    """
    out = as_finite(X, name, missing=missing)
    if out.ndim != 2:
        fault = f"{name} has {out.ndim} dimension(s), shape {out.shape}; needed (n_obs, n_features)"
        raise ValueError(f"{fault}. Reshape your data: one feature is {name}.reshape(-1, 1)")
    if 0 in out.shape:
        shape = f"{out.shape[0]} row(s) of {out.shape[1]} feature(s) (shape={out.shape})"
        raise ValueError(f"{name} is empty: {shape} while a minimum of 1 is required.")
    if n_features is not None and out.shape[1] != n_features:
        raise ValueError(f"{name} has {out.shape[1]} features; needed {n_features}")
    return out


def as_finite(values: Any, name: str, remedy: str = DROP, *, missing: bool = False) -> Array:
    """Return values as finite floats; raise where one is not: how many are, and in which row first.

    `missing` leaves missing values as NaN.
    """
    out = as_numbers(values, name)
    bad = np.isinf(out) if missing else ~np.isfinite(out)
    if bad.any():
        where = np.argwhere(np.atleast_1d(bad))
        words = "infinite" if missing else NOT_FINITE
        raise ValueError(MISSING.format(name, len(where), words, where[0, 0], remedy))
    return out


def check_kind(values: Any, name: str) -> None:
    """Raise for values that NumPy would turn into numbers by dropping part of them.

    Raises
    ------
    ValueError
        For a mask that hides values, dates and time spans, complex and sparse values.
    """
    parts = values if isinstance(values, list | tuple) else [values]
    masks = [np.ma.getmaskarray(part) for part in parts if isinstance(part, np.ma.MaskedArray)]
    if masked := sum(int(mask.sum()) for mask in masks):
        raise ValueError(f"{name} has {masked} masked value(s); drop those rows or fill them in")
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} is sparse; needed a dense array: {name}.toarray()")
    columns = getattr(values, "dtypes", None)  # of a table, one for each column
    types = [getattr(values, "dtype", None)] if columns is None else np.atleast_1d(columns)
    kinds = {dtype.kind for dtype in types if isinstance(dtype, np.dtype)}
    if kinds & set("mM"):
        raise ValueError(_OF_TIME.format(name))
    if "c" in kinds:
        raise ValueError(f"Complex data not supported: {name} has complex values; needed real ones")


def _as_number(value: Any, name: str) -> Any:
    """Return an object that `float` takes, NaN for a missing one; raise for what it would change."""
    if isinstance(value, date | timedelta | np.datetime64 | np.timedelta64):
        raise ValueError(_OF_TIME.format(name))
    if isinstance(value, str | bytes | complex | np.complexfloating):
        raise TypeError(type(value).__name__)
    if isinstance(value, list | tuple | np.ndarray):
        raise TypeError(f"a {type(value).__name__} as one value: np.stack makes columns")
    return np.nan if _is_missing(value) else value


def as_numbers(values: Any, name: str) -> Array:
    """Return values as floats, missing ones as NaN; raise unless every other one is a real number."""
    check_kind(values, name)
    try:
        raw = np.asarray(values)
        check_kind(raw, name)
        if raw.dtype.kind in "USTV":
            of_records = "records: numpy.lib.recfunctions.structured_to_unstructured makes columns"
            raise TypeError(of_records if raw.dtype.kind == "V" else "text")
        if raw.dtype.kind == "O" and raw.ndim == 0:
            raise TypeError(f"a {type(values).__name__}: of what is lazy, .collect() or .compute()")
        if raw.dtype.kind == "O":
            numbers = [_as_number(value, name) for value in raw.flat]
            raw = np.array(numbers, dtype=float).reshape(raw.shape)
        X = np.asarray(raw, dtype=float)
        if X.ndim == 2 and X.size and LARGEST < max(X.max(), -X.min()) < np.inf:
            row, column = np.unravel_index(np.abs(X).argmax(), X.shape)
            fault = f"{name} has the value {X[row, column]:.3g} in row {row}, column {column}"
            raise ValueError(f"{fault}; needed values up to {LARGEST:g}: scale the columns")
        return X
    except (TypeError, ValueError, OverflowError) as error:
        if "not supported" in str(error) or str(error).startswith(f"{name} "):
            raise
        if "DateTime64DType" in str(error):  # of a table of pyarrow
            raise ValueError(_OF_TIME.format(name)) from None
        kind = TypeError if str(error).startswith("float()") else ValueError
        raise kind(
            f"{name} has values that are not numbers ({error}); encode them as numbers (OneHotEncoder), "
            "or give categories to an estimator by a table's type or categorical_features="
        ) from None


def check_shape(name: str, shape: tuple[int, ...], needed: tuple[int, ...], unit: str) -> None:
    """Raise unless a shape is the one needed, which has `each`."""
    if shape != needed:
        raise ValueError(f"{name} has shape {shape}; needed {needed}, one {unit}")


def as_targets(y: ArrayLike, n_obs: int) -> Array:
    """Return the targets of a regression as finite floats, shape (n_obs,)."""
    out = as_finite(y, "y", "drop those rows first")
    check_shape("y", out.shape, (n_obs,), "target for each row of X")
    size = float(np.ptp(out) or np.abs(out).max()) if len(out) else 0.0
    if size and not abs(np.log10(size)) < _MOST_DIGITS:
        fault = f"y has targets that spread over {size:.3g}; needed 1e-70 to 1e70"
        raise ValueError(f"{fault}: give them in another unit")
    return out


def as_weights(weight: Any, n_obs: int, name: str = "sample_weight") -> Array:
    """Return how often each row counts, shape (n_obs,); one number, or None for once, is that of all rows.

    Raises
    ------
    ValueError
        For weights that are no numbers, negative, not finite or too large, for zeros alone, and unless there
        is one for each row.
    """
    out = as_numbers(1.0 if weight is None else weight, name)
    out = np.full(n_obs, out) if out.ndim == 0 else out.copy()
    check_shape(name, out.shape, (n_obs,), "weight for each row of X")
    bad = np.flatnonzero(~((out >= 0) & (out <= MOST_COUNTS)))
    if bad.size:
        fault = f"{name} has the value {out[bad[0]]:g} in row {bad[0]}"
        raise ValueError(f"{fault}; needed numbers from 0 to {MOST_COUNTS:g}")
    if not out.any():
        raise ValueError(f"{name} has zeros alone; needed at least one non-zero weight")
    return out


def as_signs(signs: ArrayLike, *shape: int) -> Array:
    """Return signs as -1. / +1., shape (n_basis,), or (n_basis, n_scores) for several scores."""
    out = as_numbers(signs, "signs")
    check_shape("signs", out.shape, shape, "for each basis" + " and class" * (len(shape) > 1))
    if not np.isin(out, (-1.0, 1.0)).all():
        values = np.unique(out)[:5].tolist()
        raise ValueError(f"signs has values {values}; needed only -1 and +1 (2 * y - 1 for 0/1)")
    return out


# --- labels -------------------------------------------------------------------------------------


def present_labels(y: ArrayLike, name: str = "y") -> NDArray[Any]:
    """Return labels as an array; raise if one is missing or they cannot be ordered.

    Raises
    ------
    ValueError
        For labels that are masked, None, NaN, NaT, infinite, fractions, complex, or objects other than all
        text, all bools or all numbers.
    """
    if hasattr(y, "toarray") or isinstance(y, np.ma.MaskedArray):
        check_kind(y, name)
    try:
        labels = np.asarray(y)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no array of labels ({error})") from None
    given: Any = y if labels.ndim else ()
    if labels.dtype.kind in "US" and not all(isinstance(label, str | bytes) for label in given):
        labels = np.asarray(y, dtype=object)  # or NumPy would turn all of them into text
    labels = labels.astype(object) if labels.dtype.kind in "ST" else labels
    kind = labels.dtype.kind
    if kind == "V":
        raise ValueError(f"{name} has records as labels; needed one value a row")
    if kind == "c":
        raise ValueError(f"Complex data not supported: {name} has complex labels; needed real ones")
    missing = np.zeros(1, dtype=bool)
    if kind in "fmM":
        missing = ~np.isfinite(labels)
    elif kind == "O":
        missing = np.array([_is_missing(label) for label in labels.ravel()], dtype=bool)
    if missing.any():
        fault = f"{name} has labels that are NaN, infinite or missing ({missing.sum()})"
        raise ValueError(f"{fault}; drop those rows first")
    labels = _plain(labels, name) if kind == "O" else labels
    if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
        fraction = labels[labels != np.round(labels)].flat[0]
        words = f"Unknown label type: continuous. {name} has fractions as labels, such as {fraction:.4g}"
        raise ValueError(f"{words}; needed one value for each class, or RVMRegressor for numbers")
    return labels


def _plain(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Return labels that are objects: text as it is, bools and numbers in an array of their type."""
    types = {type(label) for label in labels.flat}
    kinds = (str, bool | np.bool_, Integral | float | np.floating)  # a bool is integral, too
    which = {next((k for k in range(3) if issubclass(kind, kinds[k])), None) for kind in types}
    if which <= {0}:
        return labels
    numbers = np.array(labels.tolist() if which in ({1}, {2}) else None)
    if numbers.dtype.kind != "O" and (numbers == labels).all():  # no digit is lost
        return numbers
    words = ", ".join(sorted(kind.__name__ for kind in types))
    words = f"{name} has labels of the type(s) {words}, such as {shown(labels.flat[0])}"
    raise ValueError(f"{words}; needed text alone, bools alone, or numbers of 64 bits")


def _is_missing(value: Any) -> bool:
    """Whether an object is None, NaN, NaT or pandas' NA, which do not equal themselves."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"  # pandas' NA has no truth value


def labels_of_rows(y: ArrayLike, n_obs: int, name: str = "y") -> NDArray[Any]:
    """Return labels as `present_labels` does; raise unless there is one for each row."""
    labels = present_labels(y, name)
    check_shape(name, labels.shape, (n_obs,), "label for each row of X")
    return labels


def as_labels(y: ArrayLike, n_obs: int, *, one_class: bool = False) -> tuple[Array, NDArray[Any]]:
    """Return labels as -1. / +1., shape (n_obs,), and the two classes in sorted order.

    Parameters
    ----------
    y : array_like, shape (n_obs,)
        Any two values; the greater one in sorted order becomes +1.
    n_obs : int
        Number of rows of X.
    one_class : bool
        Accept labels of one class only, where they are coded 0/1 or -1/+1 (simulated data).

    Raises
    ------
    ValueError
        If the length is wrong, a label is missing, or there are not exactly two classes.
    """
    labels = labels_of_rows(y, n_obs)
    classes = np.unique(labels)
    if one_class and len(classes) < 2 and classes.dtype.kind in "biuf":
        codes = [code for code in ([0, 1], [-1, 1]) if np.isin(classes, code).all()]
        classes = np.array(codes[0]) if codes else classes
    if len(classes) != 2:
        some = ", ".join(map(repr, classes[:5].tolist())) + (", ..." if len(classes) > 5 else "")
        more = "; for several use mpcvm_model or mrvm_model" * (len(classes) > 2)
        fault = f"Only binary classification is supported. y has {len(classes)} class(es) ({some})"
        raise ValueError(f"{fault}; needed exactly two{more}")
    return np.where(labels == classes[1], 1.0, -1.0), classes


def as_classes(y: ArrayLike, n_obs: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return labels as class numbers, shape (n_obs,), and the two or more classes in sorted order."""
    classes, number = np.unique(labels_of_rows(y, n_obs), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has {len(classes)} class; needed two or more")
    return number.astype(np.int64), classes
