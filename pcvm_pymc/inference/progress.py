"""Progress on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["progress_bars"]


@contextmanager
def progress_bars(show: bool, title: str, *texts: str) -> Iterator[Progress]:
    """Yield bars on stderr: a spinner, `title`, the bar, `texts`, and the time.

    Parameters
    ----------
    show : bool
        Whether anything is drawn; tasks can be added and moved either way.
    title, *texts : str
        With the fields of a task, as ``"draw {task.completed}/{task.total}"``.
    """
    columns = (
        SpinnerColumn(),
        TextColumn(title),
        BarColumn(),
        *map(TextColumn, texts),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        yield progress
