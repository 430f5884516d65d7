"""Which tests run which lines of `core`, and runs of chosen tests in forks that need not import libraries.

What `benchmarks/mutation.py` is quick by; not a script.
"""

import ast
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterable
from pathlib import Path

#: not imported before a fork: they start threads
_THREADED = ("jax", "jaxlib", "numpyro", "blackjax", "torch", "dask", "distributed", "xdist")
_TOOL = sys.monitoring.COVERAGE_ID


class Recorder:
    """A plugin of pytest: lines of a folder that each test runs, and its seconds.

    What fixtures run counts for all tests of the file: most are made once, for whoever comes first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.lines: dict[str, set[tuple[str, int]]] = {}
        self.shared: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}
        self._seen: set[tuple[str, int]] = set()
        self._watched: set[types.CodeType] = set()
        sys.monitoring.use_tool_id(_TOOL, "covering")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, self._line)

    def _line(self, code: types.CodeType, line: int) -> object:
        self._seen.add((code.co_filename.removeprefix(self.folder), line))
        return sys.monitoring.DISABLE

    def _watch(self, code: types.CodeType) -> None:
        if code not in self._watched and code.co_filename.startswith(self.folder):
            self._watched.add(code)
            sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
            for inner in code.co_consts:
                if isinstance(inner, types.CodeType):
                    self._watch(inner)

    def _begin(self) -> None:
        self._seen = set()
        sys.monitoring.restart_events()

    def pytest_collection_finish(self) -> None:
        """Watch the functions of the folder."""
        gc.unfreeze()  # the tests' conftest.py hides what imports have made
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType):
                self._watch(each.__code__)

    def pytest_runtest_logstart(self) -> None:
        """Forget what ran before."""
        self._begin()

    def pytest_runtest_logreport(self, report) -> None:
        """Note what a test, or its fixtures, have run."""
        file = report.nodeid.split("::")[0]
        if report.when == "call":
            self.lines[report.nodeid] = self._seen
            self.seconds[report.nodeid] = report.duration
        else:
            self.shared.setdefault(file, set()).update(self._seen)
        self._begin()

    def written(self) -> str:
        """Return as JSON: for each test its seconds and the lines that it or its file's fixtures run."""
        return json.dumps(
            {
                "tests": {
                    test: [
                        self.seconds[test],
                        sorted(lines | self.shared.get(test.split("::")[0], set())),
                    ]
                    for test, lines in self.lines.items()
                },
                "modules": [name for name in list(sys.modules) if not _own(name)],
            }
        )


def _own(name: str) -> bool:
    """Return whether a module is of the package or its tests, or must not be imported before a fork."""
    top, *_ = name.split(".")
    where = getattr(sys.modules.get(name), "__file__", None) or ""
    return (
        top in ("pcvm_pymc", "__main__", "conftest", *_THREADED)
        or f"{os.sep}tests{os.sep}" in where
        or "site-packages" not in where
    )


class Chosen:
    """A plugin of pytest: only the tests that are named, the quickest first.

    The process ends where a test takes `slack` and ten times its seconds, of a processor's time.
    """

    def __init__(self, seconds: dict[str, float], slack: float) -> None:
        self.seconds, self.slack = seconds, slack
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Set the clock."""
        signal.setitimer(signal.ITIMER_PROF, self.slack + 10.0 * self.seconds[nodeid])

    def pytest_collection_modifyitems(self, items: list) -> None:
        """Choose and order."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.seconds),
            key=lambda item: self.seconds[item.nodeid],
        )


def _in_fork(folder: Path, arguments: list[str], plugin: object, kernels: Path, out: Path) -> int:
    """Run pytest on a folder in this process, which ends with it; return its exit status."""
    import pytest

    os.setsid()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ |= {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(kernels)}
    if numba := sys.modules.get("numba"):
        numba.config.reload_config()
    quiet = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    options = ["-n", "0", "-q", "-x", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that a fork has
    code = pytest.main([*options, *arguments], [plugin])
    if isinstance(plugin, Recorder):
        out.with_suffix(".json").write_text(plugin.written())
    return int(code)


def _record(folder: Path, files: list[str], kernels: Path, out: Path) -> None:
    os._exit(_in_fork(folder, files, Recorder(folder), kernels, out))


def record(folder: Path, files: list[str], kernels: Path, out: Path) -> dict:
    """Return what `Recorder` has written of the tests in some files; SystemExit where one fails."""
    given = folder, files, kernels, out
    run = multiprocessing.get_context("spawn").Process(target=_record, args=given)
    run.start()
    run.join()
    if run.exitcode:
        raise SystemExit(f"the tests fail without a mutant:\n{out.read_text()[-4000:]}")
    return json.loads(out.with_suffix(".json").read_text())


def preload(modules: Iterable[str]) -> None:
    """Import libraries, so that forks have them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            if not name.startswith(_THREADED):
                try:
                    importlib.import_module(name)
                except Exception:  # what is missing here is imported in the fork
                    continue


def run_chosen(
    folder: Path, seconds: dict[str, float], kernels: Path, out: Path, limits: tuple[float, float]
) -> int | None:
    """Run chosen tests until one fails, the quickest first; return the status, None past the limit.

    The limits are a processor's seconds of a test, beside ten times those without a mutant, and of all.
    """
    files = sorted({test.split("::")[0] for test in seconds})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that forks of a process with threads may hang
        child = os.fork()
    if not child:
        code = 99
        try:
            code = _in_fork(folder, files, Chosen(seconds, limits[0]), kernels, out)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    ends = time.monotonic() + limits[1]
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _frozen_names(tree: ast.Module) -> set[str]:
    """Return what a kernel of another file has in itself: compiled functions and constants."""
    constants = (
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper()
    )
    return {*constants, *(node.name for node in compiled_functions(tree))}


def compiled_functions(tree: ast.AST) -> list[ast.FunctionDef]:
    """Return the functions that numba compiles."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(each) for each in node.decorator_list)
    ]


def users(folder: Path, file: str) -> list[Path]:
    """Return the compiled files that a file is part of: itself, and those that import its kernels."""
    core = folder / "pcvm_pymc" / "core"
    trees = {path: ast.parse(path.read_text()) for path in sorted(core.rglob("*.py"))}
    compiled = {path for path, tree in trees.items() if compiled_functions(tree)}
    found, new = set(), {folder / file}
    while new:
        found |= new & compiled
        frozen = {
            ".".join(path.relative_to(folder).with_suffix("").parts): _frozen_names(trees[path])
            for path in new
        }
        new = {
            path
            for path in compiled - found
            for node in ast.walk(trees[path])
            if isinstance(node, ast.ImportFrom)
            and frozen.get(node.module or "", set()) & {each.name for each in node.names}
        }
    return sorted(found)


def kernels_for(folder: Path, file: str, base: Path) -> Path:
    """Return the folder of kernels for a mutant of a file: a copy without those that it is part of.

    numba asks whether the file of a kernel has changed, not those of the kernels that it calls.
    """
    found = users(folder, file)
    copy = base.with_name("changed")
    shutil.rmtree(copy, ignore_errors=True)
    if not found:
        return base
    shutil.copytree(base, copy)
    for path in found:
        for kernel in copy.glob(f"{path.parent.name}_*/{path.stem}.*"):
            kernel.unlink()
    return copy
