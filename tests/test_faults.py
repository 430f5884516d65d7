"""Faults that were seen once: odd input, full memory, and what was taken in silence."""

import os
import signal
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest
from faults import generator
from problems import complaint, linear, refused
from problems import interrupted as stopped

import pcvm_pymc as pcvm
from pcvm_pymc.__main__ import main as entry_point
from pcvm_pymc.cli import main
from pcvm_pymc.core.pieces import resources
from pcvm_pymc.experiments.reporting.report import _markdown_table
from pcvm_pymc.inference.files import alone_in


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_linear_kernel_of_large_features_ends_or_is_refused():
    rng = np.random.default_rng(0)
    X, label = rng.normal(size=(30, 2)) + np.arange(30)[:, None] % 3, np.arange(30) % 3
    options = {"estimation": "em", "options": pcvm.EMOptions(max_iter=20)}
    model = pcvm.MPCVMClassifier(kernel=linear, width=1.0, **options)
    model.fit(1e3 * X, label)
    assert np.isfinite(model.predict_proba(1e3 * X)).all()
    refused(r"latent has scores that are .* apart.*standardise", model.fit, 1e5 * X, label)


def test_what_does_not_fit_is_said_at_once(monkeypatch):
    monkeypatch.setattr(resources, "available_bytes", lambda: 8.0 * 2**30)
    X = np.random.default_rng(0).normal(size=(30_000, 2))
    for take in (pcvm.PCVMClassifier(basis=None).fit, pcvm.pcvm_model):
        refused(r"30000 rows .*basis=.*memory_limit=", take, X, X[:, 0] > 0, error=MemoryError)
    assert resources.available_bytes() > 0


def test_an_interrupt_ends_with_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("pcvm_pymc.cli.comparing._fit_rivals", stopped)
    monkeypatch.setattr("sys.argv", ["pcvm", "compare", "--out", str(tmp_path / "out")])
    assert entry_point() == 130
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the splits that were finished stay in the output folder" in said
    assert not list((tmp_path / "out").iterdir())


# a process group of its own, as a terminal interrupts it; the delay counts from the entry point on
INTERRUPTED = """
import os, signal, sys, threading
from pcvm_pymc.__main__ import main
os.setpgrp()
delay, *sys.argv[1:] = sys.argv[1:]
timer = threading.Timer(float(delay), os.killpg, (0, signal.SIGINT))
timer.daemon = True
timer.start()
sys.exit(main())
"""


def interrupted(delay, tmp_path):
    out = tmp_path / f"out{delay:.3f}"
    command = [sys.executable, "-c", INTERRUPTED, str(delay), "compare", "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_interrupt_while_modules_are_loaded_is_one_line(tmp_path):
    ended = interrupted(0.1, tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (130, 1), ended.stderr
    assert "pcvm: stopped" in ended.stderr


@pytest.mark.slow
def test_20_interrupts_at_random(tmp_path):
    rng = generator(18)
    for delay in np.append(rng.uniform(0.05, 5, size=12), rng.uniform(5, 20, size=8)):
        ended = interrupted(delay, tmp_path)
        lines = ended.stderr.splitlines()
        assert ended.returncode == 130, (delay, ended.stderr)
        assert "pcvm: stopped" in lines[-1], (delay, ended.stderr)
        assert not [each for each in lines if "Traceback" in each], (delay, ended.stderr)


def test_a_file_that_is_in_use_or_cannot_be_written_is_one_line(capsys, tmp_path):
    with alone_in(tmp_path):
        said = complaint(capsys, main(["compare", "--out", str(tmp_path), "--force"]))
    assert "pcvm: error: " in said
    assert "in use by another run" in said
    assert said.count("\n") == 1


def test_a_report_in_markdown_has_no_tags_of_its_data():
    table = pd.DataFrame({"<script>a": ["<img src=x>", "a|b", "p < 0.05"]})
    text = "\n".join(_markdown_table(table))
    assert "<script" not in text
    assert "<img" not in text
    assert r"a\|b" in text
    assert "p < 0.05" in text


_SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""
_LOADS_LATE = """
import sys, types
cli = types.ModuleType("pcvm_pymc.cli")
def main():
    import swallows
    return 0
cli.main = main
sys.modules["pcvm_pymc.cli"] = cli
from pcvm_pymc.__main__ import main
sys.exit(main())
"""


def test_an_interrupt_that_an_import_swallows_still_stops(tmp_path):
    (tmp_path / "swallows.py").write_text(_SWALLOWS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", _LOADS_LATE]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "pcvm: stopped\n")


def test_an_interrupt_stops_and_leaves_what_handled_it_before(monkeypatch, capsys):
    cli = types.ModuleType("pcvm_pymc.cli")
    cli.main = lambda: signal.raise_signal(signal.SIGINT)
    monkeypatch.setitem(sys.modules, "pcvm_pymc.cli", cli)
    before = signal.getsignal(signal.SIGINT)
    assert entry_point() == 130
    assert capsys.readouterr().err == "pcvm: stopped\n"
    assert signal.getsignal(signal.SIGINT) is before
