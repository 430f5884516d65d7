"""Notebooks show what they draw."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
_spec = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
execute = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(execute)

DRAW = """
import numpy as np
from pcvm_pymc.core.loo import LeaveOneOut
from pcvm_pymc.estimators.candidates import Candidate, HyperparameterSearch
from pcvm_pymc.figures import plot_cells
points = [
    Candidate({"width": width, "scale": 1.0}, loo=LeaveOneOut(np.zeros(3), np.full(3, -width)))
    for width in (1.0, 2.0, 4.0)
]
chosen = HyperparameterSearch(tuple(points), np.array([0.2, 0.2, 0.6]))
"""


def test_figures_after_the_first_are_shown_in_a_fresh_kernel():
    cells = [DRAW, "plot_cells(chosen);", "plot_cells(chosen);"]
    cells.append("import matplotlib.pyplot as plt\nplt.subplots();")
    notebook = new_notebook(cells=[new_code_cell(each) for each in cells])
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    pictures = [["image/png" in out.get("data", {}) for out in c.outputs] for c in notebook.cells]
    assert pictures == [[], [True], [True], [True]]
    assert execute.without_picture(notebook) == []


@pytest.mark.parametrize(
    "source", ["plots.plot_em_trace(result)", "%matplotlib inline\nplt.subplots()", "x = a.plot();"]
)
def test_a_cell_that_draws_without_a_picture_is_found(source):
    text = new_output("display_data", {"text/plain": "nothing"})
    drawn = new_output("display_data", {"image/png": "abc"})
    empty, shown = new_code_cell(source, outputs=[text]), new_code_cell(source, outputs=[drawn])
    plain = new_code_cell("def f():\n    return plt.subplots()\nplt.rcParams['a'] = 1")
    assert execute.without_picture(new_notebook(cells=[plain, shown, empty])) == [2]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_committed_notebook_has_its_pictures(path):
    assert execute.without_picture(nbformat.read(path, as_version=4)) == []
