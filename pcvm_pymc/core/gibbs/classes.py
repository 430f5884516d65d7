"""Gibbs sampling of the mPCVM's posterior: the moves of `core.gibbs`, class by class, compiled by numba.

The multinomial probit's responses are drawn (Albert & Chib 1993); given them the classes are independent
regressions under sign rules. Nothing here is in the papers, which stop at the posterior's mode.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from pcvm_pymc.core.gibbs import binary as gibbs
from pcvm_pymc.core.gibbs.binary import GibbsProblem, Integers
from pcvm_pymc.core.pieces.multinomial import (
    Labels,
    log_class_probability,
    log_integrand,
    mode_of_integrand,
    multinomial_terms,
    rule_of,
)
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["ClassGibbsProblem", "ClassGibbsState", "advance_classes"]

_SCALE_PERIOD = 5  # sweeps: its integrals would take most of a sweep's time
_RULE = rule_of(1e-8)

_jit = njit(nogil=True, cache=True, error_model="numpy")


@dataclass
class ClassGibbsState:
    """Where a chain stands.

    Attributes
    ----------
    size : ndarray, shape (n_basis, n_classes)
        Sizes of the weights.
    bias : ndarray, shape (n_classes,)
    """

    size: Array
    bias: Array

    @property
    def numbers(self) -> Array:
        """What there is beside the sizes."""
        return self.bias


@dataclass(frozen=True)
class ClassGibbsProblem:
    """What a chain needs; made once and shared by all chains.

    Attributes
    ----------
    left, right : ndarray
        As for `GibbsProblem`.
    sign : ndarray, shape (n_basis, n_classes)
    label : ndarray of int, shape (n_obs,)
        Numbers of the classes.
    neighbours : ndarray of int, shape (n_basis, k)
    hyperprior : Hyperprior
        Proper, of known scale.
    """

    left: Array
    right: Array
    sign: Array
    label: Labels
    neighbours: Integers
    hyperprior: Hyperprior

    score_dims: ClassVar[tuple[str, ...]] = ("class",)

    @classmethod
    def of(
        cls, Phi: Array, label: Labels, sign: Array, hyperprior: Hyperprior
    ) -> "ClassGibbsProblem":
        """Return the problem of basis functions `Phi`, shape (n_obs, n_basis).

        Raises
        ------
        ValueError
            If the hyperprior is improper.
        """
        one = GibbsProblem.of(Phi, np.ones(len(Phi)), np.ones(Phi.shape[1]), hyperprior)
        return cls(one.left, one.right, sign, label, one.neighbours, hyperprior)

    @property
    def parameters(self) -> Array:
        """Return c, d, e and f."""
        prior = self.hyperprior
        return np.array([prior.c, prior.d, prior.e, prior.f])

    def start(self, rng: np.random.Generator) -> ClassGibbsState:
        """Return sizes uniform up to the prior's scale, biases zero: overdispersed but not wild."""
        scale = np.sqrt(self.hyperprior.d / self.hyperprior.c)
        size = scale * rng.uniform(0.05, 2.0, self.sign.shape)
        return ClassGibbsState(size, np.zeros(self.sign.shape[1]))

    def state_of(self, size: Array, numbers: Array) -> ClassGibbsState:
        """Return a state that was written down."""
        return ClassGibbsState(size, numbers)

    def advance(
        self, state: ClassGibbsState, rng: np.random.Generator, *, draws: int, thin: int = 1
    ) -> tuple[Array, Array, Array]:
        """Run sweeps, see `advance_classes`; the last array is d, which does not move."""
        size, bias = advance_classes(self, state, rng, draws=draws, thin=thin)
        return size, bias, np.full(draws, self.hyperprior.d)

    def latent(self, size: Array, bias: Array, Phi: Array) -> Array:
        """Return the scores of draws at the rows of `Phi`, shape (draws, n_obs, n_classes)."""
        return Phi @ (size * self.sign) + bias[:, None, :]

    def log_likelihood(self, latent: Array) -> Array:
        """Return log probabilities of the rows' classes, shape (..., n_obs)."""
        shape = latent.shape[:-1]
        label = np.broadcast_to(self.label, shape).ravel()
        return log_class_probability(latent.reshape(-1, latent.shape[-1]), label).reshape(shape)


def advance_classes(
    problem: ClassGibbsProblem,
    state: ClassGibbsState,
    rng: np.random.Generator,
    *,
    draws: int,
    thin: int = 1,
) -> tuple[Array, Array]:
    """Run ``draws * thin`` sweeps; `state` moves along.

    Parameters
    ----------
    problem : ClassGibbsProblem
    state : ClassGibbsState
        Changed in place.
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    draws : int
        States kept, one every `thin` sweeps.
    thin : int

    Returns
    -------
    size : ndarray, shape (draws, n_basis, n_classes)
    bias : ndarray, shape (draws, n_classes)

    References
    ----------
    As for `pcvm_pymc.core.gibbs.binary.advance`.
    """
    return _run(
        problem.left,
        problem.right,
        problem.sign,
        problem.label,
        problem.neighbours,
        problem.parameters,
        state.size,
        state.bias,
        rng,
        draws,
        thin,
        _RULE,
    )


# --- compiled ----------------------------------------------------------------------------------


