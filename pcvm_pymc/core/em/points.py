"""Points of the iteration, and the rows that they are computed from: in memory, or in chunks."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.design import (
    CoupledGram,
    FirstResponses,
    StreamedDesign,
    times,
    transposed_times,
)
from pcvm_pymc.core.pieces.likelihoods import RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem, WidthMoves
from pcvm_pymc.core.quadratic import BorderedGram, Gram, Mask, PartialGram, in_single

__all__ = ["ChunkedRows", "Point", "WholeRows", "rows_of"]

type Index = NDArray[np.intp]

_NEAR = 0.1  # no row's curvature moves by more than a tenth: the Gram matrix at hand will do
_ROWS_PER_COLUMN = 100  # of a matrix that stands for all rows


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
        Empty for rows in chunks.
    terms : RowTerms
        Without rows for rows in chunks.
    pull : ndarray, shape (n_columns, n_scores), optional
        Phi' times the slopes of the rows; from rows in chunks.
    total : ndarray, shape (n_scores,), optional
        Sums of the slopes.
    """

    weight: Array
    bias: Array
    log_posterior: float
    change: float
    width: Any
    latent: Array = field(repr=False)
    terms: RowTerms = field(repr=False)
    pull: Array | None = field(default=None, repr=False)
    total: Array | None = field(default=None, repr=False)

    @cached_property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


def rows_of(problem: Problem) -> "WholeRows | ChunkedRows":
    """Return a problem's rows, in memory or in chunks."""
    return ChunkedRows(problem) if isinstance(problem.Phi, StreamedDesign) else WholeRows(problem)


def expected(old: Array) -> Mask:
    """Return which weights are expected to be non-zero: those that are, or all."""
    return old != 0 if old.any() else np.ones(len(old), dtype=bool)


def _signs(problem: Problem) -> Array:
    """Return the signs of the columns' weights, shape (n_columns, n_scores)."""
    return problem.weight_sign.reshape(problem.Phi.shape[1], problem.n_scores)


def _drops_zeros(problem: Problem) -> bool:
    """Whether a weight of zero is out for good: nothing releases it."""
    prior: Any = problem.hyperprior
    return bool(prior.holds_zeros and prior.penalty == 0)


def _couples(problem: Problem) -> bool:
    """Whether Newton steps are of all scores at once.

    Not under a prior that holds zeros, where these longer steps end in poorer local maxima.
    """
    prior: Any = problem.hyperprior
    return problem.n_scores > 1 and not prior.holds_zeros


