"""Results as `xarray.DataTree`, in the groups that PyMC and `pymc_extras.find_MAP` use."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.family import FAMILY, System, check_solver, systems_of
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.priors import hyperprior_from
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, check_instance
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.inference.display import Result
from pcvm_pymc.inference.names import DIMS, NAMES, under_our_names
from pcvm_pymc.model.bases import RANDOM_KERNEL, AnyKernel, recall_kernel
from pcvm_pymc.model.coordinates import storable
from pcvm_pymc.model.data import OF_ROWS
from pcvm_pymc.model.graphs import numbers, peeled, random_parts
from pcvm_pymc.model.names import Names, latent_functions
from pcvm_pymc.model.parts import without_data
from pcvm_pymc.model.read import Reading

_OWN = "own_terms"  # the attribute of results whose model has more than the family's

type Values = Mapping[str, tuple[tuple[str, ...], Any]]


# --- packing -----------------------------------------------------------------------------------


def pack(reading: Reading, values: Values, groups: Mapping[str, Any], **attrs: Any) -> xr.DataTree:
    """Pack draws as a DataTree with the groups of `pymc.sample`, the model's data and its pieces.

    Parameters
    ----------
    reading : Reading
    values : mapping of str to (dims, array_like)
        Of the group ``posterior``: dims are those after ``chain`` and ``draw``, first in every value.
    groups : mapping of str to Dataset, or to values as above
        Further groups.
    **attrs
        Attributes of ``posterior``, in addition to the library's name and version.
    """

    def dataset(values: Any) -> xr.Dataset:
        if isinstance(values, xr.Dataset):
            return values
        out = xr.Dataset({key: (("chain", "draw", *dims), x) for key, (dims, x) in values.items()})
        coords: dict[Any, Any] = {name: np.arange(out.sizes[name]) for name in ("chain", "draw")}
        for name, known in reading.model.coords.items():
            if known is not None and name in out.dims:
                coords[name] = storable(known, name)
        library = {"inference_library": "pcvm_pymc"}
        library["inference_library_version"] = version("pcvm_pymc")
        return out.assign_coords(coords).assign_attrs(library)

    datasets = {name: dataset(group) for name, group in {"posterior": values, **groups}.items()}
    datasets["posterior"].attrs |= attrs
    tree = Result.from_dict({**datasets, **observed_and_constant_data(reading)})
    return record_model(tree, reading)


def model_names(reading: Reading) -> dict[str, str]:
    """Return a model's names of variables and data, by the names that a builder gives them.

    They are those of its parts, and of the one latent function that a builder has added to it.
    """
    model, parts, functions = reading.model, reading.parts, latent_functions(reading.model)
    names: dict[str, Any] = {}
    if len(functions) == 1:
        known = Names(model, functions[0]).known
        names = {key: known(key) for key in DIMS} | {"latent": functions[0]}
    names = {key: name for key, name in names.items() if name in model.named_vars}
    if parts is None:
        return names
    made, made_width = {peeled(x): x for x in model.deterministics}, parts.made_width(model)
    roles = {
        **dict(zip(("X", "centres"), parts.data, strict=False)),
        "latent": made.get(peeled(parts.latent)),
        "weight": made.get(peeled(parts.signed_weight)),
        "target" if parts.likelihood.targets == "numbers" else "label": parts.observed,
        "bias": parts.bias,
        "rate": parts.rate,
        **parts.nuisances,
        "width": parts.width if made_width is None else made_width,
        "weight" if parts.sign is None else "magnitude": parts.weight,
    }
    of_parts = {key: getattr(x, "name", None) for key, x in roles.items()}
    return names | {key: str(x) for key, x in of_parts.items() if x in model.named_vars}


def under_model_names(reading: Reading, values: Values) -> dict[str, Any]:
    """Rename values and their dims from a builder's names to the model's."""
    names, own = model_names(reading), dict[str, Any]()
    for key, name in names.items():
        dims = reading.model.named_vars_to_dims.get(name, ())
        own |= zip(DIMS.get(key, ()), dims, strict=False)
    return {
        names.get(key, key): (tuple(own.get(dim) or dim for dim in dims), value)
        for key, (dims, value) in values.items()
    }


def point_values(reading: Reading, result: Any, values: Values) -> dict[str, Any]:
    """Return weights, bias and latent function of a point or draws, under the model's names.

    Parameters
    ----------
    reading : Reading
    result : EMResult or EvidenceResult, or draws by the same names
    values : mapping of str to (dims, array_like)
        What there is besides ``weight``, ``bias``, ``latent`` and, of signed weights, ``magnitude``.
    """
    scores = ("class",) if reading.problem.n_scores > 1 else ()
    known = {
        "weight": (("basis", *scores), result.weight),
        "bias": (scores, result.bias),
        "latent": (("obs", *scores), result.latent),
        **values,
    }
    if reading.problem.is_signed:
        known["magnitude"] = (("basis", *scores), np.abs(result.weight))
    return under_model_names(reading, known)


def own_values(model: pm.Model, point: Mapping[str, Any]) -> Values:
    """Evaluate all free variables and deterministics of a model at a point."""
    wanted = [*model.free_RVs, *model.deterministics]
    outputs = model.replace_rvs_by_values(wanted)
    values = model.compile_fn(outputs, on_unused_input="ignore", mode="FAST_COMPILE")(point)
    own = {}
    for rv, value in zip(wanted, values, strict=True):
        dims = model.named_vars_to_dims.get(rv.name) or [None] * np.ndim(value)
        own[rv.name] = tuple(d or f"{rv.name}_dim_{i}" for i, d in enumerate(dims)), value
    return own


def pack_point(
    reading: Reading,
    values: Values,
    result: Any,
    groups: Mapping[str, Any],
    *,
    trace: str,
    **how: Any,
) -> xr.DataTree:
    """Pack a point estimate, how the solver ended, and its trace as a DataTree.

    Parameters
    ----------
    reading : Reading
    values : mapping of str to (dims, array_like)
        From `point_values` or `own_values`.
    result : EMResult, EvidenceResult or OwnResult
    groups : mapping of str to Dataset
        Further groups.
    trace : str
        Name of the group of the iterations.
    **how
        Further numbers of the group ``optimizer_result``.

    Returns
    -------
    DataTree
        Groups ``posterior`` (one chain, one draw), ``optimizer_result``, the trace, ``observed_data`` and
        ``constant_data``.
    """
    one_draw = {key: (dims, np.asarray(x)[None, None]) for key, (dims, x) in values.items()}
    objective = "log_evidence" if hasattr(result, "log_evidence") else "log_posterior"
    end = float(getattr(result, objective))
    summary = {
        "success": result.converged,
        "status": result.status.name,
        "message": result.status.value,
        "fun": -end,
        objective: end,
        "nit": result.n_iter,
        **how,
    }
    columns = {name: np.asarray(value) for name, value in vars(result.trace).items()}
    steps = xr.Dataset({key: (("iteration", "feature")[: x.ndim], x) for key, x in columns.items()})
    steps = steps.assign_coords(iteration=np.arange(steps.sizes["iteration"]))
    ends = {"optimizer_result": xr.Dataset(summary), trace: steps}
    return pack(reading, one_draw, {**ends, **groups})


def observed_and_constant_data(reading: Reading) -> dict[str, xr.Dataset]:
    """Return the groups ``observed_data`` and ``constant_data`` of a model, as `pymc.sample` has them."""
    tree = pm.to_inference_data(prior={}, model=reading.model)
    groups = {name: xr.Dataset() for name in ("observed_data", "constant_data")}
    for name in groups.keys() & tree.children:
        groups[name] = tree[name].to_dataset().drop_attrs(deep=False)
    if reading.parts is not None:
        groups["observed_data"] = groups["observed_data"][[reading.parts.observed.name]]
        if reading.is_declared:  # whose builder has them as data, too
            groups["constant_data"] = groups["constant_data"].drop_vars("y", errors="ignore")
    return groups


# --- what a result remembers -------------------------------------------------------------------


def check_result(tree: Any, name: str, *groups: str) -> xr.DataTree:
    """Return a result under a builder's names; raise unless it has ``posterior`` and ``constant_data``.

    Parameters
    ----------
    tree : object
    name : str
        Of the argument.
    *groups : str
        Groups besides ``posterior`` and ``constant_data``.

    Raises
    ------
    ValueError
    """
    needed = "a DataTree from find_map_em, fit_evidence, sample or pymc.sample"
    check_instance(name, tree, xr.DataTree, needed)
    wanted = ("posterior", "constant_data", *groups)
    lacking = [group for group in wanted if group not in tree.children]
    if lacking:
        raise ValueError(f"{name} lacks {', '.join(lacking)}; needed {needed}")
    return under_our_names(tree)


def record_model(tree: xr.DataTree, reading: Reading) -> xr.DataTree:
    """Store a model's classes, likelihood, prior and kernel in the attributes of a result.

    The attribute ``pieces`` is JSON: ``rows`` (keys in `FAMILY`), ``likelihood`` and ``prior`` (name and
    numbers), ``kernel`` (name and width; null without one), ``bias`` and ``shared`` (as `Problem` has them).
    A model that is not of the family has none. The attribute ``own_terms`` names what else a model has, and
    ``names`` what it calls the variables of its one latent function, where these are not a builder's names.
    """
    model, parts, names = reading.model, reading.parts, model_names(reading)
    if "class" in model.coords:
        classes = storable(model.coords["class"], "the dim 'class'")
        if classes.dtype.kind in "mM":  # JSON has no dates
            tree.attrs["classes_dtype"] = classes.dtype.str
            classes = classes.view(np.int64)
        tree.attrs["classes"] = json.dumps(classes.tolist())
    latent = tree["posterior"].get(names.get("latent", "latent"))
    differ = any(key != name for key, name in names.items())
    if "latent" in names and latent is not None and (differ or latent.dims[2:3] != ("obs",)):
        tree.attrs[NAMES] = json.dumps(names)
    wanted = {"weight", "latent"}
    if parts is not None:
        wanted |= {*parts.nuisances, *([] if parts.bias is None else ["bias"])}
    if parts is None or not wanted <= {*under_our_names(tree)["posterior"].data_vars}:
        tree.attrs[_OWN] = "yes"
        return tree
    if reading.extra:
        tree.attrs[_OWN] = ", ".join(reading.extra)
    data = tree["constant_data"].to_dataset()
    if not random_parts(parts.Phi):
        data = data.assign(Phi=(("obs", "basis"), numbers(parts.Phi)))
    for name in OF_ROWS:
        if (x := getattr(parts, name)) is not None:
            data = data.assign({name: ("obs", np.broadcast_to(numbers(x), data.sizes["obs"]))})
    tree["constant_data"] = data
    widths = (numbers(x).tolist() for x in parts.data[2:] if x in model.data_vars)
    kernel = model.coords.get(names.get("kernel_name", "kernel").removesuffix("_name"))
    problem = parts.pieces
    pieces = {
        "rows": [key for key, row in FAMILY.items() if row.admits(problem)],
        "likelihood": _as_record(parts.likelihood),
        "prior": _as_record(parts.hyperprior),
        "kernel": None if kernel is None else {"name": str(kernel[0]), "width": next(widths, None)},
        "bias": problem.bias,
        "shared": problem.shared,
    }
    tree.attrs["pieces"] = json.dumps(pieces)
    return tree


def _as_record(piece: Any) -> dict[str, Any]:
    """Return a piece's name and its known parameters."""
    known = {key: x for key, x in asdict(piece).items() if x is not None and not np.isnan(x)}
    return {"name": piece.name, **known}


