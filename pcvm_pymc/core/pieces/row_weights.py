"""Rows that count by weights: their median, majority and checks; the known noise of each row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, check_shape

#: a known noise over the spread of the targets, beyond which rounding or the prior decides a fit
_MOST_NOISE = 1e8


def times_weight(weight: Array | None, values: Array) -> Array:
    """Return values of rows, shape (n_obs, ...), each times its row's weight; as they are for None."""
    return values if weight is None else weight.reshape(-1, *[1] * (values.ndim - 1)) * values


def majority_label(label: NDArray[Any], weight: Array | None) -> float:
    """Return -1. or +1., the label that counts for more; that of numbers of classes is 1."""
    return 1.0 if (label.sum() if weight is None else weight @ label) >= 0 else -1.0


def against_rest(label: NDArray[Any], number: int) -> Array:
    """Return labels -1. and +1. of a class, by its number, against the rest."""
    return np.where(label == number, 1.0, -1.0)


def weighted_median(value: Array, weights: Array | None = None) -> float:
    """Return the median of values that count by weights, for whole numbers that of repeated values."""
    if weights is None:
        return float(np.median(value))
    order = np.argsort(value, kind="stable")
    total = np.cumsum(weights[order])
    low, high = (np.searchsorted(total, 0.5 * total[-1], side) for side in ("left", "right"))
    return float(np.mean(value[order[[low, min(high, len(value) - 1)]]]))


def check_noise(name: str, noise: Any, target: NDArray[Any]) -> None:
    """Raise unless a known noise, of all rows or of each, is near enough to the spread of the targets.

    Parameters
    ----------
    name : str
        Of the argument.
    noise : float or array_like, shape (n_obs,)
        Standard deviations, positive numbers.
    target : ndarray, shape (n_obs,)

    Raises
    ------
    ValueError
        For a noise below 1e-8 or above 1e8 times the standard deviation of the targets, or times their size
        where they are all equal.
    """
    value, size = np.asarray(noise, dtype=float), float(np.std(target) or np.abs(target[0]) or 1.0)
    low, high = size / _MOST_NOISE, size * _MOST_NOISE
    bad = np.flatnonzero((value < low) | (value > high))
    if bad.size:
        where = f" in row {bad[0]}" if value.ndim else ""
        raise ValueError(
            f"{name} has the value {value.flat[bad[0]]:.3g}{where}; needed {low:.3g} to {high:.3g}, which is "
            f"1e-8 to 1e8 times the spread of y: give standard deviations in the unit of y"
        )


def as_noise_std(noise: Any, n_obs: int) -> Array:
    """Return the known standard deviation of each row's noise, shape (n_obs,).

    Raises
    ------
    ValueError
        Unless they are positive and finite numbers, one for each row.
    """
    out = as_numbers(noise, "noise")
    check_shape("noise", out.shape, (n_obs,), "standard deviation for each row of X")
    bad = np.flatnonzero(~((out > 0) & np.isfinite(out)))
    if bad.size:
        fault = f"noise has the value {out[bad[0]]:g} in row {bad[0]}"
        raise ValueError(f"{fault}; needed positive and finite numbers, in the unit of y")
    return out
