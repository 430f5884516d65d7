"""A race of candidates by refits on folds: those that fall behind drop out early."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcvm_pymc.core.pieces.probit import Array

_FEWEST_ROWS = 30  # by their weights: on fewer no candidate drops out


@dataclass
class Race:
    """Candidates in a race, and what each has predicted so far.

    Attributes
    ----------
    n_candidates : int
    log_density : callable
        ``(candidate, fold) -> ndarray, shape (n_rows,)``, of the fold's rows after a fit to the others.
    weights : sequence of ndarray, shape (n_rows,)
        How often each fold's rows count.
    values : dict of int to ndarray
        Log densities of each candidate's rows, fold after fold.
    running : list of int
        The candidates that have not dropped out.
    by_fold : ndarray, shape (n_candidates, n_folds)
        Each fold's mean; NaN where a candidate did not run.
    deficit : dict of int to float
        Mean log density by which a candidate was behind the best when it dropped out.
    """

    n_candidates: int
    log_density: Callable[[int, int], Array]
    weights: Sequence[Array]
    values: dict[int, Array] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    deficit: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weight = np.concatenate(self.weights)
        self.by_fold = np.full((self.n_candidates, len(self.weights)), np.nan)

    def run(self, candidate: int, fold: int) -> None:
        """Fit a candidate without a fold, and add its log densities of the fold's rows."""
        if candidate not in self.values:
            self.values[candidate] = np.empty(0)
            self.running.append(candidate)
        density = np.asarray(self.log_density(candidate, fold))
        # a fit that has failed gives NaN
        density = np.nan_to_num(density, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        self.values[candidate] = np.append(self.values[candidate], density)
        self.by_fold[candidate, fold] = np.average(density, weights=self.weights[fold])

    def mean(self, values: Array) -> float:
        """Return the mean over the rows of the first folds."""
        return float(np.average(values, weights=self.weight[: len(values)]))

    @property
    def best(self) -> int:
        """The running candidate of the highest mean log density."""
        return max(self.running, key=lambda candidate: self.mean(self.values[candidate]))

    def differences(self, candidate: int) -> Array:
        """Return by how much the best predicts each row better; NaN where it is impossible under both."""
        with np.errstate(invalid="ignore"):
            return self.values[self.best] - self.values[candidate]

    def is_behind(self, candidate: int, z: float, margin: float = 0.0) -> bool:
        """Whether it is behind the best by more than `z` standard errors, less a margin per row."""
        count = self.weight[: len(self.values[candidate])].sum()
        if candidate == self.best or count < _FEWEST_ROWS:
            return False
        difference = self.differences(candidate)
        average = self.mean(difference)
        if not np.isfinite(average):
            return True
        error = np.sqrt(self.mean(np.square(difference - average)) / count)
        return average + margin > z * error

    def drop(self, z: float, margin: float) -> None:
        """Let the candidates drop out that are behind."""
        for candidate in [i for i in self.running if self.is_behind(i, z, margin)]:
            self.deficit[candidate] = self.mean(self.differences(candidate))
            self.running.remove(candidate)

    @property
    def scores(self) -> dict[int, float]:
        """Mean held-out log density of each candidate that was tried, in their order.

        That of a candidate that dropped out is the best's, less by how much it was behind.
        """
        means = {candidate: self.mean(self.values[candidate]) for candidate in sorted(self.values)}
        top = means[self.best]
        return means | {candidate: top - nats for candidate, nats in self.deficit.items()}


def race(
    n_candidates: int,
    log_density: Callable[[int, int], Array],
    weights: Sequence[Array],
    options: Any,
    *,
    to_the_end: bool = False,
) -> Race:
    """Return the race of the candidates of a grid, and their mean held-out log densities.

    A candidate drops out once it is not ahead of the best by .01 nats, one and a half standard errors
    allowed for: so does one of two that are alike. Differences are taken row by row. In the first fold the
    grid is tried from its middle up, then down, on either side no farther than to the first that is two
    standard errors behind. The last candidate runs no further either, unless it is to run `to_the_end`.

    Parameters
    ----------
    n_candidates : int
    log_density : callable
        ``(candidate, fold) -> ndarray, shape (n_rows,)``, of the fold's rows after a fit to the others.
    weights : sequence of ndarray, shape (n_rows,)
        How often each fold's rows count.
    options : ChoiceOptions
        Its ``stop_z``, ``drop_z`` and ``tie_nats`` say when a candidate drops out.
    to_the_end : bool
        Whether the last candidate runs on the folds that are left, so that its score is of all rows.

    References
    ----------
    O. Maron and A. W. Moore (1994), "Hoeffding races: accelerating model selection search for classification
    and function approximation", NIPS 6, 59-66.
    """
    state, middle = Race(n_candidates, log_density, weights), n_candidates // 2
    state.run(middle, 0)
    for side in (range(middle + 1, n_candidates), range(middle - 1, -1, -1)):
        for candidate in side:
            state.run(candidate, 0)
            if state.is_behind(candidate, options.stop_z):
                break
    state.drop(options.drop_z, options.tie_nats)
    for fold in range(1, len(weights)):
        if len(state.running) == 1 and not to_the_end:
            break
        for candidate in state.running:
            state.run(candidate, fold)
        state.drop(options.drop_z, options.tie_nats)
    return state
