"""Labels that count in fractions: what a likelihood says of a reference's probabilities.

The mean log density of a row's label, each label counting as the reference has it, is all that is
particular to a likelihood: its value is the divergence up to a constant, and the mean of slopes and
curvatures over the labels are its derivatives.
"""

import numpy as np

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.multinomial import class_hessian, class_terms, log_class_probability
from pcvm_pymc.core.pieces.probit import Array, inverse_mills

__all__ = ["class_derivatives", "mean_log_density", "probability_derivatives", "row_derivatives"]

_ACCURACY = 1e-8  # of a class' log probability: far below what tells one submodel from another


def probability_derivatives(
    latent: Array, probability: Array, likelihood: Likelihood | None = None
) -> tuple[Array, Array]:
    """Return d/df and -d^2/df^2 of ``p log P(+1 | f) + (1 - p) log P(-1 | f)``, shape (n_obs,) each.

    The latter lies between zero and the likelihood's bound (see its `curvature`, of which this is the
    mean over labels).

    Parameters
    ----------
    latent, probability : ndarray, shape (n_obs,)
    likelihood : Likelihood, optional
        Of labels -1. and +1.; default: the probit.
    """
    rest = 1 - probability
    if likelihood is None or isinstance(likelihood, Probit):  # phi / Phi but once for each label
        above, below = inverse_mills(latent), inverse_mills(-latent)
        score = probability * above - rest * below
        bend = probability * np.clip(above * (above + latent), 0.0, 1.0)
        return score, bend + rest * np.clip(below * (below - latent), 0.0, 1.0)
    up = np.ones(len(latent))
    score = probability * likelihood.score(latent, up) + rest * likelihood.score(latent, -up)
    bend = probability * likelihood.curvature(latent, up)
    return score, bend + rest * likelihood.curvature(latent, -up)


def class_derivatives(latent: Array, probability: Array) -> tuple[Array, Array]:
    """Return the same of ``sum_c p_c log P(c | f)`` under the multinomial probit.

    Parameters
    ----------
    latent, probability : ndarray, shape (n_obs, n_classes)

    Returns
    -------
    score : ndarray, shape (n_obs, n_classes)
    bend : ndarray, shape (n_obs, n_classes, n_classes)
        Minus the second derivatives: a Laplacian matrix for each row.
    """
    score, bend = np.zeros(latent.shape), np.zeros((*latent.shape, latent.shape[1]))
    for c, share in enumerate(probability.T):
        rows = np.flatnonzero(share)
        label = np.full(len(rows), c)
        part = share[rows, None]
        score[rows] += part * class_terms(latent[rows], label, accuracy=_ACCURACY).score
        bend[rows] += part[..., None] * class_hessian(latent[rows], label, accuracy=_ACCURACY)
    return score, bend


def row_derivatives(
    likelihood: Likelihood, latent: Array, probability: Array
) -> tuple[Array, Array]:
    """Return slopes, shape (n_obs, n_scores), and curvatures, shape (n_obs, n_scores, n_scores).

    Parameters
    ----------
    likelihood : Likelihood
    latent, probability : ndarray, shape (n_obs,), or (n_obs, n_classes) for several classes
    """
    if likelihood.n_scores > 1:
        return class_derivatives(latent, probability)
    score, bend = probability_derivatives(latent, probability, likelihood)
    return score[:, None], bend[:, None, None]


def mean_log_density(likelihood: Likelihood, latent: Array, probability: Array) -> Array:
    """Return each row's log density of its label, averaged over labels as the reference has them.

    Shapes as for `row_derivatives`; shape (n_obs,).
    """
    if likelihood.n_scores > 1:
        log_density = log_class_probability(latent, accuracy=_ACCURACY)
        return np.einsum("ic,ic->i", probability, log_density)
    up = np.ones(len(latent))
    above = probability * likelihood.log_density(latent, up)
    return above + (1 - probability) * likelihood.log_density(latent, -up)
