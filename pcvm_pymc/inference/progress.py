"""Progress on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bars(show: bool, title: str, *texts: str) -> Iterator[Progress]:
    """Yield bars on stderr: `title`, the bar, `texts`, the time and what is left of it.

    Parameters
    ----------
    show : bool
        Whether anything is drawn; tasks can be added and moved either way.
    title, *texts : str
        With the fields of a task, as ``"draw {task.completed}/{task.total}"``.
    """
    columns = (
        TextColumn(title),
        BarColumn(),
        *map(TextColumn, texts),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # in a notebook rich draws by ipywidgets, and warns where there are none
    drawn = show and not (console.is_jupyter and find_spec("ipywidgets") is None)
    with Progress(*columns, console=console, disable=not drawn) as progress:
        yield progress
