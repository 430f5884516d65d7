"""Likelihoods of latent responses, compiled: what draws the responses, and the log likelihood without them.

A response is normal around the latent value, and the target is a function of the responses (Albert & Chib
1993). Compiled code knows such a likelihood by a tuple of numbers (`augmented`), one for labels and two for
several classes: numba knows the length of a tuple before it compiles and leaves out what does not agree with
it, so that nobody waits for the part of a sweep that is not theirs.
"""

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from pcvm_pymc.core.gibbs.vectors import Integers
from pcvm_pymc.core.pieces.class_integrals import (
    is_far,
    jit,
    log_fall,
    log_integrand,
    log_ndtr_and_mills,
    mode_of_integrand,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.multinomial import multinomial_terms, rule_of
from pcvm_pymc.core.pieces.probit import Array

# what `augmented` returns
type Augmented = Any

#: names of the likelihoods whose responses can be drawn
AUGMENTED = ("label noise", "multinomial probit", "probit")
#: numbers that compiled code knows several classes by
OF_CLASSES = 2


def augmented(likelihood: Likelihood) -> tuple[float, ...]:
    """Return a likelihood as compiled code takes it.

    That of labels is the share of them that is flipped, zero for the probit; that of several classes has
    spacing and drop of their integrals' quadrature (`rule_of`).
    """
    if likelihood.targets == "classes":
        return rule_of(1e-8)
    return (float(getattr(likelihood, "flip", 0.0)),)


@jit
def log_label(flip: float, x: float) -> tuple[float, float]:
    """Return the log probability of a label at x = label times latent value, and its derivative in x."""
    log_phi, mills = log_ndtr_and_mills(x)
    if flip == 0.0:
        return log_phi, mills
    kept = (1.0 - 2.0 * flip) * math.exp(log_phi)
    return math.log(flip + kept), mills * kept / (flip + kept)


@jit
def log_likelihood(likelihood: Augmented, factor: float, latent: Array, label: Integers) -> float:
    """Return the log likelihood at `factor` times the latent values, shape (n_scores, n_obs)."""
    if len(likelihood) == OF_CLASSES:
        rows = np.empty((len(label), len(latent)))
        for i in range(len(label)):
            for k in range(len(latent)):
                rows[i, k] = factor * latent[k, i]
        return multinomial_terms(rows, label, likelihood[0], likelihood[1])[0].sum()
    total = 0.0
    for i in range(len(label)):
        total += log_label(likelihood[0], label[i] * factor * latent[0, i])[0]
    return total


# --- draws ---------------------------------------------------------------------------------------


@jit
def upper_tail(a: float, rng: Generator) -> float:
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


@jit
def draw_responses(
    likelihood: Augmented, latent: Array, label: Integers, response: Array, rng: Generator
) -> None:
    """Draw the responses given latent values, both of shape (n_scores, n_obs).

    One score's are N(f, 1) on the label's side of zero. Where a share of the labels is flipped, whether one
    is flipped is drawn with the responses integrated out.
    """
    if len(likelihood) == OF_CLASSES:
        draw_class_responses(latent, label, response, rng)
    else:
        flip = likelihood[0]
        for i in range(len(label)):
            side, mean = label[i], label[i] * latent[0, i]
            if flip > 0.0:
                kept = (1.0 - flip) * math.exp(log_ndtr_and_mills(mean)[0])
                flipped = flip * math.exp(log_ndtr_and_mills(-mean)[0])
                if rng.random() * (kept + flipped) < flipped:
                    side, mean = -side, -mean
            response[0, i] = side * (mean + upper_tail(-mean, rng))


@jit
def _draw_class_noise(margin: Array, mills: Array, rng: Generator) -> float:
    """Draw e from ``phi(e) prod_k Phi(e + margin_k)`` by rejection.

    Its logarithm curves down at least as a normal's, so that the parabola of curvature one with its height
    and slope at any point is nowhere below it. The nearer that point to the mode, the fewer proposals are
    refused.
    """
    mode, _, _ = mode_of_integrand(margin)
    height = log_integrand(mode, margin, mills)
    slope = mills.sum() - mode
    while True:
        step = slope + rng.standard_normal()  # a normal proposal around the parabola's own mode
        if is_far(mode, margin):
            fall = log_fall(mode, step, margin, mills)
        else:
            fall = log_integrand(mode + step, margin, mills) - height
        if rng.standard_exponential() > slope * step - 0.5 * step * step - fall:
            return mode + step


@jit
def draw_class_responses(latent: Array, label: Integers, response: Array, rng: Generator) -> None:
    """Draw the responses given the scores: the own class' first, the others below it."""
    n_classes, n_obs = latent.shape
    margin, mills = np.empty(n_classes - 1), np.empty(n_classes - 1)
    for i in range(n_obs):
        true_class, k = label[i], 0
        for c in range(n_classes):
            if c != true_class:
                margin[k] = latent[true_class, i] - latent[c, i]
                k += 1
        top = latent[true_class, i] + _draw_class_noise(margin, mills, rng)
        response[true_class, i] = top
        for c in range(n_classes):
            if c != true_class:
                response[c, i] = latent[c, i] - upper_tail(latent[c, i] - top, rng)
