"""Execute every notebook from top to bottom; an error, or a picture that is not shown, ends the run.

``python execute.py`` runs copies and leaves the notebooks alone; ``--in-place`` writes the outputs back, and
``--jobs 2`` runs two at a time.
"""

import argparse
import ast
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

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
    if missing := without_picture(notebook):
        raise RuntimeError(f"{path.name}: the cells {missing} draw, and show no picture")
    if in_place:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)
    return f"{path.name}: {time.perf_counter() - began:.0f} s"


def without_picture(notebook: Any) -> list[int]:
    """Return the numbers of the cells that draw and show no picture."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        and draws(cell.source)
        and not any("image/png" in each.get("data", {}) for each in cell.outputs)
    ]


def draws(source: str) -> bool:
    """Whether a cell calls a function that draws, apart from those that it defines."""
    code = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
    run = [each for each in ast.parse(code).body if not isinstance(each, ast.FunctionDef)]
    calls = [node for each in run for node in ast.walk(each) if isinstance(node, ast.Call)]
    names = [getattr(each.func, "attr", getattr(each.func, "id", "")) for each in calls]
    return any(name in ("subplots", "plot") or name.startswith("plot_") for name in names)


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
