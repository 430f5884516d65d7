"""Progress on the terminal and in notebooks."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

#: in a notebook rich draws by ipywidgets, and warns where there are none
WITHOUT_WIDGETS = Console().is_jupyter and find_spec("ipywidgets") is None
_PLAIN: Any = {"force_jupyter": False, "force_terminal": False, "width": 100}


class _Output(Live):
    """Bars in a notebook without ipywidgets: one output, whose text is replaced."""

    shown: Any = None

    def refresh(self) -> None:
        """Show the bars as they are now."""
        from IPython.display import display

        page = Console(file=(text := io.StringIO()), **_PLAIN)
        page.print(self.get_renderable())
        now = {"text/plain": text.getvalue()}
        if self.shown is None:
            self.shown = display(now, raw=True, display_id=True)
        else:
            self.shown.update(now, raw=True)


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
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = TextColumn(title), BarColumn(), *map(TextColumn, texts), *times
    progress = Progress(*columns, console=Console(stderr=True), disable=not show)
    if WITHOUT_WIDGETS:
        nowhere = Console(file=io.StringIO(), **_PLAIN)
        progress.live = _Output(console=nowhere, get_renderable=progress.get_renderable)
    with progress:
        yield progress
