"""The `pcvm` command."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pcvm_pymc import __version__
from pcvm_pymc.experiments.commands import add_commands
from pcvm_pymc.experiments.errors import UsageError, first_line
from pcvm_pymc.experiments.fitting import add_encoding, add_fitting, add_header, tell
from pcvm_pymc.experiments.labelled_csv import Rows, read_rows
from pcvm_pymc.storage import StoreError, alone_in, is_scratch, write_atomically, writing

__all__ = ["main"]

# a training part of this size keeps `pcvm compare` without a file below a minute on two cores
_EXAMPLE_TRAINING_ROWS = 120
_MANY_TRAINING_ROWS = 600
_PICTURES = ("reliability", "weights", "rank")
_PICTURES_OF_SEVERAL = ("rank",)
_SECONDS = 45.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        return options.run(options, console) or 0
    except (UsageError, StoreError, OSError, MemoryError) as error:
        print(f"pcvm: error: {first_line(error)}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("pcvm: stopped; what was finished stays in the output folder", file=sys.stderr)  # noqa: T201
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pcvm", description="Sparse Bayesian kernel classifiers for PyMC."
    )
    parser.add_argument("--version", action="version", version=f"pcvm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_fitting(commands)
    _add_compare(commands)
    add_commands(commands)
    return parser


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="held-out scores of PCVM, posterior and rivals on several draws, each at its own best",
        description="Lay the paper's sparse MAP, the averaged MAP, its ten vectors, a posterior, a tuned SVC "
        "and logistic regression side by side on held-out rows of a table, over several stratified draws.",
    )
    compare.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE.csv",
        help="a table with a label column (default: Wisconsin breast cancer)",
    )
    compare.add_argument("--target", metavar="COLUMN", help="label column (default: the last)")
    add_header(compare)
    add_encoding(compare)
    compare.add_argument(
        "--width",
        default="auto",
        metavar="W|auto",
        help="kernel width after standardisation (default: auto, each estimator's own choice)",
    )
    compare.add_argument(
        "--test-size",
        type=float,
        metavar="SHARE|ROWS",
        help="held-out share (below 1) or number of rows (default: 0.3; for the example all but "
        f"{_EXAMPLE_TRAINING_ROWS} rows)",
    )
    _add_effort(compare)
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


def _add_effort(compare: argparse.ArgumentParser) -> None:
    """Add what decides how long it takes."""
    compare.add_argument(
        "--draws",
        type=int,
        default=1000,
        metavar="N",
        help="draws, and tuning steps, per chain (default: 1000)",
    )
    compare.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        metavar="S",
        help=f"no draw is begun that would end later (default: {_SECONDS:g}; 0: one draw)",
    )
    compare.add_argument(
        "--most", type=int, default=20, metavar="N", help="stratified draws at most (default: 20)"
    )
    compare.add_argument("--chains", type=int, default=4, metavar="N", help="chains (default: 4)")


def _compare(options: argparse.Namespace, console: Console) -> None:
    _check_numbers(options)
    width = _width_option(options.width)
    with ExitStack() as held:
        if options.file:
            rows = _read(options, console)
            compiled = held.enter_context(_compiling(len(np.unique(rows.y))))
        else:
            compiled = held.enter_context(_compiling(2))
            rows = _example()
        sizes = _sizes(rows, options)
        out = _output_folder(options.out, options.force)
        held.enter_context(alone_in(out))
        _compare_into(out, rows, sizes, width, compiled=compiled, options=options, console=console)


@contextmanager
def _compiling(n_classes: int) -> Iterator[Callable[[], object]]:
    """Compile the sampler beside other work, where there is a second processor; yield what waits for it.

    A process that fails is no fault: what it has not compiled is compiled where it is used.
    """
    if (os.cpu_count() or 1) < 2:
        yield lambda: None
        return
    command = [sys.executable, "-m", "pcvm_pymc.core.gibbs.ahead", str(n_classes)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.wait
    finally:
        process.kill()
        process.wait()


def _read(options: argparse.Namespace, console: Console) -> Rows:
    """Return the rows of a file, and say what was recognised in it."""
    rows = read_rows(
        options.file,
        options.target,
        header=options.header,
        categorical=options.categorical,
        impute=options.impute,
    )
    tell(console, rows.name, rows.told)
    return rows


def _compare_into(
    out: Path,
    rows: Rows,
    sizes: tuple[int, int],
    width: float | None,
    *,
    compiled: Callable[[], object],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Compare on as many draws as end in time, and write down what is finished after each."""
    began = time.perf_counter()
    n_train, n_test = sizes
    # a bad file is reported before these seconds are spent
    with console.status("importing PyMC"):
        from pcvm_pymc.experiments.head_to_head import mean_and_error, stratified_draws

    _announce(rows, n_train, n_test, options, console)
    tables: list[Any] = []
    draws = stratified_draws(rows.X, rows.y, n_train, n_test, seed=options.seed, scaler=rows.scaler)
    first = None
    while first is None or (
        len(tables) < options.most and _time_for_another(began, len(tables), options.seconds)
    ):
        target = out if first is None else None
        result = _one_draw(next(draws), width, len(tables), compiled, options=options, out=target)
        tables.append(result.table.drop(index="MAP plug-in"))
        first = first or result
        mean, error = mean_and_error(tables)  # what is finished stays when the rest is stopped
        for name, table in (("table", mean), ("standard_errors", error)):
            content = table.to_csv(index_label="classifier").encode()
            write_atomically(out / f"{name}.csv", content)
    with console.status("drawing"):
        _draw(first, rows, n_train, options, out)
    _report(first, mean, error, len(tables), console)
    console.print(
        f"Written to {escape(str(out))}{os.sep}: map.zarr, posterior.zarr, table.csv, "
        f"standard_errors.csv and pictures. {time.perf_counter() - began:.0f} s in all."
    )


