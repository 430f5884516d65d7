"""Priors of a model's weights and bias, recognised by the operations of their variables."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pytensor.tensor as pt
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
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model.distributions import (
    FreeWeightRV,
    MarginalBiasRV,
    MarginalWeightRV,
    SharedWeightRV,
)
from pcvm_pymc.model.graphs import (
    called,
    is_random,
    number,
    numbers,
    peeled,
    random_parts,
    shape_of,
)
from pcvm_pymc.model.improper import (
    ImproperBiasRV,
    ImproperFreeWeightRV,
    ImproperSharedWeightRV,
    ImproperWeightRV,
)

#: the end of a refusal
NUTS = "or sample by NUTS, which takes any model"


class WeightPrior(NamedTuple):
    """What the operation of the weights says: a prior, once the bias' e and f are known."""

    make: Callable[[float, float], Prior]
    with_flat_bias: tuple[float, float]
    positive: bool = False
    rate: Variable | None = None
    precisions: tuple[Variable, ...] = ()
    scales: tuple[Variable, ...] = ()


def weight_prior(weight: Variable) -> WeightPrior:
    """Return the prior of weights by their operation."""
    reader = _WEIGHTS.get(type(weight.owner.op), None if is_random(weight) else _half_horseshoe)
    if reader is not None:
        found = reader(weight)
        if found is not None:
            return found
    what = (
        f"{weight.name!r} is a {called(weight)}" if is_random(weight) else "weights are transformed"
    )
    raise ValueError(
        f"{what} in a way that is no prior of the family; needed MarginalWeight, FreeWeight, pm.Laplace or "
        f"another that the builders declare, times signs at most; {NUTS}"
    )


def _params(variable: Variable) -> tuple[Variable, ...]:
    return tuple(variable.owner.op.dist_params(variable.owner))


def _tidy(value: float, holds: Callable[[float], bool]) -> float:
    """Return the number of fifteen digits that a division or root was made of, where there is one."""
    short = float(f"{value:.15g}")
    return short if holds(short) else value


def _gamma(
    c: float,
    d: Variable,
    kind: type[Hyperprior] = Hyperprior,
    **extra: Any,
) -> WeightPrior:
    """Return a Gamma prior of given c, its d a number or a Gamma variable."""
    unknown = random_parts(d)
    if not unknown:
        rate, shape, variable = number(d, "d"), None, None
    elif peeled(d) is unknown[0] and isinstance(unknown[0].owner.op, GammaRV):
        variable = unknown[0]
        shape, scale = (number(x, "the rate's prior") for x in _params(variable))
        rate = _tidy(shape * scale, lambda x: 1.0 / (shape / x) == scale)
    else:
        raise ValueError(
            f"d depends on {[x.name for x in unknown]}; needed a number or a Gamma variable, {NUTS}"
        )
    return WeightPrior(lambda e, f: kind(c, rate, e, f, shape), (c, rate), rate=variable, **extra)


def _student(weight: Variable, **extra: Any) -> WeightPrior:
    c, d, *_ = _params(weight)
    return _gamma(number(c, "c"), d, **extra)


def _half_student(size: Variable) -> WeightPrior | None:
    """Return the Gamma prior that PyMC's own half-Student-t is; its constants have nine digits."""
    degrees, scale = _params(size)
    if random_parts(scale):
        return None
    c, sigma = number(degrees, "nu") / 2.0, number(scale, "sigma")
    d = _tidy(c * sigma**2, lambda x: np.sqrt(x / c) == sigma)
    return _gamma(c, pt.constant(d, dtype="float64"), positive=True)


def _scale_free(weight: Variable, kind: type[Hyperprior] = Hyperprior, **extra: Any) -> WeightPrior:
    c = number(_params(weight)[0], "c")
    return WeightPrior(lambda e, f: kind(c, 0.0, e, f), (c, 0.0), **extra)


def _laplace(weight: Variable) -> WeightPrior:
    gamma = _penalty(weight)
    positive = isinstance(weight.owner.op, ExponentialRV)
    return WeightPrior(lambda e, f: Laplace(gamma), (np.nan, np.nan), positive)


def _penalty(variable: Variable) -> float:
    """Return gamma of a Laplace or exponential density, ``scale = 1 / sqrt(gamma)``."""
    *place, spread = _params(variable)
    if any(number(x, "mu") != 0 for x in place):
        raise ValueError(f"{variable.name!r} is not centred at zero; needed mu=0, {NUTS}")
    scale = number(spread, "the Laplace scale")
    return _tidy(scale**-2.0, lambda x: 1.0 / np.sqrt(x) == scale)


def _normal_weights(weight: Variable) -> WeightPrior | None:
    """Return the prior of weights whose Gamma precisions are variables of the model."""
    found = _precision(weight)
    if found is None:
        return None
    precision, c, d = found
    shared = precision.type.ndim < weight.type.ndim
    return _gamma(
        c,
        d,
        SharedHyperprior if shared else Hyperprior,
        positive=isinstance(weight.owner.op, HalfNormalRV),
        precisions=(precision,),
    )


