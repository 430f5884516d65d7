"""New rows for a model, in one `pm.set_data`."""

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pcvm_pymc.core.pieces.arguments import shown
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, as_labels, as_targets
from pcvm_pymc.model.bases import AnyKernel, check_centres, distances, kernel_data, recall_kernel
from pcvm_pymc.model.read import targets_of

__all__ = ["as_model", "new_data"]


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


def new_data(
    model: pm.Model,
    X_new: ArrayLike,
    y_new: ArrayLike | None = None,
    *,
    kernel: AnyKernel | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments with which one `pm.set_data` gives a model new rows.

    Parameters
    ----------
    model : pm.Model
        From a builder, or transformed from one by `pm.do` or `pm.observe`.
    X_new : array_like, shape (n_new, n_features)
    y_new : array_like, shape (n_new,), optional
        Labels 0 and 1 (of several classes: their numbers, from 0), or targets; only
        placeholders (zeros) are needed to predict.
    kernel : callable, KernelPiece or pm.gp.cov.Covariance, optional
        The kernel that the model was built with. Needed where it was a function or a covariance; the
        model knows the others.

    Returns
    -------
    dict
        ``new_data`` and ``coords``.

    Raises
    ------
    ValueError
        If the rows cannot be used, or the kernel is needed or not the model's.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> with pcvm_model(X, X[:, 0] > 0) as model:
    ...     pm.set_data(**new_data(model, X[:5] + 0.1))
    """
    model = as_model(model)
    check_centres(model.named_vars)
    centres = model["centres"].get_value()
    X_new = as_features(X_new, "X_new", centres.shape[1])
    observed = np.zeros(len(X_new), dtype=model["y"].dtype)
    if y_new is not None:
        observed[:] = _observed(model, y_new, len(X_new))
    values: dict[str, Any] = {"y": observed}
    piece = None
    if kernel is not None or "Phi" in model.named_vars:
        piece = recall_kernel(kernel_data(model), kernel)
    if "X" in model.named_vars:
        values["X"] = X_new
    elif "squared_distance" in model.named_vars:
        values["squared_distance"] = distances(X_new, centres, model["squared_distance"].ndim)
    else:
        values["Phi"] = piece(X_new, centres)
    return {"new_data": values, "coords": {"obs": np.arange(len(X_new))}}


def _observed(model: pm.Model, y_new: ArrayLike, n_new: int) -> Array:
    """Return new targets in the code of a model's data."""
    kind = targets_of(model)
    if kind == "numbers":
        return as_targets(y_new, n_new)
    if kind == "labels":
        return as_labels(y_new, n_new, one_class=True)[0] > 0
    label, n_classes = np.asarray(y_new), len(model.coords["class"])
    if label.shape != (n_new,) or not np.isin(label, np.arange(n_classes)).all():
        raise ValueError(
            f"y_new has shape {label.shape} and values {np.unique(label)[:10]}; needed shape ({n_new},) and "
            f"numbers of classes, 0 to {n_classes - 1}"
        )
    return label
