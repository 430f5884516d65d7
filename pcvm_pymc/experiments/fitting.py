"""The commands ``pcvm fit`` and ``pcvm predict``."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from pcvm_pymc.experiments.errors import UsageError, first_line
from pcvm_pymc.experiments.tables import (
    checked_width,
    fields_of,
    labels_and_features,
    named_column,
    quiet,
    read_table,
    tell,
)
from pcvm_pymc.inference.files import write_atomically

_BYTES = 1e9  # for basis functions: with more they go in chunks, and --basis is needed
_MANY_ROWS = 3000  # a fit of more begins with a forecast
_PROBE = 1000  # rows of the fit that it is made from
# measured on 500 to 4,000 rows: with a basis on every row time grows so, with --basis as the rows
_GROWTH = 2.6


def fit(options: argparse.Namespace, console: Console) -> None:
    """Fit a classifier to a table, and write it into a file."""
    _check_free(options.out, options.force)
    asked = [options.target, *_given(options.id)]
    how = {"asked": asked, "missing": options.missing}
    frame = read_table(options.file, options.header, console, **how)
    labels, features = labels_and_features(options.file, frame, options.target, least=2)
    own = None if options.id is None else named_column(options.file, frame, options.id)
    if own == labels.name:
        raise UsageError(f"--id and --target are both {own!r}; needed another column")
    features = features.drop(columns=[] if own is None else [own])
    if features.empty:
        raise UsageError(f"{options.file} has no features besides {own!r} and {labels.name!r}")
    _check_size(options, len(features))
    from pcvm_pymc.experiments.model_files import FittedTable, TableScaler

    scaler = TableScaler.of(
        options.file, features, categorical=options.categorical, impute=options.impute
    )
    began = time.perf_counter()
    model = _classifier(options, labels.nunique(), len(labels))
    counts = ", ".join(f"{each} {n}" for each, n in labels.value_counts().sort_index().items())
    said = f"{len(features)} rows, {features.shape[1]} features; {labels.name}: {counts}"
    console.print(said, markup=False)
    X, y = scaler.fit(features).transform(features), labels.cat.codes.to_numpy()
    if len(X) > _MANY_ROWS:
        console.print(_forecast(model, X, y, options.basis), markup=False, soft_wrap=True)
    # the estimator's own forecast is not measured on this machine
    with console.status(f"fitting {type(model).__name__}"), quiet("pcvm_pymc.estimators"):
        try:
            model.fit(X, y)
        except ValueError as error:
            raise UsageError(f"{options.file}: {first_line(error)}") from None
    classes = labels.cat.categories.to_numpy(str)
    found = replace(FittedTable.of(scaler, model, str(labels.name)), classes=classes)
    replace(found, missing=tuple(options.missing), id=own).save(options.out)
    console.print(
        f"{_described(model)}; {time.perf_counter() - began:.1f} s. Written to {options.out}",
        markup=False,
    )


def _given(name: str | None) -> list[str]:
    return [] if name is None else [name]


def _check_free(path: Path, force: bool) -> None:
    if path.exists() and (path.is_dir() or not force):
        remedy = "needed a file" if path.is_dir() else "use --force to replace it, or another name"
        raise UsageError(f"--out {path} exists; {remedy}")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}")


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


def _classifier(options: argparse.Namespace, n_classes: int, n_rows: int) -> Any:
    from pcvm_pymc.estimators.multiclass import MPCVMClassifier
    from pcvm_pymc.estimators.pcvm import PCVMClassifier

    kind = PCVMClassifier if n_classes == 2 else MPCVMClassifier
    model = kind(
        width=checked_width(options.width),
        basis=options.basis,
        n_vectors=options.vectors,
        class_weight="balanced" if options.balanced else None,
        random_state=options.seed,
    )
    if options.basis is not None and 8.0 * options.basis * n_rows > _BYTES:
        model.set_params(memory_limit=_BYTES)
    return model


def _forecast(model: Any, X: Any, y: Any, basis: int | None) -> str:
    """Return what will be fitted and about how long it takes, by a fit of some of the rows."""
    from sklearn.base import clone

    rows = np.random.default_rng(0).permutation(len(X))[:_PROBE]
    few = clone(model).set_params(basis=None if basis is None else min(basis, _PROBE))
    began = time.perf_counter()
    try:
        few.fit(X.take(rows), y[rows])
    except ValueError:  # a rare class is not among them: the fit itself says what is wrong
        return f"{len(X)} rows: the fit may take minutes."
    growth = (len(X) / _PROBE) ** (_GROWTH if basis is None else 1.0)
    seconds = growth * (time.perf_counter() - began)
    duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    if basis is not None:
        return f"{basis} basis functions: the fit takes about {duration}."
    return (
        f"A basis function on each of {len(X)} rows: the fit takes about {duration}. --basis 300, on 300 of "
        "them, is a small part of that and predicts nearly as well."
    )


def _described(model: Any) -> str:
    """Return what was fitted, in a few words."""
    if hasattr(model, "components_"):
        modes = "mode" if len(model.components_) == 1 else "modes"
        kernels = ", ".join(
            f"{name} {share:.2f}" for name, share in model.selection_.kernels.items()
        )
        of_kernels = f"; weights of kernels: {kernels}" if kernels else ""
        return f"{type(model).__name__}, an average of {len(model.components_)} {modes}{of_kernels}"
    return f"{type(model).__name__} with {len(model.relevance_vectors_)} vectors"


def predict(options: argparse.Namespace, console: Console) -> None:
    """Write the class probabilities of a table's rows."""
    if options.out is not None:
        _check_free(options.out, options.force)
    notes = Console(stderr=True)  # the table itself may go to the terminal
    from pcvm_pymc.experiments.model_files import FittedTable

    model = FittedTable.load(options.model)
    _check_interval(options, model)
    text = [*model.scaler.text, model.target, *_given(model.id)]
    how = {"asked": _given(options.id), "missing": options.missing or model.missing}
    frame = read_table(options.file, options.header, notes, text=text, **how)
    own = model.id if model.id in frame else None
    own = own if options.id is None else named_column(options.file, frame, options.id)
    if own in (*model.features, model.target):
        raise UsageError(
            f"--id is {own!r}, a feature or the label of the model; needed another column"
        )
    found = model.probabilities(options.file, frame, options.interval)
    if unknown := model.unknown(frame):
        words = "not among the fitted categories, and taken as equally far from all of them: "
        tell(notes, options.file.name, [words + ", ".join(unknown)])
    extra = [each for each in frame if each not in (*model.features, model.target, own)]
    if extra:
        tell(notes, options.file.name, [f"not used: {', '.join(map(str, extra[:8]))}"])
    if model.target in frame:
        _score(found, frame[model.target], model.target, notes)
    if own is not None:
        found.insert(0, own, frame[own].to_numpy(), allow_duplicates=True)
    if options.out is None:
        found.to_csv(sys.stdout, index=False)
        return
    write_atomically(options.out, found.to_csv(index=False).encode())
    console.print(f"{len(found)} rows written to {options.out}", markup=False)


