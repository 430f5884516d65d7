"""Mutants of a file: operators and numbers changed one by one, and whether a test notices.

``OMP_NUM_THREADS=1 uv run python benchmarks/mutation.py FILE TEST [TEST ...] [--sample 30 --seed 0]``,
such as ``pcvm_pymc/core/em/mstep.py tests/core/test_em.py tests/core/test_mpcvm.py``.

Works on a copy of the package and the tests. A run that takes longer than --limit is a mutant that hangs,
which counts as noticed. numba's cache is a new one for each mutant: it does not see that a file whose
functions it has inlined has changed.
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


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, change and the source of each mutant."""
    n_nodes = sum(1 for _ in without_annotations(ast.parse(source)))
    for k in range(n_nodes):
        tree = ast.parse(source)
        node = list(without_annotations(tree))[k]
        before = ast.unparse(copy.deepcopy(node))[:60] if hasattr(node, "lineno") else ""
        what = mutate(node)
        if what is not None:
            yield node.lineno, f"{what} in `{before}`", ast.unparse(tree)


def noticed(folder: Path, tests: list[str], limit: float) -> bool:
    """Return whether a test fails, or the run takes too long."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", *tests]
        try:
            run = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
    return run.returncode != 0


def main() -> None:
    """Print each mutant that no test notices, and the share of those that one does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests")
    given = parser.parse_args()
    source = (ROOT / given.file).read_text()
    every = list(mutants(source))
    rng = np.random.default_rng(given.seed)
    chosen = every
    if given.sample:
        chosen = [every[i] for i in sorted(rng.permutation(len(every))[: given.sample])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("pcvm_pymc", "tests"):
            shutil.copytree(
                ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__")
            )
        for each in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / each, folder / each)
        if noticed(folder, given.tests, given.limit):
            raise SystemExit("the tests fail, or take too long, without a mutant")
        killed = 0
        for line, what, mutant in chosen:
            (folder / given.file).write_text(mutant)
            dead = noticed(folder, given.tests, given.limit)
            killed += dead
            print("killed  " if dead else "SURVIVED", f"{given.file}:{line}", what, flush=True)
    print(f"{killed} of {len(chosen)} killed ({len(every)} mutants there are)")


if __name__ == "__main__":
    main()
