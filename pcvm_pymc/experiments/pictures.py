"""What a first realisation records for the papers' figures, and the figures."""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.model_selection import cross_val_score

from pcvm_pymc.estimators.rvm import RVMClassifier
from pcvm_pymc.experiments.classifiers.makers import KROPOTOV_WIDTHS, log_validity
from pcvm_pymc.experiments.classifiers.tuning import TuningTask, opposed_rows, vector_rows
from pcvm_pymc.experiments.statistics import RANKS_ALPHA, average_ranks
from pcvm_pymc.figures import (
    MARKERS,
    PALETTE,
    class_colours,
    plain_log_ticks,
    scatter_classes,
    styled,
)

type Extra = dict[str, Any]
type Extras = Mapping[tuple[str, str], Extra]

_RESOLUTION = 90
_STYLES = ("-", "--", "-.", ":")


# --- what is recorded ------------------------------------------------------------------------


def _surface(model: Any, task: TuningTask) -> Extra:
    """Return the predicted class over the plane, the training rows and the vectors."""
    low, high = task.X.min(axis=0), task.X.max(axis=0)
    margin = 0.08 * (high - low)
    x1, x2 = (np.linspace(low[j] - margin[j], high[j] + margin[j], _RESOLUTION) for j in range(2))
    grid = np.stack(np.meshgrid(x1, x2), axis=-1).reshape(-1, 2)
    probability = model.predict_proba(grid)
    support = vector_rows(model, task.X)
    weight = np.asarray(getattr(model, "weight_", np.zeros((1, 0))))
    per_vector = np.count_nonzero(np.atleast_2d(weight), axis=0)
    extra: Extra = {
        "x1": x1.tolist(),
        "x2": x2.tolist(),
        "region": probability.argmax(axis=1).tolist(),
        "X": task.X.round(5).tolist(),
        "y": np.searchsorted(model.classes_, task.y).tolist(),
        "support": support.tolist(),
        "weights of support": per_vector.tolist(),
    }
    if len(model.classes_) == 2:
        extra["probability"] = probability[:, 1].round(5).tolist()
    return extra


def _curve(model: Any, task: TuningTask) -> Extra:
    """Return predicted mean and standard deviation along the line, beyond the data too."""
    low, high = task.X.min(), task.X.max()
    x = np.linspace(low - 0.4 * (high - low), high + 0.4 * (high - low), 300)
    mean, std = model.predict(x[:, None], return_std=True)
    return {
        "x": x.tolist(),
        "mean": mean.tolist(),
        "std": std.tolist(),
        "X": task.X[:, 0].tolist(),
        "y": task.y.tolist(),
        "support": vector_rows(model, task.X).tolist(),
        "noise": float(getattr(model, "noise_", np.nan)),
    }


def _widths(model: Any, task: TuningTask) -> Extra:
    """Return the errors and the validity of an RVM at each of Kropotov's widths."""
    folds = task.folds(5)
    rows = []
    for width in KROPOTOV_WIDTHS:
        machine = RVMClassifier(width=width).fit(task.X, task.y)
        rows.append(
            {
                "width": width,
                "train error": 1 - machine.score(task.X, task.y),
                "test error": 1 - machine.score(task.X_test, task.y_test),
                "CV error": 1 - float(cross_val_score(machine, task.X, task.y, cv=folds).mean()),
                "log validity": log_validity(task, width),
            }
        )
    return {"rows": rows}


def _opposed(model: Any, task: TuningTask) -> Extra:
    """Return the surface, and the vectors whose weight's sign opposes their label (a measure besides)."""
    opposed = opposed_rows(model, task.X, task.y)
    return _surface(model, task) | {
        "opposed": opposed.tolist(),
        "width": float(task.given.get("width", np.nan)),
        "measures": {"opposed": float(len(opposed))},
    }


def _margins(model: Any, task: TuningTask) -> Extra:
    """Return the margin 2 P(own label) - 1 of each training and test row, and their means as measures."""
    margins = {}
    for part, X, y in (("training", task.X, task.y), ("test", task.X_test, task.y_test)):
        own = np.searchsorted(model.classes_, y)
        margins[part] = 2.0 * model.predict_proba(X)[np.arange(len(X)), own] - 1.0
    means = {f"{part} margin": float(each.mean()) for part, each in margins.items()}
    return {part: each.round(5).tolist() for part, each in margins.items()} | {"measures": means}


# what they have under "measures" joins the measures of the job
EXTRAS: dict[str, Callable[[Any, TuningTask], Extra]] = {
    "surface": _surface,
    "opposed": _opposed,
    "margins": _margins,
    "curve": _curve,
    "widths": _widths,
}


# --- what is drawn ---------------------------------------------------------------------------


def _panels(
    n: int, width: float = 3.6, height: float = 3.3, columns: int = 4
) -> tuple[Figure, list[Any]]:
    columns = min(n, columns)
    rows = -(-n // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False
    )
    flat = list(axes.flat)
    for axis in flat[n:]:
        axis.set_visible(False)
    return figure, flat[:n]


