"""Candidates for the hyperparameters: a grid that grows where held-out rows favour it, and its weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pcvm_pymc.core.loo import LeaveOneOut, averaging_weights
from pcvm_pymc.core.metric import SPREAD
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.validation import check_real
from pcvm_pymc.core.probabilities import log_average
from pcvm_pymc.core.problem import EMResult
from pcvm_pymc.core.stacking import stacking_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

type Score = Callable[["Candidate", "Candidate | None"], "Candidate"]


class Axis(NamedTuple):
    """A positive hyperparameter: the factor of a step, most steps from the middle, prior spread."""

    step: float
    farthest: int
    spread: float  # standard deviation of the logarithm over the middle


#: widths from 0.1 to 10 times the median distance, scales of the weights' prior from 0.01 to 100
AXES = {"width": Axis(1.65, 7, 1.0), "scale": Axis(float(np.sqrt(10.0)), 4, 0.7)}


@dataclass(frozen=True)
class ChoiceOptions:
    """What a choice of hyperparameters goes by.

    Parameters
    ----------
    axes : mapping of str to Axis
        The grid: factor of a step, most steps from the middle, and prior spread, of each hyperparameter.
    kept_weight : float
        A candidate of no more weight is not part of an average.
    grown_weight : float
        The grid does not grow from a candidate of no more weight, and widths per feature of less weight than
        that are left out.
    metric_spread : float
        Prior standard deviation of the log widths of features around their common one.
    metric_penalty : float
        Nats of held-out log density that widths per feature must gain over one width: minus their log prior.
    stop_z, drop_z : float
        Of a race, standard errors of the difference to the best: beyond the first no width farther out is
        tried, beyond the second a width is refitted no more.
    tie_nats : float
        Nats per row that are not worth more folds in a race.

    Raises
    ------
    ValueError
        If a number is not positive.

    References
    ----------
    O. Maron and A. W. Moore (1994), "Hoeffding races", NIPS 6, 59-66, of the race; Y. Yao et al. (2018),
    "Using stacking to average Bayesian predictive distributions", Bayesian Analysis 13(3), of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import ChoiceOptions, select
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> found = select(X, X[:, 0] > 0, options=ChoiceOptions(kept_weight=0.2))
    >>> len(found.kept().points) <= 5
    True
    """

    axes: Mapping[str, Axis] = field(default_factory=lambda: AXES)
    kept_weight: float = 0.01
    grown_weight: float = 0.05
    metric_spread: float = SPREAD
    metric_penalty: float = 3.0
    stop_z: float = 2.0
    drop_z: float = 1.5
    tie_nats: float = 0.01

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.name != "axes":
                check_real(option.name, getattr(self, option.name))


OPTIONS = ChoiceOptions()
_HELD_OUT = ("loo", "cv")  # methods whose scores are log densities of held-out rows


class Point:
    """A point of named hyperparameters.

    Attributes
    ----------
    at : mapping of str
    """

    at: Mapping[str, Any]

    @property
    def width(self) -> Any:
        """Width of the basis functions, one or one for each feature, in the unit of the features."""
        return self.at["width"]

    @property
    def scale(self) -> float:
        """Scale of the weights' prior, sqrt(d / c)."""
        return float(self.at["scale"])


@dataclass(frozen=True)
class Candidate(Point):
    """A point of named hyperparameters, with the mode fitted there and its held-out predictions.

    Attributes
    ----------
    at : mapping of str
        The hyperparameters. ``width`` is one, or one for each feature; ``scale`` is that of the weights'
        prior, sqrt(d / c); ``kernel``, where several are weighed, is one of any width; others are parameters
        of the kernel.
    steps : tuple of int
        From the middle of the grid, along each of `AXES`.
    log_prior : float
        Normal on the logarithms over the middle.
    result : EMResult, optional
    loo : LeaveOneOut, optional
        Held-out latent values and log densities of the rows.
    by_feature : bool
        Whether each feature has a width of its own.
    score : float
        The more the better: mean log density of held-out rows, that of `loo` where it is given, log evidence,
        or log kernel validity; NaN where nothing was scored.
    by_fold : ndarray, shape (n_folds,)
        Mean log density of each fold's rows; NaN where the candidate had dropped out before it.
    """

    at: Mapping[str, Any]
    steps: tuple[int, ...] = ()
    log_prior: float = 0.0
    result: EMResult | None = field(default=None, repr=False)
    loo: LeaveOneOut | None = field(default=None, repr=False)
    by_feature: bool = False
    score: float = np.nan
    by_fold: Array = field(default_factory=lambda: np.empty(0), repr=False)

    def __post_init__(self) -> None:
        if self.loo is not None:
            vars(self)["score"] = -self.loo.log_loss

    @property
    def kernel_name(self) -> str:
        """Name of the kernel where several are weighed, else nothing."""
        return self.at["kernel"].name if "kernel" in self.at else ""

    def scored(self) -> LeaveOneOut:
        """Return the held-out predictions of a candidate that has been scored."""
        assert self.loo is not None
        return self.loo


