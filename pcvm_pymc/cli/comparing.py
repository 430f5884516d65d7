"""The command ``pcvm compare``: classifiers on the same held-out rows of several splits."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.processes import Team
from pcvm_pymc.experiments.tables import Rows, checked_width, labels_and_features, quiet, read_table
from pcvm_pymc.inference.files import alone_in, is_scratch, replacing, write_atomically

_EXAMPLE_TRAINING_ROWS = 120
_LEAST = {"draws": 10, "chains": 2, "seed": 0, "splits": 1, "posteriors": 1, "jobs": 1}
_SETTINGS = "compare.json"  # in a folder of this command, written first
_NO_RESULT = {"command", "out", "force", "jobs"}  # options that no number depends on
_POSTERIOR = "posterior mean"
PICTURES = ("reliability.png", "weights.png", "decision_surface.png")
_PAIRED = ("log loss", "error")  # what is compared split by split
_COUNTS = ("won", "drawn", "lost")
_TABLES = ("table", "standard_errors", "splits")
_COLUMNS = {  # heading, factor and digits of what is printed
    "log loss": ("log loss", 1.0, 3),
    "error": ("error %", 100.0, 1),
    "AUC": ("AUC %", 100.0, 1),
    "ECE": ("ECE", 1.0, 3),
    "vectors": ("vectors", 1.0, 0),
    "seconds": ("s", 1.0, 1),
}


def paired(score: pd.Series, first: str) -> pd.DataFrame:
    """Return how classifiers differ from the first one in a score, on the splits that both ran on.

    Parameters
    ----------
    score : Series
        Of each classifier and split, less is better; index levels ``classifier`` and ``split``.
    first : str

    Returns
    -------
    DataFrame
        For each classifier the mean ``difference`` and its standard ``error`` over the ``splits`` of both
        (NaN for a single one), and on how many of these its score was less, equal and greater: ``won``,
        ``drawn`` and ``lost``.
    """
    table = score.unstack("classifier")
    difference = table.sub(table[first], axis=0)  # NaN where one of the two did not run
    return pd.DataFrame(
        {
            "difference": difference.mean(),
            "error": difference.sem(),
            "splits": difference.count(),
            "won": (difference < 0).sum(),
            "drawn": (difference == 0).sum(),
            "lost": (difference > 0).sum(),
        }
    )


@dataclass
class Scored:
    """Scores and predictions of classifiers on several splits.

    Attributes
    ----------
    options : argparse.Namespace
    console : Console
    out : Path
        Folder of the results.
    classes : ndarray
    labels : list of ndarray of int
        Of the test rows of each split, as numbers of the classes.
    probability : dict of str to dict of int to ndarray
        Of each classifier and split.
    scores : list of dict
        A row for each classifier and split.
    chains : list of Convergence
        Of each posterior.
    """

    options: argparse.Namespace
    console: Console
    out: Path
    classes: np.ndarray
    labels: list[np.ndarray] = field(default_factory=list)
    probability: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    chains: list[Any] = field(default_factory=list)

    def add(self, name: str, split: int, rival: Any) -> None:
        """Score a classifier's predictions for the test rows of a split."""
        from pcvm_pymc.estimators.measures import scores

        self.probability.setdefault(name, {})[split] = rival.probability
        measures = scores(self.labels[split], rival.probability)
        rest = {"vectors": rival.vectors, "seconds": rival.seconds}
        self.scores.append({"classifier": name, "split": split, **measures, **rest})

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return means over splits, their standard errors, and the scores of each split.

        The best mean log loss of those that ran on most splits is first. Then come the others by their
        difference to it, which is of the splits that both ran on, as their means need not be.
        """
        order = pd.DataFrame(self.scores).sort_values("split", kind="stable")  # as if one by one
        scores = order.set_index(["classifier", "split"])
        groups = scores.groupby("classifier", sort=False)
        mean, error = groups.mean().assign(splits=groups.size()), groups.sem()
        first = mean.loc[mean["splits"] == mean["splits"].max(), "log loss"].idxmin()
        for key in _PAIRED:
            found = paired(scores[key], first)
            mean[f"{key} difference"], error[f"{key} difference"] = found.difference, found.error
            for count in _COUNTS:
                mean[f"{key} {count}"] = found[count]
        others = mean.drop(first).sort_values("log loss difference", kind="stable").index
        rows = [first, *others]
        return mean.loc[rows], error.loc[rows], scores

    def write(self) -> None:
        """Write the tables, so that what is finished stays when the rest is stopped."""
        for name, table in zip(_TABLES, self.tables(), strict=True):
            write_atomically(self.out / f"{name}.csv", table.to_csv().encode())

    def seed_of(self, split: int) -> int:
        """Return the seed of a split's fits."""
        return int(np.random.SeedSequence([self.options.seed, split]).generate_state(1)[0] >> 1)


