"""Every picture is drawn in the one style, with named axes, no label over another label or over points."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.text import Text
from problems import blobs, map_result

from pcvm_pymc import PCVMClassifier, pcvm_model, plots, project, select
from pcvm_pymc.experiments import pictures
from pcvm_pymc.figures import PALETTE, STYLE, plain_log_ticks

X, LABEL = blobs(30, seed=3)
RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def fits():
    """Return a mode, and draws about it in place of a posterior."""
    mode = map_result(pcvm_model(X, LABEL, width=1.2))
    draws = xr.concat([mode["posterior"].to_dataset()] * 5, "draw").assign_coords(draw=range(5))
    posterior = mode.copy()
    noise = np.exp(0.3 * RNG.normal(size=draws["weight"].shape))
    posterior["posterior"] = xr.DataTree(draws.assign(weight=draws["weight"] * noise))
    return mode, posterior


def surface(n_classes):
    x = np.linspace(-2, 2, 12)
    first, second = np.meshgrid(x, x)
    y = np.arange(30) % n_classes
    region = ((first > 0) * (n_classes - 1)).astype(int)
    values = {"x1": x, "x2": x, "region": region.ravel(), "X": X, "y": y}
    values["probability"] = (1 / (1 + np.exp(-first - second))).ravel()
    given = {"support": [0, 4], "weights of support": [1, 1]}
    return {name: each.tolist() for name, each in values.items()} | given


def curve():
    x = np.linspace(-3, 3, 40)
    target = np.sin(x[::4])
    values = {"x": x, "mean": np.sin(x), "std": np.full(40, 0.3), "X": x[::4], "y": target}
    return {k: v.tolist() for k, v in values.items()} | {"support": [1, 5], "noise": 0.1}


def widths():
    names = ("width", "train error", "test error", "CV error", "log validity")
    rows = [dict(zip(names, (w, 0.1, 0.2, 0.3, -w), strict=True)) for w in (0.5, 1.0, 4.0)]
    return {"rows": rows}


def opposed():
    return surface(2) | {"opposed": [4], "width": 0.5}


def lines():
    mean = pd.DataFrame({f"machine {i}": [10.0 + i, 12.0 + i] for i in range(9)}, index=[2, 10])
    return pictures.draw_lines(mean, 0.1 * mean, "error, %", "features")


def ranks():
    scores = np.arange(3) + RNG.normal(size=(10, 3))
    return pictures.draw_ranks(pd.DataFrame(scores, columns=["mine", "other", "third"]), "error")


ONE, TWO = ("set", "one"), ("set", "two")
WIDTHS = np.geomspace(0.3, 3, 4)
PROBABILITY = {n: RNG.uniform(size=30) for n in ("one", "two", "three", "four", "five", "six")}
# how many panels have rows, curves or bars, whose axes must be named
PICTURES = {
    "weights": plots.plot_weights,
    "surface": lambda *fits: plots.plot_decision_surface(*fits, X, LABEL, resolution=8),
    "calibration": lambda *fits: plots.plot_calibration(LABEL > 0, PROBABILITY),
    "relevance": lambda *fits: plots.plot_feature_relevance(PCVMClassifier().fit(X, LABEL)),
    "cells": lambda *fits: select(X, LABEL).plot(),
    "widths": lambda *fits: plots.plot_width_criteria(
        [select(X, LABEL, by=method, widths=WIDTHS) for method in ("cv", "evidence")]
    ),
    "projection": lambda *fits: project(
        PCVMClassifier(width=1.2).fit(X, LABEL), X, LABEL, sizes=[1, 2, 3], cv=3, random_state=0
    ).plot(),
    "regions": lambda *fits: pictures.draw_regions({ONE: surface(3), TWO: surface(10)}),
    "boundaries": lambda *fits: pictures.draw_boundaries({ONE: surface(2), TWO: surface(2)}),
    "opposed": lambda *fits: pictures.draw_opposed({ONE: opposed(), TWO: opposed()}),
    "margins": lambda *fits: pictures.draw_margins(
        {
            (name, kind): {"training": [-0.5, shift, 0.9], "test": [0.1, shift]}
            for name in ("set", "other")
            for kind, shift in (("one", 0.2), ("two", 0.4))
        }
    ),
    "curves": lambda *fits: pictures.draw_curves({ONE: curve(), TWO: curve()}),
    "errors by width": lambda *fits: pictures.draw_widths({("set", "RVM"): widths()}),
    "lines": lambda *fits: lines(),
    "ranks": lambda *fits: ranks(),
}


def legends_of(figure):
    return [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_in_the_style_with_names_and_room(name, fits):
    with plt.rc_context({"axes.spines.top": True, "legend.frameon": True}):
        figure = PICTURES[name](*fits)
        assert plt.rcParams["axes.spines.top"]  # the caller's own style stays
    figure.savefig("/dev/null", format="png", dpi=60)
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.axison]
    # scikit-posthocs': ranks stand on the top spine, and nothing else has an axis
    panels = [] if name == "ranks" else panels
    assert panels or name == "ranks"
    for axes in panels:
        if axes.get_label() == "<colorbar>":
            continue
        assert axes.spines["top"].get_visible() is STYLE["axes.spines.top"]
        shared = axes.get_shared_x_axes().get_siblings(axes)
        assert any(each.get_xlabel() for each in shared)
        assert any(each.get_ylabel() for each in axes.get_shared_y_axes().get_siblings(axes))
    renderer = figure.canvas.get_renderer()
    for legend in legends_of(figure):
        box = legend.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(_inner(axes)) for axes in panels)  # it covers what is drawn
    for axes in panels:
        for axis in (axes.xaxis, axes.yaxis):
            assert_apart([t for t in axis.get_ticklabels(which="both") if shown(t)], renderer)
    plt.close(figure)


def _inner(axes):
    """Return the panel's area, less a hair: a legend may stand on its edge."""
    return axes.get_window_extent().padded(-1.5)


