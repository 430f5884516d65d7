"""Pictures of results. Each function returns a matplotlib figure."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import IsotonicRegression

from pcvm_pymc import figures
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.figures import plot_projection_path, plot_width_criteria, styled
from pcvm_pymc.inference.names import under_our_names
from pcvm_pymc.inference.prediction import predict
from pcvm_pymc.inference.results import classes_of, likelihood_of, weights_of
from pcvm_pymc.model.bases import AnyKernel

__all__ = [
    "plot_calibration",
    "plot_decision_surface",
    "plot_feature_relevance",
    "plot_projection_path",
    "plot_weights",
    "plot_width_criteria",
]

#: ArviZ's 89 % equal-tailed interval
INTERVAL = (5.5, 94.5)
_MOST_DRAWS = 1000  # evenly spaced: enough for a picture
_SHOWN: Any = {"vmin": 0, "alpha": 0.8}


@styled
def plot_feature_relevance(model: Any, *, most: int = 30) -> Figure:
    """Draw how relevant each feature is to a classifier or regressor, the most relevant on top.

    Bars are the relevances, 1 / width^2 normalised; lines go from the smallest to the largest of the folds,
    each learned without the fold's rows. Where no widths per feature were learned, the title says so and
    nothing is drawn: `sklearn.inspection.permutation_importance` measures what any fit makes of its features.

    Parameters
    ----------
    model : fitted estimator
        With the RBF kernel.
    most : int
        Features that are drawn at most.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If it has no widths of features.
    """
    if "feature_relevance_" not in vars(model):
        raise ValueError(
            f"model is {model!r}; needed an estimator of this package, fitted with kernel='rbf'"
        )
    relevance, folds = model.feature_relevance_, model.feature_relevance_folds_
    names = getattr(model, "feature_names_in_", [str(j) for j in range(len(relevance))])
    top = np.argsort(-relevance, kind="stable")[:most]
    figure, axes = plt.subplots(figsize=(6.5, 1.0 + 0.25 * len(top)))
    if np.isnan(relevance).all():
        words = (
            "not learned: one width for all features\n(sklearn.inspection.permutation_importance)"
        )
        axes.set_title(words, fontsize="medium")
    axes.barh(np.arange(len(top)), relevance[top], color=figures.NEGATIVE, height=0.7)
    if len(folds):
        low, high = folds[:, top].min(axis=0), folds[:, top].max(axis=0)
        axes.hlines(np.arange(len(top)), low, high, color=figures.POSITIVE, lw=2)
    axes.set(xlabel="relevance (1 / width², sum one)", ylabel="feature", xlim=(0, None))
    axes.set_yticks(np.arange(len(top)), [str(names[j]) for j in top])
    axes.invert_yaxis()
    return figure


@styled
def plot_weights(map_result: xr.DataTree, posterior: xr.DataTree) -> Figure:
    """Draw the MAP's weights over the posterior's 89 % intervals, in the order of their medians.

    Parameters
    ----------
    map_result : DataTree
        From `find_map_em`.
    posterior : DataTree
        From `sample` or `pymc.sample`, of the same model. Of several classes each has a panel.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If they have other bases or classes.
    """
    map_result, posterior = map(under_our_names, (map_result, posterior))
    point, draws = weights_of(map_result)[0][0], weights_of(posterior)[0]
    if point.shape != draws.shape[1:]:
        raise ValueError(f"map_result's weights have shape {point.shape}; needed {draws.shape[1:]}")
    classes: Any = classes_of(map_result) if point.ndim > 1 else ()
    names = [f"weight, class {label}" for label in classes] or ["weight"]
    n = len(names)
    point, draws = point.reshape(-1, n), draws.reshape(len(draws), -1, n)
    size = (9, 4 if n == 1 else 2.6 * n)
    figure, all_axes = plt.subplots(n, figsize=size, sharex=True, squeeze=False)
    for c, (axes, name) in enumerate(zip(all_axes[:, 0], names, strict=True)):
        low, middle, high = np.percentile(draws[..., c], [INTERVAL[0], 50, INTERVAL[1]], axis=0)
        order, x = np.argsort(middle), np.arange(len(middle))
        between = low[order], high[order]
        axes.vlines(x, *between, color="0.75", lw=2, label="posterior, 89 % interval")
        axes.plot(x, middle[order], ".", ms=3, color="0.4", label="posterior median")
        axes.axhline(0, color="black", lw=0.8)
        kept = np.flatnonzero(point[order, c])
        axes.plot(kept, point[order, c][kept], "o", ms=4, color=figures.POSITIVE, label="MAP")
        axes.set_ylabel(name)
        axes.set_title(f"MAP: {len(kept)} not zero", fontsize="medium")
    all_axes[-1, 0].set_xlabel("basis, by posterior median of its weight")
    figures.legend_below(figure, all_axes[0, 0])
    return figure


@styled
def plot_calibration(
    label: ArrayLike,
    probability: Mapping[str, Array],
    *,
    classes: ArrayLike | None = None,
    random_seed: int = 0,
) -> Figure:
    """Draw the PAVA calibration curve of each classifier over what calibrated predictions would give.

    Frequency as an isotonic function of predicted probability (pool-adjacent-violators). The band contains
    90 % of such curves where labels are drawn from the predictions themselves. Of several classes each has
    a row, itself against the rest.

    Parameters
    ----------
    label : array_like of int, shape (n,)
        0 and 1, or numbers of several classes.
    probability : mapping of str to ndarray, shape (n,) or (n, n_classes)
        Of label 1, or of each class.
    classes : array_like, shape (n_classes,), optional
        Their names; default: their numbers.
    random_seed : int
        For the band.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If classifiers, labels or names are not of the same classes.

    References
    ----------
    T. Dimitriadis, T. Gneiting and A. I. Jordan (2021), "Stable reliability diagrams for
    probabilistic classifiers", PNAS 118(8).
    """
    parts = _against_the_rest(label, probability, classes)
    n = len(probability)
    shape = (len(parts), n) if len(parts) > 1 else (-(-n // 3), min(n, 3))
    size = (4.2 * shape[1], 0.4 + 4 * shape[0])
    figure, all_axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, squeeze=False)
    fit = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    rng, panels = np.random.default_rng(random_seed), iter(all_axes.flat)
    for title, member, stated in parts:
        for name, values in stated.items():
            axes, grid = next(panels), np.linspace(values.min(), values.max(), 101)
            # labels drawn from the probabilities themselves
            drawn = (rng.uniform(size=len(values)) < values for _ in range(200))
            curves = [fit.fit(values, labels).predict(grid) for labels in drawn]
            low, high = np.percentile(curves, [5, 95], axis=0)
            axes.fill_between(grid, low, high, color="0.85", label="90 % if calibrated")
            axes.plot([0, 1], [0, 1], color="0.5", lw=0.8)
            fit.fit(values, member)
            axes.plot(grid, fit.predict(grid), color=figures.POSITIVE, lw=2, label="PAVA")
            axes.plot(values, np.where(member, 1.03, -0.03), "|", color="0.4", ms=5, alpha=0.4)
            axes.set(title=name + title, xlim=(-0.02, 1.02), ylim=(-0.06, 1.06))
    plt.setp([*panels], visible=False)
    plt.setp(all_axes[:, 0], ylabel="frequency")
    plt.setp(all_axes[-1], xlabel="predicted probability")
    figures.legend_below(figure, all_axes[0, 0])
    return figure


def _against_the_rest(
    label: ArrayLike, probability: Mapping[str, Array], classes: ArrayLike | None
) -> list[tuple[str, NDArray[np.bool_], dict[str, Array]]]:
    """Return a title, labels and probabilities of each class against the rest; of two the greater's alone."""
    number = np.asarray(label)
    each = {name: np.asarray(p, dtype=float) for name, p in probability.items()}
    if not each:
        raise ValueError("probability is empty; needed predictions of one classifier or more")
    shape = next(iter(each.values())).shape
    for name, p in each.items():
        if p.shape != shape or p.ndim > 2 or len(p) != len(number):
            raise ValueError(
                f"probability[{name!r}] has shape {p.shape}; needed ({len(number)},) of two classes, or "
                f"({len(number)}, n_classes), the same of all classifiers"
            )
    n_classes = shape[1] if len(shape) == 2 else 2
    names = np.arange(n_classes) if classes is None else np.asarray(classes)
    if len(names) != n_classes:
        raise ValueError(f"classes are {names.tolist()}; needed {n_classes}, as probability has")
    if unknown := np.setdiff1d(number, np.arange(n_classes)).tolist():
        raise ValueError(f"label has {unknown[:5]}; needed numbers from 0 to {n_classes - 1}")
    if len(shape) == 1:
        return [("", number == 1, each)]
    columns = [{name: p[:, c] for name, p in each.items()} for c in range(n_classes)]
    return [(f": class {names[c]}", number == c, column) for c, column in enumerate(columns)]


