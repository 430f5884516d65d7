"""The `pcvm` command, also as ``python -m pcvm_pymc``."""

import io
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Run the command line; return the exit code. An interrupt while modules are loaded is one line."""
    before = signal.signal(signal.SIGINT, _interrupt)
    # a console that is not UTF-8 shows "?" for the rest
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        from pcvm_pymc.cli import main as run

        return run()
    except KeyboardInterrupt:
        return _stopped()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise, or end at once where a module is loaded: some swallow what is raised; nothing is lost there."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            sys.stdout.flush()
            os._exit(_stopped())
        frame = frame.f_back
    raise KeyboardInterrupt


def _stopped() -> int:
    print("pcvm: stopped", file=sys.stderr, flush=True)  # noqa: T201
    return 130


if __name__ == "__main__":
    sys.exit(main())
