"""The fit of posterior modes: choose width and scale, fit modes, set attributes; two classes or several."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.em.options import CLASS_TOLERANCE, TOLERANCE
from pcvm_pymc.core.pieces.centres import Centres, Index, as_centres, choose_share
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, as_likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import EMResult
from pcvm_pymc.estimators.average import Average, fit_average, modes_of
from pcvm_pymc.estimators.base import (
    CHOSEN,
    IN_CHUNKS,
    STREAMED,
    WIDTH_EFFECT,
    Rule,
    check_size_and_scales,
    has_width,
    is_named,
    named_hyperprior,
    named_likelihood,
)
from pcvm_pymc.estimators.features import Metric, learns_features, set_features
from pcvm_pymc.estimators.problems import ROUGH, WIDTH_ROWS, Problems, TrainingData, class_centres
from pcvm_pymc.estimators.race import chosen_width, inner_folds
from pcvm_pymc.estimators.search import (
    GROWN_WEIGHT,
    Grid,
    GridPoint,
    HyperparameterSearch,
    by_class,
    by_leave_one_out,
    grown_search,
    search_features,
)

MOST_MODES = 12  # of an average
SEARCH_ROWS = (
    400  # of two classes, by which grid points are scored where rows are more than twice as many
)
#: of several classes: rows by which grid points are scored; weights up to which all scores are fitted
#: together at a grid point; modes of an average where there are more
CLASS_ROWS, JOINT_WEIGHTS, FEW_MODES = 500, 500, 3
FOLDS = 5  # which weigh one width against widths per feature
#: of a quick search that only ranks a width: epochs, and bases, a share of the rows
ROUGH_EPOCHS, ROUGH_BASES = 100, 300

# --- what the arguments mean -------------------------------------------------------------------


def is_em(model: Any, _: bool = False) -> bool:
    """Whether a classifier is fitted by EM, not from the bottom up."""
    how = getattr(model, "algorithm", None) or model.estimation
    return not is_named(how, "bottom-up")


def prior_of(model: Any, scale: float) -> Any:
    """Return the prior of the weights, the default one at a scale."""
    if not is_em(model) or not hasattr(model, "hyperprior"):
        return Hyperprior.jeffreys()  # from the bottom up the logarithms of the precisions are flat
    prior = named_hyperprior(model.hyperprior, "plug_in", model._system.priors)
    if is_named(model.hyperprior, "default") and scale != 1.0:
        return replace(prior, d=prior.c * scale**2)
    return prior


def em_options(model: Any) -> EMOptions:
    """Return how EM runs, by an estimator's arguments."""
    several = LIKELIHOODS[model._system.likelihood].targets == "classes"
    default = CLASS_TOLERANCE if several else TOLERANCE
    tol = default if model.tol is None else model.tol
    return EMOptions(update=getattr(model, "update", "auto"), max_iter=model.max_iter, tol=tol)


def options_of(model: Any) -> Any:
    """Return how a classifier's solver runs, by its arguments."""
    if is_em(model):
        return em_options(model)
    from pcvm_pymc.core.evidence import BottomUpOptions  # slow: compiled

    quick = is_named(getattr(model, "search", None), "quick")
    kind = BottomUpOptions.quick if quick else BottomUpOptions
    return kind(max_iter=model.max_iter, tol=1e-2 if model.tol is None else model.tol)


def centres_of(model: Any, X: Array, label: NDArray[Any], *, few_rows: bool = False) -> Centres:
    """Return the centres of the bases, and the signs of their weights."""
    basis = model.basis
    if few_rows and isinstance(basis, Integral):
        basis = min(basis, len(X))
    if model._takes_several:
        return class_centres(basis, X, label, model.classes_, model._system)
    return as_centres(basis, X, label)


def problems_of(model: Any, data: TrainingData, *, few_rows: bool = False) -> Problems:
    """Return the problem of a fit to some rows, at any width and scale."""
    system, bias = model._system, "prior"
    if model._takes_several:
        n_classes = len(model.classes_)
        likelihood = as_likelihood(system.likelihood, system.likelihoods, n_classes=n_classes)
        has_bias = getattr(model, "bias", False)
        bias = "prior" if (is_em(model) if has_bias is None else has_bias) else "none"
    else:
        likelihood = named_likelihood(model.likelihood, system.likelihoods)
    return Problems(
        data,
        centres_of(model, data.X, data.label, few_rows=few_rows),
        model.kernel,
        likelihood,
        lambda scale: prior_of(model, scale),
        options_of(model),
        bias=bias,
        shared=system.signs is None,
        solver=model._solved,
    )


class Plan(NamedTuple):
    """What a fit by EM does, by its arguments.

    Attributes
    ----------
    moves : tuple of bool
        Whether width, and scale, are chosen by leave-one-out.
    scale : float
        Where it is not chosen, NaN for a prior without one; else the middle of the grid.
    average : bool
        Whether the fit is an average of modes.
    project : bool
        Whether it is projected onto few vectors.
    """

    moves: tuple[bool, bool]
    scale: float
    average: bool
    project: bool


