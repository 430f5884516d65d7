"""Draw the pictures of the site: ``uv run python docs/draw.py [NAME ...]``.

What is measured is read from the tables of the site and of the benchmarks, so that pictures and tables agree.
"""

import re
import sys
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import FancyBboxPatch
from PIL import Image
from pymc.model_graph import ModelGraph
from scipy.special import ndtr
from scipy.stats import rankdata
from sklearn.datasets import make_moons

from pcvm_pymc import PCVMClassifier, find_map_em, pcvm_model, plots, predict, project, sample
from pcvm_pymc.core.em import Start, fit_em
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.experiments.datasets import ripley_mixture
from pcvm_pymc.figures import NEGATIVE, PALETTE, POSITIVE, legend_below, styled
from pcvm_pymc.model.read import read

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "_static"
# headings of the benchmarks' table of peers, as the site names them
PEERS = {
    "**default**": "PCVMClassifier()",
    "RBF": "the same, RBF alone",
    "RBF, one width": "the same, RBF, one width",
    "SVC": "SVC, tuned",
    "boosting": "scikit-learn's boosting",
    "the same, widths": "Gaussian process, widths",
}


def keep(figure: Any, name: str) -> None:
    """Write a picture in few colours."""
    figure.savefig(FOLDER / name, dpi=80)
    Image.open(FOLDER / name).convert("RGB").quantize(96).save(FOLDER / name, optimize=True)


def surface() -> Any:
    """Draw a mode and a posterior of Ripley's mixture."""
    X, label = ripley_mixture(150, random_state=8)
    y = np.where(label > 0, "class 1", "class 0")
    model = pcvm_model(X, y, width=0.5)
    mode = find_map_em(model, progressbar=False)
    posterior = sample(model, random_seed=1, progressbar=False)
    return plots.plot_decision_surface(mode, posterior, X, y, resolution=150)


def stack_panels() -> None:
    """Cut the picture of the surface behind its colour bars, and stack its panels, for a phone."""
    image = Image.open(FOLDER / "surface.png").convert("RGB")
    width, height = image.size
    cuts = [0, round(0.36 * width), round(0.68 * width), width]
    tall = Image.new("RGB", (cuts[1], 3 * height), "white")
    for k, (left, right) in enumerate(pairwise(cuts)):
        tall.paste(image.crop((left, 0, right, height)), (cuts[1] - right + left, k * height))
    tall.quantize(96).save(FOLDER / "surface_tall.png", optimize=True)


def path() -> Any:
    """Draw the choice of a number of vectors."""
    X, y = ripley_mixture(120, random_state=0)
    full = PCVMClassifier(width=0.6).fit(X, y)
    drawn = project(full, X, y, random_state=1).plot()
    return getattr(drawn, "figure", drawn)


def how_sure() -> Any:
    """Draw intervals of the posterior, by few rows and by many."""
    new = np.linspace(-3.0, 3.0, 200)[:, None]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, n in zip(axes, (40, 400), strict=True):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(n, 1))
        y = rng.uniform(size=n) < ndtr(1.5 * np.sin(2.0 * x[:, 0]))
        model = PCVMClassifier(estimation="posterior", random_state=0).fit(x, y)
        low, high = model.predict_interval(new)[:, 1].T
        axis.fill_between(new[:, 0], low, high, alpha=0.3, label="89 % interval")
        axis.plot(new, model.predict_proba(new)[:, 1], label="posterior mean")
        axis.plot(new, ndtr(1.5 * np.sin(2.0 * new)), "k--", label="true probability")
        axis.plot(x[:, 0], y, "|", color="grey", label="rows")
        axis.set(xlabel="x", title=f"{n} rows")
    axes[0].set_ylabel("probability of class 1")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def relevance() -> Any:
    """Draw which of six features matter, as in the tutorial."""
    rng = np.random.default_rng(0)
    names = ["height", "weight", "noise 1", "noise 2", "noise 3", "noise 4"]
    X = pd.DataFrame(rng.normal(size=(150, 6)), columns=names)
    y = np.where(X["height"].abs() + 0.5 * X["weight"] ** 2 > 1, "out", "in")
    return plots.plot_feature_relevance(PCVMClassifier(random_state=0).fit(X, y))


