"""Execute every notebook from top to bottom; any error ends the run.

``python execute.py`` runs copies and leaves the notebooks alone; ``--in-place`` writes the outputs back.
"""

import argparse
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def execute(path: Path, in_place: bool) -> None:
    """Run one notebook in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    ).execute()
    print(f"{path.name}: {time.perf_counter() - began:.0f} s")  # noqa: T201
    if in_place:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks (default: all)")
    parser.add_argument("--in-place", action="store_true", help="write the outputs back")
    options = parser.parse_args()
    names = options.names or sorted(each.name for each in HERE.glob("*.ipynb"))
    for name in names:
        execute(HERE / name, options.in_place)
