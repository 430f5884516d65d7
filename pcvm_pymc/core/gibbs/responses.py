"""Likelihoods of latent responses, compiled: what draws the responses, and the log likelihood without them.

A response is normal around the latent value, and the target is a function of the responses (Albert & Chib
1993). Compiled code knows such a likelihood by a number. Another one joins with its name in `AUGMENTED`
and a branch each in `draw_responses` and in `log_label` (one score) or `log_likelihood` (several).
"""

import math
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.gibbs.vectors import jit, part_of_caller
from pcvm_pymc.core.pieces.class_integrals import (
    is_far,
    log_fall,
    log_integrand,
    log_ndtr_and_mills,
    mode_of_integrand,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.multinomial import multinomial_terms, rule_of
from pcvm_pymc.core.pieces.probit import Array

type Integers = NDArray[np.int64]
# `Augmented` or `AugmentedClasses`, which compiled code distinguishes by their lengths
type AnyAugmented = Any

_SQRT_HALF = math.sqrt(0.5)

_PROBIT = 0
_MULTINOMIAL_PROBIT = 1
_LABEL_NOISE = 2

#: numbers, in compiled code, of the likelihoods whose responses can be drawn
AUGMENTED = {
    "probit": _PROBIT,
    "multinomial probit": _MULTINOMIAL_PROBIT,
    "label noise": _LABEL_NOISE,
}


class Augmented(NamedTuple):
    """A likelihood of one score as compiled code takes it.

    Attributes
    ----------
    kind : int
        Its number in `AUGMENTED`.
    nuisance : float
        The likelihood's own parameter, zero where it has none.
    """

    kind: int
    nuisance: float


class AugmentedClasses(NamedTuple):
    """A likelihood of several scores as compiled code takes it.

    Attributes
    ----------
    kind : int
        Its number in `AUGMENTED`.
    spacing, drop : float
        Quadrature, from `rule_of`.
    """

    kind: int
    spacing: float
    drop: float


#: fields of a likelihood of several scores: numba knows the length of a tuple before it compiles and leaves
#: out what does not agree with it, so that nobody waits for the part of a sweep that is not theirs
OF_CLASSES = len(AugmentedClasses._fields)


def augmented(likelihood: Likelihood, accuracy: float = 1e-8) -> Augmented | AugmentedClasses:
    """Return a likelihood as compiled code takes it; `accuracy` is that of several classes' integrals."""
    kind = AUGMENTED[likelihood.name]
    if kind == _MULTINOMIAL_PROBIT:
        return AugmentedClasses(kind, *rule_of(accuracy))
    fields: Any = likelihood
    nuisance, *_ = (*map(float, astuple(fields)), 0.0)
    return Augmented(kind, nuisance)


# --- the table: what each likelihood does --------------------------------------------------------


@jit
def draw_responses(
    likelihood: AnyAugmented,
    latent: Array,
    label: Integers,
    response: Array,
    rng: np.random.Generator,
) -> None:
    """Draw the responses given latent values, both of shape (n_scores, n_obs)."""
    if len(likelihood) == OF_CLASSES:
        draw_class_responses(latent, label, response, rng)
    else:
        draw_label_responses(latent[0], label, likelihood.nuisance, response[0], rng)


@jit
def log_label(likelihood: Augmented, x: float) -> float:
    """Return the log probability of a label, -1 or 1, at x = label times latent value."""
    if likelihood.kind == _LABEL_NOISE and likelihood.nuisance > 0.0:
        return math.log(likelihood.nuisance + (1.0 - 2.0 * likelihood.nuisance) * ndtr(x))
    return log_ndtr_and_mills(x)[0]


@jit
def slope_of_label(likelihood: Augmented, x: float) -> float:
    """Return the derivative of `log_label` in x."""
    log_phi, mills = log_ndtr_and_mills(x)
    if likelihood.kind == _LABEL_NOISE and likelihood.nuisance > 0.0:
        share = (1.0 - 2.0 * likelihood.nuisance) * math.exp(log_phi)
        return mills * share / (likelihood.nuisance + share)
    return mills


@jit
def log_likelihood(
    likelihood: AnyAugmented, factor: float, latent: Array, label: Integers
) -> float:
    """Return the log likelihood at `factor` times the latent values, shape (n_scores, n_obs)."""
    if len(likelihood) == OF_CLASSES:
        rows = np.empty((len(label), len(latent)))
        for i in range(len(label)):
            for k in range(len(latent)):
                rows[i, k] = factor * latent[k, i]
        return multinomial_terms(rows, label, likelihood.spacing, likelihood.drop)[0].sum()
    total = 0.0
    for i in range(len(label)):
        total += log_label(likelihood, label[i] * factor * latent[0, i])
    return total


# --- one score ---------------------------------------------------------------------------------


@jit
def ndtr(x: float) -> float:
    """Return Phi(x)."""
    return 0.5 * math.erfc(-_SQRT_HALF * x)


@jit
def upper_tail(a: float, rng: np.random.Generator) -> float:
    """Draw a standard normal above `a` (Robert 1995: exponential proposals in the tail)."""
    if a <= 0.4:
        while True:
            t = rng.standard_normal()
            if t > a:
                return t
    slope = 0.5 * (a + math.hypot(a, 2.0))  # also where a^2 overflows
    while True:
        t = a + rng.standard_exponential() / slope
        if not rng.standard_exponential() <= 0.5 * (t - slope) ** 2:  # not a number ends too
            return t


@part_of_caller
def draw_label_responses(
    latent: Array, label: Integers, flip: float, response: Array, rng: np.random.Generator
) -> None:
    """Draw z given the latent function: N(f, 1) on the label's side of zero.

    Where a share of the labels is flipped, whether one is flipped is drawn with the responses integrated out.
    """
    for i in range(len(label)):
        side, mean = label[i], label[i] * latent[i]
        if flip > 0.0:
            kept, flipped = (1.0 - flip) * ndtr(mean), flip * ndtr(-mean)
            if rng.random() * (kept + flipped) < flipped:
                side, mean = -side, -mean
        response[i] = side * (mean + upper_tail(-mean, rng))


# --- several scores ----------------------------------------------------------------------------


@jit
def log_acceptance(step: float, mode: float, margin: Array, mills: Array) -> tuple[float, float]:
    """Return a proposal a standard normal `step` away, and its log density less that of the envelope.

    The log density ``-e^2/2 + sum_k log Phi(e + margin_k)`` bends everywhere at least as a normal's, so
    that the parabola of bend one with its height and slope at any point is nowhere below it. The nearer
    that point to the mode, the fewer proposals are refused.
    """
    height = log_integrand(mode, margin, mills)
    slope = mills.sum() - mode
    step = step + slope  # a normal proposal around the parabola's own mode
    if is_far(mode, margin):
        fall = log_fall(mode, step, margin, mills)
    else:
        fall = log_integrand(mode + step, margin, mills) - height
    return mode + step, fall - slope * step + 0.5 * step * step


@jit
def _draw_own_noise(margin: Array, mills: Array, rng: np.random.Generator) -> float:
    """Draw e from ``phi(e) prod_k Phi(e + margin_k)`` by rejection."""
    mode, _, _ = mode_of_integrand(margin)
    while True:
        noise, excess = log_acceptance(rng.standard_normal(), mode, margin, mills)
        if rng.standard_exponential() > -excess:
            return noise


@jit
def draw_class_responses(
    latent: Array, label: Integers, response: Array, rng: np.random.Generator
) -> None:
    """Draw the responses given the scores: the own class' first, the others below it."""
    n_classes, n_obs = latent.shape
    margin, mills = np.empty(n_classes - 1), np.empty(n_classes - 1)
    for i in range(n_obs):
        own, k = label[i], 0
        for c in range(n_classes):
            if c != own:
                margin[k] = latent[own, i] - latent[c, i]
                k += 1
        top = latent[own, i] + _draw_own_noise(margin, mills, rng)
        response[own, i] = top
        for c in range(n_classes):
            if c != own:
                response[c, i] = latent[c, i] - upper_tail(latent[c, i] - top, rng)
