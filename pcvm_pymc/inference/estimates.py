"""Point estimates of a PyMC model, by EM and by its evidence."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.tensor.random.basic import HalfNormalRV

from pcvm_pymc.core import evidence as core
from pcvm_pymc.core.em import EMOptions, EMState, Start, fit_em
from pcvm_pymc.core.em.own_terms import OwnResult, OwnState, fit_own_terms
from pcvm_pymc.core.family import systems_of
from pcvm_pymc.core.marginal import fit_hyperparameters, fit_own_hyperparameters
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.priors import typical_size
from pcvm_pymc.core.problem import EMResult, Ended
from pcvm_pymc.inference.progress import progress_bars
from pcvm_pymc.inference.results import own_values, pack_point, point_values
from pcvm_pymc.model.graphs import numbers
from pcvm_pymc.model.read import Reading, read
from pcvm_pymc.model.terms import own_terms
from pcvm_pymc.model.values import Value

_log = logging.getLogger(__name__)

#: values of the group ``posterior``, EM's result, and further numbers of ``optimizer_result``
type Mode = tuple[Any, EMResult | OwnResult, dict[str, Any]]


def timed[T: Ended](solve: Callable[[], T], what: str) -> tuple[T, float]:
    """Run a solver; return its result and its seconds. Log a warning if it did not converge."""
    began = time.perf_counter()
    result = solve()
    seconds = time.perf_counter() - began
    if not result.converged:
        _log.warning("%s stopped: %s; raise max_iter or tol", what, result.status.value)
    return result, seconds


# --- EM -----------------------------------------------------------------------------------------


def find_map_em(
    model: pm.Model | None = None,
    *,
    hyperparameters: Literal["estimated", "given"] = "estimated",
    options: EMOptions | None = None,
    start: Start | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Find the maximum a posteriori point of a model by EM; the model may have user-defined terms.

    Parameters
    ----------
    model : pm.Model, optional
        Of a row of `FAMILY` that EM takes: from `pcvm_model`, `sparse_probit_model`, `mpcvm_model` or
        `mrvm_model`; default: the model on the context stack. Or any model with weights of the family in it,
        see Notes.
    hyperparameters : {"estimated", "given"}
        An unknown scale (``hyperprior="learned"``) has no joint mode with the weights. ``"estimated"`` puts
        that of weights of any sign, and with it an unknown width, where their marginal posterior is largest:
        density of the logarithms, weights and bias integrated out by Laplace's approximation. Under signs of
        labels the posterior's scale is far too small for a mode; there it is chosen by leave-one-out, as by
        `select`. Weights are the mode given it. ``"given"`` leaves the scale at one, ``rate = c``, as in the
        papers' protocols. In a model with user-defined terms that of a function with signs always stays
        there. A width that is not estimated so moves with the weights, by the corrected eq. 10.
    options : EMOptions, optional
        Default: ``EMOptions()``.
    start : Start, optional
        Where to begin. Default: ``Start.default``. The result depends on it where the hyperprior is improper.
    progressbar : bool

    Returns
    -------
    DataTree
        Groups as `pymc_extras.find_MAP` has them, ``posterior`` (one chain, one draw: ``weight``, ``bias``,
        ``latent``, of signed weights ``magnitude``, ``precision`` and ``bias_precision`` as their conditional
        means, a ``rate`` and a ``width`` that were free), ``optimizer_result``, data groups, and ``em_trace``
        with log posterior, active weights, change and width of each iteration, at the estimates.
        ``log_posterior`` equals ``model.compile_logp(jacobian=False)`` at the point; ``log_marginal``, or
        ``elpd_loo``, is what the estimates maximise.

    Raises
    ------
    ValueError
        If the model is not one that EM can maximise.

    Notes
    -----
    A model with further terms, another likelihood or several latent functions has to have the weights (and
    bias) of each in one term, ``dot(Phi, sign * size) + bias``, under a proper `Hyperprior` or `Laplace`, and
    a log density row by row in it. EM moves weights and biases under the exact sign rule, L-BFGS all other
    free variables on the scale of their value variables, and a Newton step all together. The log posterior
    never falls, and its end is a stationary point, no saddle point (`pcvm_pymc.core.em.own_terms`).
    ``posterior`` then has every free variable and deterministic of the model. The start is the model's
    initial point, with weights of zero; `tol` is of the latent values and of the other variables.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), Algorithm 1, corrected (see `EMStep`); M. Figueiredo and A. Jain
    (2001), section 3; S. Lyu et al. (2020), Algorithm 1, corrected (see `pcvm_pymc.core.em.fit_em`).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> result = find_map_em(pcvm_model(X, X[:, 0] > 0), progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """
    validation.check_instance("options", options, EMOptions, "EMOptions", optional=True)
    validation.check_instance("start", start, Start, "a Start", optional=True)
    validation.check_flag("progressbar", progressbar)
    validation.check_choice("hyperparameters", hyperparameters, ("estimated", "given"))
    options = EMOptions() if options is None else options
    options.check_in_memory()
    reading, estimated = read(model), hyperparameters == "estimated"
    if reading.unseen("em"):  # more than a row of FAMILY
        values, result, how = _own_mode(reading, options, start, estimated, progressbar)
    else:
        values, result, how = _row_mode(reading, options, start, estimated, progressbar)
    return pack_point(reading, values, result, {}, trace="em_trace", **how)