def plan_of(model: Any) -> Plan:
    """Return what a fit does."""
    if not hasattr(model, "hyperprior"):
        return Plan((False, False), 1.0, average=False, project=False)
    prior, by_em, default = (
        prior_of(model, 1.0),
        is_em(model),
        is_named(model.hyperprior, "default"),
    )
    width = has_width(model.kernel) and is_named(model.width, *CHOSEN)
    free = width or not has_width(model.kernel) or model.estimation == "average"
    scale = default and (is_named(model.scale, "auto") or (model.scale is None and free))
    if not by_em or prior.holds_zeros:  # leave-one-out does not see zeros come back
        width = scale = False
    at = np.sqrt(prior.d / prior.c) if getattr(prior, "d", 0.0) > 0 else np.nan
    if default:
        at = model.scale if isinstance(model.scale, Real) else 1.0
    average = (width or scale) and not is_named(model.width, "em")
    average = average if model.estimation == "auto" else model.estimation == "average"
    project = model.estimation == "projection" or model.n_vectors is not None
    project = project and by_em and model.estimation != "em"
    return Plan((width, scale), float(at), average, project)


def _cross_validates(model: Any, _: bool) -> bool:
    plan = plan_of(model)
    by_width = is_named(model.width, *CHOSEN) and not any(plan.moves)
    by_projection = plan.project and not plan.average and model.n_vectors in (None, "auto")
    return by_width or by_projection or is_named(model.width, "cv")


def _can_average(model: Any, _: bool) -> bool:
    searches = any(plan_of(model).moves) and not is_named(model.width, "em")
    return model.estimation != "average" or searches


def _has_no_own_scale(model: Any, _: bool) -> bool:
    return model.scale is None or is_named(model.hyperprior, "default")


def _keeps_digits(model: Any, in_chunks: bool) -> bool:
    return not in_chunks or is_em(model) or model.kernel_dtype == "float64"


#: a lower precision decides which bases are added from the bottom up
DIGITS = Rule("kernel_dtype", "needed 'float64' from the bottom up", _keeps_digits)
MOVED = "it is in pcvm_pymc.experiments.replicas; needed"
#: rules of the arguments that PCVMs of two classes and of several have
PCVM_RULES = (
    WIDTH_EFFECT,
    IN_CHUNKS,
    DIGITS,
    Rule(
        "scale hyperprior",
        "it has its own scale; needed hyperprior='default' or scale=None",
        _has_no_own_scale,
    ),
    Rule(
        "estimation hyperprior width scale",
        "nothing to average over; needed a proper hyperprior, EM, and width or scale 'auto'",
        _can_average,
    ),
    Rule(
        "n_vectors estimation",
        "estimation='auto', 'average' or 'projection'",
        lambda m, _: m.estimation not in ("em", "bottom-up"),
        None,
    ),
    Rule(
        "cv width estimation",
        "something to choose by cross-validation: width='cv' (or 'auto' under an improper hyperprior or from "
        "the bottom up), or the number of vectors of a mode's projection",
        _cross_validates,
        5,
    ),
    Rule("n_vectors", f"{STREAMED} None", lambda m, chunks: not chunks or m.n_vectors is None),
    Rule("update", f"{MOVED} 'auto', 'newton' or 'em'", lambda m, _: m.update != "clip"),
)


# --- the fit -----------------------------------------------------------------------------------


def fit_modes(model: Any, data: TrainingData) -> None:
    """Choose width and scale, fit one mode or several, and set the fitted attributes."""
    rng, plan = np.random.default_rng(as_seed(model.random_state)), plan_of(model)
    if plan.project and data.weight is not None:
        raise ValueError(
            f"sample_weight or class_weight was given with estimation={model.estimation!r}, n_vectors="
            f"{model.n_vectors!r}: a projection's rows count once each; needed estimation='auto', 'em' or "
            "'average' and n_vectors=None, or estimation='bottom-up' for few vectors"
        )
    check_size_and_scales(model, data.X, n_modes=MOST_MODES if plan.average else 1)
    problems = problems_of(model, data).for_model(model)
    n_scores, few = problems.likelihood.n_scores, data
    if problems.rows is not None:
        few = data.some(choose_share(data.label, WIDTH_ROWS, rng))

    # width and scale
    columns, same_fits, scale = None, False, plan.scale
    if any(plan.moves):
        middle = median_distance(few.X) if plan.moves[0] else fixed_width(model, few, rng)
        search, columns, same_fits, metric = search_grid(model, problems, few, middle, rng=rng)
        model._metric_ = metric, search.feature_share
        model.selection_, width, scale = search, search.width, search.scale
    else:
        width = fixed_width(model, few, rng)

    # the modes
    average = None
    if plan.average:
        n_weights = len(problems.centres) * n_scores
        average = fit_average(
            problems,
            search,
            most=MOST_MODES if n_scores == 1 or n_weights <= JOINT_WEIGHTS else FEW_MODES,
            same_fits=same_fits and problems.rows is None,
            weigh=n_scores == 1 or n_weights <= 2 * JOINT_WEIGHTS,
            held_out=plan.project,
            columns=columns,
        )
        points: Any = average.search.points
        modes = modes_of(problems, points, [each.result for each in points])
        predictor: Any = Average(modes, average.search.weights, problems.likelihood)
        best, scale = points[0].result, points[0].scale
    else:
        best = problems.solved(problems.at(width, scale, moves=is_named(model.width, "em")))
        (predictor,) = modes_of(problems, [GridPoint((), width, scale)], [best])

    set_modes(model, data, problems, predictor, best=best, scale=scale)
    if plan.project:
        from pcvm_pymc.estimators.projection import project_fit  # not for most fits

        project_fit(model, data, problems, average.held_out if average else None, rng)
    elif average is not None:
        nothing = np.full((len(data.X), len(model.classes_)), np.nan)
        model.held_out_ = nothing if average.held_out is None else average.held_out
        model.average_, model.components_ = predictor, predictor.modes
        model.component_weights_ = predictor.weights
    if is_em(model) and problems.rows is None and not plan.project:
        model._training_ = model._own_rows(data)
    model._set_fit("EM" if is_em(model) else "bottom-up", [best])


