"""Relevance vector machines: the evidence as an estimation, predictions, scores of widths."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, override

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.base import clone, is_classifier

from pcvm_pymc.core.design import StreamedDesign, row_blocks
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    augmentation,
    fit_rvm,
    predictive_moments,
    rotated_problem,
    star_moments,
)
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import as_centres, choose_share
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, check_room, chunk_rows
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.process import MOST_ROWS, Process
from pcvm_pymc.core.validity import pcvm_validity, rvm_validity
from pcvm_pymc.estimators.base import MANY_BYTES, NESTED
from pcvm_pymc.estimators.chooser import choose
from pcvm_pymc.estimators.estimation import Estimation, Fitted, refuse
from pcvm_pymc.estimators.formulation import ROUGH, Formulation, loosened
from pcvm_pymc.estimators.predictors import Moments, Predictor
from pcvm_pymc.estimators.training import TrainingData

ALL_ROWS = "it needs the basis functions at once; with a memory_limit needed method='sequential'"

# for each pair of a process's rows: the kernel, its eigenvectors and what finds them
_PROCESS_BYTES = 48

# --- scores of widths --------------------------------------------------------------------------


def score_width(formulation: Formulation, criterion: str, at: Mapping[str, Any]) -> float:
    """Return the score of a width by ``"evidence"`` or ``"validity"``, of several classes against the rest.

    The log evidence is that of the relevance vector machine on the same bases; the validity that of the
    PCVM's mode, or without a sign rule that of the relevance vector machine.
    """
    X, points = formulation.data.X, formulation.centres.points
    likelihood, problems = formulation.likelihood, [formulation.at(at)]
    if likelihood.n_scores > 1:
        joint = replace(problems[0], bias="prior", shared=False)
        problems = [joint.against_rest(c) for c in range(likelihood.n_scores)]
    if criterion == "validity" and formulation.centres.sign is not None:
        by_em = likelihood.n_scores == 1 and isinstance(formulation.options, EMOptions)
        options = formulation.options if by_em else EMOptions()
        fits = ((problem, fit_em(problem, None, options)) for problem in problems)
        return sum(pcvm_validity(X, *fit, centres=points).log_validity for fit in fits)
    known = FAMILY["rvm_classification"].likelihoods
    if likelihood.n_scores == 1 and likelihood.name not in known:
        lacking = f"there is no relevance vector machine with likelihood={likelihood.name!r}"
        raise ValueError(f"{lacking} to score a width by; choose it by 'cv' or 'validity'")
    rough = EvidenceOptions(tol=ROUGH["evidence"])
    machines = [
        EvidenceProblem(p.Phi, p.label, p.likelihood, row_weight=p.row_weight) for p in problems
    ]
    where = X, points, formulation.kernel_at(at)
    return sum(_scored(problem, criterion, *where, options=rough) for problem in machines)


def _scored(
    problem: EvidenceProblem, criterion: str, X: Array, points: Array, kernel: Any, **how: Any
) -> float:
    """Return the log evidence of a relevance vector machine, or its log kernel validity."""
    result = fit_rvm(problem, **how)
    if criterion == "evidence":
        return result.log_evidence
    return rvm_validity(X, problem, result, kernel=kernel, centres=points).log_validity


# --- what is fitted ----------------------------------------------------------------------------


class Machine(NamedTuple):
    """A fitted relevance vector machine, with the weights of its rows."""

    kernel: KernelPiece
    vectors: Array
    result: EvidenceResult
    row_weight: Array | None


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
        moments = [predictive_moments(m.kernel(X, m.vectors), m.result) for m in self.machines]
        mean, variance = (np.column_stack(some) for some in zip(*moments, strict=True))
        return (mean, variance) if len(moments) > 1 else (mean[:, 0], variance[:, 0])

    def latent(self, X: Array) -> Array:
        """Return the posterior mean, moved towards zero such that it gives the mean probability.

        Exact for the probit, by MacKay's approximation for the logit.
        """
        return self.likelihood.moderated(*self.moments(X))

    @override
    def log_density(self, X: Array, label: NDArray[Any], noise: Array | None = None) -> Array:
        """Return the log probability of each row's label, or the log density of its target."""
        if self.likelihood.targets != "numbers":
            return super().log_density(X, label)
        known: Any = self.machines[0].result.noise if noise is None else noise
        likelihood = self.likelihood.with_noise(known)
        moments = self.moments(X)
        if likelihood.is_quadratic:
            mean, variance = likelihood.target_moments(*moments)
            return np.asarray(norm.logpdf(label, mean, np.sqrt(variance)))
        return likelihood.log_density(moments[0], label)

    @override
    def posterior(self, data: TrainingData | None) -> list[tuple[float, Moments]]:
        """Return the normal posterior of the independent latent functions."""

        def moments(X: Array) -> tuple[Array, Array]:
            mean, variance = (values.reshape(len(X), -1) for values in self.moments(X))
            return mean, variance[:, :, None] * np.eye(mean.shape[1])

        return [(1.0, moments)]


