"""Leave-one-out scores of point estimates: the formula's, and refits of the rows that it cannot tell."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from arviz_stats.utils import ELPDDataLOO
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.em import EMOptions, Start, fit_em, log_posterior
from pcvm_pymc.core.loo import check_step
from pcvm_pymc.core.penalised import penalised_mode
from pcvm_pymc.core.pieces.centres import rows_under
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.probabilities import log_average
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.predictors import Average
from pcvm_pymc.estimators.training import TrainingData, group_numbers
from pcvm_pymc.inference import results
from pcvm_pymc.inference.progress import progress_bars
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.data import OF_ROWS

__all__ = ["PointLOO", "loo"]

# relative change of a row's predictive density beyond which the row is refitted, see `check_step`
_DOUBT = 0.003
_TINY = 1e-300
_REFIT = EMOptions(tol=1e-4, max_iter=2000)
_SILENT = 2.0  # seconds without a progress bar
_APART = 0.01  # nats: refits whose scores differ by more ended at different maxima
# log-concave likelihoods: others have several maxima
_CONCAVE = ("probit", "logit", "normal", "multinomial probit")


class FittedMode(NamedTuple):
    """A posterior mode, its share of an average, and what `leave_one_out` asks for."""

    share: float
    problem: Problem
    weight: Array
    bias: Any
    basis_row: NDArray[np.intp]
    precision: Array | None = None

    def log_density(self, latent: Array, rows: Any = slice(None)) -> Array:
        """Return the log density of some rows' targets at latent values."""
        return self.problem.observed[rows].log_density(latent)


@dataclass(kw_only=True, repr=False)
class PointLOO(ELPDDataLOO):
    """Leave-one-out score of a point estimate, as `arviz.compare` takes it.

    Attributes
    ----------
    n_refitted : int
        Rows for which the quadratic model of the objective is not accurate enough, and which were refitted.
    n_not_converged : int
        Those of them whose refit did not converge, or ended at different maxima from several starts, of which
        the highest one is taken; then `warning` is true. Only likelihoods that are not log-concave, such as
        label noise, have several starts.
    """

    n_refitted: int = 0
    n_not_converged: int = 0


def loo(
    result: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    kernel: AnyKernel | None = None,
    groups: ArrayLike | None = None,
) -> PointLOO:
    """Return the leave-one-out score of a point estimate, a row's own basis left out with it.

    One factorisation at the mode gives all rows (`pcvm_pymc.core.loo`); rows whose score a check by two
    Newton steps leaves in doubt by more than .003 nats are refitted, without the row and its basis, from the
    mode; under likelihoods that are not log-concave (label noise, normal-probability, Student-t) from two
    other starts, too, and the highest maximum counts. There may be still higher ones.
    Widths, scale and given precisions are not refitted: widths that were learned per feature have seen the
    rows, and make the score somewhat optimistic; scikit-learn's `cross_val_score` learns them in
    each fold. More than two seconds of refits show a progress bar.

    Parameters
    ----------
    result : DataTree or fitted classifier
        From `find_map_em`, or from `fit_evidence` from the top down (then the precisions are fixed, too);
        or a `PCVMClassifier` or `MPCVMClassifier`, averages included.
    X : array_like, shape (n_obs, n_features), optional
        Training inputs. Needed with a classifier; a result has them among its data.
    y : array_like, shape (n_obs,), optional
        Training labels. Needed with a classifier; a DataTree has its own.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel of the model, needed where it is a function or a covariance, which are not stored.
    groups : array_like, shape (n_obs,), optional
        Of a classifier: rows of one group, such as repeated measurements, are left out together, by a refit
        of each mode for each group.

    Returns
    -------
    PointLOO
        ArviZ's `ELPDData`, with the pointwise scores in ``elpd_i``; ``p`` is how much higher the score of
        the training rows is where nothing is left out.

    Raises
    ------
    ValueError
        For a posterior of several draws (see `kfold`), or input that cannot be used.

    References
    ----------
    The formula is derived in `pcvm_pymc.core.loo`; its parent is the leave-one-out of regularised least
    squares (G. Wahba 1990, "Spline models for observational data", chapter 4).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> found = loo(find_map_em(pcvm_model(X, X[:, 0] > 0), progressbar=False))
    >>> bool(found.elpd < 0), found.n_not_converged
    (True, 0)
    """
    if hasattr(result, "get_params"):  # an estimator
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} was given with a classifier; leave it out")
        modes, data = fitted_problems(result, X, y, groups)
        return _scored(modes, copies=data.copies, groups=data.groups)
    for name, given in (("groups", groups), ("y", y)):
        if given is not None:
            raise ValueError(f"{name} was given with a result; needed a classifier, or kfold")
    result = results.check_result(result, "result")
    return _scored([_of_tree(result, X, kernel)], result)


