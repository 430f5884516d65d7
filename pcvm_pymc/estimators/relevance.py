"""Fits of maximal evidence: relevance vector machines, and scores of widths by evidence or validity."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    check_method,
    fit_rvm,
    predictive_moments,
)
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import Centres, as_centres, choose_share
from pcvm_pymc.core.pieces.kernels import KernelPiece, as_kernel
from pcvm_pymc.core.pieces.likelihood import Weighted, against_rest
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.validity import pcvm_validity, rvm_validity
from pcvm_pymc.estimators.average import Posterior, Predictor, independent
from pcvm_pymc.estimators.base import check_size_and_scales
from pcvm_pymc.estimators.features import set_features
from pcvm_pymc.estimators.problems import ROUGH, WIDTH_ROWS, Problems, TrainingData
from pcvm_pymc.estimators.race import chosen_width

# --- scores of widths --------------------------------------------------------------------------


def score_width(problems: Problems, criterion: str, width: float, scale: float) -> float:
    """Return the score of a width by ``"evidence"`` or ``"validity"``, of several classes against the rest.

    The log evidence is that of the relevance vector machine on the same bases; the validity that of the
    PCVM's mode, or without a sign rule that of the relevance vector machine.
    """
    data, centres, likelihood = problems.data, problems.centres, problems.likelihood
    if likelihood.n_scores > 1:
        plain = replace(
            problems, likelihood=Probit(), options=EMOptions(), bias="prior", shared=False
        )
        total = 0.0
        for c in range(likelihood.n_scores):
            own = TrainingData(data.X, against_rest(data.label, c), data.weight)
            signed = replace(centres, sign=None if centres.sign is None else centres.sign[:, c])
            total += score_width(replace(plain, data=own, centres=signed), criterion, width, scale)
        return total
    if criterion == "validity" and centres.sign is not None:
        problem = problems.at(width, scale)
        mode = fit_em(problem, None, problems.options)
        return pcvm_validity(data.X, problem, mode, centres=centres.points).log_validity
    if likelihood.name not in FAMILY["rvm_classification"].likelihoods:
        raise ValueError(
            f"there is no relevance vector machine with likelihood={likelihood.name!r} to score a width by; "
            "choose it by cross-validation or 'validity'"
        )
    machine = RelevanceProblem(data, centres, problems.kernel, likelihood)
    return machine.score(criterion, width, EvidenceOptions(tol=ROUGH["evidence"]))


# --- relevance vector machines -----------------------------------------------------------------


@dataclass(frozen=True)
class RelevanceProblem:
    """The evidence of a relevance vector machine as a function of the width.

    Attributes
    ----------
    data : TrainingData
        With targets as the likelihood has them.
    centres : Centres
    kernel : str or callable
    likelihood : Likelihood
    noise : float, optional
    method : str
    memory_limit : float, optional
        With it basis functions are computed when they are needed.
    """

    data: TrainingData
    centres: Centres
    kernel: Any
    likelihood: Likelihood
    noise: float | None = None
    method: str = "sequential"
    memory_limit: float | None = None

    def at(self, width: Any) -> EvidenceProblem:
        """Return the problem at a width."""
        X, points, kernel = self.data.X, self.centres.points, as_kernel(self.kernel, width)
        Phi: Any
        if self.memory_limit is None:
            Phi = kernel(X, points)
        else:
            Phi = ComputedBases(X, points, kernel, self.memory_limit)
        kind = self.likelihood if self.data.weight is None else Weighted(self.likelihood)
        return EvidenceProblem(Phi, self.data.target, kind, noise=self.noise)

    def score(self, criterion: str, width: Any, options: EvidenceOptions) -> float:
        """Return the log evidence at a width, or the log kernel validity."""
        problem = self.at(width)
        result = fit_rvm(problem, method=self.method, options=options)
        if criterion == "evidence":
            return result.log_evidence
        X, points = self.data.X, self.centres.points
        return rvm_validity(X, problem, result, width=width, centres=points).log_validity


def evidence_options(model: Any, **special: Any) -> EvidenceOptions:
    """Return how the evidence is maximised, by an estimator's arguments."""
    check_method(model.method)
    given: dict[str, Any] = {"max_iter": model.max_iter, "tol": model.tol}
    if hasattr(model, "noise_starts"):
        given["noise_starts"] = tuple(model.noise_starts)
    return EvidenceOptions(**(given | special))


