"""What a process holds, as Linux tells it; for the other benchmarks."""

import threading
from contextlib import contextmanager
from pathlib import Path

_MIB = 1024.0  # kB


def held(what="VmRSS"):
    """Return what this process holds, MiB; the most that it has held for ``"VmHWM"``."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / _MIB


@contextmanager
def watched(every=0.05):
    """Yield what tells the most that this process holds by itself meanwhile, MiB: without mapped files."""
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


def peak():
    """Return the most memory that this process has held, MiB."""
    return held("VmHWM")
