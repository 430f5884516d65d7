"""The `pcvm` command."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from pcvm_pymc import __version__
from pcvm_pymc.experiments.commands import add_commands
from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.labelled_csv import Rows, read_rows

__all__ = ["main"]

# a training part of this size keeps `pcvm compare` without a file below a minute on two cores
_EXAMPLE_TRAINING_ROWS = 120
_MANY_TRAINING_ROWS = 600
_PICTURES = ("reliability", "weights", "em_trace", "rank")


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
    _add_compare(commands)
    add_commands(commands)
    return parser


def _add_compare(commands: Any) -> None:
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


def _compare(options: argparse.Namespace, console: Console) -> None:
    began = time.perf_counter()
    _check_numbers(options)
    width = _width_option(options.width)
    rows = read_rows(options.file, options.target) if options.file else _example()
    train, test = _split(rows, options)
    out = _output_folder(options.out, options.force)
    # a bad file is reported before these seconds are spent
    with console.status("importing PyMC"):
        from sklearn.preprocessing import StandardScaler

        from pcvm_pymc.assessment.comparison import compare
        from pcvm_pymc.model.builders import pcvm_model

    _announce(rows, train, test, options, console)
    scaler = StandardScaler().fit(rows.X[train])
    X, X_test = scaler.transform(rows.X[train]), scaler.transform(rows.X[test])
    y, y_test = rows.y[train], rows.y[test]
    seed = np.random.SeedSequence(options.seed).generate_state(3)
    width, width_seconds = _chosen_width(width, X, y, int(seed[0]), console)
    model = pcvm_model(X, y, width=width)
    map_result, posterior = _fits(model, width_seconds, options, int(seed[1]), out)
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


def _announce(
    rows: Rows, train: np.ndarray, test: np.ndarray, options: argparse.Namespace, console: Console
) -> None:
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


def _chosen_width(
    width: float | None, X: np.ndarray, y: np.ndarray, seed: int, console: Console
) -> tuple[float, float]:
    """Return the width that was asked for or is chosen, and the seconds that the choice took."""
    from pcvm_pymc.estimators.selection import select_width

    if width is not None:
        return width, 0.0
    began = time.perf_counter()
    width = select_width(X, y, random_state=seed, progressbar=True).width
    console.print(f"width {width:.4g} (5-fold cross-validated log loss of the plug-in classifier)")
    return width, time.perf_counter() - began


def _fits(
    model: Any, width_seconds: float, options: argparse.Namespace, seed: int, out: Path
) -> tuple[Any, Any]:
    """Return MAP and posterior of one model, each saved as soon as it is there."""
    from pcvm_pymc.inference.modes import find_map_em
    from pcvm_pymc.inference.results import save
    from pcvm_pymc.inference.sampling import sample

    map_result = find_map_em(model)
    seconds = map_result["optimizer_result"]["seconds"]
    map_result["optimizer_result"]["seconds"] = seconds + width_seconds
    save(map_result, out / "map.zarr")
    posterior = sample(
        model,
        draws=options.draws,
        tune=options.draws,
        chains=options.chains,
        random_seed=seed,
    )
    save(posterior, out / "posterior.zarr")
    return map_result, posterior


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
