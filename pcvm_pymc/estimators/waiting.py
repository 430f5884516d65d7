"""Results of a Dask cluster, waited for with an eye on its workers: no fit stands still in silence."""

import logging
import time
from collections.abc import Collection, Iterator
from typing import Any

import dask
from dask.base import get_scheduler
from dask.utils import parse_timedelta

__all__ = ["computed", "finished"]

_log = logging.getLogger(__name__)

_LOOK = 10.0  # seconds between two looks at the cluster
_SAY = 30.0  # that it may stand still before that is said, and until it is said again
_PATIENCE = ("pcvm-pymc.patience", "10 minutes")  # Dask's configuration, and what holds without


def computed(*things: Any) -> tuple[Any, ...]:
    """Return what `dask.compute` does; on a cluster that stands still, say so and in the end give up.

    Parameters
    ----------
    *things : Dask collections

    Raises
    ------
    TimeoutError
        If the cluster has stood still for longer than ``pcvm-pymc.patience`` of Dask's configuration.
    """
    client = _client(things)
    if client is None:
        return dask.compute(*things)
    futures = client.compute(list(things))
    for _ in finished(client, futures):
        pass
    return tuple(client.gather(futures))


def finished(client: Any, futures: Collection[Any]) -> Iterator[Any]:
    """Yield futures of a cluster as they finish.

    Parameters
    ----------
    client : distributed.Client
    futures : collection of distributed.Future

    Raises
    ------
    TimeoutError
        If the cluster has stood still for longer than ``pcvm-pymc.patience`` of Dask's configuration.
    """
    from distributed import wait

    still = _Standstill()
    pending = set(futures)
    while pending:
        try:
            done, pending = wait(pending, timeout=_LOOK, return_when="FIRST_COMPLETED")
        except TimeoutError:
            still.add(_trouble(client), client)
        else:
            still = _Standstill()
            yield from done


class _Standstill:
    """How long a cluster has stood still."""

    def __init__(self) -> None:
        self.most = parse_timedelta(dask.config.get(*_PATIENCE))
        self.since = self.said = time.monotonic()

    def add(self, trouble: str, client: Any) -> None:
        """Note what is wrong with the cluster at a look, if anything; say so, or raise, when it is time."""
        now = time.monotonic()
        if not trouble:
            self.since = self.said = now
            return
        seconds = now - self.since
        address = client.scheduler.address
        where = f"the Dask cluster at {address} has stood still for {seconds:.0f} s: {trouble}"
        if seconds > self.most:
            raise TimeoutError(
                f"{where}; needed a worker at work. Start workers or the cluster again (one of this machine "
                "gives a dead worker up that is not back within 15 s, see 'distributed.deploy.lost-worker-"
                f"timeout'), or wait longer: dask.config.set({{{_PATIENCE[0]!r}: '2 hours'}})"
            )
        if now - self.said >= _SAY:
            self.said = now
            _log.warning("%s; it is given up after %.0f s", where, self.most)


def _client(things: tuple[Any, ...]) -> Any:
    """Return the client of the cluster that would compute; None without one, and within its own tasks."""
    client = getattr(get_scheduler(collections=things), "__self__", None)
    if not hasattr(client, "scheduler_info"):
        return None
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return client
    return None  # Dask lets a task of its own wait without holding a thread of the worker


def _trouble(client: Any) -> str:
    """Return why nothing goes on in a cluster; an empty word where something may."""
    try:
        workers = _asked(client, "identity")["workers"]
        processing = _asked(client, "processing", workers=None)
    except (TimeoutError, OSError) as error:
        return f"its scheduler does not answer ({error or type(error).__name__})"
    if not workers:
        return "it has no worker"
    paused = [address for address, each in workers.items() if each.get("status") == "paused"]
    if len(paused) == len(workers):
        return f"its workers are paused, for want of memory: {', '.join(sorted(paused))}"
    if any(keys for address, keys in processing.items() if address not in paused):
        return ""
    return f"its workers have nothing to do: {', '.join(sorted(workers))}"


def _asked(client: Any, question: str, **options: Any) -> Any:
    asked = getattr(client.scheduler, question)
    return client.sync(asked, callback_timeout=_LOOK, **options)
