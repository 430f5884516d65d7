"""Likelihoods as variables of a model: what is observed, and the unknown parameters with it.

A new one is one entry in `DECLARED_LIKELIHOODS`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.priors import typical_size
from pcvm_pymc.model.bases import variable_of
from pcvm_pymc.model.distributions import ProbitBernoulli, ndtr
from pcvm_pymc.model.multinomial import MultinomialProbit
from pcvm_pymc.model.weighted import WeightedNormal, WeightedStudentT

type Value = float | TensorVariable | None  # of a likelihood's parameter; None where it is unknown


def _label_noise(latent: TensorVariable, y: TensorVariable, *, flip: Value = 0.05) -> None:
    """Declare labels that are flipped with probability ``flip``, a number or a prior."""
    flip = _parameter("flip", flip)
    p = flip + (np.float64(1.0) - np.float64(2.0) * flip) * ndtr(latent)
    pm.Bernoulli("label", p=p, observed=y, dims="obs")


def _normal_probability(latent: TensorVariable, y: TensorVariable, *, noise: Value = 0.5) -> None:
    """Declare labels as numbers, normal around their probability."""
    pm.Normal("label", mu=ndtr(latent), sigma=_noise(y, noise, None), observed=y, dims="obs")


def _normal(
    latent: TensorVariable,
    y: TensorVariable,
    *,
    noise: Value = None,
    sample_weight: Any = None,
    noise_std: Any = None,
) -> None:
    """Declare targets, and their standard deviation, which is half-normal unless it is given."""
    sigma = _noise(y, noise, sample_weight) if noise_std is None else noise_std
    _declare_target(pm.Normal, WeightedNormal, y, sample_weight, mu=latent, sigma=sigma)


def _student_t(
    latent: TensorVariable,
    y: TensorVariable,
    *,
    noise: Value = None,
    degrees: Value = 4.0,
    sample_weight: Any = None,
) -> None:
    """Declare targets with outliers; the degrees of freedom may have a prior, called ``degrees``."""
    sigma, nu = _noise(y, noise, sample_weight), _parameter("degrees", degrees)
    named = {"nu": nu, "mu": latent, "sigma": sigma}
    _declare_target(pm.StudentT, WeightedStudentT, y, sample_weight, **named)


def _declare_target(once: Any, weighted: Any, y: Any, weight: Any, **parameters: Any) -> None:
    """Declare targets in rows that count once, or by weights."""
    if weight is None:
        once("target", **parameters, observed=y, dims="obs")
    else:
        weighted("target", **parameters, weight=weight, observed=y, dims="obs")


def _noise(y: TensorVariable, noise: Value, sample_weight: Any) -> TensorVariable:
    """Declare the scale of targets, which is half-normal unless it is given."""
    if noise is None:
        weight = None if sample_weight is None else sample_weight.get_value()
        return pm.HalfNormal("noise", sigma=typical_size(y.get_value(), weight))
    return _parameter("noise", noise)


def _parameter(name: str, value: Any) -> TensorVariable:
    """Declare a parameter of the likelihood: a number as data, a prior as a variable of that name."""
    if isinstance(value, TensorVariable):
        return variable_of(pm.modelcontext(None), value, name)
    return pm.Data(name, float(value))


#: by the name of the piece: what declares the observed variable; its keywords are nuisance parameters
DECLARED_LIKELIHOODS: dict[str, Callable[..., Any]] = {
    "probit": lambda latent, y: ProbitBernoulli("label", latent, observed=y, dims="obs"),
    "label noise": _label_noise,
    "normal-probability": _normal_probability,
    "logit": lambda latent, y: pm.Bernoulli("label", logit_p=latent, observed=y, dims="obs"),
    "normal": _normal,
    "student-t": _student_t,
    "multinomial probit": lambda latent, y: MultinomialProbit(
        "label", latent, observed=y, dims="obs"
    ),
}