def compare(options: argparse.Namespace, console: Console) -> None:
    """Fit all classifiers on all splits, print the table, and write it with pictures into a folder."""
    began = time.perf_counter()
    _check_numbers(options)
    options.width, options.jobs = checked_width(options.width), options.jobs or cpu_count()
    with ExitStack() as stack:
        n_processes = min(options.jobs, options.splits)
        team = stack.enter_context(Team(n_processes, "pcvm_pymc.experiments.head_to_head"))
        compiled = stack.enter_context(_compiling(2)) if options.file is None else None
        rows = _read(options, console)
        classes = np.unique(rows.y)
        n_train, n_test = _sizes(rows, options)
        if options.posteriors is None:  # of several classes one takes as long as many of two
            options.posteriors = min(3 if len(classes) == 2 else 1, options.splits)
        scored = Scored(options, console, _output_folder(options, stack), classes)
        compiled = compiled or stack.enter_context(_compiling(len(classes)))
        console.print(
            f"[bold]{escape(rows.name)}[/bold]: {len(rows.X)} rows, {rows.X.shape[1]} features, classes "
            f"{escape(', '.join(map(str, classes)))}. {options.splits} stratified splits: training on "
            f"{n_train} rows (standardised), testing on {n_test}. Posterior by Gibbs sampling on the first "
            f"{options.posteriors}."
        )
        # a bad file is reported before these seconds are spent
        with console.status("importing scikit-learn"):
            tables, parts = _splits(rows, n_train, n_test, options)
        drawn = {len(part[1]) for part in parts}
        if drawn != {n_train}:
            console.print(
                f"Equal rows are on one side: {min(drawn)} to {max(drawn)} rows to train on."
            )
        _fit_rivals(scored, tables, parts, team)
        console.print(_table(scored))  # no need to wait for the posterior
        with console.status("importing PyMC"):
            import_module("pcvm_pymc.inference.sampling")
        with console.status("compiling the sampler"):
            compiled()
        mode, posterior = _fit_posteriors(scored, parts)
        with console.status("drawing"):
            draw(scored, mode, posterior, parts[0], rows.features)
    _report(scored)
    console.print(
        f"Written to {escape(str(scored.out))}{os.sep}: table.csv, standard_errors.csv, splits.csv, "
        f"map.zarr, posterior.zarr and pictures. {time.perf_counter() - began:.0f} s in all."
    )


def _splits(
    rows: Rows, n_train: int, n_test: int, options: argparse.Namespace
) -> tuple[list[Any], list[Any]]:
    """Return training and test part of each split: tables, and these as numbers alone."""
    from pcvm_pymc.experiments.head_to_head import stratified_draws, with_indicators

    splits = stratified_draws(
        rows.X, rows.y, n_train, n_test, seed=options.seed, scaler=rows.scaler
    )
    try:
        tables = [next(splits) for _ in range(options.splits)]
    except ValueError as error:  # a class whose rows are all equal
        raise UsageError(f"no split with equal rows on one side: {error}") from None
    numbers = [with_indicators(X, X_test) for X, _, X_test, _ in tables]
    return tables, [
        (X, y, X_test, y_test)
        for (X, X_test), (_, y, _, y_test) in zip(numbers, tables, strict=True)
    ]


# --- fits --------------------------------------------------------------------------------------


def _fit_rivals(scored: Scored, tables: list[Any], parts: list[Any], team: Team) -> None:
    """Fit all but the posterior on every split: our own to tables, as `pcvm fit` does, others to numbers."""
    from pcvm_pymc.experiments.head_to_head import fitted_rivals

    width, n_classes = scored.options.width, len(scored.classes)
    same = {"n_classes": n_classes, "width": None if width == "auto" else width}
    scored.labels = [np.searchsorted(scored.classes, y_test) for *_, y_test in parts]
    calls = (
        delayed(fitted_rivals)(split, table, part, seed=scored.seed_of(split), **same)
        for split, (table, part) in enumerate(zip(tables, parts, strict=True))
    )
    try:
        with scored.console.status(f"{len(parts)} splits") as status:
            for n_done, (split, rivals) in enumerate(team.results(calls), 1):
                for name, rival in rivals.items():
                    scored.add(name, split, rival)
                scored.write()
                status.update(Group(f"{n_done} of {len(parts)} splits done", _table(scored)))
    except TerminatedWorkerError:
        raise MemoryError("a process died, perhaps of too little memory; use --jobs 1") from None