@styled
def plot_decision_surface(
    map_result: xr.DataTree,
    posterior: xr.DataTree,
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: AnyKernel | None = None,
    feature_names: tuple[str, str] = ("x1", "x2"),
    resolution: int = 80,
) -> Figure:
    """Draw class probabilities of MAP and posterior, and the posterior's uncertainty, in a plane.

    Parameters
    ----------
    map_result, posterior : DataTree
        Of the same model, with two features. Of several classes the colour is that of the most probable one,
        the paler the less probable it is, and the interval is of its probability.
    X : array_like, shape (n_obs, 2)
        Training inputs.
    y : array_like, shape (n_obs,)
        Training labels.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel that the model was built with; needed where it was a function or a covariance.
    feature_names : tuple of str
    resolution : int
        Grid points along each axis.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are not two features, the results are of a regression, or a label is none of their classes.
    """
    map_result, posterior = map(under_our_names, (map_result, posterior))
    X, y, classes = np.asarray(X, dtype=float), np.asarray(y), classes_of(map_result)
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"X has shape {X.shape}; a decision surface needs (n_obs, 2)")
    if likelihood_of(map_result).targets == "numbers":
        raise ValueError("the results are of a regression; a decision surface needs classes")
    if unknown := np.setdiff1d(y, classes).tolist():
        raise ValueError(f"y has labels {unknown[:5]}; needed the classes {classes.tolist()}")
    margin = 0.08 * np.ptp(X, axis=0) + 1e-9
    lines = tuple(np.linspace(X.min(axis=0) - margin, X.max(axis=0) + margin, resolution).T)
    grid = np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2)
    states = posterior["posterior"].to_dataset()
    step = -(-states.sizes["chain"] * states.sizes["draw"] // _MOST_DRAWS)
    thinned = posterior.copy()  # with what a prediction needs
    thinned["posterior"] = states.isel(draw=slice(None, None, step))
    point, draws = (
        predict(each, grid, kernel=kernel)["predictions"]["probability"].values
        for each in (map_result, thinned)
    )
    mean = draws.mean(axis=(0, 1))
    if mean.ndim > 1:
        draws = np.take_along_axis(draws, mean.argmax(axis=1)[None, None, :, None], axis=3)[..., 0]
    width = np.diff(np.percentile(draws, INTERVAL, axis=(0, 1)), axis=0)[0]
    figure, all_axes = plt.subplots(1, 3, figsize=(14, 4.6), sharex=True, sharey=True)
    titles = "MAP plug-in", "posterior mean", "width of the 89 % interval"
    _draw_surface(all_axes[0], lines, point[0, 0])
    _draw_surface(all_axes[1], lines, mean)
    shown = {"cmap": "viridis", "vmax": max(width.max(), 1e-3)} | _SHOWN
    image = all_axes[2].pcolormesh(*lines, width.reshape(resolution, resolution), **shown)
    figure.colorbar(image, ax=all_axes[2], shrink=0.85)
    for axes, title in zip(all_axes, titles, strict=True):
        figures.scatter_classes(
            axes, X, y, {label: str(label) for label in classes.tolist()}, size=18
        )
        axes.set(xlabel=feature_names[0], title=title)
    all_axes[0].set_ylabel(feature_names[1])
    weight = weights_of(map_result)[0][0]
    kept = weight.reshape(len(weight), -1).any(axis=1)
    if kept.sum() < len(kept) / 2:  # more circles would hide the points
        vectors = map_result["constant_data"]["centres"].values[kept].T
        all_axes[0].scatter(*vectors, s=90, fc="none", ec="black", label="relevance vectors")
    figures.legend_below(figure, all_axes[0])
    return figure


def _draw_surface(axes: Axes, lines: tuple[Array, ...], probability: Array) -> None:
    """Draw class probabilities over a plane, and where the most probable class changes."""
    shape = len(lines[1]), len(lines[0])
    if probability.ndim == 1:
        surface = probability.reshape(shape)
        image = axes.pcolormesh(*lines, surface, cmap="RdBu_r", vmax=1, **_SHOWN)
        axes.contour(*lines, surface, levels=[0.5], colors="black", linewidths=1.5)
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        return
    first, top = probability.argmax(axis=1), probability.max(axis=1)
    pale = (1.0 - top) / (1.0 - 1.0 / probability.shape[1])  # one where all are as probable
    colour = to_rgba_array(figures.class_colours(probability.shape[1]))[first, :3]
    axes.pcolormesh(*lines, (colour + (1.0 - colour) * pale[:, None]).reshape(*shape, 3), alpha=0.8)
    for c in np.unique(first) if np.ptp(first) else ():
        inside = (first == c).astype(float).reshape(shape)
        axes.contour(*lines, inside, levels=[0.5], colors="black", linewidths=1.0)
