"""Classifiers of a posterior mode, by EM or from the bottom up; rows in memory, in chunks or on Dask."""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.approximation import NormalPosterior, normal_posterior
from pcvm_pymc.core.em import Chunks, EMOptions, EMResult, Start, fit_em
from pcvm_pymc.core.em.rows import ArrayRows, Rows, chunk_rows, has_room_for_coupled
from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up
from pcvm_pymc.core.pieces.centres import Centres, choose_share
from pcvm_pymc.core.pieces.kernels import KernelPiece, as_kernel
from pcvm_pymc.core.pieces.likelihood import Weighted, majority_label, weighted_target
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.intervals import LatentNormal, of_machines
from pcvm_pymc.estimators.parameters import Conditional

__all__ = ["IN_CHUNKS", "WIDTH_ROWS", "EMClassifier", "Training"]

WIDTH_ROWS = 5000  # by which a width is chosen where the rows are too many to be held

#: for the tables of arguments that have an effect in some combinations only
IN_CHUNKS = Conditional(
    "kernel_dtype",
    "float64",
    ("memory_limit",),
    lambda model: model._in_chunks,
    "rows in chunks (a memory_limit, or Dask arrays)",
)


class Training(NamedTuple):
    """Rows in memory, all of them or some of those that lie elsewhere, and the bases."""

    X: Array
    label: NDArray[Any]
    centres: Centres
    weight: Array | None = None


class Mode(NamedTuple):
    """A mode, its share of an average, and what its posterior is made of.

    Attributes
    ----------
    share : float
    basis : callable
        From rows to basis functions, shape (n, n_relevance).
    weight : ndarray, shape (n_relevance,) or (n_relevance, n_scores)
    bias : float or ndarray, shape (n_scores,)
    prior : Hyperprior, SharedHyperprior or Laplace
    """

    share: float
    basis: Callable[[Array], Array]
    weight: Array
    bias: Any
    prior: Any


def with_ones(Phi: Array) -> Array:
    """Return basis functions and a constant."""
    return np.column_stack([Phi, np.ones(len(Phi))])


