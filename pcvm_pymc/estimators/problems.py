"""The problem of a fit at any width and scale, its rows in memory, in chunks or on Dask."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import is_classifier

from pcvm_pymc.core.design import ArrayRows, Rows, StreamedDesign
from pcvm_pymc.core.em import EMOptions, ScalarRBFMoves, fit_em
from pcvm_pymc.core.pieces.centres import Centres, Index, choose_share, copied_rows
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, rbf, squared_distances, width_bounds
from pcvm_pymc.core.pieces.likelihood import Weighted, majority_label, weighted_target
from pcvm_pymc.core.pieces.likelihood import against_rest as labels_against_rest
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room, chunk_rows, has_room_for_coupled
from pcvm_pymc.core.pieces.validation import as_features
from pcvm_pymc.core.problem import EMResult, Problem, Status
from pcvm_pymc.estimators import base

WIDTH_ROWS = 5000  # by which a width is chosen where the rows are streamed

#: changes at which a fit stops that only ranks candidates: looser than a fit that is kept, with the same
#: choice (held-out log losses agree to about 1e-3)
ROUGH = {
    "leave-one-out": 1e-2,  # latent value, EM at a grid point
    "class by class": 0.2,  # the same, one class against the rest: the best points are fitted again
    "folds": 0.05,  # latent value, EM of a fold under a proper prior
    "folds, improper": 1e-3,  # the same where weights are pruned, late at times
    "evidence": 1e-3,  # nats of log evidence
    "bottom-up": 0.1,  # log precision
}


@dataclass(frozen=True)
class TrainingData:
    """Training rows, checked.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
        All rows that count, or some of those on Dask.
    label : ndarray, shape (n_obs,)
        -1. and +1., or numbers of the classes.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts; None for once.
    given : ndarray of int, shape (n_obs,), optional
        Numbers of the rows among those that were given, where rows of weight zero are left out.
    stream : Rows, optional
        All rows, where they are on Dask.
    copies : ndarray of int, shape (n_counting,), optional
        Which of the rows each row that was given and counts equals, where some are equal.
    groups : ndarray, shape (n_obs,), optional
        Rows of one group are held out together.
    """

    X: Array
    label: NDArray[Any]
    weight: Array | None = None
    given: Index | None = None
    stream: Rows | None = None
    copies: Index | None = None
    groups: NDArray[Any] | None = None

    def merged(self) -> "TrainingData":
        """Return copies of a row (see `copied_rows`) once, with the sum of their weights.

        A row left out would otherwise still be there, in its copy.
        """
        first, copies = copied_rows(self.X, self.label)
        if len(first) == len(self.X):
            return self
        given = first if self.given is None else self.given[first]
        weight = np.bincount(copies, self.weight).astype(float)
        groups = None if self.groups is None else self.groups[first]
        return TrainingData(
            self.X[first], self.label[first], weight, given, copies=copies, groups=groups
        )

    def basis(self, model: Any) -> Any:
        """Return an estimator's `basis`: a number is at most that of the rows that differ."""
        basis = base.basis_of(model, len(self.X))
        if self.copies is None or not isinstance(basis, Integral) or int(basis) > len(self.copies):
            return basis
        return min(int(basis), len(self.X))

    def of_all(self, values: Array) -> Array:
        """Return values of the rows for all that were given and count, one of each copy."""
        return values if self.copies is None else values[self.copies]

    @property
    def target(self) -> NDArray[Any]:
        """Labels; for weighted rows shape (n_obs, 2), labels and weights."""
        return self.label if self.weight is None else weighted_target(self.label, self.weight)

    def numbers(self, rows: Index) -> Index:
        """Return the numbers of rows among those that were given; -1 stays, and is all there is on Dask."""
        if self.stream is not None:
            return np.full(len(rows), -1)
        return rows if self.given is None else np.where(rows < 0, -1, self.given[rows])

    def some(self, rows: Index) -> "TrainingData":
        """Return some of the rows, in memory."""
        weight, groups = (None if e is None else e[rows] for e in (self.weight, self.groups))
        return TrainingData(self.X[rows], self.label[rows], weight, groups=groups)


def width_rows(
    model: Any, data: TrainingData, in_chunks: bool, rng: np.random.Generator
) -> tuple[Index | None, int | None]:
    """Return the rows by which width and scale are chosen, None for all, and the most bases there."""
    many = base.is_many(model, len(data.X))
    if not (many or in_chunks):
        return None, None
    label = data.label if is_classifier(model) else np.zeros(len(data.X))
    rows = choose_share(label, base.MANY_SEARCH_ROWS if many else WIDTH_ROWS, rng)
    return rows, base.SEARCH_BASES if many else None


