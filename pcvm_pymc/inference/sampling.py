"""The posterior by NUTS or Gibbs, always checked for convergence."""

import logging
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from joblib import cpu_count
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth

from pcvm_pymc.core.gibbs import GibbsProblem
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.inference import results
from pcvm_pymc.inference.chains import Chain, GibbsRun, run_chains
from pcvm_pymc.inference.convergence import convergence, keeping
from pcvm_pymc.inference.estimates import find_map_em
from pcvm_pymc.inference.files import as_path
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.distributions import IMPROPER_MESSAGE
from pcvm_pymc.model.graphs import random_parts
from pcvm_pymc.model.read import find_parts, read, warn_if_counted_twice
from pcvm_pymc.model.terms import own_terms

# a child of PyMC's logger: shown where PyMC's own messages are, and silenced with them
_log = logging.getLogger("pymc.pcvm_pymc")

type Seed = int | np.random.Generator | None
type Method = Literal["auto", "gibbs", "nuts"]

#: what to do where weights of known signs, of several classes, do not converge
_OF_CLASSES = (
    "; chains of several classes mix better without signs of the weights: "
    "MPCVMClassifier(estimation='posterior')"
)
_NUTS_SAMPLERS = ("pymc", "nutpie", "numpyro", "blackjax")


def sample(
    model: pm.Model | None = None,
    *,
    method: Method = "auto",
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = None,
    random_seed: Seed = None,
    support: str | xr.DataTree = "all",
    thin: int = 10,
    max_sweeps: int = 200_000,
    checkpoint: str | Path | None = None,
    target_accept: float = 0.95,
    nuts_sampler: str = "pymc",
    progressbar: bool = True,
    quiet: bool = False,
    **kwargs: Any,
) -> xr.DataTree:
    """Sample the posterior of a model of the family, and always check its convergence.

    The verdict is that of `compare`: on the latent function, an unknown width, parameters of the likelihood
    and terms of one's own. Single weights are not judged: one can replace another.

    Parameters
    ----------
    model : pm.Model, optional
        From a builder; default: the model on the context stack.
    method : {"auto", "gibbs", "nuts"}
        ``"gibbs"`` is this package's own sampler, for a Gamma hyperprior and a fixed width or an RBF's
        unknown one; ``"nuts"`` takes any model. ``"auto"`` takes Gibbs where it can, and says why
        (`choose_method`); where a `nuts_sampler` is named, NUTS.
    draws, tune, chains : int
        Draws kept of each chain, steps before the first, and chains.
    cores : int, optional
        Chains that run at the same time. Default: as many as there are processors for this process.
    random_seed : int or numpy.random.Generator, optional
        The same seed gives the same Gibbs draws on one machine, however often the run was
        interrupted; NUTS' draws also depend on the compiled code.
    support : "all", "map" or DataTree
        ``"map"`` keeps only the bases that `find_map_em` retains on this model, a DataTree those that
        this result retains. An approximation: the other weights are fixed at zero, and the uncertainty
        about which vectors matter is lost.
    thin : int
        Gibbs: sweeps for each draw, to begin with.
    max_sweeps : int
        Gibbs: while r-hat of the latent function or of an unknown width is above 1.01, or their effective
        sample size below 400, `thin` doubles and chains go on, until one would exceed this many sweeps.
        What was drawn first becomes warm-up then, what was drawn later stays, thinned. Where few draws
        are asked for, convergence is judged on the states between them as well. At least ``draws * thin``.
    checkpoint : path, optional
        Gibbs: a folder in which chains are written down as they run. The same call with the same
        folder goes on where a killed run stopped.
    target_accept : float
        NUTS: higher than PyMC's default, since the half-Student-t weights have a narrow neck at zero.
    nuts_sampler : {"pymc", "nutpie", "numpyro", "blackjax"}
    progressbar : bool
    quiet : bool
        No progress bar and no message but warnings.
    **kwargs
        NUTS: for `pymc.sample`.

    Returns
    -------
    DataTree
        As from `pymc.sample`, with ``log_likelihood``; ``attrs["sampler"]`` of the posterior says what ran.
        Where something fails after the draws, the error has them as its attribute ``draws``.

    Raises
    ------
    ValueError
        If the hyperprior is improper, an argument is out of range or of the other sampler than the one that
        runs, the Gibbs sampler cannot take the model, or a checkpoint is of another run.

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data", JASA
    88 (Gibbs); M. D. Hoffman and A. Gelman (2014), "The No-U-Turn sampler", JMLR 15 (NUTS).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0)
    >>> fast = {"draws": 200, "progressbar": False}
    >>> posterior = sample(model, random_seed=1, **fast)
    >>> dict(posterior["posterior"]["latent"].sizes)
    {'chain': 4, 'draw': 200, 'obs': 30}
    """
    model = as_model(model)
    _check_model(model)
    validation.check_choice("method", method, ("auto", "gibbs", "nuts"))
    positive = {"draws": draws, "chains": chains, "thin": thin, "max_sweeps": max_sweeps}
    for name, value in positive.items():
        validation.check_whole(name, value, 1)
    validation.check_whole("tune", tune, 0)
    validation.check_whole("cores", cores, 1, optional=True)
    validation.check_seed("random_seed", random_seed)
    validation.check_real("target_accept", target_accept, below=1.0)
    validation.check_choice("nuts_sampler", nuts_sampler, _NUTS_SAMPLERS)
    validation.check_flag("progressbar", progressbar)
    validation.check_flag("quiet", quiet)
    folder = None if checkpoint is None else as_path(checkpoint, "checkpoint")
    if not (isinstance(support, str) and support == "all"):
        model = _restricted(model, support)
    if method == "auto" and nuts_sampler != "pymc":
        method = "nuts"
    elif method == "auto":
        method, reason = choose_method(model)
        if not quiet:
            _log.info("Sampling by %s: %s", method, reason)
    _check_effect(method, "gibbs", thin=thin, max_sweeps=max_sweeps, checkpoint=checkpoint)
    _check_effect(method, "nuts", target_accept=target_accept, nuts_sampler=nuts_sampler)
    cores = cores or min(chains, cpu_count())
    if method == "gibbs":
        if kwargs:
            raise ValueError(f"{sorted(kwargs)} are for NUTS; use method='nuts', or leave them out")
        if draws * thin > max_sweeps:
            raise ValueError(
                f"max_sweeps={max_sweeps} is below draws * thin = {draws} * {thin} = {draws * thin}; needed "
                "at least as many: raise max_sweeps, or lower draws or thin"
            )
        show = progressbar and not quiet
        run = GibbsRun(draws, tune, chains, cores, thin, max_sweeps, folder, show)
        return _sample_gibbs(model, run, np.random.default_rng(random_seed))
    given = {"draws": draws, "tune": tune, "chains": chains, "cores": cores, "quiet": quiet}
    given |= {"target_accept": target_accept, "random_seed": random_seed}
    given |= {"progressbar": progressbar, **kwargs}
    return _sample_nuts(model, nuts_sampler, **given)