@dataclass(frozen=True)
class AugmentedVectors(RelevanceVectors):
    """The relevance vector machine of RVM*: one more basis function on each new row.

    Attributes
    ----------
    rows : ndarray, shape (n_obs, n_features)
        All training rows.
    more : Augmentation
    """

    rows: Array
    more: Any

    @override
    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance, shape (n_new,) each."""
        (machine,) = self.machines
        kernel = machine.kernel
        basis = kernel(X, machine.vectors), kernel(self.rows, X), np.diag(kernel(X, X))
        return star_moments(*basis, machine.result, self.more)


# --- the fit -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evidence(Estimation):
    """The precisions of the highest evidence, one basis at a time or all downwards."""

    method: str = "sequential"

    solver_options = EvidenceOptions

    @override
    def fit(self, data: TrainingData) -> Fitted:
        """Choose the width, and maximise the evidence at it.

        Vectors are all active bases, also those whose mean is zero.
        """
        model = self.model
        if len(self.machines(data)) > 1:
            return self.fit_against_rest(data)

        # what is fitted
        chunk, limit = self.factor_rows(data.X), self.limit(data.X)
        model._check_rows(data)
        centres = as_centres(model._basis_of(data), data.X, None)
        rng = np.random.default_rng(as_seed(model.random_state))
        if limit is None:
            check_room(len(data.X), len(centres))
        elif not chunk and data.stream is None:  # is there room?
            self.problem(data, centres.points, model._kernel_at(1.0), limit)

        # at which width
        few, most = data, None
        if isinstance(model.width, str):
            in_chunks = limit is not None or data.stream is not None
            few, most = model._search_rows(data, rng, in_chunks=in_chunks)
        choice = choose(self, few, rng, most=most)
        kernel, width = choice.parts(model._kernel_at)[0][0], choice.search.best.width
        problem = self.problem(data, centres.points, kernel, limit, chunk)
        PROGRESS.info("fit to all rows")
        result = self.solved(problem)

        # what a user reads
        active, vectors = result.active, centres.points[result.active]
        attributes: dict[str, Any] = {"_kernel_": kernel, "relevance_vectors_": vectors}
        attributes["support_"] = data.numbers(centres.rows[active])
        attributes |= {"weight_": result.weight[active], "bias_": result.bias, "width_": width}
        attributes |= {"covariance_": result.covariance, "log_evidence_": result.log_evidence}
        if is_classifier(model):
            attributes["machines_"] = []
        machine = Machine(kernel, vectors, result, data.weight)
        solver = "evidence" if result.status is Status.ITERATION_LIMIT else ""
        ended: Any = {"n_iter": result.n_iter, "statuses": [result.status], "solver": solver}
        return Fitted(self.predictor(problem, (machine,), data), attributes, choice, **ended)

    def fit_against_rest(self, data: TrainingData) -> Fitted:
        """Return a machine for each class against the rest, each of a width of its own, as one result."""
        model = self.model
        plain = clone(model).set_params(class_weight=None)  # in the weights of the rows
        model._check_rows(data, n_modes=len(model.classes_))
        outer = NESTED.set(True)  # each would say the same
        try:
            machines = [clone(plain)._fit_part(part, model) for part in self.machines(data)]
        finally:
            NESTED.reset(outer)
        names = vars(machines[0]).keys()
        of = {name: [vars(machine).get(name) for machine in machines] for name in names}
        vectors = tuple(predictor.machines[0] for predictor in of["_predictor_"])
        centres = as_centres(model._basis_of(data), data.X, None)
        kept = np.unique(np.concatenate([machine.result.active for machine in vectors]))
        weight = np.stack([machine.result.weight for machine in vectors])
        attributes: dict[str, Any] = {"relevance_vectors_": centres.points[kept]}
        attributes["weight_"] = weight[:, kept]
        attributes |= {"support_": data.numbers(centres.rows[kept]), "machines_": machines}
        attributes |= {"bias_": np.array(of["bias_"]), "log_evidence_": sum(of["log_evidence_"])}
        if model._is_rbf:
            attributes["feature_widths_"] = np.array(of["feature_widths_"])
            relevances = np.array(of["feature_relevance_"])
            known = ~np.isnan(relevances).any(axis=1)
            relevances = relevances[known if known.any() else slice(None)]
            attributes["feature_relevance_"] = relevances.mean(axis=0)
            attributes["_importances_"] = np.mean(of["_importances_"], axis=0)
            attributes["feature_relevance_folds_"] = np.concatenate(of["feature_relevance_folds_"])
        by_feature = any(map(np.ndim, of["width_"]))
        attributes["width_"] = np.array(of["feature_widths_" if by_feature else "width_"])
        predictor = RelevanceVectors(model._likelihood(), vectors)
        return Fitted(predictor, attributes, n_iter=max(of["n_iter_"]), statuses=of["status_"])

    # --- what is fitted ------------------------------------------------------------------------

    @override
    def check(self, in_chunks: bool) -> None:
        if in_chunks and self.method != "sequential":
            refuse(self.model, "method", ALL_ROWS)

    def machines(self, data: TrainingData) -> list[TrainingData]:
        """Return the rows, of several classes once for each class against the rest."""
        n_classes = len(vars(self.model).get("classes_", ()))
        numbers = range(n_classes) if n_classes > 2 else ()
        rows = data.stream
        streams = [None if rows is None else rows.against_rest(c) for c in numbers]
        parts = [replace(data, label=data.label == c, stream=streams[c]) for c in numbers]
        return parts or [data]

    def limit(self, X: Array) -> float | None:
        """Return the memory limit: a given one, or where many rows need one."""
        model, n_obs = self.model, len(X)
        limit: float | None = model.memory_limit
        if limit is None and self.method == "sequential" and model._is_many(n_obs):
            large = 8.0 * n_obs * model._n_bases(n_obs) > MANY_BYTES
            return MANY_BYTES if large else None
        return limit

    def factor_rows(self, X: Array) -> int:
        """Return how many rows at a time add to a triangular factor; 0 where there is none."""
        limit, n_basis = self.limit(X), self.model._n_bases(len(X))
        if limit is None:
            return 0
        one_by_one = self.method == "sequential"
        if self.model._likelihood().is_quadratic and not (one_by_one and 4 * n_basis > len(X)):
            try:  # the factor, a chunk below it, and what LAPACK makes of both
                return chunk_rows(limit, int(n_basis) + 2, X.shape[1], copies=3)
            except ValueError:
                if not one_by_one or limit < ComputedBases.least_bytes(len(X)):
                    raise
        if not one_by_one:
            raise ValueError(f"method={self.method!r}: {ALL_ROWS}")
        return 0

    def problem(
        self, data: TrainingData, points: Array, kernel: Any, limit: Any = None, chunk: int = 0
    ) -> EvidenceProblem:
        """Return the problem of some rows: basis functions in memory, within a memory limit, or on Dask.

        With a `chunk` of rows it is that of the triangular factor, made chunk by chunk.
        """
        if data.stream is not None:
            design = StreamedDesign(data.stream, points, kernel).against_rest(1)
            return EvidenceProblem(design, np.empty(0), self.model._likelihood())
        if is_classifier(self.model):
            data = replace(data, label=2.0 * data.label - 1.0)
        seen = data.observed(self.model._likelihood())
        if chunk:
            parts = row_blocks(len(data.X), chunk)
            return rotated_problem((kernel(data.X[rows], points), seen[rows]) for rows in parts)
        Phi: Any = ComputedBases(data.X, points, kernel, limit) if limit else kernel(data.X, points)
        return EvidenceProblem(Phi, seen.target, seen.likelihood, row_weight=seen.weight)

    def solved(self, problem: EvidenceProblem) -> EvidenceResult:
        """Return the machine of the highest evidence."""
        solve = self.model._solved or partial(fit_rvm, method=self.method, options=self.how)
        result: EvidenceResult = solve(problem)
        return result

    def predictor(
        self, problem: EvidenceProblem, machines: tuple[Machine, ...], data: TrainingData
    ) -> RelevanceVectors:
        """Return what predicts."""
        return RelevanceVectors(self.model._likelihood(), machines)

    # --- candidates for the width --------------------------------------------------------------

    @override
    def fitted(self, data: TrainingData, width: Any, basis: Any) -> RelevanceVectors:
        points, kernel = as_centres(basis, data.X, None).points, self.model._kernel_at(width)
        machines = []
        for part in self.machines(data):
            problem = self.problem(part, points, kernel)
            result = self.solved(problem)
            machines.append(Machine(kernel, points[result.active], result, data.weight))
        return self.predictor(problem, tuple(machines), data)

    @override
    def rough(self, data: TrainingData, most: int | None) -> tuple["Evidence", int | None]:
        return replace(self, options=loosened(self.how, "evidence")), most

    @override
    def score(self, data: TrainingData, criterion: str, width: float, most: int | None) -> float:
        basis = min(most, len(data.X)) if most else self.model._basis_of(data)
        at = as_centres(basis, data.X, None).points, self.model._kernel_at(width)
        how: dict[str, Any] = {"method": self.method, "options": loosened(self.how, "evidence")}
        problems = [self.problem(part, *at) for part in self.machines(data)]
        return sum(_scored(problem, criterion, data.X, *at, **how) for problem in problems)


@dataclass(frozen=True, kw_only=True)
class RegressionEvidence(Evidence):
    """The evidence of a regression, whose noise it estimates where none is given."""

    star: bool
    std: str

    @property
    def is_known(self) -> bool:
        """Whether the noise is given, by its argument or with the likelihood."""
        return not np.isnan(self.model._likelihood().noise)

    @override
    def check(self, in_chunks: bool) -> None:
        # all downwards in chunks, too: from a triangular factor of the rows
        if self.is_known:
            self.check_known_noise("noise likelihood")

    def check_known_noise(self, names: str) -> None:
        """Raise where the options say where a known noise starts."""
        if self.how.noise_starts != EvidenceOptions().noise_starts:
            needed = "a known noise has no start; leave noise_starts out"
            refuse(self.model, f"options {names}", needed)

    @override
    def limit(self, X: Array) -> float | None:
        return None if self.star else super().limit(X)

    @override
    def predictor(
        self, problem: EvidenceProblem, machines: tuple[Machine, ...], data: TrainingData
    ) -> RelevanceVectors:
        predictor = super().predictor(problem, machines, data)
        if not self.star:
            return predictor
        more = augmentation(problem, machines[0].result)
        return AugmentedVectors(predictor.likelihood, machines, data.X, more)

    @override
    def fit(self, data: TrainingData) -> Fitted:
        fitted, model = super().fit(data), self.model
        predictor: Any = fitted.predictor
        (machine,), kernel = predictor.machines, fitted.attributes["_kernel_"]
        is_known = data.noise is not None  # of these rows; that of new ones is not
        attributes = {"noise_": 0.0 if is_known else machine.result.noise, "kernel_": kernel.name}
        if self.std != "weights" and model._has_process:
            rng = np.random.default_rng(as_seed(model.random_state))
            room = np.inf if model.memory_limit is None else model.memory_limit
            most = int(min(MOST_ROWS, np.sqrt(room / _PROCESS_BYTES)))
            some = choose_share(np.zeros(len(data.X)), most, rng)
            known = machine.result.noise**2 if is_known or self.is_known else None
            weight = None if data.certainty is None else data.certainty[some]
            process = Process.fit(kernel, data.X[some], data.label[some], known, weight)
            attributes["_process_"] = replace(process, noise=0.0) if is_known else process
        return replace(fitted, attributes=fitted.attributes | attributes)
