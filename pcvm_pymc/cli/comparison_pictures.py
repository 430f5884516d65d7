"""Pictures of ``pcvm compare``: calibration, weights and chains of the classifiers in its table."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcvm_pymc.assessment.plots import (
    draw_calibration_curve,
    draw_weight_intervals,
    panels_of,
    plot_decision_surface,
    plot_rank,
)
from pcvm_pymc.figures import NEGATIVE, POSITIVE, class_colours, styled
from pcvm_pymc.inference.files import writing
from pcvm_pymc.inference.results import weights_of

_COLUMNS = 3


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


def _label(panels: Any, x: str, y: str) -> None:
    """Label the axes at the edge of a figure."""
    for axes in panels[-1]:
        axes.set_xlabel(x)
    for axes in panels[:, 0]:
        axes.set_ylabel(y)


@styled
def draw_calibration(scored: Any) -> Figure:
    """Draw the calibration curve of each classifier over the test rows of all its splits.

    Several classes are drawn together, each against the rest.
    """
    mean, n_classes = scored.tables()[0], len(scored.classes)
    shape = -(-len(mean) // _COLUMNS), _COLUMNS
    figure, panels = panels_of(*shape, (3.3 * shape[1], 3.3 * shape[0]), sharex=True, sharey=True)
    rng = np.random.default_rng(0)
    for axes, (name, row) in zip(panels.flat, mean.iterrows(), strict=False):
        stated = np.concatenate(scored.probability[name])
        label = np.concatenate(scored.labels[: len(scored.probability[name])])
        member = label == 1 if stated.ndim == 1 else label[:, None] == np.arange(n_classes)
        draw_calibration_curve(axes, member.ravel(), np.clip(stated.ravel(), 0.0, 1.0), rng)
        over = f"{row['splits']:.0f} split{'s' if row['splits'] > 1 else ''}"
        axes.set_title(f"{name} ({over})\nlog loss {row['log loss']:.3f}, ECE {row['ECE']:.3f}")
    for axes in panels.flat[len(mean) :]:
        axes.set_visible(False)
    _label(panels, "predicted probability", "observed frequency")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def draw_weights(models: dict[str, Any], posterior: Any) -> Figure:
    """Draw the sorted weights of the table's classifiers on the first split; of the posterior intervals."""
    figure, panels = panels_of(2, 2, (9.5, 6.4))
    draws = weights_of(posterior)[0]
    draw_weight_intervals(panels[0, 0], draws)
    panels[0, 0].set_title(f"posterior mean: {draws.shape[1]} weights, none exactly zero")
    for axes, name in zip(
        panels.flat[1:], ("averaged MAP", "its ten vectors", "paper's sparse MAP"), strict=True
    ):
        weight = np.sort(np.ravel(models[name].weight_))
        for sign, colour, each in zip(
            (-1, 1), (NEGATIVE, POSITIVE), models[name].classes_, strict=True
        ):
            own = np.flatnonzero(sign * weight > 0)
            axes.vlines(own, 0.0, weight[own], color=colour, lw=1.2)
            axes.plot(own, weight[own], "o", color=colour, ms=3, label=f"towards {each}")
        said = f"{name}, its best mode" if name == "averaged MAP" else name
        axes.set_title(f"{said}: {len(weight)} weights not zero")
        axes.axhline(0.0, color="black", lw=0.8)
        axes.xaxis.get_major_locator().set_params(integer=True)
    _label(panels, "basis functions, sorted by weight", "weight")
    handles = [each for axes in panels[0] for each in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


@styled
def draw_chains(posterior: Any, verdict: str) -> Figure:
    """Draw how far the ranks of each chain's draws are from uniform (ArviZ), under the verdict."""
    figure: Figure = plot_rank(posterior).viz["figure"].item()
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
