"""Laplace's approximation at the sign-constrained mode: a normal distribution truncated to the orthant."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pcvm_pymc.core.approximation.laplace import SignedRows
from pcvm_pymc.core.approximation.truncated import truncated_normal_draws
from pcvm_pymc.core.pieces.probit import Array, curvature, inverse_mills

__all__ = ["LaplaceFit", "fit_laplace"]


@dataclass(frozen=True)
class LaplaceFit:
    """The second-order expansion of the log posterior at its mode, on sizes >= 0.

    Attributes
    ----------
    mode : ndarray, shape (n_basis + 1,)
        Sizes and bias.
    mean, covariance : ndarray
        Of the normal before it is truncated. The mean is the mode where no size is zero.
    is_exact : bool
        Whether the prior's own curvature was taken; else ``E[precision | w]``.
    """

    mode: Array
    mean: Array
    covariance: Array
    is_exact: bool

    def draws(self, rng: np.random.Generator, draws: int) -> Array:
        """Return draws of sizes and bias, shape (draws, n_basis + 1)."""
        n_signed = len(self.mode) - 1
        return truncated_normal_draws(
            self.mean, self.covariance, n_signed, self.mode, rng, draws=draws
        )


def fit_laplace(rows: SignedRows, mode: Array) -> LaplaceFit:
    """Expand the log posterior at its mode under the signs.

    ``log p(theta) ~ g' (theta - mode) - (theta - mode)' H (theta - mode) / 2`` on sizes >= 0. The slope g is
    zero at sizes that are not, and negative at those that are zero, which stay random: half-lines
    are not points. H has the likelihood's curvature and the prior's own; where H is not positive
    definite, the prior's E[precision | w], which is never less.

    Parameters
    ----------
    rows : SignedRows
    mode : ndarray, shape (n_basis + 1,)
        Sizes and bias of the mode, by EM.
    """
    prior, x = rows.hyperprior, rows.design @ mode
    precision = np.append(prior.weight_precision(mode[:-1]), prior.bias_precision(mode[-1]))
    slope = rows.design.T @ inverse_mills(x) - precision * mode
    bend = curvature(x, np.ones_like(x))
    likelihood = (rows.design * bend[:, None]).T @ rows.design
    own = np.append(
        _student_curvature(mode[:-1], prior.c, prior.d),
        _student_curvature(mode[-1:], prior.e, prior.f),
    )
    is_exact = True
    try:
        factor = cho_factor(likelihood + np.diag(own), lower=True)
    except LinAlgError:
        is_exact = False
        factor = cho_factor(likelihood + np.diag(precision), lower=True)
    covariance = cho_solve(factor, np.eye(len(mode)))
    covariance = 0.5 * (covariance + covariance.T)
    return LaplaceFit(mode, mode + covariance @ slope, covariance, is_exact)


def _student_curvature(value: Array, shape: float, rate: float) -> Array:
    """Return minus the second derivative of a Student-t's log density, precisions Gamma(shape, rate)."""
    square = value * value
    return (2.0 * shape + 1.0) * (2.0 * rate - square) / np.square(2.0 * rate + square)
