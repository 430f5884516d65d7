"""Values of a model's variables, natural and transformed for sampling."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pcvm_pymc.model import graphs


class Value:
    """The map between a variable's natural value and its transformed one.

    Parameters
    ----------
    model : pm.Model
    variable : TensorVariable

    Attributes
    ----------
    name : str
        Of the value variable.
    transform : Transform or None
    needs : list of str
        Names of the variables whose values the transform takes, as of free weights an unknown d.
    """

    def __init__(self, model: pm.Model, variable: Variable) -> None:
        value, self.transform = model.rvs_to_values[variable], model.rvs_to_transforms[variable]
        self.name, self._dtype, self.needs = value.name, value.dtype, list[str]()
        if self.transform is not None:
            at, inputs = variable.type(), variable.owner.inputs
            ways = self.transform.forward(at, *inputs), self.transform.backward(at, *inputs)
            unknown = graphs.random_parts(ways[0])
            self.needs = [str(rv.name) for rv in unknown]
            how: Any = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
            compiled = (pytensor.function([at, *unknown], way, **how) for way in ways)
            self._forward, self._backward = compiled

    def forward(self, natural: Any, known: Mapping[str, Any]) -> NDArray[Any]:
        """Return the transformed value, given others; the log of a size of zero is minus infinity."""
        if self.transform is not None:
            with np.errstate(divide="ignore"):
                natural = self._turned(self._forward, natural, known)
        return np.asarray(natural, dtype=self._dtype)

    def backward(self, value: Any, known: Mapping[str, Any]) -> NDArray[Any]:
        """Return the natural value of a transformed one, given other natural values."""
        if self.transform is not None:
            value = self._turned(self._backward, value, known)
        return np.asarray(value, dtype="float64")

    def _turned(self, way: Any, value: Any, known: Mapping[str, Any]) -> Any:
        return way(*(np.asarray(x, "float64") for x in (value, *(known[n] for n in self.needs))))
