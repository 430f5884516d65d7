"""The choice of hyperparameters: candidates, their scores on held-out rows, and their weights.

A candidate is a point of named hyperparameters. Two ways lead from candidates to a choice. A grid of widths
and scales grows from its middle while leave-one-out gives its candidates weight (`grow`). Where leave-one-out
would mislead, widths on a line are raced by refits on folds, or scored on all rows by a criterion. Either way
widths per feature come after one width, and folds whose rows had no part in learning them decide how far to
trust them. Other kernels come last, at the heaviest candidates of the first. `choose` is what estimations
call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pcvm_pymc.core.em import Start, fit_em
from pcvm_pymc.core.loo import LeaveOneOut, leave_one_out
from pcvm_pymc.core.metric import share_of_widths
from pcvm_pymc.core.pieces.centres import choose_share
from pcvm_pymc.core.pieces.kernels import KernelPiece, Radial, as_kernel, median_distance
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.pieces.transforms import View, Viewed, ranks_of
from pcvm_pymc.core.probabilities import log_normalised
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.estimators.candidates import (
    Candidate,
    HyperparameterSearch,
    Score,
    Space,
    WidthSelection,
    grow,
)
from pcvm_pymc.estimators.estimation import Estimation
from pcvm_pymc.estimators.features import Metric
from pcvm_pymc.estimators.formulation import Formulation, loosened
from pcvm_pymc.estimators.refits import choose_on_a_line
from pcvm_pymc.estimators.training import FOLDS, Fold, TrainingData

#: of two classes: rows by which candidates are scored, where there are more than twice as many
SEARCH_ROWS = 400
#: of several classes: the same, and weights up to which all scores are fitted together at a candidate
CLASS_ROWS, JOINT_WEIGHTS = 500, 500
#: heaviest candidates of the first kernel, at which the others are tried: growing grids for each of four
#: kernels gains .0006 nats on eleven sets, and takes 1.6 times as long
OTHER_KERNELS = 3

# --- scores of a candidate ---------------------------------------------------------------------


def start_near(near: Candidate | None, problem: Problem) -> Start | None:
    """Return a neighbour's solution as a start."""
    prior: Any = problem.hyperprior
    if near is None or near.result is None or prior.holds_zeros:  # else zeros would stay zero
        return None
    return Start(near.result.weight, near.result.bias)


def held_out(
    formulation: Formulation, problem: Problem, result: EMResult, folds: Sequence[Fold]
) -> LeaveOneOut:
    """Return latent values and log densities of rows left out, each with its bases.

    By a refit without each fold, or without folds from one factorisation at the mode.
    """
    centres = formulation.centres
    if not folds:
        return leave_one_out(problem, result.weight, result.bias, centres.rows)
    options = loosened(formulation.options, "leave-one-out")
    latent = np.empty_like(result.latent)
    for train, test in folds:
        columns = centres.columns_of(train)
        fit = fit_em(problem.part(train, columns), None, options)
        latent[test] = problem.Phi[:, columns][test] @ fit.weight + fit.bias
    return LeaveOneOut(latent, problem.observed.log_density(latent))


def score_of_rows(formulation: Formulation, folds: Sequence[Fold] = ()) -> Score:
    """Return the score by rows left out one by one, or by folds of them."""
    options = loosened(formulation.options, "leave-one-out")

    def score(candidate: Candidate, near: Candidate | None) -> Candidate:
        problem = formulation.at(candidate.at)
        result = fit_em(problem, start_near(near, problem), options)
        left_out = held_out(formulation, problem, result, folds)
        return replace(candidate, result=result, loo=left_out)

    return score


def score_class_by_class(formulation: Formulation) -> Score:
    """Return the score by leave-one-out of each class against the rest, probabilities normalised.

    For many classes and rows, where fits of all scores together cost too much at every candidate.
    """
    options = loosened(formulation.options, "class by class")

    def score(candidate: Candidate, near: Candidate | None) -> Candidate:
        joint = formulation.at(candidate.at)
        start = start_near(near, joint)
        fits, yes = [], []
        for c in range(joint.n_scores):
            problem = joint.against_rest(c)
            one = None if start is None else Start(start.weight[:, c], float(start.bias[c]))
            fit = fit_em(problem, one, options)
            loo = leave_one_out(problem, fit.weight, fit.bias, formulation.centres.rows)
            fits.append(fit)
            yes.append(problem.likelihood.log_density(loo.latent, np.ones(len(problem.label))))
        weight = np.column_stack([each.weight for each in fits])
        result = replace(fits[0], weight=weight, bias=np.array([each.bias for each in fits]))
        log_probability = log_normalised(np.column_stack(yes))
        density = log_probability[np.arange(len(joint.label)), joint.label.astype(int)]
        density = times_weight(joint.row_weight, density)
        return replace(candidate, result=result, loo=LeaveOneOut(log_probability, density))

    return score


