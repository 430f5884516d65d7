"""Inner cross-validation, and a race of refits along a grid of widths."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from pcvm_pymc.core.metric import PENALTY
from pcvm_pymc.core.pieces.centres import Index, unique_rows
from pcvm_pymc.core.pieces.kernels import as_width, median_distance, width_grid
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.estimators.base import CHOSEN, has_width, is_drawn, nested, without_idle
from pcvm_pymc.estimators.features import Metric, learns_features
from pcvm_pymc.estimators.problems import TrainingData, basis_for

type Fold = tuple[Index, Index]


def inner_folds(
    label: NDArray[Any],
    cv: int,
    rng: Any,
    *,
    X: Array | None = None,
    groups: NDArray[Any] | None = None,
) -> list[Fold]:
    """Return folds stratified by class, as many as the rarest class allows; none below two.

    Rows of one of `groups` are held out together. With `X` the folds are those of targets that are numbers,
    and equal rows are a group.

    Raises
    ------
    ValueError
        If groups are given whose folds would leave a class without rows.
    """
    given = groups
    if X is not None and given is None:
        first, copies = unique_rows(X)
        groups = copies if len(first) < len(X) else None
    kinds = np.unique(label) if X is None else [None]
    classes = [np.full(len(label), kind is None) | (label == kind) for kind in kinds]
    unit = np.arange(len(label)) if groups is None else groups
    n_folds = min(cv, *(len(np.unique(unit[own])) for own in classes))
    folds: list[Fold] = []
    if n_folds > 1:
        seed = int(np.random.default_rng(rng).integers(2**31))
        splitters = (StratifiedKFold, StratifiedGroupKFold) if X is None else (KFold, GroupKFold)
        splitter = splitters[groups is not None](n_folds, shuffle=True, random_state=seed)
        folds = list(splitter.split(label, label, groups))
    lost = X is None and any(not own[train].any() for train, _ in folds for own in classes)
    if given is not None and (lost or not folds):
        raise ValueError(
            f"groups: {n_folds} of them have rows of the rarest class, and folds of whole groups leave a "
            "class without rows; needed more groups of each class"
        )
    return folds


# standard errors of the difference to the best, row by row: beyond the first none is tried further out,
# beyond the second a candidate is refitted no more
_FAR, _BEHIND = 2.0, 1.5
_ALIKE = 0.01  # nats per row that are not worth more folds
_FEWEST_ROWS = 30
_NEIGHBOURS = (0.36, 0.6, 1.0, 1.65)  # factors of a width that is raced once more


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
    """

    tried: NDArray[np.intp]
    scores: Array
    by_fold: Array


