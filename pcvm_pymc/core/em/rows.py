"""What EM needs of the rows at a point: log likelihood, slopes and Gram matrices, dense or streamed."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pcvm_pymc.core.design import FirstResponses, Index, StreamedDesign, times, transposed_times
from pcvm_pymc.core.pieces.likelihoods import RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import BorderedGram, Gram, PartialGram, in_single

# of a latent value: the largest change after which a streamed Gram matrix still serves, curvatures having
# changed by a tenth
_NEAR = 0.1
# rows per column of a streamed Gram matrix that are enough for a Newton step
_ROWS_PER_COLUMN = 100


@dataclass(frozen=True)
class Point:
    """Weights and biases, with what the rows say there.

    Attributes
    ----------
    weight : ndarray, shape (n_basis, n_scores)
    bias : ndarray, shape (n_scores,)
    log_posterior : float
    change : float
        The largest change of a latent value since the point before.
    width : float or ndarray
    latent : ndarray, shape (n_obs, n_scores)
        Empty where the design is streamed.
    terms : RowTerms
        Slopes and curvatures of the rows; empty where the design is streamed.
    pull : ndarray, shape (n_columns, n_scores)
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
    pull: Array = field(repr=False)
    total: Array = field(repr=False)

    @cached_property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


class _Rows:
    """What dense and streamed rows have in common.

    Attributes
    ----------
    index : ndarray of int, shape (n_columns,)
        Columns of the design that are in use.
    sign : ndarray, shape (n_columns, n_scores)
    couples : bool
        Whether Newton steps are of all scores at once. Not under a prior that prunes for good, where these
        longer steps end in poorer local maxima.
    drops_zeros : bool
        Whether a weight that is zero stays zero.
    """

    def __init__(self, problem: Problem) -> None:
        prior, self.problem = problem.hyperprior, problem
        self.index: Index = np.arange(problem.Phi.shape[1])
        self.sign = problem.weight_sign.reshape(-1, problem.n_scores)
        self.couples = problem.n_scores > 1 and not prior.holds_zeros
        self.drops_zeros = bool(prior.holds_zeros and prior.penalty == 0)


