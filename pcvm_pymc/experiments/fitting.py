"""The commands ``pcvm fit`` and ``pcvm predict``."""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from pcvm_pymc.experiments.errors import UsageError, first_line
from pcvm_pymc.experiments.labelled_csv import labels_and_features
from pcvm_pymc.experiments.tables import HEADERS, Table, read_table
from pcvm_pymc.storage import write_atomically

__all__ = ["add_encoding", "add_fitting", "add_header", "tell"]

_BYTES = (
    1e9  # for basis functions: with more they go in chunks, and without --basis there are too many
)
_IMPUTE = ("median", "mean", "most_frequent")


def add_fitting(commands: Any) -> None:
    """Add both commands to the parser's."""
    fit = commands.add_parser(
        "fit",
        help="fit a classifier to a table and keep it in a file",
        description="Fit PCVMClassifier, or MPCVMClassifier for several classes, to standardised columns.",
    )
    fit.add_argument("file", type=Path, metavar="FILE", help="a table with a label column")
    fit.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the file to write")
    fit.add_argument("--target", metavar="COLUMN", help="label column (default: the last)")
    add_header(fit)
    add_encoding(fit)
    fit.add_argument(
        "--basis", type=int, metavar="N", help="basis functions on N of the rows (default: all)"
    )
    fit.add_argument(
        "--vectors", type=int, metavar="N", help="keep N vectors at most (default: no limit)"
    )
    fit.add_argument(
        "--width", default="auto", metavar="W|auto", help="kernel width (default: auto)"
    )
    fit.add_argument("--balanced", action="store_true", help="count classes equally")
    fit.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    fit.add_argument("--force", action="store_true", help="replace a model that exists")
    fit.set_defaults(run=_fit)
    predict = commands.add_parser(
        "predict", help="class probabilities of the rows of a table, by a model of `pcvm fit`"
    )
    predict.add_argument("model", type=Path, metavar="MODEL", help="of `pcvm fit`")
    predict.add_argument("file", type=Path, metavar="NEW.csv", help="a table with the same columns")
    predict.add_argument(
        "--out", type=Path, metavar="FILE.csv", help="where to write (default: the terminal)"
    )
    add_header(predict)
    predict.add_argument("--force", action="store_true", help="replace a file that exists")
    predict.set_defaults(run=_predict)


def add_header(command: argparse.ArgumentParser) -> None:
    """Add what says whether a table has names."""
    command.add_argument(
        "--header",
        choices=HEADERS,
        default="auto",
        help="whether the first line has names (default: auto, which refuses numbers)",
    )


def add_encoding(command: argparse.ArgumentParser) -> None:
    """Add what takes text and missing cells."""
    command.add_argument(
        "--categorical", action="store_true", help="encode columns of text, one number a category"
    )
    command.add_argument(
        "--impute",
        nargs="?",
        const="median",
        choices=_IMPUTE,
        help="fill in missing cells: with the column's median (default), mean or most frequent value",
    )


def _fit(options: argparse.Namespace, console: Console) -> None:
    _check_free(options.out, options.force)
    table = _read(options.file, options.header, console)
    labels, features = labels_and_features(options.file, table.frame, options.target, least=2)
    _check_size(options, len(features))
    from pcvm_pymc.experiments.model_files import Columns, ModelFile, transformer

    columns = Columns.of(
        options.file, features, categorical=options.categorical, impute=options.impute is not None
    )
    began = time.perf_counter()
    pipeline = _pipeline(
        options, transformer(columns, options.impute), labels.nunique(), len(labels)
    )
    counts = ", ".join(f"{each} {n}" for each, n in labels.value_counts().sort_index().items())
    console.print(f"{len(features)} rows, {features.shape[1]} features; {labels.name}: {counts}")
    with console.status(f"fitting {type(pipeline[-1]).__name__}"):
        try:
            pipeline.fit(columns.taken(features), labels.to_numpy())
        except ValueError as error:
            raise UsageError(f"{options.file}: {first_line(error)}") from None
    pipeline[-1].__dict__.pop("_training_", None)  # of intervals, which the command does not give
    ModelFile(pipeline, columns, str(labels.name), options.impute).save(options.out)
    console.print(
        f"{_described(pipeline[-1])}; {time.perf_counter() - began:.1f} s. Written to {options.out}"
    )


