"""The fit of posterior modes: choose width and scale, fit modes, set attributes; two classes or several."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.em.options import CLASS_TOLERANCE, TOLERANCE
from pcvm_pymc.core.pieces.centres import Centres, Index, as_centres, choose_rows, choose_share
from pcvm_pymc.core.pieces.kernels import median_distance
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, Likelihood, as_likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.validation import as_features, as_seed, is_real, is_unknown, shown
from pcvm_pymc.core.problem import EMResult
from pcvm_pymc.estimators import base, search
from pcvm_pymc.estimators.average import Average, fit_average, modes_of
from pcvm_pymc.estimators.features import Metric, learns_features, set_features
from pcvm_pymc.estimators.problems import ROUGH, Problems, TrainingData, width_rows
from pcvm_pymc.estimators.race import chosen_width, inner_folds

MOST_MODES = 12  # of an average
#: of two classes: rows by which grid points are scored, where there are more than twice as many
SEARCH_ROWS = 400
#: of several classes: rows by which grid points are scored; weights up to which all scores are fitted
#: together at a grid point; modes of an average where there are more
CLASS_ROWS, JOINT_WEIGHTS, FEW_MODES = 500, 500, 3
FOLDS = 5  # which weigh one width against widths per feature
#: of a quick search that only ranks a width: epochs, and bases, a share of the rows
ROUGH_EPOCHS, ROUGH_BASES = 100, 300

# --- what the arguments mean -------------------------------------------------------------------


def is_em(model: Any, _: bool = False) -> bool:
    """Whether a classifier is fitted by EM, not from the bottom up."""
    how = getattr(model, "algorithm", None) or getattr(model, "estimation", None)
    return not base.is_named(how, "bottom-up")


#: what a name means as a hyperprior, in every estimator
HYPERPRIORS: dict[str, Callable[[], Hyperprior]] = {
    "default": Hyperprior.plug_in,
    "plug_in": Hyperprior.plug_in,
    "jeffreys": Hyperprior.jeffreys,
    "chen2009": Hyperprior.chen2009,
}


def named_hyperprior(hyperprior: Any, allowed: tuple[str, ...] = ("gamma",)) -> Any:
    """Return a hyperprior by its name, or as it was given.

    Parameters
    ----------
    hyperprior : {"default", "plug_in", "jeffreys", "chen2009"} or a prior
    allowed : tuple of str
        Priors that the row of the family table takes.

    Raises
    ------
    ValueError
        For another one, or one without a mode.
    """
    if isinstance(hyperprior, str) and hyperprior in HYPERPRIORS:
        return HYPERPRIORS[hyperprior]()
    if getattr(hyperprior, "name", None) in allowed:
        if hyperprior.has_mode:
            return hyperprior
        raise ValueError(
            f"hyperprior={hyperprior!r} has no mode that EM could find; needed one of fixed scale "
            "(rate_shape=None), or sample the model"
        )
    raise ValueError(
        f"hyperprior={shown(hyperprior)} is unknown; use one of {sorted(HYPERPRIORS)} or a "
        "Hyperprior(c, d, e, f)"
    )


def named_likelihood(
    likelihood: str | Likelihood, allowed: tuple[str, ...], argument: str = "likelihood"
) -> Likelihood:
    """Return a likelihood by its name, or as it was given; `argument` is its name in the estimator."""
    try:
        found = as_likelihood(likelihood, allowed)
    except ValueError:
        raise ValueError(
            f"{argument}={shown(likelihood)} is unknown; use one of {allowed}, or a Likelihood object"
        ) from None
    for name, value in vars(found).items():
        # an unknown noise, NaN, is estimated with the evidence
        if is_unknown(value) and (name == "flip" or not is_real(value)):
            raise ValueError(
                f"{argument} has the unknown {name}={shown(value)}; needed a number here, or a model and "
                "`sample`"
            )
    return found


def prior_of(model: Any, scale: float) -> Any:
    """Return the prior of the weights, the default one at a scale."""
    if not is_em(model) or not hasattr(model, "hyperprior"):
        return Hyperprior.jeffreys()  # from the bottom up the logarithms of the precisions are flat
    prior = named_hyperprior(model.hyperprior, model._system.priors)
    if base.is_named(model.hyperprior, "default") and scale != 1.0:
        return replace(prior, d=prior.c * scale**2)
    return prior


def em_options(model: Any) -> EMOptions:
    """Return how EM runs, by an estimator's arguments."""
    several = LIKELIHOODS[model._system.likelihood].targets == "classes"
    default = CLASS_TOLERANCE if several else TOLERANCE
    tol = default if model.tol is None else model.tol
    return EMOptions(update=getattr(model, "update", "auto"), max_iter=model.max_iter, tol=tol)


