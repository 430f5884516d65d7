"""What is counted or drawn of the papers' tables and figures for which no classifier is fitted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import halfnorm

from pcvm_pymc.core.evidence.active_set import posterior
from pcvm_pymc.core.pieces.kernels import RBF, design_matrix
from pcvm_pymc.core.pieces.likelihoods import Logit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import ndtr
from pcvm_pymc.core.validity import centre_derivatives, log_stability
from pcvm_pymc.experiments.catalogue import Sketch, printed_of
from pcvm_pymc.experiments.datasets.files import without_folder
from pcvm_pymc.experiments.datasets.generators import ESL_VARIANCE
from pcvm_pymc.experiments.datasets.loading import load
from pcvm_pymc.experiments.datasets.registry import source_of
from pcvm_pymc.experiments.protocols import Protocol, realise
from pcvm_pymc.figures import PALETTE, scatter_classes, styled

type Floats = np.ndarray[Any, np.dtype[np.float64]]
_LOGIT = Logit()


@dataclass(frozen=True)
class Drawn:
    """What a drawing has to show.

    Attributes
    ----------
    text : tuple of str
        Paragraphs.
    table : DataFrame, optional
    figure : Figure, optional
    """

    text: tuple[str, ...] = ()
    table: pd.DataFrame | None = None
    figure: Figure | None = None


def _sizes(sketch: Sketch, folder: Path | None) -> Drawn:
    """Count rows, features and the share of each class of two, next to the paper's."""
    rows, missing = {}, []
    for name in sketch.sets:
        source = source_of(name)
        try:
            data = load(name, folder=folder)
        except OSError as error:
            missing.append(f"Missing: {without_folder(str(error), folder)}.")
            continue
        positive = 100.0 * float(np.mean(data.y == data.y.max()))
        n_train = source.n_train or len(data.train[0])
        rows[name] = {
            "training rows": n_train,
            "test rows": len(data.y) - n_train,
            "positive, %": round(positive, 2),
            "negative, %": round(100.0 - positive, 2),
            "features": data.X.shape[1],
        }
    return _counted(sketch, rows, missing)


def _counted(sketch: Sketch, rows: dict[str, Any], missing: list[str]) -> Drawn:
    """Return what was counted of each set, next to the paper's, and what is missing."""
    if not rows:
        raise FileNotFoundError("; ".join(missing))
    table = pd.DataFrame.from_dict(rows, orient="index")
    printed = printed_of(sketch)
    if printed is not None:
        wide = printed.pivot_table(index="set", columns="measure", values="mean")
        beside = wide.reindex(index=table.index, columns=table.columns)
        table = table.join(beside.add_prefix("the paper's "))
    return Drawn(tuple(missing), table.map("{:g}".format))


def _partitions(sketch: Sketch, folder: Path | None) -> Drawn:
    """Count rows, features and classes of an 80/20 partition, next to the paper's."""
    rows, missing = {}, []
    for name in sketch.sets:
        try:
            problem = realise(name, Protocol("80/20", "shares"), 1, seed=0, folder=folder)
        except OSError as error:
            missing.append(f"Missing: {without_folder(str(error), folder)}.")
            continue
        train, test = problem.splits[0]
        rows[name] = {
            "training rows": len(train),
            "test rows": len(test),
            "features": problem.X.shape[1],
            "classes": len(np.unique(problem.y)),
        }
    return _counted(sketch, rows, missing)


@styled
def _truncated_prior(sketch: Sketch, folder: Path | None) -> Drawn:
    """Draw the prior of a weight given its precision, and with the precision integrated out."""
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.2))
    size = np.linspace(0.0, 4.0, 400)
    over_precisions = np.exp(Hyperprior(c=1.0, d=1.0, e=1.0, f=1.0).log_weight_density(size))
    for panel, sign, letter in zip(panels, (-1, 1), "ab", strict=True):
        x = np.concatenate([[-4.0 * sign, 0.0], sign * size])
        given = np.concatenate([[0.0, 0.0], halfnorm.pdf(size)])
        out = np.concatenate([[0.0, 0.0], over_precisions])
        panel.plot(x, given, label="given the precision 1")
        panel.plot(x, out, "--", label="precision integrated out, c = d = 1")
        panel.set(xlabel="weight", title=f"({letter}) label {sign:+d}")
    panels[0].set_ylabel("prior density")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return Drawn((), None, figure)


