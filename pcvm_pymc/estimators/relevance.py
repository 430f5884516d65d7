"""Relevance vector machines: fits of maximal evidence, predictions, scores of widths, kernel validity."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.design import row_blocks
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    check_method,
    fit_rvm,
    predictive_moments,
    rotated_problem,
)
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import as_centres
from pcvm_pymc.core.pieces.kernels import KernelPiece, MatrixRBF, as_kernel
from pcvm_pymc.core.pieces.likelihood import Weighted, weighted_target
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, check_room, chunk_rows
from pcvm_pymc.core.pieces.validation import as_seed, as_targets
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.validity import Validity, kernel_validity, pcvm_validity, rvm_validity
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.average import Moments, Predictor
from pcvm_pymc.estimators.features import Metric, set_features
from pcvm_pymc.estimators.problems import ROUGH, Problems, TrainingData, against_rest, width_rows
from pcvm_pymc.estimators.race import chosen_width

ALL_ROWS = (
    "it needs the basis functions of all rows; with a memory_limit needed method='sequential'"
)

# --- scores of widths --------------------------------------------------------------------------


def score_width(problems: Problems, criterion: str, width: float, scale: float) -> float:
    """Return the score of a width by ``"evidence"`` or ``"validity"``, of several classes against the rest.

    The log evidence is that of the relevance vector machine on the same bases; the validity that of the
    PCVM's mode, or without a sign rule that of the relevance vector machine.
    """
    X, points, likelihood = problems.data.X, problems.centres.points, problems.likelihood
    each, options = [problems.at(width, scale)], problems.options
    if likelihood.n_scores > 1:
        classes, options = range(likelihood.n_scores), EMOptions()
        each = [replace(against_rest(each[0], c), bias="prior", shared=False) for c in classes]
    if criterion == "validity" and problems.centres.sign is not None:
        modes = [fit_em(one, None, options) for one in each]
        found = [pcvm_validity(X, *both, centres=points) for both in zip(each, modes, strict=True)]
        return sum(one.log_validity for one in found)
    known = FAMILY["rvm_classification"].likelihoods
    if likelihood.n_scores == 1 and likelihood.name not in known:
        raise ValueError(
            f"there is no relevance vector machine with likelihood={likelihood.name!r} to score a width by; "
            "choose it by cross-validation or 'validity'"
        )
    rough = EvidenceOptions(tol=ROUGH["evidence"])
    machines = [EvidenceProblem(one.Phi, one.label, one.likelihood) for one in each]
    at = X, points, as_kernel(problems.kernel, width)
    return sum(_scored(one, criterion, *at, options=rough) for one in machines)


def _scored(
    problem: EvidenceProblem, criterion: str, X: Array, points: Array, kernel: Any, **how: Any
) -> float:
    """Return the log evidence of a relevance vector machine, or its log kernel validity."""
    result = fit_rvm(problem, **how)
    if criterion == "evidence":
        return result.log_evidence
    return rvm_validity(X, problem, result, kernel=kernel, centres=points).log_validity


# --- relevance vector machines -----------------------------------------------------------------


def evidence_options(model: Any) -> EvidenceOptions:
    """Return how the evidence is maximised, by an estimator's arguments."""
    check_method(model.method)
    given: dict[str, Any] = {"max_iter": model.max_iter, "tol": model.tol}
    if hasattr(model, "noise_starts"):
        given["noise_starts"] = tuple(model.noise_starts)
    return EvidenceOptions(**given)


def limit_of(model: Any, n_obs: int) -> float | None:
    """Return the memory limit of a relevance vector machine: a given one, or where many rows need one."""
    limit: float | None = model.memory_limit
    streams = model.method == "sequential" and not getattr(model, "star", False)
    if limit is None and streams and base.is_many(model, n_obs):
        large = 8.0 * n_obs * base.n_bases(model, n_obs) > base.MANY_BYTES
        return base.MANY_BYTES if large else None
    return limit


def estimates_noise(model: Any, _: bool = False) -> bool:
    """Whether a regressor's arguments leave its noise to the evidence."""
    known = getattr(model.likelihood, "noise", np.nan)
    return model.noise is None and bool(np.isnan(known))