def fit_relevance(
    model: Any,
    data: TrainingData,
    given: TrainingData,
    *,
    rotated: Callable[[Centres, KernelPiece], EvidenceProblem] | None = None,
) -> EvidenceProblem:
    """Choose the width, maximise the evidence at it, and set the fitted attributes; return the problem.

    Vectors are all active bases, also those whose mean is zero.

    Parameters
    ----------
    model : RVMClassifier or RVMRegressor
    data : TrainingData
        With targets as the likelihood has them.
    given : TrainingData
        With targets as `fit` takes them.
    rotated : callable, optional
        ``(centres, kernel) -> problem`` in place of basis functions at all rows.
    """
    check_size_and_scales(model, data.X)
    centres, limit = as_centres(model.basis, data.X, None), model.memory_limit
    problems = RelevanceProblem(
        data, centres, model.kernel, model._likelihood_, getattr(model, "noise", None), model.method
    )
    few, options = problems, evidence_options(model)
    rng = np.random.default_rng(as_seed(model.random_state))
    if limit is None:
        check_room(len(data.X), len(centres))
    elif isinstance(model.width, str):
        label = given.label if hasattr(model, "classes_") else np.zeros(len(data.X))
        rows = choose_share(label, WIDTH_ROWS, rng)
        given, own = given.some(rows), as_centres(model.basis, data.X[rows], None)
        few = replace(problems, data=data.some(rows), centres=own)
    if limit is not None and rotated is None:
        problems = replace(problems, memory_limit=limit)
        problems.at(1.0)  # is there room?
    tol = max(model.tol, ROUGH["evidence"])

    def score(criterion: str, width: float) -> float:
        return few.score(criterion, width, replace(options, tol=tol))

    width = chosen_width(model, given, rng, score, rough={"tol": tol})
    kernel = as_kernel(model.kernel, width)
    problem = problems.at(width) if rotated is None else rotated(centres, kernel)
    solve = model._solved or partial(fit_rvm, method=model.method, options=options)
    result = solve(problem)
    model.support_ = data.numbers(centres.rows[result.active])
    model.relevance_vectors_ = centres.points[result.active]
    model.weight_, model.bias_, model.width_ = result.weight[result.active], result.bias, width
    model.covariance_, model.log_evidence_ = result.covariance, result.log_evidence
    model._kernel_, model._result_, model._row_weight_ = kernel, result, data.weight
    set_features(model, width, *vars(model).get("_metric_", (None,)))
    model.n_iter_, model.status_ = result.n_iter, result.status
    if result.status is Status.ITERATION_LIMIT:
        model._warn("evidence", result.status)
    return problem


class Machine(NamedTuple):
    """A fitted relevance vector machine, as far as predictions need it."""

    kernel: KernelPiece
    vectors: Array
    result: EvidenceResult

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of the latent function at new rows, shape (n_new,) each."""
        return predictive_moments(self.kernel(X, self.vectors), self.result)


@dataclass(frozen=True)
class RelevanceVectors(Predictor):
    """Latent functions of relevance vector machines, with their posterior.

    Attributes
    ----------
    likelihood : Likelihood
    machines : tuple of Machine
        One; or one for each class against the rest.
    """

    likelihood: Likelihood
    machines: tuple[Machine, ...]

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance, shape (n_new,) or (n_new, n_classes) each."""
        each = [machine.moments(X) for machine in self.machines]
        mean, variance = (np.column_stack(some) for some in zip(*each, strict=True))
        return (mean, variance) if len(each) > 1 else (mean[:, 0], variance[:, 0])

    def latent(self, X: Array, n_jobs: int = 1) -> Array:
        """Return the posterior mean, moved towards zero such that it gives the mean probability.

        Exact for the probit, by MacKay's approximation for the logit.
        """
        return self.likelihood.moderated(*self.moments(X))

    def posterior(self, data: TrainingData | None) -> Posterior:
        """Return the normal posterior of the independent latent functions."""
        return lambda X: [independent([each.moments(X) for each in self.machines])]
