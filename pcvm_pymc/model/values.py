"""Values of a model's variables: as they are, and as its samplers have them."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.basic import Variable


class Value:
    """A variable's value: as it is, and as the model's samplers have it.

    Parameters
    ----------
    model : pm.Model
    variable : TensorVariable

    Attributes
    ----------
    name : str
        Of the value variable.
    transform : Transform or None
    """

    def __init__(self, model: pm.Model, variable: Variable) -> None:
        value, self.transform = model.rvs_to_values[variable], model.rvs_to_transforms[variable]
        self.name, self._dtype = value.name, value.dtype
        self._ways: dict[str, Any] = {}
        if self.transform is not None:
            at, inputs = variable.type(), variable.owner.inputs
            for way in ("forward", "backward"):
                result = getattr(self.transform, way)(at, *inputs)
                self._ways[way] = pytensor.function([at], result, mode="FAST_COMPILE")

    def forward(self, natural: Any) -> NDArray[Any]:
        """Return a value as samplers have it; of a size of zero the log is minus infinity."""
        return self._turned("forward", natural, self._dtype)

    def backward(self, value: Any) -> NDArray[Any]:
        """Return a sampler's value as it is."""
        return self._turned("backward", value, "float64")

    def _turned(self, way: str, value: Any, dtype: str) -> NDArray[Any]:
        with np.errstate(divide="ignore"):
            if way in self._ways:
                value = self._ways[way](np.asarray(value, dtype="float64"))
        return np.asarray(value, dtype=dtype)
