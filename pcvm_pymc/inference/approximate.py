"""Fast approximations of the posterior, packed as `sample` packs its draws."""

import logging
import time
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

from pcvm_pymc.core.approximation import PropagationOptions, SignedRows, fit_laplace, propagate
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.pieces.probit import log_ndtr
from pcvm_pymc.core.pieces.validation import check_choice, check_real, check_seed, check_whole
from pcvm_pymc.inference.results import Values, draws_to_datatree, record_model
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.read import read

_log = logging.getLogger(__name__)

type Seed = int | np.random.Generator | None

_MODE_TOLERANCE = 1e-8  # of the latent function: the slope at the mode is part of the expansion


def approximate(
    model: pm.Model | None = None,
    *,
    method: Literal["laplace", "ep"] = "ep",
    draws: int = 1000,
    max_iter: int | None = None,
    tol: float | None = None,
    damping: float | None = None,
    random_seed: Seed = None,
) -> xr.DataTree:
    """Approximate the posterior of a PCVM of two classes by a normal distribution truncated to the signs.

    Precisions are integrated out, the signs are exact, and no weight is put at zero.

    Parameters
    ----------
    model : pm.Model, optional
        From `pcvm_model`, with the probit, a known width and a proper `Hyperprior` of fixed scale
        (``hyperprior="default"``); default: the model on the context stack.
    method : {"laplace", "ep"}
        ``"laplace"`` expands the log posterior at its mode under the signs to second order
        (`pcvm_pymc.core.approximation.fit_laplace`). ``"ep"`` is expectation propagation
        (`pcvm_pymc.core.approximation.propagate`), which matches means and variances and also
        approximates the log evidence.
    draws : int
    max_iter : int, optional
        Iterations of the EM that finds the mode, default 10,000; rounds of expectation propagation,
        default 1000.
    tol : float, optional
        As in `EMOptions`, default 1e-8; as in `PropagationOptions`, default 1e-7.
    damping : float, optional
        Of ``"ep"`` alone: share of the way that a site goes in a round, default 0.7.
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    DataTree
        Groups as `sample` has them, one chain: ``posterior`` (``weight``, ``magnitude``, ``bias``,
        ``latent``), ``log_likelihood``, ``observed_data``, ``constant_data``, and for ``"ep"``
        ``approximation_trace`` (distance from the fixed point and damping, each round). The
        draws are of a truncated normal distribution, Laplace's or the one whose expectation propagation has
        the same fixed point as the posterior's; they come from a Markov chain that is exact for it, with
        little correlation. Attributes of ``posterior``: ``method``, ``converged`` (1 or 0), ``iterations``,
        ``log_evidence`` and ``held_sites`` (``"ep"``), ``prior_curvature``
        (``"laplace"``), ``seconds`` of the fit without the draws.

    Raises
    ------
    ValueError
        If the model is another, the hyperprior improper or of unknown scale, or an argument is out of range
        or without effect.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2014), "Efficient probabilistic classification vector machine with
    incremental basis function selection", IEEE TNNLS 25(2), takes both given the precisions, which it
    maximises over.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, hyperprior="default")
    >>> result = approximate(model, draws=200, random_seed=1)
    >>> bool((result["posterior"]["magnitude"] >= 0).all()), result["posterior"].attrs["converged"]
    (True, 1)
    """
    model = as_model(model)
    check_choice("method", method, ("laplace", "ep"))
    check_whole("draws", draws, 1)
    check_whole("max_iter", max_iter, 1, also=(None,))
    check_real("tol", tol, also=(None,))
    check_seed("random_seed", random_seed)
    given = {"max_iter": max_iter, "tol": tol, "damping": damping}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if method == "laplace" and damping is not None:
        raise ValueError(f"damping={damping} has no effect on 'laplace'; leave it out, or use 'ep'")
    fitted = (
        PropagationOptions(**options)
        if method == "ep"
        else EMOptions(**{"tol": _MODE_TOLERANCE} | options)
    )
    problem = read(model)
    rows, rng = SignedRows.of(problem), np.random.default_rng(random_seed)
    began = time.perf_counter()
    fit: Any
    ended: Any
    if isinstance(fitted, PropagationOptions):
        fit = ended = propagate(rows, fitted)
        name = "expectation propagation"
        own = {"log_evidence": fit.log_evidence, "held_sites": fit.n_held}
    else:
        ended = fit_em(problem, Start.default(problem), fitted)
        fit = fit_laplace(rows, np.append(np.abs(ended.weight), ended.bias))
        name, own = "Laplace", {"prior_curvature": "exact" if fit.is_exact else "expected"}
    seconds = time.perf_counter() - began
    if not ended.converged:
        _log.warning("%s stopped: %s; raise max_iter or tol", name, ended.status.value)
    theta = fit.draws(rng, draws)[None]
    size, latent = theta[..., :-1], rows.latent(theta[0])[None]
    values: Values = {
        "magnitude": ("basis", size),
        "weight": ("basis", size * rows.sign),
        "bias": ((), theta[..., -1]),
        "latent": ("obs", latent),
    }
    tree = draws_to_datatree(
        model,
        values,
        log_ndtr(rows.label * latent),
        sampler=name,
        method=method,
        converged=int(ended.converged),
        iterations=ended.n_iter,
        seconds=seconds,
        **own,
    )
    if method == "ep":
        trace = {"change": ("iteration", fit.change), "damping": ("iteration", fit.step)}
        tree["approximation_trace"] = xr.Dataset(trace, {"iteration": np.arange(fit.n_iter)})
    return record_model(tree, model)