def tells_likelihood(tree: xr.DataTree) -> bool:
    """Whether a result stores its likelihood: one of a model without user-defined terms."""
    return "pieces" in tree.attrs or (
        _OWN not in tree.attrs and "likelihood_name" in tree["constant_data"]
    )


def check_refits(tree: xr.DataTree) -> None:
    """Raise where refits from a result would leave out terms of its model."""
    likelihood_of(tree)
    if _OWN in tree.attrs:
        raise ValueError(
            f"the result's model also has {tree.attrs[_OWN]}, which refits would leave out; needed a "
            "builder's model alone, or psis_loo(posterior)"
        )


def classes_of(tree: xr.DataTree) -> np.ndarray:
    """Return the classes of a result; 0 and 1 where they are not recorded."""
    classes = np.asarray(json.loads(tree.attrs.get("classes", "[0, 1]")))
    return classes.view(tree.attrs.get("classes_dtype", classes.dtype))


def likelihood_of(tree: xr.DataTree) -> Likelihood:
    """Return the likelihood of a result's model; its numbers that were drawn are in `nuisance_of`.

    A plain result of `pymc.sample` names it among its data.

    Raises
    ------
    ValueError
        If it has none: the model has user-defined terms, or such a likelihood.
    """
    if not tells_likelihood(tree):
        raise ValueError(
            "the result is of a model with user-defined terms, which are not in its latent function; needed "
            "a builder's model, psis_loo, or model= of compare and kfold; pm.set_data(**new_data(model, X))"
        )
    if "pieces" in tree.attrs:
        numbers = dict(json.loads(tree.attrs["pieces"])["likelihood"])
        return LIKELIHOODS[numbers.pop("name")](**numbers)
    constants = tree["constant_data"]
    likelihood = LIKELIHOODS[constants["likelihood"].item()]
    if likelihood.targets == "classes":
        return likelihood(tree["posterior"].sizes["class"])
    known = [field.name for field in fields(likelihood) if field.name in constants]
    return likelihood(**{name: float(constants[name]) for name in known})


