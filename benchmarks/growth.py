"""How seconds and memory grow with rows, bases, features and classes: slopes of the logarithms.

``OMP_NUM_THREADS=1 uv run python benchmarks/growth.py growth.jsonl [WORD ...] [--picture growth.png]``; with
words, the series whose names contain one. Points that the file has already are not run again. Each is a
process of its own: CPU seconds of the work alone, after a small one that compiles and loads, and the peak of
the process above what it had before it (VmHWM, set to zero by /proc/self/clear_refs). A slope is that of the
least squares line through the logarithms of the larger half of a series: 2 means that twice as many take four
times as long.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from processes import fresh, held, resumed


def normals(n, d=4, n_classes=2, seed=0):
    """Return rows of overlapping normal classes whose means lie around a circle."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    angle = 2 * np.pi * y / n_classes
    X = rng.normal(size=(n, d))
    X[:, :2] += 0.6 * n_classes * np.column_stack([np.cos(angle), np.sin(angle)])
    return X, y


def width(d):
    """Return a width of half the usual distance between two rows."""
    return float(np.sqrt(2 * d) / 2)


def machine(d, n_classes=2, **options):
    """Return a classifier of two classes or of several, at a given width."""
    import pcvm_pymc

    kind = pcvm_pymc.PCVMClassifier if n_classes == 2 else pcvm_pymc.MPCVMClassifier
    return kind(**{"width": width(d), "estimation": "em", **options})


def one_fit(n=1000, d=4, n_classes=2, **options):
    """Return a fit at a given width."""
    X, y = normals(n, d, n_classes)
    fitted = machine(d, n_classes, random_state=0, **options)
    return lambda: fitted.fit(X, y)


def chunks(n):
    """Return a fit of rows in chunks."""
    return one_fit(n, 10, basis=200, memory_limit=5e7)


def sequential(n=1000, d=4):
    """Return a fit of a relevance vector machine."""
    import pcvm_pymc

    X, y = normals(n, d)
    return lambda: pcvm_pymc.RVMClassifier(width=width(d)).fit(X, y)


def default(n=300, d=4, n_classes=2):
    """Return the fit of a classifier without arguments: widths and scales chosen, modes averaged."""
    return one_fit(n, d, n_classes, width="auto", estimation="auto")


def path(n=1000, n_classes=2, n_vectors=20):
    """Return the search of a submodel with the probabilities of a fitted machine."""
    from pcvm_pymc.core.pieces.centres import class_signs
    from pcvm_pymc.core.pieces.kernels import as_kernel
    from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
    from pcvm_pymc.core.projection import Target, project_path

    X, y = normals(n, 4, n_classes)
    Phi = as_kernel("rbf", width(4))(X, X)
    probability = machine(4, n_classes).fit(X, y).predict_proba(X)
    if n_classes == 2:
        target = Target(Phi, 2.0 * y - 1.0, probability[:, 1])
    else:
        likelihood = MultinomialProbit(n_classes)
        target = Target(Phi, class_signs(y, n_classes), probability, likelihood=likelihood)
    return lambda: project_path(target, [n_vectors])


def sweeps(n=200, d=4, n_classes=2, basis=None):
    """Return 1,000 sweeps of Gibbs' sampler, one chain."""
    import pcvm_pymc

    X, y = normals(n, d, n_classes)
    build = pcvm_pymc.pcvm_model if n_classes == 2 else pcvm_pymc.mpcvm_model
    more = {} if basis is None else {"basis": X[:basis], "signs": 2 * y[:basis] - 1}
    model = build(X, y, width=width(d), **more)
    once = {"method": "gibbs", "chains": 1, "cores": 1, "random_seed": 0, "quiet": True}
    once |= {"progressbar": False, "thin": 1}
    pcvm_pymc.sample(model, draws=10, tune=10, max_iter=20, **once)
    return lambda: pcvm_pymc.sample(model, draws=900, tune=100, max_iter=1000, **once)


def predictions(rows=20_000, d=4, n_vectors=200, n_classes=2):
    """Return class probabilities of rows."""
    X, y = normals(n_vectors, d, n_classes)
    fitted = machine(d, n_classes).fit(X, y)
    new = normals(rows, d, n_classes, seed=1)[0]
    return lambda: fitted.predict_proba(new)


class Series(NamedTuple):
    """The work that an argument makes grow, and its values."""

    work: Callable[..., Callable[[], object]]
    argument: str
    values: tuple[int, ...]
    fixed: dict[str, int] = {}  # noqa: RUF012


