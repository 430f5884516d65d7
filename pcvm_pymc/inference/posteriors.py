"""What is made of posterior draws: their precisions and their log prior."""

import io
from contextlib import redirect_stdout

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats import compute_log_prior

from pcvm_pymc.core.pieces.validation import check_seed
from pcvm_pymc.inference.results import check_result, observed_and_constant_data
from pcvm_pymc.model.data import as_model

_NEEDED = "the model that it was drawn from, with the data that this has now"


def draw_precisions(
    posterior: xr.DataTree, *, random_seed: int | np.random.Generator | None = None
) -> xr.DataTree:
    """Draw the precisions that were integrated out, one set for each posterior draw.

    ``alpha_i | w ~ Gamma(c + 1/2, d + w_i^2 / 2)`` and ``beta | b ~ Gamma(e + 1/2, f + b^2 / 2)``
    (Chen et al. 2009, appendix A); where the C weights of a basis share one, ``Gamma(c + C/2, d +
    ||w_i||^2 / 2)``.

    Parameters
    ----------
    posterior : DataTree
        From `sample` or `pymc.sample`, of a model with a `Hyperprior`.
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    DataTree
        A copy whose group ``posterior`` also has ``precision`` and, of a bias, ``bias_precision``.

    Raises
    ------
    ValueError
        If the model has no Gamma precisions.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> result = find_map_em(model, progressbar=False)
    >>> drawn = draw_precisions(result, random_seed=1)["posterior"]
    >>> drawn["precision"].dims
    ('chain', 'draw', 'basis')
    """
    check_result(posterior, "posterior")
    check_seed("random_seed", random_seed)
    constants = posterior["constant_data"]
    if "hyperparameter" not in constants.coords:
        raise ValueError(
            "posterior does not name its hyperprior; needed one of a model from a builder"
        )
    names = constants["hyperparameter"].values.tolist()
    value = dict(zip(names, constants["hyperprior"].values, strict=True))
    if "c" not in value:
        raise ValueError("the model has a HalfHorseshoe, without precisions; needed a Hyperprior")
    rng = np.random.default_rng(random_seed)
    draws = posterior["posterior"].to_dataset()
    rate = draws["rate"] if "rate" in draws else value["d"]
    n_scores, square = value.get("n_scores", 1.0), draws["weight"] ** 2
    if n_scores > 1:
        square = square.sum("class")
    tree = posterior.copy()
    drawn = {"precision": _gamma(value["c"] + 0.5 * n_scores, rate + square / 2, rng)}
    if "bias" in draws:
        drawn["bias_precision"] = _gamma(value["e"] + 0.5, value["f"] + draws["bias"] ** 2 / 2, rng)
    tree["posterior"] = draws.assign(drawn)
    return tree


def _gamma(shape: float, rate: xr.DataArray, rng: np.random.Generator) -> xr.DataArray:
    return rng.gamma(shape, size=rate.shape) / rate


def add_log_prior(result: xr.DataTree, model: pm.Model | None = None) -> xr.DataTree:
    """Return a result with the log prior densities of its draws, which ``arviz.psense`` asks for.

    Parameters
    ----------
    result : DataTree
        From `sample` or `pymc.sample`.
    model : pm.Model, optional
        That it was drawn from; default: the model on the context stack.

    Returns
    -------
    DataTree
        A copy with the group ``log_prior``: of each free variable of the model, element by element, as
        `pymc.stats.compute_log_prior` has it. Each size's density is normalised on its half-line, its
        precision integrated out where the model has none; a learned scale is a variable of its own.

    Raises
    ------
    ValueError
        If the result lacks a free variable of the model, or its data are others.

    References
    ----------
    N. Kallioinen et al. (2024), "Detecting and diagnosing prior and likelihood sensitivity with
    power-scaling", Statistics and Computing 34.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import Hyperprior, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, hyperprior=Hyperprior.plug_in())
    >>> fast = {"draws": 10, "max_sweeps": 100, "quiet": True}
    >>> draws = sample(model, random_seed=1, **fast)
    >>> result = add_log_prior(draws, model)
    >>> sorted(result["log_prior"].data_vars)
    ['bias', 'magnitude']
    """
    check_result(result, "result", "observed_data")
    model = as_model(model)
    _check_same_model(result, model)
    tree = result.copy()
    with redirect_stdout(io.StringIO()):  # PyMC 6.3's bar, off as it is, ends in an empty line
        tree["log_prior"] = compute_log_prior(
            tree, model=model, extend_inferencedata=False, progressbar=False
        )
    return tree


def _check_same_model(result: xr.DataTree, model: pm.Model) -> None:
    lacking = sorted({rv.name for rv in model.free_RVs} - set(result["posterior"].data_vars))
    if lacking:
        raise ValueError(f"result has no draws of {lacking}; needed {_NEEDED}")
    for group, data in observed_and_constant_data(model).items():
        known = result[group].to_dataset()
        for name, value in data.data_vars.items():
            if name not in known or not np.array_equal(known[name].values, value.values):
                raise ValueError(
                    f"result has other values of {name!r} in {group} than the model; needed {_NEEDED}"
                )
