"""Figures of hyperparameter searches and projections, and the style of all figures.

matplotlib is imported once one is drawn.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# told apart by the colour-blind too (Okabe & Ito 2008), and by their lightness
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5c4a9c", "#000000")
NEGATIVE, POSITIVE = PALETTE[:2]
MARKERS = "o^sDvP*X<>"
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.titlesize": "medium",
    "axes.titleweight": "normal",
    "axes.labelsize": "medium",
    "figure.autolayout": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10.0,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "lines.linewidth": 1.5,
    "xtick.labelsize": "small",
    "ytick.labelsize": "small",
}


def styled[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws a figure: it is drawn in the style of the package.

    Settings of the style alone are set, and put back afterwards. `matplotlib.pyplot.rc_context` would put
    back all of them: among these whether figures are shown, which a notebook sets at its first figure.
    """

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        from cycler import cycler
        from matplotlib import rcParams

        style: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=PALETTE)}
        before = {name: rcParams[name] for name in style}
        rcParams.update(style)
        try:
            return draw(*args, **kwargs)
        finally:
            rcParams.update(before)

    return drawn


def class_colours(n: int) -> list[Any]:
    """Return a colour for each of n classes or classifiers."""
    if n <= len(PALETTE):
        return list(PALETTE[:n])
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 1, n)))


def scatter_classes(axes: Any, X: Any, y: Any, names: Mapping[Any, str], *, size: float) -> None:
    """Draw rows in a plane, each class of `names` in its colour and with its marker, for a legend."""
    for c, (kind, colour) in enumerate(zip(names, class_colours(len(names)), strict=True)):
        axes.scatter(
            *X[y == kind].T,
            s=size,
            color=colour,
            marker=MARKERS[c % len(MARKERS)],
            edgecolors="white",
            lw=0.4,
            label=names[kind],
        )


def plain_log_ticks(axis: Any) -> None:
    """Label a logarithmic axis by plain numbers, as many as there is room for.

    matplotlib's own would be powers of ten, and on less than a decade labels of its minor ticks that run
    into each other.

    Parameters
    ----------
    axis : matplotlib.axis.Axis
        With its limits as they are to stay.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = sorted(axis.get_view_interval())
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    axis.set_major_locator(MaxNLocator(4))  # where no set has three labels: far less than a decade
    axis.set_minor_locator(NullLocator())
    for subs in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = np.outer(powers, subs)
        if ((ticks >= low) & (ticks <= high)).sum() >= 3:
            axis.set_major_locator(LogLocator(subs=subs))
            break
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Any, axes: Any, **kwargs: Any) -> None:
    """Draw the legend of some axes below all of them: within, it would cover what is drawn."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        place = {"loc": "outside lower center", "ncols": len(labels)}
        figure.legend(handles, labels, **place | kwargs)


@styled
def plot_projection_path(projection: Any) -> "Figure":
    """Draw elpd per row and divergence from the reference against the number of vectors.

    The bars are what the choice goes by: standard errors of the difference to the best size. Sizes far
    below the best are outside the left picture.

    Parameters
    ----------
    projection : Projection
        From `project`. Without cross-validated scores only the divergence is drawn.

    Returns
    -------
    matplotlib.figure.Figure
    """
    import matplotlib.pyplot as plt

    sizes, kl, n = projection.path.sizes, projection.path.kl, projection.log_density.shape[1]
    columns, size = (2, (10, 4)) if n else (1, (5.5, 4))
    figure, panels = plt.subplots(1, columns, figsize=size, squeeze=False)
    if n:
        left, elpd, error = panels[0, 0], projection.elpd / n, projection.difference_se / n
        label, style = "elpd ± 1 SE of its difference to the best", {"fmt": ".-", "elinewidth": 1}
        left.errorbar(sizes, elpd, error, color=NEGATIVE, label=label, **style)
        dense = projection.reference_elpd / n
        left.axhline(dense, color="0.3", ls="--", lw=1, label=f"dense reference ({dense:.3f})")
        # the first sizes are far below: they would flatten what the choice is made among
        near = elpd > elpd.max() - max(10 * error[projection.index], 0.1)
        low, high = (elpd - error)[near].min(), max((elpd + error)[near].max(), dense)
        margin = 0.1 * (high - low) + 1e-3
        left.set(ylabel="elpd per row (cross-validated)", ylim=(low - margin, high + margin))
    right, positive = panels[0, -1], kl > 0
    right.semilogy(sizes[positive], kl[positive], ".-", color=NEGATIVE, label="divergence")
    right.set(ylabel="divergence (nats per row)")
    plain_log_ticks(right.yaxis)
    for axes in panels[0]:
        axes.axvline(projection.size, color=POSITIVE, label=f"chosen: {projection.size} vectors")
        axes.set(xlabel="number of vectors")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
    return figure


