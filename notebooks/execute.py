"""Execute every notebook from top to bottom; any error ends the run.

``python execute.py`` runs copies and leaves the notebooks alone; ``--in-place`` writes the outputs back, and
``--jobs 2`` runs two at a time.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
# begun first, so that the others end beside them
LONGEST = ("02_posterior_and_projection.ipynb", "hyperprior_comparison.ipynb")


def execute(path: Path, in_place: bool) -> str:
    """Run one notebook in its own folder; return how long it took."""
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    ).execute()
    if in_place:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
    return f"{path.name}: {time.perf_counter() - began:.0f} s"


def main() -> None:
    """Run the notebooks named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks (default: all)")
    parser.add_argument("--in-place", action="store_true", help="write the outputs back")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    options = parser.parse_args()
    everything = sorted(each.name for each in HERE.glob("*.ipynb"))
    names = options.names or sorted(everything, key=lambda name: name not in LONGEST)
    with ProcessPoolExecutor(options.jobs) as pool:
        tasks = [pool.submit(execute, HERE / name, options.in_place) for name in names]
        try:
            for task in as_completed(tasks):
                print(task.result(), flush=True)  # noqa: T201
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


if __name__ == "__main__":
    main()
