"""How seconds and memory grow with rows, bases, features and classes: slopes of the logarithms.

``OMP_NUM_THREADS=1 uv run python benchmarks/growth.py [WORD ...] [--out growth.csv] [--picture growth.png]``;
with words, the series whose names contain one. Each point is a process of its own: CPU seconds of the work
alone, after a small one that compiles and loads, and the peak of the process above what it held before it
(VmHWM, set anew by /proc/self/clear_refs). A slope is that of the least squares line through the logarithms
of the larger half of a series: 2 means that twice as many take four times as long.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from memory import held, peak


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


def one_cell(n=1000, d=4, n_classes=2, basis=None):
    """Return a fit at a given width."""
    import pcvm_pymc

    X, y = normals(n, d, n_classes)
    more = {} if basis is None else {"basis": basis, "random_state": 0}
    name = "PCVMClassifier" if n_classes == 2 else "MPCVMClassifier"
    machine = getattr(pcvm_pymc, name)(width=width(d), estimation="em", **more)
    return lambda: machine.fit(X, y)


def chunks(n):
    """Return a fit of rows in chunks."""
    import pcvm_pymc

    X, y = normals(n, 10)
    machine = pcvm_pymc.PCVMClassifier(
        width=width(10), estimation="em", basis=200, memory_limit=5e7, random_state=0
    )
    return lambda: machine.fit(X, y)


def sequential(n=1000, d=4):
    """Return a fit of a relevance vector machine."""
    import pcvm_pymc

    X, y = normals(n, d)
    return lambda: pcvm_pymc.RVMClassifier(width=width(d)).fit(X, y)


def default(n=300, d=4, n_classes=2):
    """Return the fit of a classifier without arguments: widths and scales chosen, cells averaged."""
    import pcvm_pymc

    X, y = normals(n, d, n_classes)
    name = "PCVMClassifier" if n_classes == 2 else "MPCVMClassifier"
    return lambda: getattr(pcvm_pymc, name)().fit(X, y)


def path(n=1000, n_classes=2, n_vectors=20):
    """Return the search of a submodel with the probabilities of a fitted machine."""
    import pcvm_pymc
    from pcvm_pymc.core.pieces.centres import class_signs
    from pcvm_pymc.core.pieces.kernels import design_matrix
    from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
    from pcvm_pymc.core.projection import Target, project_path

    X, y = normals(n, 4, n_classes)
    Phi = design_matrix("rbf", X, X, width(4))
    name = "PCVMClassifier" if n_classes == 2 else "MPCVMClassifier"
    machine = getattr(pcvm_pymc, name)(width=width(4), estimation="em").fit(X, y)
    probability = machine.predict_proba(X)
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
    pcvm_pymc.sample(model, draws=10, tune=10, max_sweeps=20, **once)
    return lambda: pcvm_pymc.sample(model, draws=900, tune=100, max_sweeps=1000, **once)


def predictions(rows=20_000, d=4, n_vectors=200, n_classes=2):
    """Return class probabilities of rows."""
    import pcvm_pymc

    X, y = normals(n_vectors, d, n_classes)
    name = "PCVMClassifier" if n_classes == 2 else "MPCVMClassifier"
    machine = getattr(pcvm_pymc, name)(width=width(d), estimation="em").fit(X, y)
    new = normals(rows, d, n_classes, seed=1)[0]
    return lambda: machine.predict_proba(new)


class Series(NamedTuple):
    """The work that an argument makes grow, and its values."""

    work: Callable[..., Callable[[], object]]
    argument: str
    values: tuple[int, ...]
    fixed: dict[str, int] = {}  # noqa: RUF012


SERIES = {
    "fit of one cell, rows": Series(one_cell, "n", (250, 500, 1000, 2000, 4000)),
    "fit of one cell, bases": Series(one_cell, "basis", (50, 100, 200, 400, 800), {"n": 8000}),
    "fit of one cell, features": Series(one_cell, "d", (2, 8, 32, 128, 512)),
    "fit of one cell, classes": Series(one_cell, "n_classes", (3, 4, 6, 8, 12), {"n": 600}),
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


def child(name, value):
    """Run one point and print CPU seconds, iterated to a tenth of a second, and MiB."""
    warnings.simplefilter("ignore")
    series = SERIES[name]
    least = {**series.fixed, series.argument: series.values[0]}
    series.work(**least)()
    work = series.work(**{**series.fixed, series.argument: value})
    Path("/proc/self/clear_refs").write_text("5")  # the most held starts anew
    before, found, began = held(), [], time.process_time()
    while not found or (time.process_time() - began < 0.3 and len(found) < 20):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    print(json.dumps([min(found), peak() - before]))


def measured(name, value):
    """Return seconds and MiB of a point, by a process of its own."""
    command = [sys.executable, __file__, "--child", name, str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}, {value}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def slope(values, found, least=0.0):
    """Return the slope of the logarithms over the larger half of a series; None where little is found."""
    half = slice(len(values) // 2, None)
    if min(found[half]) <= least:
        return None
    return float(np.polyfit(np.log(values[half]), np.log(found[half]), 1)[0])


def draw(rows, file):
    """Draw seconds against what grows, the series of a kind in one panel, a colour for each work."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    kinds = list(dict.fromkeys(name.rsplit(", ", 1)[1] for name, *_ in rows))
    works = list(dict.fromkeys(name.rsplit(", ", 1)[0] for name, *_ in rows))
    figure, axes = plt.subplots(1, len(kinds), figsize=(15, 4.2), sharey=True, layout="constrained")
    for axis, kind in zip(axes, kinds, strict=True):
        ticks = set()
        for name, values, seconds, _ in rows:
            work, own = name.rsplit(", ", 1)
            if own == kind:
                ticks |= {values[0], values[-1]}
                axis.loglog(values, seconds, "o-", ms=3, lw=1.4, color=f"C{works.index(work)}")
        shown = [each for each in sorted(ticks) if all(not each < t < 1.9 * each for t in ticks)]
        axis.set_xticks(shown, [f"{each:,}" for each in shown], rotation=40)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel(kind)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU seconds")
    lines = [plt.Line2D([], [], color=f"C{k}", marker="o", ms=3) for k in range(len(works))]
    figure.legend(lines, works, loc="outside lower center", ncols=len(works), frameon=False)
    figure.savefig(file, dpi=100)


