"""From a model to results: the EM-MAP point, predictions (the posterior is in `sampling`)."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pcvm_pymc.core.em.binary import EMOptions, EMResult, EMState, Start, fit_em
from pcvm_pymc.core.em.mpcvm import ClassResult, ClassStart, ClassState, fit_top_down
from pcvm_pymc.core.em.sparse_probit import SparseProblem, fit_sparse_probit, state_at
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.likelihoods import LINKS
from pcvm_pymc.core.pieces.multinomial import class_probabilities
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features
from pcvm_pymc.inference.results import classes_to_datatree, em_to_datatree, weights_of
from pcvm_pymc.model.builders import basis_at, check_centres, stored_width
from pcvm_pymc.model.mpcvm import class_problem_of, has_several_classes
from pcvm_pymc.model.sparse_probit import is_sparse_probit, sparse_problem_of
from pcvm_pymc.model.steps import problem_of

__all__ = ["find_map_em", "latent_draws", "predict", "prior_latent"]

_log = logging.getLogger(__name__)

type Seed = int | np.random.Generator | None


def find_map_em(
    model: pm.Model | None = None,
    *,
    options: EMOptions | None = None,
    start: Start | ClassStart | str = "default",
    random_seed: Seed = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Find the maximum a posteriori point of a PCVM or sparse probit by EM.

    Parameters
    ----------
    model : pm.Model, optional
        From `pcvm_model`, `sparse_probit_model`, `mpcvm_model` or `mrvm_model`; default: the model
        on the context stack. Of `pcvm_model` a width with a prior (called ``width``) is
        optimised within EM by the corrected eq. 10.
    options : EMOptions, optional
        Default: ``EMOptions()``. ``EMOptions.chen2009()`` is the authors' recipe.
    start : Start or {"default", "random", "chen2009"}
        Where to begin. The result depends on it where the hyperprior is improper. For a sparse probit
        ``"default"`` (a ridge fit) or a `Start`; for several classes ``"default"``,
        ``"random"`` or a `ClassStart`.
    random_seed : int or numpy.random.Generator, optional
        For random starts.
    progressbar : bool

    Returns
    -------
    DataTree
        Groups as `pymc_extras.find_MAP` has them, ``posterior`` (one chain, one draw),
        ``optimizer_result``, data groups, and ``em_trace`` with log posterior, active weights,
        change and width of each iteration. ``log_posterior`` equals
        ``model.compile_logp(jacobian=False)`` at the point.

    Raises
    ------
    ValueError
        If the model is not one that EM can maximise, or `start` is unknown.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), Algorithm 1, corrected (see `EMStep`); M. Figueiredo and A. Jain
    (2001), section 3, corrected (see `pcvm_pymc.core.em.sparse_probit`).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> result = find_map_em(pcvm_model(X, X[:, 0] > 0), progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """
    model = pm.modelcontext(model)
    options = options or EMOptions()
    several = has_several_classes(model)
    fit = (_class_fit_of if several else _fit_of)(model, start, random_seed)
    began = time.perf_counter()
    with _em_progress(options.max_iter, progressbar) as report:
        result = fit(options, report)
    seconds = time.perf_counter() - began
    if not result.converged:
        _log.warning("EM stopped: %s; raise max_iter or tol", result.status.value)
    pack = classes_to_datatree if several else em_to_datatree
    return pack(model, result, options, seconds)


def _class_fit_of(
    model: pm.Model, start: ClassStart | str, random_seed: Seed
) -> Callable[[EMOptions, Callable[[int, ClassState], None] | None], ClassResult]:
    """Return what fits a model of several classes by EM from the top down."""
    problem = class_problem_of(model)
    if isinstance(start, ClassStart):
        chosen = start
    elif start == "default":
        chosen = ClassStart.default(problem)
    elif start == "random":
        chosen = ClassStart.random(problem, np.random.default_rng(random_seed))
    else:
        raise ValueError(
            f"start={start!r} is not for several classes; use 'default', 'random' or a ClassStart"
        )
    return lambda options, report: fit_top_down(problem, chosen, options, report)


def _fit_of(
    model: pm.Model, start: Start | str, random_seed: Seed
) -> Callable[[EMOptions, Callable[[int, EMState], None] | None], EMResult]:
    """Return what fits a model of the family by EM, given options and a callback."""
    if is_sparse_probit(model):
        sparse = sparse_problem_of(model)
        state = _sparse_start(sparse, start)
        return lambda options, report: fit_sparse_probit(sparse, state, options, report)
    problem = problem_of(model)
    chosen = _start(problem, start, np.random.default_rng(random_seed))
    return lambda options, report: fit_em(problem, chosen, options, report)


def _sparse_start(problem: SparseProblem, start: Start | str) -> EMState | None:
    """Return the sparse probit's start: the ridge fit, or the given weights and bias."""
    if start == "default":
        return None
    if not isinstance(start, Start):
        raise ValueError(f"start={start!r} is not for a sparse probit; use 'default' or a Start")
    return state_at(problem, _checked(start, problem.Phi.shape[1]).weight, float(start.bias))


def _checked(start: Start, n_basis: int) -> Start:
    if np.shape(start.weight) != (n_basis,):
        raise ValueError(
            f"start has weights of shape {np.shape(start.weight)}; needed ({n_basis},)"
        )
    return start