def _scatter(axis: Any, extra: Extra) -> None:
    """Draw the training rows."""
    X, y = np.array(extra["X"]), np.array(extra["y"])
    axis.set(xlabel="x1", ylabel="x2")
    scatter_classes(axis, X, y, {c: f"class {c + 1}" for c in range(int(y.max()) + 1)}, size=12)


def _legend_below(figure: Figure, axes: list[Any]) -> None:
    """Write what the panels show below them, each name once, in as many columns as there is room for."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    longest = max(map(len, named))
    columns = max(1, min(6, int(figure.get_figwidth() / (0.6 + 0.075 * longest))))
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=columns)


@styled
def draw_regions(extras: Extras) -> Figure:
    """Draw the regions of the classes, the training rows, and circles around the vectors."""
    figure, axes = _panels(len(extras))
    for axis, ((name, classifier), extra) in zip(axes, extras.items(), strict=True):
        region = np.array(extra["region"]).reshape(len(extra["x2"]), len(extra["x1"]))
        n_classes = int(max(*extra["region"], *extra["y"])) + 1
        colours = ListedColormap(class_colours(n_classes))
        axis.pcolormesh(
            extra["x1"],
            extra["x2"],
            region,
            cmap=colours,
            vmin=-0.5,
            vmax=n_classes - 0.5,
            alpha=0.25,
        )
        _scatter(axis, extra)
        vectors = np.array(extra["X"])[extra["support"]]
        if len(vectors):
            axis.scatter(
                *vectors.T, s=55, facecolor="none", edgecolor="black", lw=1.0, label="vectors"
            )
        n_weights = sum(extra["weights of support"])
        axis.set_title(
            f"{classifier} on {name}\n{len(vectors)} vectors, {n_weights} weights", fontsize=9
        )
    _legend_below(figure, axes)
    return figure


@styled
def draw_opposed(extras: Extras) -> Figure:
    """Draw boundaries, vectors, and circles around those whose weight's sign opposes their label."""
    columns = len({classifier for _, classifier in extras})
    figure, axes = _panels(len(extras), columns=columns)
    for axis, ((name, classifier), extra) in zip(axes, extras.items(), strict=True):
        _scatter(axis, extra)
        X = np.array(extra["X"])
        axis.plot(*X[extra["support"]].T, "+", color="black", ms=5, mew=0.8, label="vectors")
        axis.scatter(
            *X[extra["opposed"]].T,
            s=60,
            facecolor="none",
            edgecolor="black",
            lw=1.2,
            label="weight opposes label",
        )
        level = np.array(extra["probability"]).reshape(len(extra["x2"]), len(extra["x1"]))
        axis.contour(extra["x1"], extra["x2"], level, levels=[0.5], colors=[PALETTE[2]])
        axis.set_title(
            f"{classifier}, width {extra['width']:g}, {name}\n{len(extra['support'])} vectors, "
            f"{len(extra['opposed'])} opposed",
            fontsize=9,
        )
    axes[0].plot([], [], color=PALETTE[2], label="boundary")
    _legend_below(figure, axes)
    return figure


@styled
def draw_margins(extras: Extras) -> Figure:
    """Draw the distribution of margins over training (solid) and test rows, a panel for each set.

    The first classifier's is compared with the second's, row by row.
    """
    sets = list(dict.fromkeys(name for name, _ in extras))
    classifiers = list(dict.fromkeys(name for _, name in extras))
    figure, axes = _panels(len(sets))
    colours = class_colours(len(classifiers))
    for axis, name in zip(axes, sets, strict=True):
        for colour, classifier in zip(colours, classifiers, strict=True):
            extra = extras.get((name, classifier))
            if extra is None:
                continue
            axis.ecdf(extra["training"], color=colour, lw=1.4, label=classifier)
            axis.ecdf(extra["test"], color=colour, lw=1.0, ls=":")
        axis.set(xlabel="margin", ylabel="share of rows below")
        title = name
        pair = [extras.get((name, each)) for each in classifiers[:2]]
        if len(pair) == 2 and None not in pair:
            first, second = (np.array(each["training"]) for each in pair if each is not None)
            share = 100 * np.mean(first > second)
            title += (
                f": {classifiers[0]} is above {classifiers[1]}\nat {share:.0f} % of training rows"
            )
        axis.set_title(title, fontsize=9)
    axes[0].plot([], [], color="0.4", ls=":", label="test rows")
    _legend_below(figure, axes)
    return figure


@styled
def draw_boundaries(extras: Extras) -> Figure:
    """Draw the boundary of every classifier, one panel for each set."""
    sets = list(dict.fromkeys(name for name, _ in extras))
    classifiers = list(dict.fromkeys(name for _, name in extras))
    figure, axes = _panels(len(sets))
    # black and the later colours: the first are the classes'
    colours = [PALETTE[-1 - i % (len(PALETTE) - 2)] for i in range(len(classifiers))]
    for axis, name in zip(axes, sets, strict=True):
        for i, classifier in enumerate(classifiers):
            extra = extras.get((name, classifier))
            if extra is None:
                continue
            if i == 0:
                _scatter(axis, extra)
            level = np.array(extra["probability"]).reshape(len(extra["x2"]), len(extra["x1"]))
            axis.contour(
                extra["x1"],
                extra["x2"],
                level,
                levels=[0.5],
                colors=[colours[i]],
                linestyles=_STYLES[i % 4],
                linewidths=1.6,
            )
        axis.set_title(name, fontsize=10)
    for i, each in enumerate(classifiers):
        axes[0].plot([], [], color=colours[i], ls=_STYLES[i % 4], label=f"boundary of {each}")
    _legend_below(figure, axes)
    return figure