SERIES = {
    "one fit, rows": Series(one_fit, "n", (250, 500, 1000, 2000, 4000)),
    "one fit, bases": Series(one_fit, "basis", (50, 100, 200, 400, 800), {"n": 8000}),
    "one fit, features": Series(one_fit, "d", (2, 8, 32, 128, 512)),
    "one fit, classes": Series(one_fit, "n_classes", (3, 4, 6, 8, 12), {"n": 600}),
    "fit in chunks, rows": Series(chunks, "n", (12_500, 25_000, 50_000, 100_000, 200_000)),
    "RVM, rows": Series(sequential, "n", (250, 500, 1000, 2000, 4000)),
    "selection and average, rows": Series(default, "n", (100, 200, 400, 800, 1600)),
    "selection and average, features": Series(default, "d", (2, 8, 32, 128, 512)),
    "selection and average, classes": Series(default, "n_classes", (3, 4, 6, 8, 12)),
    "projection, rows": Series(path, "n", (250, 500, 1000, 2000, 4000)),
    "projection, vectors": Series(path, "n_vectors", (5, 10, 20, 40, 80)),
    "projection, classes": Series(path, "n_classes", (3, 4, 6, 8, 12)),
    "1,000 Gibbs sweeps, rows": Series(sweeps, "n", (50, 100, 200, 400, 800)),
    "1,000 Gibbs sweeps, bases": Series(sweeps, "basis", (25, 50, 100, 200, 400), {"n": 800}),
    "1,000 Gibbs sweeps, classes": Series(sweeps, "n_classes", (3, 4, 6, 8, 12), {"n": 96}),
    "prediction, rows": Series(predictions, "rows", (12_500, 25_000, 50_000, 100_000, 200_000)),
    "prediction, vectors": Series(predictions, "n_vectors", (50, 100, 200, 400, 800)),
    "prediction, features": Series(predictions, "d", (2, 8, 32, 128, 512)),
    "prediction, classes": Series(predictions, "n_classes", (3, 4, 6, 8, 12)),
}


def point(name, value):
    """Return the CPU seconds of one point, the least of a third of a second, and its MiB."""
    series = SERIES[name]
    series.work(**{**series.fixed, series.argument: series.values[0]})()
    work = series.work(**{**series.fixed, series.argument: value})
    Path("/proc/self/clear_refs").write_text("5")  # the most that was held starts again
    before, found, began = held(), [], time.process_time()
    while not found or (time.process_time() - began < 0.3 and len(found) < 20):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return {"seconds": min(found), "MiB": held("VmHWM") - before}


def measured(name, value):
    """Return the row of a point."""
    found = fresh(point, name, value, limit=3600.0)
    if isinstance(found, str):
        sys.exit(f"{name}, {value}: {found}")
    work, kind = name.rsplit(", ", 1)
    return {"work": work, "kind": kind, "value": value, **found}


def slope(part):
    """Return the slope of the logarithms of the seconds over the larger half of a series."""
    half = np.log(part[["value", "seconds"]].to_numpy(float)[len(part) // 2 :])
    return float(np.polyfit(*half.T, 1)[0])


def draw(table, file):
    """Draw seconds against what grows, the series of a kind in one panel, a colour for each work."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    kinds, works = list(table["kind"].unique()), list(table["work"].unique())
    figure, axes = plt.subplots(1, len(kinds), figsize=(15, 4.2), sharey=True, layout="constrained")
    for axis, kind in zip(np.atleast_1d(axes), kinds, strict=True):
        ticks = set()
        for work, part in table[table["kind"] == kind].groupby("work"):
            ticks |= {part["value"].min(), part["value"].max()}
            colour = f"C{works.index(work)}"
            axis.loglog(part["value"], part["seconds"], "o-", ms=3, lw=1.4, color=colour)
        shown = [each for each in sorted(ticks) if all(not each < t < 1.9 * each for t in ticks)]
        axis.set_xticks(shown, [f"{each:,}" for each in shown], rotation=40)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(kind)
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("CPU seconds")
    lines = [plt.Line2D([], [], color=f"C{k}", marker="o", ms=3) for k in range(len(works))]
    figure.legend(lines, works, loc="outside lower center", ncols=len(works), frameon=False)
    figure.savefig(file, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="for the points, a line each")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    names = [name for name in SERIES if not options.words or any(w in name for w in options.words)]
    points = [(name, value) for name in names for value in SERIES[name].values]
    table = resumed(options.path, points, measured)
    print("| work, what grows | from, to | CPU s | slope | MiB |", "| --- " * 5 + "|", sep="\n")
    for (work, kind), part in table.groupby(["work", "kind"], sort=False):
        first, last = part.iloc[0], part.iloc[-1]
        ends = f"{first['value']:,} to {last['value']:,}"
        seconds = f"{first['seconds']:.2g} to {last['seconds']:.2g}"
        memory = f"{first['MiB']:.0f} to {last['MiB']:.0f}"
        print(f"| {work}, {kind} | {ends} | {seconds} | {slope(part):.2f} | {memory} |")
    if options.picture:
        draw(table, options.picture)


if __name__ == "__main__":
    main()
