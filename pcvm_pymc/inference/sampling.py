"""The posterior by Gibbs, Hamiltonian Monte Carlo or NUTS, always checked for convergence."""

import logging
import time
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from joblib import cpu_count
from numpy.typing import NDArray
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth

from pcvm_pymc.core.family import check_solver, sampler_of
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.inference import results
from pcvm_pymc.inference.chains import Drawn, Run, run_chains, seconds_of
from pcvm_pymc.inference.convergence import convergence, keeping
from pcvm_pymc.inference.display import Result
from pcvm_pymc.inference.estimates import noise_prior
from pcvm_pymc.inference.prediction import Seed
from pcvm_pymc.inference.progress import WITHOUT_WIDGETS, progress_bars
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.distributions import IMPROPER_MESSAGE
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.read import Reading, read

# a child of PyMC's logger: shown where PyMC's own messages are, and silenced with them
_log = logging.getLogger("pymc.pcvm_pymc")

#: what to do where weights of known signs do not converge
_OF_SIGNS = "; chains mix better without signs of the weights: basis='kmeans', signs='both'"
#: what a sampler takes where nothing is said
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gibbs": {"tune": 1000, "thin": 10, "max_iter": 200_000},
    "hmc": {"tune": 300, "thin": 1, "max_iter": 20_000},
    "nuts": {"tune": 1000, "target_accept": 0.95, "nuts_sampler": "pymc"},
}
# of NUTS: seconds of compilation, gradients of a draw, and seconds of one, with those of a value of the basis
# functions, where weights are half-Student-t; measured on two cores
_COMPILATION, _STEPS, _OVERHEAD, _PER_VALUE = 15.0, 128, 1e-4, 4e-9
_PROGRESS = "NUTS, chain {task.fields[number]}", "draw {task.completed}/{task.total}"
_NUTS_SAMPLERS = ("pymc", "nutpie", "numpyro", "blackjax")


