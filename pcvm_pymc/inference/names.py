"""Names of a result's variables and dims: those of a builder, and those of its own model."""

import json
from typing import Any

import xarray as xr

NAMES = "names"  # the attribute of results whose model has other names than a builder gives
#: what a builder calls the variables and data of a latent function, and their dims
DIMS: dict[str, tuple[str, ...]] = {
    "latent": ("obs", "class"),
    "weight": ("basis", "class"),
    "magnitude": ("basis", "class"),
    "bias": ("class",),
    "rate": (),
    "width": ("feature",),
    "label": ("obs",),
    "target": ("obs",),
    "X": ("obs", "feature"),
    "centres": ("basis", "feature"),
    "signs": ("basis", "class"),
    "kernel_width": ("feature",),
    "kernel_name": ("kernel",),
    "hyperprior": ("hyperparameter",),
}


def under_our_names(tree: xr.DataTree) -> xr.DataTree:
    """Rename a result's variables and dims to the names that a builder gives them.

    Variables of the user's own that have such a name are left out.
    """
    names: dict[str, str] = json.loads(tree.attrs.get(NAMES, "{}"))
    if not names:
        return tree
    groups = {}
    for group, node in tree.children.items():
        data = node.to_dataset()
        data = data.drop_vars([key for key in names if key in data and key not in names.values()])
        data = data.rename_vars({name: key for key, name in names.items() if name in data})
        dims: dict[Any, str] = {}
        for key in names:
            if key in data:
                own = (dim for dim in data[key].dims if dim not in ("chain", "draw"))
                dims |= zip(own, DIMS.get(key, ()), strict=False)
        taken = {dim for dim in dims.values() if dim in data.dims} - {*dims}
        new = {dim: ours for dim, ours in dims.items() if dim != ours}
        groups[group] = data.rename({dim: f"{dim}_of_model" for dim in taken}).rename(new)
    out = xr.DataTree.from_dict(groups)
    out.attrs.update({key: value for key, value in tree.attrs.items() if key != NAMES})
    return out
