"""Execute every notebook from top to bottom; an error, or a picture that is not shown, ends the run.

So does a committed output that is not what runs now, or that no reader should see: nan, a warning, an error,
another version. Numbers differ between machines and are not compared, nor is what a picture shows.

So is "reader": the snippets of README and of the first tutorials, in order, in one fresh kernel.

``python execute.py`` runs copies and leaves the notebooks alone; ``--in-place`` writes the outputs back, and
``--jobs 2`` runs two at a time.
"""

import argparse
import ast
import copy
import difflib
import doctest
import html
import os
import re
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

import pcvm_pymc

HERE = Path(__file__).resolve().parent
# begun first, so that the others end beside them
LONGEST = ("02_posterior_and_projection.ipynb", "hyperprior_comparison.ipynb")
READER = "reader"
# what no output is compared by: addresses and dates, then numbers, but not those of a name such as mRVM1
MASKED = (
    r"0x[0-9a-f]+|[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d{4}",
    r"(?<![A-Za-z_\d])[-+]?(\d+([_,]\d{3})*\.?\d*|\.\d+)(e[-+]?\d+)?",
)
PROGRESS = re.compile("[━█╸]|it/s")
# what PyMC and this package say of a run, as they do to every user; all else on stderr is a warning
MESSAGE = re.compile(
    "Sampling|This takes about|Initializing NUTS|Multiprocess sampling|Sequential sampling|NUTS: |"
    "Posterior restricted"
)
PAGES = (
    "README.md",
    *(f"docs/tutorials/{each}.md" for each in ("first_model", "read_a_posterior")),
)
# what README's reader brings, and the pictures that its text speaks of
DATA = """
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale
X, y = load_breast_cancer(return_X_y=True)
X, X_test, y, y_test = train_test_split(scale(X), y, train_size=120, stratify=y, random_state=0)
"""
PICTURES = (
    "from pcvm_pymc import plots\nselect(X, y).plot();",
    "projection.plot();",
    "plots.plot_feature_relevance(PCVMClassifier().fit(X, y));",
    "import matplotlib.pyplot as plt\nplt.subplots();",
)


def snippets(path: Path) -> list[str]:
    """Return the Python blocks of a page, examples without their prompts and outputs."""
    out = []
    for kind, text in re.findall(r"^```(python|pycon)\n(.*?)^```$", path.read_text(), re.M | re.S):
        parse = doctest.DocTestParser().get_examples
        out.append("".join(each.source for each in parse(text)) if kind == "pycon" else text)
    return out


def reader() -> nbformat.NotebookNode:
    """Return what one reader does: README from top to bottom, its pictures, and the first tutorials."""
    readme, *tutorials = (snippets(HERE.parent / page) for page in PAGES)
    cells = [DATA, *readme, *PICTURES, *(each for page in tutorials for each in page)]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])


def execute(path: Path, in_place: bool) -> str:
    """Run one notebook in its own folder; return how long it took."""
    notebook = reader() if path.name == READER else nbformat.read(path, as_version=4)
    committed = copy.deepcopy(notebook)
    began = time.perf_counter()
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}
    ).execute()
    if missing := without_picture(notebook):
        raise RuntimeError(f"{path.name}: the cells {missing} draw, and show no picture")
    if in_place and path.name != READER:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        # a warning names its file: where the checkout lies says nothing to a reader
        path.write_text(nbformat.writes(notebook).replace(f"{HERE.parent}/", "") + "\n")
        committed = notebook
    if path.name != READER and (found := untrue(committed, notebook)):
        raise RuntimeError("\n".join(f"{path.name}, {each}" for each in found))
    return f"{path.name}: {time.perf_counter() - began:.0f} s"


def untrue(committed: Any, now: Any) -> list[str]:
    """Return what is wrong with committed outputs, also against those of an execution, each with its cell."""
    found = []
    real = os.environ.get("PCVM_DATA") or (HERE.parents[1] / "shared" / "data").is_dir()
    same_data = real or not any("PCVM_DATA" in cell.source for cell in committed.cells)
    for number, (cell, new) in enumerate(zip(committed.cells, now.cells, strict=True)):
        if cell.cell_type != "code":
            continue
        found += [f"cell {number}: {fault}" for each in cell.outputs for fault in faults(each)]
        old, fresh = shown(cell), shown(new)
        if same_data and old != fresh:
            lines = list(difflib.unified_diff(old, fresh, "committed", "now", lineterm="", n=0))
            found.append("\n".join([f"cell {number}: the output differs", *lines[:20]]))
    return found


def faults(output: Any) -> list[str]:
    """Return what no reader should see in an output."""
    text, found = text_of(output), []
    if output.output_type == "error":
        found.append(f"an error, {output.ename}: {output.evalue}")
    if output.get("name") == "stderr":
        found += [f"a warning, {line}" for line in lines_of(text) if not MESSAGE.match(line)]
    if re.search(r"\bnan\b", text, re.IGNORECASE):
        found.append("nan")
    for version in re.findall(r"\bpcvm_pymc\s*:\s*(\d\S*)", text):
        if version != pcvm_pymc.__version__:
            found.append(f"pcvm_pymc {version}; installed is {pcvm_pymc.__version__}")
    return found


def text_of(output: Any) -> str:
    """Return the text of an output, as a page shows it; none of a picture, an error or a widget."""
    data = output.get("data", {})
    if any(kind.startswith("image/") or "widget" in kind for kind in data):
        return ""
    if page := data.get("text/html"):
        # tags have attributes that are new each time
        return html.unescape(re.sub(r"(?s)<(style|svg)\b.*?</\1>|<[^>]*>", " ", page))
    kinds = ("text/markdown", "text/latex", "text/plain")
    return output.get("text") or next((data[kind] for kind in kinds if kind in data), "")


def shown(cell: Any) -> list[str]:
    """Return the lines that a cell shows, with numbers masked, and how many pictures."""
    # a stream comes in pieces by chance; of its messages those differ that tell of processors and draws
    out, messages = (
        "".join(each.text for each in cell.outputs if each.get("name") == name)
        for name in ("stdout", "stderr")
    )
    results = [text_of(each) for each in cell.outputs if "data" in each]
    lines = lines_of("\n".join([out, *results]))
    lines += [line for line in lines_of(messages) if "Warning" in line]
    for pattern in MASKED:
        lines = [re.sub(pattern, "#", line) for line in lines]
    pictures = sum("image/png" in each.get("data", {}) for each in cell.outputs)
    return [*lines, f"{pictures} pictures"]


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without spaces of alignment, empty lines and progress bars."""
    lines = [re.sub(r"(?<=\[) | (?=\])", "", " ".join(line.split())) for line in text.splitlines()]
    return [line for line in lines if line and not PROGRESS.search(line)]


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
    parser.add_argument("names", nargs="*", help="notebooks, or 'reader' (default: all)")
    parser.add_argument("--in-place", action="store_true", help="write the outputs back")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    options = parser.parse_args()
    everything = [*sorted(each.name for each in HERE.glob("*.ipynb")), READER]
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
