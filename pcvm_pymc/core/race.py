"""A race of candidates by refits on folds: those that fall behind drop out early."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.probit import Array

_FEWEST_ROWS = 30  # by their weights: on fewer no candidate drops out


class Raced(NamedTuple):
    """What a race has found.

    Attributes
    ----------
    tried : ndarray of int, shape (n_tried,)
        The candidates, in order.
    scores : ndarray, shape (n_tried,)
        Mean held-out log density; of a candidate that dropped out, the best's less by how much it was
        behind.
    by_fold : ndarray, shape (n_tried, n_folds)
        Each fold's mean; NaN where a candidate did not run.
    log_density : list of ndarray, shape (n_rows,)
        Of each candidate that was tried, row by row of the folds that it ran on.
    """

    tried: NDArray[np.intp]
    scores: Array
    by_fold: Array
    log_density: list[Array]


def race(
    n_candidates: int,
    log_density: Callable[[int, int], Array],
    weights: Sequence[Array],
    patience: Any,
    *,
    to_the_end: bool = False,
) -> Raced:
    """Return which candidates of a grid were tried, and their mean held-out log densities.

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
    patience : ChoiceOptions
        Its ``far``, ``behind`` and ``alike`` say when a candidate drops out.
    to_the_end : bool
        Whether the last candidate runs on the folds that are left, so that its score is of all rows.

    References
    ----------
    O. Maron and A. W. Moore (1994), "Hoeffding races: accelerating model selection search for classification
    and function approximation", NIPS 6, 59-66.
    """
    weight = np.concatenate(weights)
    running: list[int] = []
    value: dict[int, Array] = {}
    behind: dict[int, float] = {}  # those that dropped out
    by_fold = np.full((n_candidates, len(weights)), np.nan)

    def mean(values: Array) -> float:
        return float(np.average(values, weights=weight[: len(values)]))

    def run(i: int, k: int) -> None:
        if i not in value:
            running.append(i)
        # a fit that has failed gives NaN
        found = np.nan_to_num(log_density(i, k), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        value[i] = np.append(value.get(i, np.empty(0)), found)
        by_fold[i, k] = np.average(found, weights=weights[k])

    def gap(i: int) -> Array:
        best = max(running, key=lambda j: mean(value[j]))
        with np.errstate(invalid="ignore"):  # NaN where a row is impossible under both
            return value[best] - value[i]

    def is_far(i: int, errors: float, ahead: float = 0.0) -> bool:
        count = weight[: len(value[i])].sum()
        if i == max(running, key=lambda j: mean(value[j])) or count < _FEWEST_ROWS:
            return False
        difference = gap(i)
        average = mean(difference)
        if not np.isfinite(average):
            return True
        return average + ahead > errors * np.sqrt(mean(np.square(difference - average)) / count)

    def drop() -> None:
        for i in [i for i in running if is_far(i, patience.behind, patience.alike)]:
            behind[i] = mean(gap(i))
            running.remove(i)

    middle = n_candidates // 2
    run(middle, 0)
    for side in (range(middle + 1, n_candidates), range(middle - 1, -1, -1)):
        for i in side:
            run(i, 0)
            if is_far(i, patience.far):
                break
    drop()
    for k in range(1, len(weights)):
        if len(running) == 1 and not to_the_end:
            break
        for i in running:
            run(i, k)
        drop()
    best, tried = max(mean(value[i]) for i in running), np.sort(list(value))
    scores = [best - behind[i] if i in behind else mean(value[i]) for i in tried]
    return Raced(tried, np.array(scores), by_fold[tried], [value[i] for i in tried])
