"""Width and scale of a PCVM, of two classes or several, chosen from the data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets

from pcvm_pymc.core.pieces.kernels import Kernel, median_distance
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import (
    as_classes,
    as_features,
    check_real,
    check_whole,
    present_labels,
    shown,
)
from pcvm_pymc.estimators.cells import Cells
from pcvm_pymc.estimators.figures import plot_cells
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Selection", "select"]

_OVER = (("width", "scale"), ("width",), ("scale",))


@dataclass(frozen=True)
class Selection:
    """Cells of width and scale, and how well each predicts rows that are left out.

    Attributes
    ----------
    width, scale : float
        Of the cell that counts most.
    widths, scales : ndarray, shape (n_cells,)
        All that were tried.
    log_loss : ndarray, shape (n_cells,)
        Mean negative log probability of the labels when they are left out, nats per row.
    weights : ndarray, shape (n_cells,)
        How much each counts in the average, see `averaging_weights`; they sum to one.
    n_improved : ndarray of int, shape (n_cells,)
        Rows that moved too far for the quadratic model, and were carried on.
    method : str
    """

    width: Any
    scale: float
    widths: Array = field(repr=False)
    scales: Array = field(repr=False)
    log_loss: Array = field(repr=False)
    weights: Array = field(repr=False)
    n_improved: Array = field(repr=False)
    method: str

    @classmethod
    def of(cls, cells: Cells, method: str) -> "Selection":
        """Return the choice that cells amount to."""
        best = cells.cells[cells.best]
        return cls(
            best.width,
            best.scale,
            np.array([each.width for each in cells.cells]),
            np.array([each.scale for each in cells.cells]),
            np.array([each.loo.log_loss for each in cells.cells]),
            cells.weights,
            np.array([int(each.loo.improved.sum()) for each in cells.cells]),
            method,
        )

    def by_width(self, *, least: float = 0.05) -> tuple[list[Any], list[float]]:
        """Return the widths that count, the most first, and their weights over all scales.

        For `mixture`, whose posteriors have a scale that is learned. One width for each feature is one.

        Parameters
        ----------
        least : float
            Weight below which a width is left out; the others' weights sum to one.
        """
        check_real("least", least, below=1.0)
        distinct, place = np.unique(self.widths, axis=0, return_inverse=True)
        weight = np.bincount(place.ravel(), self.weights)
        kept = [i for i in np.argsort(-weight) if weight[i] >= min(least, weight.max())]
        return distinct[kept].tolist(), (weight[kept] / weight[kept].sum()).tolist()

    def plot(self) -> "Figure":
        """Draw the surface of the log loss over width and scale, and what each cell counts."""
        return plot_cells(self)


def select(
    X: ArrayLike,
    y: ArrayLike,
    *,
    over: Sequence[str] = ("width", "scale"),
    method: str = "loo",
    width: float | None = None,
    scale: float | None = None,
    kernel: Kernel = "rbf",
    likelihood: str | Likelihood = "probit",
    basis: Any = None,
    cv: int = 5,
    random_state: int | np.random.Generator | None = None,
) -> Selection:
    """Choose width and scale of a PCVM for the mode that is then fitted.

    The grid of widths (steps of 1.65 from the median distance of the rows) and scales (steps of the square
    root of ten from one) grows from its middle where leaving one out gives a cell weight, under weak
    priors: normals on the logarithms of scale and of width over median distance.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels of two classes, or of more.
    over : ("width", "scale"), ("width",) or ("scale",)
        What is chosen.
    method : {"loo", "cv"}
        Leaving one out from one factorisation, see `pcvm_pymc.core.loo`; or cross-validation by refits,
        without the held-out rows' bases. For the width alone `select_width` has evidence and validity
        besides.
    cv : int
        Folds, for ``"cv"``; fewer where a class has fewer rows.
    width : float, optional
        Where it is not chosen.
    scale : float, optional
        Where it is not chosen. Default: 1.
    kernel, likelihood, basis
        As for `PCVMClassifier`; several classes have the multinomial probit.
    random_state : int or numpy.random.Generator, optional
        For the rows by which cells are found, where they are many.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        For input that cannot be used, or a width or scale that is both given and to be chosen.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> found = select(X, X[:, 0] > 0, random_state=0)
    >>> bool(found.weights.sum() > 0.999), len(found.widths) == len(found.scales)
    (True, True)
    """
    if not isinstance(over, list | tuple) or tuple(over) not in _OVER:
        raise ValueError(f"over={shown(over)}; needed one of {_OVER}")
    check_whole("cv", cv, 2)
    if not isinstance(method, str) or method not in ("loo", "cv"):
        raise ValueError(
            f"method={shown(method)}; needed 'loo' or 'cv'. select_width(X, y, method=...) chooses the width "
            "alone by 'evidence', 'validity' or 'em'"
        )
    if method == "loo" and cv != 5:
        raise ValueError(
            f"cv={cv!r} was given with method='loo', where it has no effect; leave it at 5"
        )
    for name, value in (("width", width), ("scale", scale)):
        if value is not None and name in over:
            raise ValueError(
                f"{name}={value!r} was given with over={over!r}, which chooses it; leave it out"
            )
    X = as_features(X)
    y = present_labels(y)
    check_classification_targets(y)
    options: dict[str, Any] = {
        "kernel": kernel,
        "basis": basis,
        "estimation": "em",
        "width": "auto" if "width" in over else median_distance(X) if width is None else width,
        "scale": "auto" if "scale" in over else 1.0 if scale is None else scale,
        "random_state": random_state,
    }
    if len(as_classes(y, len(X))[1]) > 2:
        if likelihood != "probit":
            raise ValueError(
                f"likelihood={likelihood!r} is for two classes; several have the multinomial probit"
            )
        model: Any = MPCVMClassifier(**options)
    else:
        model = PCVMClassifier(likelihood=likelihood, **options)
    if method == "cv":
        return Selection.of(model.cross_validated_cells(X, y, cv), method)
    return Selection.of(model.fit(X, y).selection_, method)
