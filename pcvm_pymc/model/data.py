"""Tables of inputs, and new rows for a model: ``pm.set_data({"X": X_new})``, or `new_data` for any model."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.pieces.names import column_names, row_index
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, shown
from pcvm_pymc.model.coordinates import storable
from pcvm_pymc.model.names import Names, coordinates, latent_functions

# what a regression may have for each row, and what is put in its place for new ones
OF_ROWS = {"sample_weight": 1.0, "noise_std": np.inf}  # a noise that is unknown: draws show it


class KernelModel(pm.Model):
    """A model that takes new rows alone: ``pm.set_data({"X": X_new})``.

    Where they are more or fewer, the observed variable has as many placeholders. The rows are numbered, or
    named by a table's index.
    """

    def set_data(self, name: str, values: Any, coords: Any = None) -> None:
        """Set data of the model; see `pymc.Model.set_data`."""
        plain = {"new_data": {name: values}, "coords": {}}
        new = new_data(self, values) if name == "X" else plain
        rows = "obs" in self.named_vars_to_dims.get(name, ())
        length = len(new["new_data"][name]) if rows else 0
        other = rows and length != len(self.coords["obs"])
        at = new["coords"] or ({"obs": range(length)} if other else {})
        for key, value in new["new_data"].items():
            if key == name or other:
                super().set_data(key, value, {**at, **(coords or {})})


def as_model(model: Any) -> pm.Model:
    """Return a model that was given, by default the one on the context stack.

    Raises
    ------
    TypeError
        If it is none, or there is none.
    """
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(f"model={shown(model)}; needed a pm.Model, as from pcvm_model")
    return pm.modelcontext(model)


def new_data(model: pm.Model, X_new: ArrayLike, *, name: str = "latent") -> dict[str, Any]:
    """Return the keyword arguments with which one `pm.set_data` gives a model new rows.

    Parameters
    ----------
    model : pm.Model
        From a builder, or transformed from one by `pm.do` or `pm.observe`.
    X_new : array_like or table, shape (n_new, n_features)
        The index of a pandas table becomes the coordinate of the rows. Columns of other names than the
        training rows', or in another order, raise.
    name : str
        Of the latent function, as `pcvm_latent` was given it.

    Returns
    -------
    dict
        ``new_data``, with placeholders for labels or targets, and ``coords``. They go into a `pm.Data` of
        your own where the model was built from one. Where a model has several latent functions, or own
        terms, the dicts of all are joined for one `pm.set_data`.

    Raises
    ------
    ValueError
        If the rows cannot be used.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> with pcvm_model(X, X[:, 0] > 0) as model:
    ...     pm.set_data(**new_data(model, X[:5] + 0.1))
    """
    model = as_model(model)
    names, builders = Names(model, name), Names(model)
    if names.latent not in model.named_vars:
        known = latent_functions(model)
        raise ValueError(f"found no latent function {names.latent!r}; needed one of {known}")
    columns = coordinates(model, names.known("feature"))
    frame = Frame.of(X_new, "X_new", columns, len(columns))
    values: dict[str, Any] = {names.container("X"): frame.values}
    for key, unknown in {"y": 0, **OF_ROWS}.items():
        own = builders.container(key)
        if model.named_vars.get(own) in model.data_vars:  # a variable may have its name
            values[own] = np.full(len(frame.values), unknown, dtype=model[own].dtype)
    dim = model.named_vars_to_dims[names.latent][0]
    return {"new_data": values, "coords": {dim: frame.index} if model.coords[dim] else {}}


# --- tables -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """Inputs with the names of rows and columns, of a table, an xarray.DataArray or an array.

    Attributes
    ----------
    values : ndarray, shape (n_obs, n_features)
    index : ndarray, shape (n_obs,)
        The index of a pandas table or the coordinate of a DataArray, otherwise numbers from 0.
    columns : ndarray, shape (n_features,)
        The names of a table's columns, otherwise numbers from 0.
    """

    values: Array
    index: NDArray[Any]
    columns: NDArray[Any]

    @classmethod
    def in_model(cls, names: Names, X: Any) -> tuple[Self, Names]:
        """Return the inputs of a model, and names with the dim of their rows.

        Of a `pm.Data` of the model its own dims name rows and columns.
        """
        frame, model = cls.of(names.values("X", X)), names.model
        if "X" not in names.given:
            return frame, names
        rows, columns = model.named_vars_to_dims.get(X.name) or (None, None)
        dims = {"index": rows, "columns": columns}
        known = {key: coordinates(model, dim) for key, dim in dims.items() if dim}
        if rows is None and names.obs not in model.coords:  # as long as the data are
            model.add_coord(names.obs, length=X.shape[0])
        return replace(frame, **known), replace(names, obs=rows or names.obs)

    @classmethod
    def of(cls, X: Any, name: str = "X", known: Any = None, n_features: int | None = None) -> Self:
        """Return inputs as a frame; raise where they cannot be used.

        Parameters
        ----------
        X : array_like or table, shape (n_obs, n_features)
        name : str
            Of the argument, for messages.
        known : sequence, optional
            Column names of the training rows. A table with other names or another order raises; an array
            is taken as it is.
        n_features : int, optional
        """
        names = column_names(X, name)
        if names is not None and known is not None:
            _check_names(storable(names, name).tolist(), np.asarray(known).tolist(), name)
        values = as_features(X, name, n_features)
        index = row_index(X)
        has_index = index is not None and len(index) == len(values)
        return cls(
            values,
            storable(index, f"the index of {name}") if has_index else np.arange(len(values)),
            np.arange(values.shape[1]) if names is None else storable(names, f"columns of {name}"),
        )


def _check_names(found: list[str], known: list[Any], name: str) -> None:
    if found == known or not all(isinstance(column, str) for column in known):
        return
    missing = [column for column in known if column not in found]
    extra = [column for column in found if column not in known]
    parts = [f"lacks the columns {missing}"] if missing else []
    parts += [f"has columns that the training rows lack, {extra}"] if extra else []
    order = f"has another order than the training rows, {found}: take {name}[{known}]"
    what = " and ".join(parts) or order
    raise ValueError(f"{name} {what}; needed {known}, in this order")
