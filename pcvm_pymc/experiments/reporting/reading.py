"""The report of a run, read from the files of its jobs."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pcvm_pymc.core.pieces.files import as_path
from pcvm_pymc.experiments.catalogue import (
    EXPERIMENTS,
    Experiment,
    deviations,
    experiment_of,
    printed_of,
)
from pcvm_pymc.experiments.reporting.report import Report
from pcvm_pymc.experiments.reporting.sections import sections_of
from pcvm_pymc.experiments.running.store import RunError, Store
from pcvm_pymc.experiments.statistics import MEASURES

_PERCENT = ("error", "AUC", "1-RMSE")


def report_of(folder: str | Path, name: str | None = None) -> Report:
    """Return the report of a run, finished or not.

    Parameters
    ----------
    folder : path
        That `reproduce` wrote into.
    name : str, optional
        Another experiment of the same run, as ``"chen2009-table3"`` in a folder of ``"chen2009-table1"``.

    Raises
    ------
    RunError
        If the folder has no run, or one that the experiment does not share.
    """
    store = Store(as_path(folder, "folder"))
    manifest = store.manifest()
    try:
        experiment = experiment_of(manifest["experiment"] if name is None else name)
    except ValueError as error:
        raise RunError(str(error)) from None
    if experiment.run != manifest["run"]:
        shared = [each.name for each in EXPERIMENTS.values() if each.run == manifest["run"]]
        raise RunError(
            f"{folder} has jobs of {manifest['run']}; {experiment.name} needs those of "
            f"{experiment.run}. Of this folder: {', '.join(shared)}"
        )
    records, failures, missing = _gathered(store, experiment, manifest)
    cells = _cells(records)
    report = Report(
        experiment=experiment,
        manifest=manifest,
        cells=cells,
        table=_table(cells, experiment),
        timing=_timing(records),
        failures=failures,
        missing=missing,
        records=tuple(records),
    )
    return replace(report, sections=tuple(sections_of(report)))


def _gathered(
    store: Store, experiment: Experiment, manifest: dict[str, Any]
) -> tuple[list[dict[str, Any]], pd.DataFrame, dict[str, str]]:
    """Return the records that count, failures, and what is missing."""
    repeats, protocol = manifest["repeats"], experiment.protocol
    counted = {"tune": protocol.tuned(repeats), "score": protocol.scored(repeats)}
    records, failed = [], []
    missing = {f"set {name}": reason for name, reason in manifest["missing"].items()}
    for set_name in manifest["sets"]:
        if set_name in manifest["missing"]:
            continue
        for classifier in manifest["classifiers"]:
            for job in store.jobs(set_name, classifier):
                if job.realisation not in counted[job.stage]:
                    continue
                record = store.read(job)
                if record is None:
                    missing[str(job)] = "its file is damaged; `pcvm reproduce` runs it again"
                elif record["status"] == "failed":
                    last = record["traceback"].strip().splitlines()
                    failed.append(
                        {
                            "cell": str(job),
                            "reason": last[-1] if last else "",
                            "traceback": record["traceback"],
                        }
                    )
                elif job.stage == "score":
                    records.append(record)
    columns = ["cell", "reason", "traceback"]
    return records, pd.DataFrame(failed, columns=columns), missing


def _cells(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return the measures of each job in the paper's units; seconds are not among them."""
    rows = []
    for record in records:
        measures = {key: record["measures"].get(key, np.nan) for key in MEASURES}
        measures |= {key: 100.0 * measures[key] for key in _PERCENT}
        del measures["seconds"]
        rows.append({key: record[key] for key in ("set", "classifier", "realisation")} | measures)
    columns = ["set", "classifier", "realisation", *(key for key in MEASURES if key != "seconds")]
    return pd.DataFrame(rows, columns=columns)


def _table(cells: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Return means and standard deviations next to the paper's."""
    rows = []
    for (set_name, classifier), group in cells.groupby(["set", "classifier"], sort=False):
        for measure in MEASURES:
            if measure == "seconds" or group[measure].isna().all():
                continue
            values = group[measure].dropna()
            rows.append(
                {
                    "set": set_name,
                    "classifier": classifier,
                    "measure": measure,
                    "n": len(values),
                    "mean": values.mean(),
                    "std": values.std(ddof=1),
                }
            )
    table = pd.DataFrame(rows, columns=["set", "classifier", "measure", "n", "mean", "std"])
    printed = printed_of(experiment)
    if printed is None:
        return table.assign(**{"paper mean": np.nan, "paper std": np.nan, "deviation": np.nan})
    printed = printed.rename(columns={"mean": "paper mean", "std": "paper std"})
    table = table.merge(printed, how="left", on=["set", "classifier", "measure"])
    return table.assign(deviation=deviations(table))


def _timing(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "set": record["set"],
            "classifier": record["classifier"],
            "seconds": record["measures"].get("seconds", np.nan),
            "tuning seconds": record.get("tuning seconds", np.nan),
        }
        for record in records
    ]
    frame = pd.DataFrame(rows, columns=["set", "classifier", "seconds", "tuning seconds"])
    return frame.groupby(["set", "classifier"], sort=False, as_index=False).mean()
