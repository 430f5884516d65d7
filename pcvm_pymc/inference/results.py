"""Results as `xarray.DataTree`, in the groups that PyMC and `pymc_extras.find_MAP` use."""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pcvm_pymc.core.em.binary import EMOptions, EMResult
from pcvm_pymc.core.em.mpcvm import ClassResult
from pcvm_pymc.core.evidence import EvidenceResult
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model.mpcvm import has_several_classes
from pcvm_pymc.model.rvm import likelihood_of
from pcvm_pymc.model.steps import has_free_width, hyperprior_of

__all__ = [
    "classes_of",
    "classes_to_datatree",
    "em_to_datatree",
    "evidence_to_datatree",
    "load",
    "observed_and_constant_data",
    "record_model",
    "save",
    "weights_of",
    "with_classes",
]

_DATA = (
    "centres",
    "signs",
    "hyperprior",
    "width",
    "kernel_width",
    "noise",
    "Phi",
    "squared_distance",
    "X",
)


def em_to_datatree(
    model: pm.Model, result: EMResult, options: EMOptions, seconds: float
) -> xr.DataTree:
    """Pack a MAP estimate.

    Returns
    -------
    DataTree
        Groups ``posterior`` (one chain, one draw: ``magnitude``, ``weight``, ``bias``, ``latent``,
        ``precision`` and ``bias_precision`` as their conditional means, ``width`` if it is free),
        ``optimizer_result``, ``em_trace``, ``observed_data`` and ``constant_data``.
    """
    coords = {name: np.asarray(model.coords[name]) for name in ("basis", "obs")}
    tree = xr.DataTree.from_dict(
        {
            "posterior": _posterior(model, result, coords),
            "optimizer_result": _optimizer_result(result, options, seconds),
            "em_trace": _trace(result),
            **observed_and_constant_data(model),
        }
    )
    return record_model(tree, model)


def classes_to_datatree(
    model: pm.Model, result: ClassResult, options: EMOptions, seconds: float
) -> xr.DataTree:
    """Pack a MAP estimate of several classes, in the groups of `em_to_datatree`."""
    coords = {name: np.asarray(model.coords[name]) for name in ("basis", "obs", "class")}
    hyperprior, weights = hyperprior_of(model), ("basis", "class")
    values = {
        "weight": (weights, result.weight),
        "bias": ("class", result.bias),
        "latent": (("obs", "class"), result.latent),
        "precision": (weights, hyperprior.weight_precision(result.weight)),
        "bias_precision": ("class", [hyperprior.bias_precision(b) for b in result.bias]),
    }
    if "signs" in model.named_vars:
        values["magnitude"] = (weights, np.abs(result.weight))
    tree = xr.DataTree.from_dict(
        {
            "posterior": _one_draw(values, coords),
            "optimizer_result": _optimizer_result(result, options, seconds),
            "em_trace": _trace(result),
            **observed_and_constant_data(model),
        }
    )
    return record_model(tree, model)


def _posterior(model: pm.Model, result: EMResult, coords: dict[str, Array]) -> xr.Dataset:
    hyperprior = hyperprior_of(model)
    free_bias = "bias" in model.named_vars and isinstance(
        model["bias"].owner.op, type(pm.Flat.rv_op)
    )
    values: dict[str, tuple[str | None, Any]] = {
        "magnitude": ("basis", np.abs(result.weight)),
        "weight": ("basis", result.weight),
        "bias": (None, result.bias),
        "latent": ("obs", result.latent),
        "precision": ("basis", hyperprior.weight_precision(result.weight)),
        "bias_precision": (None, 0.0 if free_bias else hyperprior.bias_precision(result.bias)),
    }
    if has_free_width(model):
        values["width"] = (None, result.width)
    return _one_draw(values, coords)


def _one_draw(
    values: Mapping[str, tuple[str | tuple[str, ...] | None, Any]], coords: dict[str, Array]
) -> xr.Dataset:
    """Return named values with their dimensions as one chain of one draw."""
    variables = {
        name: (
            ("chain", "draw", *((dim,) if isinstance(dim, str) else dim or ())),
            np.asarray(value)[None, None],
        )
        for name, (dim, value) in values.items()
    }
    return xr.Dataset(
        variables,
        {"chain": [0], "draw": [0], **coords},
        {"inference_library": "pcvm_pymc", "inference_library_version": version("pcvm_pymc")},
    )


def evidence_to_datatree(
    model: pm.Model, result: EvidenceResult, method: str, seconds: float
) -> xr.DataTree:
    """Pack a fit of maximal evidence.

    Returns
    -------
    DataTree
        Groups ``posterior`` (one chain, one draw: ``weight``, ``bias``, ``latent``, the estimated
        ``precision``, ``bias_precision`` and ``noise``), ``fit``, ``optimizer_result``,
        ``evidence_trace``, ``observed_data`` and ``constant_data``.
    """
    coords = {name: np.asarray(model.coords[name]) for name in ("basis", "obs")}
    values: dict[str, tuple[str | None, Any]] = {
        "weight": ("basis", result.weight),
        "bias": (None, result.bias),
        "latent": ("obs", result.latent),
        "precision": ("basis", result.alpha),
        "bias_precision": (None, result.bias_alpha),
    }
    if not np.isnan(result.noise):
        values["noise"] = (None, result.noise)
    tree = xr.DataTree.from_dict(
        {
            "posterior": _one_draw(values, coords),
            "fit": _normal_posterior(result, coords["basis"]),
            "optimizer_result": _evidence_summary(result, method, seconds),
            "evidence_trace": _evidence_trace(result),
            **observed_and_constant_data(model),
        }
    )
    return record_model(tree, model)


