r"""Mathematics of the multinomial probit: class probabilities and the means of the latent responses.

The class of a row is the largest of ``z_c ~ N(y_c, 1)``. What is needed are integrals over one variable e,

.. math:: P(i) = \int \phi(e) \prod_{k \ne i} \Phi(e + y_i - y_k)\, de

(Lyu et al. 2020 eq. 10), whose integrand is log-concave. Gauss-Hermite nodes around zero, as eqs. 22-23
suggest, miss it where the scores are far apart; here its mode is found by Newton's method, and the
trapezoid rule, which converges exponentially for such integrands, runs from there to both sides.
Compiled by numba.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces import class_integrals as integrals
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import jit

type Labels = NDArray[np.int64]

_HOPELESS = 1e6  # a log probability below -1e11: a diverging trajectory, not a point of interest
_FARTHEST = 1e12  # scores farther apart leave no digit of what lies around the mode


class FractionalTerms(NamedTuple):
    """Terms of rows with class probabilities as targets; the hessian is minus the second derivative."""

    log_density: Array
    score: Array
    hessian: Array


class ClassTerms(NamedTuple):
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


@jit
def _integrate(
    row: Array, true_class: int, rule: tuple[float, float], work: Array, second: Array | None
) -> tuple[float, float]:
    """Return log P(own class) and the variance of e, by the trapezoid rule out from the mode.

    `rule` is the spacing of the nodes, and how far the log integrand drops before they end. Rows of `work`,
    ``n_classes - 1`` numbers each: ``y_own - y_k``, phi / Phi at a node, and the mean of phi / Phi. With
    `second`, (n_classes - 1) squared, moments are taken around the values at the mode, the fourth row.
    """
    margin, mean, middle = work[0], work[2], work[3]
    k = 0
    for c in range(len(row)):
        if c != true_class:
            margin[k], mean[k] = row[true_class] - row[c], 0.0
            k += 1
    mode, top, curvature = integrals.mode_of_integrand(margin, 1e-3 if rule[0] < 1.0 else 0.2)
    step = rule[0] / math.sqrt(curvature)
    if second is not None:
        integrals.log_integrand(mode, margin, middle)
        second[:] = 0.0
    if integrals.is_far(mode, margin):
        return _sums(mode, top, step, rule[1], work, second, True)
    return _sums(mode, top, step, rule[1], work, second, None)


@jit
def _sums(
    mode: float, top: float, step: float, drop: float, work: Array, second: Any, far: Any
) -> tuple[float, float]:
    """Return what `_integrate` does.

    `second` and `far` are types to the compiler, None or not: of each it makes a loop without the other's
    branch, in half the time.
    """
    margin, mills, mean, middle = work[0], work[1], work[2], work[3]
    total, first, square = 0.0, 0.0, 0.0
    for side in (-1, 1):
        j = 0 if side == 1 else -1
        while True:
            offset = j * step
            if far is None:
                fall = integrals.log_integrand(mode + offset, margin, mills) - top
            else:
                fall = integrals.log_fall(mode, offset, margin, mills)
            if fall < -drop:
                break
            share = math.exp(fall)
            total += share
            first += share * offset
            square += share * offset * offset
            for k in range(len(margin)):
                if second is None:
                    mean[k] += share * mills[k]
                else:
                    away = mills[k] - middle[k]
                    gap = integrals.gap_of(mode + offset + margin[k], mills[k])
                    mean[k] += share * away
                    second[k, k] += share * (mills[k] * gap - away * away)
                    for m in range(k):
                        second[k, m] -= share * away * (mills[m] - middle[m])
            j += side
    for k in range(len(margin)):
        mean[k] /= total
    if second is not None:
        second /= total
    first /= total
    return top + math.log(total * step) - integrals.LOG_SQRT_2PI, square / total - first * first


@jit
def _write_terms(
    latent: Array, label: Labels, rule: tuple[float, float], hopeless: float, out: ClassTerms
) -> None:
    """Write the terms of each row's own class, see `ClassTerms`, for any input.

    A class that does not exist has log probability -inf, as has one whose score others exceed by more than
    `hopeless`; scores that are not finite have NaN.
    """
    n_classes = latent.shape[1]
    log_probability, score, curvature = out
    work = np.empty((4, n_classes - 1))
    for n in range(len(latent)):
        row, true_class = latent[n], label[n]
        finite, top = True, -np.inf
        for value in row:
            finite = finite and math.isfinite(value)
            top = max(top, value)
        known = finite and 0 <= true_class < n_classes
        if not known or top - row[true_class] > hopeless:
            log_probability[n] = -np.inf if finite else np.nan
            for c in range(n_classes):
                score[n, c] = 0.0 if finite else np.nan
            continue
        log_probability[n], variance = _integrate(row, true_class, rule, work, None)
        curvature[n] = min(max(1.0 - variance, 0.0), 1.0)
        score[n, true_class] = 0.0
        for k in range(n_classes - 1):
            score[n, k + (k >= true_class)] = -work[2, k]
            score[n, true_class] += work[2, k]


@jit
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
    out = ClassTerms(np.empty(len(latent)), np.empty(latent.shape), np.empty(len(latent)))
    _write_terms(latent, label, (spacing, drop), _HOPELESS, out)
    return out.log_probability, out.score


@jit
def _add_rows(
    latent: Array, probability: Array, rule: tuple[float, float], out: FractionalTerms
) -> None:
    """Add log probabilities, slopes and minus second derivatives, each class counting by its probability."""
    n_others = latent.shape[1] - 1
    log_density, score, hessian = out
    work, second = np.empty((4, n_others)), np.empty((n_others, n_others))
    mean, middle = work[2], work[3]
    for n in range(len(latent)):
        for true_class in range(n_others + 1):
            share = probability[n, true_class]
            if not share > 0.0:
                continue
            log_density[n] += share * _integrate(latent[n], true_class, rule, work, second)[0]
            row_hessian = hessian[n]
            for k in range(n_others):
                c = k + (k >= true_class)
                slope = share * (middle[k] + mean[k])
                score[n, c] -= slope
                score[n, true_class] += slope
                for m in range(k + 1):
                    d = m + (m >= true_class)
                    value = share * (second[k, m] + mean[k] * mean[m])
                    for swapped in range(1 if m == k else 2):
                        a, b = (d, c) if swapped else (c, d)
                        row_hessian[a, b] += value
                        row_hessian[a, true_class] -= value
                        row_hessian[true_class, b] -= value
                        row_hessian[true_class, true_class] += value


def rule_of(accuracy: float) -> tuple[float, float]:
    """Return spacing (times the root of the curvature) and drop of the rule for an accuracy.

    Measured against a much finer rule for 2 to 100 classes and score spreads of 0 to 100: a spacing
    of 1, 0.5, 0.4 and 0.3 leaves 1e-4, 1e-9, 1e-11 and 1e-13.
    """
    leaves = ((1e-3, 1.0), (1e-8, 0.5), (1e-10, 0.4), (0.0, 0.3))
    spacing = next(spacing for least, spacing in leaves if accuracy >= least)
    return spacing, 6.0 - math.log(accuracy)


def _checked(latent: Array) -> Array:
    """Return the scores in C order; raise where they cannot be used."""
    latent = np.ascontiguousarray(latent, dtype=float)
    # a small range implies both, and is faster to check
    is_safe = not len(latent) or latent.max() - latent.min() <= _FARTHEST
    if not is_safe and not np.isfinite(latent).all():
        raise ValueError("latent has values that are NaN or infinite; needed finite scores")
    if not is_safe and (apart := np.ptp(latent, axis=1).max()) > _FARTHEST:
        fault = f"latent has scores that are {apart:.3g} apart"
        raise ValueError(f"{fault}; needed at most {_FARTHEST:g}: standardise X")
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
        If a score is not finite, or scores of a row are too far apart.

    References
    ----------
    S. Lyu et al. (2020), eqs. 10, 22-23, with another quadrature.
    """
    label = np.asarray(label, dtype=np.int64)
    latent = _checked(latent)
    out = ClassTerms(np.empty(len(latent)), np.empty(latent.shape), np.empty(len(latent)))
    _write_terms(latent, label, rule_of(accuracy), np.inf, out)
    return out


