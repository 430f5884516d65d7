"""The `pcvm` command, also as ``python -m pcvm_pymc``."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; return the exit code. An interrupt while modules are loaded is one line."""
    try:
        from pcvm_pymc.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("pcvm: stopped before it began", file=sys.stderr)  # noqa: T201
        return 130


if __name__ == "__main__":
    sys.exit(main())
