"""The command ``pcvm compare``: classifiers on the same held-out rows of several splits."""

import argparse
import logging
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from pcvm_pymc.core.pieces.files import alone_in, is_scratch, replacing, write_atomically
from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.processes import processes
from pcvm_pymc.experiments.tables import read_table

_EXAMPLE_TRAINING_ROWS = 120
_LEAST = {"draws": 10, "chains": 2, "seed": 0, "splits": 1, "posteriors": 1, "jobs": 1}
_POSTERIOR = "posterior mean"
PICTURES = ("reliability.png", "weights.png", "decision_surface.png")
_TABLES = ("table", "standard_errors", "splits")
_COLUMNS = {  # heading, factor and digits of what is printed
    "log loss": ("log loss", 1.0, 3),
    "error": ("error %", 100.0, 1),
    "AUC": ("AUC %", 100.0, 1),
    "ECE": ("ECE", 1.0, 3),
    "vectors": ("vectors", 1.0, 0),
    "seconds": ("s", 1.0, 1),
}


class DataTable(NamedTuple):
    """Features and labels of a table, its name, and a description for the report."""

    X: Any
    y: np.ndarray
    features: tuple[str, ...]
    name: str
    said: str = ""


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
    posteriors : list of Comparison
        Each of one posterior.
    """

    options: argparse.Namespace
    console: Console
    out: Path
    classes: np.ndarray
    labels: list[np.ndarray] = field(default_factory=list)
    probability: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    posteriors: list[Any] = field(default_factory=list)

    def add(self, name: str, split: int, rival: Any) -> None:
        """Score a classifier's predictions for the test rows of a split."""
        from pcvm_pymc.estimators.measures import scores

        self.probability.setdefault(name, {})[split] = rival.probability
        measures = scores(self.labels[split], rival.probability)
        measures |= {"vectors": rival.vectors, "seconds": rival.seconds}
        self.scores.append({"classifier": name, "split": split, **measures})

    def write(self) -> None:
        """Write the tables of all splits that are finished, which an interrupt then leaves."""
        from pcvm_pymc.experiments.head_to_head import over_splits

        for name, table in zip(_TABLES, over_splits(self.scores), strict=True):
            write_atomically(self.out / f"{name}.csv", table.to_csv().encode())

    def seed_of(self, split: int) -> int:
        """Return the seed of a split's fits."""
        return int(np.random.SeedSequence([self.options.seed, split]).generate_state(1)[0] >> 1)


def compare(options: argparse.Namespace, console: Console) -> None:
    """Fit all classifiers on all splits, print the table, and write it with pictures into a folder."""
    began = time.perf_counter()
    _check_numbers(options)
    options.jobs = options.jobs or cpu_count()
    with ExitStack() as stack:
        rows = _read(options)
        classes = np.unique(rows.y)
        n_train, n_test = _sizes(rows, options)
        if options.posteriors is None:  # of several classes one takes as long as many of two
            options.posteriors = min(3 if len(classes) == 2 else 1, options.splits)
        scored = Scored(options, console, _output_folder(options, stack), classes)
        console.print(
            f"[bold]{escape(rows.name)}[/bold]: {len(rows.X)} rows, {rows.X.shape[1]} features"
            f"{escape(rows.said)}, classes {escape(', '.join(map(str, classes)))}. {options.splits} "
            f"stratified splits: training on {n_train} rows (standardised), testing on {n_test}. Posterior "
            f"by Gibbs sampling on the first {options.posteriors}."
        )
        with ExitStack() as fits:
            # a bad file is reported before these seconds are spent
            with console.status("importing scikit-learn"):
                needed = min(options.jobs, options.splits), "pcvm_pymc.experiments.head_to_head"
                team = fits.enter_context(processes(*needed))
                tables, parts = _splits(rows, n_train, n_test, options)
            drawn = {len(part[1]) for part in parts}
            if drawn != {n_train}:
                console.print(
                    f"Equal rows are on one side: training on {min(drawn)} to {max(drawn)}."
                )
            _fit_rivals(scored, tables, parts, team)
        console.print(_table(scored))  # no need to wait for the posterior
        with console.status("importing PyMC"):
            import_module("pcvm_pymc.inference.sampling")
        logger = logging.getLogger("pymc")  # below an error the report says it in its own words
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        mode, posterior = _fit_posteriors(scored, parts)
        with console.status("drawing"):
            draw(scored, mode, posterior, parts[0], rows.features)
    _report(scored)
    console.print(
        f"Written to {escape(str(scored.out))}{os.sep}: table.csv, standard_errors.csv, splits.csv, "
        f"map.zarr, posterior.zarr and pictures. {time.perf_counter() - began:.0f} s in all."
    )