def shown(label: Text):
    return label.get_visible() and label.get_text()


def assert_apart(labels, renderer):
    boxes = [label.get_window_extent(renderer) for label in labels]
    for i, one in enumerate(boxes):
        for j in range(i):
            assert not one.overlaps(boxes[j]), (labels[i].get_text(), labels[j].get_text())
    assert not any("mathdefault" in label.get_text() for label in labels)


@pytest.mark.parametrize("limits", [(0.55, 0.9), (0.4, 4.0), (3.0, 6e4), (1e-12, 40.0)])
def test_logarithmic_axes_have_two_plain_labels_and_more(limits):
    figure, axes = plt.subplots(figsize=(5, 3))
    axes.set(xscale="log", xlim=limits)
    plain_log_ticks(axes.xaxis)
    figure.draw_without_rendering()
    low, high = limits
    labels = [each for each in axes.xaxis.get_ticklabels(which="both") if shown(each)]
    labels = [each for each in labels if low <= each.get_position()[0] <= high]
    assert len(labels) >= 2
    assert all(float(label.get_text().replace("\N{MINUS SIGN}", "-")) > 0 for label in labels)
    assert_apart(labels, figure.canvas.get_renderer())
    plt.close(figure)


def linear(channel):
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def test_the_colours_differ_for_the_colour_blind():
    """Under Vienot, Brettel & Mollon's (1999) model of no red and of no green cones."""
    from matplotlib.colors import to_rgb

    to_lms = np.array(
        [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
    )
    lms = np.array([[linear(c) for c in to_rgb(each)] for each in PALETTE]) @ to_lms.T
    without_red, without_green = lms.copy(), lms.copy()
    without_red[:, 0] = 2.02344 * lms[:, 1] - 2.52581 * lms[:, 2]
    without_green[:, 1] = 0.494207 * lms[:, 0] + 1.24827 * lms[:, 2]
    for seen in (without_red, without_green):
        rgb = np.clip(seen @ np.linalg.inv(to_lms).T, 0, 1) ** (1 / 2.2)
        gap = np.linalg.norm(rgb[:, None] - rgb[None], axis=-1)[np.triu_indices(len(PALETTE), 1)]
        assert gap.min() > 0.1
