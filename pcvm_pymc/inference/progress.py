"""Progress on the terminal."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_CHANGES = 6  # from which the rate is estimated


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
    console = Console(stderr=True)
    # in a notebook rich draws by ipywidgets, and warns where there are none
    drawn = show and not (console.is_jupyter and find_spec("ipywidgets") is None)
    with Progress(*columns, console=console, disable=not drawn) as progress:
        yield progress


class Forecast:
    """Forecast of the last iteration of a method that converges linearly.

    Parameters
    ----------
    tol : float
        The change at which it ends.
    max_iter : int
    """

    def __init__(self, tol: float, max_iter: int) -> None:
        self.tol, self.max_iter = tol, max_iter
        self._last: np.ndarray | None = None
        self._changes: deque[float] = deque(maxlen=_CHANGES)

    def __call__(self, n_iter: int, values: np.ndarray) -> int | None:
        """Return the expected last iteration, None while it is not known.

        Parameters
        ----------
        n_iter : int
        values : ndarray
            What is compared from one iteration to the next.
        """
        if self._last is not None:
            self._changes.append(float(np.abs(values - self._last).max(initial=0.0)))
        self._last = np.array(values)
        if self._changes and self._changes[-1] <= self.tol:
            return n_iter
        if len(self._changes) < 3:
            return None
        rate = (self._changes[-1] / self._changes[0]) ** (1.0 / (len(self._changes) - 1))
        if not rate < 1:
            return None
        left = np.ceil(np.log(self.tol / self._changes[-1]) / np.log(rate)) if rate > 0 else 1.0
        return int(min(n_iter + max(left, 1.0), self.max_iter))
