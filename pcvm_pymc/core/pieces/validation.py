"""Checks of arrays that come from outside: each error gives name, value found and value needed."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.pieces.validation import check_seed
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "InputWarning",
    "as_classes",
    "as_features",
    "as_labels",
    "as_numbers",
    "as_row_weight",
    "as_seed",
    "as_signs",
    "as_targets",
    "check_kind",
    "present_labels",
    "warn_input",
    "warn_unscaled",
]

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
        f"X is not scaled: column {names[wide]!s} has the standard deviation {spread[wide]:.3g}, column "
        f"{names[narrow]!s} {spread[narrow]:.3g}, so that the second hardly counts in distances; standardise "
        "the columns first: (X - X.mean(axis=0)) / X.std(axis=0), or StandardScaler() in a pipeline"
    )


def as_features(X: ArrayLike, name: str = "X", n_features: int | None = None) -> Array:
    """Return `X` as a float matrix, shape (n_obs, n_features).

    Raises
    ------
    ValueError
        If it is not two-dimensional, is empty, is not numeric, holds NaN or infinities, or has another
        number of columns than `n_features`.
    TypeError
        If it holds objects that are no numbers.
    """
    out = as_numbers(X, name)
    if out.ndim != 2:
        raise ValueError(
            f"{name} has {out.ndim} dimension(s), shape {out.shape}; needed two: (n_obs, n_features). "
            f"For a single feature use {name}.reshape(-1, 1)"
        )
    if 0 in out.shape:
        raise ValueError(f"{name} is empty, shape {out.shape}; needed at least one row and column")
    if not np.isfinite(out).all():
        rows = np.flatnonzero(~np.isfinite(out).all(axis=1))
        raise ValueError(
            f"{name} has {np.size(out) - np.isfinite(out).sum()} value(s) that are NaN or infinite, "
            f"the first in row {rows[0]}; drop or impute those rows first"
        )
    if n_features is not None and out.shape[1] != n_features:
        raise ValueError(f"{name} has {out.shape[1]} features; needed {n_features}")
    return out


def check_kind(values: Any, name: str) -> None:
    """Raise for what NumPy would turn into numbers by leaving something out.

    Raises
    ------
    ValueError
        For a mask that hides values, dates and spans of time, complex and sparse values.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(
            f"{name} has {int(np.ma.getmaskarray(values).sum())} masked value(s), as missing ones; drop "
            "those rows or fill them in first"
        )
    if hasattr(values, "toarray"):
        raise ValueError(f"{name} is sparse; needed a dense array: {name}.toarray()")
    kinds = {each.kind for each in _types(values)}
    if kinds & set("mM"):
        raise ValueError(
            f"{name} has dates or spans of time; needed numbers, as days since a first one"
        )
    if "c" in kinds:
        raise ValueError(f"Complex data not supported: {name} has complex values; needed real ones")


def _types(values: Any) -> list[np.dtype[Any]]:
    """Return the NumPy types of an array, or of each column of a frame."""
    found = getattr(values, "dtypes", None)
    each = [getattr(values, "dtype", None)] if found is None else list(np.atleast_1d(found))
    return [kind for kind in each if isinstance(kind, np.dtype)]


def as_numbers(values: Any, name: str) -> Array:
    """Return values as floats, if they are real numbers, every one."""
    check_kind(values, name)
    try:
        raw = np.asarray(values)
        check_kind(raw, name)
        if raw.dtype.kind in "USV":
            raise TypeError("text or records")
        if raw.dtype.kind == "O":
            _check_objects(raw)
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        if "not supported" in str(error) or str(error).startswith(f"{name} "):
            raise
        kind = TypeError if str(error).startswith("float()") else ValueError
        raise kind(
            f"{name} has values that are not numbers ({error}); encode them as numbers first"
        ) from None


def _check_objects(raw: NDArray[Any]) -> None:
    """Raise for objects that `float` would change: text, complex numbers, dates."""
    for each in raw.ravel():
        if isinstance(each, str | bytes | complex | np.complexfloating | np.datetime64):
            raise TypeError(f"{type(each).__name__}")


def present_labels(y: ArrayLike, name: str = "y") -> NDArray[Any]:
    """Return labels as an array, if none is missing and all can be told apart.

    Raises
    ------
    ValueError
        For labels that are masked, None, NaN, NaT, infinite, complex, or of types without a common order.
    """
    if hasattr(y, "toarray") or isinstance(y, np.ma.MaskedArray):
        check_kind(y, name)
    try:
        labels = np.asarray(y)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is no array of labels ({error}); needed one label a row"
        ) from None
    if labels.dtype.kind in "US" and not _is_all_text(y):
        labels = np.asarray(y, dtype=object)  # not what else stands beside text, as its text
    kind = labels.dtype.kind
    if kind == "c":
        raise ValueError(f"Complex data not supported: {name} has complex labels; needed real ones")
    if kind == "V":
        raise ValueError(f"{name} has records as labels; needed one value a row")
    if kind == "f":
        missing = ~np.isfinite(labels)
    elif kind in "mM":
        missing = np.isnat(labels)
    elif kind == "O":
        missing = np.array([_is_missing(each) for each in labels.ravel()], dtype=bool)
    else:
        return labels
    if missing.any():
        raise ValueError(
            f"{name} has labels that are NaN, infinite or missing ({int(missing.sum())}); drop those rows "
            "first"
        )
    if kind == "O":
        try:
            np.unique(labels)
        except TypeError:
            raise ValueError(_mixed_types(labels, name)) from None
    return labels


