"""Notebooks show what they draw, and what they print now; they use what is public."""

import ast
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output

import pcvm_pymc

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


DRAWING = ["plots.plot_em_trace(result)", "%matplotlib inline\nplt.subplots()", "x = a.plot();"]


@pytest.mark.parametrize("source", DRAWING)
def test_a_cell_that_draws_without_a_picture_is_found(source):
    text = new_output("display_data", {"text/plain": "nothing"})
    drawn = new_output("display_data", {"image/png": "abc"})
    empty, shown = new_code_cell(source, outputs=[text]), new_code_cell(source, outputs=[drawn])
    plain = new_code_cell("def f():\n    return plt.subplots()\nplt.rcParams['a'] = 1")
    assert execute.without_picture(new_notebook(cells=[plain, shown, empty])) == [2]


COMMITTED = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_notebook_has_its_pictures_and_nothing_that_no_reader_should_see(path):
    notebook = nbformat.read(path, as_version=4)
    assert execute.without_picture(notebook) == []
    assert execute.untrue(notebook, notebook) == []


def modules():
    """Return the modules that the reference lists."""
    page = (NOTEBOOKS.parent / "docs" / "api" / "expert.md").read_text()
    return {f"pcvm_pymc.{name}" for name in re.findall(r"^   (\w+\.[\w.]+)$", page, re.M)}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_notebook_imports_public_names(path):
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    code = re.sub(r"^%.*$", "", code, flags=re.M)
    used = {
        (node.module, each.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("pcvm_pymc")
        for each in node.names
    }
    assert used
    public = {("pcvm_pymc", name) for name in pcvm_pymc.__all__}
    of_modules = {
        (module, name)
        for module, name in used - public
        if f"{module}.{name}" in modules() or (module in modules() and not name.startswith("_"))
    }
    assert used - public == of_modules
    assert not re.search(r"^\s*import pcvm_pymc\.", code, re.M)


def notebook_of(*outputs):
    """Return a notebook of text and of one cell, which is the second, with these outputs."""
    cells = [nbformat.v4.new_markdown_cell("text"), new_code_cell("f()", outputs=list(outputs))]
    return new_notebook(cells=cells)


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def table(text):
    page = f"<style>a {{ b }}</style><table id='{len(text)}'><td>{text}</td></table>"
    return new_output("execute_result", {"text/html": page, "text/plain": "a table"})


PICTURE = new_output("display_data", {"image/png": "abc", "text/plain": "<Figure size 2x2>"})


def test_an_old_output_is_found_with_its_place_and_the_difference():
    old, new = (notebook_of(stream(f"3 points\n{end}\n")) for end in ("error 1 %", "loss 1"))
    (found,) = execute.untrue(old, new)
    assert found.startswith("cell 1: the output differs")
    assert "\n-error # %" in found
    assert "\n+loss #" in found
    assert "points" not in found
    for before, after in (([PICTURE], []), ([table("a")], [table("b")]), ([], [stream("a")])):
        (found,) = execute.untrue(notebook_of(*before), notebook_of(*after))
        assert found.startswith("cell 1: the output differs")
    warned = notebook_of(stream("x.py:1: UserWarning: odd", "stderr"))
    (found,) = execute.untrue(notebook_of(), warned)
    assert "\n+x.py:#: UserWarning: odd" in found


def test_other_digits_seconds_dates_and_progress_are_no_difference():
    widget = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}
    old = notebook_of(
        stream("r-hat 1.003, ess 1200, took 83 s\n"),
        stream("of [1.5e-01 .2] at 0x7f69be23\nLast updated: Fri, 27 Nov 2026\n"),
        stream("Sampling 4 chains took 83 seconds.\n", "stderr"),
        table("-0.12"),
        PICTURE,
    )
    new = notebook_of(
        stream("r-hat 1, ess  980, took 9.25 s\nof [  20.  1 ] at 0x55\n"),
        stream("Last updated: Mon, 3 May 2027\n"),
        stream("Sampling 4 chains took 1 second.\nNUTS: [weight]\n", "stderr"),
        stream("Sampling ━━━━━━ 100% 0:00:01\n"),
        new_output("display_data", widget),
        table("1,234"),
        PICTURE,
    )
    assert execute.untrue(old, new) == []


INSTALLED = f"installed is {pcvm_pymc.__version__}"
FAR, DIVERGED = "x.py:3: ConvergenceWarning: far", "There were 4 divergences"
UNSEEN = [
    (stream("mean nan\n"), "nan"),
    (table("NaN"), "nan"),
    (stream(f"Sampling\n{FAR}\n", "stderr"), f"a warning, {FAR}"),
    (stream(DIVERGED, "stderr"), f"a warning, {DIVERGED}"),
    (new_output("error", ename="ValueError", evalue="no"), "an error, ValueError: no"),
    (stream("numpy     : 2.5.5\npcvm_pymc : 0.1.9\n"), f"pcvm_pymc 0.1.9; {INSTALLED}"),
]


@pytest.mark.parametrize(("output", "words"), UNSEEN)
def test_what_no_reader_should_see_is_found_though_it_is_what_runs(output, words):
    assert execute.untrue(notebook_of(output), notebook_of(output)) == [f"cell 1: {words}"]


def test_what_depends_on_data_that_is_not_here_is_not_compared(monkeypatch, tmp_path):
    old, new = notebook_of(stream("real")), notebook_of(stream("drawn"))
    monkeypatch.delenv("PCVM_DATA", raising=False)
    monkeypatch.setattr(execute, "HERE", tmp_path / "checkout" / "notebooks")
    assert len(execute.untrue(old, new)) == 1
    for each in (old, new):
        each.cells[1].source = "os.environ['PCVM_DATA']"
    assert execute.untrue(old, new) == []


@pytest.mark.parametrize(("text", "message"), [("a 2", ""), ("b", "old.ipynb, cell 0: the output")])
def test_an_execution_fails_for_an_old_output(text, message, monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "HERE", tmp_path)
    cell = new_code_cell("print('a 1')", outputs=[stream(text)])
    path = tmp_path / "old.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    if not message:
        assert execute.execute(path, in_place=False).startswith("old.ipynb: ")
        return
    with pytest.raises(RuntimeError, match=message):
        execute.execute(path, in_place=False)
    execute.execute(path, in_place=True)
    assert execute.execute(path, in_place=False)