@styled
def draw_curves(extras: Extras) -> Figure:
    """Draw predictive mean and two standard deviations, and circles around the vectors."""
    figure, axes = _panels(len(extras), width=4.6)
    for axis, ((name, classifier), extra) in zip(axes, extras.items(), strict=True):
        x, mean, std = (np.array(extra[key]) for key in ("x", "mean", "std"))
        X, y = np.array(extra["X"]), np.array(extra["y"])
        low, high = mean - 2 * std, mean + 2 * std
        axis.fill_between(x, low, high, alpha=0.2, lw=0, label="two standard deviations")
        axis.plot(x, mean, lw=1.5, label="predicted mean")
        axis.plot(X, y, ".", color="black", ms=3, label="training rows")
        kept = extra["support"]
        axis.plot(X[kept], y[kept], "o", mfc="none", mec=PALETTE[1], ms=7, label="vectors")
        axis.set(xlabel="x", ylabel="target")
        noise = f", noise {extra['noise']:.3g}" if np.isfinite(extra["noise"]) else ""
        axis.set_title(f"{classifier} on {name}: {len(kept)} vectors{noise}", fontsize=9)
        spread = np.ptp(y)
        axis.set_ylim(y.min() - 0.8 * spread, y.max() + 0.8 * spread)
    _legend_below(figure, axes)
    return figure


@styled
def draw_widths(extras: Extras) -> Figure:
    """Draw the errors and the validity against the width (Kropotov et al. 2006, Fig. 6)."""
    extra = next(iter(extras.values()))
    table = pd.DataFrame(extra["rows"])
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 5.0))
    for key, style in (("train error", "x-"), ("test error", "s-"), ("CV error", "o--")):
        upper.plot(table["width"], 100 * table[key], style, label=key, ms=5)
    upper.set_ylabel("error, %")
    upper.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    finite = table[np.isfinite(table["log validity"])]
    lower.plot(finite["width"], finite["log validity"], "o-", color="grey", ms=5)
    lower.set_ylabel("log validity")
    lower.set_xlabel("width (the paper's $\\sigma$ times $\\sqrt{2}$)")
    lower.set_xscale("log")
    plain_log_ticks(lower.xaxis)
    return figure


@styled
def draw_lines(mean: pd.DataFrame, std: pd.DataFrame, unit: str, xlabel: str) -> Figure:
    """Draw a measure against what the sets grow in.

    Parameters
    ----------
    mean, std : DataFrame
        A row for each set, indexed by a whole number, a column for each classifier.
    unit, xlabel : str
    """
    figure, axis = plt.subplots(figsize=(6.4, 4.0))
    colours = class_colours(mean.shape[1])
    for i, name in enumerate(mean):
        axis.errorbar(
            mean.index,
            mean[name],
            std[name].fillna(0.0),
            fmt=f"{MARKERS[i % len(MARKERS)]}{_STYLES[i % 4]}",
            ms=4,
            capsize=2,
            color=colours[i],
            label=name,
        )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel(xlabel)
    axis.set_ylabel(unit)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@styled
def draw_ranks(table: pd.DataFrame, title: str, *, higher_is_better: bool = False) -> Figure:
    """Draw scikit-posthocs' critical-difference diagram: bars join what does not differ by Nemenyi's test.

    Parameters
    ----------
    table : DataFrame
        A row for each set, a column for each classifier, no value missing.
    title : str
    higher_is_better : bool

    Raises
    ------
    ImportError
        If scikit-posthocs, an extra, is missing.
    """
    from scikit_posthocs import critical_difference_diagram, posthoc_nemenyi_friedman

    ranks = average_ranks(table, higher_is_better=higher_is_better)
    half = -(-len(ranks) // 2)
    figure, axis = plt.subplots(figsize=(8.0, 1.5 + 0.32 * half))
    critical_difference_diagram(
        ranks,
        posthoc_nemenyi_friedman(table),
        alpha=RANKS_ALPHA,
        ax=axis,
        label_fmt_left="{label} ({rank:.2f}) ",
        label_fmt_right=" {label} ({rank:.2f})",
        label_props={"fontsize": 8},
        elbow_props={"color": "#444444", "lw": 0.8},
        marker_props={"s": 14},
        crossbar_props={"color": PALETTE[0], "linewidth": 2.5},
    )
    axis.spines["top"].set_visible(True)  # the axis of ranks
    axis.tick_params(labelsize=8)
    said = f"bars join what Nemenyi's test at {RANKS_ALPHA:.2f} does not tell apart"
    axis.set_title(f"{title}: mean ranks; {said}", fontsize=9)
    return figure
