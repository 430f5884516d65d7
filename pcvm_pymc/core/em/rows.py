"""What EM needs of the rows at a point: log likelihood, slopes and Gram matrices, dense or streamed."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pcvm_pymc.core.design import FirstResponses, StreamedDesign, times, transposed_times
from pcvm_pymc.core.pieces.likelihoods import RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import LEAST_SINGLE, BorderedGram, Gram, Index, PartialGram

# of a latent value: the largest change after which a streamed Gram matrix still serves, curvatures having
# changed by a tenth
_NEAR = 0.1
# rows per column of a streamed Gram matrix that are enough for a Newton step
_ROWS_PER_COLUMN = 100
_COMPACT_BELOW = 0.7  # share of a dense design's columns in use below which the others are left out


@dataclass(frozen=True)
class Point:
    """A point of EM: weights and biases, with log posterior, slopes and curvatures of the rows.

    Attributes
    ----------
    weight : ndarray, shape (n_basis, n_scores)
    bias : ndarray, shape (n_scores,)
    log_posterior : float
    change : float
        The largest change of a latent value since the point before, or a bound of it.
    width : float or ndarray
    latent : ndarray, shape (n_obs, n_scores)
        Empty where the design is streamed.
    terms : RowTerms
        Slopes and curvatures of the rows; empty where the design is streamed.
    gradient : ndarray, shape (n_columns, n_scores)
        Phi' g, g the slopes of the rows.
    total : ndarray, shape (n_scores,)
        1' g.
    """

    weight: Array
    bias: Array
    log_posterior: float
    change: float
    width: Any
    latent: Array = field(repr=False)
    terms: RowTerms = field(repr=False)
    gradient: Array = field(repr=False)
    total: Array = field(repr=False)

    @cached_property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


class _EMRows:
    """Rows of an EM fit, dense or streamed: the design's columns in use, and Gram matrices.

    Attributes
    ----------
    Phi : ndarray or StreamedDesign
        The design's columns that are in use. Where the prior prunes weights for good, theirs are left out.
    width : float or ndarray
        With which they were made.
    index : ndarray of int, shape (n_columns,)
        Which these are.
    sign : ndarray, shape (n_columns, n_scores)
    couples : bool
        Whether Newton steps are of all scores at once. Not under a prior that prunes for good, where these
        longer steps end in poorer local maxima.
    is_given : bool
        Whether slopes at the start are those of given responses, not of its weights.
    grams : dict
        The last Gram matrix of each kind of row weights, see `SumsRequest`.
    """

    size: Any = 1.0
    moves: Any = None
    is_single, compact_below = False, 1.0

    def __init__(self, problem: Problem) -> None:
        self.problem, self.Phi, self.width = problem, problem.Phi, problem.width
        self.index: Index = np.arange(problem.Phi.shape[1])
        self.sign = problem.weight_sign.reshape(-1, problem.n_scores)
        self.couples = problem.n_scores > 1 and not problem.hyperprior.holds_zeros
        self.is_given = False
        self.grams: dict[str, Any] = {}

    def shrink(self, point: Point) -> Point:
        """Leave out columns whose weights are zero for good, once that saves real work."""
        prior, enough = self.problem.hyperprior, self.compact_below * len(self.index)
        drops_zeros = prior.holds_zeros and prior.penalty == 0
        if not drops_zeros or point.n_active >= enough * self.problem.n_scores:
            return point
        keep = np.flatnonzero(point.weight[self.index].any(axis=1))
        if len(keep) >= enough:
            return point
        self.index, self.sign = self.index[keep], self.sign[keep]
        if isinstance(self.Phi, StreamedDesign):
            self.Phi = replace(self.Phi, centres=self.Phi.centres[keep])
        else:
            self.Phi = np.asfortranarray(self.Phi[:, keep])
        self.moves = self.moves and self.moves.take(keep)
        self.grams = {kind: gram.take(keep, self.Phi) for kind, gram in self.grams.items()}
        return replace(point, gradient=point.gradient[keep])


class DenseRows(_EMRows):
    """Rows of a dense design."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.moves, self.compact_below = problem.moves, _COMPACT_BELOW
        if not problem.is_signed and problem.n_scores == 1:
            #: largest size of each basis function, shape (n_basis, 1); one under a sign rule
            self.size = np.abs(problem.Phi).max(axis=0, initial=0.0)[:, None]

    @cached_property
    def single(self) -> Array:
        """The basis functions in single precision, for products of coupled steps."""
        values: Array = self.Phi.astype(np.float32)
        values[np.abs(values) < LEAST_SINGLE] = 0.0  # products would be slow
        return values

    def first(self, weight: Array, bias: Array, response: Array | None) -> Point:
        """Return the start; slopes are those of given responses, if any."""
        point = self.at(weight, bias, None)
        if response is None:
            return point
        self.is_given = True
        away = response.reshape(point.latent.shape) - point.latent
        slope = times_weight(self.problem.row_weight, self.problem.likelihood.bound * away)
        terms, gradient = point.terms._replace(slope=slope), transposed_times(self.Phi, slope)
        return replace(point, terms=terms, gradient=gradient, total=slope.sum(axis=0))

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases."""
        problem = self.problem
        latent = times(self.Phi, weight[self.index]) + bias
        terms = problem.observed.terms(latent)
        value = terms.log_likelihood + problem.log_prior(weight, bias)
        if self.moves is not None:
            value += self.moves.log_density(self.width)
        change = np.nan if old is None else float(np.abs(latent - old.latent).max())
        gradient, total = transposed_times(self.Phi, terms.slope), terms.slope.sum(axis=0)
        return Point(weight, bias, value, change, self.width, latent, terms, gradient, total)

    def gram(self, point: Point, kind: str) -> Gram:
        """Return the Gram matrix under the rows' own weights, or under weights near their curvature.

        The latter, of one score, has only the columns that are asked for, in single precision where the
        prior prunes nothing for good, and rows are renewed as their curvature changes.
        """
        problem, grams = self.problem, self.grams
        if kind == "curvature" and problem.n_scores > 1:
            return BorderedGram.of(self.Phi, point.terms.curvature)
        if kind not in grams:
            grams.clear()  # not both in memory
            if kind == "unit":
                grams[kind] = BorderedGram.of(self.Phi, problem.row_weight)
            else:
                grams[kind] = PartialGram(self.Phi, single=not problem.hyperprior.holds_zeros)
        if kind == "curvature":
            grams[kind].follow(point.terms.curvature, expected(point.weight[self.index, 0]))
        return grams[kind]


class StreamedRows(_EMRows):
    """Rows of a streamed design: one pass over them for each point."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.couples &= self.Phi.coupled
        self.is_single, self.width = self.Phi.single, self.Phi.kernel.width

    def first(self, weight: Array, bias: Array, response: Array | None) -> Point:
        """Return the start; of several scores slopes are those of the likelihood's first responses."""
        if response is not None:
            raise ValueError("start.response is for rows in memory; needed None for chunks")
        if self.problem.n_scores == 1:
            return self.at(weight, bias, None, curved=True)
        self.is_given = True
        responses, bound = FirstResponses(self.problem.likelihood), self.problem.likelihood.bound
        point = self._pass(weight, bias, None, "unit", responses)
        return replace(point, gradient=bound * point.gradient, total=bound * point.total)

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases; `curved` also sums a Gram matrix for Newton's step."""
        is_near = old is not None and old.change < _NEAR
        kind = ("coupled" if self.couples else "curvature") if curved and not is_near else "none"
        return self._pass(weight, bias, old, kind, self.problem.likelihood.terms)

    def _pass(self, weight: Array, bias: Array, old: Point | None, kind: str, terms: Any) -> Point:
        problem, columns = self.problem, len(self.index) + 1
        # Slopes are summed over all rows, so that steps end at the same point. A matrix of some rows
        # makes good steps (Roosta-Khorasani & Mahoney 2019, Mathematical Programming 174).
        columns *= problem.n_scores if kind == "coupled" else 1
        share = problem.Phi.shape[0] // (_ROWS_PER_COLUMN * columns)
        at, every = (weight[self.index], bias), 1 if kind == "unit" else max(1, share)
        before = None if old is None else (old.weight[self.index], old.bias)
        hessian = problem.likelihood.hessian if kind == "coupled" else None
        sums = self.Phi.sums(at, terms, old=before, gram=kind, hessian=hessian, every=every)
        if sums.gram is not None:
            self.grams[kind] = sums.gram if kind == "coupled" else BorderedGram(sums.gram)
        value = sums.log_likelihood + problem.log_prior(weight, bias)
        change, nothing = np.nan if old is None else sums.change, np.empty((0, problem.n_scores))
        none = RowTerms(np.empty(0), nothing, np.empty(0))
        rest = none, sums.gradient, sums.total
        return Point(weight, bias, value, change, self.width, nothing, *rest)

    def gram(self, point: Point, kind: str) -> Any:
        """Return the last Gram matrix of a kind; it is summed here where there is none."""
        if kind not in self.grams:
            self._pass(point.weight, point.bias, point, kind, self.problem.likelihood.terms)
        return self.grams[kind]


def rows_of(problem: Problem) -> DenseRows | StreamedRows:
    """Return a problem's rows."""
    return (StreamedRows if isinstance(problem.Phi, StreamedDesign) else DenseRows)(problem)


def expected(old: Array) -> Any:
    """Return which weights are expected to be non-zero: those that are, or all."""
    return old != 0 if old.any() else np.ones(len(old), dtype=bool)