def described(name, values, seconds, mib):
    """Return a line of the table; of memory, the slope where it is more than a few MiB."""
    slopes = [slope(values, seconds), slope(values, mib, least=4.0)]
    shown = ["" if each is None else f"{each:.2f}" for each in slopes]
    cells = [name, f"{values[0]:,} to {values[-1]:,}", f"{seconds[0]:.2g} to {seconds[-1]:.2g}"]
    cells += [shown[0], f"{mib[0]:.0f} to {mib[-1]:.0f}", shown[1]]
    return f"| {' | '.join(cells)} |"


def stored(file):
    """Return the series of an earlier run."""
    found = {}
    with file.open(newline="") as lines:
        for name, *numbers in list(csv.reader(lines))[1:]:
            found.setdefault(name, []).append([float(number) for number in numbers])
    for name, points in found.items():
        values, seconds, mib = zip(*points, strict=True)
        yield name, tuple(map(int, values)), seconds, mib


def run(words):
    """Yield each series with its figures."""
    for name, series in SERIES.items():
        if not words or any(word in name for word in words):
            found = [measured(name, value) for value in series.values]
            yield name, series.values, *zip(*found, strict=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--read", type=Path, help="an earlier run's csv, in place of a run")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        return child(options.child[0], int(options.child[1]))
    print("| work, what grows | from, to | CPU s | slope | MiB | slope |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = []
    for row in stored(options.read) if options.read else run(options.words):
        rows.append(row)
        print(described(*row), flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["series", "value", "CPU seconds", "MiB"])
            for name, *columns in rows:
                writer.writerows([name, *point] for point in zip(*columns, strict=True))
    if options.picture:
        draw(rows, options.picture)
    return None


if __name__ == "__main__":
    main()