def _scored(
    modes: list[FittedMode],
    result: xr.DataTree | None = None,
    copies: NDArray[np.intp] | None = None,
    groups: NDArray[np.intp] | None = None,
) -> PointLOO:
    """Return the score of an average of modes, rows in doubt refitted.

    Parameters
    ----------
    modes : list of FittedMode
    result : DataTree, optional
        What the rows are called is in it.
    copies : ndarray of int, shape (n_given,), optional
        Which of the rows each row that was given equals; their weights are how often each was.
    groups : ndarray of int, shape (n_obs,), optional
        Rows of one group are left out together, in every mode.
    """
    share = np.array([[mode.share] for mode in modes])
    checked = [check_step(*mode[1:5], precision=mode.precision) for mode in modes]
    count: Any = np.ones(checked[0].doubt.shape) if copies is None else np.bincount(copies)
    density = np.array([step.after.log_density for step in checked]) / count
    # by how much each mode may change a row's average density, relative to it; the smallest are left
    part = share * np.exp(density - log_average(density, share))
    with np.errstate(over="ignore"):
        doubt = np.maximum(part, _TINY) * np.expm1([step.doubt for step in checked])
    up_to = np.where(doubt <= doubt[:, None], doubt, 0.0).sum(axis=1)
    in_doubt = (up_to > _DOUBT) | (groups is not None)
    not_converged = np.zeros(density.shape[1], dtype=bool)
    group = np.arange(density.shape[1]) if groups is None else groups
    pairs = (
        (k, number) for k, doubtful in enumerate(in_doubt) for number in np.unique(group[doubtful])
    )
    jobs = [(k, np.flatnonzero(group == number)) for k, number in pairs]
    for k, rows in _with_progress(jobs):
        latent, converged = _refit(modes[k], rows)
        density[k, rows] = modes[k].log_density(latent, rows) / count[rows]
        not_converged[rows] |= not converged
    inside = [mode.log_density(mode.problem.Phi @ mode.weight + mode.bias) for mode in modes]
    averages = (log_average(each, share) for each in (density, inside / count))
    every = slice(None) if copies is None else copies
    pointwise, within = (average[every] for average in averages)
    return PointLOO(
        **elpd_fields(pointwise, within, result),
        n_samples=1,
        warning=bool(not_converged.any()),
        good_k=np.nan,
        n_refitted=int(in_doubt.any(axis=0)[every].sum()),
        n_not_converged=int(not_converged[every].sum()),
    )


def elpd_fields(
    pointwise: Array, inside: Array, result: xr.DataTree | None = None
) -> dict[str, Any]:
    """Return what ArviZ's results have of held-out log densities, and of those where no row is left out.

    Parameters
    ----------
    pointwise, inside : ndarray, shape (n_obs,)
    result : DataTree, optional
        The rows are called as those of its observed variable, whatever its dim.
    """
    coords = {}
    if result is not None:
        (observed,) = result["observed_data"].to_dataset().data_vars.values()
        coords["obs"] = observed[observed.dims[0]].values
    return {
        "elpd": float(pointwise.sum()),
        "se": float(np.sqrt(len(pointwise) * pointwise.var())),
        "p": float((inside - pointwise).sum()),
        "n_data_points": len(pointwise),
        "scale": "log",
        "elpd_i": xr.DataArray(pointwise, dims="obs", coords=coords),
    }


