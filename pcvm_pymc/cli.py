"""The `pcvm` command."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from pcvm_pymc import __version__
from pcvm_pymc.experiments.commands import add_commands
from pcvm_pymc.experiments.errors import UsageError, first_line

__all__ = ["main"]

# a training part of this size keeps `pcvm compare` without a file below a minute on two cores
_EXAMPLE_TRAINING_ROWS = 120
_MANY_TRAINING_ROWS = 600
_PICTURES = ("reliability", "weights", "em_trace", "rank")


@dataclass(frozen=True)
class Rows:
    """A table of numbers with labels."""

    X: np.ndarray
    y: np.ndarray
    features: tuple[str, ...]
    name: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        options.run(options, console)
    except UsageError as error:
        print(f"pcvm: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("pcvm: stopped; what was finished stays in the output folder", file=sys.stderr)  # noqa: T201
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pcvm", description="Sparse Bayesian kernel classifiers for PyMC."
    )
    parser.add_argument("--version", action="version", version=f"pcvm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    compare = commands.add_parser(
        "compare",
        help="fit the EM-MAP PCVM, sample the posterior of the same model, show both side by side",
    )
    compare.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE.csv",
        help="numbers with a header row and a label column (default: Wisconsin breast cancer)",
    )
    compare.add_argument("--target", metavar="COLUMN", help="label column (default: the last)")
    compare.add_argument(
        "--width",
        default="auto",
        metavar="W|auto",
        help="kernel width after standardisation (default: auto, by cross-validation)",
    )
    compare.add_argument(
        "--test-size",
        type=float,
        metavar="SHARE|ROWS",
        help="held-out share (below 1) or number of rows (default: 0.3; for the example all but "
        f"{_EXAMPLE_TRAINING_ROWS} rows)",
    )
    compare.add_argument(
        "--draws",
        type=int,
        default=1000,
        metavar="N",
        help="draws, and tuning steps, per chain (default: 1000)",
    )
    compare.add_argument("--chains", type=int, default=4, metavar="N", help="chains (default: 4)")
    compare.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed (default: 0)"
    )
    compare.add_argument(
        "--out",
        type=Path,
        default=Path("pcvm-compare"),
        metavar="FOLDER",
        help="output folder (default: pcvm-compare)",
    )
    compare.add_argument(
        "--force", action="store_true", help="write into an output folder that exists"
    )
    compare.set_defaults(run=_compare)
    add_commands(commands)
    return parser


def _compare(options: argparse.Namespace, console: Console) -> None:
    began = time.perf_counter()
    _check_numbers(options)
    width = _width_option(options.width)
    rows = _read(options.file, options.target) if options.file else _example()
    train, test = _split(rows, options)
    out = _output_folder(options.out, options.force)
    # a bad file is reported before these seconds are spent
    with console.status("importing PyMC"):
        from sklearn.preprocessing import StandardScaler

        from pcvm_pymc.assessment.comparison import compare
        from pcvm_pymc.estimators.selection import select_width
        from pcvm_pymc.inference.modes import find_map_em
        from pcvm_pymc.inference.results import save
        from pcvm_pymc.inference.sampling import sample
        from pcvm_pymc.model.builders import pcvm_model

    console.print(
        f"[bold]{rows.name}[/bold]: {len(rows.X)} rows, {rows.X.shape[1]} features, classes "
        f"{', '.join(map(str, np.unique(rows.y)))}. Training on {len(train)} rows (stratified, "
        f"standardised), testing on {len(test)}."
        + ("" if options.file else " The size is chosen to stay below a minute on two cores.")
    )
    if len(train) > _MANY_TRAINING_ROWS:
        console.print(
            f"Sampling with {len(train)} bases can take minutes; a larger --test-size trains on fewer."
        )
    scaler = StandardScaler().fit(rows.X[train])
    X, X_test = scaler.transform(rows.X[train]), scaler.transform(rows.X[test])
    y, y_test = rows.y[train], rows.y[test]
    seed = np.random.SeedSequence(options.seed).generate_state(3)

    width_began = time.perf_counter()
    if width is None:
        width = select_width(X, y, random_state=int(seed[0]), progressbar=True).width
        console.print(
            f"width {width:.4g} (5-fold cross-validated log loss of the plug-in classifier)"
        )
    width_seconds = time.perf_counter() - width_began
    model = pcvm_model(X, y, width=width)
    map_result = find_map_em(model)
    seconds = map_result["optimizer_result"]["seconds"]
    map_result["optimizer_result"]["seconds"] = seconds + width_seconds
    save(map_result, out / "map.zarr")
    posterior = sample(
        model,
        draws=options.draws,
        tune=options.draws,
        chains=options.chains,
        random_seed=int(seed[1]),
    )
    save(posterior, out / "posterior.zarr")
    with console.status("tuning the SVC"):
        rivals = {
            "PCVMClassifier": _plug_in(X, y, X_test, width, width_seconds),
            "SVC, tuned": _tuned_svc(X, y, X_test, int(seed[2])),
        }
    result = compare(map_result, posterior, X_test, y_test, rivals=rivals)
    result.table.to_csv(out / "table.csv", index_label="classifier")
    with console.status("drawing"):
        _draw(result, X, y, rows.features, out)
    _report(result, console)
    console.print(
        f"Written to {out}{os.sep}: map.zarr, posterior.zarr, table.csv and pictures. "
        f"{time.perf_counter() - began:.0f} s in all."
    )


def _check_numbers(options: argparse.Namespace) -> None:
    for name, least in (("draws", 10), ("chains", 2), ("seed", 0)):
        value = getattr(options, name)
        if value < least:
            raise UsageError(f"--{name} is {value}; needed at least {least}")
    if options.target is not None and options.file is None:
        raise UsageError("--target needs a FILE.csv")


def _width_option(text: str) -> float | None:
    """Return the width asked for, None for auto."""
    if text == "auto":
        return None
    try:
        width = float(text)
    except ValueError:
        raise UsageError(f"--width is {text!r}; needed a positive number or auto") from None
    if not (np.isfinite(width) and width > 0):
        raise UsageError(f"--width is {text}; needed a positive number or auto")
    return width


def _read(path: Path, target: str | None) -> Rows:
    """Read a CSV file: numbers, and one column of labels of any type."""
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; needed a CSV file with a header row") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder; needed a CSV file with a header row") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from None
    if frame.shape[1] < 2:
        raise UsageError(
            f"{path} has {frame.shape[1]} column(s); needed features and a label column, "
            "separated by commas"
        )
    if target is None:
        target = str(frame.columns[-1])
    if target not in frame.columns:
        raise UsageError(
            f"{path} has no column {target!r}; its columns are {', '.join(map(str, frame.columns[:20]))}"
        )
    if len(frame) == 0:
        raise UsageError(f"{path} has a header but no rows")
    labels, features = frame[target], frame.drop(columns=target)
    _check_frame(path, labels, features, target)
    return Rows(
        features.to_numpy(dtype=float),
        labels.to_numpy(),
        tuple(map(str, features.columns)),
        path.name,
    )


def _check_frame(path: Path, labels: pd.Series, features: pd.DataFrame, target: str) -> None:
    text = [
        str(name) for name in features if not pd.api.types.is_numeric_dtype(features[name].dtype)
    ]
    if text:
        raise UsageError(
            f"{path} has columns that are not numbers: {', '.join(text[:10])}; encode or remove them, "
            f"or name the label column with --target (now {target!r})"
        )
    bad = ~np.isfinite(features.to_numpy(dtype=float))
    if bad.any():
        first = int(np.flatnonzero(bad.any(axis=1))[0]) + 2
        raise UsageError(
            f"{path} has {int(bad.sum())} empty or infinite cells, the first in line {first}; "
            "remove or fill in those rows"
        )
    if labels.isna().any():
        first = int(np.flatnonzero(labels.isna())[0]) + 2
        raise UsageError(
            f"{path} has {int(labels.isna().sum())} rows without a label in {target!r}, the first in line "
            f"{first}; remove them"
        )
    counts = labels.value_counts()
    if len(counts) != 2:
        some = ", ".join(map(str, counts.index[:6])) + (", ..." if len(counts) > 6 else "")
        raise UsageError(
            f"label column {target!r} of {path} has {len(counts)} classes ({some}); needed two. "
            "Name another column with --target"
        )
    if counts.min() < 4:
        raise UsageError(
            f"class {counts.idxmin()} of {path} has {counts.min()} row(s); "
            "needed at least 4 to train and test"
        )


def _example() -> Rows:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = tuple(str(name) for name in bunch.feature_names)
    labels = np.asarray(bunch.target_names)[bunch.target]
    return Rows(bunch.data, labels, names, "Wisconsin breast cancer (scikit-learn)")


def _split(rows: Rows, options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers of a stratified training part and of the rest."""
    from sklearn.model_selection import train_test_split

    n, size = len(rows.X), options.test_size
    if size is None:
        size = 0.3 if options.file else n - _EXAMPLE_TRAINING_ROWS
    n_test = round(size * n) if 0 < size < 1 else size
    if not (2 <= n_test <= n - 4 and n_test == int(n_test)):  # also for NaN
        raise UsageError(
            f"--test-size is {size:g}; needed a share between 0 and 1, or 2 to {n - 4} rows"
        )
    train, test = train_test_split(
        np.arange(n), test_size=int(n_test), stratify=rows.y, random_state=options.seed
    )
    _, counts = np.unique(rows.y[train], return_counts=True)
    if len(counts) < 2 or counts.min() < 2:
        raise UsageError(
            f"--test-size is {size:g}, which leaves fewer than two rows of a class to train on; use less"
        )
    return train, test


