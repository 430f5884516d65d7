"""The multinomial probit in JAX, for numpyro and blackjax; imported where PyTensor compiles to JAX alone.

The rule of `core.pieces.multinomial` with a fixed number of nodes, so that rows are computed together. All of
it is differentiable, second derivatives included: where the nodes are does not depend on the scores.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc, erfcx, logsumexp

from pcvm_pymc.core.pieces.class_integrals import LOG_SQRT_2PI
from pcvm_pymc.core.pieces.multinomial import rule_of

_SPACING, _DROP = rule_of(1e-10)
_CERTAIN = 40.0  # Phi is one, and its derivative zero, to double precision
_HOPELESS = 1e6  # as in the core: a diverging trajectory
_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


@jax.custom_jvp
def _mills(x: Any) -> Any:
    """Return phi(x) / Phi(x), whose derivative is -m (m + x)."""
    return _SQRT_2_OVER_PI / erfcx(-_SQRT_HALF * x)


_mills.defjvps(lambda dx, m, x: -m * (m + x) * dx)


@jax.custom_jvp
def _log_ndtr(x: Any) -> Any:
    """Return log Phi(x), whose derivative is phi / Phi; JAX's of_class keeps eight digits below -20."""
    left, right = jnp.minimum(x, 0.0), jnp.maximum(x, 0.0)
    of_left = jnp.log(0.5 * erfcx(-_SQRT_HALF * left)) - 0.5 * left * left
    return jnp.where(x < 0.0, of_left, jnp.log1p(-0.5 * erfc(_SQRT_HALF * right)))


_log_ndtr.defjvps(lambda dx, _, x: _mills(x) * dx)


def _mode(margin: Any) -> tuple[Any, Any]:
    """Return modes of the integrands, and their curvature there, by Newton's method, shape (rows,)."""

    def newton(state: Any) -> Any:
        e, _, _, count = state
        x = e[:, None] + margin
        m = _mills(x)
        curvature = 1.0 + (m * (m + x)).sum(axis=1)
        step = (m.sum(axis=1) - e) / curvature
        return e + step, step, curvature, count + 1

    def goes_on(state: Any) -> Any:
        _, step, curvature, count = state
        return jnp.any(jnp.abs(step) > 1e-3 / jnp.sqrt(curvature)) & (count < 200)

    start = jnp.zeros(margin.shape[0], margin.dtype)
    mode, _, curvature, _ = jax.lax.while_loop(
        goes_on, newton, (start, start + 1.0, start + 1.0, 0)
    )
    return mode, curvature


def class_terms(latent: Any, label: Any) -> tuple[Any, Any]:
    """Return log probabilities of the rows' classes and their scores, in JAX.

    As `pcvm_pymc.core.pieces.multinomial.multinomial_terms`: a class that does not exist has -inf, as has one
    whose score others exceed by more than 1e6; scores that are not finite have NaN.

    Parameters
    ----------
    latent : array, shape (n_obs, n_classes)
    label : array of int, shape (n_obs,)

    Returns
    -------
    log_probability : array, shape (n_obs,)
    score : array, shape (n_obs, n_classes)

    References
    ----------
    S. Lyu et al. (2020), eqs. 10, 22-23, with another quadrature.
    """
    n_classes = latent.shape[1]
    is_class = label[:, None] == jnp.arange(n_classes)
    of_class = jnp.sum(jnp.where(is_class, latent, 0.0), axis=1)
    is_finite = jnp.isfinite(latent).all(axis=1)
    is_possible = is_class.any(axis=1) & (latent.max(axis=1) - of_class <= _HOPELESS)
    usable = (is_finite & is_possible)[:, None]
    margin = jnp.where(usable & ~is_class, of_class[:, None] - latent, _CERTAIN)

    mode, curvature = _mode(jax.lax.stop_gradient(margin))
    # the integrand falls at least as fast as exp(-e^2 / 2), and a step is at least _SPACING / sqrt(n_classes)
    n_nodes = math.ceil(math.sqrt(2.0 * _DROP * n_classes) / _SPACING)
    step = _SPACING / jnp.sqrt(curvature)
    e = mode[:, None] + step[:, None] * jnp.arange(-n_nodes, n_nodes + 1)
    x = e[:, :, None] + margin[:, None, :]
    height = _log_ndtr(x).sum(axis=2) - 0.5 * e * e
    log_total = logsumexp(height, axis=1)
    mean = jnp.einsum("nj,njc->nc", jnp.exp(height - log_total[:, None]), _mills(x))
    away = jnp.where(is_class, 0.0, mean)
    score = jnp.where(is_class, away.sum(axis=1, keepdims=True), -away)

    value = log_total + jnp.log(step) - LOG_SQRT_2PI
    value = jnp.where(is_possible, value, -jnp.inf)
    return (
        jnp.where(is_finite, value, jnp.nan),
        jnp.where(is_finite[:, None], jnp.where(usable, score, 0.0), jnp.nan),
    )