def _with_progress(pairs: list[Any]) -> Iterator[Any]:
    """Yield modes and rows to leave out, with a progress bar once two seconds have gone."""
    begin, left = time.perf_counter(), iter(pairs)
    for done, pair in enumerate(left, 1):
        yield pair
        if time.perf_counter() - begin > _SILENT and done < len(pairs):
            with progress_bars(True, "leave-one-out", "refit {task.completed}/{task.total}") as bar:
                yield from bar.track(left, len(pairs), done, description="")


def _refit(mode: FittedMode, left_out: NDArray[np.intp]) -> tuple[Array, bool]:
    """Return latent values of rows by a refit without them, and whether that converged.

    Where the likelihood may have several maxima, the highest one from three starts: the mode, that of a fit,
    and weights of the prior's scale.
    """
    problem, prior = mode.problem, mode.problem.hyperprior
    columns = np.flatnonzero(~np.isin(mode.basis_row, left_out))
    without = problem.part(np.delete(np.arange(len(problem.Phi)), left_out), columns)
    precision = None if mode.precision is None else mode.precision[columns]
    starts = [Start(mode.weight[columns], mode.bias)]
    # under a prior with a pole at zero another start ends at other zeros
    is_pole = prior.holds_zeros and not prior.penalty
    if problem.likelihood.name not in _CONCAVE and precision is None and not is_pole:
        flat = prior.weight_precision(np.full(without.weight_shape, 1.0 if prior.penalty else 0.0))
        starts += [Start.default(without), Start(without.weight_sign / np.sqrt(flat), 0.0)]
    ends = []
    for start in starts:
        if precision is not None or prior.penalty:
            first = start.weight, start.bias
            weight, bias, converged = penalised_mode(without, *first, precision=precision)
        else:
            fit = fit_em(without, start, _REFIT)
            weight, bias, converged = fit.weight, fit.bias, fit.converged
        height = log_posterior(without, weight, bias, without.Phi @ weight + bias)
        ends.append((height, problem.Phi[np.ix_(left_out, columns)] @ weight + bias, converged))
    _, latent, converged = max(ends, key=lambda end: end[0])
    scores = np.array([mode.log_density(end[1], left_out) for end in ends])
    return latent, converged and bool(np.ptp(scores, axis=0).max() <= _APART)


def _of_tree(tree: xr.DataTree, X: ArrayLike | None, kernel: AnyKernel | None) -> FittedMode:
    """Return a stored point estimate as a mode."""
    results.check_refits(tree)
    posterior, data = tree["posterior"].to_dataset(), tree["constant_data"].to_dataset()
    if posterior.sizes["chain"] * posterior.sizes["draw"] > 1:
        n_draws = posterior.sizes["draw"]
        raise ValueError(f"result has {n_draws} draws; needed a point, or kfold(posterior, X, y)")
    point = posterior.isel(chain=0, draw=0)
    inputs, (likelihood, piece) = results.inputs_of(tree, X), pieces_of(tree, kernel)
    (pieces, _), centres = results.rows_of(tree), data["centres"].values
    kind, prior = pieces.bias, pieces.hyperprior
    if "rate" in point:  # d was unknown
        prior = prior.at_rate(point["rate"])
    if of_rows := next((name for name in OF_ROWS if name in data), None):
        needed = "which leave-one-out does not take; use cross_validate"
        raise ValueError(f"the model has {of_rows}, {needed}")
    by_evidence = "evidence_trace" in tree
    if by_evidence and "precision" not in point:
        raise ValueError("result is from the bottom up, which keeps no precisions; use find_map_em")
    if by_evidence and kind == "prior":  # its log precision is flat, or it was pruned
        kind = "free" if np.isfinite(point["bias_precision"]) else "none"
    made = {"hyperprior": prior, "likelihood": likelihood, "bias": kind}
    problem = replace(pieces, Phi=piece(inputs, centres), label=results.target_of(tree), **made)
    weight, bias = (each[0] for each in results.weights_of(tree))
    precision = point["precision"].values if by_evidence else None
    return FittedMode(1.0, problem, weight, bias, rows_under(centres, inputs), precision)


