"""Pictures of class probabilities over a plane of two features."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.figures import class_colours, legend_below, scatter_classes, styled
from pcvm_pymc.inference.names import under_our_names
from pcvm_pymc.inference.prediction import predict
from pcvm_pymc.inference.results import classes_of, likelihood_of, weights_of
from pcvm_pymc.model.bases import AnyKernel

#: ArviZ's 89 % equal-tailed interval
INTERVAL = (5.5, 94.5)
_MOST_DRAWS = 1000  # evenly spaced: enough for a picture


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
    likelihood = likelihood_of(map_result)
    if likelihood.targets == "numbers":
        raise ValueError(
            f"the results have a {likelihood.name} likelihood; a decision surface needs classes"
        )
    unknown = np.setdiff1d(y, classes).tolist()
    if unknown:
        raise ValueError(f"y has labels {unknown[:5]}; needed the classes {classes.tolist()}")
    margin = 0.08 * np.ptp(X, axis=0) + 1e-9
    lines = tuple(np.linspace(X.min(axis=0) - margin, X.max(axis=0) + margin, resolution).T)
    grid = np.stack(np.meshgrid(*lines), axis=-1).reshape(-1, 2)
    point, mean, width = _surfaces(map_result, posterior, grid, kernel)
    figure, all_axes = plt.subplots(1, 3, figsize=(14, 4.6), sharex=True, sharey=True)
    titles = "MAP plug-in", "posterior mean", "width of the 89 % interval"
    for axes, surface in zip(all_axes[:2], (point, mean), strict=True):
        _draw_surface(axes, lines, surface)
    interval = width.reshape(resolution, resolution)
    most = max(width.max(), 1e-3)
    image = all_axes[2].pcolormesh(*lines, interval, cmap="viridis", vmin=0, vmax=most, alpha=0.8)
    figure.colorbar(image, ax=all_axes[2], shrink=0.85)
    for axes, title in zip(all_axes, titles, strict=True):
        scatter_classes(axes, X, y, {each: str(each) for each in classes.tolist()}, size=18)
        axes.set(xlabel=feature_names[0], title=title)
    all_axes[0].set_ylabel(feature_names[1])
    weight = weights_of(map_result)[0][0]
    kept = weight.reshape(len(weight), -1).any(axis=1)
    if kept.sum() < len(kept) / 2:  # more circles would hide the points
        vectors = map_result["constant_data"]["centres"].values[kept].T
        circles: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "s": 90}
        all_axes[0].scatter(*vectors, **circles, label="relevance vectors")
    legend_below(figure, all_axes[0])
    return figure


def _surfaces(
    map_result: xr.DataTree, posterior: xr.DataTree, grid: Array, kernel: AnyKernel | None
) -> tuple[Array, Array, Array]:
    """Return probabilities at a grid: the MAP's, the posterior's mean, and its interval's width.

    The first two have shape (n_grid,), or (n_grid, n_classes) of several classes.
    """
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
    return point[0, 0], mean, width


def _draw_surface(axes: Axes, lines: tuple[Array, ...], probability: Array) -> None:
    """Draw class probabilities over a plane, and where the most probable class changes."""
    shape = len(lines[1]), len(lines[0])
    if probability.ndim == 1:
        surface = probability.reshape(shape)
        image = axes.pcolormesh(*lines, surface, cmap="RdBu_r", vmin=0, vmax=1, alpha=0.8)
        axes.contour(*lines, surface, levels=[0.5], colors="black", linewidths=1.5)
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        return
    first, top = probability.argmax(axis=1), probability.max(axis=1)
    pale = (1.0 - top) / (1.0 - 1.0 / probability.shape[1])  # one where all are as probable
    colour = to_rgba_array(class_colours(probability.shape[1]))[first, :3]
    axes.pcolormesh(*lines, (colour + (1.0 - colour) * pale[:, None]).reshape(*shape, 3), alpha=0.8)
    for c in range(probability.shape[1]):
        inside = (first == c).astype(float).reshape(shape)
        if 0.0 < inside.mean() < 1.0:
            axes.contour(*lines, inside, levels=[0.5], colors="black", linewidths=1.0)