# --- widths per feature ------------------------------------------------------------------------


def search_features(
    formulation: Formulation,
    one_width: HyperparameterSearch,
    space: Space,
    score_of: Callable[[Formulation], Score],
    learned: tuple[Metric, Sequence[Fold]],
) -> HyperparameterSearch:
    """Return the search over one width and over widths per feature, from that over one width.

    Leave-one-out weighs the candidates of either. It must not weigh the one against the other: the relative
    widths have seen its rows. That is left to each fold's rows under widths learned without the fold.

    Parameters
    ----------
    formulation : Formulation
        By which candidates are scored.
    one_width : HyperparameterSearch
    space : Space
        Of one width.
    score_of : callable
        ``formulation -> score``.
    learned : (Metric, sequence of (ndarray, ndarray))
        Relative widths, and the folds that they were learned without.
    """
    metric, folds = learned

    def scaled(relative: Array) -> tuple[Space, Score]:
        of_features = formulation.scaled(relative)
        width = median_distance(of_features.data.X)
        return replace(space, middle={**space.middle, "width": width}), score_of(of_features)

    found = grow(*scaled(metric.relative), near=one_width.best)
    best, data = found.best, formulation.data
    widths = np.empty(len(data.X))
    for (_, test), relative in zip(folds, metric.by_fold, strict=True):
        of_fold, score = scaled(relative)
        left_out = score(of_fold.candidate(best.steps), best).scored()
        widths[test] = left_out.log_density[test]
    one = one_width.best.scored().log_density
    options = space.options
    parts = one / data.count, widths / data.count, data.weight
    share = share_of_widths(*parts, penalty=options.metric_penalty)
    if share < options.kept_weight:
        return one_width

    every = []
    for by, search in enumerate((one_width, found)):
        relative = metric.relative if by else np.ones(len(metric.relative))
        for p in search.points:
            at = {**p.at, "width": p.width * relative}
            every.append(replace(p, at=at, by_feature=bool(by)))
    return HyperparameterSearch.of(every, feature_share=share, options=options)


# --- several kernels ---------------------------------------------------------------------------


def weighed_kernels(estimation: Estimation, data: TrainingData, n_coupled: int) -> Sequence[str]:
    """Return the names of the kernels that a choice weighs; none where it is of one.

    Of many rows, or of several scores with many weights together (`n_coupled`), they would not be told apart.
    """
    model = estimation.model
    weighs = model._weighs_kernels and "width" in estimation.chosen
    few = not model._is_many(len(data.X)) and n_coupled <= 2 * JOINT_WEIGHTS
    names: Sequence[str] = model._weighed if weighs and few else ()
    return names


def kernels_of(names: Sequence[str], data: TrainingData) -> list[KernelPiece]:
    """Return kernels by their names, and the same of another view of the columns where there is one.

    The view has ranks of skewed columns, and codes of ordered levels.
    """
    found = [as_kernel(each) for each in names]
    view = View() if data.encoding is None else data.encoding.view(data.X, data.weight)
    view = replace(view, ranks=ranks_of(data.X, data.weight))
    return [*found, *(Viewed(each, view) for each in found if view.name)]