def _time_for_another(began: float, n_done: int, seconds: float) -> bool:
    """Whether another draw ends in time, if it takes as long as those before."""
    spent = time.perf_counter() - began
    return spent * (n_done + 1) / n_done <= seconds


def _announce(
    rows: Rows, n_train: int, n_test: int, options: argparse.Namespace, console: Console
) -> None:
    console.print(
        f"[bold]{escape(rows.name)}[/bold]: {len(rows.X)} rows, {rows.X.shape[1]} features, classes "
        f"{escape(', '.join(map(str, np.unique(rows.y))))}. Training on {n_train} rows (stratified, "
        f"standardised), testing on {n_test}; as many draws as end within {options.seconds:g} s, "
        "one at least."
    )
    if n_train > _MANY_TRAINING_ROWS and len(np.unique(rows.y)) > 2:  # two have a basis on means
        console.print(
            f"Sampling with {n_train} bases can take minutes; a larger --test-size trains on fewer."
        )


def _one_draw(
    draw: Any,
    width: float | None,
    number: int,
    compiled: Callable[[], object],
    *,
    options: argparse.Namespace,
    out: Path | None,
) -> Any:
    """Return everything on one training and test part, the first saved as soon as it is there.

    The posterior comes last: its sampler may still be compiled elsewhere.
    """
    from pcvm_pymc.assessment.comparison import compare
    from pcvm_pymc.estimators.select import select
    from pcvm_pymc.experiments.head_to_head import estimators, fitted_rival, peers

    X, y, X_test, y_test = draw
    seed = int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0] >> 1)
    n_classes = len(np.unique(y))
    began = time.process_time()
    if width is None:
        width = float(select(X, y, over=("width",), random_state=seed).width)
    width_seconds = time.process_time() - began
    given = None if options.width == "auto" else width
    others = {
        **estimators(n_classes, seed=seed, width=given),
        **{
            name: model
            for name, model in peers(n_classes, *X.shape, seed=seed).items()
            if name in ("SVC, tuned", "logistic regression")
        },
    }
    rivals = {name: fitted_rival(model, X, y, X_test) for name, model in others.items()}
    map_result, posterior = _fits(X, y, width, compiled, seed=seed, options=options, out=out)
    posterior["posterior"].attrs["sampling_time"] += width_seconds
    return compare(map_result, posterior, X_test, y_test, rivals=rivals)