def kernels() -> Any:
    """Draw the weights of the kernels on five kinds of data."""
    rng, n = np.random.default_rng(0), 200
    x, level = rng.normal(size=(n, 4)), rng.integers(0, 8, n)
    noise, towns = rng.normal(size=n), np.array([3.0, -2.0, 1.0, -3.0, 2.0, -1.0, 3.0, -3.0])
    levels = pd.DataFrame({"level": pd.Categorical(level), "x": x[:, 0]})
    skewed = np.exp(1.5 * x)
    kinds = {
        "smooth": (x, np.sin(2.0 * x[:, 0]) + x[:, 1] > 0),
        "thresholds": (x, np.where(x[:, 0] > 0, x[:, 1] > 0.5, x[:, 2] > -0.5)),
        "skewed": (skewed / skewed.std(axis=0), x[:, 0] + x[:, 1] > 0),
        "levels in order": (levels, level + 2.0 * x[:, 0] + noise > 4.0),
        "levels without order": (levels, towns[level] + 2.0 * x[:, 0] + noise > 0),
    }
    found = {}
    for kind, (X, y) in kinds.items():
        found[kind] = PCVMClassifier(random_state=0).fit(X, y).selection_.kernels
    frame = pd.DataFrame(found).T.fillna(0.0).iloc[::-1]
    columns = [
        f"{name}{view}" for view in ("", " of ranks", " of codes") for name in ("rbf", "laplacian")
    ]
    figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
    colours = ["#1f5a94", "#8fbbe3", "#b4561f", "#efb184", "#2c7a4b", "#97d1ac"]
    frame[columns].plot.barh(stacked=True, ax=axis, color=colours, legend=False)
    axis.set(xlabel="weight in the average", xlim=(0, 1))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right center")
    return figure


