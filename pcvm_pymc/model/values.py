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
        if self.transform is not None:
            at, inputs = variable.type(), variable.owner.inputs
            ways = self.transform.forward(at, *inputs), self.transform.backward(at, *inputs)
            self._forward, self._backward = (
                pytensor.function([at], each, mode="FAST_COMPILE") for each in ways
            )

    def forward(self, natural: Any) -> NDArray[Any]:
        """Return a value as samplers have it; of a size of zero the log is minus infinity."""
        if self.transform is not None:
            with np.errstate(divide="ignore"):
                natural = self._forward(np.asarray(natural, dtype="float64"))
        return np.asarray(natural, dtype=self._dtype)

    def backward(self, value: Any) -> NDArray[Any]:
        """Return a sampler's value as it is."""
        if self.transform is not None:
            value = self._backward(np.asarray(value, dtype="float64"))
        return np.asarray(value, dtype="float64")