def set_modes(
    model: Any,
    data: TrainingData,
    problems: Problems,
    predictor: Any,
    *,
    best: EMResult,
    scale: float,
) -> None:
    """Set what a user reads of a mode, or of the best of an average."""
    mode = predictor.modes[0] if isinstance(predictor, Average) else predictor
    model._likelihood_, model._predictor_ = problems.likelihood, predictor
    model.log_posterior_ = best.log_posterior
    model._set_vectors(data, problems.centres, best.weight, best.bias, best.width)
    model.relevance_vectors_, model._kernel_ = mode.relevance_vectors, mode.kernel
    set_features(model, best.width, *vars(model).get("_metric_", (None,)))
    if is_em(model) and hasattr(model, "hyperprior"):
        model.scale_, model.hyperprior_ = scale, prior_of(model, scale)


def fixed_width(model: Any, data: TrainingData, rng: np.random.Generator, **special: Any) -> Any:
    """Return the width that is given, or chosen other than by leave-one-out; NaN without one."""
    rough: dict[str, Any] = {}
    most_bases = None
    if is_em(model) and hasattr(model, "estimation"):
        kind = "folds" if prior_of(model, 1.0).is_proper else "folds, improper"
        tol = em_options(model).tol
        rough = {"estimation": "em", "n_vectors": None, "tol": max(tol, ROUGH[kind])}
    elif is_named(getattr(model, "search", None), "quick") and not is_em(model):
        tol = max(ROUGH["bottom-up"], model.tol or 0.0)
        rough = {"tol": tol, "max_iter": min(ROUGH_EPOCHS, model.max_iter)}
        most_bases = max(ROUGH_BASES, 5 * len(model.classes_)) if model.basis is None else None

    def score(criterion: str, width: float) -> float:
        from pcvm_pymc.estimators.relevance import score_width  # slow: compiled

        problems = replace(problems_of(model, data, few_rows=True), options=em_options(model))
        return score_width(problems, criterion, width, plan_of(model).scale)

    return chosen_width(
        model, model._as_given(data), rng, score, rough=rough, most_bases=most_bases, **special
    )


def search_grid(
    model: Any, problems: Problems, data: TrainingData, middle: Any, *, rng: np.random.Generator
) -> tuple[HyperparameterSearch, Index | None, bool, Metric | None]:
    """Return the search over width and scale by leave-one-out, on some of the rows where they are many.

    With ``width="auto"`` widths per feature are searched after one width. Returns also the numbers of its
    bases among the problems' (None where they are others), whether its fits are those of the problems
    themselves, and the relative widths of the features where they were learned.
    """
    plan, n_classes, several = plan_of(model), len(model.classes_), model._takes_several
    most = max(CLASS_ROWS, 5 * n_classes) if several else SEARCH_ROWS
    rows, few = np.arange(len(data.X)), data
    if len(rows) > (1.5 if several else 2.0) * most:
        rows = choose_share(data.label, most, rng)
        few = data.some(rows)
    ranked = problems_of(model, few, few_rows=True)
    if plan.moves[0]:
        ranked = ranked.many_widths()
    grid, own, every = (
        Grid(middle, plan.scale, plan.moves),
        ranked.centres.rows,
        problems.centres.rows,
    )
    columns = None
    if (own >= 0).all() and np.isin(rows[own], every).all():
        order = np.argsort(every)
        columns = order[np.searchsorted(every, rows[own], sorter=order)]
    one_by_one = several and len(own) * n_classes > JOINT_WEIGHTS
    score_of = by_class if one_by_one else by_leave_one_out
    least = 2.0 * GROWN_WEIGHT if one_by_one else GROWN_WEIGHT
    search = grown_search(grid, score_of(ranked), least=least)
    metric = None
    folds = inner_folds(few.label, FOLDS, rng) if is_named(model.width, "auto") else []
    if learns_features(model, few.X, folds, FOLDS):
        metric = Metric.learned(model, few, folds)
        search = search_features(ranked, search, grid, score_of, metric=metric, folds=folds)
    return search, columns, few is data and not one_by_one, metric
