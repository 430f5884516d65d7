"""Processes killed at random and begun again: the same end, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from faults import generator
from problems import blobs

from pcvm_pymc.storage import is_scratch

KILLS = 20

# rows in memory, in chunks, and a chain with its checkpoints: what they end with, as bytes
FIT = """
import sys
from problems import blobs
from pcvm_pymc import PCVMClassifier
X, label = blobs(400, seed=3)
model = PCVMClassifier(width=1.5, basis=60, random_state=0, **OPTIONS).fit(X, label)
sys.stdout.buffer.write(model.weight_.tobytes())
"""
SAMPLE = """
import sys
from problems import blobs
from pcvm_pymc import pcvm_model, sample
X, label = blobs(30, seed=3)
found = sample(
    pcvm_model(X, label, width=1.0), method="gibbs", draws=500, thin=20, max_sweeps=30000, chains=2,
    random_seed=3, cores=1, progressbar=False, quiet=True, checkpoint="checkpoint",
)
sys.stdout.buffer.write(found["posterior"]["latent"].values.tobytes())
"""


def started(command, folder):
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def undisturbed(command, folder):
    """Return what a command writes, and the seconds it takes."""
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    process = started(command, folder)
    written, _ = process.communicate()
    assert process.returncode == 0
    return written, time.perf_counter() - began


def kill_at_random(command, folder, seconds, n_kills, rng):
    """Begin a command and kill it, processes of its own included, so often; return how often it was alive."""
    folder.mkdir(exist_ok=True)
    n_alive = 0
    for _ in range(n_kills):
        process = started(command, folder)
        time.sleep(rng.uniform(0.0, seconds))
        n_alive += process.poll() is None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return n_alive


def table(folder):
    """Write a table of two classes."""
    X, label = blobs(120, seed=90)
    frame = pd.DataFrame(X, columns=["height", "weight"])
    frame["sort"] = np.where(label > 0, "cat", "dog")
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / "animals.csv", index=False)


def check_code(code, tmp_path, n_kills):
    """Kill Python code, and compare its end with an undisturbed one's."""
    wanted, seconds = undisturbed(["-c", code], tmp_path / "calm")
    assert len(wanted) > 0
    rng = generator(len(code), n_kills)
    assert kill_at_random(["-c", code], tmp_path / "killed", seconds, n_kills, rng) > 0
    assert undisturbed(["-c", code], tmp_path / "killed")[0] == wanted


def contents(folder):
    return {each.relative_to(folder): each for each in folder.rglob("*") if each.is_file()}


# --- fits without a checkpoint ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", ["{}", '{"memory_limit": 3e5, "n_jobs": 2}'])
def test_killed_fits_leave_nothing_and_end_the_same(options, tmp_path):
    check_code(FIT.replace("OPTIONS", options), tmp_path, KILLS)
    assert list((tmp_path / "killed").iterdir()) == []


@pytest.mark.slow
def test_killed_fits_of_the_command_end_the_same(tmp_path):
    command = [
        "-m",
        "pcvm_pymc",
        "fit",
        "animals.csv",
        "--out",
        "model",
        "--basis",
        "60",
        "--force",
    ]
    for name in ("calm", "killed"):
        table(tmp_path / name)
    _, seconds = undisturbed(command, tmp_path / "calm")
    kill_at_random(command, tmp_path / "killed", seconds, KILLS, generator(19))
    ends = ["-m", "pcvm_pymc", "predict", "model", "animals.csv", "--out", "predicted.csv"]
    for name in ("calm", "killed"):
        undisturbed(command, tmp_path / name)
        undisturbed(ends, tmp_path / name)
        assert not [each for each in (tmp_path / name).iterdir() if is_scratch(each)]
    predicted = [(tmp_path / name / "predicted.csv").read_bytes() for name in ("calm", "killed")]
    assert predicted[0] == predicted[1]


# --- with a folder of their own --------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_sampler_ends_the_same(tmp_path):
    check_code(SAMPLE, tmp_path, KILLS)


@pytest.mark.slow
def test_a_killed_comparison_ends_the_same(tmp_path):
    options = ["--width", "1.0", "--draws", "40", "--chains", "2", "--seconds", "0", "--force"]
    command = ["-m", "pcvm_pymc", "compare", "animals.csv", "--out", "out", *options]
    for name in ("calm", "killed"):
        table(tmp_path / name)
    _, seconds = undisturbed(command, tmp_path / "calm")
    assert kill_at_random(command, tmp_path / "killed", seconds, KILLS, generator(21)) > 0
    undisturbed(command, tmp_path / "killed")
    calm, killed = (contents(tmp_path / name / "out") for name in ("calm", "killed"))
    assert set(calm) == set(killed)
    one, two = (
        pd.read_csv(tmp_path / name / "out" / "table.csv", index_col=0).drop(columns="seconds")
        for name in ("calm", "killed")
    )
    pd.testing.assert_frame_equal(one, two)


@pytest.mark.slow
def test_a_run_killed_20_times_ends_the_same(tmp_path):
    options = ["--jobs", "2", "--repeats", "2", "--classifiers", "PCVM", "SVM", "RVM"]
    command = ["-m", "pcvm_pymc", "reproduce", "chen2009-fig4", *options, "--out", "run"]
    _, seconds = undisturbed(command, tmp_path / "calm")
    kill_at_random(command, tmp_path / "killed", 0.6 * seconds, KILLS, generator(22))
    undisturbed(command, tmp_path / "killed")
    ends = [(tmp_path / name / "run/report/table.csv").read_bytes() for name in ("calm", "killed")]
    assert ends[0] == ends[1]


# --- on a cluster ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fits_on_a_cluster_survive_20_deaths_of_a_worker(monkeypatch):
    import dask.array as da
    from distributed import Client, LocalCluster

    from pcvm_pymc import PCVMClassifier
    from pcvm_pymc.estimators.cluster import DaskRows

    X, label = blobs(400, seed=3)
    options = {"width": 1.5, "basis": (X[:30], label[:30]), "tol": 1e-8, "random_state": 0}
    wanted = PCVMClassifier(**options).fit(X, label)
    rng, plain = generator(23), DaskRows.sums
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
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
            client.wait_for_workers(2)
