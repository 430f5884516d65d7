"""Draw the pictures of the first page and of a tutorial: ``uv run python docs/draw.py``."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from PIL import Image
from scipy.special import ndtr

from pcvm_pymc import PCVMClassifier, find_map_em, pcvm_model, plots, project, sample
from pcvm_pymc.experiments.datasets import ripley_mixture

FOLDER = Path(__file__).with_name("_static")


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


if __name__ == "__main__":
    keep(surface(), "surface.png")
    keep(path(), "path.png")
    keep(how_sure(), "how_sure.png")
    keep(relevance(), "relevance.png")
    keep(kernels(), "kernels.png")