def _output_folder(path: Path, force: bool) -> Path:
    """Return the output folder, made; one that exists is only written into with --force."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; needed a folder")
    if path.exists() and any(path.iterdir()) and not force:
        raise UsageError(f"--out {path} exists and is not empty; use --force, or another folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be made: {error.strerror}") from None
    return path


def _plug_in(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, width: float, seconds: float) -> Any:
    """Return the MAP under the hyperprior that suits a plug-in, at the same width."""
    from pcvm_pymc.assessment.comparison import Rival
    from pcvm_pymc.estimators.pcvm import PCVMClassifier

    began = time.perf_counter()
    model = PCVMClassifier(width=width).fit(X, y)
    seconds += time.perf_counter() - began
    return Rival(model.predict_proba(X_test)[:, 1], float(len(model.weight_)), seconds)


def _tuned_svc(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, seed: int) -> Any:
    """Return a tuned SVC with Platt's probabilities, for scale."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import SVC

    from pcvm_pymc.assessment.comparison import Rival
    from pcvm_pymc.core.pieces.kernels import width_grid

    began = time.perf_counter()
    n_folds = min(5, int(np.unique(y, return_counts=True)[1].min()))
    folds = StratifiedKFold(max(2, n_folds), shuffle=True, random_state=seed)
    grid = {"C": np.geomspace(0.1, 1000, 5), "gamma": width_grid(X, 6) ** -2}
    search = GridSearchCV(SVC(), grid, cv=folds).fit(X, y)
    calibrated = CalibratedClassifierCV(search.best_estimator_, cv=folds, ensemble=False).fit(X, y)
    seconds = time.perf_counter() - began
    probability = calibrated.predict_proba(X_test)[:, 1]
    return Rival(probability, float(search.best_estimator_.n_support_.sum()), seconds)


