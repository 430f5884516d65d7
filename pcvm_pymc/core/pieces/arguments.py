"""Checks of single arguments: each error gives name, value found and value needed."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

__all__ = [
    "check_choice",
    "check_flag",
    "check_instance",
    "check_jobs",
    "check_real",
    "check_seed",
    "check_whole",
    "is_real",
    "is_unknown",
    "shown",
]

_MOST_JOBS = 1024  # more threads or processes than any machine has processors


def shown(value: Any, most: int = 80) -> str:
    """Return a value as an error shows it: its type alone where it is long, or cannot be shown."""
    try:
        text = repr(value)
    except Exception:  # a user's own class may fail at this
        text = ""
    if 0 < len(text) <= most and "\n" not in text:
        return text
    return f"<{type(value).__name__}{_shape(value)}>"


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f" of shape {shape}" if isinstance(shape, tuple) else ""


def is_unknown(value: Any) -> bool:
    """Whether a parameter is NaN, to be estimated or drawn, or a random variable of a PyMC model."""
    is_variable = hasattr(value, "owner") and hasattr(value, "type")
    return is_variable or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def is_real(value: Any) -> bool:
    """Whether a value is a real number, True and False apart."""
    return _is_number(value, Real)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def check_whole(
    name: str, value: Any, least: int, most: int | None = None, *, also: Sequence[Any] = ()
) -> None:
    """Raise unless a value is a whole number in a range, or one of some others (by identity or name)."""
    if _is_named(value, also):
        return
    if not _is_number(value, Integral) or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={shown(value)}; needed a whole number {span}{_or(also)}")


def check_real(
    name: str,
    value: Any,
    above: float = 0.0,
    below: float = np.inf,
    *,
    closed: bool = False,
    also: Sequence[Any] = (),
) -> None:
    """Raise unless a value is a finite number between two, or one of some others.

    Parameters
    ----------
    name : str
    value : object
    above, below : float
        Ends of the range.
    closed : bool
        Whether the ends belong to it.
    also : sequence
        None, or names, that are allowed besides.
    """
    if _is_named(value, also):
        return
    inside = _is_number(value, Real) and np.isfinite(value) and above <= value <= below
    if inside and (closed or value not in (above, below)):
        return
    raise ValueError(f"{name}={shown(value)}; needed {_range(above, below, closed)}{_or(also)}")


def _range(above: float, below: float, closed: bool) -> str:
    if (above, below) == (-np.inf, np.inf):
        return "a finite number"
    if below == np.inf:
        zero = "a finite number of at least 0" if closed else "a positive finite number"
        least = f"a finite number {'of at least' if closed else 'above'} {above:g}"
        return zero if above == 0 else least
    ends = "ends included" if closed else "ends excluded"
    return f"a number from {above:g} to {below:g}, {ends}"


def _is_named(value: Any, also: Sequence[Any]) -> bool:
    return any(
        value is each or (isinstance(each, str) and isinstance(value, str) and value == each)
        for each in also
    )


def _or(also: Sequence[Any]) -> str:
    return "".join(f" or {each!r}" for each in also)


def check_flag(name: str, value: Any, *, also: Sequence[Any] = ()) -> None:
    """Raise unless a value is True or False, or one of some others."""
    if not isinstance(value, bool | np.bool_) and not _is_named(value, also):
        raise ValueError(f"{name}={shown(value)}; needed True or False{_or(also)}")


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise unless a value is one of some names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={shown(value)} is unknown; use one of {tuple(allowed)}")


def check_instance(
    name: str, value: Any, kinds: type | tuple[type, ...], needed: str, *, optional: bool = False
) -> None:
    """Raise unless a value is an instance of one of some types, or None where it is optional."""
    if not isinstance(value, kinds) and not (optional and value is None):
        raise ValueError(f"{name}={shown(value)}; needed {needed}{' or None' if optional else ''}")


def check_seed(name: str, value: Any) -> None:
    """Raise unless a value is a whole number of at least 0, a NumPy generator, or None."""
    if value is None or isinstance(value, np.random.Generator | np.random.RandomState):
        return
    if not _is_number(value, Integral) or value < 0:
        raise ValueError(
            f"{name}={shown(value)}; needed a whole number of at least 0, a numpy.random.Generator or None"
        )


def check_jobs(name: str, value: Any) -> None:
    """Raise unless a value is a number of jobs as joblib has them, or None."""
    ok = value is None or (_is_number(value, Integral) and value != 0 and abs(value) <= _MOST_JOBS)
    if not ok:
        raise ValueError(
            f"{name}={shown(value)}; needed a whole number from 1 to {_MOST_JOBS}, -1 for all processors, or "
            "None"
        )