@styled
def _links(sketch: Sketch, folder: Path | None) -> Drawn:
    """Draw the logistic function and the probit, rescaled to its variance."""
    z = np.linspace(-6.0, 6.0, 1201)
    logistic, rescaled = expit(z), ndtr(np.sqrt(3.0) * z / np.pi)
    figure, axis = plt.subplots(figsize=(5.6, 3.6))
    axis.plot(z, logistic, label="logistic")
    axis.plot(z, rescaled, "--", label=r"probit of $\sqrt{3} z / \pi$")
    axis.set(xlabel="z", ylabel="probability of the second class")
    figure.legend(loc="outside lower center", ncols=2)
    gap = np.abs(logistic - rescaled)
    said = f"They differ by at most {gap.max():.4f}, at |z| = {abs(z[gap.argmax()]):.2f}."
    return Drawn((said,), None, figure)


# --- Kropotov et al. (2006) ------------------------------------------------------------------

_POINTS = np.array([[-1.0], [0.0], [1.0]])
_TARGET = np.array([1.0, -1.0, 1.0])
_SIGMAS = {"narrow": 0.15, "wide": 0.7}


def _weights(width: float) -> Floats:
    """Return the mode of three kernels' weights at precision one tenth."""
    Phi = design_matrix("rbf", _POINTS, _POINTS, width)
    return posterior(Phi, np.full(3, 0.1), _TARGET, _LOGIT).mean


def _log_likelihoods(width: float, weight: Floats, shift: Floats) -> Floats:
    """Return the log likelihood as the middle kernel's centre moves."""
    values = []
    for step in shift:
        centres = _POINTS + np.array([[0.0], [step], [0.0]])
        latent = design_matrix("rbf", _POINTS, centres, width) @ weight
        values.append(_LOGIT.log_likelihood(latent, _TARGET))
    return np.array(values)


@styled
def _weights_and_shifts(sketch: Sketch, folder: Path | None) -> Drawn:
    """Draw how the likelihood of three objects falls with a weight's change and with a kernel's shift."""
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(7.6, 3.3))
    change, rows = np.linspace(-0.5, 0.5, 101), {}
    for name, sigma in _SIGMAS.items():
        width = np.sqrt(2.0) * sigma
        weight = _weights(width)
        Phi = design_matrix("rbf", _POINTS, _POINTS, width)
        scaled = [weight * np.where(np.arange(3) == 1, 1.0 + step, 1.0) for step in change]
        by_weight = np.array([_LOGIT.log_likelihood(Phi @ each, _TARGET) for each in scaled])
        by_shift = _log_likelihoods(width, weight, change)
        fitted = by_weight[50]
        left.plot(change, np.exp(by_weight - fitted), label=f"{name}, sigma = {sigma}")
        right.plot(change, np.exp(by_shift - fitted), label=f"{name}, sigma = {sigma}")
        rows[f"{name}, sigma = {sigma}"] = {
            "weight changed by -20 %": round(float(np.exp(by_weight[30] - fitted)), 3),
            "centre shifted by 0.2": round(float(np.exp(by_shift[70] - fitted)), 3),
        }
    left.set(xlabel="relative change of the weight", ylabel="likelihood / likelihood as fitted")
    right.set(xlabel="shift of the centre")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return Drawn((), pd.DataFrame.from_dict(rows, orient="index"), figure)


