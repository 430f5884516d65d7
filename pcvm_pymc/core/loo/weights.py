"""How much each of several fits counts in their average, by their leave-one-out log densities."""

import numpy as np

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["averaging_weights"]

_REPLICATES = 1000
_MOST_NUMBERS = (
    2_000_000  # replicates times rows; beyond, the totals' normal distribution stands for them
)


def averaging_weights(
    log_density: Array, log_prior: Array | None = None, *, seed: int = 0
) -> Array:
    """Return Bayesian-bootstrap weights of several fits, pseudo-BMA+ (Yao et al. 2018, section 3.4).

    In each replicate the rows have weights from a flat Dirichlet distribution, and each fit the share
    ``softmax(n sum_i u_i l_i + log prior)``; the shares' means are returned.

    Parameters
    ----------
    log_density : ndarray, shape (n_fits, n_obs)
        Leave-one-out log densities.
    log_prior : ndarray, shape (n_fits,), optional
        Of the hyperparameters that they were fitted with. Default: flat.
    seed : int
        Of the replicates.

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
    rng = np.random.default_rng(seed)
    if n_obs * _REPLICATES <= _MOST_NUMBERS:
        row_weight = rng.dirichlet(np.ones(n_obs), size=_REPLICATES)
        total = n_obs * (row_weight @ log_density.T)
    else:
        centred = log_density - log_density.mean(axis=1, keepdims=True)
        spread = np.linalg.svd(centred, full_matrices=False)
        noise = rng.standard_normal((_REPLICATES, min(n_fits, n_obs)))
        total = log_density.sum(axis=1) + noise @ (spread.U * spread.S).T
    if log_prior is not None:
        total = total + log_prior
    share = np.exp(total - total.max(axis=1, keepdims=True))
    return (share / share.sum(axis=1, keepdims=True)).mean(axis=0)