def _row_mode(
    reading: Reading, options: EMOptions, start: Start | None, estimated: bool, progressbar: bool
) -> Mode:
    """Find the mode of a model of a row of `FAMILY`: values, EM's result, and how it was found."""
    problem = reading.problem_for("em")
    solve = partial(fit_em, problem.given(), start)
    if estimated:
        row = reading.parts.basis_row(problem) if problem.is_signed else None
        solve = partial(fit_hyperparameters, problem, start, basis_row=row)
    result, seconds = _run_em(solve, options, progressbar)
    scores = ("class",) if problem.n_scores > 1 else ()
    prior = problem.given(d=result.rate).hyperprior
    of_bias = [problem.bias_precision(float(b)) for b in np.atleast_1d(result.bias)]
    values: dict[str, Any] = {  # means of the precisions, given the point
        "precision": (("basis", *scores), prior.weight_precision(result.weight)),
        "bias_precision": (scores, np.reshape(of_bias, np.shape(result.bias))),
    }
    if problem.moves is not None:
        values["width"] = (("feature",)[: np.ndim(result.width)], result.width)
    if reading.parts.rate is not None:
        values["rate"] = ((), result.rate)
    how = {"n_active": np.count_nonzero(result.weight), "method": f"EM ({options.update})"}
    how |= {"seconds": seconds, **result.criterion}
    return point_values(reading, result, values), result, how


def _own_mode(
    reading: Reading, options: EMOptions, start: Start | None, estimated: bool, progressbar: bool
) -> Mode:
    """Find the mode of a model with user-defined terms: values, EM's result, and how it was found."""
    terms = own_terms(reading.model, options)
    if start is not None:
        raise ValueError("start is for models without own terms; needed initval= of variables")
    find = fit_own_hyperparameters if estimated else fit_own_terms
    result, seconds = _run_em(partial(find, terms.problem, terms.first), options, progressbar)
    how = {
        "n_active": result.n_active,
        "method": "EM, and gradient steps for the user-defined terms",
    }
    how |= {"seconds": seconds, **result.criterion}
    return own_values(reading.model, terms.point(result.values)), result, how


def _run_em(solve: Callable[..., Any], options: EMOptions, progressbar: bool) -> tuple[Any, float]:
    """Run EM with a progress bar; return its result and its seconds."""
    texts = (
        "iteration {task.completed} of at most {task.total}",
        "log posterior {task.fields[value]:.4f}, {task.fields[active]} active",
    )
    with progress_bars(progressbar, "EM", *texts) as bars:
        task = bars.add_task("", total=options.max_iter, value=np.nan, active=0)

        def report(n_iter: int, state: EMState | OwnState) -> None:
            now: dict[str, Any] = {"value": state.log_posterior, "active": state.n_active}
            bars.update(task, completed=n_iter, **now)

        return timed(lambda: solve(options, report if progressbar else None), "EM")