def _check_free(path: Path, force: bool) -> None:
    if path.exists() and (path.is_dir() or not force):
        remedy = "needed a file" if path.is_dir() else "use --force to replace it, or another name"
        raise UsageError(f"--out {path} exists; {remedy}")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}")


def _read(path: Path, header: str, console: Console) -> Table:
    table = read_table(path, header)
    tell(console, path.name, table.told)
    return table


def tell(console: Console, name: str, told: Iterable[str]) -> None:
    """Print what was recognised in a table."""
    for each in told:
        console.print(f"{name}: {each}", style="dim", highlight=False, markup=False)


def _check_size(options: argparse.Namespace, n_rows: int) -> None:
    for name in ("basis", "vectors"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}; needed at least 1")
    needed = 8.0 * n_rows**2
    if options.basis is None and needed > _BYTES:
        raise UsageError(
            f"{options.file} has {n_rows} rows, and a basis function on each would need "
            f"{needed / 1e9:.0f} GB; give --basis N, such as --basis 300"
        )


def _pipeline(options: argparse.Namespace, columns: Any, n_classes: int, n_rows: int) -> Any:
    """Return transformers and classifier."""
    from sklearn.pipeline import make_pipeline

    from pcvm_pymc.estimators.multiclass import MPCVMClassifier
    from pcvm_pymc.estimators.pcvm import PCVMClassifier

    kind = PCVMClassifier if n_classes == 2 else MPCVMClassifier
    model = kind(
        width=_width(options.width),
        basis=options.basis,
        n_vectors=options.vectors,
        class_weight="balanced" if options.balanced else None,
        random_state=options.seed,
    )
    if options.basis is not None and 8.0 * options.basis * n_rows > _BYTES:
        model.set_params(memory_limit=_BYTES)
    return make_pipeline(columns, model)


def _width(text: str) -> Any:
    if text == "auto":
        return text
    try:
        width = float(text)
    except ValueError:
        width = np.nan
    if not (np.isfinite(width) and width > 0):
        raise UsageError(f"--width is {text!r}; needed a positive number or auto")
    return width


def _described(model: Any) -> str:
    """Return what was fitted, in a few words."""
    if hasattr(model, "components_"):
        modes = "mode" if len(model.components_) == 1 else "modes"
        return f"{type(model).__name__}, an average of {len(model.components_)} {modes}"
    return f"{type(model).__name__} with {len(model.relevance_vectors_)} vectors"


def _predict(options: argparse.Namespace, console: Console) -> None:
    if options.out is not None:
        _check_free(options.out, options.force)
    notes = Console(stderr=True)  # the table itself may go to the terminal
    table = _read(options.file, options.header, notes)
    from pcvm_pymc.experiments.model_files import ModelFile

    model = ModelFile.load(options.model)
    found = model.probabilities(options.file, table.frame)
    extra = [each for each in table.frame if each not in (*model.features, model.target)]
    if extra:
        notes.print(f"not used: {', '.join(map(str, extra[:8]))}", style="dim", highlight=False)
    if model.target in table.frame:
        _score(found, table.frame[model.target], model.target, notes)
    if options.out is None:
        found.to_csv(sys.stdout, index=False)
        return
    write_atomically(options.out, found.to_csv(index=False).encode())
    console.print(f"{len(found)} rows written to {options.out}")


def _score(found: pd.DataFrame, labels: pd.Series, target: str, console: Console) -> None:
    """Print error and log loss where the labels are known."""
    known = labels.notna() & labels.map(lambda each: f"P({each})" in found.columns)
    if not known.any():
        return
    rows = np.flatnonzero(known)
    own = [found[f"P({labels.iloc[i]})"].iloc[i] for i in rows]
    wrong = np.mean([found[target].iloc[i] != labels.iloc[i] for i in rows])
    loss = -np.log(np.maximum(own, np.finfo(float).tiny)).mean()
    console.print(
        f"{target} is known for {len(rows)} rows: error {100 * wrong:.1f} %, log loss {loss:.3f}"
    )
