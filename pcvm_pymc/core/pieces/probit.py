"""Mathematics of the probit link: log Phi, its derivatives and truncated-normal means."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr  # noqa: F401 (for what imports this)

type Array = NDArray[np.float64]

_SQRT_HALF = np.sqrt(0.5)
_SQRT_2_OVER_PI = np.sqrt(2.0 / np.pi)


def inverse_mills(x: Array) -> Array:
    """Return phi(x) / Phi(x), the derivative of log Phi, on the whole line.

    ``sqrt(2 / pi) / erfcx(-x / sqrt(2))`` has neither the 0/0 of the naive ratio on the left
    nor a cancellation on the right (where erfcx overflows the ratio is zero to double precision).
    """
    with np.errstate(over="ignore"):
        return _SQRT_2_OVER_PI / erfcx(-_SQRT_HALF * np.asarray(x, dtype=float))


def density(x: Array) -> Array:
    """Return phi(x), the standard normal density."""
    return np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)


def score(latent: Array, label: Array) -> Array:
    """Return d log Phi(label * latent) / d latent, shape (n_obs,)."""
    return label * inverse_mills(label * latent)


def curvature(latent: Array, label: Array) -> Array:
    """Return -d^2 log Phi(label * latent) / d latent^2, in [0, 1], shape (n_obs,).

    ``lambda (lambda + x)`` with x = label * latent cancels for very negative x, where the limit is
    one; the product is clipped to the interval in which the exact value lies.
    """
    x = label * latent
    mills = inverse_mills(x)
    return np.clip(mills * (mills + x), 0.0, 1.0)