def _normal_posterior(result: EvidenceResult, basis: Array) -> xr.Dataset:
    """Return mean and covariance of the kept weights and the bias, named as `pymc_extras` does."""
    rows = [*(f"weight[{name}]" for name in basis[result.active]), "bias"]
    return xr.Dataset(
        {
            "mean_vector": ("rows", np.append(result.weight[result.active], result.bias)),
            "covariance_matrix": (("rows", "columns"), result.covariance),
        },
        {"rows": rows, "columns": rows},
    )


def _evidence_summary(result: EvidenceResult, method: str, seconds: float) -> xr.Dataset:
    return xr.Dataset(
        {
            "success": result.converged,
            "status": result.status.name,
            "message": result.status.value,
            "fun": -result.log_evidence,
            "log_evidence": result.log_evidence,
            "nit": result.n_iter,
            "n_active": len(result.active),
            "method": f"evidence ({method})",
            "seconds": seconds,
        }
    )


def _evidence_trace(result: EvidenceResult) -> xr.Dataset:
    trace = result.trace
    return xr.Dataset(
        {
            name: ("iteration", getattr(trace, name))
            for name in ("log_evidence", "n_active", "noise")
        },
        {"iteration": np.arange(len(trace.log_evidence))},
    )


def _optimizer_result(
    result: EMResult | ClassResult, options: EMOptions, seconds: float
) -> xr.Dataset:
    return xr.Dataset(
        {
            "success": result.converged,
            "status": result.status.name,
            "message": result.status.value,
            "fun": -result.log_posterior,
            "log_posterior": result.log_posterior,
            "nit": result.n_iter,
            "n_active": int(np.count_nonzero(result.weight)),
            "method": f"EM ({options.update})",
            "seconds": seconds,
        }
    )


def _trace(result: EMResult | ClassResult) -> xr.Dataset:
    trace = result.trace
    return xr.Dataset(
        {
            name: ("iteration", getattr(trace, name))
            for name in ("log_posterior", "n_active", "change", "width")
            if hasattr(trace, name)
        },
        {"iteration": np.arange(len(trace.log_posterior))},
    )


def observed_and_constant_data(model: pm.Model) -> dict[str, xr.Dataset]:
    """Return the groups of a model's labels or targets and of its other data."""
    name = "target" if "target" in model.named_vars else "label"
    values = np.asarray(model["y"].get_value())
    observed = xr.Dataset({name: ("obs", values)}, {"obs": np.asarray(model.coords["obs"])})
    return {"observed_data": observed, "constant_data": _constant_data(model)}


def _constant_data(model: pm.Model) -> xr.Dataset:
    names = [name for name in _DATA if name in {v.name for v in model.data_vars}]
    dims = {name: model.named_vars_to_dims.get(name, ()) for name in names}
    used = {dim for name in names for dim in dims[name]}
    return xr.Dataset(
        {name: (dims[name], np.asarray(model[name].get_value())) for name in names},
        {dim: list(model.coords[dim]) for dim in used if model.coords.get(dim) is not None},
    )


def record_model(tree: xr.DataTree, model: pm.Model) -> xr.DataTree:
    """Write into a tree's attributes what a prediction needs beside the arrays: classes, likelihood."""
    if {"label", "target"} & set(model.named_vars):
        several = has_several_classes(model)
        tree.attrs["likelihood"] = "multinomial probit" if several else likelihood_of(model)
    if "class" in model.coords:
        return with_classes(tree, np.asarray(model.coords["class"]))
    return tree


def with_classes(tree: xr.DataTree, classes: np.ndarray) -> xr.DataTree:
    """Write the classes into a tree's attributes."""
    tree.attrs["classes"] = json.dumps(classes.tolist())
    return tree


def classes_of(tree: xr.DataTree) -> np.ndarray:
    """Return the classes of a result; 0 and 1 where it does not hold them."""
    return np.asarray(json.loads(tree.attrs.get("classes", "[0, 1]")))


def weights_of(tree: xr.DataTree) -> tuple[Array, Array]:
    """Return a result's draws of the weights, shape (n_draws, n_basis), and bias, (n_draws,).

    Of several classes both have one more dimension, the class.
    """
    posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    weight = posterior["weight"].transpose("sample", "basis", ...).values
    return weight, posterior["bias"].transpose("sample", ...).values


def save(tree: xr.DataTree, path: str | Path) -> Path:
    """Write a result as Zarr; a store of that name is replaced once the new one is complete.

    Parameters
    ----------
    tree : DataTree
    path : path

    Returns
    -------
    Path
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _quiet_storage():
        tree.to_zarr(str(partial), mode="w")
    if path.exists():
        shutil.rmtree(path)
    partial.rename(path)
    return path


def load(path: str | Path) -> xr.DataTree:
    """Read a result that `save` (or ArviZ) wrote as Zarr, into memory."""
    with _quiet_storage():
        return xr.open_datatree(str(path), engine="zarr").load()


@contextmanager
def _quiet_storage() -> Iterator[None]:
    """Silence Zarr's note that version 3 has no specification of consolidated metadata yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        yield