def _fit_posteriors(scored: Scored, parts: list[Any]) -> list[Any]:
    """Sample the posterior on the first splits; return the first one's mode, and itself."""
    from pcvm_pymc.assessment.comparison import convergence, rival_of
    from pcvm_pymc.inference.estimates import find_map_em
    from pcvm_pymc.inference.storing import save

    found: list[Any] = []
    for split, (X, y, X_test, _) in enumerate(parts[: scored.options.posteriors]):
        began = time.process_time()
        status = f"posterior {split + 1} of {scored.options.posteriors}"
        with scored.console.status(status), quiet("pymc"):
            model, posterior = _sampled(X, y, scored.seed_of(split), scored.options)
            seconds = time.process_time() - began
            scored.add(_POSTERIOR, split, replace(rival_of(posterior, X_test), seconds=seconds))
        scored.chains.append(convergence(posterior))
        if not found:
            found = [find_map_em(model, progressbar=False), posterior]
            for name, result in zip(("map", "posterior"), found, strict=True):
                save(result, scored.out / f"{name}.zarr")
        scored.write()
    return found


def _sampled(X: Any, y: Any, seed: int, options: argparse.Namespace) -> tuple[Any, Any]:
    """Return a model and its posterior by Gibbs sampling.

    Two classes have basis functions on k-means centres with unconstrained weights, several on all rows: there
    they predict better (benchmarks/README.md).
    """
    from pcvm_pymc.assessment.select import select
    from pcvm_pymc.inference.sampling import sample
    from pcvm_pymc.model.builders import mpcvm_model, pcvm_model

    width = options.width
    if width == "auto":
        width = float(select(X, y, over=("width",), random_state=seed).width)
    if len(np.unique(y)) == 2:
        model = pcvm_model(X, y, width=width, basis="kmeans", signs="both")
    else:
        model = mpcvm_model(X, y, width=width)
    length = {"draws": options.draws, "tune": options.draws, "chains": options.chains}
    how: dict[str, Any] = {"method": "gibbs", "progressbar": False, "quiet": True}
    return model, sample(model, random_seed=seed, **length, **how)


