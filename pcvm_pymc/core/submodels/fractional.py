"""Labels that count in fractions: what a likelihood says of a reference's probabilities.

The mean log density of a row's label, each label counting as the reference has it, is all that is
particular to a likelihood: its value is the divergence up to a constant, and the mean of slopes and
curvatures over the labels are its derivatives.
"""

import numpy as np

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.multinomial import FractionalTerms, fractional_terms
from pcvm_pymc.core.pieces.probit import Array, inverse_mills

__all__ = ["probability_derivatives", "row_terms"]


def row_terms(likelihood: Likelihood, latent: Array, probability: Array) -> FractionalTerms:
    """Return each row's log density of its label, averaged over labels, and its derivatives.

    Parameters
    ----------
    likelihood : Likelihood
    latent, probability : ndarray, shape (n_obs,), or (n_obs, n_classes) for several classes
        The latter: of label +1, or of each class.

    Returns
    -------
    log_density : ndarray, shape (n_obs,)
    score : ndarray, shape (n_obs, n_scores)
    hessian : ndarray, shape (n_obs, n_scores, n_scores)
        Minus the second derivatives; where these are negative, zero.
    """
    if likelihood.n_scores > 1:
        return fractional_terms(latent, probability)
    up = np.ones(len(latent))
    log_density = probability * likelihood.log_density(latent, up)
    log_density += (1 - probability) * likelihood.log_density(latent, -up)
    score, bend = probability_derivatives(latent, probability, likelihood)
    return FractionalTerms(log_density, score[:, None], bend[:, None, None])


def probability_derivatives(
    latent: Array, probability: Array, likelihood: Likelihood | None = None
) -> tuple[Array, Array]:
    """Return d/df and -d^2/df^2 of ``p log P(+1 | f) + (1 - p) log P(-1 | f)``, shape (n_obs,) each.

    The latter is the mean over labels of the probit's curvature. Other likelihoods need not be concave:
    theirs is Fisher's information, which is never negative and the same where ``p = P(+1 | f)``, so that
    steps are Newton's near a reference that is matched.

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
    up, own = np.ones(len(latent)), likelihood.probability(latent)
    above, below = likelihood.score(latent, up), likelihood.score(latent, -up)
    return probability * above + rest * below, own * above**2 + (1 - own) * below**2
