"""The choice of hyperparameters: candidates, their scores on held-out rows, and their weights.

A candidate is a point of named hyperparameters. `choose` is what estimations call, and how rows are held out
is its argument. `LeftOut` grows a grid of widths and scales from its middle while leave-one-out gives its
candidates weight. Where leave-one-out would mislead, `Refits` races a one-dimensional grid of widths by
refits on folds. Either way widths per feature come after one width, and folds whose rows had no part in
learning them decide how far to trust them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier

from pcvm_pymc.core.loo import averaging_weights
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.kernels import (
    KernelPiece,
    Radial,
    as_kernel,
    median_distance,
    width_grid,
)
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.transforms import FeatureTransform, TransformedKernel, ranks_of
from pcvm_pymc.core.race import Race, race
from pcvm_pymc.estimators.candidates import (
    Candidate,
    ChoiceOptions,
    HyperparameterSearch,
    Space,
    grow,
)
from pcvm_pymc.estimators.estimation import BY_ROWS, Estimation
from pcvm_pymc.estimators.features import Metric
from pcvm_pymc.estimators.formulation import Formulation
from pcvm_pymc.estimators.scoring import score_class_by_class, score_of_rows
from pcvm_pymc.estimators.training import FOLDS, Fold, TrainingData, basis_for

#: of two classes: rows by which candidates are scored, where there are more than twice as many
SEARCH_ROWS = 400
#: of several classes: the same, and weights up to which all scores are fitted together at a candidate
CLASS_ROWS, JOINT_WEIGHTS = 500, 500
#: heaviest candidates of the first kernel, at which the others are tried: growing grids for each of four
#: kernels gains .0006 nats on eleven sets, and takes 1.6 times as long
OTHER_KERNELS = 3
_IMPOSSIBLE = -1e3  # a log density that is as good as none
_FACTORS = (0.36, 0.6, 1.0, 1.65)  # of the median distance, for widths per feature that are raced


def share_of_widths(one_width: Array, widths: Array, options: ChoiceOptions) -> float:
    """Return the weight of widths per feature against one width.

    By log densities of rows that had no part in learning them, shape (n_obs,), times how often each counts;
    a penalty is a log prior.
    """
    log_prior = np.array([0.0, -options.metric_penalty])
    return float(averaging_weights(np.stack([one_width, widths]), log_prior)[1])


# --- candidates scored by leaving rows out --------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """Candidates on a grid that grows, scored by rows that are left out, one by one or by folds.

    Attributes
    ----------
    formulation : Formulation
        Of the rows by which candidates are scored.
    space : Space
        Of one width.
    folds : list of (ndarray, ndarray)
        That hold out each row once, for widths per feature and for groups of rows.
    grouped : bool
        Whether rows are left out by these folds.
    class_by_class : bool
        Whether several classes are fitted one against the rest.
    kernels : sequence of KernelPiece
        That are weighed, the estimator's first; none where it has one.
    """

    formulation: Formulation
    space: Space
    folds: list[Fold]
    grouped: bool
    class_by_class: bool
    kernels: Sequence[KernelPiece]

    @classmethod
    def of(
        cls,
        estimation: Estimation,
        data: TrainingData,
        rng: np.random.Generator,
        *,
        space: Space,
        most: int | None,
        names: Sequence[str],
    ) -> Self:
        """Return the scores of candidates by some of the rows, where they are many."""
        model, grouped = estimation.model, data.groups is not None
        multiclass, n_classes = model._is_multiclass, len(model.classes_)
        most_rows = max(CLASS_ROWS, 5 * n_classes) if multiclass else SEARCH_ROWS
        if most is None and len(data.X) > (1.5 if multiclass else 2.0) * most_rows:
            data = data.some(choose_share(data.label, most_rows, rng))
        formulation = estimation.formulation(data, model._basis_of(data), most or len(data.X))
        if "width" in space.chosen:
            formulation = formulation.for_many_widths()
        folds: list[Fold] = []
        if model._width_rule == "auto" or grouped:
            folds = data.folds(vars(model).get("cv", FOLDS), rng, once=True)
        coupled = len(formulation.centres) * n_classes
        class_by_class = multiclass and not grouped and coupled > JOINT_WEIGHTS
        kernels = kernels_of(names, data)
        return cls(formulation, space, folds, grouped, class_by_class, kernels)

    def score(self, candidate: Candidate, near: Candidate | None = None) -> Candidate:
        """Return a candidate with its mode and its predictions of rows left out."""
        if self.class_by_class:
            return score_class_by_class(self.formulation, candidate, near)
        return score_of_rows(self.formulation, candidate, near, self.folds if self.grouped else ())

    def scaled(self, relative: Array) -> Self:
        """Return the same on features divided by relative widths, around their median distance."""
        formulation = self.formulation.scaled(relative)
        kernel = as_kernel(formulation.kernel)
        order = kernel.order if isinstance(kernel, Radial) else 2
        width = median_distance(formulation.data.X, order)
        space = replace(self.space, middle={**self.space.middle, "width": width})
        return replace(self, formulation=formulation, space=space)

    def searched(self, near: Candidate | None = None) -> HyperparameterSearch:
        """Return the candidates of one width, of a grid that grows from its middle or from one `near`."""
        least = self.space.options.grown_weight * (2.0 if self.class_by_class else 1.0)
        return grow(self.space, self.score, least=least, near=near)

    def by_feature(self, one_width: HyperparameterSearch, metric: Metric) -> HyperparameterSearch:
        """Return the search over one width and over widths per feature, from that over one width.

        Leave-one-out weighs the candidates of either. It must not weigh the one against the other: the
        relative widths have seen its rows. That is left to each fold's rows under widths learned without it.
        """
        scaled, best, options = self.scaled(metric.relative), one_width.best, self.space.options
        widths = scaled.searched(best)
        density = np.empty(len(self.formulation.data.X))
        for (_, test), relative in zip(self.folds, metric.by_fold, strict=True):
            of_fold = self.scaled(relative)
            candidate = of_fold.space.candidate(widths.best.steps)
            density[test] = of_fold.score(candidate, widths.best).scored().log_density[test]
        share = share_of_widths(best.scored().log_density, density, options)
        if share < options.grown_weight:
            return one_width
        points = []
        for search, by_feature in ((one_width, False), (widths, True)):
            relative = metric.relative if by_feature else np.ones(len(metric.relative))
            for p in search.points:
                at = {**p.at, "width": p.width * relative}
                points.append(replace(p, at=at, by_feature=by_feature))
        return HyperparameterSearch.of(points, feature_share=share, options=options)

    def by_kernel(self, first: HyperparameterSearch, metric: Metric | None) -> HyperparameterSearch:
        """Return the search over several kernels, from that over the first one.

        The others are tried at the heaviest candidates of the first, as many steps from their
        median distance, with the same relative widths of the features, of the same share.
        """
        if len(self.kernels) < 2:
            return first
        points = [replace(p, at={**p.at, "kernel": self.kernels[0]}) for p in first.points]
        data, heaviest = self.formulation.data, first.kept(OTHER_KERNELS).points
        even = np.ones(data.X.shape[1])
        for kernel in self.kernels[1:]:
            of_kernel = replace(self, formulation=self.formulation.on(kernel))
            for by_feature in (False, True):
                near = [p for p in heaviest if p.by_feature == by_feature]
                if not near:
                    continue
                relative = even if metric is None or not by_feature else metric.relative
                kept = relative
                if isinstance(kernel, TransformedKernel):
                    kept = kernel.transform.kept(relative)
                scaled = of_kernel.scaled(kept)
                for start in near:
                    PROGRESS.info("kernel %s", kernel.name)
                    scored = scaled.score(scaled.space.candidate(start.steps), start)
                    at = {**scored.at, "kernel": kernel}
                    if np.ndim(first.points[0].width):  # all of them have a width for each feature
                        at["width"] = at["width"] * relative
                    points.append(replace(scored, at=at, by_feature=by_feature))
        options = self.space.options
        return HyperparameterSearch.of(points, first.feature_share, options, data.count)


def weighed_kernels(estimation: Estimation, data: TrainingData, n_coupled: int) -> Sequence[str]:
    """Return the names of the kernels that a choice weighs; none where it is of one.

    Of many rows, or of several scores with many weights together (`n_coupled`), they would not be told apart.
    """
    model = estimation.model
    weighs = model._weighs_kernels and "width" in estimation.chosen
    few = not model._is_many(len(data.X)) and n_coupled <= 2 * JOINT_WEIGHTS
    return tuple(model._weighed) if weighs and few else ()


def kernels_of(names: Sequence[str], data: TrainingData) -> list[KernelPiece]:
    """Return kernels by their names, and the same of transformed columns where there are such.

    They are ranks of skewed columns, and codes of ordered levels.
    """
    if not names:
        return []
    kernels, transform = [as_kernel(name) for name in names], FeatureTransform()
    if data.encoding is not None:
        transform = data.encoding.transform(data.X, data.weight)
    transform = replace(transform, ranks=ranks_of(data.X, data.weight))
    transformed = [TransformedKernel(kernel, transform) for kernel in kernels if transform.name]
    return [*kernels, *transformed]


# --- held-out rows by refits on folds ------------------------------------------------------------


@dataclass(frozen=True)
class Refits:
    """Widths that are raced by refits on folds.

    Attributes
    ----------
    estimation : Estimation
        Of the refits, looser than that of the fit that is kept.
    data : TrainingData
    folds : list of (ndarray, ndarray)
    most_bases : int, optional
        Of a refit: more are replaced by a choice of so many.
    """

    estimation: Estimation
    data: TrainingData
    folds: list[Fold]
    most_bases: int | None = None

    def log_density(self, width: Any, k: int) -> Array:
        """Return log densities of a fold's rows, by a fit to the others at a width."""
        PROGRESS.info("width %s, fold %d", np.array2string(np.asarray(width), precision=4), k + 1)
        data, (train, test) = self.data, self.folds[k]
        basis = basis_for(self.estimation.model._resolved_basis(len(train)), data.X, train)
        if self.most_bases is not None and len(train) > self.most_bases:
            basis = self.most_bases
        predictor = self.estimation.fitted(data.some(train), width, basis)
        noise = {} if data.noise is None else {"noise": data.noise[test]}
        return np.asarray(predictor.log_density(data.X[test], data.label[test], **noise))

    def raced(
        self, n_candidates: int, log_density: Callable[[int, int], Array], **how: bool
    ) -> Race:
        """Return the race of candidates, ``(candidate, fold) -> log densities``."""
        counts = [self.data.count[test] for _, test in self.folds]
        return race(n_candidates, log_density, counts, self.estimation.model._choice, **how)

    def prefers(self, log_density: Callable[[int, int], Array]) -> bool:
        """Whether the second of two candidates predicts better, by more than the penalty of a metric."""
        raced = self.raced(2, log_density)
        n = min(map(len, raced.values.values()))  # rows of the folds that both ran on
        first, second = (np.maximum(raced.values[i][:n], _IMPOSSIBLE) for i in (0, 1))
        count = np.concatenate([self.data.count[test] for _, test in self.folds])[:n]
        return share_of_widths(count * first, count * second, self.estimation.model._choice) > 0.5

    def searched(self, grid: Array, *, to_the_end: bool) -> HyperparameterSearch:
        """Return the widths of a one-dimensional grid that were tried, and their scores."""
        widths, points = grid.tolist(), []
        raced = self.raced(
            len(widths), lambda i, k: self.log_density(widths[i], k), to_the_end=to_the_end
        )
        for i, score in raced.scores.items():
            points.append(Candidate({"width": widths[i]}, score=score, by_fold=raced.by_fold[i]))
        return HyperparameterSearch.best_of(points, "cv", self.estimation.model._choice)

    def on_ranks(self, search: HyperparameterSearch) -> "tuple[Refits, HyperparameterSearch]":
        """Return the races and the best width on ranks of skewed columns, where they predict better.

        The width is as many times the median distance as that of the columns.
        """
        model, width = self.estimation.model, search.width
        ranks = ranks_of(self.data.X, self.data.weight) if model._weighs_ranks else {}
        if not ranks:
            return self, search
        transform = FeatureTransform(ranks)
        other = replace(self, data=replace(self.data, X=transform(self.data.X)))
        ratio = median_distance(other.data.X) / median_distance(self.data.X)
        parts = (self, width), (other, ratio * width)
        if not self.prefers(lambda i, k: parts[i][0].log_density(parts[i][1], k)):
            return self, search
        kernel = TransformedKernel(as_kernel(model._kernel), transform)
        at = {"width": ratio * width, "kernel": kernel}
        return other, HyperparameterSearch.best_of([Candidate(at)], "cv")

    def by_feature(self, one_width: HyperparameterSearch, metric: Metric) -> HyperparameterSearch:
        """Return widths per feature where they predict held-out rows better than the best one width.

        In each fold the relative widths are those of its training rows. Their common factor is raced, then
        the best against one width.
        """
        X, width = self.data.X, one_width.width
        # a width far from the median distance is often a makeshift against features without effect
        factors = np.sqrt(width / median_distance(X)) * np.array(_FACTORS)

        def at(factor: float, k: int) -> Array:
            relative = metric.by_fold[k]
            return factor * median_distance(X[self.folds[k][0]] / relative) * relative

        raced = self.raced(len(factors), lambda i, k: self.log_density(at(factors[i], k), k))
        best = factors[max(raced.scores, key=raced.scores.__getitem__)]
        if not self.prefers(lambda i, k: self.log_density(at(best, k) if i else width, k)):
            return one_width
        widths = best * median_distance(X / metric.relative) * metric.relative
        candidate = Candidate({**one_width.best.at, "width": widths}, by_feature=True)
        return HyperparameterSearch.best_of([candidate], "cv")


