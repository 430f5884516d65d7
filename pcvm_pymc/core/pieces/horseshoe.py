"""The regularised half-horseshoe on weights."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from pcvm_pymc.core.pieces.validation import check_real

__all__ = ["HalfHorseshoe"]


@dataclass(frozen=True)
class HalfHorseshoe:
    r"""Regularised half-horseshoe on the weights: a sparse prior whose posterior suits NUTS.

    .. math:: |w_i| \sim N^+(0, \tau^2 \tilde\lambda_i^2), \quad
       \tilde\lambda_i^2 = \frac{s^2 \lambda_i^2}{s^2 + \tau^2 \lambda_i^2}, \quad
       \lambda_i \sim C^+(0, 1), \quad \tau \sim C^+(0, \tau_0^2)

    with slab s, the signs as in the PCVM. It departs from the papers' Gamma precisions; the bias
    keeps Gamma(e, f). With tau held fixed instead of drawn, chains hardly move between sets of large
    weights.

    Parameters
    ----------
    global_scale : float
        tau_0, the scale of tau. See `default`.
    slab : float
        s, about the largest size that a weight takes.
    e, f : float
        Shape and rate of the bias' precision.

    Raises
    ------
    ValueError
        If a value is not positive and finite.

    References
    ----------
    J. Piironen and A. Vehtari (2017), "Sparsity information and regularization in the horseshoe
    and other shrinkage priors", Electronic Journal of Statistics 11(2), eq. 3.12 for the scale.

    Examples
    --------
    >>> HalfHorseshoe.default(100, 100).slab
    2.0
    """

    global_scale: float
    slab: float = 2.0
    e: float = 0.5
    f: float = 0.5
    name: ClassVar[str] = "half-horseshoe"
    has_mode: ClassVar[bool] = False
    rate_shape: ClassVar[None] = None

    def __post_init__(self) -> None:
        for name in ("global_scale", "slab", "e", "f"):
            check_real(name, getattr(self, name))

    @classmethod
    def default(cls, n_basis: int, n_obs: int, *, n_expected: int = 5) -> Self:
        """Return the prior at whose global scale about `n_expected` weights are large.

        The scale is ``n_expected / ((n_basis - n_expected) sqrt(n_obs))`` (Piironen & Vehtari 2017,
        eq. 3.12).

        Parameters
        ----------
        n_basis, n_obs : int
            Numbers of weights and of rows.
        n_expected : int
            At most half of the weights are taken for large.
        """
        few = min(n_expected, max(1, n_basis // 2))
        return cls(few / (max(n_basis - few, 1) * np.sqrt(n_obs)))

    @property
    def is_proper(self) -> bool:
        """Always true."""
        return True