def rows_of(page: Path, head: str) -> list[list[str]]:
    """Return the rows of the table of a page whose head has these words; the first is the head."""
    lines = page.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|") and head in line)
    table = takewhile(lambda line: line.startswith("|"), lines[first:])
    rows = [[each.strip() for each in line.strip()[1:-1].split("|")] for line in table]
    return [rows[0], *rows[2:]]


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a text in their order."""
    return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)]


@styled
def accuracy() -> Any:
    """Draw mean ranks and mean log losses of the peers, with bootstrap intervals over the sets."""
    head, *rows = rows_of(DOCS.parent / "benchmarks" / "README.md", "**default** | RBF |")
    names = [PEERS.get(each, each) for each in head[1:-1]]
    sets = [row for row in rows if " / " in row[1] and not row[0].startswith("mean")]
    means = next(row for row in rows if row[0] == "mean of 21")[1:-1]
    loss = np.array([[numbers_of(each)[1] for each in row[1:-1]] for row in sets])
    excess = loss - loss[:, :1]
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(sets), size=(4000, len(sets)))
    order = np.argsort(-loss.mean(axis=0))
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), sharey=True)
    for axes, values in zip(panels, (rankdata(loss, axis=1), excess), strict=True):
        low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975], axis=0)
        for place, k in enumerate(order):
            colour = POSITIVE if k < 3 else NEGATIVE
            axes.plot([low[k], high[k]], [place, place], color=colour)
            axes.plot(values[:, k].mean(), place, "o", color=colour)
        axes.grid(axis="x", color="0.9")
    named = [f"{names[k]}   {numbers_of(means[k])[1]:.4f}" for k in order]
    panels[0].set_yticks(range(len(names)), named)
    panels[0].set(xlabel="mean rank by log loss (1 is best)")
    panels[0].text(-0.02, 1.02, "mean log loss", ha="right", transform=panels[0].transAxes)
    panels[1].set(xlabel="mean log loss above the default's (nats)")
    return figure


@styled
def coverage() -> Any:
    """Draw how often intervals contain the truth, from the table of the guide to intervals."""
    ways: dict[str, list[list[float]]] = {}
    for name, size, *shares in rows_of(DOCS / "guides" / "intervals.md", "| log loss |")[1:]:
        way = name.replace("`", "") or list(ways)[-1]  # an empty name repeats the last
        ways.setdefault(way, []).append([numbers_of(size)[0], float(shares[0]), float(shares[2])])
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True)
    for axes, column, level in zip(panels, (1, 2), (0.89, 0.5), strict=True):
        axes.axvline(level, color="0.4", lw=1, ls="--")
        for place, found in enumerate(reversed(ways.values())):
            for each, colour, marker in zip(found, PALETTE, "os^", strict=False):
                label = None if place else f"{each[0]:.0f} rows"
                axes.plot(each[column], place, marker, color=colour, label=label)
        axes.set(xlabel=f"true probabilities in {100 * level:.0f} % intervals, share")
        axes.grid(axis="x", color="0.9")
    panels[0].set_yticks(range(len(ways)), list(ways)[::-1])
    legend_below(figure, panels[0])
    return figure


@styled
def results() -> Any:
    """Draw two of the results: the sparse probit's figure, and errors on partitions of several classes."""
    table = {row[0]: row[1] for row in rows_of(DOCS / "results.md", "measured")[1:]}
    probit = next(name for name in table if name.startswith("sparse probit, quadratic"))
    features = numbers_of(probit)[:5]
    ours, paper = (numbers_of(part)[:5] for part in table[probit].split("the paper's curve"))
    first = next(name for name in table if name.startswith("mPCVM2"))
    second, svc = table[first].split("tuned SVC")
    sets = ["iris", "wine", "glass", "Wisconsin", "vowel"]
    errors = {
        "mPCVM2": numbers_of(second)[:5],
        "mPCVM1": numbers_of(table["mPCVM1, the same"])[:5],
        "SVC, tuned": numbers_of(svc)[:5],
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    left.plot(features, ours, "o-", label="measured")
    left.plot(features, paper, "s--", label="the paper's curve")
    left.set(xlabel="features, of which two matter", ylabel="error, %", xticks=features)
    left.set_title("Sparse probit, quadratic features")
    left.legend(loc="upper left")
    for k, (name, each) in enumerate(errors.items()):
        right.bar(np.arange(len(sets)) + 0.27 * (k - 1), each, 0.25, label=name)
    right.set_xticks(range(len(sets)), sets)
    right.set(ylabel="error, %", title="Several classes")
    right.legend(loc="upper right")
    return figure


@styled
def trace() -> Any:
    """Draw ArviZ's densities and traces of a short run, as in the guide to sampling."""
    X, y = ripley_mixture(100, random_state=0)
    model = pcvm_model(X, y, width=0.6, basis="kmeans", signs="both")
    posterior = sample(model, random_seed=1, progressbar=False)
    drawn = az.plot_trace_dist(
        posterior,
        var_names=["bias", "latent"],
        coords={"obs": [0, 50]},
        compact=False,
        backend="matplotlib",
        figure_kwargs={"figsize": (9, 5)},
    )
    return drawn.viz["figure"].item()


@styled
def scale() -> Any:
    """Log loss of the mode over its scale, beside where the posterior has the scale."""
    X, y = make_moons(1200, noise=0.3, random_state=0)
    (X, X_test), (y, y_test) = np.split(X, [200]), np.split(y, [200])
    models = {
        "unconstrained weights": pcvm_model(X, y, width=1.0, basis="kmeans", signs="both"),
        "signs of labels": pcvm_model(X, y, width=0.6),
    }

    def loss(p: Any) -> float:
        return float(-np.log(np.where(y_test, p, 1.0 - p).clip(1e-12)).mean())

    def of_result(tree: Any) -> float:
        return loss(
            predict(tree, X_test)["predictions"]["probability"].mean(("chain", "draw")).values
        )

    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True, layout="constrained")
    rates = np.geomspace(1e-4, 1e4, 25)
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        posterior = sample(model, random_seed=1, progressbar=False, quiet=True)
        mode, problem = find_map_em(model, progressbar=False), read(model).problem
        Phi, losses = RBF(float(problem.width))(X_test, model["centres"].get_value()), []
        small = 1e-3 * np.ones(Phi.shape[1]) * (1.0 if problem.sign is None else problem.sign)
        start = Start(small, 0.0)
        for rate in rates:  # each from the mode before
            end = fit_em(problem.given(d=rate), start)
            start = Start(end.weight, end.bias)
            losses.append(loss(ndtr(Phi @ end.weight + end.bias)))
        low, high = np.quantile(posterior["posterior"]["rate"], (0.005, 0.995))
        ax.axvspan(low, high, color="0.87", label="99 % of the posterior")
        ax.plot(rates, losses, color=PALETTE[0], label="mode at each rate")
        ax.axhline(of_result(posterior), ls=":", color="0.2", label="posterior mean")
        at = mode["posterior"]["rate"].item()
        ax.plot(at, of_result(mode), "o", color=PALETTE[1], label="find_map_em")
        ax.set(xscale="log", xlabel="rate", title=name)
    axes[0].set_ylabel("log loss on new rows")
    legend_below(figure, axes[0])
    return figure


