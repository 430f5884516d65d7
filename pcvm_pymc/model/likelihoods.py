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


def _normal(
    latent: Any, *, noise: Any = None, noise_std: Any = None, sample_weight: Any = None
) -> Declared:
    """Return the distribution of targets, whose standard deviation is one number or each row's."""
    given = {"mu": latent, "sigma": noise if noise_std is None else noise_std}
    return _counted(pm.Normal, WeightedNormal, given, sample_weight)


def _student_t(
    latent: Any, *, noise: Any = None, degrees: Any = 4.0, sample_weight: Any = None
) -> Declared:
    """Return the distribution of targets with outliers."""
    given = {"nu": degrees, "mu": latent, "sigma": noise}
    return _counted(pm.StudentT, WeightedStudentT, given, sample_weight)


def _counted(once: Any, weighted: Any, given: dict[str, Any], weight: Any) -> Declared:
    """Return the distribution of rows that count once, or by weights."""
    return (once, given) if weight is None else (weighted, {**given, "weight": weight})


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
    "normal": _normal,
    "student-t": _student_t,
    "multinomial probit": lambda latent: (MultinomialProbit, {"latent": latent}),
}
