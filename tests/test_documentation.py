"""The site, README and docstrings: what they show is run, and what is public is documented."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("[!i]*.md"))
PAGES = [ROOT / "README.md", DOCS / "index.md", DOCS / "models.md", *DOCS.glob("guides/*.md")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(path, language):
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_shows_what_happens(page):
    text = "\n".join(blocks_of(DOCS / "tutorials" / f"{page}.md", "pycon"))
    examples = doctest.DocTestParser().get_doctest(text, {}, page, f"{page}.md", 0)
    assert examples.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(examples, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_snippets_are_python_and_their_imports_are_there(path):
    for block in blocks_of(path, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("pcvm_pymc"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names)
