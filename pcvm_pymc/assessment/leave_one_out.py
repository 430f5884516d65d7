"""Leave-one-out scores of point estimates, without refits and without a leak."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.utils import ELPDDataLOO
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from pcvm_pymc.core.loo import LeaveOneOut, leave_one_out
from pcvm_pymc.core.pieces.centres import rows_under
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.inference.results import (
    inputs_of,
    kernel_of,
    likelihood_of,
    nuisance_of,
    prior_of,
    target_of,
)
from pcvm_pymc.model.bases import AnyKernel


@dataclass(kw_only=True, repr=False)
class PointLOO(ELPDDataLOO):
    """Leave-one-out score of a point estimate, as `arviz.compare` takes it.

    Attributes
    ----------
    n_improved : int
        Rows whose removal moves them too far for the quadratic model of the objective, and which were
        solved further.
    n_unsettled : int
        Those of them that still moved when the work was given up; then `warning` is true.
    """

    n_improved: int = 0
    n_unsettled: int = 0


def loo(
    result: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    kernel: AnyKernel | None = None,
) -> PointLOO:
    """Return the leave-one-out score of a point estimate, a row's own basis left out with it.

    One factorisation at the mode serves all rows, see `pcvm_pymc.core.loo`; rows for which its quadratic
    model is in doubt are solved further. Width, scale and precisions stay as they are.

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
    >>> bool(found.elpd < 0), found.n_unsettled
    (True, 0)
    """
    if hasattr(result, "decision_function"):
        if kernel is not None:
            raise ValueError(
                f"kernel={kernel!r} was given with a classifier, where it has no effect; leave it out"
            )
        return _of_classifier(result, X, y)
    if y is not None:
        raise ValueError("y was given with a result, which holds its own labels; leave it out")
    problem, weight, bias, own, precision = _of_tree(result, X, kernel)
    found = leave_one_out(problem, weight, bias, own, precision=precision)
    latent = problem.Phi @ weight + bias
    inside = problem.likelihood.log_density(latent, problem.label)
    name = "target" if problem.likelihood.targets == "numbers" else "label"
    return _packed(found, inside, result["observed_data"][name].coords)


def _packed(found: LeaveOneOut, inside: Array, coords: Any = None) -> PointLOO:
    pointwise, n = found.log_density, len(found.log_density)
    return PointLOO(
        elpd=float(pointwise.sum()),
        se=float(np.sqrt(n * pointwise.var())),
        p=float(inside.sum() - pointwise.sum()),
        n_samples=1,
        n_data_points=n,
        scale="log",
        warning=bool(found.unsettled.any()),
        good_k=np.nan,
        elpd_i=xr.DataArray(pointwise, dims="obs", coords=coords),
        n_improved=int(found.improved.sum()),
        n_unsettled=int(found.unsettled.sum()),
    )


def _of_tree(
    tree: xr.DataTree, X: ArrayLike | None, kernel: AnyKernel | None
) -> tuple[Problem, Array, Any, NDArray[np.intp], Array | None]:
    """Return the problem of a point estimate, its weights and biases, rows of bases, and precisions."""
    if not (isinstance(tree, xr.DataTree) and "posterior" in tree and "pieces" in tree.attrs):
        raise ValueError(
            f"result is a {type(tree).__name__}; needed a DataTree from find_map_em or fit_evidence, or a "
            "fitted classifier"
        )
    posterior, data = tree["posterior"].to_dataset(), tree["constant_data"].to_dataset()
    if posterior.sizes["chain"] * posterior.sizes["draw"] > 1:
        raise ValueError(
            f"result has {posterior.sizes['draw']} draws; leaving one out from one factorisation needs a "
            "point estimate from find_map_em or fit_evidence; kfold(posterior, X, y) scores a posterior"
        )
    point = posterior.isel(chain=0, draw=0)
    pieces, centres = json.loads(tree.attrs["pieces"]), data["centres"].values
    inputs, drawn = inputs_of(tree, X), nuisance_of(tree)
    likelihood: Any = likelihood_of(tree)
    likelihood = replace(likelihood, **{name: float(each.item()) for name, each in drawn.items()})
    piece = kernel_of(tree, kernel)
    if "width" in point:
        piece = piece.with_width(point["width"].values)
    prior: Any = prior_of(tree)
    if "rate" in point:  # d was unknown
        prior = replace(prior, d=float(point["rate"]), rate_shape=None)
    by_evidence, kind = "evidence_trace" in tree, pieces["bias"]
    if by_evidence and "precision" not in point:
        raise ValueError(
            "result is from the bottom up, which keeps no precisions; needed a point estimate from "
            "find_map_em, or from fit_evidence of rvm_model"
        )
    if by_evidence and kind == "prior":  # its log precision is flat, or it was pruned
        kind = "free" if np.isfinite(point["bias_precision"]) else "none"
    problem = Problem(
        piece(inputs, centres),
        target_of(tree),
        data["signs"].values.astype(float) if "signs" in data else None,
        prior,
        likelihood,
        bias=kind,
        shared=pieces["shared"],
    )
    precision = point["precision"].values if by_evidence else None
    own = rows_under(centres, inputs)
    bias = point["bias"].values if "bias" in point else 0.0
    return problem, point["weight"].values, bias, own, precision


def _of_classifier(model: Any, X: ArrayLike | None, y: ArrayLike | None) -> PointLOO:
    """Return the score of a fitted classifier, of an average that of its averaged probabilities."""
    if X is None or y is None or not hasattr(model, "_fitted_problems"):
        raise ValueError(
            f"{type(model).__name__} with X={'None' if X is None else 'given'}, y="
            f"{'None' if y is None else 'given'}; needed loo(classifier, X, y) with a fitted PCVMClassifier "
            "or MPCVMClassifier and its training data"
        )
    shares, found, inside = [], [], []
    for share, problem, weight, bias, own in model._fitted_problems(X, y):
        found.append(leave_one_out(problem, weight, bias, own))
        inside.append(problem.likelihood.log_density(problem.Phi @ weight + bias, problem.label))
        shares.append(share)
    column = np.array(shares)[:, None]
    density = logsumexp([each.log_density for each in found], axis=0, b=column)
    mixture = LeaveOneOut(
        found[0].latent,
        density,
        np.any([each.improved for each in found], axis=0),
        np.any([each.unsettled for each in found], axis=0),
    )
    return _packed(mixture, logsumexp(inside, axis=0, b=column))
