"""Transformations of the features within a kernel: ranks of skewed columns, codes of ordered levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, override

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.probit import Array

FEW_VALUES = 10  # a column of no more has nothing to be ranked
NEAR_NORMAL = 0.97  # correlation of a column with its normal scores, from which it stays
_MOST_KNOTS = 200  # of a column's map
_TAIL = 20  # one in so many knots is in a tail, whose mean slope goes on beyond it


@dataclass(frozen=True, eq=False)
class NormalScores:
    """Ranks of a column: its distribution function, then normal quantiles, of its own mean and spread.

    Attributes
    ----------
    knots, scores : ndarray, shape (n_knots,)
        Values of the column, increasing, and their scores. The map is linear between knots, and goes on with
        the mean slope of a tail beyond them: a row far from all others stays far.
    """

    knots: Array
    scores: Array

    def line(self) -> tuple[Array, Array]:
        """Return knots and scores of the map, whose first and last pieces go on beyond their ends."""
        n, both = max(1, len(self.knots) // _TAIL), (self.knots, self.scores)
        longer = [np.r_[2.0 * x[0] - x[n], x, 2.0 * x[-1] - x[-1 - n]] for x in both]
        return longer[0], longer[1]

    def __call__(self, column: Array) -> Array:
        """Return the scores of values, of their shape."""
        knots, scores = self.line()
        slope = np.diff(scores) / np.diff(knots)
        piece = np.clip(np.searchsorted(knots, column) - 1, 0, len(slope) - 1)
        return np.asarray(scores[piece] + slope[piece] * (column - knots[piece]))

    @classmethod
    def of(cls, column: Array, count: Array | None = None) -> "NormalScores | None":
        """Return the map of a column; None where it has few values, or is near normal.

        Parameters
        ----------
        column : ndarray, shape (n_obs,)
        count : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        values, number = np.unique(column, return_inverse=True)
        if len(values) <= FEW_VALUES:
            return None
        share = np.bincount(number, count)
        share = share / share.sum()
        scores = ndtri(np.cumsum(share) - 0.5 * share)
        middle, mean = share @ values, share @ scores
        # whose square neither over- nor underflows
        unit = max(values[-1] - middle, middle - values[0])
        centred = (values - middle) / unit
        spread, of_scores = np.sqrt(share @ centred**2), np.sqrt(share @ (scores - mean) ** 2)
        if share @ (centred * (scores - mean)) > NEAR_NORMAL * spread * of_scores:
            return None
        scores = middle + unit * (spread / of_scores) * (scores - mean)
        kept = np.unique(np.linspace(0, len(values) - 1, _MOST_KNOTS).round().astype(int))
        return cls(values[kept], scores[kept])


@dataclass(frozen=True, eq=False)
class Codes:
    """Ordered levels of a category as one number, from their indicators.

    Attributes
    ----------
    columns : ndarray of int, shape (n_levels,)
        Of the indicators. The number takes the place of the first.
    values : ndarray, shape (n_levels,)
        Of the number, for a value of one of each indicator. A level that is unknown has zero, the middle.
    """

    columns: NDArray[np.intp]
    values: Array

    @classmethod
    def of(
        cls, columns: NDArray[np.intp], code: Array, X: Array, count: Array | None = None
    ) -> "Codes":
        """Return the codes of levels, of standard deviation one; a missing level is in the middle.

        Parameters
        ----------
        columns : ndarray of int, shape (n_levels,)
        code : ndarray, shape (n_levels,)
            NaN of a missing level.
        X : ndarray, shape (n_obs, n_columns)
        count : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        values = np.nan_to_num(code - np.nanmean(code))
        number = X[:, columns] @ values
        mean = np.average(number, weights=count)
        spread = np.sqrt(np.average((number - mean) ** 2, weights=count))
        return cls(columns, values / (spread or 1.0))


@dataclass(frozen=True, eq=False)
class FeatureTransform:
    """A transform of the features, fitted to rows without their labels: ranks, codes, columns left out.

    Attributes
    ----------
    ranks : mapping of int to NormalScores
        Of columns that are skewed.
    codes : sequence of Codes
        Of categories whose levels are ordered.
    without : sequence of int
        Columns that are left out: indicators of missing values.
    """

    ranks: Mapping[int, NormalScores] = field(default_factory=dict)
    codes: Sequence[Codes] = ()
    without: Sequence[int] = ()

    @property
    def name(self) -> str:
        """The transforms' names, in words; empty where there is none."""
        parts = {"ranks": self.ranks, "codes": self.codes, "medians": self.without}
        names = [name for name, part in parts.items() if len(part)]
        return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))

    def __call__(self, X: Array) -> Array:
        """Return transformed rows, shape (n_rows, n_kept)."""
        out = np.array(X)
        for j, scores in self.ranks.items():
            out[:, j] = scores(X[:, j])
        for codes in self.codes:
            out[:, codes.columns[0]] = X[:, codes.columns] @ codes.values
        return self.kept(out)

    def kept(self, values: Array) -> Array:
        """Return the values that belong to columns that are kept, of those of all, on the last axis."""
        gone = [*self.without, *(j for codes in self.codes for j in codes.columns[1:])]
        return np.delete(values, gone, axis=-1) if gone else values


def ranks_of(X: Array, count: Array | None = None) -> dict[int, NormalScores]:
    """Return the maps of those columns that are skewed, or have long tails, by their numbers."""
    scores = {j: NormalScores.of(column, count) for j, column in enumerate(X.T)}
    return {j: of_column for j, of_column in scores.items() if of_column is not None}


@dataclass(frozen=True, eq=False)
class TransformedKernel(KernelPiece):
    """A kernel of transformed rows and centres.

    Attributes
    ----------
    kernel : KernelPiece
    transform : FeatureTransform
    width : float or ndarray, shape (n_columns,)
        One, or that of each column, of which those of columns that are kept have an effect.
    """

    kernel: KernelPiece
    transform: FeatureTransform
    width: Any = np.nan

    @property
    def name(self) -> str:  # type: ignore[override]
        """The kernel's name, and the transform's."""
        return f"{self.kernel.name} of {self.transform.name}"

    @override
    def __call__(self, X: Array, centres: Array) -> Array:
        width = self.transform.kept(np.asarray(self.width)) if np.ndim(self.width) else self.width
        return self.kernel.with_width(width)(self.transform(X), self.transform(centres))
