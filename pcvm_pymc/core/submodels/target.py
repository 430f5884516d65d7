"""The reference that is to be approximated."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.multinomial import FractionalTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.submodels.fractional import row_terms

__all__ = ["Columns", "Mask", "Target"]

type Columns = NDArray[np.intp]
type Mask = NDArray[np.bool_]

_ROWS = 256  # rows squared at a time
_NEVER = 1e-15  # mean probability of a class below which there is nothing to tell it by


@dataclass(frozen=True)
class Target:
    """What is to be approximated, and by what.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions to choose from, at the rows where the divergence is measured.
    sign : ndarray, shape (n_basis,), or (n_basis, n_classes) for several classes, or None
        Sign of each weight, -1. or +1.; for several classes +1. for the own class of each basis alone. None
        leaves the weights free.
    probability : ndarray, shape (n_obs,), or (n_obs, n_classes)
        The reference's probability of label +1, or of each class.
    row_weight : ndarray, shape (n_obs,), optional
        Weight of each row in the divergence, at least 0; taken in proportion. Default: equal.
    ridge : float
        ``ridge / 2 * (w_j rms_j)^2`` is added for each weight, rms_j being the root mean square of its
        column: it keeps weights finite and unique where columns coincide or p is 0 or 1 to
        rounding. The bias is not penalised.
    likelihood : Likelihood
        Of the submodel's labels; `MultinomialProbit` for several classes.

    Notes
    -----
    Several classes: a constant added to all scores changes nothing. So the weight of each basis in its own
    class is held at zero and those in the others fall below it, which loses no submodel of the sign rule;
    the first bias is held at zero too. Free weights are held at zero in the first class.
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
        self._check_classes()

    def _check_classes(self) -> None:
        mean = self.mass @ self.probability
        if self.n_scores == 1:
            if not _NEVER < mean < 1 - _NEVER:
                raise ValueError(
                    "probability is 0 or 1 in every row: the reference knows one class only, and "
                    "there is nothing to project"
                )
            return
        if not np.allclose(self.probability.sum(axis=1), 1.0, atol=1e-6):
            raise ValueError("probability has rows that do not sum to 1; needed one of each class")
        if not (mean > _NEVER).all():
            raise ValueError(
                f"probability of class {int(mean.argmin())} is 0 in every row; leave the class out"
            )
        if self.sign is not None and not ((self.sign > 0).sum(axis=1) == 1).all():
            raise ValueError(
                "sign has rows without a single +1; needed +1 for a basis' own class and -1 for the others"
            )

    @property
    def n_scores(self) -> int:
        """Latent values of a row: 1, or the number of classes."""
        return self.likelihood.n_scores

    @cached_property
    def free(self) -> Mask:
        """Which weights are not held at zero, shape (n_basis, n_scores)."""
        if self.n_scores > 1 and self.sign is not None:
            return self.sign < 0
        free = np.ones((self.Phi.shape[1], self.n_scores), dtype=bool)
        free[:, 0] = self.n_scores == 1
        return free

    def allows(self, step: Array, columns: Columns | slice = slice(None)) -> Mask:
        """Return whether weights of some columns may go from zero by steps, which have their shape."""
        return step != 0 if self.sign is None else step * self.sign[columns] > 0

    @cached_property
    def mass(self) -> Array:
        """Share of each row, sums to 1."""
        if self.row_weight is None:
            return np.full(len(self.Phi), 1.0 / len(self.Phi))
        return self.row_weight / self.row_weight.sum()

    @cached_property
    def penalty(self) -> Array:
        """Curvature of the ridge in each weight, shape (n_basis,); columns of zeros have none."""
        return self.ridge * self.squared_columns(self.mass)

    @cached_property
    def entropy(self) -> float:
        """Mean entropy of the reference's labels: what no model can fall below, nats per row."""
        if self.n_scores > 1:
            return float(self.mass @ entr(self.probability).sum(axis=1))
        return float(self.mass @ (entr(self.probability) + entr(1 - self.probability)))

    def squared_columns(self, row_weight: Array) -> Array:
        """Return sum_i row_weight_i Phi_ij^2, shape (n_basis,), without a copy of Phi."""
        total = np.zeros(self.Phi.shape[1])
        for start in range(0, len(self.Phi), _ROWS):
            rows = slice(start, start + _ROWS)
            total += row_weight[rows] @ np.square(self.Phi[rows])
        return total

    def divergence(self, latent: Array) -> float:
        """Return the mean Kullback-Leibler divergence from reference to `latent`, nats per row.

        `latent` has shape (n_obs,), or (n_obs, n_classes).
        """
        return self.divergence_of(self.terms(latent))

    def terms(self, latent: Array) -> FractionalTerms:
        """Return what the rows say at a latent function, see `row_terms`."""
        return row_terms(self.likelihood, latent, self.probability)

    def divergence_of(self, terms: FractionalTerms) -> float:
        """Return the mean divergence where the rows' terms are known."""
        return -float(self.mass @ terms.log_density) - self.entropy
