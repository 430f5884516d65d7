"""The posterior by NUTS or Gibbs, checked for convergence whatever sampler ran."""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, run_convergence_checks
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from pcvm_pymc.core.gibbs.binary import GibbsProblem, GibbsState
from pcvm_pymc.core.gibbs.classes import ClassGibbsProblem, ClassGibbsState
from pcvm_pymc.core.pieces.priors import HalfHorseshoe
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.modes import find_map_em
from pcvm_pymc.inference.results import observed_and_constant_data, record_model, weights_of
from pcvm_pymc.model.distributions import IMPROPER_MESSAGE
from pcvm_pymc.model.mpcvm import class_gibbs_problem_of, has_several_classes
from pcvm_pymc.model.steps import gibbs_problem_of, hyperprior_of

__all__ = ["choose_method", "draw_precisions", "sample"]

# a child of PyMC's logger: shown where PyMC's own messages are, and silenced with them
_log = logging.getLogger("pymc.pcvm_pymc")

type Seed = int | np.random.Generator | None
type Method = Literal["auto", "gibbs", "nuts"]

type AnyGibbsProblem = GibbsProblem | ClassGibbsProblem

_FEW_ROWS = 50  # times the number of classes less one: up to there NUTS is ahead of Gibbs
_BLOCKS = 20  # of a round, after each of which a chain is written down and may be stopped


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
    """Sample the posterior of a PCVM, and always run PyMC's convergence checks.

    Parameters
    ----------
    model : pm.Model, optional
        From a builder; default: the model on the context stack.
    method : {"auto", "gibbs", "nuts"}
        ``"gibbs"`` is this package's own sampler, for a fixed width and a Gamma hyperprior;
        ``"nuts"`` takes any model. ``"auto"`` takes Gibbs where it can, and says why (`choose_method`).
    draws, tune, chains : int
        Draws kept of each chain, steps before the first, and chains.
    cores : int, optional
        Chains that run at the same time. Default: as many as there are processors for this process.
    random_seed : int or numpy.random.Generator, optional
        The same seed gives the same Gibbs draws on one machine, however often the run was
        interrupted; NUTS' draws also depend on the compiled code.
    support : "all", "map" or DataTree
        ``"map"`` keeps only the bases that `find_map_em` retains on this model, a DataTree those that
        this result retains. An approximation: the other weights are held at zero, and the uncertainty
        about which vectors matter is lost.
    thin : int
        Gibbs: sweeps for each draw, to begin with.
    max_sweeps : int
        Gibbs: while r-hat of the latent function is above 1.01 or its effective sample size below
        400 (half of the draws, where these are fewer than 800), everything drawn so far becomes
        warm-up and `thin` doubles, until a chain would exceed this many sweeps.
    checkpoint : path, optional
        Gibbs: a folder in which chains are written down as they run. The same call with the same
        folder goes on where a killed run stopped.
    target_accept : float
        NUTS: higher than PyMC's default, since the half-Student-t weights have a narrow neck at zero.
    nuts_sampler : {"pymc", "nutpie", "numpyro"}
    progressbar : bool
    quiet : bool
        No progress bar and no message but warnings.
    **kwargs
        NUTS: for `pymc.sample`.

    Returns
    -------
    DataTree
        As from `pymc.sample`, with ``log_likelihood``; ``attrs["sampler"]`` of the posterior says what ran.

    Raises
    ------
    ValueError
        If the hyperprior is improper, an argument is out of range, the Gibbs sampler cannot take the
        model, or a checkpoint is of another run.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> posterior = sample(pcvm_model(X, X[:, 0] > 0), draws=200, random_seed=1, progressbar=False)
    >>> dict(posterior["posterior"]["latent"].sizes)
    {'chain': 4, 'draw': 200, 'obs': 30}
    """
    model = pm.modelcontext(model)
    _check_options(model, method)
    _check_counts(draws=(draws, 1), tune=(tune, 0), chains=(chains, 1), thin=(thin, 1))
    if not (isinstance(support, str) and support == "all"):
        model = _restricted(model, support)
    if method == "auto":
        method, reason = choose_method(model)
        if not quiet:
            _log.info("Sampling by %s: %s", method, reason)
    cores = cores or min(chains, _available_cores())
    if method == "gibbs":
        if kwargs:
            raise ValueError(f"{sorted(kwargs)} are for NUTS; use method='nuts', or leave them out")
        run = GibbsRun(
            draws, tune, chains, cores, thin, max_sweeps, checkpoint and Path(checkpoint)
        )
        tree = _sample_gibbs(
            model, run, np.random.default_rng(random_seed), progressbar and not quiet
        )
    else:
        if checkpoint is not None:
            raise ValueError("checkpoint is for method='gibbs'; NUTS does not resume")
        with model:
            tree = pm.sample(
                draws,
                tune=tune,
                chains=chains,
                cores=cores,
                target_accept=target_accept,
                nuts_sampler=nuts_sampler,
                random_seed=random_seed,
                progressbar=progressbar,
                quiet=quiet,
                compute_convergence_checks=False,
                **kwargs,
            )
            pm.compute_log_likelihood(tree, progressbar=False)
        tree["posterior"].attrs["sampler"] = f"NUTS ({nuts_sampler})"
    log_warnings(run_convergence_checks(tree, model))
    return record_model(tree, model)


