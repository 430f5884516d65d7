"""The `pcvm` command, also as ``python -m pcvm_pymc``."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; return the exit code. An interrupt is one line, also while modules are loaded."""
    try:
        from pcvm_pymc.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("pcvm: stopped; what was finished stays in the output folder", file=sys.stderr)  # noqa: T201
        return 130


if __name__ == "__main__":
    sys.exit(main())