class EMClassifier(KernelClassifier):
    """Base of the classifiers that are fitted to a posterior mode."""

    #: default tolerances of the solvers
    _tolerance: ClassVar[dict[str, float]] = {"em": 1e-5, "bottom-up": 1e-2}
    #: what rows in chunks need of other arguments, and the same in words
    _chunk_rules: ClassVar[dict[str, Callable[[Any], bool]]] = {}
    _chunk_words: ClassVar[str] = ""
    _is_lazy_: bool = False

    @property
    def _solver(self) -> str:
        return "em"

    @property
    def _is_quick(self) -> bool:
        """Whether a search from the bottom up makes several changes under the same responses."""
        return False

    def _fit(self, X: Any, y: Any) -> None:
        rng = np.random.default_rng(as_seed(getattr(self, "random_state", 0)))
        data, rows = self._of_dask(X, y) if self._is_lazy_ else self._of_array(X, y)
        self._likelihood_ = self._likelihood(len(self.classes_))
        if rows is None:
            width = self._width(data.X, data.label, rng)
            results = self._fit_whole(data, width, rng)
        else:
            few = choose_share(data.label, WIDTH_ROWS, rng)
            self.__dict__.update(_row_weight_=None if data.weight is None else data.weight[few])
            width = self._width(data.X[few], data.label[few], rng)
            results = self._fit_rows(rows, data, width)
        self._store(data.centres, results)
        if rows is None:
            self._training_ = self._own_rows(data), data.label, data.weight
        self._finish(data, results, rng)
        self._warn(
            "EM" if self._solver == "em" else self._solver, *(each.status for each in results)
        )

    def _own_rows(self, data: Training) -> Array:
        """Return rows that are not the caller's array: the vectors, if they are the rows, or a copy."""
        vectors: Array | None = vars(self).get("relevance_vectors_")
        if vectors is not None and data.centres.points is data.X and len(vectors) == len(data.X):
            return vectors
        return np.array(data.X)

    # --- what a class says ---------------------------------------------------------------------

    def _centres(self, X: Array, label: NDArray[Any]) -> Centres:
        """Return where basis functions stand, and the signs of their weights."""
        return self._centres_at(self.basis, X, label)

    def _centres_at(self, basis: Any, X: Array, label: NDArray[Any]) -> Centres:
        """Return the same of another argument `basis`."""
        raise NotImplementedError

    def _likelihood(self, n_classes: int) -> Likelihood:
        """Return the likelihood of a row's latent values."""
        raise NotImplementedError

    def _problem(self, Phi: Any, label: Any, centres: Centres, width: Any) -> Problem:
        """Return what is to be solved."""
        raise NotImplementedError

    def _start(self, problem: Problem, rng: np.random.Generator) -> Start | None:
        """Return where the solver begins, None for its default."""
        return None

    def _finish(self, data: Training, results: list[EMResult], rng: np.random.Generator) -> None:
        """Do what follows upon the fit."""

    # --- the posterior around the mode ----------------------------------------------------------

    def _modes(self) -> list[Mode]:
        """Return the modes of the fit."""
        return [Mode(1.0, self._basis_functions, self.weight_.T, self.bias_, self._prior)]

    def _basis_functions(self, X: Array) -> Array:
        return self._kernel_(X, self.relevance_vectors_)

    def _bias_precision(self, mode: Mode) -> Any:
        return mode.prior.bias_precision(mode.bias)

    def _machines(self, label: NDArray[Any]) -> list[tuple[slice, NDArray[Any]]]:
        """Return the scores that belong to one likelihood, and its targets."""
        return [(slice(None), label)]

    def _posterior(self) -> Callable[[Array], list[LatentNormal]]:
        if self._solver != "em" or "_training_" not in vars(self):
            raise ValueError(
                "the fit has no posterior around a mode: it was found from the bottom up, projected onto few "
                "vectors, or its rows went in chunks; needed a mode or an average, by EM from rows in memory"
            )
        parts = [(mode, self._normals(mode)) for mode in self._modes()]

        def at(X: Array) -> list[LatentNormal]:
            out = []
            for mode, normals in parts:
                design = with_ones(mode.basis(X))
                each = [normal.latent(design) for normal in normals]
                if len(each) == 1:
                    out.append(LatentNormal(mode.share, *each[0]))
                else:
                    out.append(of_machines([(mean[:, 0], cov[:, 0, 0]) for mean, cov in each]))
            return out

        return at

    def _normals(self, mode: Mode) -> list[NormalPosterior]:
        """Return the normal posterior around a mode, of each machine."""
        X, label, weight = self._training_
        value = mode.weight.reshape(len(mode.weight), -1)
        theta = np.vstack([value, np.atleast_1d(mode.bias)])
        with np.errstate(divide="ignore"):
            precision = np.vstack([mode.prior.weight_precision(value), self._bias_precision(mode)])
        precision = np.where(theta == 0, np.inf, precision)
        likelihood, design = self._likelihood_, with_ones(mode.basis(X))
        if weight is not None:
            likelihood = Weighted(likelihood)
        return [
            normal_posterior(
                design,
                target if weight is None else weighted_target(target, weight),
                likelihood,
                theta[:, own],
                precision[:, own],
            )
            for own, target in self._machines(label)
        ]

    # --- arguments -----------------------------------------------------------------------------

    @property
    def _in_chunks(self) -> bool:
        return self.memory_limit is not None or self._is_lazy_

    def _check_parameters(self) -> None:
        rules = self._chunk_rules
        if self._in_chunks and not all(rule(getattr(self, name)) for name, rule in rules.items()):
            found = ", ".join(f"{name}={getattr(self, name)!r}" for name in rules)
            raise ValueError(
                f"{found}: rows in chunks (memory_limit, or Dask arrays) need {self._chunk_words}"
            )

        if self._in_chunks and self._solver != "em" and self.kernel_dtype == "float32":
            raise ValueError(
                "kernel_dtype='float32' was given from the bottom up, where the digits that it loses decide "
                "which bases come; needed 'float64', or an estimation by EM"
            )

    @property
    def _options(self) -> EMOptions:
        """How EM runs; under ``"clip"`` as the authors' program."""
        update: Any = getattr(self, "update", "auto")
        if update == "clip":
            recipe = replace(EMOptions.chen2009(), max_iter=self.max_iter)
            return recipe if self.tol is None else replace(recipe, tol=self.tol)
        tol = self._tolerance["em"] if self.tol is None else self.tol
        return EMOptions(update=update, max_iter=self.max_iter, tol=tol)

    # --- rows ----------------------------------------------------------------------------------

    def _of_array(self, X: ArrayLike, y: ArrayLike) -> tuple[Training, Rows | None]:
        """Return rows and bases, and the rows in chunks if they are to go in chunks."""
        X, label = self._arrays(X, y)
        centres = self._centres(X, label)
        if not self._in_chunks:
            check_room(len(X), len(centres))
            return Training(X, label, centres, self._weight), None
        n_jobs = effective_n_jobs(self.n_jobs)
        n_scores = self._likelihood(len(self.classes_)).n_scores
        size, coupled = (len(centres), X.shape[1]), self._couples(len(centres))
        chunk = chunk_rows(self.memory_limit, *size, n_jobs, n_scores, coupled=coupled)
        data = Training(X, label, centres, self._weight)
        known = label if data.weight is None else weighted_target(label, data.weight)
        return data, ArrayRows(X, known, chunk, n_jobs)

    @property
    def _weight(self) -> Array | None:
        """How often the rows at hand count; None for once each."""
        return vars(self).get("_row_weight_")

    def _of_dask(self, X: Any, y: Any) -> tuple[Training, Rows]:
        """Return the same of Dask arrays, with some of the rows for inputs."""
        from pcvm_pymc.estimators.cluster import dask_rows, gathered

        if self.basis is None:
            kind = "labels" if self._takes_several else "signs"
            raise ValueError(
                "basis=None is a basis function on every row; for Dask arrays needed a number of rows to "
                f"choose, or (centres, {kind})"
            )
        points = self.basis[0] if isinstance(self.basis, tuple) else self.basis
        n_basis = int(points) if isinstance(points, Integral) else len(points)
        limit = np.inf if self.memory_limit is None else self.memory_limit
        chunk = chunk_rows(limit, n_basis, X.shape[-1])
        rows, self.classes_ = dask_rows(X, y, chunk, several=self._takes_several)
        some, label = gathered(rows, max(WIDTH_ROWS, 20 * n_basis))
        self.n_features_in_ = X.shape[1]
        centres = self._centres(some, label)
        return Training(some, label, replace(centres, rows=np.full(len(centres), -1))), rows

    # --- fits ----------------------------------------------------------------------------------

    def _fit_whole(self, data: Training, width: Any, rng: np.random.Generator) -> list[EMResult]:
        """Fit with the basis functions of all rows in memory."""
        Phi = as_kernel(self.kernel, width)(data.X, data.centres.points)
        problem = self._problem(Phi, data.label, data.centres, width).weighted(data.weight)
        return [self._solved(problem, self._start(problem, rng))]

    def _fit_rows(self, rows: Rows, data: Training, width: Any) -> list[EMResult]:
        """Fit with rows in chunks."""
        return [
            self._solved(
                self._chunked(rows, data.centres, width, majority_label(data.label, data.weight))
            )
        ]

    def _chunked(self, rows: Rows, centres: Centres, width: Any, majority: float = 1.0) -> Problem:
        Phi = Chunks(
            rows,
            centres.points,
            self._kernel(width),
            single=self.kernel_dtype == "float32",
            majority=majority,
            coupled=self._couples(len(centres)),
        )
        return self._problem(Phi, None, centres, width).weighted(self._weight)

    def _couples(self, n_basis: int) -> bool:
        """Return whether Newton steps in chunks may be of all scores at once."""
        n_scores = self._likelihood(len(self.classes_)).n_scores
        n_jobs = effective_n_jobs(self.n_jobs)
        return n_scores > 1 and has_room_for_coupled(self.memory_limit, n_basis, n_scores, n_jobs)

    def _kernel(self, width: Any) -> KernelPiece:
        """Return what makes the basis functions of rows in chunks."""
        return as_kernel(self.kernel, width)

    def _solved(self, problem: Problem, start: Start | None = None) -> EMResult:
        """Return the posterior mode, or where the search from the bottom up ends."""
        if self._solver == "em":
            return fit_em(problem, start, self._options)
        tol = self._tolerance["bottom-up"] if self.tol is None else self.tol
        response = None if start is None else start.response
        if self._is_quick:
            options = BottomUpOptions.quick(max_iter=self.max_iter, tol=tol)
            result = fit_bottom_up(problem, response, options)
            if result.status is not Status.EMPTY_MODEL:
                return result
        return fit_bottom_up(problem, response, BottomUpOptions(max_iter=self.max_iter, tol=tol))

    def _store(self, centres: Centres, results: list[EMResult]) -> None:
        """Set the fitted attributes."""
        (result,) = results
        self._set_weights(centres, result.weight, result.bias, result.width)
        self.log_posterior_ = result.log_posterior
        self.n_iter_ = result.n_iter
        self.status_ = result.status
