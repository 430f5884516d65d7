"""Faults: interrupts, kills, damaged files, and what does not fit."""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
from faults import answer, assert_same, files_of, generator, spoil
from problems import animals, blobs, complaint, linear, map_result, refused

import pcvm_pymc as pcvm
from pcvm_pymc.__main__ import main as entry_point
from pcvm_pymc.cli import main
from pcvm_pymc.core.pieces import resources
from pcvm_pymc.core.pieces.files import StoreError, alone_in
from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import RunError, reproduce

KILLS = 20


def python(code, *arguments, folder=None):
    """Run code in a process of its own, which imports what tests do; return how it ended."""
    path = os.pathsep.join([str(folder or ""), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    options = {"env": os.environ | {"PYTHONPATH": path}, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=folder, check=False, **options)


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


def test_a_folder_that_is_in_use_is_one_line(capsys, tmp_path):
    with alone_in(tmp_path):
        said = complaint(capsys, main(["compare", "--out", str(tmp_path), "--force"]))
    assert "pcvm: error: " in said
    assert "in use by another run" in said
    assert said.count("\n") == 1


# --- interrupts ---------------------------------------------------------------------------------


def test_an_interrupt_ends_with_one_line_and_leaves_what_handled_it_before(
    monkeypatch, capsys, tmp_path
):
    def interrupt(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("pcvm_pymc.cli.comparing._fit_rivals", interrupt)
    monkeypatch.setattr("sys.argv", ["pcvm", "compare", "--out", str(tmp_path / "out")])
    before = signal.getsignal(signal.SIGINT)
    assert entry_point() == 130
    assert signal.getsignal(signal.SIGINT) is before
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


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupt_while_modules_are_loaded_or_work_is_done_stops(many, tmp_path):
    rng = generator(18)
    at_random = [*rng.uniform(0.05, 5, size=12), *rng.uniform(5, 20, size=8)]
    for delay in at_random if many else [0.1]:
        ended = python(INTERRUPTED, delay, "compare", "--out", tmp_path / f"out{delay:.3f}")
        assert ended.returncode == 130, (delay, ended.stderr)
        assert "pcvm: stopped" in ended.stderr.splitlines()[-1], (delay, ended.stderr)
        assert "Traceback" not in ended.stderr, delay
        assert many or ended.stderr.count("\n") == 1


SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
"""
LOADS_LATE = """
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
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    found = python(LOADS_LATE, folder=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "pcvm: stopped\n")


# --- kills: the same end, and nothing left behind -------------------------------------------------

# `work` is begun in a process of its own, forked once all is loaded: kills fall into the work
DRIVER = """
import multiprocessing, os, signal, sys, time
from contextlib import suppress
from pathlib import Path
import numpy as np

SETUP

def run(folder):
    os.setpgrp()
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    Path(f"../end-{folder}").write_bytes(work() or b"")

def begun(folder):
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=run, args=(folder,))
    process.start()
    return process

def ended(folder):
    process = begun(folder)
    process.join()
    assert process.exitcode == 0, process.exitcode

ended("warm")
began = time.perf_counter()
ended("calm")
seconds = time.perf_counter() - began
rng, n_alive = np.random.default_rng(0), 0
for _ in range(int(sys.argv[1])):
    process = begun("killed")
    process.join(rng.uniform(0.0, seconds))
    n_alive += process.is_alive()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
assert n_alive > 0
print("left", sorted(os.listdir("killed")))
ended("killed")
"""
COMMAND = """
import pcvm_pymc.assessment.comparison, pcvm_pymc.inference.sampling, pcvm_pymc.model.builders
import pcvm_pymc.cli.comparing, pcvm_pymc.experiments.head_to_head
from pcvm_pymc.cli import main

def work():
    assert main(ARGUMENTS) == 0
"""


def killed_and_ended(setup, folder):
    """Kill some work so often, then let it end; return what the last kill had left."""
    done = python(DRIVER.replace("SETUP", setup), KILLS, folder=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "end-killed").read_bytes() == (folder / "end-calm").read_bytes()
    return next(line for line in done.stdout.splitlines() if line.startswith("left"))


COMPARISON = ["--force", "--width", "1.0", "--draws", "40", "--chains", "2", "--splits", "1"]
FEW = ["--repeats", "2", "--classifiers", "PCVM_plug_in", "SVM", "--sets", "overlap"]
COMMANDS = {
    "comparison": (["compare", "animals.csv", *COMPARISON], "table.csv"),
    "run": (["reproduce", "chen2009-fig4", *FEW], "report/table.csv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_ends_the_same(name, tmp_path):
    path, (command, table) = str(animals(tmp_path, 100)), COMMANDS[name]
    command = [path if each == "animals.csv" else each for each in command]
    killed_and_ended(COMMAND.replace("ARGUMENTS", repr([*command, "--out", "out"])), tmp_path)
    outs = [tmp_path / each / "out" for each in ("calm", "killed")]
    one, other = (pd.read_csv(out / table).drop(columns="seconds", errors="ignore") for out in outs)
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    one, other = ({each.name for each in out.iterdir()} for out in outs)
    assert one == other


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fits_on_a_cluster_survive_20_deaths_of_a_worker(monkeypatch):
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    from pcvm_pymc.estimators.cluster import DaskRows

    X, label = blobs(400, seed=3)
    options = {"basis": (X[:30], label[:30]), "options": pcvm.EMOptions(tol=1e-8)}
    model = pcvm.PCVMClassifier(width=1.5, random_state=0, **options)
    wanted = model.fit(X, label).weight_
    rng, plain = generator(23), DaskRows.sums
    with (
        # else it gives up for good, after 15 s, a worker whose restart takes longer on a busy machine
        dask.config.set({"distributed.deploy.lost-worker-timeout": "300s"}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for _ in range(KILLS):
            fatal, passes = int(rng.integers(1, 7)), []

            def sums(rows, request, passes=passes, fatal=fatal):
                passes.append(request)
                if len(passes) == fatal:
                    os.kill(rng.choice(list(client.run(os.getpid).values())), signal.SIGKILL)
                return plain(rows, request)

            monkeypatch.setattr(DaskRows, "sums", sums)
            found = model.fit(da.from_array(X, chunks=(50, 2)), label).weight_
            assert len(passes) >= fatal
            np.testing.assert_allclose(found, wanted, atol=1e-6)
            client.wait_for_workers(2, timeout=300)


# --- damage: named or mended, never read as other numbers -----------------------------------------

RUN = {"sets": ["iris"], "classifiers": ["MLR", "DLSR"], "repeats": 2, "progressbar": False}


def spoilt_copies(good, folder, seeds, read, errors):
    """Yield each copy, what was done to it, and what was read: nothing where an error named it."""
    for seed in seeds:
        place = folder / f"{seed}-{good.name}"
        (shutil.copytree if good.is_dir() else shutil.copy)(good, place)
        did = spoil(place, generator(seed))
        found, said = answer(lambda place=place: read(place), errors)
        if found is None:
            assert str(place) in said, did
        yield place, did, found
        shutil.rmtree(place, ignore_errors=True)


@cache
def a_mode():
    X, label = blobs(24, seed=2)
    return map_result(pcvm.pcvm_model(X, label, width=1.0))


def check_results(folder, seeds, store):
    good = pcvm.save(a_mode(), folder / f"good.{store}")
    named = 0
    for _, did, found in spoilt_copies(good, folder, seeds, pcvm.load, StoreError):
        if found is None:
            named += 1
        else:  # a foreign file, or metadata that the store has twice
            assert_same(found, pcvm.load(good)), did
    assert named > len(seeds) // 2


def check_cells(folder, seeds):
    good = folder / "good"
    reproduce("lyu2020-table3", out=good, **RUN)
    expected = report_of(good).cells.drop(columns="seconds", errors="ignore")
    for place, did, _ in spoilt_copies(good, folder, seeds, report_of, RunError):
        reproduce("lyu2020-table3", out=place, **RUN)
        assert report_of(place).cells.equals(expected), did
        assert {path.name for path in files_of(good)} <= {path.name for path in files_of(place)}


CHECKS = {
    "zarr": lambda *given: check_results(*given, "zarr"),
    "netcdf": lambda *given: check_results(*given, "nc"),
    "cells": lambda folder, seeds: check_cells(folder, seeds if len(seeds) > 15 else seeds[:4]),
}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", CHECKS)
def test_spoilt(what, many, tmp_path):
    CHECKS[what](tmp_path, range(100, 300) if many else range(15))