def choose_method(model: pm.Model) -> tuple[Method, str]:
    """Return the sampler that `sample` takes for a model by itself, and why.

    Gibbs for two classes wherever it applies: at every size measured it yields more effective draws of the
    latent function per second than any form of NUTS. For C classes it does so beyond about 50 (C - 1)
    rows (``benchmarks/README.md``).
    """
    free = {rv.name for rv in model.free_RVs}
    if "signs" not in model.named_vars:
        return "nuts", "the model is not a PCVM, which is all that the Gibbs sampler draws from"
    if "width" in free or "Phi" not in model.named_vars:
        return "nuts", "the width is unknown, which the Gibbs sampler cannot move"
    if isinstance(hyperprior_of(model), HalfHorseshoe):
        return (
            "nuts",
            "a half-horseshoe, whose geometry suits NUTS and which Gibbs does not draw from",
        )
    try:
        problem = _gibbs_problem(model)
    except ValueError as error:
        return "nuts", str(error)
    few = _FEW_ROWS * (problem.sign.shape[1] - 1) if problem.score_dims else 0
    if len(problem.label) <= few:
        return "nuts", f"no more than {few} rows of so many classes, where it is ahead of Gibbs"
    return "gibbs", (
        "fixed width and Gamma precisions, where it yields more effective draws a second than NUTS"
    )


def _check_options(model: pm.Model, method: str) -> None:
    if "hyperprior" in model.named_vars and not hyperprior_of(model).is_proper:
        raise ValueError(IMPROPER_MESSAGE)
    if method not in ("auto", "gibbs", "nuts"):
        raise ValueError(f"method={method!r} is unknown; use 'auto', 'gibbs' or 'nuts'")


def _check_counts(**given: tuple[Any, int]) -> None:
    """Raise unless each value is a whole number of at least its bound."""
    for name, (value, least) in given.items():
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}={value!r}; needed a whole number of at least {least}")


