"""The family in one table: each named system is a row, f = Phi(x; width) w + b with four choices."""

from collections.abc import Callable
from dataclasses import dataclass

from pcvm_pymc.core.probit import Array

__all__ = ["FAMILY", "System"]


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
        Sign of each weight from the label (-1 or +1) of the row that the basis stands on; None leaves the
        weights free.
    estimation : str
        The paper's own estimator.
    source : str
    other_likelihoods : tuple of str
        With which the same system is used as well.
    """

    name: str
    likelihood: str
    weight_prior: str
    signs: Callable[[Array], Array] | None
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
}