def _check_interval(options: argparse.Namespace, model: Any) -> None:
    share = options.interval
    if share is None:
        return
    if not 0.0 < share < 1.0:
        raise UsageError(
            f"--interval is {share}; needed a number above 0 and below 1, such as 0.89"
        )
    if model.rows is None:
        raise UsageError(
            f"{options.model} has no intervals: it is one mode, or its rows went in chunks; needed a model "
            "of `pcvm fit` without --width and --vectors"
        )


def _score(found: pd.DataFrame, labels: pd.Series, target: str, console: Console) -> None:
    """Print error and log loss where the labels are known."""
    known = labels.notna() & labels.map(lambda each: f"P({each})" in found.columns)
    if (other := labels.notna() & ~known).any():
        said = f"{fields_of(labels, other)}: no label that the model was fitted with"
        console.print(said, markup=False, soft_wrap=True)
    if not known.any():
        return
    rows = np.flatnonzero(known)
    own = [found[f"P({labels.iloc[i]})"].iloc[i] for i in rows]
    wrong = np.mean([found[target].iloc[i] != labels.iloc[i] for i in rows])
    loss = -np.log(np.maximum(own, np.finfo(float).tiny)).mean()
    console.print(
        f"{target} is known for {len(rows)} rows: error {100 * wrong:.1f} %, log loss {loss:.3f}",
        markup=False,
    )