def _draw(result: Any, X: np.ndarray, y: np.ndarray, features: tuple[str, ...], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from pcvm_pymc.assessment.plots import plot_decision_surface

    for kind in _PICTURES:
        result.plot(kind).savefig(out / f"{kind}.png", dpi=120)
    if len(features) == 2:
        figure = plot_decision_surface(
            result.map_result, result.posterior, X, y, feature_names=features
        )
        figure.savefig(out / "decision_surface.png", dpi=120)
    plt.close("all")


def _report(result: Any, console: Console) -> None:
    table = Table(
        title="MAP beside posterior, on the test set", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    table.add_column("", no_wrap=True)
    formats = {
        "error": ("error %", lambda v: f"{100 * v:.2f}"),
        "AUC": ("AUC %", lambda v: f"{100 * v:.2f}"),
        "1-RMSE": ("1-RMSE %", lambda v: f"{100 * v:.2f}"),
        "log loss": ("log loss", lambda v: f"{v:.4f}"),
        "ECE": ("ECE", lambda v: f"{v:.4f}"),
        "vectors": ("vectors*", lambda v: f"{v:.0f}"),
        "seconds": ("s", lambda v: f"{v:.1f}"),
    }
    for heading, _ in formats.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in result.table.iterrows():
        table.add_row(str(name), *(show(row[key]) for key, (_, show) in formats.items()))
    console.print(table)
    console.print(
        "MAP and posterior are of one model, whose hyperprior suits sampling; PCVMClassifier is the MAP "
        "under the hyperprior that suits a plug-in.\n"
        "* weights that are not zero (MAP), that hold 95 % of the sum of |w| (mean over posterior draws), "
        "support vectors (SVC). s: seconds, the choice of width and tuning included.",
        style="dim",
    )
    colour = "green" if result.convergence.ok else "red"
    sampler = result.posterior["posterior"].attrs["sampler"]
    console.print(f"{sampler}: [{colour}]{result.convergence}[/{colour}]")
