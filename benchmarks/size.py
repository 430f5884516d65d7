"""Count lines of code without docstrings, comments and blank lines; draw docstrings at random.

::

    python benchmarks/size.py                # the table: lines and functions of each room
    python benchmarks/size.py --check        # exit with 1 where a limit is passed
    python benchmarks/size.py --docstrings 60 --seed 1   # first lines of docstrings, to be read

Needs nothing but Python; what ``PCVMClassifier().fit`` imports is counted with the package installed.
"""

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pcvm_pymc"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *DEFINITIONS)
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
#: lines of code, or a number of functions or modules, as they were at the last merge: none may rise
LIMITS = {
    "library": 16_722,
    "core": 7_336,
    "estimators": 3_739,
    "model": 2_220,
    "inference": 1_184,
    "assessment": 1_116,
    "export": 468,
    "cli": 418,
    "experiments": 4_287,
    "tests": 16_898,
    "benchmarks": 1_733,
    "functions of the library": 1_447,
    "modules that a fit imports": 46,
}
#: words by which estimators would question themselves, and how often they may do so
WORDS = {"getattr": 4, "hasattr": 3, "is_named": 9, "model: Any": 9}
FIT = """
import sys
import numpy as np
from pcvm_pymc import PCVMClassifier
X = np.random.default_rng(0).normal(size=(40, 2))
PCVMClassifier().fit(X, X[:, 0] > 0)
print(sum(name.split(".")[0] == "pcvm_pymc" for name in sys.modules))
"""


def code_lines(source: str) -> int:
    """Return how many lines hold code."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documentation.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def functions(source: str) -> int:
    """Return how many functions and methods are defined."""
    return sum(isinstance(node, DEFINITIONS) for node in ast.walk(ast.parse(source)))


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return lines and functions of each room."""
    lines: dict[str, int] = {}
    defined: dict[str, int] = {}
    for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            room = parts[0] if parts[0] != "pcvm_pymc" else parts[1].removesuffix(".py")
            source = path.read_text()
            lines[room] = lines.get(room, 0) + code_lines(source)
            defined[room] = defined.get(room, 0) + functions(source)
    outside = {"tests", "benchmarks", "experiments"}
    for table in (lines, defined):
        table["library"] = sum(value for room, value in table.items() if room not in outside)
    return lines, defined


def words() -> dict[str, int]:
    """Return how often estimators question themselves."""
    text = "".join(path.read_text() for path in (PACKAGE / "estimators").glob("*.py"))
    return {word: len(re.findall(rf"\b{word}\b", text)) for word in WORDS}


def imported_modules() -> int:
    """Return how many modules of the package a first fit imports."""
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    return int(done.stdout)


def docstrings(number: int, seed: int) -> list[str]:
    """Return first lines of docstrings of the package, drawn at random, with their places."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text:
                name = getattr(node, "name", "")
                place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                found.append(f"{place} {name}: {text.splitlines()[0]}")
    return random.Random(seed).sample(found, min(number, len(found)))


def main() -> int:
    """Print the table; return 1 where a limit is passed and `--check` was given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is passed")
    parser.add_argument("--docstrings", type=int, metavar="N", help="draw N docstrings and stop")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    given = parser.parse_args()
    if given.docstrings:
        print(*docstrings(given.docstrings, given.seed), sep="\n")
        return 0
    lines, defined = counts()
    print(f"{'room':<28}{'lines':>8}{'functions':>11}{'limit':>8}")
    for room in sorted(lines):
        limit = LIMITS.get(room, "")
        print(f"{room:<28}{lines[room]:>8}{defined[room]:>11}{limit:>8}")
    others = {
        "functions of the library": defined["library"],
        "modules that a fit imports": imported_modules(),
        **words(),
    }
    limits = LIMITS | WORDS
    for name, value in others.items():
        print(f"{name:<28}{value:>8}{'':>11}{limits[name]:>8}")
    passed = [name for name, limit in limits.items() if {**lines, **others}[name] > limit]
    if passed:
        print("above the limit:", ", ".join(passed))
    return int(given.check and bool(passed))


if __name__ == "__main__":
    sys.exit(main())
