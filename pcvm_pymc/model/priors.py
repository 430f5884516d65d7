"""Priors of weights and bias: declared as variables of a model, and recognised by their operations."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfCauchyRV
from pytensor.graph.basic import Variable
from pytensor.tensor.random import basic as random
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior, Laplace, Prior, SharedHyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model import distributions as ours
from pcvm_pymc.model import graphs
from pcvm_pymc.model.names import Names

type Values = dict[str, Any]
type Dims = tuple[str, ...] | None

#: the end of a refusal
NUTS = "or sample by NUTS, which takes any model"
_STUDENT = (ours.MarginalWeightRV, ours.FreeWeightRV, ours.MarginalBiasRV)
_SIZES = (ours.MarginalWeightRV, random.ExponentialRV, random.HalfNormalRV)

# --- declared -----------------------------------------------------------------------------------


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
    names.add_dims(hyperparameter=list(numbers))
    data = names.data("hyperprior", np.array(list(numbers.values())), "hyperparameter")
    # a rate of zero as a constant, by which the distributions know that they are improper
    value = {
        name: pt.constant(np.float64(0.0)) if name in "df" and number == 0 else data[i]
        for i, (name, number) in enumerate(numbers.items())
    }
    if "rate_shape" in value:
        shape = value["rate_shape"]
        value["d"] = pm.Gamma(names("rate"), alpha=shape, beta=shape / value["d"])
    elif "rate_spread" in value:
        value["d"] = pm.LogNormal(names("rate"), pt.log(value["d"]), value["rate_spread"])
    if "n_scores" in value:
        value["n_scores"] = n_scores
    declare = DECLARED_PRIORS[prior.name, precision]
    weight = declare(value, "weight" if free else "magnitude", names.dims("basis", *scores), names)
    dims = names.dims(*scores) or None
    if bias == "free":
        return weight, pm.Flat(names("bias"), dims=dims)
    return weight, None if bias == "none" else declare(value, "bias", dims, names)


def _student(value: Values, kind: str, dims: Dims, names: Names) -> TensorVariable:
    """Declare a variable whose Gamma precisions are integrated out (chen2009 eqs. 21-22)."""
    if kind == "bias":
        return ours.MarginalBias(names(kind), value["e"], value["f"], dims=dims)
    given = [value[name] for name in ("c", "d", "n_scores") if name in value]
    of_kind = ours.FreeWeight if kind == "weight" else ours.MarginalWeight
    return (ours.SharedWeight if "n_scores" in value else of_kind)(names(kind), *given, dims=dims)


def _normal(value: Values, kind: str, dims: Dims, names: Names) -> TensorVariable:
    """Declare a variable with its Gamma precisions (chen2009 eq. 4)."""
    name, shape, rate = "precision", value["c"], value["d"]
    if kind == "bias":
        name, shape, rate = "bias_precision", value["e"], value["f"]
    shared = "n_scores" in value and kind != "bias"
    of_precision = dims[:1] if shared and dims else dims
    sigma = 1 / pt.sqrt(pm.Gamma(names(name), alpha=shape, beta=rate, dims=of_precision))
    sigma = sigma[:, None] if shared else sigma
    if kind == "magnitude":
        return pm.HalfNormal(names(kind), sigma=sigma, dims=dims)
    return pm.Normal(names(kind), mu=0.0, sigma=sigma, dims=dims)


def _horseshoe(value: Values, kind: str, dims: Dims, names: Names) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    if kind == "bias":
        return _student(value, kind, dims, names)
    shared = pm.HalfCauchy(names("global_scale"), beta=value["global_scale"])
    local = pm.HalfCauchy(names("local_scale"), beta=1.0, dims=dims)
    unit = pm.HalfNormal(names("unit_magnitude"), sigma=1.0, dims=dims)
    wide = shared * local
    size = unit * wide / pt.sqrt(1.0 + pt.sqr(wide / value["slab"]))
    return pm.Deterministic(names(kind), size, dims=dims)


def _laplace(value: Values, kind: str, dims: Dims, names: Names) -> TensorVariable:
    """Declare a variable whose exponential variances are integrated out (Figueiredo & Jain eq. 10)."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    if kind == "magnitude":
        return pm.Exponential(names(kind), scale=scale, dims=dims)
    return pm.Laplace(names(kind), mu=0.0, b=scale, dims=dims)