@dataclass(frozen=True)
class Space:
    """Candidates on a grid around a middle.

    Attributes
    ----------
    middle : mapping of str
        The hyperparameters there. Those that are not chosen stay.
    chosen : tuple of str
        Names of the axes along which the grid may grow.
    options : ChoiceOptions
    """

    middle: Mapping[str, Any]
    chosen: tuple[str, ...]
    options: ChoiceOptions = OPTIONS

    def candidate(self, steps: tuple[int, ...] = ()) -> Candidate:
        """Return a candidate by its steps from the middle."""
        at, log_prior, axes = dict(self.middle), 0.0, self.options.axes
        steps = steps or (0,) * len(axes)
        for n, (name, axis) in zip(steps, axes.items(), strict=True):
            if n:
                at[name] = at[name] * axis.step**n
                log_prior -= 0.5 * (n * np.log(axis.step) / axis.spread) ** 2
        return Candidate(at, steps, float(log_prior))

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Return the candidates one step away."""
        neighbours = []
        for k, (name, axis) in enumerate(self.options.axes.items()):
            for step in (-1, 1) if name in self.chosen else ():
                steps = list(candidate.steps)
                steps[k] += step
                if abs(steps[k]) <= axis.farthest:
                    neighbours.append(self.candidate(tuple(steps)))
        return neighbours


@dataclass(frozen=True)
class HyperparameterSearch:
    """Candidates for the hyperparameters that were tried, their scores and their weights.

    Attributes
    ----------
    points : tuple of Candidate
        Points of kernel, width and scale.
    weights : ndarray, shape (n_points,)
        How much each counts in an average; they sum to one. Within a kernel they are those of
        `averaging_weights`, and `stacking_weights` weigh the averages of the kernels. The best width by
        another method than ``"loo"`` has all of it.
    method : {"loo", "cv", "evidence", "validity"}
        How candidates were scored: by leaving out rows one by one or in folds, by the evidence of a relevance
        vector machine, or by kernel validity.
    feature_share : float
        Weight of the candidates with widths per feature, from folds whose rows had no part in learning
        them; 0 for one width alone. The same within each kernel.
    options : ChoiceOptions
    """

    points: tuple[Candidate, ...]
    weights: Array
    method: str = "loo"
    feature_share: float = 0.0
    options: ChoiceOptions = field(default=OPTIONS, repr=False)

    @classmethod
    def of(
        cls,
        points: Sequence[Candidate],
        feature_share: float = 0.0,
        options: ChoiceOptions = OPTIONS,
        count: Array | None = None,
    ) -> "HyperparameterSearch":
        """Return scored candidates with their weights.

        They are separate for one width, for widths per feature, and for each kernel. `count` says how often
        each row counts, by default once.
        """
        # Two rules. Pseudo-BMA+ weighs what has a prior: grid points, and widths per feature against one.
        # Stacking weighs kernels, which have none. Pseudo-BMA+ of kernels, too: mean log loss of eight sets
        # .2866 in place of .2842, of glass .69 in place of .66. Stacking of grid points, too: better where
        # classes hardly overlap (crabs, thyroid .03, .02), worse on five of seven sets (ripley .017).
        density = np.stack([point.scored().log_density for point in points])
        prior = np.array([point.log_prior for point in points])
        by_feature = np.array([point.by_feature for point in points])
        names, kind = np.unique([point.kernel_name for point in points], return_inverse=True)
        weights, averages = np.empty(len(points)), []
        for k in range(len(names)):
            of_kernel = kind == k
            for widths, share in ((~by_feature, 1.0 - feature_share), (by_feature, feature_share)):
                part = of_kernel & widths
                if part.any():
                    weights[part] = share * averaging_weights(density[part], prior[part])
            weights[of_kernel] /= weights[of_kernel].sum()
            of_rows = density[of_kernel] / (1.0 if count is None else count)
            averages.append(log_average(of_rows, weights[of_kernel, None]))
        weights *= stacking_weights(np.stack(averages), count)[kind]
        return cls(tuple(points), weights / weights.sum(), "loo", feature_share, options)

    @classmethod
    def best_of(
        cls, points: Sequence[Candidate], method: str, options: ChoiceOptions = OPTIONS
    ) -> "HyperparameterSearch":
        """Return candidates of which the one of the greatest score has all the weight."""
        best = int(np.argmax([point.score for point in points]))
        share, weights = float(points[best].by_feature), np.eye(len(points))[best]
        return cls(tuple(points), weights, method, share, options)

    def __repr__(self) -> str:
        """Return the number of candidates, the best score, and the weights of the kernels."""
        of_kernels = "".join(f", {name} {share:.2f}" for name, share in self.kernels.items())
        score, name = self.best.score, f"log {self.method}"
        if self.method in _HELD_OUT:
            score, name = -score, "log loss"
        shown = f"{len(self.points)} candidates, {name} {score:.4f}{of_kernels}"
        return f"HyperparameterSearch({shown})"

    @property
    def kernels(self) -> dict[str, float]:
        """Weight of each kernel in the average, the heaviest first; empty where one was not chosen."""
        names = np.array([point.kernel_name for point in self.points])
        weights = {x: float(self.weights[names == x].sum()) for x in names.tolist() if x}
        return dict(sorted(weights.items(), key=lambda pair: -pair[1]))

    def of_kernel(self, name: str) -> "HyperparameterSearch":
        """Return the candidates of one kernel."""
        part = np.array([point.kernel_name == name for point in self.points])
        points = tuple(point for point, mine in zip(self.points, part, strict=True) if mine)
        return replace(self, points=points, weights=self.weights[part] / self.weights[part].sum())

    @property
    def best(self) -> Candidate:
        """The candidate of the greatest weight among those of widths per feature, or of one width.

        The greater share decides which.
        """
        by_feature = self.feature_share > 0.5
        part = np.array([point.by_feature == by_feature for point in self.points])
        return self.points[int(np.where(part, self.weights, -1.0).argmax())]

    @property
    def width(self) -> Any:
        """Width of the best candidate."""
        return self.best.width

    @property
    def scale(self) -> float:
        """Scale of the best candidate."""
        return self.best.scale

    @property
    def widths(self) -> Array:
        """All widths that were tried, one for each candidate."""
        return np.array([point.width for point in self.points])

    @property
    def scales(self) -> Array:
        """All scales that were tried, one for each candidate."""
        return np.array([point.scale for point in self.points])

    @property
    def scores(self) -> Array:
        """Score of each candidate, the more the better: mean held-out log density, log evidence or validity.

        That of a candidate that dropped out of a race is the best's, less by how much it was behind.
        """
        return np.array([point.score for point in self.points])

    @property
    def log_loss(self) -> Array:
        """Mean negative held-out log probability of the labels, nats per row, of each candidate.

        NaN where no rows were held out.
        """
        return -self.scores if self.method in _HELD_OUT else np.full(len(self.points), np.nan)

    @property
    def fold_log_loss(self) -> "np.ma.MaskedArray[Any, Any]":
        """The same of each fold of ``"cv"``, shape (n_points, n_folds); masked where a candidate dropped out.

        Means skip what is masked. Folds differ: compare candidates by `scores`.
        """
        loss = -np.stack([point.by_fold for point in self.points])
        return np.ma.masked_array(loss, np.isnan(loss))  # infinite where a fit has failed

    def kept(self, most: int | None = None) -> "HyperparameterSearch":
        """Return the candidates of non-negligible weight, `most` at most, the heaviest first."""
        order = np.argsort(-self.weights, kind="stable")[:most]
        least = min(self.options.kept_weight, 0.5 * float(self.weights.max()))
        order = order[self.weights[order] > least]
        points, weights = tuple(self.points[i] for i in order), self.weights[order]
        return replace(self, points=points, weights=weights / weights.sum())

    def distinct(self, *, least: float = 0.05) -> tuple[list[Candidate], list[float]]:
        """Return a candidate of each kernel and width, the heaviest first, and their weights over all scales.

        Parameters
        ----------
        least : float
            Weight below which a kernel and width is left out; the others' weights sum to one.
        """
        check_real("least", least, below=1.0)
        names = np.unique([point.kernel_name for point in self.points], return_inverse=True)[1]
        kind = np.column_stack([names, self.widths])
        _, first, place = np.unique(kind, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(place.ravel(), self.weights)
        kept = [i for i in np.argsort(-weight) if weight[i] >= min(least, weight.max())]
        weights = weight[kept] / weight[kept].sum()
        return [self.points[first[i]] for i in kept], weights.tolist()

    def plot(self) -> "Figure":
        """Draw the log loss over width and scale, of each kernel, and the weight of each candidate.

        By another method than ``"loo"``, the score of each width.
        """
        from pcvm_pymc.figures import plot_cells, plot_width_criteria  # matplotlib's style

        return plot_cells(self) if self.method == "loo" else plot_width_criteria([self])


def grow(
    space: Space,
    score: Score,
    *,
    least: float | None = None,
    near: Candidate | None = None,
) -> HyperparameterSearch:
    """Return the scored candidates of a grid, which grows from its middle or from a candidate `near`.

    Neighbours are scored as long as a candidate at the frontier has more than a weight of `least`, by default
    that of the options.
    """
    least = space.options.grown_weight if least is None else least
    start = space.candidate() if near is None else space.candidate(near.steps)
    points: dict[tuple[int, ...], Candidate] = {start.steps: score(start, near)}
    expanded: set[tuple[int, ...]] = set()
    while True:
        search = HyperparameterSearch.of(list(points.values()), options=space.options)
        heavy = [point for point, w in zip(search.points, search.weights, strict=True) if w > least]
        frontier = [point for point in heavy if point.steps not in expanded]
        if not frontier:
            return search
        for point in frontier:
            expanded.add(point.steps)
            for neighbour in space.neighbours(point):
                if neighbour.steps not in points:
                    PROGRESS.info("candidate %d", len(points) + 1)
                    points[neighbour.steps] = score(neighbour, point)
