"""What a model observes, and whether it does so twice."""

from itertools import combinations

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pcvm_pymc.model.graphs import numbers


def counted_twice(model: pm.Model) -> tuple[str, str] | None:
    """Return two observed variables that have the same values given the same free variables, if there are.

    Parameters
    ----------
    model : pm.Model
    """
    if len(model.observed_RVs) < 2:
        return None
    free = set(model.free_RVs)
    known = [(rv, _values(model, rv), free & set(ancestors([rv]))) for rv in model.observed_RVs]
    for (one, values, given), (other, others, also_given) in combinations(known, 2):
        if given & also_given and values.size > 1 and np.array_equal(values, others):
            return str(one.name), str(other.name)
    return None


def _values(model: pm.Model, rv: Variable) -> np.ndarray:
    return numbers(model.rvs_to_values[rv]).astype(float)
