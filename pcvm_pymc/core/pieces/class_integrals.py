"""One-dimensional integrals of the multinomial probit: normal tails, and the integrand around its mode.

Scores may be far apart: what is a difference of large numbers is computed as a difference.
"""

import math
from functools import partial

import numpy as np

from pcvm_pymc.core.pieces.probit import Array, inverse_mills, log_ndtr
from pcvm_pymc.core.pieces.resources import jit

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_CERTAIN = 9.0  # Phi(9) = 1 - 1e-19: such a class takes no part in the integrals
_TAIL = -12.0  # below, the normal tail by its continued fraction
_PER_UNIT = 16  # centres of expansions in a unit of x: none is farther than 1/32
_DEGREE = 6  # of the expansions, whose error at 1/32 is rounding
_FAR = -1e3  # below, log Phi has lost three digits to its size, and a ratio of two has not


def _expansions() -> Array:
    """Return Taylor coefficients of phi / Phi, then those of log Phi, at the centres from -12 to 9.

    From ``m' = -m (m + x)``. At most 1/32 from a centre, seven terms leave an error of rounding: the zeros of
    Phi, where m has its poles, are two or more away from the real line. Those of log Phi are the same over
    1, 2, ...: kept, since a division takes as long as the rest of a term.
    """
    centre = np.arange(_PER_UNIT * (_CERTAIN - _TAIL) + 1) / _PER_UNIT + _TAIL
    order = _DEGREE + 1
    out = np.zeros((len(centre), 2 * order + 1))
    out[:, 0], out[:, order] = inverse_mills(centre), log_ndtr(centre)
    m = out[:, :order]
    for k in range(_DEGREE):
        product = sum(m[:, j] * m[:, k - j] for j in range(k + 1)) + centre * m[:, k]
        m[:, k + 1] = -(product + (m[:, k - 1] if k else 0.0)) / (k + 1)
    out[:, order + 1 :] = m / np.arange(1, order + 1)
    return out


_EXPANSIONS = _expansions()


@jit
def _mills_of_tail(x: float) -> float:
    """Return phi(x) / Phi(x) for x <= -12 by Laplace's continued fraction, to double precision."""
    out = -x
    for k in range(12, 0, -1):
        out = -x + k / out
    return out


@partial(jit, fastmath={"contract"})
def log_ndtr_and_mills(x: float) -> tuple[float, float]:
    """Return log Phi(x) and its derivative phi(x) / Phi(x)."""
    if x >= _CERTAIN:
        return 0.0, 0.0
    if x <= _TAIL:
        mills = _mills_of_tail(x)
        return -0.5 * x * x - LOG_SQRT_2PI - math.log(mills), mills
    i = int((x - _TAIL) * _PER_UNIT + 0.5)
    t = x - _TAIL - i / _PER_UNIT
    m = _EXPANSIONS[i]
    mills = m[0] + t * (m[1] + t * (m[2] + t * (m[3] + t * (m[4] + t * (m[5] + t * m[6])))))
    log_phi = m[8] + t * (m[9] + t * (m[10] + t * (m[11] + t * (m[12] + t * (m[13] + t * m[14])))))
    return m[7] + t * log_phi, mills


@jit
def gap_of(x: float, mills: float) -> float:
    """Return phi(x) / Phi(x) + x, which is nearly 1 / -x far below zero, without cancellation."""
    if x > -100.0:
        return mills + x
    return 1.0 / (-x + 2.0 / (-x + 3.0 / (-x - 4.0 / x)))


@jit
def mode_of_integrand(margin: Array, near: float = 1e-3) -> tuple[float, float, float]:
    """Return mode, log height and curvature of ``-e^2/2 + sum_k log Phi(e + margin_k)``.

    To `near` times the width of the peak: a node near the mode is as good as the mode. Its slope is a convex
    decreasing function of e and positive at zero, so that Newton's steps from there never overshoot.
    """
    e = 0.0
    for _ in range(200):
        value, slope, curvature = -0.5 * e * e, -e, 1.0
        for gap in margin:
            x = e + gap
            log_phi, mills = log_ndtr_and_mills(x)
            value += log_phi
            slope += mills
            curvature += mills * gap_of(x, mills)
        step = slope / curvature
        if abs(step) <= near / math.sqrt(curvature):
            break
        e += step
    return e, value, curvature


@jit
def log_integrand(e: float, margin: Array, mills: Array) -> float:
    """Return the log integrand at e, and phi / Phi of each class in `mills`."""
    value = -0.5 * e * e
    for k in range(len(margin)):
        log_phi, mills[k] = log_ndtr_and_mills(e + margin[k])
        value += log_phi
    return value


@jit
def is_far(mode: float, margin: Array) -> bool:
    """Whether a class lies so far below at the mode that heights of the integrand lose their digits."""
    return bool(mode + margin.min() < _FAR)


@jit
def log_fall(mode: float, offset: float, margin: Array, mills: Array) -> float:
    """Return the log integrand at ``mode + offset`` less that at the mode; phi / Phi there in `mills`.

    Of classes far below, ``log Phi(a + t) - log Phi(a) = -a t - t^2 / 2 - log(m(a + t) / m(a))``, m being
    phi / Phi: the terms in t nearly cancel over the classes, and are summed first.
    """
    slope, curvature, rest = -mode, 1.0, 0.0
    for k in range(len(margin)):
        at = mode + margin[k]
        log_phi, mills[k] = log_ndtr_and_mills(at + offset)
        if at < _FAR:
            slope -= at
            curvature += 1.0
            rest -= math.log(mills[k] / _mills_of_tail(at))
        else:
            rest += log_phi - log_ndtr_and_mills(at)[0]
    return offset * (slope - 0.5 * curvature * offset) + rest