@dataclass(frozen=True)
class Problems:
    """The problem of a fit as a function of width and scale.

    Attributes
    ----------
    data : TrainingData
    centres : Centres
    kernel : str, callable or KernelPiece
    likelihood : Likelihood
    prior : callable
        ``scale -> prior``.
    options : EMOptions or BottomUpOptions
        Whose type is the solver.
    bias : {"prior", "free", "none"}
    shared : bool
        Whether a basis is dropped for all scores or for none.
    rows : Rows, optional
        The rows in chunks, where the basis functions are streamed.
    single, coupled : bool
        For rows in chunks: single precision; whether Newton steps may be of all scores at once.
    solver : callable, optional
        ``(problem) -> result``, in place of EM or the search from the bottom up.
    squared : ndarray, shape (n_obs, n_basis), optional
        Squared distances, where many widths of the RBF are tried.
    """

    data: TrainingData
    centres: Centres
    kernel: Kernel
    likelihood: Likelihood
    prior: Callable[[float], Any]
    options: Any
    bias: Any = "prior"
    shared: bool = False
    rows: Rows | None = None
    single: bool = False
    coupled: bool = False
    solver: Any = None
    squared: Array | None = None

    def for_model(self, model: Any, *, chunks: bool = False) -> "Problems":
        """Return the same with rows in chunks where an estimator's arguments ask for it.

        With `chunks` also many rows of one score; in single precision, which takes half the time, where no
        weight goes to zero by its prior.
        """
        data, limit, n_basis = self.data, model.memory_limit, len(self.centres)
        n_scores, single = self.likelihood.n_scores, model.kernel_dtype == "float32"
        if limit is None and data.stream is None:
            if not (chunks and n_scores == 1 and base.is_many(model, len(data.X))):
                check_room(len(data.X), n_basis)
                return self
            limit, single = base.MANY_BYTES, not self.prior(1.0).holds_zeros
        n_jobs = effective_n_jobs(model.n_jobs)
        coupled = n_scores > 1 and has_room_for_coupled(limit, n_basis, n_scores, n_jobs)
        rows = data.stream
        if rows is None:
            size = (n_basis, data.X.shape[1], n_jobs, n_scores)
            chunk = chunk_rows(limit, *size, coupled=coupled)
            rows = ArrayRows(data.X, data.target, chunk, n_jobs)
        return replace(self, rows=rows, single=single, coupled=coupled)

    def many_widths(self) -> "Problems":
        """Return the same with what is equal at all widths computed once."""
        if not base.is_rbf(self.kernel):
            return self
        return replace(self, squared=squared_distances(self.data.X, self.centres.points))

    def at(self, width: Any, scale: float = 1.0, *, moves: bool = False) -> Problem:
        """Return the problem at a width and scale; `moves` lets EM move the width of the RBF."""
        centres, kernel = self.centres, as_kernel(self.kernel, width)
        label: Any = self.data.label
        mover = None
        if self.rows is not None:
            majority = majority_label(label, self.data.weight)
            Phi: Any = StreamedDesign(
                self.rows, centres.points, kernel, self.single, majority, self.coupled
            )
            label = None
        elif moves:
            squared = squared_distances(self.data.X, centres.points)
            mover = ScalarRBFMoves(squared, width_bounds(self.data.X))
            Phi = mover.basis(width)
        elif self.squared is not None and np.ndim(width) == 0:
            Phi = rbf(self.squared, width)
        else:
            Phi = np.ascontiguousarray(kernel(self.data.X, centres.points))
        return Problem(
            Phi,
            label,
            centres.sign,
            self.prior(scale),
            self.likelihood,
            bias=self.bias,
            shared=self.shared,
            width=width,
            moves=mover,
        ).weighted(self.data.weight)

    def solved(self, problem: Problem) -> EMResult:
        """Return the posterior mode, or where the search from the bottom up ends."""
        if self.solver is not None:
            found: EMResult = self.solver(problem)
            return found
        if isinstance(self.options, EMOptions):
            return fit_em(problem, None, self.options)
        from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up  # slow: compiled

        result = fit_bottom_up(problem, self.options)
        if result.status is not Status.EMPTY_MODEL or self.options.most == 1:
            return result
        plain = BottomUpOptions(max_iter=self.options.max_iter, tol=self.options.tol)
        return fit_bottom_up(problem, plain)


def against_rest(problem: Problem, number: int) -> Problem:
    """Return the problem of one class against the rest under the probit, rows in memory or in chunks."""
    Phi, label, weighted = problem.Phi, problem.label, isinstance(problem.likelihood, Weighted)
    if label is None:
        Phi = replace(Phi, rows=Phi.rows.against_rest(number))
    else:
        label = labels_against_rest(label, number)
    sign = None if problem.sign is None else problem.sign[:, number]
    likelihood = Weighted(Probit()) if weighted else Probit()
    return replace(problem, Phi=Phi, label=label, sign=sign, likelihood=likelihood)


def basis_for(basis: Any, X: Array, rows: Index) -> Any:
    """Return the argument `basis` for a fit to some of the rows.

    A number is at most theirs; centres that are other training rows go, since their signs tell labels.
    """
    if isinstance(basis, Integral):
        return min(basis, len(rows))
    if not isinstance(basis, tuple):
        return basis
    points = as_features(basis[0], "basis", X.shape[1])
    columns = Centres.among(X, points, None).columns_of(rows)
    return points[columns], np.asarray(basis[1])[columns]