class WholeRows:
    """Rows whose basis functions are in memory, and the columns of them that are still in play.

    Where zeros are for good the columns shrink as weights are pruned.
    """

    _COMPACT_BELOW = 0.7

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.index: Index = np.arange(problem.Phi.shape[1])
        self.sign = _signs(problem)
        self.Phi: Array = problem.Phi
        self.moves: WidthMoves | None = problem.moves
        self.couples = _couples(problem)
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
        """The basis functions in single precision, for coupled steps: their columns and widths stay."""
        return in_single(self.Phi)

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases."""
        latent = times(self.Phi, weight[self.index]) + bias
        width = self.problem.width if old is None else old.width
        return self._point(weight, bias, latent, width, old)

    def _point(
        self, weight: Array, bias: Array, latent: Array, width: Any, old: Point | None
    ) -> Point:
        terms = self.problem.likelihood.terms(latent, self.problem.label)
        value = terms.log_likelihood + self.problem.log_prior(weight, bias)
        if self.moves is not None:
            value += self.moves.log_density(width)
        change = np.nan if old is None else float(np.abs(latent - old.latent).max())
        return Point(weight, bias, value, change, width, latent, terms)

    def at_width(self, point: Point, width: Any) -> Point:
        """Return the point at another width; the rows stay at theirs."""
        assert self.moves is not None
        self._moved = self.moves.basis(width)
        latent = times(self._moved, point.weight[self.index]) + point.bias
        return self._point(point.weight, point.bias, latent, width, point)

    def set_width(self, point: Point, width: Any) -> Point:
        """Take over the basis functions of the point that `at_width` gave last."""
        self.Phi = self._moved
        self._unit = self._partial = None
        return point

    def unit_gram(self, point: Point) -> BorderedGram:
        """Return the Gram matrix under the rows' own weights, by default ones; it is kept."""
        if self._unit is None:
            self._partial = None  # not both in memory
            self._unit = BorderedGram.of(self.Phi, self.problem.row_weight)
        return self._unit

    def curved_gram(self, point: Point) -> tuple[Gram, float]:
        """Return a Gram matrix under row weights near the curvature, and the unit it is in, one.

        For one score of the columns that are asked for alone, its rows renewed as they move.
        """
        self._row_weight = point.terms.curvature
        if self.problem.n_scores > 1:
            return BorderedGram.of(self.Phi, self._row_weight), 1.0
        if self._partial is None:
            self._unit = None
            prior: Any = self.problem.hyperprior
            # zeros that are for good would be others
            self._partial = PartialGram(self.Phi, single=not prior.holds_zeros)
        self._partial.follow(self._row_weight, expected(point.weight[self.index, 0]))
        self._row_weight = self._partial.row_weight
        return self._partial, 1.0

    def target(
        self, point: Point, gram: Gram, response: Array | None, *, newton: bool
    ) -> tuple[Array, Array]:
        """Return Phi' r and 1' r, shape (n_columns, n_scores) and (n_scores,).

        The working response r is ``W f + g`` with the row weights W of a curved Gram matrix; in units
        of the bound, ``f + g / bound``, without one (for the probit the mean of the E-step, eq. 23).
        """
        if response is not None:
            response = self._counted(response)
        elif newton:
            response = self._row_weight[:, None] * point.latent + point.terms.slope
        else:
            slope = point.terms.slope / self.problem.likelihood.bound
            response = self._counted(point.latent) + slope
        return transposed_times(self.Phi, response), response.sum(axis=0)

    def _counted(self, values: Array) -> Array:
        """Return values of the rows, shape (n_obs, n_scores), as often as each row counts."""
        own = self.problem.row_weight
        return values if own is None else own[:, None] * values

    def gradient(self, point: Point) -> tuple[Array, Array]:
        """Return Phi' g and 1' g."""
        slope = point.terms.slope
        return transposed_times(self.Phi, slope), slope.sum(axis=0)

    def shrink(self, point: Point) -> Point:
        """Leave out columns whose weights are zero for good, once that saves real work."""
        if not _drops_zeros(self.problem):
            return point
        if point.n_active > self._COMPACT_BELOW * self.problem.n_scores * len(self.index):
            return point
        keep = np.flatnonzero(point.weight[self.index].any(axis=1))
        if len(keep) > self._COMPACT_BELOW * len(self.index):
            return point
        if self._unit is not None:
            self._unit = self._unit.take(keep)
        self.index, self.sign = self.index[keep], self.sign[keep]
        self.Phi = np.asfortranarray(self.Phi[:, keep])
        if self._partial is not None:
            self._partial.take(keep, self.Phi)
        if self.moves is not None:
            self.moves = self.moves.take(keep)
        return point


