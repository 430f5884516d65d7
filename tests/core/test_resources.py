"""Memory: what the system's files say, and what does not fit. BLAS: one thread for small problems. numba."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile
from problems import full_disk
from scipy.special import log_ndtr
from threadpoolctl import threadpool_info, threadpool_limits

import pcvm_pymc
from pcvm_pymc import PCVMClassifier, RVMRegressor
from pcvm_pymc.core.pieces import resources
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.resources import blas_threads


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write the files of a system; those that are not written are not there."""
    monkeypatch.setattr(resources, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(resources, "resource", None)

    def write(**files):
        for name, text in files.items():
            folder = tmp_path / ("proc" if name == "meminfo" else "sys/fs/cgroup")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name.replace("_", ".")).write_text(text)

    return write


def test_where_the_system_does_not_say_there_is_no_end(system):
    assert resources.available_bytes() == np.inf
    system(meminfo="MemTotal: 5 kB\n", memory_max="max\n", memory_stat="anon 3\n")
    assert resources.available_bytes() == np.inf


def test_the_least_of_what_is_unused_and_what_limits_leave(system, monkeypatch):
    system(meminfo="MemTotal:  9 kB\nMemAvailable:   4 kB\n")
    assert resources.available_bytes() == 4096.0
    system(memory_max="1500\n", memory_stat="file 200\nanon 300\nanon_thp 7\n")
    assert resources.available_bytes() == 1200.0

    for limit, wanted in ((-1, 1200.0), (700, 700.0)):
        limits = {9: (limit, 10**9)}
        limited = SimpleNamespace(RLIMIT_AS=9, RLIM_INFINITY=-1, getrlimit=limits.__getitem__)
        monkeypatch.setattr(resources, "resource", limited)
        assert resources.available_bytes() == wanted


@pytest.mark.parametrize(("n_obs", "n_basis", "numbers"), [(100, 50, 5000), (50, 100, 10_000)])
def test_basis_functions_their_gram_and_a_factor_have_to_fit(n_obs, n_basis, numbers, monkeypatch):
    needed = 3 * 8 * numbers
    monkeypatch.setattr(resources, "_SMALL", 0.0)
    monkeypatch.setattr(resources, "available_bytes", lambda: needed)
    resources.check_room(n_obs, n_basis)
    monkeypatch.setattr(resources, "available_bytes", lambda: 0.5 * needed)
    said = f"{n_obs} rows and {n_basis} bases need about {needed / 2**30:.3g} GiB, and "
    with pytest.raises(MemoryError, match=f"^{said}{needed / 2**31:.3g} GiB are free"):
        resources.check_room(n_obs, n_basis)


def test_what_is_small_is_not_asked_about(monkeypatch):
    monkeypatch.setattr(resources, "available_bytes", lambda: 0.0)
    resources.check_room(800, 800)
    with pytest.raises(MemoryError):
        resources.check_room(900, 900)


@pytest.mark.parametrize("coupled", [False, True])
def test_the_limit_that_is_needed_is_enough(coupled):
    needed = 8.0 * (5 * 100**2 + 100 + 2 * 3 + 16)  # one row
    assert resources.chunk_rows(needed, 100, 3) == 1
    for n in range(90, 110):
        with pytest.raises(ValueError, match="needed at least") as error:
            resources.chunk_rows(1e5, n, 3, copies=2, coupled=coupled)
        said = re.search("needed at least (.*?):", str(error.value))[1]
        assert resources.chunk_rows(float(said), n, 3, copies=2, coupled=coupled) >= 1
        with pytest.raises(ValueError, match="needed at least"):  # it is not far from the least
            resources.chunk_rows(float(said) / 1.02, n, 3, copies=2, coupled=coupled)


def n_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two_threads")
def test_size_decides():
    for rows, bases, wanted in ((500, 500, 1), (5000, 5000, 2), (np.inf, 10, 2)):
        with blas_threads(rows, bases):
            assert n_threads() == {wanted}
        assert n_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_fits_have_one_thread_and_give_it_back():
    seen = []

    def kernel(X, Z, width):
        seen.append(n_threads())
        return RBF(width)(X, Z)

    x = np.linspace(-2, 2, 30)[:, None]
    PCVMClassifier(kernel=kernel, width=1.0).fit(x, x[:, 0] > 0.1)
    RVMRegressor(kernel=kernel, width=1.0).fit(x, np.sin(x[:, 0]))
    assert seen
    assert all(each == {1} for each in seen)
    assert n_threads() == {2}


COMPILED = """
from pcvm_pymc.core.pieces.class_integrals import log_ndtr_and_mills
print(log_ndtr_and_mills(0.5)[0])
"""


def test_where_no_folder_can_be_written_functions_are_compiled_without_one():
    only = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator", "XDG_CACHE_HOME": "/proc/none"}
    command, env = [sys.executable, "-c", COMPILED], {**os.environ, **only, "HOME": "/proc/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(log_ndtr(0.5), rel=1e-14)
    assert done.stderr.count("Set NUMBA_CACHE_DIR") == len(done.stderr.splitlines()) == 1


def test_a_full_disk_ends_no_call_of_a_compiled_function(monkeypatch, caplog):
    monkeypatch.setattr(IndexDataCacheFile, "save", full_disk)
    resources._warn_once.cache_clear()
    double, triple = (resources.jit(each) for each in (lambda x: 2 * x, lambda x: 3 * x))
    assert (double(1.5), triple(1.5)) == (3.0, 4.5)
    assert caplog.text.count("Set NUMBA_CACHE_DIR") == 1


def test_all_compiled_functions_of_the_core_go_by_that_decorator():
    files = (Path(pcvm_pymc.__file__).parent / "core").rglob("*.py")
    assert [path.stem for path in files if "njit" in path.read_text()] == ["resources"]
