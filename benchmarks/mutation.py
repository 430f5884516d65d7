"""Mutants of a file or folder: operators and numbers changed one by one, and whether a test notices.

``OMP_NUM_THREADS=1 uv run python benchmarks/mutation.py PATH [TEST ...] [--sample 30 --seed 0]``, such as
``pcvm_pymc/core/em/machine.py tests/core/test_em.py``, or ``pcvm_pymc/core --sample 100``.
Without tests, those of `TESTS` of all files drawn, and the contract.

Works on a copy of the package and the tests, made from this checkout, which must not change meanwhile. The
tests are run once without a mutant, which says what lines each runs; of a mutant only those tests are run
that run its line, the quickest first, until one fails, in a fork of a process that has imported the
libraries. Where a line is run on import, or compiled, these are all tests of its file. A test that takes ten
times as long as without a mutant, and 20 seconds (kernels: 100 more, to be compiled), or all of them together
900, is a mutant that hangs, which counts as noticed.
Samples are run in random order, so that what was printed before an interruption is a sample, too.
"""

import argparse
import ast
import copy
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from covering import compiled_functions, kernels_for, preload, record, run_chosen, users

ROOT = Path(__file__).parents[1]
_PAIRS = (
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)),
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.And, ast.Or)),
)
SWAPPED = dict(_PAIRS) | {new: old for old, new in _PAIRS}
SWAPPED |= {ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.USub: ast.UAdd}
SLACK, COMPILING = 20.0, 100.0  # seconds more for a test, and where kernels are compiled
LIMIT = 900.0  # seconds for all tests of a mutant

_CORE = "pcvm_pymc/core/"
#: tests of `core` by the beginning of a file's name, the longest counts; the contract is of every row
TESTS = {
    "design": "sequential chunked",
    "em": "em sparse_probit chunked test_weighted_rows",
    "em/coupled": "em chunked test_weighted_rows",
    "em/own_terms": "model/test_terms",
    "em/rows": "em chunked",
    "em/widths": "em test_feature_widths",
    "em/options": "em options chunked",
    "evidence": "evidence options sequential",
    "evidence/bottom_up": "bottom_up options",
    "evidence/columns": "sequential",
    "family": "em",
    "gibbs": "gibbs_conditionals gibbs",
    "hamiltonian": "hamiltonian",
    "loo": "loo",
    "marginal": "marginal",
    "metric": "kernels estimators/test_features",
    "nonnegative": "quadratic em loo",
    "penalised": "quadratic",
    "pieces": "priors probit kernels em",
    "pieces/centres": "centres estimators/test_reduced_bases estimators/test_as_they_come",
    "pieces/class_integrals": "multinomial",
    "pieces/resources": "resources",
    "pieces/kernels": "kernels test_feature_widths",
    "pieces/multinomial": "multinomial submodels",
    "pieces/likelihood": "em evidence probit hamiltonian test_weighted_rows",
    "pieces/names": "test_containers",
    "pieces/row_weights": "test_weighted_rows",
    "pieces/transforms": "kernels",
    "pieces/validation": "validation options em estimators/test_base model/test_builders test_containers",
    "problem": "em test_weighted_rows validation",
    "process": "process estimators/test_rvm_estimators",
    "projection": "options submodels",
    "quadratic": "quadratic",
    "race": "race_and_stacking",
    "stacking": "race_and_stacking",
    "validity": "validity",
}
#: beside these
CONTRACT = ["tests/test_contract.py", "tests/inference/test_pieces.py"]


def tests_of(file: str) -> list[str]:
    """Return the tests of a file of `core`."""
    part = file.removeprefix(_CORE)
    longest = max((name for name in TESTS if part.startswith(name)), key=len, default=None)
    if longest is None:
        raise SystemExit(f"{file}: no tests are known for it; needed TEST arguments")
    known = (name if "test_" in name else f"core/test_{name}" for name in TESTS[longest].split())
    return [*(f"tests/{name}.py" for name in known), *CONTRACT]


