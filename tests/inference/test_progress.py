"""Bars of progress: in a notebook without widgets there are none, and no warning."""

import pytest
from rich.console import Console

from pcvm_pymc.inference import progress


@pytest.mark.parametrize(
    ("jupyter", "widgets", "drawn"), [(True, None, False), (False, None, True)]
)
def test_a_notebook_without_widgets_has_no_bars(monkeypatch, capsys, jupyter, widgets, drawn):
    monkeypatch.setattr(progress, "find_spec", lambda name: widgets)
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(stderr=True, force_jupyter=jupyter)
    )
    with progress.progress_bars(True, "draws") as bars:
        bars.add_task("", total=3)
    assert bars.disable is not drawn
    assert ("draws" in capsys.readouterr().err) is drawn
