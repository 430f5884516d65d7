"""Weights of fits in an average, by their log densities at rows that were left out."""

import numpy as np

from pcvm_pymc.core.pieces.probit import Array

_STEPS, _CLOSE = 500, 1e-7  # of the weights' iteration, and the change at which it stops


def stacking_weights(log_density: Array, row_weight: Array | None = None) -> Array:
    """Return the weights of an average of densities that predicts rows left out best.

    They maximise ``sum_i log sum_k w_k p_k(i) + sum_k log w_k``: stacking (Yao et al. 2018, section 3.1)
    with a Dirichlet prior of parameter 2, which keeps few rows from leaving all to one fit.

    Parameters
    ----------
    log_density : ndarray, shape (n_fits, n_obs)
        Of rows left out.
    row_weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.

    Returns
    -------
    ndarray, shape (n_fits,)
        Sums to one.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman (2018), "Using stacking to average Bayesian predictive
    distributions", Bayesian Analysis 13(3), 917-1007.
    """
    n_fits, n_obs = log_density.shape
    count = np.ones(n_obs) if row_weight is None else row_weight
    density = np.exp(log_density - log_density.max(axis=0))
    weight = np.full(n_fits, 1.0 / n_fits)
    for _ in range(_STEPS):  # EM of the shares of a mixture, which never lowers the objective
        share = weight[:, None] * density
        new = (share / share.sum(axis=0)) @ count + 1.0
        new /= new.sum()
        change, weight = np.abs(new - weight).max(), new
        if change < _CLOSE:
            break
    return weight
