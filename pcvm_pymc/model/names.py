"""Names of a latent function's variables and dims in a model, and `pm.Data` of the user in their place."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import normalize_rng_param
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.validation import shown
from pcvm_pymc.model.graphs import is_random, numbers, random_parts


@contextmanager
def adding_to(model: pm.Model) -> Iterator[pm.Model]:
    """Enter a model's block; undo all additions after an error."""
    chain = [model]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    every = [x for part in chain for x in (vars(part), *vars(part).values())]
    before = [(x, len(x)) for x in every if isinstance(x, list | dict)]
    try:
        with model:
            yield model
    except BaseException:
        for x, n in before:  # a model only grows
            while len(x) > n:
                x.popitem() if isinstance(x, dict) else x.pop()
        raise


def latent_functions(model: pm.Model) -> list[str]:
    """Return the names of the latent functions that builders have added to a model."""
    ends = [x.removesuffix("hyperprior") for x in model.named_vars if x.endswith("hyperprior")]
    return [prefix[:-1] or "latent" for prefix in ends]


def coordinates(model: pm.Model, dim: str) -> NDArray[Any]:
    """Return the coordinates of a model's dim; numbers from 0 where it has none."""
    known = model.coords[dim]
    return np.arange(int(numbers(model.dim_lengths[dim]))) if known is None else np.asarray(known)


@dataclass(frozen=True)
class Names:
    """Names of a latent function's variables and dims in a model.

    Attributes
    ----------
    model : pm.Model
    latent : str
        Name of the function. A name other than ``"latent"`` is, with an underscore, the prefix of
        all that belongs to it: ``f``, ``f_weight``, the dim ``f_basis``.
    obs : str
        The dim of the rows, which several functions share.
    given : dict of str to TensorSharedVariable
        The model's own `pm.Data` that were given, by what they are for.
    """

    model: pm.Model
    latent: str = "latent"
    obs: str = "obs"
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for argument, value in (("name", self.latent), ("dim", self.obs)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"{argument}={value!r}; needed a name, such as 'f'")

    def known(self, name: str) -> str:
        """Return the full name of a variable or dimension."""
        return name if self.latent == "latent" else f"{self.latent}_{name}"

    def __call__(self, name: str) -> str:
        """Return the full name of a new variable; raise where the model has it."""
        new = self.latent if name == "latent" else self.known(name)
        full = self.model.name_for(new)
        if self.model.named_vars.tree_contains(full) or full in self.model.coords:
            raise self._taken(f"{full!r} already")
        return new

    def _taken(self, found: str) -> ValueError:
        return ValueError(
            f"the model in this block has {found}; rename it there, or give a latent function another "
            "prefix, pcvm_latent(..., name='f'), and its rows another dim="
        )

    def values(self, name: str, given: Any) -> Any:
        """Return an argument as it is; of a `pm.Data` of the model, which is taken itself, its values.

        Raises
        ------
        ValueError
            For a variable that is no `pm.Data` of this model.
        """
        if not isinstance(given, Variable):
            return given
        if given not in self.model.root.data_vars or given.owner is not None:
            fault = f"{name.removesuffix('_std')} is the variable {given.name or given!s}"
            raise ValueError(f"{fault}, no pm.Data of the model; needed one, an array or a table")
        self.given[name] = given
        return given.get_value()[()]

    def dims(self, *dims: str) -> tuple[str, ...]:
        """Return the full names of dimensions."""
        return tuple(self.obs if dim == "obs" else self.known(dim) for dim in dims)

    def add_dims(self, **coords: Any) -> None:
        """Add dimensions with their coordinates to the model.

        One that the model has is taken with its own: rows of the same number, others with the same.

        Raises
        ------
        ValueError
            If the model's dim is another.
        """
        for name, values in coords.items():
            (dim,) = self.dims(name)
            if self.model.named_vars.tree_contains(dim):
                raise self._taken(f"a variable {dim!r}, which is the name of a dim here")
            known = coordinates(self.model, dim) if dim in self.model.coords else np.asarray(values)
            if len(known) != len(values) or not (name == "obs" or np.array_equal(known, values)):
                needed = f"{len(values)}, {shown(np.asarray(values))}"
                raise self._taken(f"a dim {dim!r} of {len(known)}, {shown(known)}; needed {needed}")
            if dim not in self.model.coords:
                self.model.add_coord(dim, values)

    def record(self, name: str, value: str) -> None:
        """Record a name as the coordinate of a dim, where `pm.sample` keeps it; it is constant."""
        self.add_dims(**{name: [value]})
        constant = pt.constant(np.ones(1), name=self(f"{name}_name"))
        self.model.register_data_var(constant, dims=self.dims(name))

    def data(self, name: str, values: Any, *dims: str) -> TensorVariable:
        """Declare data; a `pm.Data` of the model that was given is taken in its place.

        Raises
        ------
        ValueError
            If it has other values, such as labels that are not 0 and 1.
        """
        if name not in self.given:
            return pm.Data(self(name), values, dims=self.dims(*dims) or None)
        own = self.given[name]
        if not np.array_equal(own.get_value(), values):
            stored, needed = (shown(np.unique(array)[:5]) for array in (own.get_value(), values))
            what = f"{name} is the pm.Data {own.name!r} of the values {stored}"
            raise ValueError(f"{what}, taken as they are; needed {needed}, or its get_value()")
        self.model.add_coord(self.known(f"{name}_container"), [own.name])
        return own

    def container(self, name: str) -> str:
        """Return the name of a model's data, which may be a `pm.Data` of the user's own."""
        return str(self.model.coords.get(self.known(f"{name}_container"), [self.known(name)])[0])

    def variable(self, name: str, value: Any) -> TensorVariable:
        """Return a variable or expression of the model; a number becomes data, an unnamed prior a variable.

        It is a copy that does, with random numbers of its own: the prior may be given to other models.

        Raises
        ------
        ValueError
            If it has variables of another model.
        """
        if not isinstance(value, Variable):
            return self.data(name, float(value))
        is_prior = is_random(value) and value.name is None
        inner = value.owner.inputs if is_prior else [value]
        known = self.model.root.basic_RVs
        outside = [x.name for part in inner for x in random_parts(part) if x not in known]
        if outside:
            fault = f"{outside[0]!r} of another model" if outside[0] else "an unnamed prior"
            raise ValueError(
                f"{name} depends on {fault}; needed variables of this one, or a prior by itself"
            )
        if not is_prior:
            return value
        fresh = [normalize_rng_param(None) if isinstance(x.type, RandomType) else x for x in inner]
        copy = value.owner.clone_with_new_inputs(fresh).outputs[value.owner.outputs.index(value)]
        return self.model.register_rv(copy, self(name))
