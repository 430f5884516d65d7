"""Priors of a model's weights and bias, recognised by the operations of their variables."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pymc.distributions.continuous import FlatRV, HalfCauchyRV, HalfStudentTRV
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import (
    ExponentialRV,
    GammaRV,
    HalfNormalRV,
    LaplaceRV,
    NormalRV,
)

from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior, Laplace, Prior, SharedHyperprior
from pcvm_pymc.model import distributions as ours
from pcvm_pymc.model import graphs

#: the end of a refusal
NUTS = "or sample by NUTS, which takes any model"
_STUDENT = (ours.MarginalWeightRV, ours.FreeWeightRV, ours.MarginalBiasRV)
_SIZES = (ours.MarginalWeightRV, HalfStudentTRV, ExponentialRV, HalfNormalRV)


@dataclass(frozen=True)
class WeightPrior:
    """The prior of a model's weights.

    Attributes
    ----------
    prior : Prior
        With e and f of a flat bias: those of a weight, c and d.
    positive : bool
        Whether it is that of sizes.
    rate : TensorVariable or None
        Where d is unknown.
    precisions, scales : tuple of TensorVariable
        Explicit precisions, scales of a half-horseshoe.
    """

    prior: Prior
    positive: bool
    rate: Variable | None = None
    precisions: tuple[Variable, ...] = ()
    scales: tuple[Variable, ...] = ()


def weight_prior(weight: Variable) -> WeightPrior:
    """Return the prior of weights, by their operation.

    Raises
    ------
    ValueError
        If it is none of the family's.
    """
    op, positive = type(weight.owner.op), isinstance(weight.owner.op, _SIZES)
    found = None
    if not graphs.is_random(weight):
        found = _half_horseshoe(weight)
    elif op in (*_STUDENT, ours.SharedWeightRV):
        c, d, *_ = _params(weight)
        kind = SharedHyperprior if op is ours.SharedWeightRV else Hyperprior
        found = _gamma(kind, graphs.number(c, "c"), d, positive)
    elif op in (LaplaceRV, ExponentialRV):
        found = WeightPrior(Laplace(_penalty(weight)), positive)
    elif op is HalfStudentTRV:  # PyMC's own; its constants have nine digits
        degrees, scale = _params(weight)
        if not graphs.random_parts(scale):
            c, sigma = graphs.number(degrees, "nu") / 2.0, graphs.number(scale, "sigma")
            d = _tidy(c * sigma**2, lambda x: np.sqrt(x / c) == sigma)
            found = WeightPrior(Hyperprior(c, d, c, d), positive)
    elif op in (NormalRV, HalfNormalRV):
        explicit = _precision(weight)
        if explicit is not None:
            precision, c, d = explicit
            shared = precision.type.ndim < weight.type.ndim
            found = _gamma(SharedHyperprior if shared else Hyperprior, c, d, positive)
            found = replace(found, precisions=(precision,))
    if found is None:
        what = "weights are transformed"
        if graphs.is_random(weight):
            what = f"{weight.name!r} is a {graphs.called(weight)}"
        raise ValueError(
            f"{what} in a way that is no prior of the family; needed MarginalWeight, FreeWeight, pm.Laplace "
            f"or another that the builders declare, times signs at most; {NUTS}"
        )
    return found


def _params(variable: Variable) -> tuple[Variable, ...]:
    return tuple(variable.owner.op.dist_params(variable.owner))


def _tidy(value: float, holds: Callable[[float], bool]) -> float:
    """Return the number of fifteen digits that a division or root was made of, where there is one."""
    short = float(f"{value:.15g}")
    return short if holds(short) else value


def _gamma(kind: type[Hyperprior], c: float, d: Variable | float, positive: bool) -> WeightPrior:
    """Return a Gamma prior of given c, its d a number or a Gamma variable."""
    unknown = [] if isinstance(d, float) else graphs.random_parts(d)
    if not unknown:
        rate = d if isinstance(d, float) else graphs.number(d, "d")
        return WeightPrior(kind(c, rate, c, rate), positive)
    if graphs.peeled(d) is not unknown[0] or not isinstance(unknown[0].owner.op, GammaRV):
        raise ValueError(
            f"d depends on {[x.name for x in unknown]}; needed a number or a Gamma variable, {NUTS}"
        )
    shape, scale = (graphs.number(x, "the rate's prior") for x in _params(unknown[0]))
    rate = _tidy(shape * scale, lambda x: 1.0 / (shape / x) == scale)
    return WeightPrior(kind(c, rate, c, rate, shape), positive, unknown[0])


def _penalty(variable: Variable) -> float:
    """Return gamma of a Laplace or exponential density, ``scale = 1 / sqrt(gamma)``."""
    *place, spread = _params(variable)
    if any(graphs.number(x, "mu") != 0 for x in place):
        raise ValueError(f"{variable.name!r} is not centred at zero; needed mu=0, {NUTS}")
    scale = graphs.number(spread, "the Laplace scale")
    return _tidy(scale**-2.0, lambda x: 1.0 / np.sqrt(x) == scale)


def _precision(variable: Variable) -> tuple[Variable, float, Variable | float] | None:
    """Return the Gamma precision of a normal variable centred at zero, its shape and its rate."""
    place, sigma = _params(variable)
    unknown = graphs.random_parts(sigma)
    if len(unknown) != 1 or not isinstance(unknown[0].owner.op, GammaRV):
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


def _half_horseshoe(size: Variable) -> WeightPrior | None:
    """Return the half-horseshoe where sizes are its function of a half-normal and two half-Cauchys."""
    kinds = {
        (HalfNormalRV, True): "unit",
        (HalfCauchyRV, True): "local",
        (HalfCauchyRV, False): "shared",
    }
    parts = graphs.random_parts(size)
    role = {kinds.get((type(x.owner.op), x.type.ndim > 0), ""): x for x in parts}
    if len(parts) != 3 or role.keys() != set(kinds.values()):
        return None
    scale = {name: graphs.number(_params(x)[-1], name) for name, x in role.items()}

    def at(**values: float) -> float:
        given = {role[name]: np.full(graphs.shape_of(role[name]), x) for name, x in values.items()}
        return float(graphs.numbers(size, given).flat[0])

    one, other = at(unit=1.0, local=1.0, shared=1.0), at(unit=2.0, local=3.0, shared=0.7)
    if not 0 < one < 1 or scale["unit"] != 1 or scale["local"] != 1:
        return None
    slab = _tidy((one**-2.0 - 1.0) ** -0.5, lambda x: abs((1.0 + x**-2.0) ** -0.5 - one) < 1e-13)
    if not np.isclose(other, 4.2 / np.sqrt(1.0 + (2.1 / slab) ** 2), rtol=1e-9):
        return None
    scales = role["unit"], role["shared"], role["local"]
    return WeightPrior(HalfHorseshoe(scale["shared"], slab, 0.5, 0.5), True, scales=scales)


def with_bias(
    prior: Any, bias: Variable | None
) -> tuple[Prior, Literal["prior", "free", "none"], tuple[Variable, ...]]:
    """Return the prior with the bias' numbers, the kind of the bias, and its explicit precision."""
    if bias is None:
        return prior, "none", ()
    op, needed = type(bias.owner.op), f"the bias {bias.name!r} is a {graphs.called(bias)}"
    if op is FlatRV:
        return prior, "free", ()
    if isinstance(prior, Laplace):
        if op is LaplaceRV and _penalty(bias) == prior.gamma:
            return prior, "prior", ()
        raise ValueError(
            f"{needed}; with Laplace weights needed the same Laplace or pm.Flat, {NUTS}"
        )
    if op in _STUDENT[1:]:
        e, f = (graphs.number(x, "the bias' prior") for x in _params(bias))
        return replace(prior, e=e, f=f), "prior", ()
    found = _precision(bias) if op is NormalRV else None
    if found is None:
        raise ValueError(f"{needed}; needed MarginalBias, pm.Flat or none, {NUTS}")
    precision, e, rate = found
    f = rate if isinstance(rate, float) else graphs.number(rate, "f")
    return replace(prior, e=e, f=f), "prior", (precision,)
