"""Widths on a line, where leave-one-out would mislead: a race by refits on folds, or a score of all rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from pcvm_pymc.core.metric import share_of_widths
from pcvm_pymc.core.pieces.kernels import as_kernel, median_distance, width_grid
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.transforms import View, Viewed, ranks_of
from pcvm_pymc.core.race import Raced, race
from pcvm_pymc.estimators.candidates import WidthSelection
from pcvm_pymc.estimators.estimation import BY_ROWS, Estimation
from pcvm_pymc.estimators.features import Metric
from pcvm_pymc.estimators.training import FOLDS, Fold, TrainingData, basis_for

_IMPOSSIBLE = -1e3  # a log density that is as good as none
_FACTORS = (0.36, 0.6, 1.0, 1.65)  # of the median distance, for widths per feature that are raced


@dataclass(frozen=True)
class Refits:
    """Races of widths by refits on folds.

    Attributes
    ----------
    estimation : Estimation
        Of the refits, looser than that of the fit that is kept.
    data : TrainingData
    folds : list of (ndarray, ndarray)
    most_bases : int or None
        Of a refit: more are replaced by a choice of so many.
    follow : callable
        Called after each refit.
    """

    estimation: Estimation
    data: TrainingData
    folds: list[Fold]
    most_bases: int | None
    follow: Callable[[], object]

    def log_density(self, width: Any, k: int) -> Array:
        """Return log densities of a fold's rows, by a fit to the others at a width."""
        data, (train, test) = self.data, self.folds[k]
        basis = basis_for(self.estimation.model._resolved_basis(len(train)), data.X, train)
        if self.most_bases is not None and len(train) > self.most_bases:
            basis = self.most_bases
        predictor = self.estimation.fitted(data.some(train), width, basis)
        self.follow()
        more = {} if data.noise is None else {"noise": data.noise[test]}
        return np.asarray(predictor.log_density(data.X[test], data.label[test], **more))

    def race(
        self,
        n_candidates: int,
        log_density: Callable[[int, int], Array],
        *,
        to_the_end: bool = False,
    ) -> Raced:
        """Return the race of candidates, ``(candidate, fold) -> log densities``."""

        def scored(i: int, k: int) -> Array:
            PROGRESS.info("candidate %d for the width, fold %d", i + 1, k + 1)
            return log_density(i, k)

        counts = [self.data.count[test] for _, test in self.folds]
        patience = self.estimation.model._choice
        return race(n_candidates, scored, counts, patience, to_the_end=to_the_end)

    def favour(self, log_density: Callable[[int, int], Array]) -> bool:
        """Whether held-out rows favour the second of two candidates, by more than the penalty of a metric."""
        both = self.race(2, log_density)
        n = min(map(len, both.log_density))  # rows of the folds that both ran on
        one, other = (np.maximum(each[:n], _IMPOSSIBLE) for each in both.log_density)
        count = np.concatenate([self.data.count[test] for _, test in self.folds])
        penalty = self.estimation.model._choice.metric_penalty
        return share_of_widths(one, other, count[:n], penalty=penalty) > 0.5

    def features(self, width: float, metric: Metric) -> tuple[Any, Metric]:
        """Return widths per feature where held-out rows favour them, else the best one `width`.

        In each fold the relative widths are those of its training rows. Their common factor is raced, then
        the best against one width.
        """
        X = self.data.X
        # a width far from the median distance is often a makeshift against features without effect
        factors = np.sqrt(width / median_distance(X)) * np.array(_FACTORS)

        def at(factor: float, k: int) -> Array:
            relative = metric.by_fold[k]
            return factor * median_distance(X[self.folds[k][0]] / relative) * relative

        raced = self.race(len(factors), lambda i, k: self.log_density(at(factors[i], k), k))
        best = factors[raced.tried[raced.scores.argmax()]]
        if not self.favour(lambda i, k: self.log_density(at(best, k) if i else width, k)):
            return width, metric
        widths = best * median_distance(X / metric.relative) * metric.relative
        return widths, replace(metric, share=1.0)

    def seen(self, view: View, width: float) -> "tuple[Refits, float] | None":
        """Return the races of another view of the columns, and a width there, where held-out rows favour it.

        The width is as many times the median distance as that of the columns.
        """
        other = replace(self, data=replace(self.data, X=view(self.data.X)))
        ratio = median_distance(other.data.X) / median_distance(self.data.X)
        parts = (self, width), (other, ratio * width)
        if not self.favour(lambda i, k: parts[i][0].log_density(parts[i][1], k)):
            return None
        return other, ratio * width


def choose_on_a_line(
    estimation: Estimation,
    data: TrainingData,
    rng: np.random.Generator,
    *,
    most: int | None,
    widths: Array | None,
    follow: Callable[[], object],
) -> tuple[dict[str, Any], Metric | None, WidthSelection | None]:
    """Return the width that is given, or chosen by folds or a criterion.

    With ``width="auto"`` of the RBF it is a width for each feature, where held-out rows favour that. A kernel
    of another view of the columns is there where they favour that.
    """
    model = estimation.model
    if model._width_rule in ("em", "median"):  # where EM starts to move it
        return {"width": median_distance(data.X)}, None, None
    if not isinstance(model.width, str):
        return {"width": model._given_width()}, None, None
    # what `select_width` shows of the chosen width is a mean over all folds
    to_the_end = widths is not None
    widths = width_grid(data.X) if widths is None else widths
    rough, most = estimation.rough(data, most)
    criterion, metric = model.width, None
    if criterion in BY_ROWS:
        n_folds, of_labels = vars(model).get("cv", FOLDS), is_classifier(model)
        folds = data.folds(n_folds, rng, of_labels=of_labels)
        if folds and len(widths) > 1:
            refits = Refits(rough, data, folds, most, follow)
            raced = refits.race(
                len(widths),
                lambda i, k: refits.log_density(float(widths[i]), k),
                to_the_end=to_the_end,
            )
            found = WidthSelection.best_of(widths[raced.tried], "cv", raced.scores, raced.by_fold)
            at: dict[str, Any] = {"width": found.width}
            view = View(ranks=ranks_of(data.X, data.weight) if model._weighs_ranks else {})
            if view.name and (seen := refits.seen(view, found.width)):
                refits, width = seen
                at = {"width": width, "kernel": Viewed(as_kernel(model._kernel), view)}
            if model._learns_widths(data, data.splits is not None or len(folds) == n_folds):
                spread = model._choice.metric_spread
                metric = Metric.learned(refits.data, folds, of_labels=of_labels, spread=spread)
                at["width"], metric = refits.features(at["width"], metric)
            return at, metric, found
        if not model._scores_all_rows:  # nothing can be held out
            found = WidthSelection.unscored(float(np.median(widths)), widths, "cv")
            return {"width": found.width}, metric, found
        criterion = "evidence"
    scores = np.empty(len(widths))
    for i, width in enumerate(widths.tolist()):
        scores[i] = estimation.score(data, criterion, width, most)
        follow()
    found = WidthSelection.best_of(widths, criterion, scores)
    return {"width": found.width}, metric, found
