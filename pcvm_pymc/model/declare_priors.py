"""Weights and bias as variables of a PyMC model, by the kind of prior."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import Laplace, SharedHyperprior
from pcvm_pymc.model.distributions import FreeWeight, MarginalBias, MarginalWeight, SharedWeight
from pcvm_pymc.model.names import Names

type Values = dict[str, Any]


class Form(NamedTuple):
    """A variable to declare: unconstrained weights, sizes of signed ones, or the bias."""

    kind: str  # "weight", "magnitude" or "bias"
    dims: tuple[str, ...] | None
    names: Names

    @property
    def name(self) -> str:
        """The full name of the variable."""
        return self.names(self.kind)


def declare_prior(
    prior: Any, precision: str, bias: str, names: Names, *, free: bool, n_scores: int
) -> tuple[TensorVariable, TensorVariable | None]:
    """Declare weights (or their sizes) and bias; the bias is None where there is none.

    `n_scores` is zero where weights have no dimension of classes. The hyperprior's numbers are data, and d
    unknown where it is learned; where scores share a precision, their number is recorded too, for results.
    """
    scores = ("class",) if n_scores else ()
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
    if "n_scores" in value:
        value["n_scores"] = n_scores
    declare = DECLARED_PRIORS[prior.name, precision]
    kind = "weight" if free else "magnitude"
    weight = declare(value, Form(kind, names.dims("basis", *scores), names))
    form = Form("bias", names.dims(*scores) or None, names)
    if bias == "free":
        return weight, pm.Flat(form.name, dims=form.dims)
    return weight, None if bias == "none" else declare(value, form)


def _student(value: Values, form: Form) -> TensorVariable:
    """Declare a variable whose Gamma precisions are integrated out (chen2009 eqs. 21-22)."""
    if form.kind == "bias":
        return MarginalBias(form.name, value["e"], value["f"], dims=form.dims)
    if "n_scores" in value:
        return SharedWeight(form.name, value["c"], value["d"], value["n_scores"], dims=form.dims)
    kind = FreeWeight if form.kind == "weight" else MarginalWeight
    return kind(form.name, value["c"], value["d"], dims=form.dims)


def _normal(value: Values, form: Form) -> TensorVariable:
    """Declare a variable with its Gamma precisions (chen2009 eq. 4)."""
    name, shape, rate = "precision", "c", "d"
    if form.kind == "bias":
        name, shape, rate = "bias_precision", "e", "f"
    shared = "n_scores" in value and form.kind != "bias"
    dims = form.dims[:1] if shared and form.dims else form.dims
    precision = pm.Gamma(form.names(name), alpha=value[shape], beta=value[rate], dims=dims)
    sigma = 1 / pt.sqrt(precision)
    sigma = sigma[:, None] if shared else sigma
    if form.kind == "magnitude":
        return pm.HalfNormal(form.name, sigma=sigma, dims=form.dims)
    return pm.Normal(form.name, mu=0.0, sigma=sigma, dims=form.dims)


def _horseshoe(value: Values, form: Form) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    if form.kind == "bias":
        return _student(value, form)
    names = form.names
    shared = pm.HalfCauchy(names("global_scale"), beta=value["global_scale"])
    local = pm.HalfCauchy(names("local_scale"), beta=1.0, dims=form.dims)
    unit = pm.HalfNormal(names("unit_magnitude"), sigma=1.0, dims=form.dims)
    wide = shared * local
    size = unit * wide / pt.sqrt(1.0 + pt.sqr(wide / value["slab"]))
    return pm.Deterministic(form.name, size, dims=form.dims)


def _laplace(value: Values, form: Form) -> TensorVariable:
    """Declare a variable whose exponential variances are integrated out (Figueiredo & Jain eq. 10)."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    if form.kind == "magnitude":
        return pm.Exponential(form.name, scale=scale, dims=form.dims)
    return pm.Laplace(form.name, mu=0.0, b=scale, dims=form.dims)


#: by the name of the piece and whether precisions are integrated out: what declares weights, and bias
DECLARED_PRIORS: dict[tuple[str, str], Callable[[Values, Form], TensorVariable]] = {
    ("gamma", "marginal"): _student,
    ("gamma", "joint"): _normal,
    ("shared gamma", "marginal"): _student,
    ("shared gamma", "joint"): _normal,
    (Laplace.name, "marginal"): _laplace,
    ("half-horseshoe", "marginal"): _horseshoe,
}