def factor_rows(model: Any, X: Array) -> int:
    """Return how many rows at a time add to a triangular factor; 0 where there is none."""
    limit, n_basis = limit_of(model, len(X)), base.n_bases(model, len(X))
    if limit is None:
        return 0
    one_by_one = model.method == "sequential"
    if model._likelihood_.is_quadratic and not (one_by_one and 4 * n_basis > len(X)):
        try:  # the factor, a chunk below it, and what LAPACK makes of both
            return chunk_rows(limit, int(n_basis) + 2, X.shape[1], copies=3)
        except ValueError:
            if not one_by_one or limit < ComputedBases.least_bytes(len(X)):
                raise
    if not one_by_one:
        raise ValueError(f"method={model.method!r}: {ALL_ROWS}")
    return 0


def factored(
    model: Any, data: TrainingData, points: Array, kernel: KernelPiece, chunk: int
) -> EvidenceProblem:
    """Return the problem of the triangular factor of all rows, made chunk by chunk."""
    parts = row_blocks(len(data.X), chunk)
    blocks = ((kernel(data.X[i], points), data.label[i]) for i in parts)
    known = None if estimates_noise(model) else model.noise or model._likelihood_.noise
    return rotated_problem(blocks, noise=known)


class Machine(NamedTuple):
    """A fitted relevance vector machine, with the weights of its rows."""

    kernel: KernelPiece
    vectors: Array
    result: EvidenceResult
    row_weight: Array | None

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

    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the normal posterior of the independent latent functions."""

        def moments(X: Array) -> tuple[Array, Array]:
            mean, variance = (each.reshape(len(X), -1) for each in self.moments(X))
            return mean, variance[:, :, None] * np.eye(mean.shape[1])

        return [(1.0, moments)]


def problem_of(
    model: Any, data: TrainingData, points: Array, kernel: KernelPiece, limit: float | None = None
) -> EvidenceProblem:
    """Return the problem of some rows, basis functions in memory or computed within a memory limit."""
    Phi: Any = ComputedBases(data.X, points, kernel, limit) if limit else kernel(data.X, points)
    likelihood = model._likelihood_ if data.weight is None else Weighted(model._likelihood_)
    if is_classifier(model):
        data = replace(data, label=2.0 * data.label - 1.0)
    return EvidenceProblem(Phi, data.target, likelihood, noise=getattr(model, "noise", None))


def width_of(
    model: Any, data: TrainingData, points: Array, rng: np.random.Generator
) -> tuple[Any, Metric | None]:
    """Return the width that is given, or chosen by folds or a criterion; see `chosen_width`."""
    rows, most = width_rows(model, data, limit_of(model, len(data.X)) is not None, rng)
    if rows is not None and isinstance(model.width, str):
        data = data.some(rows)
        basis = min(most, len(rows)) if most else data.basis(model)
        points = as_centres(basis, data.X, None).points
    rough = {"tol": max(model.tol, ROUGH["evidence"])}
    how = {"method": model.method, "options": replace(evidence_options(model), **rough)}
    several = is_classifier(model) and len(model.classes_) > 2
    numbers = range(len(model.classes_)) if several else ()
    each = [replace(data, label=data.label == c) for c in numbers] or [data]

    def score(criterion: str, width: float) -> float:  # of several classes each against the rest
        at = points, as_kernel(model.kernel, width)
        machines = [problem_of(model, one, *at) for one in each]
        return sum(_scored(one, criterion, data.X, *at, **how) for one in machines)

    rough |= {"std": "weights"} if hasattr(model, "std") else {}
    return chosen_width(model, model._as_given(data), rng, score, rough=rough, most_bases=most)


def fit_relevance(model: Any, data: TrainingData) -> EvidenceProblem:
    """Choose the width, maximise the evidence at it, and set the fitted attributes; return the problem.

    Vectors are all active bases, also those whose mean is zero.

    Parameters
    ----------
    model : RVMClassifier or RVMRegressor
    data : TrainingData
    """
    chunk = factor_rows(model, data.X)
    base.check_size_and_scales(model, data.X, data.groups)
    centres, limit = as_centres(data.basis(model), data.X, None), limit_of(model, len(data.X))
    rng = np.random.default_rng(as_seed(model.random_state))
    if limit is None:
        check_room(len(data.X), len(centres))
    elif not chunk:  # is there room?
        problem_of(model, data, centres.points, as_kernel(model.kernel, 1.0), limit)
    width, metric = width_of(model, data, centres.points, rng)
    kernel = as_kernel(model.kernel, width)
    whole = (model, data, centres.points, kernel)
    problem = factored(*whole, chunk) if chunk else problem_of(*whole, limit)
    options = evidence_options(model)
    PROGRESS.info("fit to all rows")
    result = (model._solved or partial(fit_rvm, method=model.method, options=options))(problem)

    # what a user reads
    vectors = centres.points[result.active]
    model.support_, model.relevance_vectors_ = data.numbers(centres.rows[result.active]), vectors
    model.weight_, model.bias_, model.width_ = result.weight[result.active], result.bias, width
    model.covariance_, model.log_evidence_ = result.covariance, result.log_evidence
    machine = Machine(kernel, vectors, result, data.weight)
    model._kernel_, model._predictor_ = kernel, RelevanceVectors(model._likelihood_, (machine,))
    set_features(model, width, metric)
    model.n_iter_, model.status_ = result.n_iter, result.status
    if result.status is Status.ITERATION_LIMIT:
        model._warn("evidence", result.status)
    return problem


# --- the kernel validity of fitted machines ----------------------------------------------------


def validity(model: Any, X: ArrayLike, y: ArrayLike) -> Validity:
    """Return how far the kernels of a fitted machine may shift before its likelihood falls.

    A diagnostic of kernels, for classification and regression: of several machines fitted to the same rows
    the one of the highest ``log_validity`` has kernels that fit and are stable.

    Parameters
    ----------
    model : RVMClassifier (of two classes) or RVMRegressor
        Fitted, with ``kernel="rbf"`` or a `MatrixRBF`.
    X : array_like, shape (n_obs, n_features)
        The rows that it was fitted to.
    y : array_like, shape (n_obs,)
        Their labels or targets.

    Returns
    -------
    Validity
        ``log_validity``, the log likelihood in it, and of each kernel how far the data determine its weight
        and the logarithm of its stability along each feature.

    Raises
    ------
    ValueError
        If the model is another, or has another kernel or more than two classes, or the rows are not as many
        as the targets.

    References
    ----------
    D. A. Kropotov, D. P. Vetrov and N. O. Ptashko (2006), eqs. 12-15, corrected: see
    `pcvm_pymc.core.validity`. Regression and kernels with a matrix are what their section VI proposes.

    Examples
    --------
    >>> from pcvm_pymc import RVMRegressor
    >>> x = np.linspace(-5, 5, 60)[:, None]
    >>> y = np.sinc(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> narrow, fitting = (RVMRegressor(width=width).fit(x, y) for width in (0.2, 1.0))
    >>> bool(validity(fitting, x, y).log_validity > validity(narrow, x, y).log_validity)
    True
    """
    if not getattr(model, "_scores_all_rows", False):
        raise ValueError(
            f"model is a {type(model).__name__}; needed a fitted RVMClassifier or RVMRegressor. For the PCVM "
            "select_width(X, y, method='validity') scores widths"
        )
    check_is_fitted(model)
    if model.estimation == "posterior":
        raise ValueError("the model is a posterior; needed a fit, estimation='auto'")
    kernel: Any = as_kernel(model.kernel, model.width_)
    if kernel.name not in ("rbf", MatrixRBF.name):
        raise ValueError(
            f"kernel={model.kernel!r}; needed 'rbf' or a MatrixRBF, whose slopes are known"
        )
    rows, (machine, *others) = model._inputs(X), model._predictor_.machines
    if others:
        raise ValueError(
            f"the model has {len(model.classes_)} classes; needed two: take each of model.machines_"
        )
    if is_classifier(model):
        data = TrainingData(rows, 2.0 * model._known_labels(y, len(rows)) - 1.0).merged()
        rows, target = data.X, data.label
        latent = model.latent_moments(rows)[0]
    else:
        target, latent = as_targets(y, len(rows)), np.asarray(model.predict(rows))
    result, weight = machine.result, machine.row_weight
    likelihood: Any = model._likelihood_.with_noise(result.noise)
    if weight is not None:
        if len(weight) != len(rows):
            raise ValueError(
                f"X has {len(rows)} rows, of which {len(weight)} had a weight in the fit; needed these alone"
            )
        target, likelihood = weighted_target(target, weight), Weighted(likelihood)
    determined = 1.0 - result.alpha[result.active] * np.diag(result.covariance)[:-1]
    return kernel_validity(
        rows,
        target,
        model.weight_,
        latent,
        np.clip(determined, 0.0, 1.0)[model.weight_ != 0],
        kernel=kernel,
        likelihood=likelihood,
        centres=model.relevance_vectors_,
    )