@contextmanager
def _compiling(n_classes: int) -> Iterator[Callable[[], object]]:
    """Compile the sampler in another process if there is a second processor; yield a function that waits.

    Some ten seconds less of a first command. If that process fails, the sampler is compiled where it is used.
    """
    if (os.cpu_count() or 1) < 2:
        yield lambda: None
        return
    command = [sys.executable, "-m", "pcvm_pymc.cli.ahead", str(n_classes)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.wait
    finally:
        process.kill()
        process.wait()


def draw(scored: Scored, mode: Any, posterior: Any, split: Any, features: tuple[str, ...]) -> None:
    """Write the pictures: calibration where the posterior was sampled, and the first split's posterior."""
    import matplotlib as mpl

    from pcvm_pymc.assessment import plots

    mpl.use("Agg")
    n_splits, n_classes = len(scored.chains), len(scored.classes)
    label = np.concatenate(scored.labels[:n_splits])
    probability = {
        name: np.concatenate([each[split] for split in range(n_splits)])
        for name, each in scored.probability.items()
    }
    if n_classes > 2:  # drawn together, each class against the rest
        label = (label[:, None] == np.arange(n_classes)).astype(int).ravel()
        probability = {name: each.ravel() for name, each in probability.items()}
    figures = {
        "reliability": plots.plot_calibration(label, probability),
        "weights": plots.plot_weights(mode, posterior),
    }
    X, y, _, _ = split
    if X.shape[1] == len(features) == 2:  # a column of text may have become several
        figures["decision_surface"] = plots.plot_decision_surface(
            mode, posterior, X, y, feature_names=features
        )
    for name, figure in figures.items():
        with replacing(scored.out / f"{name}.png") as unfinished:
            figure.savefig(unfinished, dpi=120, format="png")
    plots.plt.close("all")


# --- what is asked for -------------------------------------------------------------------------


def _check_numbers(options: argparse.Namespace) -> None:
    for name, needed in _LEAST.items():
        value = getattr(options, name)
        if value is not None and value < needed:
            raise UsageError(f"--{name} is {value}; needed at least {needed}")
    if (options.posteriors or 0) > options.splits:
        raise UsageError(
            f"--posteriors is {options.posteriors}; needed at most --splits, which is {options.splits}"
        )
    given = {
        name: getattr(options, name) for name in ("target", "categorical", "impute", "missing")
    }
    for name, value in (given | {"header": options.header != "auto"}).items():
        if options.file is None and value:
            raise UsageError(f"--{name} needs a FILE.csv")


def _read(options: argparse.Namespace, console: Console) -> Rows:
    """Return the rows of a file, and say what was recognised in it; without one those of an example."""
    path = options.file
    if path is None:
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        labels = bunch.target_names[bunch.target]
        names = tuple(map(str, bunch.feature_names))
        return Rows(bunch.data, labels, names, "Wisconsin breast cancer (scikit-learn)")
    how = {"asked": [options.target], "missing": options.missing}
    frame = read_table(path, options.header, console, **how)
    labels, features = labels_and_features(path, frame, options.target)
    from pcvm_pymc.experiments.model_files import TableScaler

    scaler = TableScaler.of(path, features, categorical=options.categorical, impute=options.impute)
    return Rows(features, labels.to_numpy(), tuple(map(str, features)), path.name, scaler)


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


def _output_folder(options: argparse.Namespace, stack: ExitStack) -> Path:
    """Return the output folder, made, locked, and emptied of an earlier run of the same settings.

    Where the default folder has anything else in it the next number is taken; a folder that was named is
    only written into with --force. The settings are written first.
    """
    settings = {k: v for k, v in vars(options).items() if k not in _NO_RESULT}
    settings["file"] = str(options.file.resolve()) if options.file else None
    path, number = options.out or Path("pcvm-compare"), 1
    while (found := _occupied(path, settings)) and not options.force:
        if options.out is not None:
            raise UsageError(f"--out {path} {found}; use --force, or another folder")
        number += 1
        path = Path(f"pcvm-compare-{number}")
    stack.enter_context(alone_in(path))
    if (path / _SETTINGS).exists():
        for name in (*(f"{each}.csv" for each in _TABLES), *PICTURES):
            (path / name).unlink(missing_ok=True)
    write_atomically(path / _SETTINGS, json.dumps(settings, indent=1).encode())
    return path


def _occupied(path: Path, settings: dict[str, Any]) -> str:
    """Return why a folder cannot be written into, or an empty string."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; needed a folder")
    if not path.exists() or all(map(is_scratch, path.iterdir())):
        return ""
    try:
        before = json.loads((path / _SETTINGS).read_text(encoding="utf-8"))
        other = [name for name, value in settings.items() if before.get(name) != value]
    except (OSError, ValueError, AttributeError):
        return "has something else than a comparison in it"
    return f"has a comparison with another {', '.join(other)}" if other else ""


# --- what is printed ---------------------------------------------------------------------------


def _table(scored: Scored) -> Table:
    """Return two lines for each classifier: its means, and its differences to the first one."""
    mean, error, _ = scored.tables()
    title = "held-out scores, mean over splits"
    table = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("\n  won/drawn/lost", no_wrap=True)
    for key, (heading, _, _) in _COLUMNS.items():
        below = "- first" * (key in _PAIRED)
        table.add_column(f"{heading}\n{below}", justify="right", no_wrap=True)
    for name, row in mean.iterrows():
        is_first, n_splits = name == mean.index[0], int(row["splits"])
        counts = "/".join(f"{row[f'log loss {each}']:.0f}" for each in _COUNTS)
        below = f"  {n_splits} split{'s' * (n_splits > 1)}" + f": {counts}" * (not is_first)
        cells = [f"{escape(str(name))}\n{below}"]
        for key, (_, factor, digits) in _COLUMNS.items():
            text = "" if np.isnan(row[key]) else f"{factor * row[key]:.{digits}f}"
            if key not in ("vectors", "seconds") and n_splits < mean["splits"].iloc[0]:
                text = f"({text})" if key in _PAIRED else ""  # not to be read down the column
            if key in _PAIRED and not is_first:
                text += f"\n{factor * row[f'{key} difference']:+.{digits}f}"
                spread = factor * error.loc[name, f"{key} difference"]
                text += "" if np.isnan(spread) else f" ± {spread:.{digits}f}"
            cells.append(text)
        table.add_row(*cells)
    return table


def _report(scored: Scored) -> None:
    """Print the table, how to read it, and one verdict on all chains."""
    scored.console.print(_table(scored))
    chains = scored.chains
    scored.console.print(
        "Second lines: minus the first row on the splits that both ran on, ± standard error; won, drawn and "
        "lost are these splits by log loss. In brackets: a mean over fewer splits than the first row's.\n"
        "Each with the hyperparameters that suit it. averaged MAP: PCVMClassifier(), or MPCVMClassifier() "
        "for several classes.\n"
        "vectors: weights that are not zero, of an average those of its best mode; of the posterior those "
        "with 95 % of the sum of |w|; support vectors (SVC). s: processor seconds, tuning included.",
        style="dim",
    )
    colour, word = "green", "converged"
    if not all(each.ok for each in chains):
        colour, word = "red", "NOT converged (use a larger --draws)"
    rhat, ess = max(each.rhat for each in chains), min(each.ess for each in chains)
    scored.console.print(
        f"Gibbs sampling, {len(chains)} posterior{'s' * (len(chains) > 1)}: [{colour}]{word}; latent "
        f"function: worst r-hat {rhat:.3f}, smallest ESS {ess:.0f}[/{colour}]"
    )