def _splits(
    rows: DataTable, n_train: int, n_test: int, options: argparse.Namespace
) -> tuple[list[Any], list[Any]]:
    """Return the training and test part of each split, as tables and with categories as indicators."""
    from pcvm_pymc.experiments.head_to_head import stratified_draws, with_indicators

    splits = stratified_draws(rows.X, rows.y, n_train, n_test, seed=options.seed)
    try:
        tables = [next(splits) for _ in range(options.splits)]
    except ValueError as error:  # a class whose rows are all equal
        raise UsageError(f"no split with equal rows on one side: {error}") from None
    return tables, [with_indicators(table) for table in tables]


# --- fits --------------------------------------------------------------------------------------


def _fit_rivals(scored: Scored, tables: list[Any], parts: list[Any], team: Any) -> None:
    """Fit all but the posterior on every split: our own classifiers to tables, the others to numbers."""
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
            for n_done, (split, rivals) in enumerate(team(calls), 1):
                for name, rival in rivals.items():
                    scored.add(name, split, rival)
                scored.write()
                status.update(Group(f"{n_done} of {len(parts)} splits done", _table(scored)))
    except TerminatedWorkerError:
        raise MemoryError("a process died, perhaps of too little memory; use --jobs 1") from None


def _fit_posteriors(scored: Scored, parts: list[Any]) -> list[Any]:
    """Sample the posterior on the first splits; return the first one's mode, and itself."""
    from pcvm_pymc.assessment import comparison
    from pcvm_pymc.inference.estimates import find_map_em
    from pcvm_pymc.inference.storing import save

    options, results = scored.options, list[Any]()
    length = {"draws": options.draws, "tune": options.draws, "chains": options.chains}
    with scored.console.status("compiling the sampler"):  # no posterior's seconds contain it
        X, y, *_ = parts[0]
        _sampled(X, y, 0, None, draws=1, tune=0, chains=1, thin=1, max_iter=1)
    for split, (X, y, *test) in enumerate(parts[: options.posteriors]):
        began = time.process_time()
        with scored.console.status(f"posterior {split + 1} of {options.posteriors}"):
            seed = scored.seed_of(split)
            model, posterior = _sampled(X, y, seed, options.width, **length)
            seconds = time.process_time() - began
            compared = comparison.compare({_POSTERIOR: posterior}, *test)
            vectors = compared.table.loc[_POSTERIOR, "vectors"]
            rival = comparison.Rival(compared.probability[_POSTERIOR], vectors, seconds)
            scored.add(_POSTERIOR, split, rival)
        scored.posteriors.append(compared)
        if not results:
            results = [find_map_em(model, progressbar=False), posterior]
            for name, result in zip(("map", "posterior"), results, strict=True):
                save(result, scored.out / f"{name}.zarr")
        scored.write()
    return results


def _sampled(X: Any, y: Any, seed: int, width: Any, **length: int) -> tuple[Any, Any]:
    """Return a model and its posterior by Gibbs sampling.

    Two classes have basis functions on k-means centres with unconstrained weights, several on all rows: there
    they predict better (benchmarks/README.md).
    """
    from pcvm_pymc.assessment.select import select
    from pcvm_pymc.inference.sampling import sample
    from pcvm_pymc.model.builders import mpcvm_model, pcvm_model

    if width == "auto":
        width = float(select(X, y, over=("width",), random_state=seed).width)
    build = pcvm_model if len(np.unique(y)) == 2 else mpcvm_model
    model = build(X, y, width=width, basis="kmeans", signs="both")
    how: dict[str, Any] = {"progressbar": False, "quiet": True, **length}
    return model, sample(model, random_seed=seed, **how)


def draw(scored: Scored, mode: Any, posterior: Any, split: Any, features: tuple[str, ...]) -> None:
    """Write the pictures: calibration where the posterior was sampled, and the first split's posterior."""
    import matplotlib as mpl

    from pcvm_pymc.assessment import plots

    mpl.use("Agg")
    n_splits, n_classes = len(scored.posteriors), len(scored.classes)
    label = np.concatenate(scored.labels[:n_splits])
    probability = {
        name: np.concatenate([by_split[split] for split in range(n_splits)])
        for name, by_split in scored.probability.items()
    }
    if n_classes > 2:  # drawn together, each class against the rest
        label = (label[:, None] == np.arange(n_classes)).astype(int).ravel()
        probability = {name: values.ravel() for name, values in probability.items()}
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
    """Raise where an option is out of its range; a width that is not "auto" becomes a number."""
    for name, needed in _LEAST.items():
        value = getattr(options, name)
        if value is not None and value < needed:
            raise UsageError(f"--{name} is {value}; needed at least {needed}")
    if (options.posteriors or 0) > options.splits:
        raise UsageError(
            f"--posteriors is {options.posteriors}; needed at most --splits, which is {options.splits}"
        )
    for name in ("target", "sep", "missing"):
        if options.file is None and getattr(options, name):
            raise UsageError(f"--{name} needs a FILE.csv")
    text = options.width
    with suppress(ValueError):
        options.width = float(text)
    if text != "auto" and not (isinstance(options.width, float) and 0 < options.width < np.inf):
        raise UsageError(f"--width is {text!r}; needed a positive number or auto")


