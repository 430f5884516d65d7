"""Second-order expansions at a mode: Laplace's approximation on sizes, and of weights given precisions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pcvm_pymc.core.approximation.truncated import truncated_normal_draws
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, curvature, inverse_mills
from pcvm_pymc.core.problem import Problem


@dataclass(frozen=True)
class SignedRows:
    """The posterior of theta, sizes and last the bias, under ``p(y | theta) = prod Phi(A theta)``.

    Attributes
    ----------
    design : ndarray, shape (n_obs, n_basis + 1)
        A: basis functions times the weights' signs, a column of ones, each row times its label.
    label : ndarray, shape (n_obs,)
    sign : ndarray, shape (n_basis,)
    hyperprior : Hyperprior
        Proper and of fixed scale.
    """

    design: Array
    label: Array
    sign: Array
    hyperprior: Hyperprior

    @classmethod
    def of(cls, problem: Problem) -> "SignedRows":
        """Return the rows of a problem.

        Raises
        ------
        ValueError
            Unless it has two classes under a probit, signed weights, a proper `Hyperprior` of fixed scale on
            weights and bias, a known width and rows that count once.
        """
        prior: Any = problem.hyperprior
        is_gamma = type(prior) is Hyperprior
        for is_met, found, needed in (
            (
                isinstance(problem.likelihood, Probit),
                f"likelihood={problem.likelihood}, {problem.likelihood.name!r}",
                "the probit of two classes (likelihood='probit') and rows without weights",
            ),
            (problem.is_signed, "the weights are free", "signed weights, those of pcvm_model"),
            (is_gamma, f"hyperprior={prior}, {prior.name!r}", "a Hyperprior(c, d, e, f)"),
            (
                is_gamma and prior.is_proper and prior.rate_shape is None,
                f"hyperprior={prior} is improper or of unknown scale",
                "c, d, e and f positive and rate_shape=None, as of pcvm_model(X, y, hyperprior='default')",
            ),
            (
                problem.bias == "prior" and problem.moves is None,
                f"bias={problem.bias!r} and {'an un' if problem.moves else 'a '}known width",
                "bias='prior' and a known width",
            ),
        ):
            if not is_met:
                raise ValueError(f"{found}; the approximations need {needed}, or sample(model)")
        label, sign = np.asarray(problem.label, dtype=float), problem.weight_sign
        signed = np.column_stack([problem.Phi * sign, np.ones(len(label))])
        return cls(label[:, None] * signed, label, sign, prior)

    def latent(self, theta: Array) -> Array:
        """Return the latent function at the rows in draws of theta, shape (n_draws, n_obs)."""
        return (theta @ self.design.T) * self.label


# --- on sizes, precisions integrated out ----------------------------------------------------------


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
    row_curvature = curvature(x, np.ones_like(x))
    likelihood = (rows.design * row_curvature[:, None]).T @ rows.design
    ratios = prior.weight_curvature_ratio(mode[:-1]), prior.bias_curvature_ratio(mode[-1:])
    of_prior = precision * np.concatenate(ratios)
    is_exact = True
    try:
        factor = cho_factor(likelihood + np.diag(of_prior), lower=True)
    except LinAlgError:
        is_exact = False
        factor = cho_factor(likelihood + np.diag(precision), lower=True)
    covariance = cho_solve(factor, np.eye(len(mode)))
    covariance = 0.5 * (covariance + covariance.T)
    return LaplaceFit(mode, mode + covariance @ slope, covariance, is_exact)