def rows_of(tree: xr.DataTree) -> tuple[Problem, tuple[System, ...]]:
    """Return the pieces of a result's model, without its data, and the rows of `FAMILY` that fit it.

    Where weights share a precision, or have one each, rows of the other kind are left out.

    Raises
    ------
    ValueError
        If it is of no row.
    """
    data = tree["constant_data"].to_dataset()
    pieces = json.loads(tree.attrs.get("pieces", "{}"))
    lacking = [name for name in ("hyperprior", "hyperparameter") if name not in data.variables]
    if lacking:
        raise ValueError(f"the result lacks {', '.join(lacking)}; needed one of a builder's model")
    sign = data["signs"].values if "signs" in data else None
    prior = hyperprior_from(data["hyperparameter"].values, data["hyperprior"].values)
    problem = without_data(sign, prior, likelihood_of(tree), pieces.get("bias", "prior"))
    rows = tuple(row for row in systems_of(problem) if row.shared == problem.shared)
    if not rows:
        check_solver(problem, "nuts")  # it names the pieces
    return problem, rows


def target_of(tree: xr.DataTree) -> NDArray[Any]:
    """Return what was observed as likelihoods have it: labels -1. and +1., numbers of classes, or numbers."""
    (observed,) = tree["observed_data"].to_dataset().data_vars.values()
    kind = likelihood_of(tree).targets
    if kind == "labels":
        return np.where(observed.values > 0, 1.0, -1.0)
    return observed.values.astype(np.int64 if kind == "classes" else float)


