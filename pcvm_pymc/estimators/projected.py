"""Classifiers of few vectors: the projection of a fit, and a projection's submodel as a classifier."""

from functools import partial
from typing import Any

import numpy as np

from pcvm_pymc.core.em import log_posterior
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import EMResult, Problem, Status
from pcvm_pymc.estimators.average import FittedAverage, Mode
from pcvm_pymc.estimators.problems import Problems, TrainingData
from pcvm_pymc.estimators.projection import Projection, project_reference
from pcvm_pymc.estimators.reference import Reference


def project_fit(
    model: Any,
    data: TrainingData,
    problems: Problems,
    best: EMResult,
    *,
    average: FittedAverage | None,
    rng: np.random.Generator,
) -> float:
    """Replace a fit by its projection onto few vectors; return the log posterior there."""
    known: dict[str, Any] = {
        "X": data.X,
        "label": data.label,
        "classes": model.classes_,
        "centres": problems.centres,
        "kernel": model.kernel,
        "width": best.width,
        "hyperprior": model.hyperprior_,
        "likelihood": problems.likelihood,
        "make_classifier": partial(classifier_of, type(model)),
    }
    if average is None:
        reference = Reference(probability=problems.likelihood.probability(best.latent), **known)
    else:
        held_out: Any = average.held_out
        probability = average.probability(problems.likelihood)
        reference = Reference(probability=probability, **known).averaged(held_out)
    size: int | str = "auto"
    if model.n_vectors not in (None, "auto"):
        size = min(model.n_vectors, len(problems.centres))
    found = project_reference(
        reference,
        size=size,
        cv=model.cv if reference.held_out is None else None,
        em_options=problems.options,
        random_state=rng,
    )
    return set_projection(model, found)


def set_projection(model: Any, projection: Projection) -> float:
    """Set weights and bias of a projection's chosen submodel; return their log posterior."""
    reference, i = projection.reference, projection.index
    centres, bias = reference.centres, projection.path.bias[i]
    weight = projection.path.dense_weight(i, len(centres))
    bias = float(bias) if np.ndim(bias) == 0 else bias
    data = TrainingData(reference.X, reference.label)
    kept = model._set_vectors(data, centres, weight, bias, reference.width)
    model.projection_, model._likelihood_ = projection, reference.likelihood
    model._kernel_ = reference.kernel_of(kept)
    if reference.basis_width is not None:
        model.vector_widths_ = reference.basis_width[kept]
    prior = getattr(model, "hyperprior_", None) or Hyperprior.jeffreys()
    model._predictor_ = Mode(
        model._kernel_,
        reference.width,
        np.nan,
        model.relevance_vectors_,
        np.arange(len(kept)),
        model.weight_.T,
        bias,
        np.nan,
        kept,
        reference.likelihood,
        prior,
    )
    Phi = reference.design()
    problem = Problem(
        Phi,
        reference.label,
        centres.sign,
        prior,
        reference.likelihood,
        bias="none" if getattr(model, "bias", None) is False else "prior",
        width=reference.width,
    )
    return log_posterior(problem, weight, bias, Phi @ weight + bias)


def classifier_of(kind: Any, projection: Projection) -> Any:
    """Return a projection's chosen submodel as a fitted classifier.

    `n_iter_` is 0, since no EM was run here, and `status_` is ``CONVERGED``.
    """
    reference = projection.reference
    arguments = {
        "kernel": reference.kernel,
        "width": reference.width,
        "basis": reference.basis,
        "hyperprior": reference.hyperprior,
        "likelihood": reference.likelihood,
        "estimation": "projection",
        "n_vectors": max(projection.size, 1),
        "algorithm": "top-down",  # that of the dense machine
    }
    known = kind._get_param_names()
    model = kind(**{name: value for name, value in arguments.items() if name in known})
    model.classes_ = reference.classes
    model.n_features_in_ = reference.X.shape[1]
    if "hyperprior" in known:
        model.hyperprior_ = reference.hyperprior
    model.log_posterior_ = set_projection(model, projection)
    model.n_iter_, model.status_ = 0, Status.CONVERGED
    return model
