"""The posterior by NUTS or Gibbs, always checked for convergence."""

import logging
import time
from inspect import signature
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from joblib import cpu_count
from numpy.typing import NDArray
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth

from pcvm_pymc.core.gibbs import GibbsProblem
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.inference import results
from pcvm_pymc.inference.chains import Drawn, GibbsRun, compile_sweeps, run_chains
from pcvm_pymc.inference.convergence import convergence, keeping
from pcvm_pymc.inference.display import Result
from pcvm_pymc.inference.prediction import Seed
from pcvm_pymc.inference.progress import WITHOUT_WIDGETS, progress_bars
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.distributions import IMPROPER_MESSAGE
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.parts import Parts, find_parts, parts_of
from pcvm_pymc.model.read import read, warn_if_counted_twice

# a child of PyMC's logger: shown where PyMC's own messages are, and silenced with them
_log = logging.getLogger("pymc.pcvm_pymc")

type Method = Literal["auto", "gibbs", "nuts"]

#: what to do where weights of known signs, of several classes, do not converge
_OF_CLASSES = (
    "; chains of several classes mix better without signs of the weights: "
    "MPCVMClassifier(estimation='posterior')"
)
# of NUTS: seconds of compilation, gradients of a draw, and seconds of one, with those of a value of the basis
# functions, where weights are half-Student-t; measured on two cores
_COMPILATION, _STEPS, _OVERHEAD, _PER_VALUE = 15.0, 128, 1e-4, 4e-9
_PROGRESS = "NUTS, chain {task.fields[number]}", "draw {task.completed}/{task.total}"
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
    thin: int = 10,
    max_sweeps: int = 200_000,
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
        The same seed gives the same Gibbs draws on one machine; NUTS' draws also depend on the
        compiled code.
    thin : int
        Gibbs: sweeps for each draw, to begin with.
    max_sweeps : int
        Gibbs: while r-hat of the latent function or of an unknown width is above 1.01, or their effective
        sample size below 400, `thin` doubles and chains go on, until one would exceed this many sweeps.
        What was drawn first becomes warm-up then, what was drawn later stays, thinned. Where few draws
        are asked for, convergence is judged on the states between them as well. At least ``draws * thin``.
    target_accept : float
        NUTS: higher than PyMC's default, since the half-Student-t weights have a narrow neck at zero.
    nuts_sampler : {"pymc", "nutpie", "numpyro", "blackjax"}
        The last two run on JAX, and do not take the multinomial probit of several classes.
    progressbar : bool
    quiet : bool
        No progress bar and no message but warnings.
    **kwargs
        NUTS: for `pymc.sample`; ``initvals=initial_values(mode, model)`` begins at a mode.

    Returns
    -------
    DataTree
        As from `pymc.sample`, with ``log_likelihood``; ``attrs["sampler"]`` of the posterior says what ran.
        An interrupt (Ctrl-C) gives the draws made until then, with a warning. Where something fails after
        the draws, the error has them as its attribute ``draws``.

    Raises
    ------
    ValueError
        If the hyperprior is improper, an argument is out of range or of the other sampler than the one that
        runs, or the Gibbs sampler cannot take the model.

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
    parts = parts_of(model)
    _check_model(model, parts, nuts_sampler)
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
    if method == "auto" and nuts_sampler != "pymc":
        method = "nuts"
    elif method == "auto":
        method, reason = choose_method(model, parts)
        if not quiet:
            _log.info("Sampling by %s: %s", method, reason)
    other, unused = "gibbs", dict[str, Any](thin=thin, max_sweeps=max_sweeps)
    if method == "gibbs":
        other, unused = "nuts", {"target_accept": target_accept, "nuts_sampler": nuts_sampler}
    for name, value in unused.items():
        if value != _DEFAULT[name]:
            raise ValueError(
                f"{name}={value!r} has no effect on method={method!r}; use {other!r}, or leave it out"
            )
    cores = cores or min(chains, cpu_count())
    if method == "gibbs":
        if kwargs:
            raise ValueError(f"{sorted(kwargs)} are for NUTS; use method='nuts', or leave them out")
        if draws * thin > max_sweeps:
            fault = f"max_sweeps={max_sweeps} is below draws * thin = {draws} * {thin}"
            needed = "needed at least as many: raise it, or lower the others"
            raise ValueError(f"{fault} = {draws * thin}; {needed}")
        run = GibbsRun(draws, tune, chains, cores, thin, max_sweeps, progressbar, quiet)
        return _sample_gibbs(model, parts, run, np.random.default_rng(random_seed))
    kwargs |= {"draws": draws, "tune": tune, "chains": chains, "cores": cores, "quiet": quiet}
    given = {"target_accept": target_accept, "random_seed": random_seed, "progressbar": progressbar}
    return _sample_nuts(model, parts, nuts_sampler, **given, **kwargs)