def _precision(variable: Variable) -> tuple[Variable, float, Variable] | None:
    """Return the Gamma precision of a normal variable centred at zero, its shape and its rate."""
    place, sigma = _params(variable)
    unknown = random_parts(sigma)
    if len(unknown) != 1 or not isinstance(unknown[0].owner.op, GammaRV):
        return None
    fours = {unknown[0]: np.full(shape_of(unknown[0]), 4.0)}
    if random_parts(place) or number(place, "mu") != 0 or not (numbers(sigma, fours) == 0.5).all():
        return None
    shape, scale = _params(unknown[0])
    inner = peeled(scale)
    if random_parts(scale):  # the reciprocal of a rate that is learned
        return unknown[0], number(shape, "c"), inner.owner.inputs[0]
    value = number(scale, "d")
    rate = _tidy(1.0 / value, lambda x: 1.0 / x == value)
    return unknown[0], number(shape, "c"), pt.constant(rate, dtype="float64")


def _half_horseshoe(size: Variable) -> WeightPrior | None:
    """Return the half-horseshoe where sizes are its function of a half-normal and two half-Cauchys."""
    parts = random_parts(size)
    unit = [x for x in parts if isinstance(x.owner.op, HalfNormalRV)]
    scales = sorted(
        (x for x in parts if isinstance(x.owner.op, HalfCauchyRV)), key=lambda x: x.type.ndim
    )
    if len(parts) != 3 or len(unit) != 1 or len(scales) != 2 or scales[0].type.ndim:
        return None

    def at(u: float, local: float, shared: float) -> Array:
        values = zip((unit[0], scales[1], scales[0]), (u, local, shared), strict=True)
        return numbers(size, {x: np.full(shape_of(x), value) for x, value in values})

    def formula(slab: float, u: float, wide: float) -> float:
        return u * wide / np.sqrt(1.0 + (wide / slab) ** 2)

    one = float(np.unique(at(1.0, 1.0, 1.0))[0])
    if not 0 < one < 1:
        return None
    slab = _tidy((one**-2.0 - 1.0) ** -0.5, lambda x: abs(formula(x, 1.0, 1.0) - one) < 1e-13)
    if not np.allclose(at(2.0, 3.0, 0.7), formula(slab, 2.0, 3.0 * 0.7), rtol=1e-9):
        return None
    if (
        number(_params(scales[1])[-1], "local scale") != 1
        or number(_params(unit[0])[-1], "unit") != 1
    ):
        return None
    width = number(_params(scales[0])[-1], "global scale")
    return WeightPrior(
        lambda e, f: HalfHorseshoe(width, slab, e, f),
        (0.5, 0.5),
        positive=True,
        scales=(unit[0], *scales),
    )


_WEIGHTS: dict[type, Callable[[Variable], WeightPrior | None]] = {
    MarginalWeightRV: partial(_student, positive=True),
    HalfStudentTRV: _half_student,
    FreeWeightRV: _student,
    MarginalBiasRV: _student,
    SharedWeightRV: partial(_student, kind=SharedHyperprior),
    ImproperWeightRV: partial(_scale_free, positive=True),
    ImproperFreeWeightRV: _scale_free,
    ImproperBiasRV: _scale_free,
    ImproperSharedWeightRV: partial(_scale_free, kind=SharedHyperprior),
    LaplaceRV: _laplace,
    ExponentialRV: _laplace,
    NormalRV: _normal_weights,
    HalfNormalRV: _normal_weights,
}


def with_bias(
    prior: WeightPrior, bias: Variable | None
) -> tuple[Prior, Literal["prior", "free", "none"], tuple[Variable, ...]]:
    """Return the prior with the bias' numbers, the kind of the bias, and its explicit precision."""
    plain = prior.make(*prior.with_flat_bias)
    if bias is None:
        return plain, "none", ()
    operation, needed = type(bias.owner.op), f"the bias {bias.name!r} is a {called(bias)}"
    if operation is FlatRV:
        return plain, "free", ()
    if isinstance(plain, Laplace):
        if operation is LaplaceRV and _penalty(bias) == plain.gamma:
            return plain, "prior", ()
        raise ValueError(
            f"{needed}; beside Laplace weights needed the same Laplace or pm.Flat, {NUTS}"
        )
    if operation in (MarginalBiasRV, FreeWeightRV):
        e, f = (number(x, "the bias' prior") for x in _params(bias))
        return prior.make(e, f), "prior", ()
    if operation in (ImproperBiasRV, ImproperFreeWeightRV):
        return prior.make(number(_params(bias)[0], "e"), 0.0), "prior", ()
    found = _precision(bias) if operation is NormalRV else None
    if found is None:
        raise ValueError(f"{needed}; needed MarginalBias, pm.Flat or none, {NUTS}")
    precision, e, f = found
    return prior.make(e, number(f, "f")), "prior", (precision,)
