"""Pictures of results. Each function returns a matplotlib figure (or ArviZ's plot collection)."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from sklearn.calibration import CalibrationDisplay
from sklearn.isotonic import IsotonicRegression

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.figures import (
    NEGATIVE,
    POSITIVE,
    plain_log_ticks,
    plot_projection_path,
    plot_width_criteria,
    styled,
)
from pcvm_pymc.inference.prediction import predict, prior_latent
from pcvm_pymc.inference.results import classes_of, likelihood_of, weights_of
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.read import find_parts

__all__ = [
    "plot_calibration",
    "plot_decision_surface",
    "plot_em_trace",
    "plot_prior_predictive",
    "plot_projection_path",
    "plot_rank",
    "plot_reliability",
    "plot_weights",
    "plot_width_criteria",
]

_INTERVAL = (5.5, 94.5)  # ArviZ's 89 % equal-tailed interval


@styled
def plot_em_trace(map_result: xr.DataTree) -> Figure:
    """Draw log posterior and number of active weights over EM's iterations.

    Parameters
    ----------
    map_result : DataTree
        From `find_map_em`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If it is from another function.
    """
    if "em_trace" not in map_result:
        raise ValueError(
            f"the result has the groups {sorted(map_result.children)}; needed em_trace, from find_map_em"
        )
    trace = map_result["em_trace"]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    gap = trace["log_posterior"].values.max() - trace["log_posterior"].values
    top.semilogy(trace["iteration"], np.maximum(gap, 1e-12), marker=".", color=NEGATIVE)
    top.set_ylabel("log posterior\nbelow its end value")
    plain_log_ticks(top.yaxis)
    bottom.plot(trace["iteration"], trace["n_active"], marker=".", color=POSITIVE)
    bottom.set(xlabel="EM iteration", ylabel="weights not zero")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    message = map_result["optimizer_result"]["message"].item()
    figure.suptitle(f"EM: {message}", fontsize="medium")
    return figure


@styled
def plot_weights(map_result: xr.DataTree, posterior: xr.DataTree) -> Figure:
    """Draw the MAP's weights over the posterior's 89 % intervals, in the order of their medians.

    Parameters
    ----------
    map_result : DataTree
        From `find_map_em`.
    posterior : DataTree
        From `sample` or `pymc.sample`, of the same model.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are several classes.
    """
    point = weights_of(map_result)[0][0]
    draws = weights_of(posterior)[0]
    if point.ndim > 1:
        raise ValueError(
            f"the weights are those of {point.shape[1]} classes; needed results of two classes or of a "
            "regression, which have one weight for each basis"
        )
    low, middle, high = np.percentile(draws, [_INTERVAL[0], 50, _INTERVAL[1]], axis=0)
    order = np.argsort(middle)
    x = np.arange(len(order))
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    axes.vlines(x, low[order], high[order], color="0.75", lw=2, label="posterior, 89 % interval")
    axes.plot(x, middle[order], ".", ms=3, color="0.4", label="posterior median")
    kept = point[order] != 0
    axes.plot(
        x[kept],
        point[order][kept],
        "o",
        ms=4,
        color=POSITIVE,
        label=f"MAP ({kept.sum()} not zero)",
    )
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xlabel="basis, by posterior median of its weight", ylabel="weight")
    figure.legend(loc="outside lower center", ncols=3)  # within, it would cover weights
    return figure


@styled
def plot_reliability(label: ArrayLike, probability: Mapping[str, Array]) -> Figure:
    """Draw frequency of class 1 against its predicted probability, for each classifier.

    Parameters
    ----------
    label : array_like of 0 and 1, shape (n,)
    probability : mapping of str to ndarray, shape (n,)

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are probabilities of several classes.
    """
    _check_two_classes(probability)
    figure, (top, bottom) = plt.subplots(
        2, 1, sharex=True, figsize=(6, 7), height_ratios=[3, 1], layout="constrained"
    )
    for (name, each), marker in zip(probability.items(), cycle("os^Dv"), strict=False):
        CalibrationDisplay.from_predictions(
            label, each, n_bins=10, name=name, ax=top, marker=marker, ms=4
        )
        bottom.hist(each, bins=np.linspace(0, 1, 21), histtype="step", lw=1.5)
    top.set(xlabel="", ylabel="frequency in the test set", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    top.get_legend().remove()
    figure.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    bottom.set(xlabel="predicted probability", ylabel="rows", yscale="log")
    bottom.set_ylim(bottom=0.7)  # one row is a bar too
    plain_log_ticks(bottom.yaxis)
    return figure


@styled
def plot_calibration(
    label: ArrayLike, probability: Mapping[str, Array], *, random_seed: int = 0
) -> Figure:
    """Draw the PAVA calibration curve of each classifier over what calibrated predictions would give.

    Frequency as an isotonic function of predicted probability (pool-adjacent-violators). The band holds
    90 % of such curves where labels are drawn from the predictions themselves.

    Parameters
    ----------
    label : array_like of 0 and 1, shape (n,)
    probability : mapping of str to ndarray, shape (n,)
    random_seed : int
        For the band.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there are probabilities of several classes.

    References
    ----------
    T. Dimitriadis, T. Gneiting and A. I. Jordan (2021), "Stable reliability diagrams for
    probabilistic classifiers", PNAS 118(8).
    """
    _check_two_classes(probability)
    label = np.asarray(label)
    figure, all_axes = plt.subplots(
        1,
        len(probability),
        figsize=(4.2 * len(probability), 4.4),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    rng = np.random.default_rng(random_seed)
    for axes, (name, each) in zip(all_axes[0], probability.items(), strict=True):
        p = np.asarray(each, dtype=float)
        grid = np.linspace(p.min(), p.max(), 101)
        curves = [_isotonic(p, rng.uniform(size=len(p)) < p, grid) for _ in range(200)]
        low, high = np.percentile(curves, [5, 95], axis=0)
        axes.fill_between(grid, low, high, color="0.85", label="90 % if calibrated")
        axes.plot([0, 1], [0, 1], color="0.5", lw=0.8)
        axes.plot(grid, _isotonic(p, label, grid), color=POSITIVE, lw=2, label="PAVA")
        axes.plot(p, np.where(label == 1, 1.03, -0.03), "|", color="0.4", ms=5, alpha=0.4)
        axes.set(title=name, xlabel="predicted probability", xlim=(-0.02, 1.02), ylim=(-0.06, 1.06))
    all_axes[0, 0].set_ylabel("frequency")
    handles, names = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def _check_two_classes(probability: Mapping[str, Array]) -> None:
    for name, each in probability.items():
        if np.ndim(each) != 1:
            raise ValueError(
                f"probability[{name!r}] has shape {np.shape(each)}; needed (n,), of the greater of two "
                "classes: of several give one class' column, and whether a row is of that class as label"
            )


def _isotonic(probability: Array, label: Array, grid: Array) -> Array:
    """Return the isotonic fit of labels on probabilities, at the grid."""
    fit = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(probability, label)
    return fit.predict(grid)


@styled
def plot_prior_predictive(
    models: Mapping[str, Any], *, draws: int = 2000, random_seed: int = 0
) -> Figure:
    """Draw the prior predictive of the latent function and of the class probability, per model.

    The signs stay as they are in the model.

    Parameters
    ----------
    models : mapping of str to pm.Model
        Of two classes, with a proper prior each.
    draws : int
    random_seed : int

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If a model is not of two classes.
    """
    links = {name: find_parts(model).likelihood for name, model in models.items()}
    for name, link in links.items():
        if link.targets != "labels":
            raise ValueError(
                f"models[{name!r}] has the likelihood {link}; needed a model of two classes"
            )
    figure, all_axes = plt.subplots(
        2,
        len(models),
        figsize=(3.4 * len(models), 5),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for (top, bottom), (name, model) in zip(all_axes.T, models.items(), strict=True):
        latent = prior_latent(model, draws=draws, random_seed=random_seed).ravel()
        top.hist(np.clip(latent, -12, 12), bins=60, density=True, color=NEGATIVE)
        top.set(
            title=f"{name}\nmedian size {np.median(np.abs(latent)):.2f}", xlabel="latent function"
        )
        bottom.hist(links[name].probability(latent), bins=40, density=True, color=POSITIVE)
        bottom.set(xlabel="P(y = 1)", xlim=(0, 1), xticks=[0, 0.5, 1])
    all_axes[0, 0].set_ylabel("prior density")
    all_axes[1, 0].set_ylabel("prior density")
    return figure


@styled
def plot_rank(posterior: xr.DataTree, n_latent: int = 5) -> Any:
    """Draw ArviZ's rank plot of the bias and of the latent function at some training rows.

    Parameters
    ----------
    posterior : DataTree
        From `sample` or `pymc.sample`.
    n_latent : int
        Number of rows, evenly spaced.

    Returns
    -------
    arviz_plots.PlotCollection
    """
    obs = posterior["posterior"]["obs"].values
    chosen = obs[np.unique(np.linspace(0, len(obs) - 1, n_latent).astype(int))]
    return az.plot_rank(
        posterior,
        var_names=["bias", "latent"],
        coords={"obs": chosen.tolist()},
        backend="matplotlib",
        figure_kwargs={"figsize": (11, 6), "layout": "constrained"},
    )


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
        Of the same model, with two features and two classes.
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
        If there are not two features and two classes.
    """
    X, y = np.asarray(X, dtype=float), np.asarray(y)
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"X has shape {X.shape}; a decision surface needs (n_obs, 2)")
    likelihood = likelihood_of(map_result)
    if likelihood.targets != "labels":
        raise ValueError(
            f"the results have a {likelihood.name} likelihood of {likelihood.n_scores} score(s); a decision "
            "surface needs two classes"
        )
    grid, axes_values = _grid(X, resolution)
    point, mean, width = _surfaces(map_result, _thinned(posterior), grid, kernel)
    figure, all_axes = plt.subplots(
        1, 3, figsize=(14, 4.6), sharex=True, sharey=True, layout="constrained"
    )
    panels = (
        ("MAP plug-in", point, "RdBu_r", 1.0),
        ("posterior mean", mean, "RdBu_r", 1.0),
        ("width of the 89 % interval", width, "viridis", max(width.max(), 1e-3)),
    )
    for axes, (title, values, colours, most) in zip(all_axes, panels, strict=True):
        surface = values.reshape(resolution, resolution)
        image = axes.pcolormesh(*axes_values, surface, cmap=colours, vmin=0, vmax=most, alpha=0.8)
        if values is not width:
            axes.contour(*axes_values, surface, levels=[0.5], colors="black", linewidths=1.5)
        _scatter_classes(axes, X, y, classes_of(map_result))
        axes.set(title=title, xlabel=feature_names[0])
        figure.colorbar(image, ax=axes, shrink=0.85)
    _circle_relevance_vectors(all_axes[0], map_result)
    all_axes[0].set_ylabel(feature_names[1])
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _surfaces(
    map_result: xr.DataTree, posterior: xr.DataTree, grid: Array, kernel: AnyKernel | None
) -> tuple[Array, Array, Array]:
    """Return the MAP's probabilities, the posterior's mean and the width of its interval, at a grid."""
    point, draws = (
        predict(each, grid, kernel=kernel)["predictions"]["probability"].values
        for each in (map_result, posterior)
    )
    width = np.diff(np.percentile(draws, _INTERVAL, axis=(0, 1)), axis=0)[0]
    return point[0, 0], draws.mean(axis=(0, 1)), width


