"""Pictures of ``pcvm compare``: calibration, weights and chains of the classifiers in its table."""

from pathlib import Path
from typing import Any

import arviz as az
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.calibration import calibration_curve

from pcvm_pymc.assessment.plots import plot_decision_surface
from pcvm_pymc.figures import NEGATIVE, POSITIVE, class_colours, styled
from pcvm_pymc.inference.results import weights_of
from pcvm_pymc.storage import writing

_BINS = 10
_N_LATENT = 6  # training rows whose latent function is shown
_INTERVAL = (5.5, 50.0, 94.5)


def draw_comparison(
    out: Path,
    scored: Any,
    models: dict[str, Any],
    results: dict[str, Any],
    *,
    split: Any,
    features: tuple[str, ...],
) -> None:
    """Write the pictures into a folder."""
    mpl.use("Agg")
    _write(draw_calibration(scored), out / "reliability.png")
    _write(draw_chains(results["posterior"], results["verdict"]), out / "rank.png")
    if len(scored.classes) == 2:
        _write(draw_weights(models, results["posterior"]), out / "weights.png")
        X, y, _, _ = split
        if X.shape[1] == len(features) == 2:  # a column of text may have become several
            figure = plot_decision_surface(
                results["mode"], results["posterior"], X, y, feature_names=features
            )
            _write(figure, out / "decision_surface.png")
    plt.close("all")


def _write(figure: Figure, path: Path) -> None:
    try:
        with writing(path):
            figure.savefig(path, dpi=120)
    except OSError:
        path.unlink(missing_ok=True)
        raise