def _fits(
    X: Any,
    y: Any,
    width: float,
    compiled: Callable[[], object],
    *,
    seed: int,
    options: argparse.Namespace,
    out: Path | None,
) -> tuple[Any, Any]:
    """Return MAP and posterior of one model, saved as soon as it is there.

    Of two classes on means of rows, with weights of either sign, of several on all rows: there they predict
    better (benchmarks/README.md).
    """
    from pcvm_pymc.inference.modes import find_map_em
    from pcvm_pymc.inference.sampling import sample
    from pcvm_pymc.inference.storing import save
    from pcvm_pymc.model.builders import mpcvm_model, pcvm_model

    if len(np.unique(y)) == 2:
        model = pcvm_model(X, y, width=width, basis="kmeans", signs="both")
    else:
        model = mpcvm_model(X, y, width=width)
    map_result = find_map_em(model, progressbar=out is not None)
    if out is not None:
        save(map_result, out / "map.zarr")
        # while the sampler is compiled: what the first of all pictures waits for, the others have then
        _draw_trace(map_result, out)
        import_module("arviz_plots")
    compiled()
    draws = options.draws if out is not None else max(100, options.draws // 4)
    posterior = sample(
        model,
        draws=draws,
        tune=draws,
        chains=options.chains,
        random_seed=seed,
        progressbar=out is not None,
    )
    if out is not None:
        save(posterior, out / "posterior.zarr")
    return map_result, posterior


def _check_numbers(options: argparse.Namespace) -> None:
    for name, least in (("draws", 10), ("chains", 2), ("seed", 0), ("seconds", 0), ("most", 1)):
        value = getattr(options, name)
        if not value >= least:
            raise UsageError(f"--{name} is {value}; needed at least {least}")
    given = {
        "target": options.target is not None,
        "header": options.header != "auto",
        "categorical": options.categorical,
        "impute": options.impute is not None,
    }
    for name in (name for name, there in given.items() if there and options.file is None):
        raise UsageError(f"--{name} needs a FILE.csv")


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


def _sizes(rows: Rows, options: argparse.Namespace) -> tuple[int, int]:
    """Return how many rows are trained and tested on."""
    n, size = len(rows.X), options.test_size
    if size is None:
        size = 0.3 if options.file else n - _EXAMPLE_TRAINING_ROWS
    n_test = round(size * n) if 0 < size < 1 else size
    if not (2 <= n_test <= n - 4 and n_test == int(n_test)):  # also for NaN
        raise UsageError(
            f"--test-size is {size:g}; needed a share between 0 and 1, or 2 to {n - 4} rows"
        )
    share, (_, counts) = 1.0 - n_test / n, np.unique(rows.y, return_counts=True)
    if counts.min() * share < 2 or n_test < len(counts):
        raise UsageError(
            f"--test-size is {size:g}, which leaves fewer than two rows of a class to train on, or fewer "
            "test rows than classes; use another"
        )
    return n - int(n_test), int(n_test)


def _output_folder(path: Path, force: bool) -> Path:
    """Return the output folder, made; one that exists is only written into with --force."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; needed a folder")
    if path.exists() and not all(map(is_scratch, path.iterdir())) and not force:
        raise UsageError(f"--out {path} exists and is not empty; use --force, or another folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be made: {error.strerror}") from None
    return path


def _draw_trace(map_result: Any, out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from pcvm_pymc.assessment.plots import plot_em_trace

    _write_picture(plot_em_trace(map_result), out / "em_trace.png")


def _draw(result: Any, rows: Rows, n_train: int, options: argparse.Namespace, out: Path) -> None:
    import matplotlib.pyplot as plt

    from pcvm_pymc.assessment.plots import plot_decision_surface
    from pcvm_pymc.experiments.head_to_head import stratified_draws

    of_two = len(np.unique(rows.y)) == 2
    for kind in _PICTURES if of_two else _PICTURES_OF_SEVERAL:
        _write_picture(result.plot(kind), out / f"{kind}.png")
    if of_two and len(rows.features) == 2:
        n_test = len(rows.X) - n_train
        draws = stratified_draws(
            rows.X, rows.y, n_train, n_test, seed=options.seed, scaler=rows.scaler
        )
        X, y, _, _ = next(draws)
        if X.shape[1] == 2:  # a column of text may have become several
            figure = plot_decision_surface(
                result.map_result, result.posterior, X, y, feature_names=rows.features
            )
            _write_picture(figure, out / "decision_surface.png")
    plt.close("all")


def _write_picture(figure: Any, path: Path) -> None:
    try:
        with writing(path):
            figure.savefig(path, dpi=120)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _report(result: Any, mean: Any, error: Any, n_draws: int, console: Console) -> None:
    table = Table(
        title=f"held-out scores, mean of {n_draws} draw{'s' if n_draws > 1 else ''}"
        + (" ± standard error" if n_draws > 1 else ""),
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    formats = {
        "error": ("error %", 100.0, 1),
        "AUC": ("AUC %", 100.0, 1),
        "log loss": ("log loss", 1.0, 3),
        "ECE": ("ECE", 1.0, 3),
        "vectors": ("vectors*", 1.0, 0),
        "seconds": ("s", 1.0, 1),
    }
    for heading, _, _ in formats.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in mean.sort_values("log loss").iterrows():
        cells = []
        for key, (_, factor, digits) in formats.items():
            text = "" if np.isnan(row[key]) else f"{factor * row[key]:.{digits}f}"
            spread = factor * error.loc[name, key]
            if key in ("error", "log loss") and np.isfinite(spread):
                text += f" ± {spread:.{digits}f}"
            cells.append(text)
        table.add_row(str(name), *cells)
    console.print(table)
    console.print(
        "Each with the hyperparameters that suit it. averaged MAP: PCVMClassifier(), or MPCVMClassifier() "
        "for several classes.\n"
        "* weights that are not zero, of an average those of its best mode; of the posterior those that hold "
        "95 % of the sum of |w|; support vectors (SVC). s: processor seconds, tuning included.",
        style="dim",
    )
    colour = "green" if result.convergence.ok else "red"
    sampler = result.posterior["posterior"].attrs["sampler"]
    console.print(f"{sampler}, first draw: [{colour}]{result.convergence}[/{colour}]")