_DEFAULT = {name: each.default for name, each in signature(sample).parameters.items()}


def _sample_nuts(
    model: pm.Model, parts: Parts | None, nuts_sampler: str, **kwargs: Any
) -> xr.DataTree:
    """Return the draws of NUTS with their log likelihood."""
    # what fails here would fail after the draws
    data = results.observed_and_constant_data(model, parts)["observed_data"]
    n_obs, n_values = (sum(map(np.size, x.values())) for x in (data, model.initial_point()))
    draws, tune, chains, cores = (kwargs[name] for name in ("draws", "tune", "chains", "cores"))
    n_steps = _STEPS * (tune + draws) * -(-chains // cores)
    seconds = _COMPILATION + n_steps * (_OVERHEAD + n_obs * n_values * _PER_VALUE)
    _say_seconds(seconds, "the sizes of data and parameters", kwargs["quiet"])
    show = kwargs["progressbar"] and not kwargs["quiet"] and WITHOUT_WIDGETS
    if show and nuts_sampler in ("pymc", "nutpie"):  # whose own bars would only warn
        kwargs["progressbar"] = False
    with model, progress_bars(show and nuts_sampler == "pymc", *_PROGRESS) as bars:
        if not bars.disable:
            for i in range(chains):
                bars.add_task("", total=tune + draws, number=i)
            kwargs.setdefault(
                "callback", lambda trace, draw: bars.update(draw.chain, completed=draw.draw_idx + 1)
            )
        tree = pm.sample(nuts_sampler=nuts_sampler, compute_convergence_checks=False, **kwargs)
        with keeping(tree):
            if "log_likelihood" not in tree:
                pm.compute_log_likelihood(tree, progressbar=False)
            tree["posterior"].attrs["sampler"] = f"NUTS ({nuts_sampler})"
            tree = results.record_model(tree, model, parts)
            _report(tree, model, parts)
            return Result.from_dict(tree.to_dict())


def _say_seconds(seconds: float, how: str, quiet: bool) -> None:
    """Log about how long it will take."""
    said = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    if not quiet:
        _log.info("This takes about %s, judged by %s", said, how)


def _report(tree: xr.DataTree, model: pm.Model, parts: Parts | None) -> None:
    """Log what speaks against convergence.

    Judged are the latent function, and what is unknown besides weights and bias, which can replace one
    another: single ones mix worse, and predictions do not depend on it.
    """
    log_warnings([*warn_divergences(tree), *warn_treedepth(tree)])
    posterior = results.under_our_names(tree)["posterior"].to_dataset()
    if posterior.sizes["draw"] < 100 or posterior.sizes["chain"] < 2:
        _log.info("the number of samples is too small to check convergence, or there is one chain")
        return
    if parts is None:
        more = [name for name, x in posterior.items() if not str(x.dims[-1]).endswith("basis")]
    else:
        more = [*parts.nuisances, *parts.foreign(model)]
    found = convergence(tree, more)
    if not found.ok:
        several = "class" in getattr(posterior.get("magnitude"), "dims", ())
        _log.warning("%s%s", found, _OF_CLASSES if several else "")


def initial_values(
    mode: xr.DataTree, model: pm.Model | None = None
) -> dict[str, NDArray[np.floating[Any]]]:
    """Return where NUTS may begin near a mode: for ``pm.sample(initvals=...)``, or `sample`.

    A size of zero has no logarithm, and a precision that is infinite no density: the one becomes a tenth of
    the median of its variable's other values, the other ten times it.

    Parameters
    ----------
    mode : DataTree
        From `find_map_em`, `fit_evidence` or `pymc_extras.find_MAP`.
    model : pm.Model, optional
        Its model; default: the model on the context stack.

    Returns
    -------
    dict of str to ndarray
        By the names of the model's free variables, as `pymc.sample` takes them. Those that the mode lacks,
        or that have no value to begin with, are left to PyMC.

    Raises
    ------
    ValueError
        If it has several draws.

    References
    ----------
    M. D. Hoffman and A. Gelman (2014), "The No-U-Turn sampler", JMLR 15. The start is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> start = initial_values(find_map_em(model, progressbar=False), model)
    >>> sorted(start), bool((start["magnitude"] > 0).all())
    (['bias', 'magnitude', 'rate'], True)
    """
    model = as_model(model)
    results.check_result(mode, "mode")
    posterior, start = mode["posterior"].to_dataset(), {}
    if posterior.sizes["chain"] * posterior.sizes["draw"] > 1:
        raise ValueError(
            f"mode has {posterior.sizes['draw']} draws; needed one point, as from find_map_em"
        )
    for rv in (rv for rv in model.free_RVs if rv.name in posterior):
        value = posterior[rv.name].values[0, 0]
        # a tenth: of sizes of 1e-6 to 1 times the median it has the highest density, and no steep slope
        lost = ~np.isfinite(value) | ((value == 0) & (model.rvs_to_transforms[rv] is not None))
        if not lost.all():
            middle = np.median(value[~lost])
            start[rv.name] = np.where(lost, np.where(value == 0, 0.1, 10.0) * middle, value)
    return start


def choose_method(model: pm.Model, parts: Parts | None = None) -> tuple[Method, str]:
    """Return the sampler that `sample` takes for a model by itself, and why.

    Gibbs wherever it applies: it yields more effective draws of the latent function per second than any
    form of NUTS, and of an unknown width no divergent ones, at every size measured for two and three classes
    and, of six, on 60 rows; on 150 as many (``benchmarks/README.md``).
    """
    try:
        problem = GibbsProblem.of(read(model, "gibbs", parts))
    except ValueError as error:
        return "nuts", str(error)
    reason = "fixed width and Gamma precisions: it has more effective draws a second than NUTS"
    if problem.moves is not None:
        reason = "a kernel's unknown width and Gamma precisions, where NUTS has divergent draws"
    return "gibbs", reason


def _check_model(model: pm.Model, parts: Parts | None, nuts_sampler: str) -> None:
    """Raise for an improper hyperprior, or a sampler without the likelihood; warn of data counted twice."""
    if parts is not None and not parts.hyperprior.is_proper:
        raise ValueError(IMPROPER_MESSAGE)
    several = any(isinstance(x.owner.op, MultinomialProbitRV) for x in model.observed_RVs)
    if several and nuts_sampler in ("numpyro", "blackjax"):
        raise ValueError(
            f"nuts_sampler={nuts_sampler!r} does not have the multinomial probit; needed 'nutpie' or 'pymc'"
        )
    warn_if_counted_twice(model)


def _sample_gibbs(
    model: pm.Model, parts: Parts | None, run: GibbsRun, rng: np.random.Generator
) -> xr.DataTree:
    """Return the draws of the Gibbs sampler; convergence is that of all states kept."""
    parts = find_parts(model) if parts is None else parts
    problem = GibbsProblem.of(read(model, "gibbs", parts))
    results.observed_and_constant_data(model, parts)  # what fails here would fail after the draws
    # most chains converge in the second or third round
    n_sweeps = (run.tune + run.draws * run.thin) * (3 if run.chains > 1 else 1)
    each = compile_sweeps(problem, 1 if run.quiet else 20)
    seconds = each * n_sweeps * -(-run.chains // run.cores)
    _say_seconds(seconds, "some sweeps; more where chains converge slowly", run.quiet)
    began = time.perf_counter()
    drawn = run_chains(problem, run, rng)
    seconds = time.perf_counter() - began
    if not drawn.is_whole:
        shares = drawn.n_states // drawn.every, run.draws
        _log.warning("interrupted: %d of %d draws of each chain", *shares)
    with keeping(drawn.states):
        return _packed(model, parts, problem, drawn, seconds)


def _packed(
    model: pm.Model, parts: Parts, problem: GibbsProblem, drawn: Drawn, seconds: float
) -> xr.DataTree:
    """Return the states of all chains as draws with their log likelihood."""
    states, scores = drawn.states, ("class",)[: problem.sign.ndim - 1]
    values: dict[str, tuple[tuple[str, ...], Any]] = {
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
    sweep = np.tile(drawn.sweeps - drawn.step * np.arange(n_states)[::-1], (n_chains, 1))
    stats = {"lp_likelihood": ((), log_likelihood.sum(axis=-1)), "sweep": ((), sweep)}
    posterior, observed = (
        results.under_model_names(model, parts, each)
        for each in (values, {"label": (("obs",), log_likelihood)})
    )
    groups = {"sample_stats": stats, "log_likelihood": observed}
    thin = drawn.step * drawn.every
    attrs: dict[str, Any] = {"sampler": f"Gibbs (1 draw in {thin} sweeps)"}
    attrs |= {"sampling_time": seconds, "sweeps": drawn.sweeps, "thin": thin}
    tree = results.pack(model, parts, posterior, groups, **attrs)
    _report(tree, model, parts)
    for group in ("posterior", "sample_stats", "log_likelihood"):  # without states between draws
        kept = tree[group].to_dataset().isel(draw=slice(drawn.every - 1, None, drawn.every))
        tree[group] = kept.assign_coords(draw=np.arange(kept.sizes["draw"]))
    return tree
