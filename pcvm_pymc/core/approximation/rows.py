"""What the approximations are given: rows whose probit margins are linear in sizes and bias."""

from dataclasses import dataclass

import numpy as np

from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

__all__ = ["SignedRows"]


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
        _check(problem)
        label, sign = np.asarray(problem.label, dtype=float), problem.weight_sign
        signed = np.column_stack([problem.Phi * sign, np.ones(len(label))])
        return cls(label[:, None] * signed, label, sign, _gamma_prior(problem))

    def latent(self, theta: Array) -> Array:
        """Return the latent function at the rows in draws of theta, shape (n_draws, n_obs)."""
        return (theta @ self.design.T) * self.label


def _check(problem: Problem) -> None:
    name = problem.likelihood.name
    if not isinstance(problem.likelihood, Probit):
        raise ValueError(
            f"likelihood={problem.likelihood}, {name!r}; the approximations need the probit of two classes "
            "(likelihood='probit') and rows without weights, or sample(model)"
        )
    if not problem.is_signed:
        raise ValueError(
            "the weights are free; the approximations are for signed weights, those of pcvm_model; "
            "or sample(model)"
        )
    _gamma_prior(problem)
    if problem.bias != "prior" or problem.moves is not None:
        width = "a known" if problem.moves is None else "an unknown"
        raise ValueError(
            f"bias={problem.bias!r} and {width} width; the approximations need bias='prior' and a known "
            "width, or sample(model)"
        )


def _gamma_prior(problem: Problem) -> Hyperprior:
    prior = problem.hyperprior
    if type(prior) is not Hyperprior:
        raise ValueError(
            f"hyperprior={prior}, {prior.name!r}; the approximations need a Hyperprior(c, d, e, f), or "
            "sample(model)"
        )
    if not prior.is_proper or prior.rate_shape is not None:
        raise ValueError(
            f"hyperprior={prior} is improper or of unknown scale; needed c, d, e and f positive and "
            "rate_shape=None, as of pcvm_model(X, y, hyperprior='default')"
        )
    return prior
