"""The `pcvm` command, also as ``python -m pcvm_pymc``."""

import signal
import sys
from typing import Any

__all__ = ["main"]


def main() -> int:
    """Run the command line; return the exit code. An interrupt while modules are loaded is one line."""
    noted: list[int] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    try:
        before = signal.signal(signal.SIGINT, note)
        try:
            from pcvm_pymc.cli import main as run
        finally:
            signal.signal(signal.SIGINT, before)
        if noted:  # what is imported may have swallowed it
            raise KeyboardInterrupt
        return run()
    except KeyboardInterrupt:
        print("pcvm: stopped before it began", file=sys.stderr)  # noqa: T201
        return 130


if __name__ == "__main__":
    sys.exit(main())
