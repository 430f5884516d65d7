"""Type-II maximum likelihood on a PyMC model."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pcvm_pymc.core import evidence as core
from pcvm_pymc.core.family import FAMILY, systems_of
from pcvm_pymc.core.pieces.validation import check_instance
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.inference.results import likelihood_of, point_to_datatree, timed
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.read import Parts, find_parts, read


def fit_evidence(
    model: pm.Model | None = None,
    *,
    method: str = "sequential",
    options: core.EvidenceOptions | core.BottomUpOptions | None = None,
) -> xr.DataTree:
    """Fit a model by maximising its evidence over precisions (and noise).

    Parameters
    ----------
    model : pm.Model, optional
        From `rvm_model`; or, for a search from the bottom up, from `mpcvm_model` (mPCVM2),
        `mrvm_model` with ``shared=True`` (mRVM1) or `pcvm_model`. Default: the model on the context
        stack. The numbers of its hyperprior are not used: log precisions and log noise are flat, as in
        the papers.
    method : {"sequential", "batch"}
        For an RVM: one basis at a time, by the largest gain (Tipping & Faul 2003), or all at once,
        downwards (Tipping 2001), with single changes at the end. Both end at a local maximum, neither
        always at the higher one.
    options : EvidenceOptions, or BottomUpOptions for a search from the bottom up, optional

    Returns
    -------
    DataTree
        Groups as `find_map_em` has them: ``posterior`` (one chain, one draw: posterior means given the
        precisions), ``optimizer_result``, ``evidence_trace``, data groups, and for an RVM ``fit`` with
        ``mean_vector`` and ``covariance_matrix`` of the kept weights and the bias.

    Raises
    ------
    ValueError
        If the model is not one whose evidence can be maximised, or method or options are not for it.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; corrected, see `pcvm_pymc.core.evidence.fit_sequential` and `fit_batch`. From the
    bottom up see `pcvm_pymc.core.evidence.fit_bottom_up`.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import rvm_model
    >>> x = np.linspace(-5, 5, 30)[:, None]
    >>> result = fit_evidence(rvm_model(x, np.sinc(x[:, 0]), width=2.0, noise=0.01))
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """
    model = as_model(model)
    core.check_method(method)
    kinds = (core.EvidenceOptions, core.BottomUpOptions)
    check_instance("options", options, kinds, "EvidenceOptions, BottomUpOptions", optional=True)
    solver = _solver(find_parts(model))
    problem = read(model, solver)
    _check_shared(problem, solver)
    chosen: Any = options
    needed = core.EvidenceOptions if solver == "evidence" else core.BottomUpOptions
    if options is not None and not isinstance(options, needed):
        raise ValueError(
            f"options={options!r}; needed {needed.__name__} for a model of the solver {solver!r}"
        )
    if solver == "bottom-up" and method != "sequential":
        raise ValueError(
            f"method={method!r} is for an RVM; this model is searched from the bottom up: leave method out"
        )
    values: dict[str, Any] = {}
    groups: dict[str, xr.Dataset] = {}
    if solver == "evidence":
        given = core.EvidenceProblem.of(problem)
        solve: Callable[[], Any] = partial(core.fit_rvm, given, method=method, options=chosen)
        result, seconds = timed(solve, "evidence")
        values = {"precision": ("basis", result.alpha), "bias_precision": ((), result.bias_alpha)}
        if not np.isnan(result.noise):
            values["noise"] = ((), result.noise)
        # a model by hand may have no coordinate
        basis = model.coords.get("basis") or np.arange(len(result.weight))
        rows = [*(f"weight[{name}]" for name in np.asarray(basis)[result.active]), "bias"]
        mean = np.append(result.weight[result.active], result.bias)
        moments = {  # named as `pymc_extras` does
            "mean_vector": ("rows", mean),
            "covariance_matrix": (("rows", "columns"), result.covariance),
        }
        groups = {"fit": xr.Dataset(moments, {"rows": rows, "columns": rows})}
        objective, label = "log_evidence", f"evidence ({method})"
    else:
        result, seconds = timed(partial(core.fit_bottom_up, problem, options=chosen), "evidence")
        objective, label = "log_posterior", "bottom-up"
    return point_to_datatree(
        model,
        problem,
        result,
        values,
        objective=objective,
        method=label,
        seconds=seconds,
        trace="evidence_trace",
        **groups,
    )


def _solver(parts: Parts) -> str:
    """Return the solver that maximises the evidence of a model (which `read` may refuse)."""
    rows = [row for row in FAMILY.values() if parts.likelihood.name in row.likelihoods]
    ours = [row for row in rows if (row.signs is None) == (parts.sign is None)]
    return "evidence" if any("evidence" in row.solvers for row in ours) else "bottom-up"


def _check_shared(problem: Problem, solver: str) -> None:
    rows = [row for row in systems_of(problem) if solver in row.solvers]
    if not problem.shared and all(row.shared for row in rows):
        raise ValueError(
            "the search from the bottom up has one precision for all weights of a basis, where they are "
            "free (mRVM1); found one for each class. Build the model with mrvm_model(..., shared=True), or "
            "use find_map_em (mRVM2)"
        )


def evidence_fit_of(tree: xr.DataTree) -> tuple[core.EvidenceProblem, Any]:
    """Return the problem and the fit in a result of `fit_evidence` of a regression.

    Raises
    ------
    ValueError
        If the tree is of another method or model.
    """
    if "fit" not in tree or likelihood_of(tree).targets != "numbers":
        raise ValueError(
            "the result is not an RVM's regression by fit_evidence; needed fit_evidence(rvm_model(X, y))"
        )
    point, data = (tree[name].to_dataset() for name in ("posterior", "constant_data"))
    point = point.isel(chain=0, draw=0)
    alpha, noise = point["precision"].values, float(point.get("noise", np.nan))
    fit = SimpleNamespace(  # of an `EvidenceResult`, what predictions need
        weight=point["weight"].values,
        bias=float(point["bias"]),
        alpha=alpha,
        bias_alpha=float(point["bias_precision"]),
        active=np.flatnonzero(np.isfinite(alpha)),
        covariance=tree["fit"]["covariance_matrix"].values,
        noise=noise,
        latent=point["latent"].values,
    )
    problem = core.EvidenceProblem(
        data["Phi"].values,
        tree["observed_data"]["target"].values,
        likelihood_of(tree),
        noise=None if np.isnan(noise) else noise,  # NaN: the likelihood has none
    )
    return problem, fit
