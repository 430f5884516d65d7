"""Faults: interrupts, kills, damaged files of results, runs and data, and what does not fit."""

import io
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from problems import animals, blobs, complaint, linear, map_result, refused

import pcvm_pymc as pcvm
from pcvm_pymc.__main__ import main as entry_point
from pcvm_pymc.cli import main
from pcvm_pymc.core.pieces import resources
from pcvm_pymc.core.pieces.files import StoreError, alone_in
from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import RunError, reproduce

KILLS = 20
#: the slow run draws more cases
few_or_many = pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])


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


@few_or_many
def test_an_interrupt_while_modules_are_loaded_or_work_is_done_stops(many, tmp_path):
    rng = np.random.default_rng(18)
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
    rng, plain = np.random.default_rng(23), DaskRows.sums
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


def files_of(place):
    """Return the files of a folder, or a file alone, in one order."""
    return sorted(path for path in place.rglob("*") if path.is_file()) or [place]


def spoil(place, rng):
    """Damage one file at random: bits flipped, cut off, removed, or a foreign one; return what was done."""
    files = files_of(place)
    path = files[rng.integers(len(files))]
    content = bytearray(path.read_bytes())
    how = rng.choice(["flip", "cut", "remove", "foreign", "replace"])
    if how == "flip":
        for at in rng.choice(len(content), size=min(len(content), 3), replace=False):
            content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[: rng.integers(len(content))])
    elif how == "remove":
        path.unlink()
    elif how == "foreign":
        path.with_name(f"foreign{rng.integers(9)}").write_bytes(rng.bytes(20))
    else:
        path.write_bytes(rng.bytes(int(rng.integers(1, 400))))
    return f"{how} {path.name}"


def spoilt_copies(good, folder, seeds, read, errors):
    """Yield each copy, what was done to it, and what was read: nothing where an error named it."""
    for seed in seeds:
        place = folder / f"{seed}-{good.name}"
        (shutil.copytree if good.is_dir() else shutil.copy)(good, place)
        did, found, said = spoil(place, np.random.default_rng(seed)), None, str(place)
        try:
            found = read(place)
        except errors as error:
            said = str(error)
        assert str(place) in said, did
        yield place, did, found
        shutil.rmtree(place, ignore_errors=True)


@few_or_many
@pytest.mark.parametrize("store", ["zarr", "nc"])
def test_a_spoilt_result_is_named_or_read_as_it_was(many, store, tmp_path):
    mode = map_result(pcvm.pcvm_model(*blobs(24, seed=2), width=1.0))
    good = pcvm.save(mode, tmp_path / f"good.{store}")
    seeds, whole, named = range(100, 300) if many else range(15), pcvm.load(good), 0
    for _, did, found in spoilt_copies(good, tmp_path, seeds, pcvm.load, StoreError):
        named += found is None
        # not an error: a foreign file, or metadata that the store has twice
        assert found is None or found.equals(whole), did
    assert named > len(seeds) // 2


RUN = {"sets": ["iris"], "classifiers": ["MLR", "DLSR"], "repeats": 2, "progressbar": False}


@few_or_many
def test_a_spoilt_run_is_mended(many, tmp_path):
    good, seeds = tmp_path / "good", range(100, 300) if many else range(4)
    reproduce("lyu2020-table3", out=good, **RUN)
    expected = report_of(good).cells.drop(columns="seconds", errors="ignore")
    for place, did, _ in spoilt_copies(good, tmp_path, seeds, report_of, RunError):
        reproduce("lyu2020-table3", out=place, **RUN)
        assert report_of(place).cells.equals(expected), did
        assert {path.name for path in files_of(good)} <= {path.name for path in files_of(place)}


RNG = np.random.default_rng(0)
CRABS = pd.DataFrame(RNG.normal(size=(200, 6)).round(3), columns=[*"abcde", "species"])
HEART = pd.DataFrame(RNG.normal(size=(270, 13)).round(2)).assign(target=np.resize([-1, 1], 270))
ROWS = np.stack([RNG.permutation(270) for _ in range(2)])
SPLITS = {"train": ROWS[:, :170], "test": ROWS[:, 170:], "realisation": np.array([1, 2])}
SETS = {"crabs_sex": "figueiredo2001-table2", "heart": "chen2009-table3"}


def packed(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a data folder with two sets."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("PCVM_DATA", str(folder))
    CRABS.assign(target=np.resize([0, 1], 200)).to_csv(folder / "crabs.csv", index=False)
    HEART.to_csv(folder / "raetsch_heart.csv", index=False)
    (folder / "raetsch_heart_splits.npz").write_bytes(packed(SPLITS))
    return folder


def answered(name, out, capsys):
    """Run an experiment on a set; check that it has a report, or says in a line why it has none."""
    few = ["--sets", name, "--classifiers", "LDA", "--repeats", "1"]
    code = main(["reproduce", SETS[name], *few, "--out", str(out)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    if code == 0:
        report = report_of(out)
        assert len(report.cells) + len(report.failures) == 1
    else:
        assert code == 2
        assert "pcvm: error: " in said.err
        assert name in said.err or "crabs" in said.err
    return code


@few_or_many
def test_whatever_is_in_a_data_folder_the_command_answers_in_words(many, place, tmp_path, capsys):
    assert [answered(name, tmp_path / name, capsys) for name in SETS] == [0, 0]
    files = {path: path.read_bytes() for path in place.iterdir()}
    for number in range(100, 2100) if many else range(45):
        path = sorted(files)[number % 3]
        spoil(path, np.random.default_rng(number))
        answered("crabs_sex" if number % 3 == 0 else "heart", tmp_path / f"{number}", capsys)
        for other in set(place.iterdir()) - set(files):
            other.unlink()
        path.write_bytes(files[path])


WRONG = {
    "type": {"train": SPLITS["train"].astype(float)},
    "range": {"test": SPLITS["test"] + 1},
    "twice": {"train": SPLITS["test"][:, ::-1]},
    "shape": {"realisation": np.array(1)},
    "pickle": {"train": np.array([{"a": 1}, None], dtype=object)},
    "empty": {"train": SPLITS["train"][:0]},
}


@pytest.mark.parametrize("arrays", WRONG.values(), ids=WRONG)
def test_wrong_arrays_of_splits_are_refused(place, tmp_path, capsys, arrays):
    (place / "raetsch_heart_splits.npz").write_bytes(packed(SPLITS | arrays))
    assert answered("heart", tmp_path / "out", capsys) == 2