def race(
    n_candidates: int, log_density: Callable[[int, int], Array], weights: Sequence[Array]
) -> Raced:
    """Return which candidates of a grid were tried, and their mean held-out log densities.

    A candidate drops out once it is not ahead of the best by .01 nats, one and a half standard errors
    allowed for: so does one of two that are alike. Differences are taken row by row. In the first fold the
    grid is tried from its middle up, then down, on either side no farther than to the first that is two
    standard errors behind. The last candidate runs no further either.

    Parameters
    ----------
    n_candidates : int
    log_density : callable
        ``(candidate, fold) -> ndarray, shape (n_rows,)``, of the fold's rows after a fit to the others.
    weights : sequence of ndarray, shape (n_rows,)
        How often each fold's rows count.

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
        for i in [i for i in running if is_far(i, _BEHIND, _ALIKE)]:
            behind[i] = mean(gap(i))
            running.remove(i)

    middle = n_candidates // 2
    run(middle, 0)
    for side in (range(middle + 1, n_candidates), range(middle - 1, -1, -1)):
        for i in side:
            run(i, 0)
            if is_far(i, _FAR):
                break
    drop()
    for k in range(1, len(weights)):
        if len(running) == 1:
            break
        for i in running:
            run(i, k)
        drop()
    best, tried = max(mean(value[i]) for i in running), np.sort(list(value))
    scores = [best - behind[i] if i in behind else mean(value[i]) for i in tried]
    return Raced(tried, np.array(scores), by_fold[tried])


@dataclass(frozen=True)
class WidthSelection:
    """A chosen width, and the scores that it was chosen by.

    Attributes
    ----------
    width : float
        The chosen one; of widths per feature the one width from which they were learned.
    widths : ndarray, shape (n_widths,)
        The candidates that were tried.
    method : {"cv", "evidence", "validity", "em"}
    scores : ndarray, shape (n_widths,)
        The more the better: mean held-out log density, the log evidence, or the log kernel validity. NaN
        where nothing was scored, see `select_width`.
    log_loss : ndarray, shape (n_widths, n_folds)
        ``"cv"`` only: held-out mean negative log probability of the labels, in nats per row. No
        columns where nothing was held out; NaN where a candidate had dropped out.
    """

    width: float
    widths: Array
    method: str
    scores: Array
    log_loss: Array = field(default_factory=lambda: np.empty((0, 0)))

    @classmethod
    def best_of(
        cls, widths: Array, method: str, scores: Array, by_fold: Array | None = None
    ) -> "WidthSelection":
        """Return the candidate of the greatest score, or of scores by fold."""
        loss = np.empty((len(widths), 0)) if by_fold is None else -by_fold
        return cls(float(widths[scores.argmax()]), widths, method, scores, loss)

    @classmethod
    def unscored(cls, width: float, widths: Array, method: str) -> "WidthSelection":
        """Return a width that nothing was scored for."""
        return replace(cls.best_of(widths, method, np.full(len(widths), np.nan)), width=width)


@dataclass(frozen=True)
class Refits:
    """Races of widths by refits on folds.

    Attributes
    ----------
    model : estimator
        With the arguments of the refits.
    data : TrainingData
        With targets as `fit` takes them.
    folds : list of (ndarray, ndarray)
    most_bases : int or None
        Of a refit: more are replaced by a choice of so many.
    follow : callable
        Called after each refit.
    """

    model: Any
    data: TrainingData
    folds: list[Fold]
    most_bases: int | None
    follow: Callable[[], object]

    def race(self, n_candidates: int, width: Callable[[int, int], Any], cost: Any = 0.0) -> Raced:
        """Return the race of the widths ``(candidate, fold) -> width``.

        Parameters
        ----------
        cost : float or ndarray, shape (n_candidates,)
            Nats against each candidate, of all rows together.
        """
        data = self.data
        of_rows = np.ones(len(data.X)) if data.weight is None else data.weight
        weights = [of_rows[test] for _, test in self.folds]
        each_row = np.broadcast_to(cost, n_candidates) / sum(float(w.sum()) for w in weights)

        def log_density(i: int, k: int) -> Array:
            train, test = self.folds[k]
            part, basis = data.some(train), basis_for(self.model.basis, data.X, train)
            if self.most_bases is not None and len(train) > self.most_bases:
                basis = self.most_bases
            PROGRESS.info("candidate %d for the width, fold %d", i + 1, k + 1)
            one = clone(self.model).set_params(width=width(i, k), basis=basis)
            weight = {} if part.weight is None else {"sample_weight": part.weight}
            with nested():
                without_idle(one).fit(part.X, part.label, **weight)
            self.follow()
            return np.asarray(one._log_densities(data.X[test], data.label[test])) - each_row[i]

        with warnings.catch_warnings():  # about fits that are thrown away
            warnings.simplefilter("ignore", ConvergenceWarning)
            return race(n_candidates, log_density, weights)

    def features(self, width: float, metric: Metric) -> Any:
        """Return widths per feature where held-out rows favour them, else the best one `width`.

        In each fold the relative widths are those of its training rows. Their common factor is raced, then
        the best against one width.
        """
        X = self.data.X
        # a width far from the median distance is often a makeshift against features without effect
        factors = np.sqrt(width / median_distance(X)) * np.array(_NEIGHBOURS)

        def at(factor: float, k: int) -> Array:
            relative = metric.by_fold[k]
            return factor * median_distance(X[self.folds[k][0]] / relative) * relative

        raced = self.race(len(factors), lambda i, k: at(factors[i], k))
        best = factors[raced.tried[raced.scores.argmax()]]
        cost = np.array([0.0, PENALTY])
        found = self.race(2, lambda i, k: at(best, k) if i else width, cost=cost)
        if not found.tried[found.scores.argmax()]:
            return width
        return best * median_distance(X / metric.relative) * metric.relative


def chosen_width(
    model: Any,
    data: TrainingData,
    rng: np.random.Generator,
    score: Callable[[str, float], float],
    *,
    rough: dict[str, Any],
    most_bases: int | None = None,
    widths: Array | None = None,
    follow: Callable[[], object] = lambda: None,
) -> tuple[Any, Metric | None]:
    """Return the width that is given, or chosen by folds or a criterion; NaN for a kernel without.

    With ``width="auto"`` of the RBF it is a width for each feature, where held-out rows favour that; then
    returns also the relative widths. Sets ``width_selection_``, and of scored widths ``widths_`` and
    ``width_scores_``.

    Parameters
    ----------
    model : estimator
        Refitted with each width; a basis given by its centres loses those on held-out rows.
    data : TrainingData
        With targets as `fit` takes them.
    rng : numpy.random.Generator
    score : callable
        ``(criterion, width) -> score`` of all rows.
    rough : dict
        Arguments of the refits, such as looser tolerances.
    most_bases : int, optional
        Of a refit: more are replaced by a choice of so many.
    widths : ndarray, optional
        Candidates. Default: nine around the median distance.
    follow : callable, optional
        Called after each refit or score.
    """
    if not has_width(model.kernel):
        return np.nan, None
    if not isinstance(model.width, str):
        return as_width(model.width), None
    if model.width == "em":  # where EM starts to move it
        return median_distance(data.X), None
    widths = width_grid(data.X) if widths is None else widths
    criterion, found, of_features, metric = model.width, None, None, None
    if criterion in (*CHOSEN, "cv"):
        n_folds, numbers = getattr(model, "cv", 5), None if is_classifier(model) else data.X
        folds = inner_folds(data.label, n_folds, rng, X=numbers, groups=data.groups)
        if folds and len(widths) > 1:
            # weights of classes are in those of the rows
            plain: dict[str, Any] = {
                name: None for name in ("memory_limit", "class_weight") if hasattr(model, name)
            }
            plain |= {"estimation": "auto"} if is_drawn(model) else {}  # the width is that of a fit
            refits = Refits(
                clone(model).set_params(**plain | rough), data, folds, most_bases, follow
            )
            raced = refits.race(len(widths), lambda i, _: float(widths[i]))
            found = WidthSelection.best_of(widths[raced.tried], "cv", raced.scores, raced.by_fold)
            if learns_features(model, data.X, folds, n_folds):
                metric = Metric.learned(model, data, folds)
                of_features = refits.features(found.width, metric)
                metric = replace(metric, share=float(np.ndim(of_features)))
        elif model._scores_all_rows:  # nothing can be held out
            criterion = "evidence"
        else:
            found = WidthSelection.unscored(float(np.median(widths)), widths, "cv")
    if found is None:
        scores = np.empty(len(widths))
        for i, width in enumerate(widths.tolist()):
            scores[i] = score(criterion, width)
            follow()
        found = WidthSelection.best_of(widths, criterion, scores)
    model.width_selection_ = found
    if np.isfinite(found.scores).all():
        model.widths_, model.width_scores_ = found.widths, found.scores
    return (found.width if of_features is None else of_features), metric
