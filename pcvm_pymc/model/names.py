"""Names of a latent function's variables and dimensions, so that a model may have several."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pymc as pm

from pcvm_pymc.model.graphs import numbers

_OWN = "latent"


@dataclass(frozen=True)
class Names:
    """What a latent function's variables and dimensions are called.

    Attributes
    ----------
    latent : str
        Name of the function. A name other than ``"latent"`` is, with an underscore, the prefix of
        all that belongs to it: ``f``, ``f_weight``, the dim ``f_basis``.
    obs : str
        The dim of the rows, which several functions share.
    """

    latent: str = _OWN
    obs: str = "obs"

    def __post_init__(self) -> None:
        for argument, value in (("name", self.latent), ("dim", self.obs)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"{argument}={value!r}; needed a name, such as 'f'")

    def __call__(self, name: str) -> str:
        """Return the full name of a variable or dimension."""
        return name if self.latent == _OWN else f"{self.latent}_{name}"

    def dims(self, *dims: str) -> tuple[str, ...]:
        """Return the full names of dimensions."""
        return tuple(self.obs if each == "obs" else self(each) for each in dims)

    def coords(self, coords: Mapping[str, Any]) -> dict[str, Any]:
        """Return coordinates under the names of their dimensions."""
        return {self.dims(name)[0]: values for name, values in coords.items()}

    def add_rows(self, model: pm.Model, index: Any) -> None:
        """Add the dim of the rows to a model; an existing one must have the same length.

        Raises
        ------
        ValueError
            If the model's dim has another length.
        """
        if self.obs not in model.coords:
            model.add_coords({self.obs: index})
            return
        found = int(numbers(model.dim_lengths[self.obs]))
        if found != len(index):
            raise ValueError(
                f"X has {len(index)} rows, and the dim {self.obs!r} of the model in this block {found}; "
                "needed as many, or a dim of another name: pcvm_latent(..., dim=...)"
            )

    def check_free(self, model: pm.Model) -> None:
        """Raise where a model has a latent function of this name already."""
        taken = [each for each in (self.latent, self("hyperprior")) if each in model.named_vars]
        if taken:
            raise ValueError(
                f"the model in this block has {taken[0]!r} already; give a second latent function another "
                "name: pcvm_latent(..., name='second')"
            )