def changed_number(value: float) -> float:
    """Return another number: the next whole one, or a tenth more."""
    return value + 1 if isinstance(value, int) else 1.1 * value + 0.1 * (value == 0)


def without_annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are run: types change nothing."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.TypeAlias):
                yield child
                yield from without_annotations(child)


def mutate(node: ast.AST) -> str | None:
    """Change a node; return what was done, None where there is nothing to change."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        old = node.value
        node.value = not old if isinstance(old, bool) else changed_number(old)
        return f"{old} -> {node.value}"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.op = ast.UAdd()  # the truth of what follows, as a number
        return "not dropped"
    holder = node.ops if isinstance(node, ast.Compare) else None
    old = holder[0] if holder else getattr(node, "op", None)
    new = SWAPPED.get(type(old))
    if new is None:
        return None
    if holder:
        holder[0] = new()
    else:
        node.op = new()
    return f"{type(old).__name__} -> {new.__name__}"


def places(source: str) -> list[int]:
    """Return which nodes of a file can be changed."""
    nodes = without_annotations(ast.parse(source))
    return [k for k, node in enumerate(nodes) if mutate(copy.deepcopy(node)) is not None]


def mutant(source: str, place: int) -> tuple[int, str, str]:
    """Return line, change and source of the mutant at a place."""
    tree = ast.parse(source)
    node = list(without_annotations(tree))[place]
    before = ast.unparse(copy.deepcopy(node))[:60] if hasattr(node, "lineno") else ""
    what = mutate(node)
    return node.lineno, f"{what} in `{before}`", ast.unparse(tree)


def statement(source: str, place: int) -> range | str:
    """Return the lines of a mutant's innermost statement, of its head where it has a body.

    "import" where they are run on import (outside of functions, or as defaults), "compiled" in a kernel.
    """
    tree = ast.parse(source)
    parent = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
    kernels, node = compiled_functions(tree), list(without_annotations(tree))[place]
    while not isinstance(node, ast.stmt):
        node = parent[node]
    body = getattr(node, "body", None)
    end = body[0].lineno if body else node.end_lineno + 1
    lines = range(node.lineno, max(end, node.lineno + 1))
    inside = False
    while node in parent:
        if node in kernels:
            return "compiled"
        inside |= isinstance(parent[node], ast.FunctionDef) and node in parent[node].body
        node = parent[node]
    return lines if inside else "import"


def coverers(file: str, lines: range | str, run: dict[str, tuple[float, set]]) -> dict[str, float]:
    """Return the tests that may notice a mutant of some lines of a file, and their seconds.

    Of a kernel, or of what is run on import, these are the tests of the file, of `CONTRACT` those that run
    anything of it or of the kernels that it is part of: of their folders, but for pieces, which are files by
    themselves.
    """
    if isinstance(lines, range):
        wanted = {(file, line) for line in lines}
        some = {test: seconds for test, (seconds, seen) in run.items() if wanted & seen}
        if some:  # else it may be a function that is called on import
            return some
    known = set(tests_of(file))
    compiled = [str(path.relative_to(ROOT)) for path in users(ROOT, file)]
    names = [file, *compiled]
    parts = tuple(name if "/pieces/" in name else name.rpartition("/")[0] for name in names)
    return {
        test: seconds
        for test, (seconds, seen) in run.items()
        if (file_ := test.split("::")[0]) in known
        and (file_ not in CONTRACT or any(name.startswith(parts) for name, _ in seen))
    }


def quickest(seconds: dict[str, float], budget: float) -> dict[str, float]:
    """Return the quickest tests, up to so many seconds together."""
    order = sorted(seconds, key=lambda test: seconds[test])
    spent = np.cumsum([seconds[test] for test in order])
    return {test: seconds[test] for test, sum_ in zip(order, spent, strict=True) if sum_ <= budget}


def drawn(path: Path, sample: int, seed: int) -> tuple[list[tuple[str, int]], int]:
    """Return mutants of a file or folder in random order, all in order where none is asked; and how many."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    every = [
        (str(file.relative_to(ROOT)), place)
        for file in files
        if file.name != "__init__.py"
        for place in places(file.read_text())
    ]
    order = np.random.default_rng(seed).permutation(len(every))
    return [every[i] for i in (order[:sample] if sample else sorted(order))], len(every)