def _available_cores() -> int:
    """Return the processors that this process may use (PyMC's default takes half of them)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _restricted(model: pm.Model, support: str | xr.DataTree) -> pm.Model:
    """Return the model on the bases that a MAP result retains; the given one stays as it is."""
    if isinstance(support, str) and support != "map":
        raise ValueError(f"support={support!r} is unknown; use 'all', 'map' or a MAP result")
    if "Phi" not in model.named_vars:
        raise ValueError("support needs a model of fixed width, whose basis functions are data")
    if has_several_classes(model):
        raise ValueError(
            "support needs a model of two classes; build one with fewer bases (basis=)"
        )
    result = find_map_em(model, progressbar=False) if isinstance(support, str) else support
    weight = weights_of(result)[0]
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
    restricted = model.copy()
    values = {
        "Phi": model["Phi"].get_value()[:, kept],
        "signs": model["signs"].get_value()[kept],
        "centres": model["centres"].get_value()[kept],
    }
    with restricted:
        pm.set_data(values, coords={"basis": np.asarray(model.coords["basis"])[kept]})
    return restricted


# --- Gibbs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GibbsRun:
    """How long and where a Gibbs sampler runs; the arguments of `sample` of the same names."""

    draws: int
    tune: int
    chains: int
    cores: int
    thin: int
    max_sweeps: int
    checkpoint: Path | None = None
    fingerprint: str = ""


@dataclass
class Chain:
    """A chain of the Gibbs sampler: where it stands, and the draws of its round."""

    number: int
    state: GibbsState | ClassGibbsState
    rng: np.random.Generator
    thin: int
    sweeps: int = 0
    tuned: bool = False
    size: list[Array] = field(default_factory=list)
    bias: list[Array] = field(default_factory=list)
    rate: list[Array] = field(default_factory=list)

    @property
    def n_kept(self) -> int:
        """Draws of the round so far."""
        return sum(map(len, self.bias))

    def next_round(self) -> None:
        """Turn what was drawn into warm-up, and thin twice as much from here."""
        self.thin *= 2
        self.size, self.bias, self.rate = [], [], []


def _gibbs_problem(model: pm.Model) -> AnyGibbsProblem:
    """Return what the Gibbs sampler needs of a model; raise where it cannot draw from it."""
    return class_gibbs_problem_of(model) if has_several_classes(model) else gibbs_problem_of(model)


def _sample_gibbs(
    model: pm.Model, run: GibbsRun, rng: np.random.Generator, progressbar: bool
) -> xr.DataTree:
    problem = _gibbs_problem(model)
    Phi = np.asarray(model["Phi"].get_value())
    throwaway = np.random.default_rng(0)  # compiled before the clock and the threads start
    problem.advance(problem.start(throwaway), throwaway, draws=1)
    run = replace(run, fingerprint=_fingerprint(problem, run, rng))
    chains = [
        Chain(i, problem.start(each), each, run.thin)
        for i, each in enumerate(rng.spawn(run.chains))
    ]
    for chain in chains:
        _resume(chain, problem, run)
    for chain in chains:  # killed between the rounds of two chains: all go on from the later one
        while chain.thin < max(each.thin for each in chains):
            chain.next_round()
    began = time.perf_counter()
    while True:
        _run_round(problem, chains, run, progressbar)
        latent = np.stack(
            [
                problem.latent(np.concatenate(chain.size), np.concatenate(chain.bias), Phi)
                for chain in chains
            ]
        )
        if _is_enough(latent) or _after_next_round(chains[0], run) > run.max_sweeps:
            break
        for chain in chains:
            chain.next_round()
            _write(chain, run)
    seconds = time.perf_counter() - began
    return _gibbs_datatree(model, problem, chains, latent, seconds)


def _run_round(
    problem: AnyGibbsProblem, chains: list[Chain], run: GibbsRun, progressbar: bool
) -> None:
    """Run all chains to the end of their round, in threads: the compiled sweeps release the lock."""
    stop = threading.Event()
    with (
        _gibbs_progress(chains, run, progressbar) as report,
        threadpool_limits(1),
        ThreadPoolExecutor(run.cores) as pool,
    ):
        futures = [
            pool.submit(_finish_round, problem, chain, run, stop, report) for chain in chains
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _finish_round(
    problem: AnyGibbsProblem,
    chain: Chain,
    run: GibbsRun,
    stop: threading.Event,
    report: Callable[[Chain], None],
) -> None:
    """Run one chain, block by block, to the end of its round."""
    if not chain.tuned:
        problem.advance(chain.state, chain.rng, draws=1, thin=max(run.tune, 1))
        chain.sweeps, chain.tuned = max(run.tune, 1), True
    block = -(-run.draws // _BLOCKS)
    while chain.n_kept < run.draws and not stop.is_set():
        draws = min(block, run.draws - chain.n_kept)
        size, bias, rate = problem.advance(chain.state, chain.rng, draws=draws, thin=chain.thin)
        chain.size.append(size)
        chain.bias.append(bias)
        chain.rate.append(rate)
        chain.sweeps += draws * chain.thin
        _write(chain, run)
        report(chain)


def _is_enough(latent: Array) -> bool:
    """Whether r-hat is at most 1.01 and the effective sample size large enough, (chain, draw, obs, ...)."""
    n_chains, n_draws = latent.shape[:2]
    if n_chains < 2 or n_draws < 50:  # cannot be told
        return True
    dims = ("chain", "draw", "obs", "class")[: latent.ndim]
    data = xr.Dataset({"latent": (dims, latent)})
    enough = min(400, n_chains * n_draws // 2)
    import arviz as az

    return bool(az.rhat(data)["latent"].max() <= 1.01 and az.ess(data)["latent"].min() >= enough)


def _after_next_round(chain: Chain, run: GibbsRun) -> int:
    """Return the sweeps that a chain has behind it after one more round."""
    return chain.sweeps + 2 * chain.thin * run.draws


def _gibbs_datatree(
    model: pm.Model, problem: AnyGibbsProblem, chains: list[Chain], latent: Array, seconds: float
) -> xr.DataTree:
    size = np.stack([np.concatenate(chain.size) for chain in chains])
    scores = problem.score_dims
    values: dict[str, tuple[tuple[str, ...], Array]] = {
        "magnitude": (("basis", *scores), size),
        "weight": (("basis", *scores), size * problem.sign),
        "bias": (scores, np.stack([np.concatenate(chain.bias) for chain in chains])),
        "latent": (("obs", *scores), latent),
    }
    if problem.hyperprior.rate_shape is not None:
        values["rate"] = ((), np.stack([np.concatenate(chain.rate) for chain in chains]))
    n_chains, n_draws = latent.shape[:2]
    coords = {
        "chain": np.arange(n_chains),
        "draw": np.arange(n_draws),
        "obs": np.asarray(model.coords["obs"]),
    }
    basis = {name: np.asarray(model.coords[name]) for name in ("basis", *scores)}
    sampled = ("chain", "draw")
    posterior = xr.Dataset(
        {name: ((*sampled, *dims), value) for name, (dims, value) in values.items()},
        {**coords, **basis},
        {
            "inference_library": "pcvm_pymc",
            "sampler": f"Gibbs (1 draw in {chains[0].thin} sweeps)",
            "sampling_time": seconds,
            "sweeps": chains[0].sweeps,
            "thin": chains[0].thin,
        },
    )
    log_likelihood = problem.log_likelihood(latent)
    stats = {
        "lp_likelihood": (sampled, log_likelihood.sum(axis=-1)),
        "sweep": (sampled, np.broadcast_to(_sweep_numbers(chains[0]), (n_chains, n_draws)).copy()),
    }
    return xr.DataTree.from_dict(
        {
            "posterior": posterior,
            "sample_stats": xr.Dataset(stats, {k: coords[k] for k in sampled}),
            "log_likelihood": xr.Dataset({"label": ((*sampled, "obs"), log_likelihood)}, coords),
            **observed_and_constant_data(model),
        }
    )


def _sweep_numbers(chain: Chain) -> Array:
    """Return the sweep of each kept draw, counted from the chain's start."""
    return chain.sweeps - chain.thin * np.arange(chain.n_kept - 1, -1, -1)