def _circle_relevance_vectors(axes: Axes, map_result: xr.DataTree) -> None:
    """Circle the centres of weights that are not zero, unless that is nearly everything."""
    centres = map_result["constant_data"]["centres"].values
    kept = weights_of(map_result)[0][0] != 0
    if kept.sum() < len(kept) / 2:  # more circles would hide the points
        axes.scatter(
            *centres[kept].T, s=90, facecolors="none", edgecolors="black", label="relevance vectors"
        )


def _thinned(posterior: xr.DataTree, most: int = 1000) -> xr.DataTree:
    """Return evenly spaced draws, enough for a picture, with what a prediction needs."""
    draws = posterior["posterior"].to_dataset()
    step = -(-draws.sizes["chain"] * draws.sizes["draw"] // most)
    thinned = posterior.copy()
    thinned["posterior"] = draws.isel(draw=slice(None, None, step))
    return thinned


def _grid(X: Array, resolution: int) -> tuple[Array, tuple[Array, Array]]:
    """Return grid points, shape (resolution^2, 2), around the data, and the values along the axes."""
    margin = 0.08 * np.ptp(X, axis=0) + 1e-9
    low, high = X.min(axis=0) - margin, X.max(axis=0) + margin
    first = np.linspace(low[0], high[0], resolution)
    second = np.linspace(low[1], high[1], resolution)
    mesh = np.meshgrid(first, second)
    return np.column_stack([mesh[0].ravel(), mesh[1].ravel()]), (first, second)


def _scatter_classes(axes: Axes, X: Array, y: Array, classes: Array) -> None:
    upper = y == classes[1]
    for rows, colour, marker, name in (
        (~upper, NEGATIVE, "o", classes[0]),
        (upper, POSITIVE, "^", classes[1]),
    ):
        axes.scatter(
            *X[rows].T, s=18, c=colour, marker=marker, edgecolors="white", lw=0.4, label=str(name)
        )