class ChunkedRows:
    """Rows that are only seen as sums: one pass for each point."""

    size = 1.0
    moves = None

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.chunks: StreamedDesign = problem.Phi
        self.index: Index = np.arange(len(self.chunks.centres))
        self.sign = _signs(problem)
        self._unit: BorderedGram | None = None
        self.curved: BorderedGram | None = None
        self.coupled: CoupledGram | None = None
        self.couples = self.chunks.coupled and _couples(problem)
        self._hessian = problem.likelihood.hessian if self.couples else None

    @property
    def has_curvature(self) -> bool:
        """Whether a pass has made a Gram matrix under the likelihood's own curvature."""
        return self.curved is not None or self.coupled is not None

    def first(self, weight: Array, bias: Array) -> Point:
        """Return the start's point with first responses, or targets, in place of the rows' slopes."""
        return self._pass(weight, bias, None, "unit", FirstResponses(self.problem.likelihood))

    def at(self, weight: Array, bias: Array, old: Point | None, *, curved: bool = False) -> Point:
        """Return the point at weights and biases."""
        wanted = "coupled" if self.couples else "curvature"
        gram = wanted if curved and not (old is not None and old.change < _NEAR) else "none"
        return self._pass(weight, bias, old, gram, self.problem.likelihood.terms)

    def _pass(self, weight: Array, bias: Array, old: Point | None, gram: str, terms: Any) -> Point:
        previous = (weight, bias) if old is None else (old.weight, old.bias)
        sums = self.chunks.take(self.index).sums(
            (weight[self.index], bias),
            terms,
            old=(previous[0][self.index], previous[1]),
            gram=gram,
            hessian=self._hessian,
            every=self._every(gram),
        )
        if gram == "unit":
            self._unit = sums.gram
        elif gram == "curvature":
            self.curved = sums.gram
        elif gram == "coupled":
            self.coupled = sums.coupled
        value = sums.log_likelihood + self.problem.log_prior(weight, bias)
        nothing = np.empty((0, self.problem.n_scores))
        return Point(
            weight,
            bias,
            value,
            np.nan if old is None else sums.change,
            self.chunks.kernel.width,
            nothing,
            RowTerms(sums.log_likelihood, nothing, np.empty(0)),
            sums.pull,
            sums.total,
        )

    def _every(self, gram: str) -> int:
        """Return of how many chunks one says how the log likelihood bends.

        Slopes are those of all rows, so that a step ends where it would: only how soon depends on the matrix,
        and many rows for each of its columns say that well enough (Roosta-Khorasani & Mahoney 2019,
        "Sub-sampled Newton methods", Mathematical Programming 174).
        """
        if gram not in ("curvature", "coupled"):
            return 1
        n_scores = self.problem.n_scores if gram == "coupled" else 1
        enough = _ROWS_PER_COLUMN * n_scores * (len(self.index) + 1)
        return max(1, self.chunks.rows.n_obs // enough)

    def unit_gram(self, point: Point) -> BorderedGram:
        """Return the Gram matrix under unit row weights; it is kept."""
        if self._unit is None:
            self._pass(point.weight, point.bias, point, "unit", self.problem.likelihood.terms)
        assert self._unit is not None
        return self._unit

    def curved_gram(self, point: Point) -> tuple[Gram, float]:
        """Return the Gram matrix under the curvature of the last pass that made one, and its unit."""
        assert self.curved is not None
        return self.curved, 1.0

    def target(
        self, point: Point, gram: Gram, response: Array | None, *, newton: bool
    ) -> tuple[Array, Array]:
        """Return ``G w + Phi' g`` and the same for the biases; see `WholeRows.target`.

        `response` other than None says that the sums are already those of the responses.
        """
        assert point.pull is not None
        assert point.total is not None
        if response is not None:
            return point.pull, point.total
        scale = 1.0 if newton else 1.0 / self.problem.likelihood.bound
        pull, total = scale * point.pull, scale * point.total
        for c in range(self.problem.n_scores):
            inner, corner = gram.product(point.weight[self.index, c], float(point.bias[c]))
            pull[:, c] += inner
            total[c] += corner
        return pull, total

    def gradient(self, point: Point) -> tuple[Array, Array]:
        """Return Phi' g and 1' g."""
        assert point.pull is not None
        assert point.total is not None
        return point.pull, point.total

    def shrink(self, point: Point) -> Point:
        """Leave out columns that are zero for good, from sums and Gram matrices as well."""
        kept = np.flatnonzero(point.weight[self.index].any(axis=1))
        if not _drops_zeros(self.problem) or len(kept) == len(self.index):
            return point
        self.index, self.sign = self.index[kept], self.sign[kept]
        self._unit = None if self._unit is None else self._unit.take(kept)
        self.curved = None if self.curved is None else self.curved.take(kept)
        assert point.pull is not None
        return replace(point, pull=point.pull[kept])