@_jit
def _log_acceptance(step, mode, margin, mills):  # type: ignore[no-untyped-def]
    """Return a proposal a standard normal `step` away, and its log density less that of the envelope.

    The log density ``-e^2/2 + sum_k log Phi(e + margin_k)`` bends everywhere at least as a normal's, so
    that the parabola of bend one with its height and slope at any point is nowhere below it. The nearer
    that point to the mode, the fewer proposals are refused.
    """
    height = log_integrand(mode, margin, mills)
    slope = mills.sum() - mode
    step = step + slope  # a normal proposal around the parabola's own mode
    excess = log_integrand(mode + step, margin, mills) - height - slope * step + 0.5 * step * step
    return mode + step, excess


@_jit
def _draw_own_noise(margin, mills, rng):  # type: ignore[no-untyped-def]
    """Draw e from ``phi(e) prod_k Phi(e + margin_k)`` by rejection."""
    mode, _, _ = mode_of_integrand(margin)
    while True:
        noise, excess = _log_acceptance(rng.standard_normal(), mode, margin, mills)
        if rng.standard_exponential() > -excess:
            return noise


@_jit
def _draw_responses(latent, label, response, rng):  # type: ignore[no-untyped-def]
    """Draw the responses given the scores: the own class' first, the others below it."""
    n_obs, n_classes = latent.shape
    margin, mills = np.empty(n_classes - 1), np.empty(n_classes - 1)
    for i in range(n_obs):
        own, k = label[i], 0
        for c in range(n_classes):
            if c != own:
                margin[k] = latent[i, own] - latent[i, c]
                k += 1
        top = latent[i, own] + _draw_own_noise(margin, mills, rng)
        response[i, own] = top
        for c in range(n_classes):
            if c != own:
                response[i, c] = latent[i, c] - gibbs._upper_tail(latent[i, c] - top, rng)


@_jit
def _scale_density(t, size, latent, bias, label, par, rule):  # type: ignore[no-untyped-def]
    """Return the log density along (sizes, biases) -> e^t (sizes, biases), responses integrated out."""
    factor = math.exp(t)
    rate = par[1] * math.exp(-2.0 * t)
    total = 0.0
    for each in bias:
        total += t - (par[2] + 0.5) * math.log1p(each * each * factor * factor / (2.0 * par[3]))
    for each in size.ravel():
        total += t + gibbs._log_size_density(each, par[0], rate)
    return total + multinomial_terms(factor * latent, label, rule[0], rule[1])[0].sum()


@_jit
def _slice_scale(size, latent, bias, label, par, rule, rng):  # type: ignore[no-untyped-def]
    """Draw the logarithm of a common factor of all sizes and biases."""
    level = _scale_density(0.0, size, latent, bias, label, par, rule)
    level -= rng.standard_exponential()
    low = -gibbs._SCALE_WIDTH * rng.random()
    high = low + gibbs._SCALE_WIDTH
    while _scale_density(low, size, latent, bias, label, par, rule) > level:
        low -= gibbs._SCALE_WIDTH
    while _scale_density(high, size, latent, bias, label, par, rule) > level:
        high += gibbs._SCALE_WIDTH
    while True:
        t = low + (high - low) * rng.random()
        if _scale_density(t, size, latent, bias, label, par, rule) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t


@_jit
def _shift(bias, e, f, rng):  # type: ignore[no-untyped-def]
    """Move all biases together, which the likelihood does not see: a Metropolis step under the prior."""
    t, ratio = rng.standard_normal(), 0.0
    for each in bias:
        ratio += math.log1p(each * each / (2.0 * f)) - math.log1p((each + t) ** 2 / (2.0 * f))
    if rng.standard_exponential() > -(e + 0.5) * ratio:
        bias += t


@_jit
def _run(left, right, sign, label, neighbours, par, size, bias, rng, draws, thin, rule):  # type: ignore[no-untyped-def]
    """Run sweeps, keep one state in `thin`; `size` and `bias` move along."""
    n_obs, n_classes = len(left), len(bias)
    border, norm = gibbs._sums_of_columns(left, right)
    prior = (par[0], par[2], par[3], par[1])
    latent, response = np.empty((n_obs, n_classes)), np.empty((n_obs, n_classes))
    inside = np.empty((n_classes, right.shape[1]))
    kept_size = np.empty((draws, len(size), n_classes))
    kept_bias = np.empty((draws, n_classes))
    for sweep in range(draws * thin):
        # anew each time: what is kept of a chain is its sizes and biases
        for k in range(n_classes):
            inside[k] = np.dot(sign[:, k] * size[:, k], right)
            latent[:, k] = np.dot(left, inside[k]) + bias[k]
        _draw_responses(latent, label, response, rng)
        for k in range(n_classes):
            own = size[:, k].copy()
            bias[k], alone = gibbs._update_machine(
                left,
                right,
                sign[:, k].copy(),
                neighbours,
                border,
                norm,
                prior,
                inside[k],
                response[:, k].copy(),
                own,
                bias[k],
                rng,
            )
            size[:, k], latent[:, k] = own, alone + bias[k]
        # from here on the responses are integrated out; the next sweep draws them anew
        if rng.random() * _SCALE_PERIOD < 1.0:
            t = _slice_scale(size, latent, bias, label, par, rule, rng)
            size *= math.exp(t)
            bias *= math.exp(t)
        _shift(bias, par[2], par[3], rng)
        if (sweep + 1) % thin == 0:
            kept_size[sweep // thin] = size
            kept_bias[sweep // thin] = bias
    return kept_size, kept_bias
