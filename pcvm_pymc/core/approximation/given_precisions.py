"""The normal posterior around a mode: of the weights that are not zero, given their precisions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from pcvm_pymc.core.pieces.likelihood import Likelihood
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["NormalPosterior", "normal_posterior"]


@dataclass(frozen=True)
class NormalPosterior:
    """A normal distribution of weights and bias around their mode.

    Attributes
    ----------
    theta : ndarray, shape (n_columns, n_scores)
        The mode, of each column of the design and each score.
    kept : tuple of ndarray of int
        Columns that are in the model, for each score.
    root : ndarray, shape (n_kept, n_kept)
        Lower Cholesky factor of the precision matrix, one score's columns after the other's.
    """

    theta: Array
    kept: tuple[NDArray[np.intp], ...]
    root: Array

    def latent(self, design: Array) -> tuple[Array, Array]:
        """Return mean, shape (n, n_scores), and covariance, shape (n, n_scores, n_scores), at new rows."""
        ends = np.cumsum([0, *map(len, self.kept)])
        roots = []
        for kept, first, last in zip(self.kept, ends, ends[1:], strict=False):
            own = np.zeros((ends[-1], len(design)))
            own[first:last] = design[:, kept].T
            roots.append(solve_triangular(self.root, own, lower=True))
        each = np.stack(roots)
        return design @ self.theta, np.einsum("cin,din->ncd", each, each)


def normal_posterior(
    design: Array, target: NDArray[Any], likelihood: Likelihood, theta: Array, precision: Array
) -> NormalPosterior:
    """Expand the log posterior given the precisions at its mode, to second order.

    The precision matrix is ``design' H design + diag(precision)``, H the likelihood's curvature: Tipping
    (2001) eqs. 25-27 for several scores. Columns of infinite precision are left out.

    Parameters
    ----------
    design : ndarray, shape (n_obs, n_columns)
        Basis functions, and a column of ones for the bias.
    target : ndarray, shape (n_obs,)
        As the likelihood has it.
    likelihood : Likelihood
    theta : ndarray, shape (n_columns, n_scores)
    precision : ndarray, shape (n_columns, n_scores)
        Of the weights' normal prior, for instance E[precision | theta].
    """
    latent = design @ theta
    bend = likelihood.hessian(latent if likelihood.n_scores > 1 else latent[:, 0], target)
    kept = tuple(map(np.flatnonzero, np.isfinite(precision).T))
    parts = [design[:, each] for each in kept]
    rows = range(len(kept))
    matrix = np.block([[(parts[c].T * bend[:, c, d]) @ parts[d] for d in rows] for c in rows])
    matrix[np.diag_indices_from(matrix)] += np.concatenate(
        [precision[each, c] for c, each in enumerate(kept)]
    )
    return NormalPosterior(theta, kept, cholesky(matrix, lower=True))