@styled
def draw_calibration(scored: Any) -> Figure:
    """Draw observed against predicted frequencies of each classifier, over the test rows of all its splits.

    Bars are twice the standard error between splits, grey bars the share of rows. Several classes are drawn
    together, each against the rest.
    """
    mean = scored.tables()[0]
    columns = 3
    n_rows = -(-len(mean) // columns)
    figure, panels = plt.subplots(
        n_rows,
        columns,
        figsize=(3.3 * columns, 3.3 * n_rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (name, row) in zip(panels.flat, mean.iterrows(), strict=False):
        pairs = [
            _against_the_rest(label, probability, len(scored.classes))
            for label, probability in zip(scored.labels, scored.probability[name], strict=False)
        ]
        _draw_reliability(axes, pairs)
        n_splits = int(row["splits"])
        over = f"{n_splits} split" + "s" * (n_splits > 1)
        axes.set_title(f"{name} ({over})\nlog loss {row['log loss']:.3f}, ECE {row['ECE']:.3f}")
    for axes in panels.flat[len(mean) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("observed frequency")
    for axes in panels[-1]:
        axes.set_xlabel("predicted probability")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_reliability(axes: Any, pairs: list[Any]) -> None:
    """Draw frequencies of labels against predicted probabilities, given both for each split."""
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    member, stated = (np.concatenate(each) for each in zip(*pairs, strict=True))
    counts = np.histogram(stated, edges)[0]
    share = counts / counts.sum()
    axes.bar((edges[:-1] + edges[1:]) / 2, share, 0.09, color="0.88", label="share of rows")
    axes.plot([0, 1], [0, 1], color="0.5", lw=0.8, label="calibrated")
    frequency, predicted = calibration_curve(member, stated, n_bins=_BINS)
    axes.errorbar(
        predicted,
        frequency,
        2 * _standard_errors(pairs, edges)[counts > 0],
        fmt="o-",
        ms=4,
        capsize=2,
        color=NEGATIVE,
        label="frequency ± 2 standard errors",
    )
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _against_the_rest(label: Any, probability: Any, n_classes: int) -> tuple[Any, Any]:
    """Return whether each row is of a class, and its predicted probability, of several classes one by one."""
    if probability.ndim == 1:
        return label == 1, np.clip(probability, 0.0, 1.0)
    member = label[:, None] == np.arange(n_classes)
    return member.ravel(), np.clip(probability.ravel(), 0.0, 1.0)


def _standard_errors(pairs: list[Any], edges: Any) -> Any:
    """Return the standard error, between splits, of the frequency in each bin; zero in a single split's."""
    by_split = np.full((len(pairs), len(edges) - 1), np.nan)
    for i, (member, stated) in enumerate(pairs):
        place = np.searchsorted(edges[1:-1], stated)
        counts = np.bincount(place, minlength=len(edges) - 1)
        hits = np.bincount(place, member, minlength=len(edges) - 1)
        by_split[i, counts > 0] = hits[counts > 0] / counts[counts > 0]
    n = np.isfinite(by_split).sum(axis=0)
    gap = by_split - np.nansum(by_split, axis=0) / np.maximum(n, 1)
    return np.sqrt(np.nansum(gap**2, axis=0) / np.maximum(n - 1, 1) / np.maximum(n, 1))


@styled
def draw_weights(models: dict[str, Any], posterior: Any) -> Figure:
    """Draw the sorted weights of the table's classifiers on the first split; of the posterior intervals."""
    draws = weights_of(posterior)[0]
    low, middle, high = np.percentile(draws.reshape(-1, draws.shape[-1]), _INTERVAL, axis=0)
    order = np.argsort(middle)
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.4), layout="constrained")
    axes = panels[0, 0]
    rank = np.arange(len(order))
    axes.vlines(rank, low[order], high[order], color="0.75", lw=2, label="89 % interval")
    axes.plot(rank, middle[order], ".", color="black", ms=4, label="median")
    axes.set_title(f"posterior mean: {len(order)} weights, none exactly zero")
    named = {
        "averaged MAP": "averaged MAP, its best mode",
        "its ten vectors": "its ten vectors",
        "paper's sparse MAP": "paper's sparse MAP",
    }
    for axes, (name, said) in zip(panels.flat[1:], named.items(), strict=True):
        weight = np.sort(np.ravel(models[name].weight_))
        for sign, colour in ((-1, NEGATIVE), (1, POSITIVE)):
            own = np.flatnonzero(sign * weight > 0)
            axes.vlines(own, 0.0, weight[own], color=colour, lw=1.2)
            axes.plot(own, weight[own], "o", color=colour, ms=3)
        axes.set_title(f"{said}: {len(weight)} weights not zero")
        axes.xaxis.get_major_locator().set_params(integer=True)
    classes = models["averaged MAP"].classes_
    for each, colour in zip(classes, (NEGATIVE, POSITIVE), strict=True):
        panels[0, 1].plot([], [], "o-", color=colour, ms=3, label=f"towards {each}")
    for axes in panels.flat:
        axes.axhline(0.0, color="black", lw=0.8)
    for axes in panels[:, 0]:
        axes.set_ylabel("weight")
    for axes in panels[-1]:
        axes.set_xlabel("basis functions, sorted by weight")
    handles, labels = (
        [*one, *other]
        for one, other in zip(
            panels[0, 0].get_legend_handles_labels(),
            panels[0, 1].get_legend_handles_labels(),
            strict=True,
        )
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


@styled
def draw_chains(posterior: Any, verdict: str) -> Figure:
    """Draw how far the ranks of each chain's draws are from uniform (ArviZ), under the verdict."""
    obs = posterior["posterior"]["obs"].values
    chosen = obs[np.unique(np.linspace(0, len(obs) - 1, _N_LATENT).astype(int))]
    drawn = az.plot_rank(
        posterior,
        var_names=["latent"],
        coords={"obs": chosen.tolist()},
        backend="matplotlib",
        col_wrap=3,
        figure_kwargs={"figsize": (10, 6.4), "layout": "constrained"},
    )
    figure: Figure = drawn.viz["figure"].item()
    n_chains = posterior["posterior"].sizes["chain"]
    panels = [axes for axes in figure.axes if axes.lines]
    limit = max(abs(bound) for axes in panels for bound in axes.get_ylim())
    for axes in figure.axes:
        axes.set_visible(axes in panels)
    for axes in panels:
        for line, colour in zip(axes.lines, class_colours(n_chains), strict=False):
            line.set_color(colour)
        axes.axhline(0.0, color="0.5", lw=0.8)
        axes.spines["left"].set_visible(True)
        axes.set(ylim=(-limit, limit), xlabel="rank, as a share of all draws")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.tick_params(axis="y", left=True, labelleft=True)
        axes.set_title(axes.get_title().replace("latent\n", "latent function, training row "))
    figure.supylabel("share of the chain's draws below the rank, less the rank", fontsize="medium")
    names = [f"chain {i + 1}" for i in range(n_chains)]
    figure.legend(panels[0].lines[:n_chains], names, loc="outside lower center", ncols=n_chains)
    figure.suptitle(
        f"First split: {verdict}\nChains that agree stay near zero; p is of the hypothesis that they do",
        fontsize="medium",
    )
    return figure
