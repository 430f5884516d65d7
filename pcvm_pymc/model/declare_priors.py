"""Weights and bias as variables of a PyMC model, by the kind of prior."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import Laplace, SharedHyperprior
from pcvm_pymc.model.distributions import (
    FreeWeight,
    MarginalBias,
    MarginalWeight,
    SharedWeight,
)
from pcvm_pymc.model.names import Names

type Values = dict[str, Any]


class Form(NamedTuple):
    """Names and dimensions of weights (unconstrained, or sizes of signed ones) and bias."""

    free: bool
    name: str
    dims: tuple[str, ...]
    bias_dims: tuple[str, ...] | None
    names: Names


def declare_prior(
    prior: Any, precision: str, bias: str, names: Names, *, free: bool, n_scores: int
) -> tuple[TensorVariable, TensorVariable | None]:
    """Declare weights (or their sizes) and bias; the bias is None where there is none.

    `n_scores` is zero where weights have no dimension of classes. The hyperprior's numbers are data, and d
    unknown where it is learned; where scores share a precision, their number is recorded too, for results.
    """
    scores = ("class",) if n_scores else ()
    dims = names.dims("basis", *scores), names.dims(*scores) or None
    form = Form(free, names("weight" if free else "magnitude"), *dims, names)
    numbers = {name: value for name, value in asdict(prior).items() if value is not None}
    if isinstance(prior, SharedHyperprior):
        numbers["n_scores"] = n_scores
    pm.modelcontext(None).add_coords(names.coords({"hyperparameter": list(numbers)}))
    values = np.array(list(numbers.values()))
    data = pm.Data(names("hyperprior"), values, dims=names.dims("hyperparameter"))
    # a rate of zero as a constant, by which the distributions know that they are improper
    value = {
        name: pt.constant(np.float64(0.0)) if name in "df" and number == 0 else data[i]
        for i, (name, number) in enumerate(numbers.items())
    }
    if prior.rate_shape is not None:
        shape = value["rate_shape"]
        value["d"] = pm.Gamma(names("rate"), alpha=shape, beta=shape / value["d"])
    weights, biases = DECLARED_PRIORS[prior.name, precision]
    weight = weights(value | {"n_scores": n_scores} if "n_scores" in value else value, form)
    if bias == "free":
        return weight, pm.Flat(names("bias"), dims=form.bias_dims)
    return weight, None if bias == "none" else biases(value, form)


def _student_weights(value: Values, form: Form) -> TensorVariable:
    """Declare weights whose Gamma precisions are integrated out (chen2009 eq. 21)."""
    if "n_scores" in value:
        return SharedWeight(form.name, value["c"], value["d"], value["n_scores"], dims=form.dims)
    kind = FreeWeight if form.free else MarginalWeight
    return kind(form.name, value["c"], value["d"], dims=form.dims)


def _student_bias(value: Values, form: Form) -> TensorVariable:
    """Declare a bias whose Gamma precision is integrated out (chen2009 eq. 22)."""
    return MarginalBias(form.names("bias"), value["e"], value["f"], dims=form.bias_dims)


def _normal_weights(value: Values, form: Form) -> TensorVariable:
    """Declare weights with their Gamma precisions (chen2009 eq. 4)."""
    shared = "n_scores" in value
    dims = form.dims[:1] if shared else form.dims
    precision = pm.Gamma(form.names("precision"), alpha=value["c"], beta=value["d"], dims=dims)
    sigma = 1 / pt.sqrt(precision)
    sigma = sigma[:, None] if shared else sigma
    if form.free:
        return pm.Normal(form.name, mu=0.0, sigma=sigma, dims=form.dims)
    return pm.HalfNormal(form.name, sigma=sigma, dims=form.dims)


def _normal_bias(value: Values, form: Form) -> TensorVariable:
    """Declare the bias with its Gamma precision."""
    names, dims = form.names, form.bias_dims
    precision = pm.Gamma(names("bias_precision"), alpha=value["e"], beta=value["f"], dims=dims)
    return pm.Normal(names("bias"), mu=0.0, sigma=1 / pt.sqrt(precision), dims=dims)


def _horseshoe_weights(value: Values, form: Form) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    names = form.names
    shared = pm.HalfCauchy(names("global_scale"), beta=value["global_scale"])
    local = pm.HalfCauchy(names("local_scale"), beta=1.0, dims=form.dims)
    unit = pm.HalfNormal(names("unit_magnitude"), sigma=1.0, dims=form.dims)
    wide = shared * local
    size = unit * wide / pt.sqrt(1.0 + pt.sqr(wide / value["slab"]))
    return pm.Deterministic(form.name, size, dims=form.dims)


def _laplace_weights(value: Values, form: Form) -> TensorVariable:
    """Declare weights whose exponential variances are integrated out (Figueiredo & Jain eq. 10)."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    if form.free:
        return pm.Laplace(form.name, mu=0.0, b=scale, dims=form.dims)
    return pm.Exponential(form.name, scale=scale, dims=form.dims)


def _laplace_bias(value: Values, form: Form) -> TensorVariable:
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
