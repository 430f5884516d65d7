"""Work in processes of its own: what it returns, its memory, and tables that go on where they stopped.

For the other benchmarks; not a script. What a process has of memory is what Linux says of it.
"""

import json
import multiprocessing
import os
import signal
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

_MIB = 1024.0  # kB
_SPAWN = multiprocessing.get_context("spawn")


def held(what="VmRSS"):
    """Return what this process has in memory, MiB; the most that it has had for ``"VmHWM"``."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / _MIB


@contextmanager
def watched(every=0.05):
    """Yield what says the most that this process has had by itself meanwhile, MiB: without mapped files."""
    most, done = [held("RssAnon")], threading.Event()

    def look():
        while not done.wait(every):
            most[0] = max(most[0], held("RssAnon"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def _send(pipe, work, arguments):
    os.setsid()
    warnings.simplefilter("ignore")
    try:
        pipe.send(work(*arguments))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:80])


def fresh(work, *arguments, limit=600.0, threads=1):
    """Return what a work returns in a process of its own; what went wrong as a str.

    Parameters
    ----------
    work : callable
        Of a module, so that the process can import it.
    *arguments
    limit : float
        Seconds by the clock, after which the process and its children are killed.
    threads : int
        Of BLAS.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    here, there = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_send, args=(there, work, arguments))
    process.start()
    there.close()
    found = f"more than {limit:.0f} s"
    if here.poll(limit):
        try:
            found = here.recv()
        except EOFError:
            found = "killed"
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return found


def resumed(path, jobs, measure):
    """Return the rows of a file as a table, once it has every job: those that it lacks are measured now.

    Parameters
    ----------
    path : Path
        A line of JSON for each job, written as soon as it is done.
    jobs : list of tuple
        Arguments of `measure`, which returns a dict.
    measure : callable
    """
    import pandas as pd

    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [row["job"] for row in rows]
    for job in jobs:
        if list(job) not in done:
            rows.append({"job": list(job), **measure(*job)})
            print(json.dumps(rows[-1]), flush=True)
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return pd.DataFrame(rows)