# where each variable of the model is drawn, and its symbol
PLACES = {
    "hyperprior": (0.4, 3.2, "c, d, e, f"),
    "rate": (1.5, 2.1, "$d$"),
    "magnitude": (2.9, 2.1, "$|w_j|$"),
    "signs": (2.9, 1.0, "$s_j$"),
    "weight": (4.3, 2.1, "$w_j = s_j |w_j|$"),
    "bias": (4.3, 3.2, "$b$"),
    "centres": (4.3, 1.0, "$z_j$"),
    "width": (5.65, 1.0, "width"),
    "X": (6.7, 1.0, "$x_i$"),
    "latent": (6.7, 2.1, "$f_i$"),
    "label": (8.1, 2.1, "$y_i$"),
}
PLATES = {"basis functions j": (2.35, 2.8), "rows i": (6.25, 2.3)}


@styled
def model() -> Any:
    """Draw the graph of a PCVM: its arrows are those of PyMC."""
    X, y = ripley_mixture(20, random_state=0)
    built = pcvm_model(X, y, width=0.6)
    graph = ModelGraph(built)
    free = {each.name for each in built.free_RVs}
    figure, axes = plt.subplots(figsize=(9, 3.6))
    for child, parent in graph.edges():
        if {child, parent} <= set(PLACES):
            ends = PLACES[child][:2], PLACES[parent][:2]
            style = {"arrowstyle": "-|>", "color": "0.3", "shrinkA": 0, "shrinkB": 17}
            axes.annotate("", *ends, arrowprops=style)
    for name, (left, wide) in PLATES.items():
        frame = {"boxstyle": "round,pad=0,rounding_size=0.1", "fc": "none", "ec": "0.6"}
        axes.add_patch(FancyBboxPatch((left, 0.1), wide, 2.65, **frame))
        axes.text(left + wide - 0.08, 0.17, name, ha="right", color="0.35", size="small")
    for name, (x, height, symbol) in PLACES.items():
        face = PALETTE[5] if name in free else "0.85" if name == "label" else "white"
        form = "circle" if name in free or name == "label" else "round"
        box = {"boxstyle": f"{form},pad=0.35", "fc": face, "ec": "0.3"}
        axes.text(x, height, symbol, ha="center", va="center", bbox=box, zorder=3)
        side = 0.42 if height > 2 else -0.42
        axes.text(x, height + side, name, ha="center", va="center", color="0.35", size="small")
    axes.set(xlim=(-0.1, 8.7), ylim=(0.0, 3.8))
    axes.set_axis_off()
    return figure


PICTURES = (surface, path, how_sure, relevance, kernels, accuracy, coverage, results, trace)
PICTURES += (scale, model)

if __name__ == "__main__":
    for draw in PICTURES:
        if draw.__name__ in (sys.argv[1:] or draw.__name__):
            keep(draw(), f"{draw.__name__}.png")
    stack_panels()
