"""The choice of width and scale: grid points, scored by leave-one-out or by folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.loo import LeaveOneOut, averaging_weights, leave_one_out
from pcvm_pymc.core.metric import share_of_widths
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.likelihood import log_normalised, plain_target
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.validation import check_real
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.estimators.features import Metric
from pcvm_pymc.estimators.problems import ROUGH, Problems, against_rest
from pcvm_pymc.estimators.race import Fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

type Score = Callable[["GridPoint", "GridPoint | None"], "GridPoint"]

# --- the grid ----------------------------------------------------------------------------------


class Axis(NamedTuple):
    """A hyperparameter of the grid: the factor of a step, most steps from the middle, prior spread."""

    step: float
    farthest: int
    spread: float  # standard deviation of the logarithm over the middle


#: widths from 0.1 to 10 times the median distance, scales of the weights from 0.01 to 100
AXES = (Axis(1.65, 7, 1.0), Axis(float(np.sqrt(10.0)), 4, 0.7))
KEPT_WEIGHT = 0.02  # a grid point of no more weight is not part of an average
GROWN_WEIGHT = 0.05  # the grid does not grow from one of no more weight


@dataclass(frozen=True)
class GridPoint:
    """A width and a scale, with the mode fitted there and its held-out predictions.

    Attributes
    ----------
    steps : tuple of int
        From the middle of the grid, along width and scale.
    width : float or ndarray, shape (n_features,)
    scale : float
        Of the weights' prior, sqrt(d / c).
    log_prior : float
        Normal on the logarithms of the width over the middle's and of the scale.
    result : EMResult, optional
    loo : LeaveOneOut, optional
        Held-out latent values and log densities of the rows.
    by_feature : bool
        Whether each feature has a width of its own.
    """

    steps: tuple[int, ...]
    width: Any
    scale: float
    log_prior: float = 0.0
    result: EMResult | None = field(default=None, repr=False)
    loo: LeaveOneOut | None = field(default=None, repr=False)
    by_feature: bool = False


@dataclass(frozen=True)
class Grid:
    """Widths and scales around a middle.

    Attributes
    ----------
    width, scale : float
        The middle, which is all there is of what does not move.
    moves : tuple of bool
        Whether the width, and the scale, are chosen.
    """

    width: Any
    scale: float
    moves: tuple[bool, ...]

    def point(self, steps: tuple[int, ...]) -> GridPoint:
        """Return a grid point by its steps from the middle."""
        logs = [n * np.log(axis.step) for n, axis in zip(steps, AXES, strict=True)]
        width = self.width * AXES[0].step ** steps[0] if steps[0] else self.width
        prior = [-0.5 * (log / axis.spread) ** 2 for log, axis in zip(logs, AXES, strict=True)]
        return GridPoint(steps, width, self.scale * AXES[1].step ** steps[1], float(sum(prior)))

    def neighbours(self, point: GridPoint) -> list[GridPoint]:
        """Return the grid points one step away."""
        found = []
        for k, (axis, moves) in enumerate(zip(AXES, self.moves, strict=True)):
            for step in (-1, 1) if moves else ():
                steps = list(point.steps)
                steps[k] += step
                if abs(steps[k]) <= axis.farthest:
                    found.append(self.point(tuple(steps)))
        return found


@dataclass(frozen=True)
class HyperparameterSearch:
    """Grid points that were tried, and how well each predicts rows that are left out.

    Attributes
    ----------
    points : tuple of GridPoint
    weights : ndarray, shape (n_points,)
        How much each counts in an average, see `averaging_weights`; they sum to one.
    method : {"loo", "cv"}
        How rows were left out.
    feature_share : float
        Weight of the grid points with widths per feature, from folds whose rows had no part in learning
        them; 0 for one width alone.
    """

    points: tuple[GridPoint, ...]
    weights: Array
    method: str = "loo"
    feature_share: float = 0.0

    @classmethod
    def of(
        cls, points: Sequence[Any], method: str = "loo", feature_share: float = 0.0
    ) -> "HyperparameterSearch":
        """Return scored grid points with their weights, separate for one width and for widths per feature."""
        density = np.stack([each.loo.log_density for each in points])
        prior = np.array([each.log_prior for each in points])
        by_feature = np.array([each.by_feature for each in points])
        weights = np.empty(len(points))
        for own, share in ((~by_feature, 1.0 - feature_share), (by_feature, feature_share)):
            if own.any():
                weights[own] = share * averaging_weights(density[own], prior[own])
        return cls(tuple(points), weights / weights.sum(), method, feature_share)

    @property
    def best(self) -> GridPoint:
        """The grid point of the greatest weight among those of widths per feature, or of one width.

        The greater share decides which.
        """
        by_feature = self.feature_share > 0.5
        own = np.array([each.by_feature == by_feature for each in self.points])
        return self.points[int(np.where(own, self.weights, -1.0).argmax())]

    @property
    def width(self) -> Any:
        """Width of the best grid point."""
        return self.best.width

    @property
    def scale(self) -> float:
        """Scale of the best grid point."""
        return self.best.scale

    @property
    def widths(self) -> Array:
        """All widths that were tried, one for each grid point."""
        return np.array([each.width for each in self.points])

    @property
    def scales(self) -> Array:
        """All scales that were tried, one for each grid point."""
        return np.array([each.scale for each in self.points])

    @property
    def log_loss(self) -> Array:
        """Mean negative held-out log probability of the labels, nats per row, of each grid point."""
        points: Any = self.points
        return np.array([each.loo.log_loss for each in points])

    def kept(self, most: int | None = None) -> "HyperparameterSearch":
        """Return the grid points of non-negligible weight, `most` at most, the heaviest first."""
        order = np.argsort(-self.weights, kind="stable")[:most]
        order = order[self.weights[order] > min(KEPT_WEIGHT, 0.5 * float(self.weights.max()))]
        weights = self.weights[order]
        return replace(
            self, points=tuple(self.points[i] for i in order), weights=weights / weights.sum()
        )

    def by_width(self, *, least: float = 0.05) -> tuple[list[Any], list[float]]:
        """Return the widths that count, the most first, and their weights over all scales.

        For `mixture`, whose posteriors have a scale that is learned. One width for each feature is one.

        Parameters
        ----------
        least : float
            Weight below which a width is left out; the others' weights sum to one.
        """
        check_real("least", least, below=1.0)
        distinct, place = np.unique(self.widths, axis=0, return_inverse=True)
        weight = np.bincount(place.ravel(), self.weights)
        kept = [i for i in np.argsort(-weight) if weight[i] >= min(least, weight.max())]
        return distinct[kept].tolist(), (weight[kept] / weight[kept].sum()).tolist()

    def plot(self) -> "Figure":
        """Draw the log loss over width and scale, and the weight of each grid point."""
        from pcvm_pymc.figures import plot_cells  # matplotlib's style

        return plot_cells(self)


def grown_search(
    grid: Grid,
    score: Score,
    *,
    least: float = GROWN_WEIGHT,
    method: str = "loo",
    near: GridPoint | None = None,
) -> HyperparameterSearch:
    """Return the scored grid points, found by growing the grid from its middle or from a point `near`.

    Neighbours are scored as long as a grid point at the frontier has more than a weight of `least`.
    """
    start = grid.point((0, 0) if near is None else near.steps)
    points: dict[tuple[int, ...], GridPoint] = {start.steps: score(start, near)}
    expanded: set[tuple[int, ...]] = set()
    while True:
        found = HyperparameterSearch.of(list(points.values()), method)
        heavy = [each for each, w in zip(found.points, found.weights, strict=True) if w > least]
        frontier = [each for each in heavy if each.steps not in expanded]
        if not frontier:
            return found
        for point in frontier:
            expanded.add(point.steps)
            for each in grid.neighbours(point):
                if each.steps not in points:
                    PROGRESS.info("grid point %d", len(points) + 1)
                    points[each.steps] = score(each, point)


def search_features(
    problems: Problems,
    shared: HyperparameterSearch,
    grid: Grid,
    score_of: Callable[[Problems], Score],
    *,
    metric: Metric,
    folds: Sequence[Fold],
) -> HyperparameterSearch:
    """Return the search over one width and over widths per feature, from that over one width.

    Leave-one-out weighs the grid points of either. It must not weigh the one against the other: the relative
    widths have seen its rows. That is left to each fold's rows under widths learned without the fold.

    Parameters
    ----------
    problems : Problems
        By which grid points are scored.
    shared : HyperparameterSearch
        Of one width.
    grid : Grid
        Of one width.
    score_of : callable
        ``problems -> score``.
    metric : Metric
    folds : sequence of (ndarray, ndarray)
    """
    data, points = problems.data, problems.centres.points

    def scaled(relative: Array) -> tuple[Grid, Score]:
        own = replace(
            problems,
            data=replace(data, X=data.X / relative),
            centres=replace(problems.centres, points=points / relative),
        ).many_widths()
        return replace(grid, width=median_distance(own.data.X)), score_of(own)

    own_grid, score = scaled(metric.relative)
    near = replace(shared.best, width=own_grid.point(shared.best.steps).width)
    found = grown_search(own_grid, score, near=near)
    best: Any = found.best
    one_width: Any = shared.best
    widths = np.empty(len(data.X))
    for (_, test), relative in zip(folds, metric.by_fold, strict=True):
        own_grid, score = scaled(relative)
        point = own_grid.point(best.steps)
        left_out: Any = score(point, replace(best, width=point.width)).loo
        widths[test] = left_out.log_density[test]
    each = 1.0 if data.weight is None else data.weight
    share = share_of_widths(one_width.loo.log_density / each, widths / each, data.weight)
    if share < KEPT_WEIGHT:
        return shared
    every = [replace(each, width=each.width * np.ones(len(relative))) for each in shared.points]
    every += [
        replace(each, width=each.width * metric.relative, by_feature=True) for each in found.points
    ]
    return HyperparameterSearch.of(every, feature_share=share)


# --- scores of a grid point --------------------------------------------------------------------


def start_near(near: GridPoint | None, problem: Problem) -> Start | None:
    """Return a neighbour's solution as a start."""
    prior: Any = problem.hyperprior
    if near is None or near.result is None or prior.holds_zeros:  # else zeros would stay zero
        return None
    return Start(near.result.weight, near.result.bias)


