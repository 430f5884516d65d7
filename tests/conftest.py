import gc
import hashlib
import os
import sys
from contextlib import contextmanager
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
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

mpl.use("Agg")

# a busy machine is not a failure; an example is often a whole fit
settings.register_profile("fits", deadline=None, max_examples=40)
settings.load_profile("fits")
# nor does it matter what a test of the same worker imported before: hypothesis draws numbers that stand in
# the modules it finds in memory, also under a given seed
providers._get_local_constants = lambda: providers._local_constants


# --- seeds --------------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption(
        "--seed-shift",
        type=int,
        default=int(os.environ.get("PCVM_SEED_SHIFT", "0")),
        help="added to every seed of the tests (default: PCVM_SEED_SHIFT, or 0)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Let hypothesis draw the same in every run of the same shift."""
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(config.getoption("--seed-shift"))


def pytest_report_header(config):
    return f"seeds are shifted by {config.getoption('--seed-shift')}"


@contextmanager
def shifted_seeds(shift):
    """Add `shift` to every int that NumPy makes a generator of, in tests and in what they call."""
    if shift == 0:
        yield
        return
    default_rng, RandomState = np.random.default_rng, np.random.RandomState

    def moved(seed):
        if isinstance(seed, list | tuple) and seed:  # one of the numbers is enough
            return [moved(seed[0]), *seed[1:]]
        is_int = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        return (int(seed) + shift) % 2**32 if is_int and seed >= 0 else seed

    class SameInstances(type):  # generators made before are instances, too
        def __instancecheck__(cls, instance):
            return isinstance(instance, RandomState)

    class Shifted(RandomState, metaclass=SameInstances):  # of scikit-learn's check_random_state
        def __init__(self, seed=None):
            super().__init__(moved(seed))

    np.random.default_rng = lambda seed=None: default_rng(moved(seed))
    np.random.RandomState = Shifted
    try:
        yield
    finally:
        np.random.default_rng, np.random.RandomState = default_rng, RandomState


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Shift the seeds of what is drawn while tests are imported."""
    with shifted_seeds(collector.config.getoption("--seed-shift")):
        return (yield)


# ------------------------------------------------------------------------------------------------


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
    fixed = isinstance(item, pytest.DoctestItem) or item.get_closest_marker("fixed_seeds")
    with shifted_seeds(0 if fixed else item.config.getoption("--seed-shift")):
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