def wilson(killed: int, number: int) -> tuple[float, float]:
    """Return a 95 % interval of a share (Wilson)."""
    share, z2 = killed / number, 1.96**2
    middle = share + z2 / (2 * number)
    half = 1.96 * np.sqrt(share * (1 - share) / number + z2 / (4 * number**2))
    return (middle - half) / (1 + z2 / number), (middle + half) / (1 + z2 / number)


def main() -> None:
    """Print each mutant and whether a test notices it, and the share of those that one does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    help_ = "only the quickest tests of a mutant, so many seconds"
    parser.add_argument("--budget", type=float, default=np.inf, help=help_)
    given = parser.parse_args()
    chosen, number = drawn(ROOT / given.path, given.sample, given.seed)
    tests = sorted({test for file, _ in chosen for test in given.tests or tests_of(file)})
    with tempfile.TemporaryDirectory() as name:
        killed = sum(results(Path(name), chosen, tests, given.budget))
    low, high = wilson(killed, len(chosen))
    print(f"{killed} of {len(chosen)} killed, 95 % interval {low:.3f} to {high:.3f}; of {number}")


def results(
    work: Path, chosen: list[tuple[str, int]], tests: list[str], budget: float
) -> Iterator[bool]:
    """Yield whether each mutant is noticed, and print it."""
    folder, kernels, out = copied(work / "copy"), work / "kernels", work / "out"
    began = time.monotonic()
    baseline = record(folder, tests, kernels, out)
    run = {test: (t, set(map(tuple, lines))) for test, (t, lines) in baseline["tests"].items()}
    print(f"{len(run)} tests without a mutant: {time.monotonic() - began:.0f} s", flush=True)
    os.environ["NUMBA_CACHE_DIR"] = str(kernels)
    preload(baseline["modules"])
    quick = {test: run[test][0] for test in sorted(run, key=lambda test: run[test][0])[:50]}
    if run_chosen(folder, quick, kernels, out, (SLACK, LIMIT)):
        raise SystemExit(f"tests fail in a fork without a mutant:\n{out.read_text()}")
    for number, (file, place) in enumerate(chosen):
        original = (ROOT / file).read_text()
        line, what, source = mutant(original, place)
        began, seconds = time.monotonic(), coverers(file, statement(original, place), run)
        seconds = quickest(seconds, budget)
        (folder / file).write_text(source)
        stamp = time.time() + 10.0 * (number + 1)  # no two mutants have one bytecode
        os.utime(folder / file, (stamp, stamp))
        where = kernels_for(folder, file, kernels)
        slack = SLACK + COMPILING * (where != kernels)
        status = run_chosen(folder, seconds, where, out, (slack, LIMIT)) if seconds else 0
        shutil.copy2(ROOT / file, folder / file)
        if status is not None and status > 2:
            raise SystemExit(f"{file}:{line} {what}: pytest ended with {status}: {out.read_text()}")
        dead = status != 0
        took = f"{time.monotonic() - began:.0f} s, {len(seconds)} tests"
        print("killed  " if dead else "SURVIVED", f"{file}:{line}", what, f"({took})", flush=True)
        yield dead


def copied(folder: Path) -> Path:
    """Copy the package and its tests into a folder; return it."""
    for each in ("pcvm_pymc", "tests"):
        shutil.rmtree(folder / each, ignore_errors=True)
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    for each in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / each, folder / each)
    return folder


if __name__ == "__main__":
    main()