class DenseRows(_Rows):
    """Rows of a dense design, and its columns that are still in the model.

    Where the prior prunes weights for good, their columns are left out.
    """

    _COMPACT_BELOW = 0.7  # share of the columns in use below which the others are left out

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.Phi: Array = problem.Phi
        self.moves: Any = problem.moves
        self._unit: BorderedGram | None = None
        self._partial: PartialGram | None = None

    @cached_property
    def size(self) -> Array:
        """Largest size of each basis function, shape (n_basis, 1); ones under a sign rule."""
        if self.problem.is_signed or self.problem.n_scores > 1:
            return np.ones((self.problem.Phi.shape[1], 1))
        return np.abs(self.problem.Phi).max(axis=0, initial=0.0)[:, None]

    @cached_property
    def single(self) -> Array:
        """The basis functions in single precision, for products of coupled steps."""
        return in_single(self.Phi)

    def first(self, weight: Array, bias: Array, response: Array | None) -> Point:
        """Return the start; slopes are those of given responses, if any."""
        point = self.at(weight, bias, None)
        if response is None:
            return point
        slope = response.reshape(point.latent.shape) - point.latent
        if self.problem.row_weight is not None:
            slope = self.problem.row_weight[:, None] * slope
        slope = self.problem.likelihood.bound * slope
        pull, total = transposed_times(self.Phi, slope), slope.sum(axis=0)
        return replace(point, terms=point.terms._replace(slope=slope), pull=pull, total=total)

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases."""
        width = self.problem.width if old is None else old.width
        return self.at_width(weight, bias, old, width, self.Phi)

    def at_width(
        self, weight: Array, bias: Array, old: Point | None, width: Any, Phi: Array
    ) -> Point:
        """Return the point at a width, with the basis functions there."""
        latent = times(Phi, weight[self.index]) + bias
        terms = self.problem.likelihood.terms(latent, self.problem.label)
        value = terms.log_likelihood + self.problem.log_prior(weight, bias)
        if self.moves is not None:
            value += self.moves.log_density(width)
        change = np.nan if old is None else float(np.abs(latent - old.latent).max())
        pull, total = transposed_times(Phi, terms.slope), terms.slope.sum(axis=0)
        return Point(weight, bias, value, change, width, latent, terms, pull, total)

    def set_basis(self, Phi: Array) -> None:
        """Go on with the basis functions of another width."""
        self.Phi = Phi
        self._unit = self._partial = None

    def gram(self, point: Point, *, newton: bool) -> Gram:
        """Return the Gram matrix under the rows' own weights, or under weights near their curvature.

        The latter, of one score, has only the columns that are asked for, in single precision where the
        prior prunes nothing for good, and rows are renewed as their curvature changes.
        """
        if not newton:
            if self._unit is None:
                self._partial = None  # not both in memory
                self._unit = BorderedGram.of(self.Phi, self.problem.row_weight)
            return self._unit
        if self.problem.n_scores > 1:
            return BorderedGram.of(self.Phi, point.terms.curvature)
        if self._partial is None:
            self._unit = None
            prior = self.problem.hyperprior
            self._partial = PartialGram(self.Phi, single=not prior.holds_zeros)
        self._partial.follow(point.terms.curvature, expected(point.weight[self.index, 0]))
        return self._partial

    def shrink(self, point: Point) -> Point:
        """Leave out columns whose weights are zero for good, once that saves real work."""
        most = self._COMPACT_BELOW * len(self.index)
        if not self.drops_zeros or point.n_active > most * self.problem.n_scores:
            return point
        keep = np.flatnonzero(point.weight[self.index].any(axis=1))
        if len(keep) > most:
            return point
        self.index, self.sign = self.index[keep], self.sign[keep]
        self.Phi = np.asfortranarray(self.Phi[:, keep])
        if self._unit is not None:
            self._unit = self._unit.take(keep)
        if self._partial is not None:
            self._partial.take(keep, self.Phi)
        if self.moves is not None:
            self.moves = self.moves.take(keep)
        return replace(point, pull=point.pull[keep])


class StreamedRows(_Rows):
    """Rows of a streamed design: one pass over them for each point."""

    size = 1.0
    moves = None

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.design: StreamedDesign = problem.Phi
        self.couples &= self.design.coupled
        #: the last Gram matrix of each kind of row weights, see `Request`
        self.grams: dict[str, Any] = {}

    def first(self, weight: Array, bias: Array, response: Array | None) -> Point:
        """Return the start; of several scores slopes are those of the likelihood's first responses."""
        if response is not None:
            raise ValueError(
                "start.response was given for a streamed design, whose rows are not in memory; needed None"
            )
        if self.problem.n_scores == 1:
            return self.at(weight, bias, None, curved=True)
        point = self._pass(weight, bias, None, "unit", FirstResponses(self.problem.likelihood))
        bound = self.problem.likelihood.bound
        return replace(point, pull=bound * point.pull, total=bound * point.total)

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases; `curved` also sums a Gram matrix for Newton's step."""
        is_near = old is not None and old.change < _NEAR
        gram = ("coupled" if self.couples else "curvature") if curved and not is_near else "none"
        return self._pass(weight, bias, old, gram, self.problem.likelihood.terms)

    def _pass(self, weight: Array, bias: Array, old: Point | None, gram: str, terms: Any) -> Point:
        likelihood, n_scores = self.problem.likelihood, self.problem.n_scores
        before = None if old is None else (old.weight[self.index], old.bias)
        n_columns = (n_scores if gram == "coupled" else 1) * (len(self.index) + 1)
        # Slopes are summed over all rows, so that steps end at the same point. A matrix of some rows
        # makes good steps (Roosta-Khorasani & Mahoney 2019, Mathematical Programming 174).
        every = max(1, self.design.rows.n_obs // (_ROWS_PER_COLUMN * n_columns))
        every = 1 if gram == "unit" else every
        sums = self.design.take(self.index).sums(
            (weight[self.index], bias),
            terms,
            old=before,
            gram=gram,
            hessian=likelihood.hessian if gram == "coupled" else None,
            every=every,
        )
        if sums.gram is not None:
            self.grams[gram] = sums.gram if gram == "coupled" else BorderedGram(sums.gram)
        value = sums.log_likelihood + self.problem.log_prior(weight, bias)
        change, nothing = np.nan if old is None else sums.change, np.empty((0, n_scores))
        terms = RowTerms(sums.log_likelihood, nothing, np.empty(0))
        width = self.design.kernel.width
        return Point(weight, bias, value, change, width, nothing, terms, sums.pull, sums.total)

    def gram(self, point: Point, *, newton: bool) -> Gram:
        """Return the Gram matrix under the rows' own weights, or under the curvature of the last pass."""
        if not newton and "unit" not in self.grams:
            self._pass(point.weight, point.bias, point, "unit", self.problem.likelihood.terms)
        return self.grams["curvature" if newton else "unit"]

    def shrink(self, point: Point) -> Point:
        """Leave out columns whose weights are zero for good, from sums and Gram matrices as well."""
        keep = np.flatnonzero(point.weight[self.index].any(axis=1))
        if not self.drops_zeros or len(keep) == len(self.index):
            return point
        self.index, self.sign = self.index[keep], self.sign[keep]
        self.grams = {kind: gram.take(keep) for kind, gram in self.grams.items()}
        return replace(point, pull=point.pull[keep])


def rows_of(problem: Problem) -> DenseRows | StreamedRows:
    """Return a problem's rows."""
    return (StreamedRows if isinstance(problem.Phi, StreamedDesign) else DenseRows)(problem)


def expected(old: Array) -> Any:
    """Return which weights are expected to be non-zero: those that are, or all."""
    return old != 0 if old.any() else np.ones(len(old), dtype=bool)
