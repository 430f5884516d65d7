"""What the estimators of relevance vector machines share: fits of maximal evidence."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.evidence import (
    METHODS,
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    fit_rvm,
    predictive_moments,
)
from pcvm_pymc.core.pieces.centres import Centres, as_centres
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.pieces.likelihood import Weighted, weighted_target
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import Status
from pcvm_pymc.core.validity import rvm_validity
from pcvm_pymc.estimators.base import CV_EFFECT, WIDTH_EFFECT, KernelMachine
from pcvm_pymc.estimators.em_classifier import WIDTH_ROWS
from pcvm_pymc.estimators.parameters import Conditional, has_width, named_likelihood

__all__ = ["RelevanceVectorMachine"]

_RANKING_TOLERANCE = 1e-3  # a fit that only ranks a width need not be run to its last digit


class RelevanceVectorMachine(KernelMachine):
    """What classifier and regressor share: fits of maximal evidence, and their moments."""

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"method": tuple(METHODS)}
    _least: ClassVar[dict[str, int]] = {"cv": 2}
    _conditional: ClassVar[tuple[Conditional, ...]] = (WIDTH_EFFECT, CV_EFFECT)
    _scores_all_rows = True
    _argument = "likelihood"  # what the likelihood goes by

    def _check_parameters(self) -> None:
        given = getattr(self, self._argument)
        self._likelihood_ = named_likelihood(given, self._system.likelihoods, self._argument)
        _ = self._options

    def _check_sequential(self) -> None:
        """Raise unless the search is one for which bases may be computed when needed."""
        if self.method != "sequential":
            raise ValueError(
                f"method={self.method!r} needs the basis functions of all rows at every step; with a "
                "memory_limit needed method='sequential'"
            )

    @property
    def _options(self) -> EvidenceOptions:
        seed = as_seed(self.random_state) if self.method == "random" else None
        return EvidenceOptions(max_iter=self.max_iter, tol=self.tol, random_state=seed)

    @property
    def _looser(self) -> dict[str, Any]:
        return {**super()._looser, "tol": max(self.tol, _RANKING_TOLERANCE)}

    def _bases(self, X: Array) -> Centres:
        return as_centres(self.basis, X, None)

    def _problem(self, Phi: Any, target: Array) -> EvidenceProblem:
        likelihood, weight = self._likelihood_, vars(self).get("_row_weight_")
        if weight is not None:
            target, likelihood = weighted_target(target, weight), Weighted(likelihood)
        return EvidenceProblem(Phi, target, likelihood, noise=getattr(self, "noise", None))

    def _scores(self, X: Array, y: NDArray[Any], widths: Array) -> Array:
        """Return the log evidence of fits to all rows, or the log validity of their kernels."""
        options = replace(self._options, tol=max(self.tol, _RANKING_TOLERANCE))
        centres, scores = self._bases(X), []
        for width in widths.tolist():
            Phi = as_kernel(self.kernel, width)(X, centres.points)
            problem = self._problem(Phi, self._target(y))
            result = fit_rvm(problem, method=self.method, options=options)
            if self.width == "validity":
                found = rvm_validity(X, problem, result, width=width, centres=centres.points)
                scores.append(found.log_validity)
            else:
                scores.append(result.log_evidence)
        return np.array(scores)

    def _target(self, y: NDArray[Any]) -> Array:
        """Return what the likelihood has for a target, of what rows are known by."""
        return y

    def _fit_evidence(self, X: Array, y: NDArray[Any]) -> EvidenceProblem:
        """Choose the width and fit; return the problem at the width chosen."""
        centres, limit = self._bases(X), self.memory_limit
        if limit is None:
            check_room(len(X), len(centres))
        else:
            ComputedBases(X, centres.points, as_kernel(self.kernel, 1.0), limit)  # is there room?
        rng = np.random.default_rng(as_seed(self.random_state))
        width = self._width(X, y, rng) if limit is None else self._width_by_some(X, y, rng)
        kernel = as_kernel(self.kernel, width)
        if limit is None:
            Phi: Any = kernel(X, centres.points)
        else:
            Phi = ComputedBases(X, centres.points, kernel, limit)
        problem = self._problem(Phi, self._target(y))
        self._set_fit(problem, centres, width)
        return problem

    def _width_by_some(self, X: Array, y: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return the width, chosen on some of the rows where it is not given."""
        if not (isinstance(self.width, str) and has_width(self.kernel)):
            return self._width(X, y, rng)
        some = self._share(y, rng)
        weight = vars(self).get("_row_weight_")
        if weight is not None:
            self.__dict__.update(_row_weight_=weight[some])
        width = self._width(X[some], y[some], rng)
        if weight is not None:
            self.__dict__.update(_row_weight_=weight)
        return width

    def _share(self, y: NDArray[Any], rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the rows by which a width is chosen."""
        return np.sort(rng.choice(len(y), min(len(y), WIDTH_ROWS), replace=False))

    def _set_fit(self, problem: EvidenceProblem, centres: Centres, width: Any) -> None:
        """Fit a problem, and set the fitted attributes."""
        result = fit_rvm(problem, method=self.method, options=self._options)
        self._result_ = result
        self._set_weights(centres, result.weight, result.bias, width)
        # all that are active, also those whose mean is zero
        self.support_ = centres.rows[result.active]
        self.relevance_vectors_ = centres.points[result.active]
        self.weight_ = result.weight[result.active]
        self.covariance_ = result.covariance
        self.log_evidence_ = result.log_evidence
        self.n_iter_ = result.n_iter
        self.status_ = result.status
        if result.status is Status.ITERATION_LIMIT:
            self._warn("evidence", result.status)

    def _moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of the latent function at new rows."""
        return predictive_moments(self._kernel_(X, self.relevance_vectors_), self._result_)