def centres_of(model: Any, data: TrainingData, most: int | None = None) -> Centres:
    """Return the centres of the bases, and the signs of their weights under the model's sign rule.

    Of those that are rows, `most` at most.
    """
    X, label, basis = data.X, data.label, data.basis(model)
    if most is not None and (basis is None or isinstance(basis, Integral)):
        basis = min(most, basis or most, len(X))
    if basis is None or isinstance(basis, Integral):
        n_basis = len(X) if basis is None else int(basis)
        rows = choose_rows(X, label, n_basis, random_state=0, name="basis")
        return rows_as_centres(model, data, rows)
    if not model._takes_several:
        return as_centres(basis, X, label)
    if not isinstance(basis, tuple) or len(basis) != 2:
        raise ValueError(
            f"basis={shown(basis)}; needed None, a number of rows to choose, or (centres, labels)"
        )
    points, given = as_features(basis[0], "basis", X.shape[1]), np.asarray(basis[1])
    if given.shape != (len(points),) or not np.isin(given, model.classes_).all():
        raise ValueError(
            f"the basis' labels are {given!r}; needed one of {model.classes_.tolist()} for each centre"
        )
    kind = np.searchsorted(model.classes_, given)
    return Centres(points, signs_of(model, kind), np.full(len(points), -1))


def rows_as_centres(model: Any, data: TrainingData, rows: Index) -> Centres:
    """Return some of the rows as centres of the bases, with the signs of their weights."""
    return Centres(data.X[rows], signs_of(model, data.label[rows]), rows)


def signs_of(model: Any, kind: NDArray[Any]) -> NDArray[Any] | None:
    """Return the signs of the weights of centres of some classes under the model's sign rule."""
    if not model._takes_several:
        return kind
    rule = model._system.signs
    return None if rule is None else rule(kind, len(model.classes_))


def with_rows_where_wrong(
    model: Any,
    data: TrainingData,
    problems: Problems,
    point: search.GridPoint,
    rng: np.random.Generator,
) -> Centres:
    """Return the centres of a problem, and more of them, drawn where a fit to these predicts badly.

    A row is drawn with probability proportional to that of the other classes under this fit. Of 2,000
    centres of 15,000 letters, half of them drawn so, the error is 2.8 %; drawn by distance alone 3.6 %.
    """
    half, n = problems.centres.rows, data.basis(model)
    fitted = replace(problems, options=search.rough(problems.options, "leave-one-out"))
    mode = fitted.solved(fitted.at(point.width, point.scale))
    first = modes_of(fitted, [replace(point, result=mode)])[0]
    latent = first.latent(data.X, effective_n_jobs(model.n_jobs))
    wrong = np.maximum(-np.expm1(problems.likelihood.log_density(latent, data.label)), 1e-12)
    wrong *= 1.0 if data.weight is None else data.weight
    wrong[half] = 0.0
    more = rng.choice(len(wrong), n - len(half), replace=False, p=wrong / wrong.sum())
    return rows_as_centres(model, data, np.sort(np.append(half, more)))