@styled
def plot_cells(selection: Any) -> "Figure":
    """Draw the leave-one-out log loss of each grid point, of a width and a scale; a panel for each kernel.

    The colour is the log loss, the area of a disc the weight in the average; the ring is the grid point that
    counts most. Widths per feature are drawn at their geometric mean. Titles have the kernels' weights.

    Parameters
    ----------
    selection : HyperparameterSearch
        From `select`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    import matplotlib.pyplot as plt

    kernels = selection.kernels if len(selection.kernels) > 1 else {"": 1.0}
    rows = -(-len(kernels) // 2)
    size, columns = (6.5, 4.2) if rows == 1 else (8.0, 6.4), min(2, len(kernels))
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
    loss, best = selection.log_loss, selection.best
    limits = {"vmin": loss.min(), "vmax": min(loss.max(), loss.min() + 0.3)}
    square: dict[str, Any] = {"s": 420 / rows, "marker": "s"}
    for axes, (name, share) in zip(grid.flat, kernels.items(), strict=False):
        part = [not name or point.kernel_name == name for point in selection.points]
        points = [point for point, mine in zip(selection.points, part, strict=True) if mine]
        scales = [point.scale for point in points]
        widths = [np.exp(np.mean(np.log(point.width))) for point in points]
        drawn = axes.scatter(widths, scales, c=loss[part], cmap="viridis", **limits, **square)
        discs = 360 / rows * selection.weights[part] / selection.weights.max()
        axes.scatter(widths, scales, s=discs, color="white", zorder=3)
        for width, point in zip(widths, points, strict=True):
            if point is best:
                axes.scatter(
                    [width], [point.scale], fc="none", ec=POSITIVE, lw=2, zorder=4, **square
                )
        axes.set(xscale="log", yscale="log", xlabel="width")
        if name:
            axes.set_title(f"{name}\nweight {share:.2f}")
        axes.margins(0.12)
        plain_log_ticks(axes.xaxis)
        plain_log_ticks(axes.yaxis)
    for axes in grid[:, 0]:
        axes.set_ylabel("scale of the weights' prior")
    for axes in grid.flat[len(kernels) :]:
        axes.set_axis_off()
    figure.colorbar(drawn, ax=grid, label="log loss left out (nats per row)", extend="max")
    return figure


_CRITERIA = {
    "cv": "held-out\nlog density per row",
    "evidence": "log evidence\n(probit RVM)",
    "validity": "log validity\n(PCVM)",
}


@styled
def plot_width_criteria(selections: Iterable[Any]) -> "Figure":
    """Draw the criteria that widths were chosen by, one below the other, with the choice of each.

    As in Kropotov et al. (2006), Fig. 6; more is better in every panel. Bars of what was cross-validated are
    standard errors over the folds.

    Parameters
    ----------
    selections : iterable of HyperparameterSearch
        From `select`, one for each method but ``"loo"``, over the same candidates.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If no selection by such a method has scores.
    """
    import matplotlib.pyplot as plt

    scored = [search for search in selections if np.isfinite(search.scores).any()]
    if not scored or any(search.method not in _CRITERIA for search in scored):
        needed = f"needed selections that have scores, by {', '.join(map(repr, _CRITERIA))}"
        raise ValueError(f"nothing was scored, or by another method; {needed}")
    size = (7.5, 0.8 + 2.2 * len(scored))
    figure, panels = plt.subplots(len(scored), sharex=True, squeeze=False, figsize=size)
    for axes, search in zip(panels[:, 0], scored, strict=True):
        loss, bars = search.fold_log_loss, None
        if loss.shape[1] > 1:  # a mean over folds
            # none where folds are missing: such a score is relative to the best
            bars = loss.filled(np.nan).std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        axes.errorbar(search.widths, search.scores, bars, fmt=".-", color=NEGATIVE, elinewidth=1)
        axes.axvline(search.width, color=POSITIVE, label=f"chosen: {search.width:.3g}")
        axes.set(ylabel=_CRITERIA[search.method])
        # above the panel: within, it would cover the curve or the line
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    panels[-1, 0].set(xscale="log", xlabel="width")
    plain_log_ticks(panels[-1, 0].xaxis)
    return figure
