"""The class probabilities that a submodel is to match, and the divergence from them."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.multinomial import FractionalTerms, fractional_terms
from pcvm_pymc.core.pieces.probit import Array, inverse_mills

type Columns = NDArray[np.intp]
type Mask = NDArray[np.bool_]

_LEAST_SHARE = 1e-15  # mean probability of a class, below which the class cannot be fitted


@dataclass(frozen=True)
class Target:
    """The class probabilities that a submodel approximates, and the basis functions to choose from.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at the rows where the divergence is measured.
    sign : ndarray, shape (n_basis,), or (n_basis, n_classes) for several classes, or None
        Sign of each weight, -1. or +1.; for several classes +1. for the own class of each basis alone. None
        leaves the weights free.
    probability : ndarray, shape (n_obs,), or (n_obs, n_classes)
        The reference's probability of label +1, or of each class.
    row_weight : ndarray, shape (n_obs,), optional
        Relative weight of each row in the divergence, at least 0. Default: equal.
    ridge : float
        ``ridge / 2 * (w_j rms_j)^2`` is added for each weight, rms_j being the root mean square of its
        column: it makes weights finite and unique where columns coincide or p is 0 or 1 to
        rounding. The bias is not penalised.
    likelihood : Likelihood
        Of the submodel's labels; `MultinomialProbit` for several classes.

    Notes
    -----
    Several classes: a constant added to all scores does not change the probabilities. So the weight of
    each basis in its own class is fixed at zero, and those in the other classes are at most zero, which loses
    no submodel; the first bias is fixed at zero too. Free weights are fixed at zero in the first class.
    """

    Phi: Array
    sign: Array | None
    probability: Array
    row_weight: Array | None = None
    ridge: float = 1e-8
    likelihood: Likelihood = field(default_factory=Probit)

    def __post_init__(self) -> None:
        n_obs, n_basis = self.Phi.shape
        several = () if self.n_scores == 1 else (self.n_scores,)
        for name, shape in (
            ("probability", (n_obs, *several)),
            ("row_weight", (n_obs,)),
            ("sign", (n_basis, *several)),
        ):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(
                    f"{name} has shape {value.shape}; needed {shape}, as Phi and likelihood have it"
                )
        if not ((self.probability >= 0) & (self.probability <= 1)).all():
            raise ValueError("probability has values outside [0, 1] or NaN; needed probabilities")
        if self.row_weight is not None and not (
            (self.row_weight >= 0).all() and 0 < self.row_weight.sum() < np.inf
        ):
            raise ValueError("row_weight must be finite, not negative, and not zero everywhere")
        if not self.ridge > 0:
            raise ValueError(f"ridge={self.ridge} must be positive; 1e-8 is negligible")
        mean = self.mass @ self.probability
        if self.n_scores == 1 and not _LEAST_SHARE < mean < 1 - _LEAST_SHARE:
            raise ValueError(
                "probability is 0 or 1 in every row: the reference knows one class only, and "
                "there is nothing to project"
            )
        if self.n_scores > 1:
            if not np.allclose(self.probability.sum(axis=1), 1.0, atol=1e-6):
                raise ValueError("probability has rows that do not sum to 1; needed distributions")
            if not (mean > _LEAST_SHARE).all():
                raise ValueError(
                    f"probability of class {int(mean.argmin())} is 0 in every row; leave the class out"
                )
            if self.sign is not None and not ((self.sign > 0).sum(axis=1) == 1).all():
                raise ValueError(
                    "sign has rows without a single +1; needed +1 for a basis' own class and -1 for "
                    "the others"
                )

    @property
    def n_scores(self) -> int:
        """Latent values of a row: 1, or the number of classes."""
        return self.likelihood.n_scores

    @cached_property
    def free(self) -> Mask:
        """Which weights are not fixed at zero, shape (n_basis, n_scores)."""
        if self.n_scores > 1 and self.sign is not None:
            return self.sign < 0
        free = np.ones((self.Phi.shape[1], self.n_scores), dtype=bool)
        free[:, 0] = self.n_scores == 1
        return free

    def allows(self, step: Array) -> Mask:
        """Return whether zero weights may move by `step`, shape (n_basis, n_scores)."""
        return step != 0 if self.sign is None else step * self.sign.reshape(step.shape) > 0

    @cached_property
    def mass(self) -> Array:
        """Relative weight of each row, sums to 1."""
        if self.row_weight is None:
            return np.full(len(self.Phi), 1.0 / len(self.Phi))
        return self.row_weight / self.row_weight.sum()

    @cached_property
    def penalty(self) -> Array:
        """Curvature of the ridge in each weight, shape (n_basis,); zero for columns of zeros."""
        return self.ridge * self.squared_columns(self.mass)

    @cached_property
    def entropy(self) -> float:
        """Mean entropy of the reference's labels, nats per row."""
        p = self.probability
        if self.n_scores == 1:
            return float(self.mass @ (entr(p) + entr(1 - p)))
        return float(self.mass @ entr(p).sum(axis=1))

    def squared_columns(self, row_weight: Array) -> Array:
        """Return sum_i row_weight_i Phi_ij^2, shape (n_basis,), without a copy of Phi."""
        return np.einsum("i,ij,ij->j", row_weight, self.Phi, self.Phi)

    def terms(self, latent: Array) -> FractionalTerms:
        """Return what `row_terms` has of the rows at a latent function."""
        return row_terms(self.likelihood, latent, self.probability)

    def divergence(self, latent: Array) -> float:
        """Return the mean Kullback-Leibler divergence from reference to `latent`, nats per row.

        `latent` has shape (n_obs,), or (n_obs, n_classes).
        """
        return self.divergence_of(self.terms(latent))

    def divergence_of(self, terms: FractionalTerms) -> float:
        """Return the mean divergence where the rows' terms are known."""
        return -float(self.mass @ terms.log_density) - self.entropy


def row_terms(likelihood: Likelihood, latent: Array, probability: Array) -> FractionalTerms:
    """Return the expected log density of each row's label, and its derivatives in the latent values.

    The expectation is over labels drawn from the reference. Its curvature is exact for probit and multinomial
    probit. Other likelihoods need not be concave: they get Fisher's information, which is never
    negative and equal to the curvature where ``p = P(+1 | f)``.

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
        Minus the second derivatives.
    """
    if likelihood.n_scores > 1:
        return fractional_terms(latent, probability)
    up, p, q = np.ones(len(latent)), probability, 1 - probability
    log_density = p * likelihood.log_density(latent, up) + q * likelihood.log_density(latent, -up)
    if isinstance(likelihood, Probit):  # phi / Phi computed once for slope and curvature
        above, below = inverse_mills(latent), -inverse_mills(-latent)
        bend = p * np.clip(above * (above + latent), 0.0, 1.0)
        bend += q * np.clip(below * (below + latent), 0.0, 1.0)
    else:
        above, below = likelihood.score(latent, up), likelihood.score(latent, -up)
        own = likelihood.probability(latent)
        bend = own * above**2 + (1 - own) * below**2
    return FractionalTerms(log_density, (p * above + q * below)[:, None], bend[:, None, None])
