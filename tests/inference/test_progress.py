"""Bars of progress, on a terminal and in a notebook without widgets."""

from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from pcvm_pymc.inference import progress

WITHOUT = """
import sys, time, warnings
sys.modules["ipywidgets"] = None
warnings.filterwarnings("error", message=".*ipywidgets.*")
from pcvm_pymc.inference.progress import progress_bars
with progress_bars(True, "draws", "draw {task.completed}/{task.total}") as bars:
    task = bars.add_task("", total=4)
    for _ in range(4):
        time.sleep(0.1)
        bars.advance(task)
        print("moved")
"""


def test_a_terminal_has_bars(capsys):
    with progress.progress_bars(True, "draws") as bars:
        bars.add_task("", total=3)
    assert "draws" in capsys.readouterr().err


def test_a_notebook_without_widgets_has_one_output_that_moves():
    notebook = new_notebook(cells=[new_code_cell(WITHOUT)])
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    printed = [each["text"] for each in notebook.cells[0].outputs if "text" in each]
    (bar,) = [each["data"]["text/plain"] for each in notebook.cells[0].outputs if "data" in each]
    assert "".join(printed) == "moved\n" * 4
    assert bar.startswith("draws ")
    assert "draw 4/4 0:00:0" in bar
    assert "left 0:00:00" in bar