# --- the choice --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Chosen hyperparameters.

    Attributes
    ----------
    search : HyperparameterSearch
        The candidates, with their weights; one where leave-one-out chose nothing.
    data : TrainingData, optional
        The rows that leave-one-out left out, where it chose.
    class_by_class : bool
        Whether it fitted class by class.
    metric : Metric, optional
        Relative widths of the features where they were learned.
    widths : HyperparameterSearch, optional
        Candidates for one width that were scored otherwise.
    """

    search: HyperparameterSearch
    data: TrainingData | None = None
    class_by_class: bool = False
    metric: Metric | None = None
    widths: HyperparameterSearch | None = None

    def parts(
        self, kernel_at: Callable[[Any], KernelPiece]
    ) -> tuple[list[KernelPiece], list[float]]:
        """Return the kernels, each at a width, that count, and their weights.

        `kernel_at` is ``width -> kernel`` where it was not chosen.
        """
        points, weights = [self.search.best], [1.0]
        if self.data is not None:
            points, weights = self.search.distinct()
        chosen = [as_kernel(p.at["kernel"], p.width) for p in points if "kernel" in p.at]
        return chosen or [kernel_at(p.width) for p in points], weights


def choose(
    estimation: Estimation,
    data: TrainingData,
    rng: np.random.Generator,
    *,
    most: int | None = None,
    kernels: Sequence[str] = (),
    widths: Array | None = None,
) -> Choice:
    """Choose the hyperparameters that an estimator's arguments leave open.

    Parameters
    ----------
    estimation : Estimation
        By which candidates are fitted.
    data : TrainingData
    rng : numpy.random.Generator
        For folds, and for the rows by which candidates are scored.
    most : int, optional
        Basis functions of a candidate's fit; more are replaced by a choice of so many.
    kernels : sequence of str
        Names of kernels that are weighed, the estimator's first; none where it has one.
    widths : ndarray, optional
        Candidates on a one-dimensional grid; of a race the best is then scored on all folds. Default: nine
        around the median distance.
    """
    model, chosen = estimation.model, estimation.chosen
    at: dict[str, Any] = {"width": np.nan}
    one_width, metric = None, None
    if "width" in chosen or (model._has_width and model._width_rule in ("em", "median")):
        at = {"width": median_distance(data.X)}
    elif model._has_width and model._width_rule is None:
        at = {"width": model._given_width()}
    elif model._has_width:
        one_width, search, metric = width_on(widths, estimation, data, rng, most=most)
        at = dict(search.best.at)
    space = Space({**at, **estimation.middle}, chosen, model._choice)
    if not chosen:
        search = HyperparameterSearch((space.candidate(),), np.ones(1))
        return Choice(search, metric=metric, widths=one_width)

    scores = LeftOut.of(estimation, data, rng, space=space, most=most, names=kernels)
    data = scores.formulation.data
    # widths of ranks, where kernels of skewed columns as ranks are weighed
    ranks = [k.transform.ranks for k in scores.kernels if isinstance(k, TransformedKernel)]
    ranked = replace(data, X=FeatureTransform(ranks[0] if ranks else {})(data.X))
    search, metric = with_features(estimation, scores, scores.searched(), ranked)
    search = scores.by_kernel(search, metric)
    return Choice(search, data, scores.class_by_class, metric, one_width)


def width_on(
    widths: Array | None,
    estimation: Estimation,
    data: TrainingData,
    rng: np.random.Generator,
    *,
    most: int | None,
) -> tuple[HyperparameterSearch, HyperparameterSearch, Metric | None]:
    """Return the candidates of a one-dimensional grid, the choice, and relative widths of the features.

    By refits on folds, or by a criterion of all rows. Where nothing can be held out that is the evidence, or
    the width is the median one.
    """
    model, criterion = estimation.model, estimation.model._width_rule
    grid = width_grid(data.X) if widths is None else widths
    rough, most = estimation.rough(data, most)
    if criterion in BY_ROWS:
        folds = data.folds(vars(model).get("cv", FOLDS), rng, of_labels=is_classifier(model))
        if folds and len(grid) > 1:
            scores = Refits(rough, data, folds, most)
            one_width = scores.searched(grid, to_the_end=widths is not None)
            scores, search = scores.on_ranks(one_width)
            return one_width, *with_features(estimation, scores, search, scores.data)
        if not model._scores_all_rows:
            median = Candidate({"width": float(np.median(grid))})
            search = HyperparameterSearch.best_of([median], "cv")
            return search, search, None
        criterion = "evidence"
    points = []
    for width in grid.tolist():
        score = estimation.score(data, criterion, width, most)
        points.append(Candidate({"width": width}, score=score))
    search = HyperparameterSearch.best_of(points, criterion, model._choice)
    return search, search, None


def with_features(
    estimation: Estimation,
    scores: LeftOut | Refits,
    search: HyperparameterSearch,
    data: TrainingData,
) -> tuple[HyperparameterSearch, Metric | None]:
    """Return the search with widths per feature, learned from `data`, where arguments and rows allow it."""
    model, folds = estimation.model, scores.folds
    learns = model._width_rule == "auto" and model._is_rbf and data.width_numbers.max() > 0
    enough = data.splits is not None or len(folds) == vars(model).get("cv", FOLDS)
    if not (learns and folds and enough):
        return search, None
    how: dict[str, Any] = {"of_labels": is_classifier(model), "spread": model._choice.metric_spread}
    metric = Metric.learned(data, folds, **how)
    search = scores.by_feature(search, metric)
    return search, replace(metric, share=search.feature_share)