# --- evidence -----------------------------------------------------------------------------------


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
        stack. The numbers of its hyperprior are not used: log precisions are flat, as in the papers, and
        so is the logarithm of a noise that has the builder's default. Another prior of the noise counts:
        it stands where evidence times density is largest.
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
    >>> model = rvm_model(x, np.sinc(x[:, 0]), width=2.0, noise=0.01)
    >>> result = fit_evidence(model)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """
    validation.check_choice("method", method, tuple(core.METHODS))
    reading = read(model)
    parts = reading.parts
    # a model without parts is refused by `problem_for`
    is_rvm = parts is None or (parts.sign is None and parts.likelihood.n_scores == 1)
    solver = "evidence" if is_rvm else "bottom-up"
    problem = reading.problem_for(solver)
    rows = [row for row in systems_of(problem) if solver in row.solvers]
    if not problem.shared and all(row.shared for row in rows):
        raise ValueError(
            "found a precision for each class; the search from the bottom up needs one for all weights of a "
            "basis (mRVM1): mrvm_model(..., shared=True), or use find_map_em (mRVM2)"
        )
    kind = core.EvidenceOptions if is_rvm else core.BottomUpOptions
    needed = f"{kind.__name__} for a model of the solver {solver!r}"
    validation.check_instance("options", options, kind, needed, optional=True)
    if not is_rvm and method != "sequential":
        raise ValueError(
            f"method={method!r} is for an RVM; this model is searched from the bottom up: leave method out"
        )
    solve: Callable[..., Any] = partial(core.fit_bottom_up, problem)
    if is_rvm:
        given = core.EvidenceProblem.of(problem)
        prior = noise_prior(reading)
        solve = partial(core.fit_rvm, given, method=method, noise_prior=prior)
    result, seconds = timed(lambda: solve(options=options), "evidence")
    values, groups = _of_rvm(reading, result) if is_rvm else ({}, {})
    how: dict[str, Any] = {"n_active": np.count_nonzero(result.weight)}
    how |= {"method": f"evidence ({method})" if is_rvm else "bottom-up", "seconds": seconds}
    point = point_values(reading, result, values)
    return pack_point(reading, point, result, groups, trace="evidence_trace", **how)


def noise_prior(reading: Reading) -> core.NoisePrior | None:
    """Return the prior of an unknown noise; None for the builders' default, which counts as flat."""
    noise = reading.parts.nuisances.get("noise")
    if noise is None:
        return None
    if isinstance(op := noise.owner.op, HalfNormalRV):
        weight = reading.parts.sample_weight
        target = numbers(reading.model.rvs_to_values[reading.parts.observed])
        size = typical_size(target, None if weight is None else numbers(weight))
        if np.allclose(numbers(op.dist_params(noise.owner)[-1]), size):
            return None
    value, at = Value(reading.model, noise), noise.type()
    density = pm.compile([at], pm.logp(noise, at), mode="FAST_COMPILE")
    natural = np.exp if value.transform is None else partial(value.backward, known={})
    return core.NoisePrior(lambda s: float(density(s)), lambda u: float(natural(u)))


def _of_rvm(
    reading: Reading, result: core.EvidenceResult
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Return an RVM's precisions, its noise where it has one, and its posterior's moments as a group."""
    model, parts = reading.model, reading.parts
    values = {"precision": (("basis",), result.alpha), "bias_precision": ((), result.bias_alpha)}
    if parts.noise_std is None and not np.isnan(result.noise):
        values["noise"] = ((), result.noise)
    # a model by hand may have no coordinate
    dims = model.named_vars_to_dims.get(str(parts.weight.name), ("basis",))
    basis = model.coords.get(dims[0]) or np.arange(len(result.weight))
    rows = [*(f"weight[{name}]" for name in np.asarray(basis)[result.active]), "bias"]
    moments = {  # named as `pymc_extras` does
        "mean_vector": ("rows", np.append(result.weight[result.active], result.bias)),
        "covariance_matrix": (("rows", "columns"), result.covariance),
    }
    return values, {"fit": xr.Dataset(moments, {"rows": rows, "columns": rows})}
