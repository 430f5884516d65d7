import gc
import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cache_what_is_compiled():
    """Keep bytecode and kernels, for the workers and the processes that tests start, in the tests' cache.

    Where Python is told to write no bytecode, each of these compiles every package that it imports anew. And
    numba takes a kernel from its cache though one that it calls has changed in another file: the folder is
    named by the content of all.
    """
    cache = ROOT / ".pytest_cache"
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    kernels = [*ROOT.glob("pcvm_pymc/core/gibbs/*.py"), *ROOT.glob("pcvm_pymc/core/pieces/*.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(kernels)))
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / f"kernels-{digest.hexdigest()[:12]}"))


# two workers share the processors, and what runs beside a fit is no part of a test
os.environ.setdefault("OMP_NUM_THREADS", "1")
cache_what_is_compiled()  # before numba is imported

import matplotlib as mpl  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

mpl.use("Agg")

# a busy machine is not a failure
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_collection_finish():
    """Leave what imports and the collection have made out of the search for garbage, which then is rarer.

    A worker holds a million objects that stay: looking through them is a fifteenth of the whole run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Leave the graphs of models uncompiled: most are evaluated a few times, and compiled for seconds.

    Neither by numba nor, where constants are folded, by a C compiler; and no variable keeps the stack
    that made it, which takes as long as a twentieth of the models' tests. Slow tests and those marked
    ``compiled`` have PyTensor's own mode, as processes that tests start do.
    """
    pytensor = sys.modules.get("pytensor")
    if pytensor is None or any(item.get_closest_marker(name) for name in ("slow", "compiled")):
        return (yield)
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx="", traceback__limit=0):
        return (yield)


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    """Close the figures of a test: matplotlib warns of more than twenty."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def data_folder():
    """Return the folder of real data, or skip: PCVM_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("PCVM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: PCVM_DATA is not set and there is no folder {folder}")
    return folder
