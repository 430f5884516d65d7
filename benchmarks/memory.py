"""What a process holds, as Linux tells it; for the other benchmarks."""

from pathlib import Path

_MIB = 1024.0  # kB


def held(what="VmRSS"):
    """Return what this process holds, MiB; the most that it has held for ``"VmHWM"``."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / _MIB


def peak():
    """Return the most memory that this process has held, MiB."""
    return held("VmHWM")
