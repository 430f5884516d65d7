"""The family in one table: each named system is a row, f = Phi(x; width) w + b with four choices."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["FAMILY", "System", "class_signs", "own_label"]


@dataclass(frozen=True)
class System:
    """One named system.

    Attributes
    ----------
    name : str
    likelihood : str
        Link of labels (or targets) to the latent function.
    weight_prior : str
    signs : callable or None
        Sign of each weight from the label (-1 or +1) of the row that the basis stands on, or of each
        weight of each class from its class and their number; None leaves the weights free.
    estimation : str
        The paper's own estimator.
    source : str
    other_likelihoods : tuple of str
        With which the same system is used as well.
    """

    name: str
    likelihood: str
    weight_prior: str
    signs: Callable[..., Array] | None
    estimation: str
    source: str
    other_likelihoods: tuple[str, ...] = ()

    @property
    def likelihoods(self) -> tuple[str, ...]:
        """All that the system is used with, its own first."""
        return (self.likelihood, *self.other_likelihoods)


def own_label(label: Array) -> Array:
    """Return the sign rule of the PCVM: a weight has the sign of its own row's label."""
    return label.copy()


def class_signs(label: NDArray[np.int64], n_classes: int) -> Array:
    """Return +1 for a row's own class and -1 for the others (Lyu et al. 2020 eq. 3).

    Parameters
    ----------
    label : ndarray of int, shape (n_basis,)
        Classes of the rows that the bases stand on.
    n_classes : int

    Returns
    -------
    ndarray, shape (n_basis, n_classes)
    """
    return np.where(np.asarray(label)[:, None] == np.arange(n_classes), 1.0, -1.0)


FAMILY = {
    "pcvm": System(
        name="PCVM",
        likelihood="probit",
        weight_prior="half-normal, Gamma(c, d) precision",
        signs=own_label,
        estimation="EM-MAP",
        source="Chen, Tino & Yao (2009)",
    ),
    "rvm_classification": System(
        name="RVM classification",
        likelihood="logit",
        weight_prior="normal, ARD precision",
        signs=None,
        estimation="type-II ML",
        source="Tipping (2001), Tipping & Faul (2003)",
        other_likelihoods=("probit",),
    ),
    "rvm_regression": System(
        name="RVM regression",
        likelihood="gaussian",
        weight_prior="normal, ARD precision",
        signs=None,
        estimation="type-II ML",
        source="Tipping (2001), Tipping & Faul (2003); RVM*: Rasmussen & Quinonero-Candela (2005)",
    ),
    "sparse_probit": System(
        name="sparse probit",
        likelihood="probit",
        weight_prior="normal, exponential or Jeffreys variance (or Gamma precision)",
        signs=None,
        estimation="EM-MAP",
        source="Figueiredo & Jain (2001)",
    ),
    "mpcvm_top_down": System(
        name="mPCVM1",
        likelihood="multinomial probit",
        weight_prior="half-normal, Gamma(c, d) precision, per class",
        signs=class_signs,
        estimation="EM-MAP, top-down",
        source="Lyu et al. (2020), Algorithm 1",
    ),
    "mpcvm_bottom_up": System(
        name="mPCVM2",
        likelihood="multinomial probit",
        weight_prior="half-normal, ARD precision per class",
        signs=class_signs,
        estimation="type-II ML, bottom-up",
        source="Lyu et al. (2020), Algorithm 2",
    ),
    "mrvm_bottom_up": System(
        name="mRVM1",
        likelihood="multinomial probit",
        weight_prior="normal, ARD precision shared by the classes",
        signs=None,
        estimation="type-II ML, bottom-up",
        source="Damoulas et al. (2008)",
    ),
    "mrvm_top_down": System(
        name="mRVM2",
        likelihood="multinomial probit",
        weight_prior="normal, Gamma precision per class",
        signs=None,
        estimation="EM-MAP, top-down",
        source="Psorakis et al. (2010)",
    ),
}