def _read(options: argparse.Namespace) -> DataTable:
    """Return the features and labels of a csv file, by default those of the example."""
    if options.file is None:
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        labels = bunch.target_names[bunch.target]
        names = tuple(map(str, bunch.feature_names))
        return DataTable(bunch.data, labels, names, "Wisconsin breast cancer (scikit-learn)")
    marks = {"sep": options.sep or ",", "missing": options.missing}
    X, labels = read_table(options.file, options.target, **marks)
    categories = X.select_dtypes("category").columns
    n_missing = int(X.isna().sum().sum())
    said = f" (categories: {', '.join(categories)})" if len(categories) else ""
    said += f", {n_missing} fields missing" * (n_missing > 0) + f", labels {labels.name}"
    return DataTable(X, labels.to_numpy(object), tuple(X), options.file.name, said)


def _sizes(rows: DataTable, options: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of training and test rows."""
    n, size = len(rows.X), options.test_size
    if size is None:
        size = 0.3 if options.file else n - _EXAMPLE_TRAINING_ROWS
    n_test = round(size * n) if 0 < size < 1 else size
    if not (2 <= n_test <= n - 4 and n_test == int(n_test)):  # also for NaN
        raise UsageError(
            f"--test-size is {size:g}; needed a share between 0 and 1, or 2 to {n - 4} rows"
        )
    share, (_, counts) = 1.0 - n_test / n, np.unique(rows.y, return_counts=True)
    if counts.min() * share < 2 or counts.max() * share < 5 or n_test < len(counts):
        raise UsageError(
            f"--test-size is {size:g}, which leaves fewer than two rows of a class to train on, fewer than "
            "five of each, or fewer test rows than classes; use another, or more rows"
        )
    return n - int(n_test), int(n_test)


def _output_folder(options: argparse.Namespace, stack: ExitStack) -> Path:
    """Make the output folder, lock it and return it; a folder that is not empty needs --force."""
    path: Path = options.out
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; needed a folder")
    if path.exists() and not options.force and not all(map(is_scratch, path.iterdir())):
        raise UsageError(
            f"--out {path} has something in it; use --force to write over it, or another folder"
        )
    stack.enter_context(alone_in(path))
    for name in (*(f"{table}.csv" for table in _TABLES), *PICTURES):  # of an earlier run
        (path / name).unlink(missing_ok=True)
    return path


# --- what is printed ---------------------------------------------------------------------------


def _table(scored: Scored) -> Table:
    """Return two lines for each classifier: its means, and its differences to the first one."""
    from pcvm_pymc.experiments.head_to_head import PAIRED, over_splits

    mean, error, _ = over_splits(scored.scores)
    title = "held-out scores, mean over splits"
    table = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("\n  won/drawn/lost", no_wrap=True)
    for key, (heading, _, _) in _COLUMNS.items():
        below = "- first" * (key in PAIRED)
        table.add_column(f"{heading}\n{below}", justify="right", no_wrap=True)
    for name, row in mean.iterrows():
        is_first, n_splits = name == mean.index[0], int(row["splits"])
        counts = "/".join(f"{row[f'log loss {end}']:.0f}" for end in ("won", "drawn", "lost"))
        below = f"  {n_splits} split{'s' * (n_splits > 1)}" + f": {counts}" * (not is_first)
        cells = [f"{escape(str(name))}\n{below}"]
        for key, (_, factor, digits) in _COLUMNS.items():
            text = "" if np.isnan(row[key]) else f"{factor * row[key]:.{digits}f}"
            if key not in ("vectors", "seconds") and n_splits < mean["splits"].iloc[0]:
                text = f"({text})" if key in PAIRED else ""  # not to be read down the column
            if key in PAIRED and not is_first:
                text += f"\n{factor * row[f'{key} difference']:+.{digits}f}"
                spread = factor * error.loc[name, f"{key} difference"]
                text += "" if np.isnan(spread) else f" ± {spread:.{digits}f}"
            cells.append(text)
        table.add_row(*cells)
    return table


def _report(scored: Scored) -> None:
    """Print the table, how to read it, and one verdict on all chains."""
    scored.console.print(_table(scored))
    chains = [compared.convergence[_POSTERIOR] for compared in scored.posteriors]
    made = [compared.table.loc[_POSTERIOR] for compared in scored.posteriors]
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
    if not all(chain.ok for chain in chains):
        colour, word = "red", "NOT converged (use a larger --draws)"
    rhat, ess = max(chain.rhat for chain in chains), min(chain.ess for chain in chains)
    scored.console.print(
        f"Gibbs sampling, {len(chains)} posterior{'s' * (len(chains) > 1)}: [{colour}]{word}; latent "
        f"function: worst r-hat {rhat:.3f}, smallest ESS {ess:.0f}[/{colour}]. Median width and scale of "
        f"each: {', '.join(f'{row["width"]:.3g} and {row["scale"]:.3g}' for row in made)}."
    )
