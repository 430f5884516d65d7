"""Mutants of a file or folder: operators and numbers changed one by one, and whether a test notices.

``OMP_NUM_THREADS=1 uv run python benchmarks/mutation.py PATH [TEST ...] [--sample 30 --seed 0]``, such as
``pcvm_pymc/core/em/mstep.py tests/core/test_em.py``, or ``pcvm_pymc/core --sample 100``.
Without tests, those of `TESTS` are run, the likeliest first.

Works on a copy of the package and the tests. A run that takes longer than --limit is a mutant that hangs,
which counts as noticed. The tests keep compiled kernels by the content of the files that they come from.
Samples are run in random order, so that what was printed before an interruption is a sample, too.
"""

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.USub: ast.UAdd,
}

_CORE = "pcvm_pymc/core/"
#: tests of `core` by the beginning of a file's name, the longest counts; the contract is of every row
TESTS = {
    "approximation": "approximation",
    "em": "em mpcvm sparse_probit weighted",
    "em/coupled": "mpcvm weighted",
    "em/nonnegative": "nonnegative em",
    "em/rows": "em chunked chunked_classes",
    "em/widths": "em",
    "em/penalty": "em sparse_probit",
    "evidence": "evidence rvm sequential",
    "evidence/bottom_up": "bottom_up",
    "family": "em",
    "gibbs": "gibbs_conditionals gibbs gibbs_block gibbs_classes",
    "loo": "loo",
    "measures": "measures",
    "pieces": "priors probit kernels em",
    "pieces/bases": "bases",
    "pieces/centres": "centres bases",
    "pieces/class_integrals": "multinomial",
    "pieces/multinomial": "multinomial",
    "pieces/weighted": "weighted",
    "problem": "em mpcvm",
    "submodels": "projection_path projection_classes",
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
    return [*(f"tests/core/test_{name}.py" for name in TESTS[longest].split()), *CONTRACT]


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


def noticed(folder: Path, tests: list[str], limit: float) -> bool:
    """Return whether a test fails, or the run takes too long."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", *tests]
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main() -> None:
    """Print each mutant that no test notices, and the share of those that one does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests")
    given = parser.parse_args()
    path = ROOT / given.path
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    every = [
        (str(file.relative_to(ROOT)), place)
        for file in files
        if file.name != "__init__.py"
        for place in places(file.read_text())
    ]
    order = np.random.default_rng(given.seed).permutation(len(every))
    chosen = [every[i] for i in (order[: given.sample] if given.sample else sorted(order))]
    tests = {file: given.tests or tests_of(file) for file in {file for file, *_ in chosen}}
    with tempfile.TemporaryDirectory() as name:
        folder = copied(Path(name))
        whole = sorted({test for some in tests.values() for test in some})
        if noticed(folder, whole, given.limit * len(whole)):
            raise SystemExit("the tests fail, or take too long, without a mutant")
        killed = 0
        for file, place in chosen:
            line, what, source = mutant((ROOT / file).read_text(), place)
            (folder / file).write_text(source)
            dead = noticed(folder, tests[file], given.limit)
            shutil.copy(ROOT / file, folder / file)
            killed += dead
            print("killed  " if dead else "SURVIVED", f"{file}:{line}", what, flush=True)
    print(f"{killed} of {len(chosen)} killed ({len(every)} mutants there are)")


def copied(folder: Path) -> Path:
    """Copy the package and its tests into a folder; return it."""
    for each in ("pcvm_pymc", "tests"):
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    for each in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / each, folder / each)
    return folder


if __name__ == "__main__":
    main()