_DEFAULT = {name: each.default for name, each in signature(sample).parameters.items()}


def _sample_nuts(model: pm.Model, nuts_sampler: str, **kwargs: Any) -> xr.DataTree:
    """Return the draws of NUTS with their log likelihood."""
    results.observed_and_constant_data(model)  # what fails here would fail after the draws
    with model:
        tree = pm.sample(nuts_sampler=nuts_sampler, compute_convergence_checks=False, **kwargs)
        with keeping(tree):
            if "log_likelihood" not in tree:
                pm.compute_log_likelihood(tree, progressbar=False)
            _report(tree, model)
            tree["posterior"].attrs["sampler"] = f"NUTS ({nuts_sampler})"
            return results.record_model(tree, model)


def _report(tree: xr.DataTree, model: pm.Model) -> None:
    """Log what speaks against convergence.

    Judged are the latent function, and what is unknown besides weights and bias, which can replace one
    another: single ones mix worse, and predictions do not depend on it.
    """
    log_warnings([*warn_divergences(tree), *warn_treedepth(tree)])
    posterior = tree["posterior"].to_dataset()
    if posterior.sizes["draw"] < 100 or posterior.sizes["chain"] < 2:
        _log.info("the number of samples is too small to check convergence, or there is one chain")
        return
    try:
        parts = find_parts(model)
        known = {parts.weight, parts.bias, parts.rate, *parts.precisions, *parts.scales}
        more = [rv.name for rv in model.free_RVs if rv not in known]
    except ValueError:  # of no row of the family
        more = [name for name, x in posterior.items() if not str(x.dims[-1]).endswith("basis")]
    found = convergence(tree, more)
    if not found.ok:
        several = "class" in getattr(posterior.get("magnitude"), "dims", ())
        _log.warning("%s%s", found, _OF_CLASSES if several else "")


def choose_method(model: pm.Model) -> tuple[Method, str]:
    """Return the sampler that `sample` takes for a model by itself, and why.

    Gibbs wherever it applies: it yields more effective draws of the latent function per second than any
    form of NUTS, and of an unknown width no divergent ones, at every size measured for two and three classes
    and, of six, on 60 rows; on 150 as many (``benchmarks/README.md``).
    """
    try:
        problem = GibbsProblem.of(read(model, "gibbs"))
    except ValueError as error:
        terms = own_terms(model)
        names = " and ".join(map(repr, terms))
        because = f"because of your term{'s'[: len(terms) - 1]} {names}; NUTS takes any model"
        return "nuts", because if terms else str(error)
    reason = "fixed width and Gamma precisions: it has more effective draws a second than NUTS"
    if problem.moves is not None:
        reason = "a kernel's unknown width and Gamma precisions, where NUTS has divergent draws"
    return "gibbs", reason


