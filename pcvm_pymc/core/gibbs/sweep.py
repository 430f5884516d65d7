"""The sweep, for one score or several, compiled."""

import math

import numpy as np

from pcvm_pymc.core.gibbs.block import move_visible_ones
from pcvm_pymc.core.gibbs.slices import Parameters
from pcvm_pymc.core.gibbs.moves import (
    Basis,
    shift_biases,
    update_a_large_one,
    update_score,
    write_latent,
)
from pcvm_pymc.core.gibbs.responses import (
    OF_CLASSES,
    AnyAugmented,
    Integers,
    draw_responses,
)
from pcvm_pymc.core.gibbs.slices import slice_log_rate, slice_scale
from pcvm_pymc.core.gibbs.vectors import copy_into, jit, multiply
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["run"]

_SCALE_PERIOD = 5  # sweeps, of several scores: their integrals would take most of a sweep's time


@jit
def run(
    basis: Basis,
    likelihood: AnyAugmented,
    prior: Parameters,
    sign: Array,
    label: Integers,
    size: Array,
    bias: Array,
    log_rate: float,
    rng: np.random.Generator,
    draws: int,
    thin: int,
) -> tuple[Array, Array, Array, float]:
    """Run sweeps, keep one state in `thin`; return sizes, biases and d kept, and the last log d.

    `sign` and `size` have shape (n_scores, n_basis), `bias` (n_scores,); `size` and `bias` move along.
    """
    n_scores, n_basis = size.shape
    latent, response = np.empty((n_scores, len(label))), np.empty((n_scores, len(label)))
    inside = np.empty((n_scores, basis.right.shape[1]))
    kept_size = np.empty((draws, n_scores, n_basis))
    kept_bias, kept_rate = np.empty((draws, n_scores)), np.empty(draws)
    for sweep in range(draws * thin):
        # anew each time: what is kept of a chain is its sizes, biases and d
        for k in range(n_scores):
            write_latent(basis, sign[k], size[k], inside[k], latent[k])
            for i in range(len(label)):
                latent[k, i] += bias[k]
        draw_responses(likelihood, latent, label, response, rng)
        rate = math.exp(log_rate)
        for k in range(n_scores):
            bias[k] = update_score(
                basis,
                prior,
                rate,
                sign[k],
                inside[k],
                response[k],
                size[k],
                bias[k],
                latent[k],
                rng,
            )
        # from here on the responses are integrated out; the next sweep draws them anew
        if len(likelihood) != OF_CLASSES:
            update_a_large_one(
                basis, sign[0], label, size[0], latent[0], prior.c, rate, likelihood, rng
            )
            bias[0] = move_visible_ones(
                basis, sign[0], label, size[0], bias[0], latent[0], prior, rate, likelihood, rng
            )
        if len(likelihood) != OF_CLASSES or rng.random() * _SCALE_PERIOD < 1.0:
            t = slice_scale(size, bias, latent, label, log_rate, prior, likelihood, rng)
            for k in range(n_scores):
                multiply(size[k], math.exp(t))
            multiply(bias, math.exp(t))
            if prior.rate_shape > 0.0:
                log_rate += 2.0 * t
        if prior.rate_shape > 0.0:
            log_rate = slice_log_rate(log_rate, size, prior, rng)
        if len(likelihood) == OF_CLASSES:
            shift_biases(bias, prior, rng)
        if (sweep + 1) % thin == 0:
            kept = sweep // thin
            for k in range(n_scores):
                copy_into(kept_size[kept, k], size[k])
            copy_into(kept_bias[kept], bias)
            kept_rate[kept] = math.exp(log_rate)
    return kept_size, kept_bias, kept_rate, log_rate
