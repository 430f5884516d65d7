"""Likelihoods of a latent function: log density, its slope and its curvature in the latent values."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit

from pcvm_pymc.core.pieces import probit
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["LINKS", "LOGIT", "PROBIT", "Likelihood", "gaussian"]

_LOG_2PI = np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Likelihood:
    """One likelihood; each function takes ``(latent, target)``, shape (n_obs,) each.

    Attributes
    ----------
    name : str
    log_density : callable
        Sum of log p(target | latent).
    score : callable
        Its derivative in each latent value, shape (n_obs,).
    curvature : callable
        Minus its second derivative, shape (n_obs,), never negative: all are log-concave.
    top_curvature : float
        The largest curvature that occurs: the precision of one observation.
    inverse_link : callable, optional
        Probability of +1 given the latent function; None for targets.
    spread : float
        How much the latent function's variance counts, see `moderated`.
    """

    name: str
    log_density: Callable[[Array, Array], float]
    score: Callable[[Array, Array], Array]
    curvature: Callable[[Array, Array], Array]
    top_curvature: float
    inverse_link: Callable[[Array], Array] | None = None
    spread: float = 0.0

    def moderated(self, mean: Array, variance: Array) -> Array:
        """Return the latent value whose probability is the average one under a normal.

        Exact for the probit, MacKay's (1992) approximation for the logit. Its sign is that of the mean.
        """
        return mean / np.sqrt(1.0 + self.spread * variance)


def gaussian(noise: float, n_obs: int | None = None) -> Likelihood:
    """Return the likelihood of regression, targets normal around the latent function.

    Parameters
    ----------
    noise : float
        Standard deviation, positive.
    n_obs : int, optional
        Number of targets, where those given are a rotation's part that is not zero.
    """
    precision = noise**-2.0

    def log_density(latent: Array, target: Array) -> float:
        residual = (target - latent) / noise
        n = len(target) if n_obs is None else n_obs
        return -0.5 * float(residual @ residual) - n * (0.5 * _LOG_2PI + np.log(noise))

    return Likelihood(
        name="gaussian",
        log_density=log_density,
        score=lambda latent, target: (target - latent) * precision,
        curvature=lambda latent, target: np.full(len(target), precision),
        top_curvature=precision,
    )


def _logit_log_density(latent: Array, label: Array) -> float:
    return float(log_expit(label * latent).sum())


def _logit_score(latent: Array, label: Array) -> Array:
    return label * expit(-label * latent)


def _logit_curvature(latent: Array, label: Array) -> Array:
    return expit(latent) * expit(-latent)


LOGIT = Likelihood(
    "logit", _logit_log_density, _logit_score, _logit_curvature, 0.25, expit, np.pi / 8.0
)
PROBIT = Likelihood(
    "probit", probit.log_likelihood, probit.score, probit.curvature, 1.0, probit.ndtr, 1.0
)
LINKS = {"logit": LOGIT, "probit": PROBIT}
