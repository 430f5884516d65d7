"""Likelihoods as variables of a model: the distribution of what is observed, and its parameters.

A new one is one entry in `DECLARED_LIKELIHOODS`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

from pcvm_pymc.model.distributions import ProbitBernoulli, ndtr
from pcvm_pymc.model.multinomial import MultinomialProbit
from pcvm_pymc.model.weighted import WeightedNormal, WeightedStudentT

type Declared = tuple[Any, dict[str, Any]]  # a distribution, and its parameters by their names


_WEIGHTED: dict[Any, Any] = {pm.Normal: WeightedNormal, pm.StudentT: WeightedStudentT}


def _counted(distribution: Any, sample_weight: Any, **given: Any) -> Declared:
    """Return the distribution of rows that count once, or by weights."""
    if sample_weight is None:
        return distribution, given
    return _WEIGHTED[distribution], {**given, "weight": sample_weight}


#: by the name of the piece: the observed variable; keywords are nuisance parameters, None where unknown
DECLARED_LIKELIHOODS: dict[str, Callable[..., Declared]] = {
    "probit": lambda latent: (ProbitBernoulli, {"latent": latent}),
    "label noise": lambda latent, *, flip=0.05: (
        pm.Bernoulli,
        {"p": flip + (np.float64(1.0) - np.float64(2.0) * flip) * ndtr(latent)},
    ),
    # labels as numbers, normal around their probability
    "normal-probability": lambda latent, *, noise=0.5: (
        pm.Normal,
        {"mu": ndtr(latent), "sigma": noise},
    ),
    "logit": lambda latent: (pm.Bernoulli, {"logit_p": latent}),
    # the standard deviation is one number, or each row's
    "normal": lambda latent, *, noise=None, noise_std=None, sample_weight=None: _counted(
        pm.Normal, sample_weight, mu=latent, sigma=noise if noise_std is None else noise_std
    ),
    "student-t": lambda latent, *, noise=None, degrees=4.0, sample_weight=None: _counted(
        pm.StudentT, sample_weight, nu=degrees, mu=latent, sigma=noise
    ),
    "multinomial probit": lambda latent: (MultinomialProbit, {"latent": latent}),
}