def fractional_terms(latent: Array, probability: Array) -> FractionalTerms:
    """Return ``sum_c p_c log P(c | latent)`` of each row with slope and minus second derivatives.

    Parameters
    ----------
    latent, probability : ndarray, shape (n_obs, n_classes)
        Classes of probability zero take no time. Of a given class, with probability one, minus the second
        derivative is the Laplacian matrix of a graph over the classes: positive semi-definite, rows sum to
        zero.
    """
    latent = _checked(latent)
    shapes = latent.shape[:1], latent.shape, (*latent.shape, latent.shape[1])
    out = FractionalTerms(*map(np.zeros, shapes))
    share = np.ascontiguousarray(probability, dtype=float)
    _add_rows(latent, share, rule_of(1e-8), out)
    return out


def class_probabilities(latent: Array, *, accuracy: float = 1e-13) -> Array:
    """Return P(class | latent) (Lyu et al. 2020 eq. 10), shape (n_obs, n_classes).

    Each has its own relative accuracy, however small it is; rows sum to one to about 1e-13.
    """
    latent = _checked(latent)
    every = (np.full(len(latent), c) for c in range(latent.shape[1]))
    logs = [class_terms(latent, label, accuracy=accuracy).log_probability for label in every]
    return np.exp(np.column_stack(logs))