@styled
def _tail(sketch: Sketch, folder: Path | None) -> Drawn:
    """Draw the likelihood over a kernel's centre, and the tail whose area is its stability (eq. 13)."""
    width = np.sqrt(2.0) * 0.7
    weight = _weights(width)
    centres = _POINTS + np.array([[0.0], [0.25], [0.0]])  # not where the likelihood is highest
    latent = design_matrix("rbf", _POINTS, centres, width) @ weight
    a, b = centre_derivatives(
        _POINTS,
        centres,
        weight,
        RBF(width),
        score=_LOGIT.score(latent, _TARGET),
        curvature=_LOGIT.curvature(latent, _TARGET),
    )
    slope, bend = abs(float(a[1, 0])), float(b[1, 0])
    area = float(np.exp(log_stability(a, b)[1, 0]))
    by_rule = quad(lambda t: np.exp(-slope * t - 0.5 * bend * t * t), 0.0, np.inf)[0]
    shift = np.linspace(-1.2, 1.8, 301)
    likelihood = np.exp(_log_likelihoods(width, weight, shift))
    here = float(np.exp(_LOGIT.log_likelihood(latent, _TARGET)))
    away = shift[shift >= 0.25] if a[1, 0] < 0 else shift[shift <= 0.25]
    t = np.abs(away - 0.25)
    figure, axis = plt.subplots(figsize=(6.0, 3.6))
    tail = here * np.exp(-slope * t - 0.5 * bend * t * t)
    axis.plot(shift, likelihood, label="likelihood")
    axis.plot(away, tail, "--", color=PALETTE[1], label="approximation of its tail")
    axis.fill_between(away, tail, color="0.5", alpha=0.3, lw=0, label="its area: the stability")
    axis.plot([0.25], [here], "o", color="black", label="where the kernel stands")
    axis.set(xlabel="centre of the middle kernel", ylabel="likelihood of the training rows")
    axis.set_ylim(0.0)
    figure.legend(loc="outside lower center", ncols=2)
    said = (
        f"There a = {float(a[1, 0]):.3f} and b = {bend:.3f}; relative to the likelihood as fitted the area "
        f"is {area:.4f} by eq. 13, corrected, and {by_rule:.4f} by quadrature."
    )
    return Drawn((said,), None, figure)


@styled
def _toy_problem(sketch: Sketch, folder: Path | None) -> Drawn:
    """Draw the training rows of the toy problem, and the boundary of the Bayes classifier."""
    name = sketch.sets[0]
    data, means = load(name, folder=folder), load("esl_mixture_means", folder=folder)

    def log_odds(X: Floats) -> Floats:
        squared = np.square(X[:, None, :] - means.X[None]).sum(axis=-1)
        density = np.exp(-0.5 * squared / ESL_VARIANCE)
        return np.log(density[:, means.y == 1].sum(axis=1) / density[:, means.y == 0].sum(axis=1))

    X, y, X_test, y_test = data.split(0)
    error = float(np.mean((log_odds(X_test) > 0) != (y_test == 1)))
    low, high = X.min(axis=0) - 0.3, X.max(axis=0) + 0.3
    grid = [np.linspace(low[j], high[j], 160) for j in range(2)]
    points = np.stack(np.meshgrid(*grid), axis=-1)
    figure, axis = plt.subplots(figsize=(5.0, 4.6))
    scatter_classes(axis, X, y, {0: "class 1", 1: "class 2"}, size=18)
    level = log_odds(points.reshape(-1, 2)).reshape(points.shape[:2])
    axis.contour(*grid, level, levels=[0.0], colors="black", linewidths=1.5)
    axis.plot([], [], color="black", label="boundary of the Bayes classifier")
    axis.set(xlabel="x1", ylabel="x2")
    figure.legend(loc="outside lower center", ncols=3)
    said = (
        f"{len(X)} training rows. The Bayes classifier errs on {100 * error:.1f} % of "
        f"{len(X_test)} test rows."
    )
    return Drawn((said,), None, figure)


DRAWINGS: Mapping[str, Callable[[Sketch, Path | None], Drawn]] = {
    "sizes": _sizes,
    "partitions": _partitions,
    "truncated prior": _truncated_prior,
    "links": _links,
    "weights and shifts": _weights_and_shifts,
    "tail": _tail,
    "toy problem": _toy_problem,
}