def rough(options: EMOptions, kind: str) -> EMOptions:
    """Return options as loose as a fit needs that only ranks a grid point."""
    return replace(options, tol=max(options.tol, ROUGH[kind]))


def by_folds(problems: Problems, folds: Sequence[Fold] = ()) -> Score:
    """Return the score by refits without each fold's rows and bases; without folds by leave-one-out."""
    options = rough(problems.options, "leave-one-out")

    def score(point: GridPoint, near: GridPoint | None) -> GridPoint:
        problem = problems.at(point.width, point.scale)
        result = fit_em(problem, start_near(near, problem), options)
        return replace(point, result=result, loo=held_out(problems, problem, result, folds))

    return score


def held_out(
    problems: Problems, whole: Problem, result: EMResult, folds: Sequence[Fold]
) -> LeaveOneOut:
    """Return latent values and log densities of rows left out, each with its bases.

    By a refit without each fold, or without folds from one factorisation at the mode.
    """
    if not folds:
        return leave_one_out(whole, result.weight, result.bias, problems.centres.rows)
    options, latent = rough(problems.options, "leave-one-out"), np.empty_like(result.latent)
    for train, test in folds:
        columns = problems.centres.columns_of(train)
        sign, label = problems.centres.signs_of(columns), np.asarray(whole.label)[train]
        Phi = whole.Phi[:, columns]
        fit = fit_em(replace(whole, Phi=Phi[train], label=label, sign=sign), None, options)
        latent[test] = Phi[test] @ fit.weight + fit.bias
    return LeaveOneOut(latent, whole.likelihood.log_density(latent, whole.label))


