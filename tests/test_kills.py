"""Processes killed at random and begun again: the same end, and nothing left behind."""

import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from faults import generator
from problems import animals, blobs

pytestmark = pytest.mark.slow
KILLS = 20

# `work` is begun in a process of its own, forked once all is loaded: kills fall into the work
DRIVER = """
import os, signal, sys, time, traceback
import numpy as np
n_kills = int(sys.argv[1])

SETUP

def begun(folder):
    os.makedirs(folder, exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgrp()
        os.chdir(folder)
        try:
            end = work() or b""
            with open(f"../end-{folder}", "wb") as file:
                file.write(end)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass
    return pid

def ended(folder):
    _, status = os.waitpid(begun(folder), 0)
    assert status == 0, status

ended("warm")
began = time.perf_counter()
ended("calm")
seconds = time.perf_counter() - began
rng, n_alive = np.random.default_rng(n_kills), 0
for _ in range(n_kills):
    pid = begun("killed")
    time.sleep(rng.uniform(0.0, seconds))
    n_alive += os.waitpid(pid, os.WNOHANG)[0] == 0
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
assert n_alive > 0
print("left", sorted(os.listdir("killed")))
ended("killed")
"""
FIT = """
from problems import blobs
from pcvm_pymc import EMOptions, PCVMClassifier
X, label = blobs(400, seed=3)

def work():
    model = PCVMClassifier(width=1.5, basis=60, random_state=0, options=EMOptions(tol=1e-9), **OPTIONS)
    return model.fit(X, label).weight_.tobytes()
"""
COMMAND = """
import pcvm_pymc.assessment.comparison, pcvm_pymc.inference.sampling, pcvm_pymc.model.builders
import pcvm_pymc.cli.comparing, pcvm_pymc.experiments.head_to_head
from pcvm_pymc.cli import main

def work():
    for arguments in ARGUMENTS:
        assert main(arguments) == 0
"""


def killed_and_ended(setup, folder):
    """Kill some work so often, then let it end; return what the last kill had left."""
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", DRIVER.replace("SETUP", setup), str(KILLS)]
    options = {"env": os.environ | {"PYTHONPATH": path}, "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert (folder / "end-killed").read_bytes() == (folder / "end-calm").read_bytes()
    return next(line for line in done.stdout.splitlines() if line.startswith("left"))


def assert_same_file(folder, path):
    assert (folder / "calm" / path).read_bytes() == (folder / "killed" / path).read_bytes()


@pytest.mark.parametrize("options", ["{}", '{"memory_limit": 3e5}'])
def test_killed_fits_leave_nothing_and_end_the_same(options, tmp_path):
    assert killed_and_ended(FIT.replace("OPTIONS", options), tmp_path) == "left []"
    assert len((tmp_path / "end-calm").read_bytes()) > 0


def test_a_killed_comparison_ends_the_same(tmp_path):
    options = ["--width", "1.0", "--draws", "40", "--chains", "2", "--splits", "1"]
    command = ["compare", str(animals(tmp_path, 100)), "--out", "out", "--force", *options]
    killed_and_ended(COMMAND.replace("ARGUMENTS", repr([command])), tmp_path)
    one, two = (
        pd.read_csv(tmp_path / name / "out" / "table.csv", index_col=0).drop(columns="seconds")
        for name in ("calm", "killed")
    )
    pd.testing.assert_frame_equal(one, two)
    names = [{p.name for p in (tmp_path / name / "out").iterdir()} for name in ("calm", "killed")]
    assert names[0] == names[1]


def test_a_run_killed_20_times_ends_the_same(tmp_path):
    options = ["--repeats", "2", "--classifiers", "PCVM_plug_in", "SVM", "--sets", "overlap"]
    command = ["reproduce", "chen2009-fig4", *options, "--out", "run"]
    killed_and_ended(COMMAND.replace("ARGUMENTS", repr([command])), tmp_path)
    assert_same_file(tmp_path, "run/report/table.csv")


# --- on a cluster ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fits_on_a_cluster_survive_20_deaths_of_a_worker(monkeypatch):
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    from pcvm_pymc import EMOptions, PCVMClassifier
    from pcvm_pymc.estimators.cluster import DaskRows

    X, label = blobs(400, seed=3)
    options = {
        "width": 1.5,
        "basis": (X[:30], label[:30]),
        "options": EMOptions(tol=1e-8),
        "random_state": 0,
    }
    wanted = PCVMClassifier(**options).fit(X, label)
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
            found = PCVMClassifier(**options).fit(da.from_array(X, chunks=(50, 2)), label)
            assert len(passes) >= fatal
            np.testing.assert_allclose(found.weight_, wanted.weight_, atol=1e-6)
            client.wait_for_workers(2, timeout=300)