def inputs_of(tree: xr.DataTree, X: ArrayLike | None = None) -> Array:
    """Return the training inputs that are given, or in a result; where it has none, its centres.

    Raises
    ------
    ValueError
        If there are not as many as training rows.
    """
    data, n_obs = tree["constant_data"].to_dataset(), len(target_of(tree))
    known = data["X" if "X" in data else "centres"].values
    inputs = known if X is None else as_features(X, n_features=known.shape[1])
    if len(inputs) != n_obs:
        what = "its bases" if X is None else "X"
        fault = f"the result has {n_obs} rows and {what} {len(inputs)}"
        raise ValueError(f"{fault}; needed the training inputs as X")
    return inputs


def nuisance_of(tree: xr.DataTree) -> dict[str, Array]:
    """Return the likelihood's parameters that were drawn, by name, shape (n_chains, n_draws) each."""
    posterior = tree["posterior"]
    names = [field.name for field in fields(likelihood_of(tree)) if field.name in posterior]
    return {name: posterior[name].transpose("chain", "draw").values for name in names}


def kernel_of(tree: xr.DataTree, kernel: AnyKernel | None = None) -> KernelPiece:
    """Return the kernel of a result's model, of its width where that is known.

    Parameters
    ----------
    tree : DataTree
    kernel : str, callable, KernelPiece or pm.gp.cov.Covariance, optional
        Needed where the model's is a function or a covariance, which are not stored.

    Raises
    ------
    ValueError
        If it is needed, is not the model's, or the model has none.
    """
    data = tree["constant_data"].to_dataset()
    if "centres" not in data:
        raise ValueError("the model has no kernel, hence no centres; needed features='kernel'")
    if not {"kernel", "width"} & {*data.variables, *tree["posterior"].data_vars}:
        raise ValueError(RANDOM_KERNEL)
    return recall_kernel(data, kernel)


def weights_of(tree: xr.DataTree) -> tuple[Array, Array]:
    """Return a result's draws of the weights, shape (n_draws, n_basis), and bias, (n_draws,).

    Of several classes both have one more dimension, the class. A model without bias has zeros.
    """
    posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    weight = posterior["weight"].transpose("sample", "basis", ...)
    none = xr.zeros_like(weight.isel(basis=0))
    bias = posterior.get("bias", none).transpose("sample", ...)
    if bias.dims != none.dims:  # user-defined intercepts, of groups
        bias = none
    return weight.values, bias.values


def training_latent(tree: xr.DataTree) -> Array:
    """Return a result's draws of the latent function at the training rows, shape (n_draws, n_obs, ...)."""
    latent = tree["posterior"]["latent"].transpose("chain", "draw", ...).values
    return latent.reshape(-1, *latent.shape[2:])