#: by the name of the piece and whether precisions are integrated out: what declares weights, and bias
DECLARED_PRIORS: dict[tuple[str, str], Callable[[Values, str, Dims, Names], TensorVariable]] = {
    ("gamma", "marginal"): _student,
    ("gamma", "joint"): _normal,
    ("shared gamma", "marginal"): _student,
    ("shared gamma", "joint"): _normal,
    (Laplace.name, "marginal"): _laplace,
    ("half-horseshoe", "marginal"): _horseshoe,
}

# --- recognised ---------------------------------------------------------------------------------


def weight_prior(weight: Variable, sign: Array | None) -> tuple[Any, Array | None, dict[str, Any]]:
    """Recognise the prior of weights, or of their sizes, by the operation of their variable.

    Returns
    -------
    prior : Prior
        With e and f of a flat bias: those of a weight, c and d.
    sign : ndarray or None
        The same; ones where sizes are without signs, weights that are all positive.
    variables : dict of str to TensorVariable, or tuple of them
        ``rate`` (an unknown d), ``precisions``, and ``scales`` of a half-horseshoe.

    Raises
    ------
    NotOfFamilyError
        If it is none of the family's, or weights under it are unconstrained, and times signs.
    """
    op, parts = type(weight.owner.op), dict[str, Any]()
    prior: Prior | None = None
    if not graphs.is_random(weight):
        prior, parts["scales"] = _half_horseshoe(weight)
    elif op in (*_STUDENT, ours.SharedWeightRV):
        c, d, *_ = _params(weight)
        prior, parts["rate"] = _gamma(op is ours.SharedWeightRV, graphs.number(c, "c"), d)
    elif op in (random.LaplaceRV, random.ExponentialRV):
        prior = Laplace(_penalty(weight))
    elif op in (random.NormalRV, random.HalfNormalRV) and (explicit := _precision(weight)):
        precision, c, d = explicit
        parts["precisions"] = (precision,)
        prior, parts["rate"] = _gamma(precision.type.ndim < weight.type.ndim, c, d)
    if prior is None:
        laws = graphs.described(*graphs.random_parts(weight))
        raise graphs.NotOfFamilyError(
            f"weights made of {laws} have no prior of the family; needed MarginalWeight, FreeWeight, "
            f"pm.Laplace or another that the builders declare, {NUTS}"
        )
    positive = op in _SIZES or "scales" in parts
    if sign is not None and not positive:
        raise graphs.NotOfFamilyError(
            f"{weight.name!r} times signs is unconstrained; needed MarginalWeight, {NUTS}"
        )
    if sign is None and positive:
        sign = np.ones(graphs.shape_of(weight))
    return prior, sign, parts


def _params(variable: Variable) -> tuple[Variable, ...]:
    return tuple(variable.owner.op.dist_params(variable.owner))


def _tidy(value: float, is_exact: Callable[[float], bool]) -> float:
    """Return a number rounded to fifteen digits where `is_exact` is true of it, else as it is."""
    short = float(f"{value:.15g}")
    return short if is_exact(short) else value


def _gamma(shared: bool, c: float, d: Variable | float) -> tuple[Hyperprior, Variable | None]:
    """Return a Gamma prior of given c, and its d where that is a variable, Gamma or log-normal."""
    kind = SharedHyperprior if shared else Hyperprior
    unknown = [] if isinstance(d, float) else graphs.random_parts(d)
    if not unknown:
        rate = d if isinstance(d, float) else graphs.number(d, "d")
        return kind(c, rate, c, rate), None
    op = unknown[0].owner.op
    if graphs.peeled(d) is not unknown[0] or not isinstance(
        op, random.GammaRV | random.LogNormalRV
    ):
        names = [x.name for x in unknown]
        needed = f"a number, or a Gamma or log-normal variable, {NUTS}"
        raise graphs.NotOfFamilyError(f"d depends on {names}; needed {needed}")
    shape, scale = (graphs.number(x, "the rate's prior") for x in _params(unknown[0]))
    if isinstance(op, random.LogNormalRV):
        rate = _tidy(np.exp(shape), lambda x: np.log(x) == shape)
        return kind(c, rate, c, rate, rate_spread=scale), unknown[0]
    rate = _tidy(shape * scale, lambda x: 1.0 / (shape / x) == scale)
    return kind(c, rate, c, rate, shape), unknown[0]


