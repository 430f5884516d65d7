r"""Mathematics of the multinomial probit: class probabilities and the means of the latent responses.

The class of a row is the largest of ``z_c ~ N(y_c, 1)``. What is needed are integrals over one variable e,

.. math:: P(i) = \int \phi(e) \prod_{k \ne i} \Phi(e + y_i - y_k)\, de

(Lyu et al. 2020 eq. 10), whose integrand is log-concave. Gauss-Hermite nodes around zero, as eqs. 22-23
suggest, miss it where the scores are far apart; here its mode is found by Newton's method, and the
trapezoid rule, which converges exponentially for such integrands, runs from there to both sides.
Compiled by numba.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.class_integrals import (
    LOG_SQRT_2PI,
    gap_of,
    is_far,
    log_fall,
    log_integrand,
    mode_of_integrand,
)
from pcvm_pymc.core.pieces.probit import Array

type Labels = NDArray[np.int64]

_HOPELESS = 1e6  # a log probability below -1e11: a diverging trajectory, not a point of interest
_FARTHEST = 1e12  # scores farther apart leave no digit of what lies around the mode

_jit = njit(nogil=True, cache=True, error_model="numpy")


@_jit
def _integrate(
    margin: Array, spacing: float, drop: float, mills: Array, mean: Array
) -> tuple[float, float]:
    """Return log P and the variance of e, and the mean of phi / Phi of each class in `mean`."""
    mode, top, bend = mode_of_integrand(margin, 1e-3 if spacing < 1.0 else 0.2)
    step = spacing / math.sqrt(bend)
    if is_far(mode, margin):
        return _sums(mode, top, step, drop, margin, mills, mean, True)
    return _sums(mode, top, step, drop, margin, mills, mean, None)


@_jit
def _sums(
    mode: float,
    top: float,
    step: float,
    drop: float,
    margin: Array,
    mills: Array,
    mean: Array,
    far: bool | None,
) -> tuple[float, float]:
    """Return what `_integrate` does.

    The nodes go out from the mode, on either side until the integrand has dropped by ``exp(-drop)``. `far`
    is a type to the compiler, None or not: of each it makes a loop without the other's branch.
    """
    total, first, second = 0.0, 0.0, 0.0
    for k in range(len(margin)):
        mean[k] = 0.0
    for side in (-1, 1):
        j = 0 if side == 1 else -1
        while True:
            offset = j * step
            if far is None:
                fall = log_integrand(mode + offset, margin, mills) - top
            else:
                fall = log_fall(mode, offset, margin, mills)
            if fall < -drop:
                break
            share = math.exp(fall)
            total += share
            first += share * offset
            second += share * offset * offset
            for k in range(len(margin)):
                mean[k] += share * mills[k]
            j += side
    for k in range(len(margin)):
        mean[k] /= total
    first /= total
    variance = second / total - first * first
    return top + math.log(total * step) - LOG_SQRT_2PI, variance


@_jit
def _margins(row: Array, own: int, margin: Array) -> int:
    """Write ``y_own - y_k`` of every other class into `margin`; return their number."""
    k = 0
    for c in range(len(row)):
        if c != own:
            margin[k] = row[own] - row[c]
            k += 1
    return k


@_jit
def _terms_of_rows(
    latent: Array,
    label: Labels,
    spacing: float,
    drop: float,
    log_probability: Array,
    score: Array,
    curvature: Array,
) -> None:
    n_others = latent.shape[1] - 1
    margin, mills, mean = np.empty(n_others), np.empty(n_others), np.empty(n_others)
    for n in range(len(latent)):
        own = label[n]
        _margins(latent[n], own, margin)
        log_probability[n], variance = _integrate(margin, spacing, drop, mills, mean)
        curvature[n] = min(max(1.0 - variance, 0.0), 1.0)
        k, total = 0, 0.0
        for c in range(latent.shape[1]):
            if c != own:
                score[n, c] = -mean[k]
                total += mean[k]
                k += 1
        score[n, own] = total


@_jit
def multinomial_terms(
    latent: Array, label: Labels, spacing: float, drop: float
) -> tuple[Array, Array]:
    """Return log probabilities of the rows' classes and their scores, for any input (compiled).

    `class_terms` for compiled callers that cannot raise, such as a sampler's graph: a class that does
    not exist has log probability -inf, as has one whose score others exceed by more than 1e6, and scores
    that are not finite have NaN.

    Parameters
    ----------
    latent : ndarray, shape (n_obs, n_classes)
    label : ndarray of int, shape (n_obs,)
    spacing, drop : float
        From `rule_of`.
    """
    n_classes = latent.shape[1]
    log_probability, score = np.empty(len(latent)), np.zeros(latent.shape)
    curvature = np.empty(1)
    for n in range(len(latent)):
        row, own = latent[n], label[n]
        finite, top = True, -np.inf
        for each in row:
            finite = finite and math.isfinite(each)
            top = max(top, each)
        if not finite:
            log_probability[n] = np.nan
            for c in range(n_classes):
                score[n, c] = np.nan
        elif own < 0 or own >= n_classes or top - row[own] > _HOPELESS:
            log_probability[n] = -np.inf
        else:
            one = slice(n, n + 1)
            _terms_of_rows(
                latent[one], label[one], spacing, drop, log_probability[one], score[one], curvature
            )
    return log_probability, score


@_jit
def _all_log_probabilities(latent: Array, spacing: float, drop: float, out: Array) -> None:
    n_others = latent.shape[1] - 1
    margin, mills, mean = np.empty(n_others), np.empty(n_others), np.empty(n_others)
    for n in range(len(latent)):
        for c in range(latent.shape[1]):
            _margins(latent[n], c, margin)
            out[n, c], _ = _integrate(margin, spacing, drop, mills, mean)


@_jit
def _add_row(
    row: Array,
    own: int,
    share: float,
    rule: tuple[float, float],
    work: Array,
    score: Array,
    hessian: Array,
) -> float:
    """Add `share` times a row's slope and minus its second derivatives; return its log P.

    From the moments of phi / Phi, taken around their values at the mode. `work` has room for
    ``n_classes + 3`` rows of ``n_classes - 1``.
    """
    n_others = len(row) - 1
    margin, mills, mean, middle, second = work[0], work[1], work[2], work[3], work[4:]
    _margins(row, own, margin)
    mode, top, bend = mode_of_integrand(margin)
    step, total, far = rule[0] / math.sqrt(bend), 0.0, is_far(mode, margin)
    work[2:] = 0.0
    log_integrand(mode, margin, middle)
    for side in (-1, 1):
        j = 0 if side == 1 else -1
        while True:
            offset = j * step
            if far:
                fall = log_fall(mode, offset, margin, mills)
            else:
                fall = log_integrand(mode + offset, margin, mills) - top
            if fall < -rule[1]:
                break
            weight = math.exp(fall)
            total += weight
            for k in range(n_others):
                own_gap = gap_of(mode + offset + margin[k], mills[k])
                away = mills[k] - middle[k]
                mean[k] += weight * away
                second[k, k] += weight * (mills[k] * own_gap - away * away)
                for m in range(k):
                    second[k, m] -= weight * away * (mills[m] - middle[m])
            j += side
    for k in range(n_others):
        mean[k] /= total
    for k in range(n_others):
        c = k + (k >= own)
        slope = share * (middle[k] + mean[k])
        score[c] -= slope
        score[own] += slope
        for m in range(k + 1):
            d = m + (m >= own)
            value = share * (second[k, m] / total + mean[k] * mean[m])
            for swapped in range(1 if m == k else 2):
                a, b = (d, c) if swapped else (c, d)
                hessian[a, b] += value
                hessian[a, own] -= value
                hessian[own, b] -= value
                hessian[own, own] += value
    return top + math.log(total * step) - LOG_SQRT_2PI


@_jit
def _add_rows(
    latent: Array,
    probability: Array,
    rule: tuple[float, float],
    log_density: Array,
    score: Array,
    hessian: Array,
) -> None:
    """Add the terms of all rows, each class counting by its probability."""
    work = np.empty((latent.shape[1] + 3, latent.shape[1] - 1))
    for n in range(len(latent)):
        for c in range(latent.shape[1]):
            share = probability[n, c]
            if share > 0.0:
                log_density[n] += share * _add_row(
                    latent[n], c, share, rule, work, score[n], hessian[n]
                )


class FractionalTerms(NamedTuple):
    """Terms of rows with class probabilities as targets; the hessian is minus the second derivative."""

    log_density: Array
    score: Array
    hessian: Array


@dataclass(frozen=True)
class ClassTerms:
    """The likelihood of given classes, and its derivatives in the latent scores.

    Attributes
    ----------
    log_probability : ndarray, shape (n_obs,)
        log P(class | latent).
    score : ndarray, shape (n_obs, n_classes)
        Its derivative in each latent score: the mean of the responses less the latent score.
    curvature : ndarray, shape (n_obs,)
        Minus its second derivative in the own class' score, in [0, 1].
    """

    log_probability: Array
    score: Array
    curvature: Array


def rule_of(accuracy: float) -> tuple[float, float]:
    """Return spacing (times the root of the curvature) and drop of the rule for an accuracy.

    Measured against a much finer rule for 2 to 100 classes and score spreads of 0 to 100: a spacing
    of 1, 0.5, 0.4 and 0.3 leaves 1e-4, 1e-9, 1e-11 and 1e-13.

    Raises
    ------
    ValueError
        If the accuracy is not between 1e-13 and 1e-2.
    """
    if not 1e-13 <= accuracy <= 1e-2:
        raise ValueError(f"accuracy={accuracy}; needed a number between 1e-13 and 1e-2")
    leaves = ((1e-3, 1.0), (1e-8, 0.5), (1e-10, 0.4), (0.0, 0.3))
    spacing = next(spacing for least, spacing in leaves if accuracy >= least)
    return spacing, 6.0 - math.log(accuracy)


def _checked(latent: Array, label: Labels | None = None) -> Array:
    """Return the scores in C order; raise where they or the classes cannot be used."""
    latent = np.ascontiguousarray(latent, dtype=float)
    if latent.ndim != 2 or latent.shape[1] < 2:
        raise ValueError(
            f"latent has shape {latent.shape}; needed (n_obs, n_classes) with two classes or more"
        )
    # a small range implies both, and is faster to check
    is_safe = not len(latent) or latent.max() - latent.min() <= _FARTHEST
    if not is_safe and not np.isfinite(latent).all():
        raise ValueError("latent has values that are NaN or infinite; needed finite scores")
    if not is_safe and np.ptp(latent, axis=1).max() > _FARTHEST:
        raise ValueError(
            f"latent has scores that are {np.ptp(latent, axis=1).max():.3g} apart; needed at most "
            f"{_FARTHEST:g}: standardise the features, or give a wider or bounded kernel"
        )
    if label is None:
        return latent
    if label.shape != (len(latent),):
        raise ValueError(f"label has shape {label.shape}; needed ({len(latent)},)")
    if len(label) and not (label.min() >= 0 and label.max() < latent.shape[1]):
        raise ValueError(
            f"label has values from {label.min()} to {label.max()}; needed 0 to {latent.shape[1] - 1}"
        )
    return latent


def class_terms(latent: Array, label: Labels, *, accuracy: float = 1e-10) -> ClassTerms:
    """Return log probabilities of the rows' classes with score and curvature.

    Parameters
    ----------
    latent : ndarray, shape (n_obs, n_classes)
    label : ndarray of int, shape (n_obs,)
        Classes, 0 to n_classes - 1.
    accuracy : float
        Of the log probabilities and, relatively, of the scores; 1e-13 to 1e-2.

    Raises
    ------
    ValueError
        If shapes or classes do not fit, a score is not finite, or the accuracy is out of range.

    References
    ----------
    S. Lyu et al. (2020), eqs. 10, 22-23, with another quadrature.
    """
    label = np.asarray(label, dtype=np.int64)
    latent = _checked(latent, label)
    spacing, drop = rule_of(accuracy)
    out = ClassTerms(np.empty(len(latent)), np.empty(latent.shape), np.empty(len(latent)))
    _terms_of_rows(latent, label, spacing, drop, out.log_probability, out.score, out.curvature)
    return out


def class_hessian(latent: Array, label: Labels, *, accuracy: float = 1e-8) -> Array:
    """Return minus the second derivatives of the rows' log probabilities in all scores.

    The Laplacian matrix of a graph over the classes: positive semi-definite, rows sum to zero.

    Parameters
    ----------
    latent : ndarray, shape (n_obs, n_classes)
    label : ndarray of int, shape (n_obs,)
    accuracy : float

    Returns
    -------
    ndarray, shape (n_obs, n_classes, n_classes)
    """
    label = np.asarray(label, dtype=np.int64)
    latent = _checked(latent, label)
    share = (label[:, None] == np.arange(latent.shape[1])).astype(float)
    return fractional_terms(latent, share, accuracy=accuracy).hessian


def fractional_terms(
    latent: Array, probability: Array, *, accuracy: float = 1e-8
) -> FractionalTerms:
    """Return ``sum_c p_c log P(c | latent)`` of each row with slope and minus second derivatives.

    Parameters
    ----------
    latent, probability : ndarray, shape (n_obs, n_classes)
        Classes of probability zero take no time.
    accuracy : float
    """
    latent = _checked(latent)
    n, n_classes = latent.shape
    out = FractionalTerms(
        np.zeros(n), np.zeros((n, n_classes)), np.zeros((n, n_classes, n_classes))
    )
    share = np.ascontiguousarray(probability, dtype=float)
    _add_rows(latent, share, rule_of(accuracy), *out)
    return out


def log_class_probability(
    latent: Array, label: Labels | None = None, *, accuracy: float = 1e-10
) -> Array:
    """Return log P(class | latent) of given classes, or of all.

    Parameters
    ----------
    latent : ndarray, shape (n_obs, n_classes)
    label : ndarray of int, shape (n_obs,), optional
        Default: every class.
    accuracy : float

    Returns
    -------
    ndarray, shape (n_obs,), or (n_obs, n_classes) without `label`
    """
    if label is not None:
        return class_terms(latent, label, accuracy=accuracy).log_probability
    latent = _checked(latent)
    out = np.empty(latent.shape)
    _all_log_probabilities(latent, *rule_of(accuracy), out)
    return out


def class_probabilities(latent: Array, *, accuracy: float = 1e-13) -> Array:
    """Return P(class | latent) (Lyu et al. 2020 eq. 10), shape (n_obs, n_classes).

    Each has its own relative accuracy, however small it is; rows sum to one to about 1e-13.
    """
    return np.exp(log_class_probability(latent, accuracy=accuracy))


def response_mean(latent: Array, label: Labels, *, accuracy: float = 1e-10) -> Array:
    """Return the means of the latent responses given the classes, shape (n_obs, n_classes).

    Lyu et al. (2020) eqs. 22-23.
    """
    return latent + class_terms(latent, label, accuracy=accuracy).score