def _start(problem: Any, start: Start | str, rng: np.random.Generator) -> Start:
    if isinstance(start, Start):
        return _checked(start, problem.Phi.shape[1])
    if start == "default":
        return Start.default(problem)
    if start == "random":
        return Start.random(problem, rng)
    if start == "chen2009":
        return Start.chen2009(problem, rng)
    raise ValueError(f"start={start!r} is unknown; use 'default', 'random', 'chen2009' or a Start")


@contextmanager
def _em_progress(max_iter: int, show: bool) -> Iterator[Callable[[int, EMState], None] | None]:
    """Yield a callback that draws EM's progress, or None."""
    if not show:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("EM"),
        BarColumn(),
        TextColumn("iteration {task.completed}/{task.total}"),
        TextColumn("log posterior {task.fields[value]:.4f}, {task.fields[active]} active"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("EM", total=max_iter, value=np.nan, active=0)

        def report(n_iter: int, state: EMState) -> None:
            progress.update(
                task, completed=n_iter, value=state.log_posterior, active=state.n_active
            )

        yield report


def prior_latent(model: pm.Model, *, draws: int = 2000, random_seed: Seed = None) -> Array:
    """Return draws of the latent function from the prior, the signs held fixed, (draws, n_obs).

    Parameters
    ----------
    model : pm.Model
        From `pcvm_model`, with a proper prior.
    draws : int
    random_seed : int or numpy.random.Generator, optional
    """
    return pm.draw(model["latent"], draws=draws, random_seed=random_seed)


def latent_draws(result: xr.DataTree, X_new: ArrayLike, *, kernel: Kernel = "rbf") -> Array:
    """Return the latent function of each draw at new inputs, shape (n_draws, n_new).

    Of several classes (n_draws, n_new, n_classes).

    Parameters
    ----------
    result : DataTree
        From `find_map_em`, `sample` or `pymc.sample`.
    X_new : array_like, shape (n_new, n_features)
    kernel : "rbf", callable or pm.gp.cov.Covariance
        The kernel that the model was built with.

    Raises
    ------
    ValueError
        If the inputs cannot be used, or the kernel is not the model's.
    """
    data = result["constant_data"].to_dataset()
    check_centres(data)
    centres = data["centres"].values
    X_new = as_features(X_new, "X_new", centres.shape[1])
    weight, bias = weights_of(result)
    if "width" not in result["posterior"]:
        return _latent_at(
            basis_at(kernel, X_new, centres, stored_width(kernel, data)), weight, bias
        )
    width = result["posterior"]["width"].values.ravel()
    return np.stack(
        [
            basis_at(kernel, X_new, centres, each) @ row + b
            for each, row, b in zip(width, weight, bias, strict=True)
        ]
    )


def _latent_at(Phi: Array, weight: Array, bias: Array) -> Array:
    """Return the latent functions of draws, shape (n_draws, n_new) or (n_draws, n_new, n_classes)."""
    return np.moveaxis(np.tensordot(weight, Phi, (1, 1)), -1, 1) + bias[:, None]


def _noise(result: xr.DataTree) -> Array:
    """Return the targets' standard deviation of each draw, shape (n_chains, n_draws)."""
    posterior = result["posterior"]
    if "noise" in posterior:
        return posterior["noise"].values
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    return np.full(shape, result["constant_data"]["noise"].item())


def predict(result: xr.DataTree, X_new: ArrayLike, *, kernel: Kernel = "rbf") -> xr.DataTree:
    """Predict at new inputs, one prediction for each posterior draw.

    Parameters
    ----------
    result : DataTree
        From `find_map_em`, `fit_evidence` (one draw: the plug-in), `sample` or `pymc.sample`.
    X_new : array_like, shape (n_new, n_features)
    kernel : "rbf", callable or pm.gp.cov.Covariance
        The kernel that the model was built with.

    Returns
    -------
    DataTree
        Group ``predictions`` with ``latent`` and, for labels, ``probability`` (of the greater
        class), dims ``chain``, ``draw`` and ``obs``. The posterior predictive probability is the mean
        of ``probability`` over chains and draws. For a regression ``latent`` is the mean of the
        targets, and ``noise`` their standard deviation. Of several classes both have the
        dim ``class`` in addition.
    """
    latent = latent_draws(result, X_new, kernel=kernel)
    sizes = result["posterior"].sizes
    chains, draws = sizes["chain"], sizes["draw"]
    latent = latent.reshape(chains, draws, *latent.shape[1:])
    several = result.attrs.get("likelihood") == "multinomial probit"
    dims = ("chain", "draw", "obs", *(["class"] if several else []))
    values = {"latent": (dims, latent)}
    link = LINKS.get(result.attrs.get("likelihood", "probit"))
    if several:
        flat = class_probabilities(latent.reshape(-1, latent.shape[-1]), accuracy=1e-8)
        values["probability"] = (dims, flat.reshape(latent.shape))
    elif link is not None:
        values["probability"] = (dims, link.probability(latent))
    else:
        values["noise"] = (dims[:2], _noise(result))
    predictions = xr.Dataset(
        values,
        {
            "chain": result["posterior"]["chain"].values,
            "draw": result["posterior"]["draw"].values,
            "obs": np.arange(latent.shape[2]),
            **({"class": result["posterior"]["class"].values} if several else {}),
        },
    )
    tree = xr.DataTree.from_dict({"predictions": predictions})
    tree.attrs.update(result.attrs)
    return tree
