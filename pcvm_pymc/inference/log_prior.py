"""The log prior of a result's draws, for sensitivity by power scaling."""

import io
from contextlib import redirect_stdout

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats import compute_log_prior

from pcvm_pymc.inference.results import check_result, observed_and_constant_data
from pcvm_pymc.model.data import as_model

_NEEDED = "the model that it was drawn from, with the data that this has now"


def add_log_prior(result: xr.DataTree, model: pm.Model | None = None) -> xr.DataTree:
    """Return a result with the log prior densities of its draws, which ``arviz.psense`` asks for.

    Parameters
    ----------
    result : DataTree
        From `sample`, `approximate` or `pymc.sample`.
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
    >>> from pcvm_pymc import Hyperprior, approximate, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, hyperprior=Hyperprior.plug_in())
    >>> result = add_log_prior(approximate(model, draws=10, random_seed=1), model)
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
            same = name in known and np.array_equal(known[name].values, value.values)
            if not same and (name not in known or not known[name].equals(value)):
                raise ValueError(
                    f"result has other values of {name!r} in {group} than the model; needed {_NEEDED}"
                )
