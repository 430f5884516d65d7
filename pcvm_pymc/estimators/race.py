"""Cross-validation along a grid that leaves out what is far behind."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["raced"]

_FAR = 3.0  # standard errors of the difference to the best, row by row
_FEWEST_ROWS = 30


def raced(
    n_candidates: int,
    n_rows: Sequence[int],
    log_density: Callable[[int, int], Array],
    weights: Sequence[Array | None],
) -> tuple[NDArray[np.intp], Array]:
    """Return which candidates of a grid were tried, in order, and their mean held-out log densities.

    A candidate that is three standard errors behind the best runs no further; what makes a row hard for all
    does not count, for differences are taken row by row. In the first fold the grid is gone through from its
    middle, up and then down, and on either side no farther than to the first that is so far behind. The last
    candidate runs no further either.

    Parameters
    ----------
    n_candidates : int
    n_rows : sequence of int
        Held-out rows of each fold.
    log_density : callable
        ``(candidate, fold) -> ndarray, shape (n_rows[fold],)``, of the fold's rows after a fit to the others.
    weights : sequence of ndarray, shape (n_rows[fold],), or None
        How often each fold's rows count.

    Returns
    -------
    tried : ndarray of int
    scores : ndarray, shape (len(tried),)
        Of a candidate that ran no further: the best's, less by how much it was behind.

    References
    ----------
    O. Maron and A. W. Moore (1994), "Hoeffding races: accelerating model selection search for classification
    and function approximation", NIPS 6, 59-66.
    """
    race = _Race(
        [np.ones(n) if each is None else each for n, each in zip(n_rows, weights, strict=True)]
    )
    middle = n_candidates // 2
    race.run(middle, log_density(middle, 0))
    for side in (range(middle + 1, n_candidates), range(middle - 1, -1, -1)):
        for i in side:
            race.run(i, log_density(i, 0))
            if race.is_far(i):
                break
    race.cull()
    for k in range(1, len(n_rows)):
        if len(race.running) == 1:
            break
        for i in race.running:
            race.run(i, log_density(i, k))
        race.cull()
    return race.scores()


class _Race:
    """What the candidates' rows say so far."""

    def __init__(self, weights: Sequence[Array]) -> None:
        self.weight = np.concatenate(weights)
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

    def is_far(self, i: int) -> bool:
        """Whether the rows speak against a candidate beyond doubt."""
        best = self.best
        count = self.weight[: len(self._value[i])].sum()
        if i == best or count < _FEWEST_ROWS:
            return False
        with np.errstate(invalid="ignore"):  # a row that both say cannot be
            behind = self._value[best] - self._value[i]
            mean = self._mean(behind)
        if not np.isfinite(mean):
            return True
        return mean > _FAR * np.sqrt(self._mean(np.square(behind - mean)) / count)

    def cull(self) -> None:
        """Leave out those that are far behind."""
        best = self._value[self.best]
        for i in [i for i in self.running if self.is_far(i)]:
            with np.errstate(invalid="ignore"):
                self._behind[i] = self._mean(best - self._value[i])
            self.running.remove(i)

    def scores(self) -> tuple[NDArray[np.intp], Array]:
        """Return the candidates that ran, in order, and their scores."""
        best = self._mean(self._value[self.best])
        score = {i: best - behind for i, behind in self._behind.items()}
        score |= {i: self._mean(self._value[i]) for i in self.running}
        tried = np.sort(list(score))
        return tried, np.array([score[i] for i in tried])
