"""Cross-validation along a grid that leaves out what is far behind."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["Raced", "raced"]

# standard errors of the difference to the best, row by row: where none beyond is tried, and where a candidate
# runs no further
_FAR, _BEHIND = 2.0, 1.5
_ALIKE = 0.01  # nats per row that are not worth more folds
_FEWEST_ROWS = 30


class Raced(NamedTuple):
    """What a race has shown.

    Attributes
    ----------
    tried : ndarray of int, shape (n_tried,)
        The candidates, in order.
    scores : ndarray, shape (n_tried,)
        Mean held-out log density; of a candidate that ran no further, the best's less by how much it was
        behind.
    by_fold : ndarray, shape (n_tried, n_folds)
        Each fold's mean; NaN where a candidate did not run.
    """

    tried: NDArray[np.intp]
    scores: Array
    by_fold: Array


def raced(
    n_candidates: int,
    log_density: Callable[[int, int], Array],
    weights: Sequence[Array],
) -> Raced:
    """Return which candidates of a grid were tried, and their mean held-out log densities.

    A candidate runs no further once it is not ahead of the best by .01 nats, one and a half standard errors
    allowed for: what is behind is out, and so is one of two that are alike. What makes a row hard for all
    does not count, for differences are taken row by row. In the first fold the grid is gone through from its
    middle, up and then down, and on either side no farther than to the first that is two standard errors
    behind. The last candidate runs no further either.

    Parameters
    ----------
    n_candidates : int
    log_density : callable
        ``(candidate, fold) -> ndarray, shape (n_rows,)``, of the fold's rows after a fit to the others.
    weights : sequence of ndarray, shape (n_rows,)
        How often each fold's rows count.

    Returns
    -------
    Raced

    References
    ----------
    O. Maron and A. W. Moore (1994), "Hoeffding races: accelerating model selection search for classification
    and function approximation", NIPS 6, 59-66.
    """
    race = _Race(weights)
    middle = n_candidates // 2
    race.run(middle, log_density(middle, 0))
    for side in (range(middle + 1, n_candidates), range(middle - 1, -1, -1)):
        for i in side:
            race.run(i, log_density(i, 0))
            if race.is_far(i):
                break
    race.cull()
    for k in range(1, len(weights)):
        if len(race.running) == 1:
            break
        for i in race.running:
            race.run(i, log_density(i, k))
        race.cull()
    return race.result()


class _Race:
    """What the candidates' rows say so far."""

    def __init__(self, weights: Sequence[Array]) -> None:
        self.weight = np.concatenate(weights)
        ends = np.cumsum([len(each) for each in weights]).tolist()
        self._folds = [slice(a, b) for a, b in itertools.pairwise([0, *ends])]
        self.running: list[int] = []
        self._value: dict[int, Array] = {}
        self._behind: dict[int, float] = {}  # of those that are out

    def run(self, i: int, value: Array) -> None:
        """Take a candidate's log densities of its next fold."""
        if i not in self._value:
            self.running.append(i)
        value = np.where(np.isnan(value), -np.inf, value)  # of a fit that has failed
        self._value[i] = np.append(self._value.get(i, np.empty(0)), value)

    def _mean(self, value: Array) -> float:
        return float(np.average(value, weights=self.weight[: len(value)]))

    @property
    def best(self) -> int:
        """The best of those that run."""
        return max(self.running, key=lambda i: self._mean(self._value[i]))

    def is_far(self, i: int, errors: float = _FAR, ahead: float = 0.0) -> bool:
        """Whether the rows speak against a candidate's being ahead by so much, by so many standard errors."""
        count = self.weight[: len(self._value[i])].sum()
        if i == self.best or count < _FEWEST_ROWS:
            return False
        behind = self._gap(i)
        mean = self._mean(behind)
        if not np.isfinite(mean):
            return True
        return mean + ahead > errors * np.sqrt(self._mean(np.square(behind - mean)) / count)

    def _gap(self, i: int) -> Array:
        """Return how much better each row is under the best; NaN where it cannot be under either."""
        with np.errstate(invalid="ignore"):
            return self._value[self.best] - self._value[i]

    def cull(self) -> None:
        """Leave out those that are far behind, or no better."""
        for i in [i for i in self.running if self.is_far(i, _BEHIND, _ALIKE)]:
            self._behind[i] = self._mean(self._gap(i))
            self.running.remove(i)

    def result(self) -> Raced:
        """Return the candidates that ran, their scores, and what these are of."""
        best = self._mean(self._value[self.best])
        score = {i: best - behind for i, behind in self._behind.items()}
        score |= {i: self._mean(self._value[i]) for i in self.running}
        tried = np.sort(list(score))
        by_fold = np.full((len(tried), len(self._folds)), np.nan)
        for row, i in zip(by_fold, tried, strict=True):
            for k, fold in enumerate(self._folds):
                if fold.stop <= len(self._value[i]):
                    row[k] = np.average(self._value[i][fold], weights=self.weight[fold])
        return Raced(tried, np.array([score[i] for i in tried]), by_fold)