def problems_of(model: Any, data: TrainingData, *, most: int | None = None) -> Problems:
    """Return the problem of a fit to some rows, at any width and scale; of `most` drawn bases at most."""
    system, bias = model._system, "prior"
    options: Any = em_options(model)
    if not is_em(model):
        from pcvm_pymc.core.evidence import BottomUpOptions  # slow: compiled

        quick = base.is_named(getattr(model, "search", None), "quick")
        kind = BottomUpOptions.quick if quick else BottomUpOptions
        options = kind(max_iter=model.max_iter)
        options = options if model.tol is None else replace(options, tol=model.tol)
    if model._takes_several:
        n_classes = len(model.classes_)
        likelihood = as_likelihood(system.likelihood, system.likelihoods, n_classes=n_classes)
        has_bias = getattr(model, "bias", False)
        bias = "prior" if (is_em(model) if has_bias is None else has_bias) else "none"
    else:
        likelihood = named_likelihood(model.likelihood, system.likelihoods)
    return Problems(
        data,
        centres_of(model, data, most),
        model.kernel,
        likelihood,
        lambda scale: prior_of(model, scale),
        options,
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
    chunks : bool
        Whether many rows may go in chunks of their own accord.
    """

    moves: tuple[bool, bool]
    scale: float
    average: bool
    project: bool
    chunks: bool = False


def plan_of(model: Any) -> Plan:
    """Return what a fit does."""
    if not hasattr(model, "hyperprior"):
        return Plan((False, False), 1.0, average=False, project=False)
    prior, by_em = prior_of(model, 1.0), is_em(model)
    default = base.is_named(model.hyperprior, "default")
    width = base.has_width(model.kernel) and base.is_named(model.width, *base.CHOSEN)
    free = width or not base.has_width(model.kernel) or model.estimation == "average"
    scale = default and (base.is_named(model.scale, "auto") or (model.scale is None and free))
    if not by_em or prior.holds_zeros:  # leave-one-out does not see zeros come back
        width = scale = False
    at = np.sqrt(prior.d / prior.c) if getattr(prior, "d", 0.0) > 0 else np.nan
    if default:
        at = model.scale if isinstance(model.scale, Real) else 1.0
    average = (width or scale) and not base.is_named(model.width, "em")
    average = average and model.estimation in ("auto", "average")
    project = model.estimation == "projection" or model.n_vectors is not None
    project = project and by_em and model.estimation != "em"
    chunks = (
        by_em and not project and model._solved is None and not base.is_named(model.width, "em")
    )
    return Plan((width, scale), float(at), average, project, chunks)


# --- the fit -----------------------------------------------------------------------------------


def fit_modes(model: Any, data: TrainingData) -> None:
    """Choose width and scale, fit one mode or several, and set the fitted attributes."""
    rng, plan = np.random.default_rng(as_seed(model.random_state)), plan_of(model)
    many = base.is_many(model, len(data.X))
    in_two_halves = many and is_em(model) and not model._takes_several and data.stream is None
    half = data.basis(model) // 2 if in_two_halves else None
    problems = problems_of(model, data, most=half).for_model(model, chunks=plan.chunks)
    n_scores, in_memory = problems.likelihood.n_scores, problems.rows is None
    n_weights = len(problems.centres) * n_scores if n_scores > 1 else 0  # that are coupled
    most_modes = 1 if many or not plan.average else MOST_MODES
    base.check_size_and_scales(model, data.X, data.groups, n_modes=most_modes, n_scores=n_scores)
    rows, most = width_rows(model, data, not in_memory, rng)
    few = data if rows is None else data.some(rows)

    # width and scale
    if any(plan.moves):
        moves = plan.moves[0]
        middle = median_distance(few.X) if moves else fixed_width(model, few, rng, most)[0]
        chosen = search_grid(model, problems, few, middle, rng=rng, most=most)
        model.selection_, metric = chosen.search, chosen.metric
        width, scale = chosen.search.width, chosen.search.scale
    else:
        (width, metric), scale = fixed_width(model, few, rng, most), plan.scale
    if in_two_halves:
        point = search.GridPoint((), width, scale)
        centres = with_rows_where_wrong(model, data, problems, point, rng)
        problems = replace(problems, centres=centres).for_model(model, chunks=plan.chunks)

    # the modes, the best first
    PROGRESS.info("fit to all rows")
    left_out = None
    if plan.average:
        grouped = data.groups is not None
        average, left_out = fit_average(
            problems,
            chosen.search,
            most=most_modes if n_weights <= JOINT_WEIGHTS else min(most_modes, FEW_MODES),
            same_bases=chosen.same_bases and in_memory,
            same_fits=chosen.same_fits and in_memory,
            weigh=not many and n_weights <= 2 * JOINT_WEIGHTS,
            needs_held_out=plan.project,
            folds=inner_folds(data.label, FOLDS, rng, groups=data.groups) if grouped else [],
        )
    else:
        mode = problems.solved(problems.at(width, scale, moves=base.is_named(model.width, "em")))
        point = search.GridPoint((), width, scale, result=mode)
        average = search.HyperparameterSearch((point,), np.ones(1))

    # what a user reads
    best = set_modes(model, data, problems, average)
    set_features(model, best.width, metric)
    if plan.project:
        from pcvm_pymc.estimators.projection import project_fit  # not for most fits

        project_fit(model, data, problems, left_out, rng)
    elif plan.average:
        nothing = np.full((len(data.X), len(model.classes_)), np.nan)
        model.held_out_ = data.of_all(nothing if left_out is None else left_out)
        model.average_, model.components_ = model._predictor_, model._predictor_.modes
        model.component_weights_ = average.weights
    if is_em(model) and in_memory and not plan.project:
        model._training_ = model._own_rows(data)
    model._set_fit("EM" if is_em(model) else "bottom-up", [best])


def set_modes(
    model: Any, data: TrainingData, problems: Problems, average: search.HyperparameterSearch
) -> EMResult:
    """Set the modes, and what a user reads of the best of them, which is returned."""
    modes, point = modes_of(problems, average.points), average.points[0]
    best: Any = point.result
    model._likelihood_, model.log_posterior_ = problems.likelihood, best.log_posterior
    model._predictor_ = modes[0]
    if plan_of(model).average:
        model._predictor_ = Average(modes, average.weights, problems.likelihood)
    model._set_vectors(data, problems.centres, best.weight, best.bias, best.width)
    model.relevance_vectors_, model._kernel_ = modes[0].relevance_vectors, modes[0].kernel
    if is_em(model) and hasattr(model, "hyperprior"):
        model.scale_, model.hyperprior_ = point.scale, prior_of(model, point.scale)
    return best


def fixed_width(
    model: Any,
    data: TrainingData,
    rng: np.random.Generator,
    most: int | None = None,
    **special: Any,
) -> tuple[Any, Metric | None]:
    """Return the width that is given, or chosen other than by leave-one-out; NaN without one.

    Returns also the relative widths of the features where they were learned. Refits have `most` bases at
    most.
    """
    rough: dict[str, Any] = {}
    if is_em(model):
        kind = "folds" if prior_of(model, 1.0).is_proper else "folds, improper"
        rough = {"tol": max(em_options(model).tol, ROUGH[kind])}
        rough |= {"estimation": "em", "n_vectors": None} if hasattr(model, "hyperprior") else {}
    elif base.is_named(getattr(model, "search", None), "quick"):
        tol = max(ROUGH["bottom-up"], model.tol or 0.0)
        rough = {"tol": tol, "max_iter": min(ROUGH_EPOCHS, model.max_iter)}
        if base.basis_of(model, len(data.X)) is None:
            most = max(ROUGH_BASES, 5 * len(model.classes_))

    def score(criterion: str, width: float) -> float:
        from pcvm_pymc.estimators.relevance import score_width  # slow: compiled

        problems = problems_of(model, data, most=most or len(data.X))
        problems = replace(problems, options=em_options(model))
        return score_width(problems, criterion, width, plan_of(model).scale)

    given = model._as_given(data)
    return chosen_width(model, given, rng, score, rough=rough, most_bases=most, **special)


class GridSearch(NamedTuple):
    """A search over width and scale.

    Attributes
    ----------
    search : HyperparameterSearch
    same_bases, same_fits : bool
        Whether its bases, and whether its fits, are those of the problems on all rows.
    metric : Metric, optional
        Relative widths of the features where they were learned.
    """

    search: search.HyperparameterSearch
    same_bases: bool
    same_fits: bool
    metric: Metric | None


def search_grid(
    model: Any,
    problems: Problems,
    data: TrainingData,
    middle: Any,
    *,
    rng: np.random.Generator,
    most: int | None = None,
) -> GridSearch:
    """Return the search over width and scale by leave-one-out, on some of the rows where they are many.

    It has `most` bases at most. With ``width="auto"`` widths per feature are searched after one width.
    """
    plan, n_classes, several = plan_of(model), len(model.classes_), model._takes_several
    most_rows = max(CLASS_ROWS, 5 * n_classes) if several else SEARCH_ROWS
    few, grouped = data, data.groups is not None
    if most is None and len(data.X) > (1.5 if several else 2.0) * most_rows:
        few = data.some(choose_share(data.label, most_rows, rng))
    ranked = problems_of(model, few, most=most or len(few.X))
    if plan.moves[0]:
        ranked = ranked.many_widths()
    needs_folds = base.is_named(model.width, "auto") or grouped
    folds = inner_folds(few.label, FOLDS, rng, groups=few.groups) if needs_folds else []

    one_by_one = several and not grouped and len(ranked.centres) * n_classes > JOINT_WEIGHTS
    score_of: Any = partial(search.by_folds, folds=folds if grouped else [])
    score_of = search.by_class if one_by_one else score_of
    least = 2.0 * search.GROWN_WEIGHT if one_by_one else search.GROWN_WEIGHT
    grid, metric = search.Grid(middle, plan.scale, plan.moves), None
    found = search.grown_search(grid, score_of(ranked), least=least)
    if learns_features(model, few.X, folds, FOLDS):
        metric = Metric.learned(model, few, folds)
        found = search.search_features(ranked, found, grid, score_of, metric=metric, folds=folds)
        metric = replace(metric, share=found.feature_share)
    same = few is problems.data
    return GridSearch(found, same, same and not one_by_one, metric)
