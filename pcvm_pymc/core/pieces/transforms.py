"""Transformations of the features within a kernel: ranks of skewed columns."""

from dataclasses import dataclass, replace
from typing import Any, Self, override

import numpy as np
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

    def __call__(self, column: Array) -> Array:
        """Return the scores of values, of their shape."""
        knots, scores = self.knots, self.scores
        n = max(1, len(knots) // _TAIL)
        low = (scores[n] - scores[0]) / (knots[n] - knots[0])
        high = (scores[-1] - scores[-1 - n]) / (knots[-1] - knots[-1 - n])
        inside = np.interp(column, knots, scores)
        below, above = np.minimum(column - knots[0], 0.0), np.maximum(column - knots[-1], 0.0)
        return np.asarray(inside + low * below + high * above)

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
        unit = max(
            values[-1] - middle, middle - values[0]
        )  # whose square neither over- nor underflows
        centred = (values - middle) / unit
        spread, of_scores = np.sqrt(share @ centred**2), np.sqrt(share @ (scores - mean) ** 2)
        if share @ (centred * (scores - mean)) > NEAR_NORMAL * spread * of_scores:
            return None
        scores = middle + unit * (spread / of_scores) * (scores - mean)
        kept = np.unique(np.linspace(0, len(values) - 1, _MOST_KNOTS).round().astype(int))
        return cls(values[kept], scores[kept])


@dataclass(frozen=True, eq=False)
class Ranks:
    """A map of the columns of a table to ranks, fitted to rows without their labels.

    Attributes
    ----------
    columns : tuple of NormalScores or None
        Of each feature; None leaves it.
    """

    columns: tuple[NormalScores | None, ...]

    def __call__(self, X: Array) -> Array:
        """Return transformed rows, shape (n_rows, n_features)."""
        out = np.array(X)
        for j, each in enumerate(self.columns):
            if each is not None:
                out[:, j] = each(X[:, j])
        return out

    @classmethod
    def of(cls, X: Array, count: Array | None = None) -> "Ranks | None":
        """Return the map of those columns that are skewed, or have long tails; None where none are."""
        found = tuple(NormalScores.of(column, count) for column in X.T)
        return None if all(each is None for each in found) else cls(found)


@dataclass(frozen=True, eq=False)
class OfRanks(KernelPiece):
    """A kernel of ranked rows and centres.

    Attributes
    ----------
    kernel : KernelPiece
    ranks : Ranks
    """

    kernel: KernelPiece
    ranks: Ranks

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the kernel, and what it is of."""
        return f"{self.kernel.name} of ranks"

    @property
    def width(self) -> Any:
        """That of the kernel, in the unit of the columns."""
        return self.kernel.width

    @override
    def with_width(self, width: Any) -> Self:
        return replace(self, kernel=self.kernel.with_width(width))

    @override
    def __call__(self, X: Array, centres: Array) -> Array:
        return self.kernel(self.ranks(X), self.ranks(centres))
