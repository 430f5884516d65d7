"""The maximum a posteriori point of a PyMC model, by EM."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pcvm_pymc.core.em import EMOptions, EMState, Start, fit_em
from pcvm_pymc.core.pieces.validation import check_flag, check_instance, check_seed
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.inference.progress import Forecast, progress_bars
from pcvm_pymc.inference.results import point_to_datatree, timed
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.read import find_parts, read

type Seed = int | np.random.Generator | None

_REPLICAS = {"random": "random_start", "chen2009": "authors_start"}


def find_map_em(
    model: pm.Model | None = None,
    *,
    options: EMOptions | None = None,
    start: Start | str = "default",
    random_seed: Seed = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Find the maximum a posteriori point of a model of the family by EM.

    Parameters
    ----------
    model : pm.Model, optional
        Of a row of `FAMILY` that EM takes: from `pcvm_model`, `sparse_probit_model`, `mpcvm_model` or
        `mrvm_model`; default: the model on the context stack. A width with a prior (called ``width``) of two
        classes is optimised within EM by the corrected eq. 10. An unknown scale of the weights
        (``hyperprior="learned"``) has no joint mode with them: the point is the weights' mode at unit scale,
        ``rate = c``, where modes predict best. The hyperprior of ``rate`` may have little density there,
        which the log posterior counts.
    options : EMOptions, optional
        Default: ``EMOptions()``.
    start : Start or "default"
        Where to begin, see `Start`. The result depends on it where the hyperprior is improper. Random
        starts are `pcvm_pymc.experiments.replicas`.
    random_seed : None
        No start is random: another value raises.
    progressbar : bool

    Returns
    -------
    DataTree
        Groups as `pymc_extras.find_MAP` has them, ``posterior`` (one chain, one draw: ``weight``, ``bias``,
        ``latent``, of signed weights ``magnitude``, ``precision`` and ``bias_precision`` as their conditional
        means, and a ``width`` that was free), ``optimizer_result``, data groups, and ``em_trace`` with log
        posterior, active weights, change and width of each iteration. ``log_posterior`` equals
        ``model.compile_logp(jacobian=False)`` at the point.

    Raises
    ------
    ValueError
        If the model is not one that EM can maximise, or `start` is unknown.

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
    model = as_model(model)
    check_instance("options", options, EMOptions, "EMOptions", optional=True)
    check_instance("start", start, (Start, str), "'default', or a Start")
    check_seed("random_seed", random_seed)
    if random_seed is not None:
        raise ValueError(
            f"random_seed={random_seed!r} has no effect: no start is random; leave it out"
        )
    check_flag("progressbar", progressbar)
    options = EMOptions() if options is None else options
    problem = read(model, "em")
    chosen = _start(problem, start)
    with _em_progress(options, progressbar) as report:
        result, seconds = timed(lambda: fit_em(problem, chosen, options, report), "EM")
    values = _expected_precisions(problem, result)
    rate = find_parts(model).rate
    if rate is not None:
        prior: Any = problem.hyperprior
        values[str(rate.name)] = ((), prior.d)
    return point_to_datatree(
        model,
        problem,
        result,
        values,
        objective="log_posterior",
        method=f"EM ({options.update})",
        seconds=seconds,
    )


def _start(problem: Problem, start: Start | str) -> Start:
    """Return the start that was given, or named."""
    if isinstance(start, Start):
        if np.shape(start.weight) != problem.weight_shape:
            raise ValueError(
                f"start has weights of shape {np.shape(start.weight)}; needed {problem.weight_shape}"
            )
        return start
    if start == "default":
        return Start.default(problem)
    if start in _REPLICAS:
        raise ValueError(
            f"start={start!r} is now pcvm_pymc.experiments.replicas.starts.{_REPLICAS[start]}; needed "
            "'default', or the Start that it returns"
        )
    raise ValueError(f"start={start!r} is unknown; use 'default', or a Start")


def _expected_precisions(problem: Problem, result: EMResult) -> dict[str, Any]:
    """Return the precisions' means given the point, and the width where it is free."""
    prior: Any = problem.hyperprior
    scores = ("class",) if problem.n_scores > 1 else ()
    biases = np.atleast_1d(result.bias)
    given = {"prior": prior.bias_precision, "free": lambda b: 0.0, "none": lambda b: np.inf}
    found = np.array([given[problem.bias](float(b)) for b in biases])
    values: dict[str, Any] = {
        "precision": (("basis", *scores), prior.weight_precision(result.weight)),
        "bias_precision": (scores, found if scores else found[0]),
    }
    if problem.moves is not None:
        values["width"] = (("feature",)[: np.ndim(result.width)], result.width)
    return values


@contextmanager
def _em_progress(options: EMOptions, show: bool) -> Iterator[Any]:
    """Yield a callback that shows EM's progress, with a forecast of its last iteration."""
    texts = (
        "iteration {task.completed}{task.fields[of]}",
        "log posterior {task.fields[value]:.4f}, {task.fields[active]} active",
    )
    forecast = Forecast(options.tol, options.max_iter)
    with progress_bars(show, "EM", *texts) as bars:
        task = bars.add_task("", total=None, of="", value=np.nan, active=0)

        def report(n_iter: int, state: EMState) -> None:
            total = forecast(n_iter, state.latent)
            of = "" if total is None else f" of about {total}"
            now: dict[str, Any] = {"value": state.log_posterior, "active": state.n_active}
            bars.update(task, completed=n_iter, total=total, of=of, **now)

        yield report if show else None