def pieces_of(tree: xr.DataTree, kernel: AnyKernel | None = None) -> tuple[Likelihood, KernelPiece]:
    """Return a result's likelihood and kernel; what was drawn at its mean, a width at its median.

    Parameters
    ----------
    tree : DataTree
    kernel : str, callable or pm.gp.cov.Covariance, optional
        Needed where it is a function or a covariance, which are not stored.
    """
    likelihood: Any = results.likelihood_of(tree)
    means = {name: float(values.mean()) for name, values in results.nuisance_of(tree).items()}
    piece, posterior = results.kernel_of(tree, kernel), tree["posterior"].to_dataset()
    if "width" in posterior:
        piece = piece.with_width(posterior["width"].median(("chain", "draw")).values)
    return replace(likelihood, **means), piece


def fitted_problems(
    model: Any, X: ArrayLike | None, y: ArrayLike | None, groups: ArrayLike | None = None
) -> tuple[list[FittedMode], TrainingData]:
    """Return the posterior modes of a fitted PCVM with their problems, and its training data.

    Raises
    ------
    ValueError
        If the fit has no modes by EM, had weights of rows, or the data are not those that it was fitted to.
    """
    if X is None or y is None or not isinstance(model, PCVMClassifier | MPCVMClassifier):
        rows, labels = ("None" if table is None else "given" for table in (X, y))
        needed = "loo(classifier, X, y) of a fitted PCVMClassifier or MPCVMClassifier"
        raise ValueError(f"{type(model).__name__} with X={rows}, y={labels}; needed {needed}")
    check_is_fitted(model)
    own = vars(model)
    if "projection_" in own or "hyperprior_" not in own:
        how = "by projection" if "projection_" in own else "bottom-up"
        how = "by draws" if "idata_" in own else how
        raise ValueError(f"the classifier is fitted {how}; needed posterior modes by EM")
    check_same_rows(X, y=y, groups=groups)
    inputs: Array = model._inputs(X)
    number = group_numbers(groups, len(inputs))
    data = TrainingData(inputs, model._known_labels(y, len(inputs)), groups=number).merged()
    known = own.get("_training_")
    if known is not None and (known.weight is None) != (data.weight is None):
        raise ValueError("loo takes no classifier fitted with weights of rows; see its held_out_")
    formulation = model._estimation.formulation(data, model._basis_of(data))
    predictor = model._predictor_
    modes, shares = [predictor], np.ones(1)
    if isinstance(predictor, Average):
        modes, shares = predictor.modes, predictor.weights
    points = formulation.centres.points
    out = []
    for share, mode in zip(shares.tolist(), modes, strict=True):
        if len(points) <= max(mode.basis, default=-1) or not np.array_equal(
            points[mode.basis], mode.relevance_vectors
        ):
            raise ValueError("X lacks rows that are centres of bases; needed its training data")
        weight = np.zeros((len(points), *mode.weight.shape[1:]))
        weight[mode.basis] = mode.weight
        problem = formulation.at(mode.at)
        if (weight * problem.weight_sign < 0).any():
            raise ValueError("y has other labels than in the fit; needed its training data")
        out.append(FittedMode(share, problem, weight, mode.bias, formulation.centres.rows))
    return out, data
