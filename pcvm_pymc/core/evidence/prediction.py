"""Predictions by the evidence: mean and variance of the latent function of RVM and RVM*."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.evidence.active_set import WeightPosterior, posterior, sum_of_squares
from pcvm_pymc.core.evidence.problem import EvidenceProblem, FittedRVM
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import with_constant


def predictive_moments(Phi_active: Array, result: FittedRVM) -> tuple[Array, Array]:
    """Return mean and variance of the latent function at new rows, shape (n_new,) each.

    Chmielewski et al. (2019) eq. 9 without the noise, which is that of a new target.

    Parameters
    ----------
    Phi_active : ndarray, shape (n_new, n_active)
        The kept bases, ``result.active``, at the new rows.
    result : FittedRVM
    """
    bases = with_constant(Phi_active)
    mean = Phi_active @ result.weight[result.active] + result.bias
    return mean, np.maximum(np.einsum("ij,jk,ik->i", bases, result.covariance, bases), 0.0)


class Augmentation(NamedTuple):
    """Training rows' part of RVM*: posterior, orthogonal columns, and the targets' variance.

    Attributes
    ----------
    kept : ndarray of bool, shape (n_active + 1,)
        Which of the active bases and, last, the constant are in the model: the bias may not be.
    end : WeightPosterior
        Of the weights of those.
    orthogonal : tuple of ndarray, shape (n_obs, n_kept) and (n_kept, n_kept)
        See `WeightPosterior.orthogonal`.
    target_variance : float
    """

    kept: NDArray[np.bool_]
    end: WeightPosterior
    orthogonal: tuple[Array, Array]
    target_variance: float


def augmentation(problem: EvidenceProblem, result: FittedRVM) -> Augmentation:
    """Return the training rows' part of RVM*, of a fitted regression, for `star_moments`."""
    alpha = np.append(result.alpha[result.active], result.bias_alpha)
    kept = np.isfinite(alpha)
    bases = np.column_stack([problem.Phi[:, result.active], problem.constant])[:, kept]
    end = posterior(bases, alpha[kept], problem.observed(result.noise))
    return Augmentation(kept, end, end.orthogonal(bases), problem.spread**2)


def star_moments(
    Phi_active: Array,
    at_training: Array,
    at_itself: Array,
    result: FittedRVM,
    fitted: Augmentation,
) -> tuple[Array, Array]:
    """Return mean and variance of the latent function with one more basis on each new row (RVM*).

    Chmielewski et al. (2019) eq. 16 (Rasmussen & Quinonero-Candela 2005), which is exact, with the new
    basis' precision K(x*, x*)^2 / var(t): it may contribute as much as the targets vary.
    Re-estimating it would usually give infinity.

    Parameters
    ----------
    Phi_active : ndarray, shape (n_new, n_active)
        The kept bases at the new rows.
    at_training : ndarray, shape (n_obs, n_new)
        The new rows' bases at the training rows.
    at_itself : ndarray, shape (n_new,)
        Each new row's basis there, K(x*, x*).
    result : FittedRVM
    fitted : Augmentation
    """
    mean, variance = predictive_moments(Phi_active, result)
    end, weighted = fitted.end, np.sqrt(fitted.end.curvature)[:, None] * at_training
    U = fitted.orthogonal[0].T @ weighted
    V = end.half.T @ with_constant(Phi_active)[:, fitted.kept].T
    q, e = end.score @ at_training, at_itself - np.einsum("ij,ij->j", U, V)
    s = sum_of_squares(fitted.orthogonal, weighted)
    # the precision of a weight with which the basis alone varies as the targets do
    with np.errstate(divide="ignore", invalid="ignore"):
        total = s + at_itself**2 / fitted.target_variance
    gain = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return mean + gain * q, variance + gain * e
