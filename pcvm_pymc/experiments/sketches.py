"""Tables and figures for which no classifier is fitted: counted, or drawn from a formula."""

from pathlib import Path

import pandas as pd

from pcvm_pymc.experiments.catalogue import Experiment, Sketch
from pcvm_pymc.experiments.drawings import DRAWINGS
from pcvm_pymc.experiments.protocols import Protocol
from pcvm_pymc.experiments.reporting.report import Report, Section
from pcvm_pymc.experiments.running.store import NoSetError


def sketch_report(sketch: Sketch, *, folder: str | Path | None = None) -> Report:
    """Return the report of a table or figure for which no classifier is fitted.

    Parameters
    ----------
    sketch : Sketch
        One that has a drawing.
    folder : path, optional
        Of data sets. Default: the one that ``PCVM_DATA`` names.

    Raises
    ------
    ValueError
        If there is nothing to run; with the reason.
    NoSetError
        If none of its sets is there.
    """
    if not sketch.drawing:
        raise ValueError(f"{sketch.name} has nothing to run: {sketch.why_none}")
    try:
        drawn = DRAWINGS[sketch.drawing](sketch, None if folder is None else Path(folder))
    except FileNotFoundError as error:
        raise NoSetError(f"none of the sets is there: {error}") from None
    notes = tuple(f"Note: {remark}" for remark in sketch.remarks)
    about = Section("What this is", (f"{sketch.paper}. {sketch.title}.", *drawn.text, *notes))
    sections = [about]
    if drawn.table is not None:
        sections.append(Section("Table", (), drawn.table))
    if drawn.figure is not None:
        sections.append(Section("Picture", (), None, drawn.figure, "picture"))
    table = pd.DataFrame() if drawn.table is None else drawn.table.reset_index()
    none = pd.DataFrame()
    return Report(_heading(sketch), {}, none, table, none, none, {}, (), tuple(sections))


def _heading(sketch: Sketch) -> Experiment:
    """Return what a report is headed by: an experiment without jobs."""
    nobody = Protocol("no classifier is fitted", "stored")
    return Experiment(sketch.name, sketch.title, sketch.paper, sketch.sets, (), nobody, 0, ())