def _is_all_text(values: Any) -> bool:
    return isinstance(values, str) or all(isinstance(each, str | bytes) for each in values)


def _is_missing(label: Any) -> bool:
    """Whether an object stands for nothing: None, NaN, NaT, pandas' NA (not equal to themselves)."""
    try:
        return label is None or bool(label != label)  # noqa: PLR0124
    except (TypeError, ValueError):  # pandas' NA has no truth
        return True


def as_labels(y: ArrayLike, n_obs: int, *, one_class: bool = False) -> tuple[Array, NDArray[Any]]:
    """Return labels as -1. / +1., shape (n_obs,), and the two classes in sorted order.

    Parameters
    ----------
    y : array_like, shape (n_obs,)
        Any two values; the greater one in sorted order becomes +1.
    n_obs : int
        Number of rows of X.
    one_class : bool
        Accept labels all of one class, where they are coded 0/1 or -1/+1 (data that were simulated).

    Raises
    ------
    ValueError
        If the length is wrong, a label is missing, or there are not exactly two classes.
    """
    labels = present_labels(y)
    if labels.ndim != 1 or len(labels) != n_obs:
        raise ValueError(
            f"y has shape {labels.shape}; needed ({n_obs},), one label for each row of X"
        )
    classes = np.unique(labels)
    if one_class and len(classes) < 2:
        classes = _completed(classes)
    if len(classes) != 2:
        shown = ", ".join(map(repr, classes[:5].tolist())) + (", ..." if len(classes) > 5 else "")
        raise ValueError(
            "Only binary classification is supported. "
            f"y has {len(classes)} class(es) ({shown}); needed exactly two"
        )
    return np.where(labels == classes[1], 1.0, -1.0), classes


def as_classes(y: ArrayLike, n_obs: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return labels as numbers of their classes, shape (n_obs,), and the classes in sorted order.

    Raises
    ------
    ValueError
        If the length is wrong, a label is missing, or there are fewer than two classes.
    """
    labels = present_labels(y)
    if labels.shape != (n_obs,):
        raise ValueError(
            f"y has shape {labels.shape}; needed ({n_obs},), one label for each row of X"
        )
    classes, number = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has {len(classes)} class; needed two or more")
    return number.astype(np.int64), classes


def _mixed_types(labels: NDArray[Any], name: str) -> str:
    kinds = sorted({type(each).__name__ for each in labels.ravel().tolist()})
    return f"{name} mixes labels of the types {', '.join(kinds)}; needed one type, and none missing"


def _completed(classes: NDArray[Any]) -> NDArray[Any]:
    """Return both codes where only one of 0/1 or -1/+1 occurs."""
    for codes in ([0, 1], [-1, 1]):
        if classes.dtype.kind in "biuf" and np.isin(classes, codes).all():
            return np.array(codes)
    return classes


def as_targets(y: ArrayLike, n_obs: int) -> Array:
    """Return the targets of a regression as floats, shape (n_obs,).

    Raises
    ------
    ValueError
        If the length is wrong, or a value is not a finite number.
    """
    out = as_numbers(y, "y")
    if out.shape != (n_obs,):
        raise ValueError(
            f"y has shape {out.shape}; needed ({n_obs},), one target for each row of X"
        )
    if not np.isfinite(out).all():
        raise ValueError("y has targets that are NaN or infinite; drop those rows first")
    return out


def as_seed(random_state: Any) -> Any:
    """Return a seed for NumPy; scikit-learn's RandomState is drawn from.

    Raises
    ------
    ValueError
        If it is neither a whole number of at least 0, nor a generator, nor None.
    """
    check_seed("random_state", random_state)
    if isinstance(random_state, np.random.RandomState):
        return random_state.randint(2**31 - 1)
    return random_state


def as_row_weight(weight: ArrayLike | None, n_obs: int) -> Array | None:
    """Return how often rows count, shape (n_obs,); None where each counts once.

    Raises
    ------
    ValueError
        If the shape is wrong or a weight is not positive and finite.
    """
    if weight is None:
        return None
    out = np.asarray(weight, dtype=float)
    if out.shape != (n_obs,):
        raise ValueError(
            f"sample_weight has shape {out.shape}; needed ({n_obs},), one for each row"
        )
    if not (np.isfinite(out) & (out > 0)).all():
        raise ValueError(
            "sample_weight has values that are not positive numbers; leave rows of weight zero out"
        )
    return out


def as_signs(signs: ArrayLike, *shape: int) -> Array:
    """Return signs as -1. / +1., shape (n_basis,), or (n_basis, n_scores) for several scores.

    Raises
    ------
    ValueError
        If the shape is wrong or a value is neither -1 nor +1.
    """
    out = as_numbers(signs, "signs")
    if out.shape != shape:
        each = "basis" if len(shape) == 1 else "basis and class"
        raise ValueError(f"signs has shape {out.shape}; needed {shape}, one for each {each}")
    if not np.isin(out, (-1.0, 1.0)).all():
        raise ValueError(
            f"signs has values {np.unique(out)[:5].tolist()}; needed only -1 and +1 (2 * y - 1 for 0/1)"
        )
    return out
