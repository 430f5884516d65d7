"""Likelihoods of latent responses, compiled: what draws the responses, and the log likelihood without them.

A response is normal around the latent value, and the label is its sign (Albert & Chib 1993), but for a share
of the labels that is flipped: zero for the probit.
"""

import math

from numpy.random import Generator

from pcvm_pymc.core.gibbs.vectors import Integers
from pcvm_pymc.core.pieces.class_integrals import jit, log_ndtr_and_mills
from pcvm_pymc.core.pieces.probit import Array


@jit
def log_label(flip: float, x: float) -> float:
    """Return the log probability of a label at x = label times latent value."""
    log_phi = log_ndtr_and_mills(x)[0]
    return log_phi if flip == 0.0 else math.log(flip + (1.0 - 2.0 * flip) * math.exp(log_phi))


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
    flip: float, latent: Array, label: Integers, response: Array, rng: Generator
) -> None:
    """Draw the responses given latent values, both of shape (n_obs,): N(f, 1) on the label's side of zero.

    Where a share of the labels is flipped, whether one is flipped is drawn with the responses integrated out.
    """
    for i in range(len(label)):
        side, mean = label[i], label[i] * latent[i]
        if flip > 0.0:
            kept = (1.0 - flip) * math.exp(log_ndtr_and_mills(mean)[0])
            flipped = flip * math.exp(log_ndtr_and_mills(-mean)[0])
            if rng.random() * (kept + flipped) < flipped:
                side, mean = -side, -mean
        response[i] = side * (mean + upper_tail(-mean, rng))