def _penalty(variable: Variable) -> float:
    """Return gamma of a Laplace or exponential density, ``scale = 1 / sqrt(gamma)``."""
    *place, spread = _params(variable)
    if any(graphs.number(x, "mu") != 0 for x in place):
        raise graphs.NotOfFamilyError(
            f"{variable.name!r} is not centred at zero; needed mu=0, {NUTS}"
        )
    scale = graphs.number(spread, "the Laplace scale")
    return _tidy(scale**-2.0, lambda x: 1.0 / np.sqrt(x) == scale)


def _precision(variable: Variable) -> tuple[Variable, float, Variable | float] | None:
    """Return the Gamma precision of a normal variable centred at zero, its shape and its rate."""
    place, sigma = _params(variable)
    unknown = graphs.random_parts(sigma)
    if len(unknown) != 1 or not isinstance(unknown[0].owner.op, random.GammaRV):
        return None
    fours = {unknown[0]: np.full(graphs.shape_of(unknown[0]), 4.0)}
    centred = not graphs.random_parts(place) and graphs.number(place, "mu") == 0
    if not (centred and (graphs.numbers(sigma, fours) == 0.5).all()):
        return None
    shape, scale = _params(unknown[0])
    if graphs.random_parts(scale):  # the reciprocal of a rate that is learned
        return unknown[0], graphs.number(shape, "c"), graphs.peeled(scale).owner.inputs[0]
    value = graphs.number(scale, "d")
    return unknown[0], graphs.number(shape, "c"), _tidy(1.0 / value, lambda x: 1.0 / x == value)


_ROLES = {
    (random.HalfNormalRV, True): "unit",
    (HalfCauchyRV, True): "local",
    (HalfCauchyRV, False): "shared",
}


def _half_horseshoe(size: Variable) -> tuple[HalfHorseshoe | None, tuple[Variable, ...]]:
    """Recognise a half-horseshoe: sizes that are its function of a half-normal and two half-Cauchys."""
    parts = graphs.random_parts(size)
    role = {_ROLES.get((type(x.owner.op), x.type.ndim > 0), ""): x for x in parts}
    if len(parts) != 3 or role.keys() != set(_ROLES.values()):
        return None, ()
    scale = {name: graphs.number(_params(x)[-1], name) for name, x in role.items()}

    def at(**values: float) -> float:
        given = {role[name]: np.full(graphs.shape_of(role[name]), x) for name, x in values.items()}
        return float(graphs.numbers(size, given).flat[0])

    near, far = at(unit=1.0, local=1.0, shared=1.0), at(unit=2.0, local=3.0, shared=0.7)
    if not 0 < near < 1 or scale["unit"] != 1 or scale["local"] != 1:
        return None, ()
    slab = _tidy((near**-2.0 - 1.0) ** -0.5, lambda x: abs((1.0 + x**-2.0) ** -0.5 - near) < 1e-13)
    if not np.isclose(far, 4.2 / np.sqrt(1.0 + (2.1 / slab) ** 2), rtol=1e-9):
        return None, ()
    return HalfHorseshoe(scale["shared"], slab, 0.5, 0.5), tuple(parts)


def with_bias(
    prior: Any, bias: Variable | None
) -> tuple[Prior, Literal["prior", "free", "none"], tuple[Variable, ...]]:
    """Recognise the prior of the bias: the prior with e and f, the kind, and an explicit precision."""
    if bias is None:
        return prior, "none", ()
    op, fault = type(bias.owner.op), f"the bias is {graphs.described(bias)}"
    if op is FlatRV:
        return prior, "free", ()
    if isinstance(prior, Laplace):
        if op is random.LaplaceRV and _penalty(bias) == prior.gamma:
            return prior, "prior", ()
        raise graphs.NotOfFamilyError(f"{fault}; needed the weights' Laplace or pm.Flat, {NUTS}")
    if op in _STUDENT[1:]:
        e, f = (graphs.number(x, "the bias' prior") for x in _params(bias))
        return replace(prior, e=e, f=f), "prior", ()
    explicit = _precision(bias) if op is random.NormalRV else None
    if explicit is None:
        raise graphs.NotOfFamilyError(f"{fault}; needed MarginalBias, pm.Flat or none, {NUTS}")
    precision, e, rate = explicit
    f = rate if isinstance(rate, float) else graphs.number(rate, "f")
    return replace(prior, e=e, f=f), "prior", (precision,)
