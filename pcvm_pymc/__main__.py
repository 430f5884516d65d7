"""``python -m pcvm_pymc`` is the `pcvm` command."""

import sys

from pcvm_pymc.cli import main

if __name__ == "__main__":
    sys.exit(main())