def by_class(problems: Problems) -> Score:
    """Return the score by leave-one-out of each class against the rest, probabilities normalised.

    For many classes and rows, where fits of all scores together cost too much at every grid point.
    """
    options = rough(problems.options, "class by class")

    def score(point: GridPoint, near: GridPoint | None) -> GridPoint:
        whole = problems.at(point.width, point.scale)
        start = start_near(near, whole)
        fits, yes = [], []
        for c in range(whole.n_scores):
            problem = against_rest(whole, c)
            one = None if start is None else Start(start.weight[:, c], float(start.bias[c]))
            fit = fit_em(problem, one, options)
            loo = leave_one_out(problem, fit.weight, fit.bias, problems.centres.rows)
            fits.append(fit)
            yes.append(problem.likelihood.log_density(loo.latent, np.ones(len(problem.label))))
        weight = np.column_stack([each.weight for each in fits])
        result = replace(fits[0], weight=weight, bias=np.array([each.bias for each in fits]))
        log_probability = log_normalised(np.column_stack(yes))
        number = plain_target(whole.label).astype(int)
        density = log_probability[np.arange(len(number)), number]
        density = density if whole.row_weight is None else whole.row_weight * density
        return replace(point, result=result, loo=LeaveOneOut(log_probability, density))

    return score