def _check_model(model: pm.Model) -> None:
    """Raise for an improper hyperprior; warn where data are counted twice."""
    try:
        is_proper = find_parts(model).hyperprior.is_proper
    except ValueError:  # not of the family: NUTS takes it as it is
        is_proper = True
    if not is_proper:
        raise ValueError(IMPROPER_MESSAGE)
    warn_if_counted_twice(model)


def _check_effect(method: str, other: str, **options: Any) -> None:
    """Raise where an option of the other sampler is given."""
    for name, value in options.items():
        if method != other and value != _DEFAULT[name]:
            raise ValueError(
                f"{name}={value!r} has no effect on method={method!r}; use {other!r}, or leave it out"
            )


def _restricted(model: pm.Model, support: str | xr.DataTree) -> pm.Model:
    """Return the model on the bases that a MAP result retains; the given one stays as it is."""
    kinds = (str, xr.DataTree)
    validation.check_instance("support", support, kinds, "'all', 'map' or a MAP result")
    if isinstance(support, str):
        validation.check_choice("support", support, ("all", "map"))
    parts = find_parts(model)
    is_fixed = "centres" in model.named_vars and not random_parts(parts.Phi)
    if not is_fixed or parts.likelihood.n_scores > 1:
        raise ValueError(
            "support needs a model of two classes and a fixed width, whose basis functions are data; build "
            "one with fewer bases (basis=)"
        )
    result = find_map_em(model, progressbar=False) if isinstance(support, str) else support
    results.check_result(result, "support")
    weight = results.weights_of(result)[0]
    if weight.shape != (1, len(model.coords["basis"])):
        raise ValueError(
            f"support has weights of shape {weight.shape}; needed (1, {len(model.coords['basis'])}), a MAP "
            "result of this model"
        )
    kept = np.flatnonzero(weight[0])
    if len(kept) == 0:
        raise ValueError("the MAP retains no basis at all; use support='all'")
    _log.info(
        "Posterior restricted to the %d of %d bases that the MAP retains", len(kept), weight.size
    )
    values = {name: model[name].get_value()[kept] for name in ("signs", "centres")}
    with model.copy() as restricted:
        pm.set_data(values, coords={"basis": np.asarray(model.coords["basis"])[kept]})
    return freeze_dims_and_data(restricted)  # samplers compute the basis functions once


def _sample_gibbs(model: pm.Model, run: GibbsRun, rng: np.random.Generator) -> xr.DataTree:
    """Return the draws of the Gibbs sampler; convergence is that of all states kept."""
    problem = GibbsProblem.of(read(model, "gibbs"))
    results.observed_and_constant_data(model)  # what fails here would fail after the draws
    ended = run_chains(problem, run, rng)
    with keeping(ended[0]):
        return _packed(model, problem, run, ended)


def _packed(
    model: pm.Model,
    problem: GibbsProblem,
    run: GibbsRun,
    ended: tuple[dict[str, Any], Chain, float],
) -> xr.DataTree:
    """Return the states of all chains as draws with their log likelihood."""
    states, chain, seconds = ended
    scores, every = ("class",)[: problem.sign.ndim - 1], chain.n_states // run.draws
    values: dict[str, Any] = {
        "magnitude": (("basis", *scores), states["size"]),
        "weight": (("basis", *scores), states["size"] * problem.sign),
        "bias": (scores, states["bias"]),
        "latent": (("obs", *scores), states["latent"]),
    }
    if problem.hyperprior.rate_shape is not None:
        values["rate"] = ((), states["rate"])
    if "width" in states:
        values["width"] = (("feature",)[: states["width"].ndim - 2], states["width"])
    log_likelihood = problem.log_likelihood(states["latent"])
    n_chains, n_states = log_likelihood.shape[:2]
    sweep = np.tile(chain.sweeps - chain.every * np.arange(n_states)[::-1], (n_chains, 1))
    stats = {"lp_likelihood": ((), log_likelihood.sum(axis=-1)), "sweep": ((), sweep)}
    tree = results.pack(
        model,
        values,
        {"sample_stats": stats, "log_likelihood": {"label": ("obs", log_likelihood)}},
        sampler=f"Gibbs (1 draw in {chain.every * every} sweeps)",
        sampling_time=seconds,
        sweeps=chain.sweeps,
        thin=chain.every * every,
    )
    _report(tree, model)
    for group in ("posterior", "sample_stats", "log_likelihood"):  # without states between draws
        kept = tree[group].to_dataset().isel(draw=slice(every - 1, None, every))
        tree[group] = kept.assign_coords(draw=np.arange(run.draws))
    return tree