def search_kernels(
    formulation: Formulation,
    first: HyperparameterSearch,
    space: Space,
    score_of: Callable[[Formulation], Score],
    *,
    kernels: Sequence[KernelPiece],
    metric: Metric | None,
) -> HyperparameterSearch:
    """Return the search over several kernels, from that over the first one.

    The others are tried at the heaviest candidates of the first, as many steps from their
    median distance, with the same relative widths of the features, of the same share.

    Parameters
    ----------
    formulation : Formulation
        By which candidates are scored.
    first : HyperparameterSearch
    space : Space
        Of one width.
    score_of : callable
        ``formulation -> score``.
    kernels : sequence of KernelPiece
    metric : Metric, optional
        Relative widths, where they were learned.
    """
    points = [replace(each, at={**each.at, "kernel": kernels[0]}) for each in first.points]
    heaviest, even = first.kept(OTHER_KERNELS).points, np.ones(formulation.data.X.shape[1])
    for kernel in kernels[1:]:
        of_kernel = formulation.on(kernel)
        for by_feature in (False, True):
            near = [each for each in heaviest if each.by_feature == by_feature]
            if not near:
                continue
            relative = even if metric is None or not by_feature else metric.relative
            kept = kernel.view.kept(relative) if isinstance(kernel, Viewed) else relative
            scaled = of_kernel.scaled(kept)
            order = scaled.kernel.order if isinstance(scaled.kernel, Radial) else 2
            width = median_distance(scaled.data.X, order)
            part, score = replace(space, middle={**space.middle, "width": width}), score_of(scaled)
            for start in near:
                PROGRESS.info("kernel %s", kernel.name)
                found = score(part.candidate(start.steps), start)
                at = {**found.at, "kernel": kernel}
                if np.ndim(first.points[0].width):  # all of them have a width for each feature
                    at["width"] = at["width"] * relative
                points.append(replace(found, at=at, by_feature=by_feature))
    how: dict[str, Any] = {"options": space.options, "count": formulation.data.count}
    return HyperparameterSearch.of(points, feature_share=first.feature_share, **how)


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
    selection : WidthSelection, optional
        Of widths that were chosen otherwise.
    """

    search: HyperparameterSearch
    data: TrainingData | None = None
    class_by_class: bool = False
    metric: Metric | None = None
    selection: WidthSelection | None = None

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.search.best

    def parts(
        self, kernel_at: Callable[[Any], KernelPiece]
    ) -> tuple[list[KernelPiece], list[float]]:
        """Return the kernels, each at a width, that count, and their weights.

        `kernel_at` is ``width -> kernel`` where it was not chosen.
        """
        alone = [self.best], [1.0]
        found, weights = alone if self.data is None else self.search.distinct()
        chosen = [as_kernel(p.at["kernel"], p.width) for p in found if "kernel" in p.at]
        return chosen or [kernel_at(each.width) for each in found], weights

    def publish(self, model: Any) -> None:
        """Set what a user reads of the choice."""
        if self.data is not None:
            model.selection_ = self.search
        if self.selection is not None:
            model.width_selection_ = self.selection
            if np.isfinite(self.selection.scores).all():
                model.widths_ = self.selection.widths
                model.width_scores_ = self.selection.scores


def choose(
    estimation: Estimation,
    data: TrainingData,
    rng: np.random.Generator,
    *,
    most: int | None = None,
    kernels: Sequence[str] = (),
    widths: Array | None = None,
    follow: Callable[[], object] = lambda: None,
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
        Candidates on a line. Default: nine around the median distance.
    follow : callable, optional
        Called after each refit or score on the line.
    """
    chosen, middle = estimation.chosen, estimation.middle
    at, metric, selection = {"width": np.nan}, None, None
    if "width" in chosen:
        at = {"width": median_distance(data.X)}
    elif estimation.model._has_width:
        how: dict[str, Any] = {"widths": widths, "follow": follow}
        at, metric, selection = choose_on_a_line(estimation, data, rng, most=most, **how)
    space = Space({**at, **middle}, chosen, estimation.model._choice)
    if not chosen:
        alone = HyperparameterSearch((space.candidate(),), np.ones(1))
        return Choice(alone, metric=metric, selection=selection)
    found = _grown(estimation, space, data, rng, most=most, names=kernels)
    return replace(found, selection=selection)


def _grown(
    estimation: Estimation,
    space: Space,
    data: TrainingData,
    rng: Any,
    *,
    most: int | None,
    names: Sequence[str],
) -> Choice:
    """Return the choice by leave-one-out, on some of the rows where they are many."""
    model = estimation.model
    multiclass, n_classes = model._is_multiclass, len(model.classes_)
    most_rows = max(CLASS_ROWS, 5 * n_classes) if multiclass else SEARCH_ROWS
    few, grouped = data, data.groups is not None
    if most is None and len(data.X) > (1.5 if multiclass else 2.0) * most_rows:
        few = data.some(choose_share(data.label, most_rows, rng))
    ranked = estimation.formulation(few, model._basis_of(few), most or len(few.X))
    if "width" in space.chosen:
        ranked = ranked.for_many_widths()
    folds, n_folds = list[Fold](), vars(model).get("cv", FOLDS)
    if model._width_rule == "auto" or grouped:
        folds = few.folds(n_folds, rng, once=True)

    class_by_class = multiclass and not grouped and len(ranked.centres) * n_classes > JOINT_WEIGHTS
    score_of: Any = partial(score_of_rows, folds=folds if grouped else [])
    score_of = score_class_by_class if class_by_class else score_of
    least = space.options.grown_weight * (2.0 if class_by_class else 1.0)
    found, metric = grow(space, score_of(ranked), least=least), None
    kernels = kernels_of(names, few)
    if model._learns_widths(few, few.splits is not None or len(folds) == n_folds):
        ranks = next((each.view.ranks for each in kernels if isinstance(each, Viewed)), {})
        columns = replace(few, X=View(ranks)(few.X))
        metric = Metric.learned(columns, folds, spread=space.options.metric_spread)
        found = search_features(ranked, found, space, score_of, (metric, folds))
        metric = replace(metric, share=found.feature_share)
    if len(kernels) > 1:
        found = search_kernels(ranked, found, space, score_of, kernels=kernels, metric=metric)
    return Choice(found, few, class_by_class, metric)
