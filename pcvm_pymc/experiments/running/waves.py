"""The cells of a run in the order in which they need each other, with a bar for who waits."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pcvm_pymc.experiments.running.cells import CellTask, failure
from pcvm_pymc.experiments.running.records import cell_of
from pcvm_pymc.experiments.running.run import Run
from pcvm_pymc.experiments.running.store import Store
from pcvm_pymc.experiments.running.workers import Execute

__all__ = ["run_waves"]


def run_waves(run: Run, execute: Execute, *, console: Console | None, retry: bool) -> None:
    """Tune the classifiers, then those that follow another's parameters, then score them all."""
    first, followers = run.tuning_waves()
    waves: dict[str, Callable[[], Sequence[CellTask]]] = {
        "choosing parameters": lambda: run.tuning_tasks(first),
        "choosing parameters that follow": lambda: run.tuning_tasks(followers),
        "scoring": lambda: _with_failures(run),
    }
    for title, tasks in waves.items():
        _run_wave(run, title, tasks(), execute, console=console, retry=retry)


def _run_wave(
    run: Run,
    title: str,
    tasks: Sequence[CellTask],
    execute: Execute,
    *,
    console: Console | None,
    retry: bool,
) -> None:
    """Run the cells that have no record yet, the longest first, and write each when it is done."""
    missing = [task for task in tasks if _is_missing(run.store, task, retry)]
    missing.sort(key=lambda task: -task.work)
    if not missing:
        return
    total = sum(task.work for task in tasks)
    done: Any = total - sum(task.work for task in missing)
    work = {task.cell: task.work for task in missing}
    count = len(tasks) - len(missing)
    with Progress(*_columns(), console=console, disable=console is None) as progress:
        bar = progress.add_task(title, total=total, completed=done, cells=f"{count}/{len(tasks)}")
        for record in execute(missing):
            cell = cell_of(record)
            run.store.write(cell, record)
            count += 1
            progress.update(bar, advance=work[cell], cells=f"{count}/{len(tasks)}")
            if record["status"] == "failed" and console is not None:
                last = record["traceback"].strip().splitlines()[-1]
                console.print(f"failed {cell}: {last}", style="red", highlight=False, markup=False)


def _is_missing(store: Store, task: CellTask, retry: bool) -> bool:
    """Whether a cell has no record, a stale one, or one of a failure that is to be tried again."""
    record = store.read(task.cell)
    if record is None or record["inputs"] != task.inputs:
        return True
    return bool(retry and record["status"] == "failed")


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[cells]} cells"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )


def _with_failures(run: Run) -> list[CellTask]:
    """Return the tasks to score; those whose tuning failed are recorded as failed."""
    ready, stuck = run.scoring_tasks()
    for task in stuck:
        reason = f"no parameters: every tuning cell of {task.cell.classifier} failed"
        run.store.write(task.cell, failure(task, reason))
    return ready