# --- Gibbs: checkpoints ------------------------------------------------------------------------


def _fingerprint(problem: AnyGibbsProblem, run: GibbsRun, rng: np.random.Generator) -> str:
    """Return what decides a run's draws: problem, settings and seed, as a digest."""
    digest = hashlib.sha256()
    for each in (problem.left, problem.right, problem.sign, problem.label, problem.parameters):
        digest.update(np.ascontiguousarray(each).tobytes())
    settings = (run.draws, run.tune, run.chains, run.thin, problem.hyperprior.d)
    digest.update(repr((settings, rng.bit_generator.state)).encode())
    return digest.hexdigest()


def _file(chain: Chain, run: GibbsRun) -> Path:
    assert run.checkpoint is not None
    return run.checkpoint / f"chain_{chain.number}.npz"


def _write(chain: Chain, run: GibbsRun) -> None:
    """Write a chain down; a file is replaced only once the new one is complete."""
    if run.checkpoint is None:
        return
    path = _file(chain, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        fingerprint=run.fingerprint,
        state_size=chain.state.size,
        state=chain.state.numbers,
        rng=json.dumps(chain.rng.bit_generator.state),
        counts=np.array([chain.thin, chain.sweeps]),
        size=np.concatenate([np.empty((0, *chain.state.size.shape)), *chain.size]),
        bias=np.concatenate([np.empty((0, *np.shape(chain.state.bias))), *chain.bias]),
        rate=np.concatenate([np.empty(0), *chain.rate]),
    )
    partial.replace(path)