def sample(
    model: pm.Model | None = None,
    *,
    method: Literal["auto", "gibbs", "hmc", "nuts"] = "auto",
    draws: int = 1000,
    tune: int | None = None,
    chains: int = 4,
    cores: int | None = None,
    random_seed: Seed = None,
    thin: int | None = None,
    max_iter: int | None = None,
    target_accept: float | None = None,
    nuts_sampler: str | None = None,
    progressbar: bool = True,
    quiet: bool = False,
    **kwargs: Any,
) -> xr.DataTree:
    """Sample the posterior of a model of the family, and always check its convergence.

    The verdict is the same as in `compare`: on the latent function, an unknown width, parameters of the
    likelihood and user-defined terms. Single weights are not judged: one can replace another.

    Parameters
    ----------
    model : pm.Model, optional
        From a builder; default: the model on the context stack.
    method : {"auto", "gibbs", "hmc", "nuts"}
        Gibbs sampling is for weights with the signs of labels. Hamiltonian Monte Carlo (``"hmc"``) is for
        unconstrained weights, any likelihood of the family, rows with weights, and an unknown width of an RBF
        or Laplacian. NUTS takes any model. ``"auto"`` takes what draws soonest, and says why
        (`pcvm_pymc.core.family.sampler_of`); where a `nuts_sampler` is named, NUTS.
    draws, chains : int
        Draws kept of each chain, and chains.
    tune : int, optional
        Iterations before the first draw. Default: 1000, of ``"hmc"`` 300.
    cores : int, optional
        Chains that run at the same time; those of ``"hmc"`` advance together, on one. Default: as many as
        there are processors for this process.
    random_seed : int or numpy.random.Generator, optional
        The same seed gives the same draws on one machine; NUTS' draws also depend on the compiled code.
    thin : int, optional
        Gibbs and HMC: iterations for each draw, to begin with. Default: 10 sweeps, or one trajectory.
    max_iter : int, optional
        Gibbs and HMC: while r-hat of the latent function or of an unknown width is above 1.01, or their
        effective sample size below 400, `thin` doubles and chains go on, until one would exceed this many
        iterations. What was drawn first becomes warm-up then, what was drawn later stays, thinned. Where few
        draws are asked for, convergence is judged on the states between them as well. At least
        ``draws * thin``. Default: 200,000 sweeps, or 20,000 trajectories.
    target_accept : float, optional
        NUTS. Default: 0.95, higher than PyMC's, since the half-Student-t weights have a narrow neck at zero.
    nuts_sampler : {"pymc", "nutpie", "numpyro", "blackjax"}, optional
        Default: ``"pymc"``. The last two run on JAX, and do not take the multinomial probit.
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
    88 (Gibbs); R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo
    (HMC); M. D. Hoffman and A. Gelman (2014), "The No-U-Turn sampler", JMLR 15 (NUTS).

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
    reading = read(model)
    _check_model(reading, nuts_sampler)
    for name, value in {"draws": draws, "chains": chains}.items():
        validation.check_whole(name, value, 1)
    for name, limit in {"cores": cores, "thin": thin, "max_iter": max_iter}.items():
        validation.check_whole(name, limit, 1, optional=True)
    validation.check_whole("tune", tune, 0, optional=True)
    validation.check_seed("random_seed", random_seed)
    validation.check_choice("method", method, ("auto", *_DEFAULTS))
    if target_accept is not None:
        validation.check_real("target_accept", target_accept, below=1.0)
    validation.check_flag("progressbar", progressbar)
    validation.check_flag("quiet", quiet)
    named: dict[str, Any] = {"tune": tune, "thin": thin, "max_iter": max_iter, **kwargs}
    named |= {"target_accept": target_accept, "nuts_sampler": nuts_sampler}
    named = {name: value for name, value in named.items() if value is not None}
    used, reason = sampler_for(reading, "nuts" if method == "auto" and nuts_sampler else method)
    if reason and not quiet:
        _log.info("Sampling by %s: %s", used, reason)
    for name in named:
        if name in ("thin", "max_iter") if used == "nuts" else name not in _DEFAULTS[used]:
            fault = f"{name}={named[name]!r} has no effect on method={used!r}"
            raise ValueError(f"{fault}; use another method, or leave it out")
    given = _DEFAULTS[used] | named | {"draws": draws, "chains": chains, "quiet": quiet}
    given["progressbar"] = progressbar
    given["cores"] = min(chains, cpu_count()) if cores is None else cores
    if used == "nuts":
        return _sample_nuts(reading, random_seed, **given)
    return _sample_ours(reading, Run(used, **given), random_seed)


def sampler_for(reading: Reading, method: str = "auto") -> tuple[str, str]:
    """Return the sampler, and of ``"auto"`` why it draws the model soonest, see `sampler_of`.

    Parameters
    ----------
    reading : Reading
    method : {"auto", "gibbs", "hmc", "nuts"}

    Raises
    ------
    ValueError
        If the sampler that is named does not take the model.
    """
    if method == "nuts":  # takes any model
        return method, ""
    refusal = reading.refusal("sampling")
    if not refusal and noise_prior(reading) is not None:
        refusal = "the noise has a prior of its own"
    if method == "auto":
        return ("nuts", refusal) if refusal else sampler_of(reading.problem)
    if refusal:
        raise ValueError(f"{refusal}; use method='nuts'")
    check_solver(reading.problem, method)
    return method, ""


def _check_model(reading: Reading, nuts_sampler: str | None) -> None:
    """Raise for an improper hyperprior, or a NUTS sampler that lacks the likelihood."""
    if nuts_sampler is not None:
        validation.check_choice("nuts_sampler", nuts_sampler, _NUTS_SAMPLERS)
    if reading.parts is not None and not reading.parts.hyperprior.is_proper:
        raise ValueError(IMPROPER_MESSAGE)
    several = any(isinstance(x.owner.op, MultinomialProbitRV) for x in reading.model.observed_RVs)
    if several and nuts_sampler in ("numpyro", "blackjax"):
        raise ValueError(
            f"nuts_sampler={nuts_sampler!r} does not have the multinomial probit; needed 'nutpie' or 'pymc'"
        )


def _sample_nuts(
    reading: Reading, random_seed: Seed, *, nuts_sampler: str, quiet: bool, **kwargs: Any
) -> xr.DataTree:
    """Return the draws of NUTS with their log likelihood."""
    # what fails here would fail after the draws
    data, model = results.observed_and_constant_data(reading)["observed_data"], reading.model
    n_obs, n_values = (sum(map(np.size, x.values())) for x in (data, model.initial_point()))
    draws, tune, chains, cores = (kwargs[name] for name in ("draws", "tune", "chains", "cores"))
    n_steps = _STEPS * (tune + draws) * -(-chains // cores)
    seconds = _COMPILATION + n_steps * (_OVERHEAD + n_obs * n_values * _PER_VALUE)
    _say_seconds(seconds, "the sizes of data and parameters", quiet)
    show = kwargs["progressbar"] and not quiet and WITHOUT_WIDGETS
    if show and nuts_sampler in ("pymc", "nutpie"):  # whose own bars would only warn
        kwargs["progressbar"] = False
    with model, progress_bars(show and nuts_sampler == "pymc", *_PROGRESS) as bars:
        if not bars.disable:
            for i in range(chains):
                bars.add_task("", total=tune + draws, number=i)
            kwargs.setdefault(
                "callback", lambda trace, draw: bars.update(draw.chain, completed=draw.draw_idx + 1)
            )
        kwargs |= {"random_seed": random_seed, "quiet": quiet, "compute_convergence_checks": False}
        tree = pm.sample(nuts_sampler=nuts_sampler, **kwargs)
        with keeping(tree):
            if "log_likelihood" not in tree:
                pm.compute_log_likelihood(tree, progressbar=False)
            tree["posterior"].attrs["sampler"] = f"NUTS ({nuts_sampler})"
            tree = results.record_model(tree, reading)
            _report(tree, reading)
            return Result.from_dict(tree.to_dict())


def _say_seconds(seconds: float, how: str, quiet: bool) -> None:
    """Log a forecast of the seconds."""
    said = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    if not quiet:
        _log.info("This takes about %s, judged by %s", said, how)


def _report(tree: xr.DataTree, reading: Reading) -> None:
    """Log divergences, and r-hat and effective sample size where chains have not converged.

    Judged are the latent function, and what is unknown besides weights and bias, which can replace one
    another: single ones mix worse, and predictions do not depend on it.
    """
    # other samplers take shorter steps now and then
    if tree["posterior"].attrs["sampler"].startswith("NUTS"):
        log_warnings([*warn_divergences(tree), *warn_treedepth(tree)])
    posterior = results.under_our_names(tree)["posterior"].to_dataset()
    if posterior.sizes["draw"] < 100 or posterior.sizes["chain"] < 2:
        _log.info("the number of samples is too small to check convergence, or there is one chain")
        return
    if reading.parts is None:
        more = [name for name, x in posterior.items() if not str(x.dims[-1]).endswith("basis")]
    else:
        more = [*reading.parts.nuisances, *reading.extra]
    verdict = convergence(tree, more)
    if not verdict.ok:
        _log.warning("%s%s", verdict, _OF_SIGNS if "magnitude" in posterior else "")


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


def _sample_ours(reading: Reading, run: Run, random_seed: Seed) -> xr.DataTree:
    """Return the draws of a sampler of this package; convergence is that of all states kept."""
    problem = reading.problem
    if run.draws * run.thin > run.max_iter:
        fault = f"max_iter={run.max_iter} is below draws * thin = {run.draws} * {run.thin}"
        needed = "needed at least as many: raise it, or lower the others"
        raise ValueError(f"{fault} = {run.draws * run.thin}; {needed}")
    results.observed_and_constant_data(reading)  # what fails here would fail after the draws
    # most Gibbs chains converge in the second or third round, the others in the first
    rounds = 3 if run.chains > 1 and run.method == "gibbs" else 1
    seconds = seconds_of(problem, run, 1 if run.quiet else 20)
    _say_seconds(
        seconds * (run.tune + run.draws * run.thin) * rounds,
        "some iterations; more where chains converge slowly",
        run.quiet,
    )
    began = time.perf_counter()
    drawn = run_chains(problem, run, np.random.default_rng(random_seed))
    seconds = time.perf_counter() - began
    if not drawn.is_whole:
        shares = drawn.latent.shape[1] // drawn.every, run.draws
        _log.warning("interrupted: %d of %d draws of each chain", *shares)
    with keeping(drawn):
        thin = drawn.step * drawn.every
        name = {"gibbs": "Gibbs", "hmc": "Hamiltonian Monte Carlo"}[run.method]
        how = {"sampler": f"{name} (1 draw in {thin})", "sampling_time": seconds, "thin": thin}
        return _packed(reading, drawn, **how, iterations=drawn.n_iter)


def _packed(reading: Reading, drawn: Drawn, **attrs: Any) -> xr.DataTree:
    """Return the states of all chains as draws with their log likelihood."""
    problem = reading.problem
    states, scores = drawn.values, ("class",) if problem.n_scores > 1 else ()
    weight, bias = (x if scores else x[..., 0] for x in (states.weight, states.bias))
    values: dict[str, tuple[tuple[str, ...], Any]] = {}
    if problem.hyperprior.learns_rate:
        values["rate"] = ((), states.rate)
    if "noise" in reading.parts.nuisances:
        values["noise"] = ((), states.noise)
    if states.width is not None:
        values["width"] = (("feature",)[: states.width.ndim - 2], states.width)
    latent = drawn.latent if scores else drawn.latent[..., None]
    log_likelihood = problem.log_density(states, latent)
    n_chains, n_states = log_likelihood.shape[:2]
    iteration = np.tile(drawn.n_iter - drawn.step * np.arange(n_states)[::-1], (n_chains, 1))
    known = {
        "lp_likelihood": log_likelihood.sum(axis=-1),
        "iteration": iteration,
        **drawn.statistics,
    }
    observed = "target" if problem.likelihood.targets == "numbers" else "label"
    density = {observed: (("obs",), log_likelihood)}
    groups = {
        "sample_stats": {name: ((), x) for name, x in known.items()},
        "log_likelihood": results.under_model_names(reading, density),
    }
    point = SimpleNamespace(weight=weight, bias=bias, latent=drawn.latent)
    posterior = results.point_values(reading, point, values)
    if problem.bias == "none":
        del posterior["bias"]
    tree = results.pack(reading, posterior, groups, **attrs)
    _report(tree, reading)
    for group in ("posterior", "sample_stats", "log_likelihood"):  # without states between draws
        kept = tree[group].to_dataset().isel(draw=slice(drawn.every - 1, None, drawn.every))
        tree[group] = kept.assign_coords(draw=np.arange(kept.sizes["draw"]))
    return tree
