"""Declaring priors: weights and bias as variables of a model, by the prior's piece."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import Laplace, Prior, SharedHyperprior
from pcvm_pymc.model.distributions import (
    FreeWeight,
    MarginalBias,
    MarginalWeight,
    SharedWeight,
)
from pcvm_pymc.model.names import Names

type Values = dict[str, TensorVariable]


@dataclass(frozen=True)
class Form:
    """Name and dimensions of the weights' variable: free weights, or the sizes of signed ones."""

    free: bool
    scores: tuple[str, ...]
    n_scores: int
    names: Names = field(default_factory=Names)

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.names("weight" if self.free else "magnitude")

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the weights."""
        return self.names.dims("basis", *self.scores)

    @property
    def bias_dims(self) -> tuple[str, ...] | None:
        """Dimensions of the bias."""
        return self.names.dims(*self.scores) or None


def declare_prior(
    prior: Prior, precision: str, form: Form, bias: str
) -> tuple[TensorVariable, TensorVariable | None]:
    """Declare weights (or their sizes) and bias; the bias is None where there is none."""
    weights, biases = DECLARED_PRIORS[prior.name, precision]
    value = _numbers(prior, form)
    weight = weights(prior, value, form)
    if bias == "free":
        return weight, pm.Flat(form.names("bias"), dims=form.bias_dims)
    return weight, None if bias == "none" else biases(prior, value, form)


def _numbers(prior: Any, form: Form) -> Values:
    """Declare the hyperprior's numbers as data, and d as unknown where it is learned; return each.

    Where scores share a precision, their number is recorded too, for results.
    """
    numbers = {name: value for name, value in asdict(prior).items() if value is not None}
    if isinstance(prior, SharedHyperprior):
        numbers["n_scores"] = form.n_scores
    names, values = form.names, np.array(list(numbers.values()))
    pm.modelcontext(None).add_coords(names.coords({"hyperparameter": list(numbers)}))
    data = pm.Data(names("hyperprior"), values, dims=names.dims("hyperparameter"))
    # a rate of zero as a constant, by which the distributions know that they are improper
    value = {
        name: pt.constant(np.float64(0.0)) if name in "df" and number == 0 else data[i]
        for i, (name, number) in enumerate(numbers.items())
    }
    if prior.rate_shape is not None:
        shape = value["rate_shape"]
        value["d"] = pm.Gamma(names("rate"), alpha=shape, beta=shape / value["d"])
    return value


def _student_weights(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare weights whose Gamma precisions are integrated out (chen2009 eq. 21)."""
    if isinstance(prior, SharedHyperprior):
        return SharedWeight(form.name, value["c"], value["d"], form.n_scores, dims=form.dims)
    kind = FreeWeight if form.free else MarginalWeight
    return kind(form.name, value["c"], value["d"], dims=form.dims)


def _student_bias(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare a bias whose Gamma precision is integrated out (chen2009 eq. 22)."""
    return MarginalBias(form.names("bias"), value["e"], value["f"], dims=form.bias_dims)


def _normal_weights(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare weights with their Gamma precisions (chen2009 eq. 4)."""
    shared = isinstance(prior, SharedHyperprior)
    dims = form.dims[:1] if shared else form.dims
    precision = pm.Gamma(form.names("precision"), alpha=value["c"], beta=value["d"], dims=dims)
    sigma = 1 / pt.sqrt(precision)
    sigma = sigma[:, None] if shared else sigma
    if form.free:
        return pm.Normal(form.name, mu=0.0, sigma=sigma, dims=form.dims)
    return pm.HalfNormal(form.name, sigma=sigma, dims=form.dims)


def _normal_bias(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare the bias with its Gamma precision."""
    names, dims = form.names, form.bias_dims
    precision = pm.Gamma(names("bias_precision"), alpha=value["e"], beta=value["f"], dims=dims)
    return pm.Normal(names("bias"), mu=0.0, sigma=1 / pt.sqrt(precision), dims=dims)


def _horseshoe_weights(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    names = form.names
    shared = pm.HalfCauchy(names("global_scale"), beta=value["global_scale"])
    local = pm.HalfCauchy(names("local_scale"), beta=1.0, dims=form.dims)
    unit = pm.HalfNormal(names("unit_magnitude"), sigma=1.0, dims=form.dims)
    wide = shared * local
    size = unit * wide / pt.sqrt(1.0 + pt.sqr(wide / value["slab"]))
    return pm.Deterministic(form.name, size, dims=form.dims)


def _laplace_weights(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare weights whose exponential variances are integrated out (Figueiredo & Jain eq. 10)."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    if form.free:
        return pm.Laplace(form.name, mu=0.0, b=scale, dims=form.dims)
    return pm.Exponential(form.name, scale=scale, dims=form.dims)


def _laplace_bias(prior: Any, value: Values, form: Form) -> TensorVariable:
    """Declare the bias under the prior of a weight."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    return pm.Laplace(form.names("bias"), mu=0.0, b=scale, dims=form.bias_dims)


#: by the name of the piece and whether precisions are integrated out: what declares weights, and bias
DECLARED_PRIORS: dict[tuple[str, str], tuple[Callable[..., Any], Callable[..., Any]]] = {
    ("gamma", "marginal"): (_student_weights, _student_bias),
    ("gamma", "joint"): (_normal_weights, _normal_bias),
    ("shared gamma", "marginal"): (_student_weights, _student_bias),
    ("shared gamma", "joint"): (_normal_weights, _normal_bias),
    (Laplace.name, "marginal"): (_laplace_weights, _laplace_bias),
    ("half-horseshoe", "marginal"): (_horseshoe_weights, _student_bias),
}