def _resume(chain: Chain, problem: AnyGibbsProblem, run: GibbsRun) -> None:
    """Bring a chain to where its file says it stood."""
    if run.checkpoint is None or not _file(chain, run).is_file():
        return
    with np.load(_file(chain, run)) as stored:
        if str(stored["fingerprint"]) != run.fingerprint:
            raise ValueError(
                f"checkpoint {run.checkpoint} is of another run (model, draws, tune, chains, thin or seed "
                "differ); needed the same call, or another folder. A seed is needed to resume at all"
            )
        chain.state = problem.state_of(stored["state_size"].copy(), stored["state"].copy())
        chain.rng.bit_generator.state = json.loads(str(stored["rng"]))
        chain.thin, chain.sweeps = map(int, stored["counts"])
        chain.tuned = chain.sweeps > 0
        chain.size, chain.bias, chain.rate = [stored["size"]], [stored["bias"]], [stored["rate"]]


@contextmanager
def _gibbs_progress(
    chains: list[Chain], run: GibbsRun, show: bool
) -> Iterator[Callable[[Chain], None]]:
    """Yield a callback that draws the chains' progress."""
    if not show:
        yield lambda chain: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("Gibbs, chain {task.fields[number]}"),
        BarColumn(),
        TextColumn("draw {task.completed}/{task.total}, 1 in {task.fields[thin]} sweeps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = [
            progress.add_task("", total=run.draws, completed=c.n_kept, number=c.number, thin=c.thin)
            for c in chains
        ]

        def report(chain: Chain) -> None:
            progress.update(tasks[chain.number], completed=chain.n_kept)

        yield report


# --- afterwards --------------------------------------------------------------------------------


def draw_precisions(posterior: xr.DataTree, *, random_seed: Seed = None) -> xr.DataTree:
    """Draw the precisions that were integrated out, one set for each posterior draw.

    ``alpha_i | w ~ Gamma(c + 1/2, d + w_i^2 / 2)`` and ``beta | b ~ Gamma(e + 1/2, f + b^2 / 2)``
    (Chen et al. 2009, appendix A).

    Parameters
    ----------
    posterior : DataTree
        From `sample` or `pymc.sample`, of a model with a `Hyperprior`.
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    DataTree
        A copy whose group ``posterior`` also has ``precision`` and ``bias_precision``.

    Raises
    ------
    ValueError
        If the model has no Gamma precisions.
    """
    constants = posterior["constant_data"]
    names = [str(name) for name in constants["hyperparameter"].values]
    if "c" not in names:
        raise ValueError("the model has a HalfHorseshoe, without precisions; needed a Hyperprior")
    value = dict(zip(names, constants["hyperprior"].values, strict=True))
    rng = np.random.default_rng(random_seed)
    draws = posterior["posterior"].to_dataset()
    rate = draws["rate"] if "rate" in draws else value["d"]
    tree = posterior.copy()
    tree["posterior"] = draws.assign(
        precision=_gamma(value["c"] + 0.5, rate + draws["weight"] ** 2 / 2, rng),
        bias_precision=_gamma(value["e"] + 0.5, value["f"] + draws["bias"] ** 2 / 2, rng),
    )
    return tree


def _gamma(shape: float, rate: xr.DataArray, rng: np.random.Generator) -> xr.DataArray:
    return rng.gamma(shape, size=rate.shape) / rate
