"""The site, README and docstrings: what they show is run, and what is public is documented."""

import ast
import doctest
import importlib
import inspect
import json
import re
import runpy
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from problems import SHALLOW

import pcvm_pymc
from pcvm_pymc import find_map_em, pcvm_model, plots, sample
from pcvm_pymc.cli import main

pytestmark = pytest.mark.fixed_seeds  # printed figures

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "pcvm_pymc"
TUTORIALS = sorted((DOCS / "tutorials").glob("[!i]*.md"))
PAGES = [ROOT / "README.md", DOCS / "index.md", DOCS / "models.md", *DOCS.glob("guides/*.md")]
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(path, language):
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


#: pages of several seconds each, which .ci/run runs with `-m slow`
LONG = {
    *("several_classes_pymc", "several_classes", "rvm", "intervals", "models"),
    *("sparse_probit", "own_classifier", "how_sure", "read_a_posterior", "feature_widths"),
}


def each_page(paths):
    """Return the pages as parameters of a test, long ones marked as slow."""
    marks = {page: [pytest.mark.slow] for page in LONG}
    return [pytest.param(path, id=path.stem, marks=marks.get(path.stem, [])) for path in paths]


RUN = each_page(path for path in PAGES if blocks_of(path, "python"))


@pytest.mark.parametrize("path", each_page(TUTORIALS))
def test_a_tutorial_shows_what_happens(path):
    text = "\n".join(blocks_of(path, "pycon"))
    examples = doctest.DocTestParser().get_doctest(text, {}, path.stem, path.name, 0)
    assert examples.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(examples, out=said.append)
    assert runner.failures == 0, "".join(said)


def reader(page):
    """Return what a reader of a page has before its first block: names that its text speaks of."""
    rng = np.random.default_rng(0)
    n = 520 if page in ("many_rows", "chunks") else 50
    X = rng.normal(size=(n, 3))
    score = X[:, 0] + 0.7 * X[:, 1] ** 2 + 0.4 * rng.normal(size=n)
    y = np.digitize(score, [0.0, 1.0]) if page.startswith("several_classes") else score > 0.5
    table = pd.DataFrame({"town": np.where(X[:, 2] > 0, "Hull", "York"), "income": X[:, 0]})
    X_dask, y_dask = (pytest.importorskip("dask.array").from_array(each) for each in (X, y))
    return {
        **{"X": X[: n - 10], "y": y[: n - 10], "X_test": X[-10:], "y_test": y[-10:]},
        **{"X_new": X[-10:], "table": table[: n - 10]},
        **{"t": score[: n - 10], "X_dask": X_dask, "y_dask": y_dask},
        **{"clinics": ["a", "b"], "clinic": np.arange(n - 10) % 2, "times": np.ones(n - 10)},
        "sigma": np.full(n - 10, 0.4),
        "patient": np.arange(n - 10) // 2,
    }


@pytest.mark.parametrize("path", RUN)
def test_blocks_of_a_page_run_one_after_the_other(path, monkeypatch, tmp_path):
    """As one reader would run them, with few draws."""
    sampling = importlib.import_module("pcvm_pymc.inference.sampling")
    few = {"draws": 20, "tune": 40, "chains": 2, "cores": 1}
    nuts, ours = sampling._sample_nuts, sampling._sample_ours

    def few_by_nuts(reading, seed, **given):  # PyMC's own, which need not be compiled
        return nuts(reading, seed, **given | few | SHALLOW | {"nuts_sampler": "pymc"})

    def few_by_ours(reading, run, seed):
        return ours(reading, replace(run, **few, max_iter=200), seed)

    monkeypatch.setattr(sampling, "_sample_nuts", few_by_nuts)
    monkeypatch.setattr(sampling, "_sample_ours", few_by_ours)
    monkeypatch.setattr(sampling, "_report", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    names = reader(path.stem)
    for block in blocks_of(path, "python"):
        exec(compile(block, path.name, "exec"), names)


def has(text, section):
    return re.search(rf"^{section}\n-{{{len(section)}}}$", text, re.MULTILINE) is not None


# a table, a number and a module: `help` of these is their own kind's
NO_DEFINITION = {"FAMILY", "__version__", "plots"}
# made by the package, not by a user
RESULTS = {"Status"}
NO_PAPER = {"Status", "compare", "save", "load", "new_data"}
NO_PAPER |= {"select", "to_c", "to_onnx", "predict_interval"}
NAMES = sorted(set(pcvm_pymc.__all__) - NO_DEFINITION)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name):
    found = getattr(pcvm_pymc, name)
    text = inspect.getdoc(found)
    needed = {"Examples"}
    if name not in RESULTS:
        needed.add("Parameters")
    if not inspect.isclass(found):
        needed |= {"Returns", "Raises"}
    assert needed == {section for section in needed if has(text, section)}
    assert doctest.DocTestParser().get_examples(text)
    if name not in NO_PAPER:
        assert re.search(r"\b(19|20)\d\d\b", text), "no source"


# what PyMC hands a distribution or a step, and the constructor of an enumeration
TAKEN_BY_PYMC = {"ProbitBernoulli", "MultinomialProbit", "MarginalWeight", "MarginalBias"}
WITHOUT_A_SIGNATURE = {"PCVMGibbs", "Status", *TAKEN_BY_PYMC}


def names_in(text, section):
    found = re.search(rf"^{section}\n-+\n(.*?)(?=^[\w ]+\n-{{3,}}$|\Z)", text, re.M | re.S)
    lines = found[1].splitlines() if found else ()
    heads = [line.split(" : ")[0] for line in lines if line and not line[0].isspace()]
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_A_SIGNATURE))
def test_the_arguments_are_those_that_are_documented(name):
    found = getattr(pcvm_pymc, name)
    text, arguments = inspect.getdoc(found), set(inspect.signature(found).parameters)
    if name in RESULTS:
        assert arguments <= names_in(text, "Attributes")
    else:
        assert arguments == names_in(text, "Parameters")


CLASSES = [name for name in NAMES if inspect.isclass(getattr(pcvm_pymc, name))]


@pytest.mark.parametrize("name", CLASSES)
def test_what_help_shows_of_a_class_says_what_it_is(name):
    for attribute, value in inspect.getmembers(getattr(pcvm_pymc, name)):
        plain = getattr(value, "fget", None) or getattr(value, "__func__", value)
        own = (getattr(plain, "__module__", None) or "").startswith("pcvm_pymc")
        if attribute.startswith("_") or not (own and callable(plain)):
            continue
        text = inspect.getdoc(value) or ""
        assert re.match(r"[A-Z`].{8,}[.:]$", text.splitlines()[0] if text else ""), attribute


ESTIMATORS = [name for name in NAMES if name.endswith(("Classifier", "Regressor"))]


@pytest.mark.parametrize("name", ["PCVMClassifier", "MPCVMClassifier"])
def test_the_arguments_that_most_users_set_come_first(name):
    found = getattr(pcvm_pymc, name)
    order = list(inspect.signature(found).parameters)
    first = ["kernel", "width", "basis", "n_vectors", "estimation", "random_state"]
    assert order[:6] == first
    text = inspect.getdoc(found)
    section = re.search(r"^Parameters\n-+\n(.*?)^Attributes$", text, re.M | re.S)[1]
    heads = re.findall(r"^(\w[\w, ]*?)(?: : .*)?$", section, re.MULTILINE)
    assert [name for head in heads for name in head.split(", ")] == order


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_site_has_the_arguments_of_an_estimator_in_groups(name):
    pages, found = runpy.run_path(str(DOCS / "generate.py")), getattr(pcvm_pymc, name)
    text = "\n".join(pages["grouped"](inspect.getdoc(found).splitlines()))
    arguments = set(inspect.signature(found).parameters)
    groups = {each: set(names.split()) & arguments for each, names in pages["GROUPS"].items()}
    assert {each: names_in(text, each) for each in groups} == groups


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_methods_of_an_estimator_are_documented(name):
    for method, function in inspect.getmembers(getattr(pcvm_pymc, name), inspect.isroutine):
        if method.startswith("_") or not function.__module__.startswith("pcvm_pymc"):
            continue
        text = inspect.getdoc(function)
        for section in ("Parameters", "Returns", "Raises"):
            named = has(text, section) or (method, section) == ("from_projection", "Raises")
            assert named, (method, section)


def test_the_reference_has_every_public_name():
    page = "".join((DOCS / "api" / f"{name}.md").read_text() for name in ("index", "expert"))
    listed = re.findall(r"^   (\w+)$", page.split("## Modules")[0], re.MULTILINE)
    assert sorted(listed) == sorted(set(pcvm_pymc.__all__) - {"FAMILY", "__version__"})
    assert "`FAMILY`" in page
    for module in re.findall(r"^   ([a-z_]+\.[a-z_.]+)$", page, re.MULTILINE):
        assert importlib.import_module(f"pcvm_pymc.{module}").__doc__


@pytest.mark.parametrize("name", sorted(plots.__all__))
def test_a_picture_is_documented(name):
    text = inspect.getdoc(getattr(plots, name))
    assert has(text, "Parameters")
    assert has(text, "Returns")


def test_readme_is_a_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited[1] == heads[0] == pcvm_pymc.__version__


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")]), ids=lambda p: p.stem
)
def test_the_pages_links_are_there(path):
    """Links of a page written by hand; what the site makes of the repository is made when it is built."""
    made = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]
    if path.is_relative_to(DOCS / "generated") or path.is_relative_to(DOCS / "api" / "generated"):
        return
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        target = (path.parent / link).resolve()
        if target.parent == DOCS / "generated":
            target = ROOT / made[target.stem]
        if target.parent == DOCS / "notebooks":
            target = ROOT / "notebooks" / target.name
        assert target.exists(), link


def test_the_page_of_the_command_has_its_options(capsys):
    page = (DOCS / "guides" / "command.md").read_text()
    written = next(text for kind, text in BLOCK.findall(page) if "pcvm compare [" in text)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    usage = capsys.readouterr().out.split("\n\n")[0]
    both = (re.findall(r"--\w+[^\]\s]*", each) for each in (written, usage))
    assert set(next(both)) == set(next(both))


def test_no_merge_and_no_page_was_left_half_done():
    kinds = {".md", ".py", ".toml", ".css", ".ipynb", ".txt", ".yml", ".cff"}
    folders = ("pcvm_pymc", "docs", "tests", "notebooks", "benchmarks", ".ci")
    files = [p for each in folders for p in (ROOT / each).rglob("*") if "_build" not in p.parts]
    for path in (each for each in [*ROOT.iterdir(), *files] if each.suffix in kinds):
        # marks of a merge, or a word in capitals that a table was to replace
        left = r"^(<{7}|>{7}) " + (r"|^[A-Z_]{6,}$" if path.suffix == ".md" else "")
        assert not re.search(left, path.read_text(), re.MULTILINE), path


def test_the_paths_that_contributors_are_given_are_right():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {each for line in text.splitlines() for each in re.findall(r"[\w./-]+", line)}
    paths = {each for each in named if re.fullmatch(r"(\w+/)+(\w+\.(py|md))?|\.ci/\w+", each)}
    assert len(paths) > 50
    paths.remove("benchmarks/NAME.py")
    missing = {each for each in paths if not any((top / each).exists() for top in (ROOT, PACKAGE))}
    assert not missing


def test_no_file_has_more_than_500_lines_and_no_function_more_than_50_of_code():
    code_lines = runpy.run_path(str(ROOT / "benchmarks" / "size.py"))["code_lines"]
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 500, path
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef):
                parts = node.body[ast.get_docstring(node) is not None :] or node.body
                body = lines[parts[0].lineno - 1 : node.end_lineno]
                assert code_lines(textwrap.dedent("\n".join(body))) <= 50, (path, node.name)


FEW_DRAWS = {"draws": 50, "tune": 50, "chains": 2, "max_iter": 400, "random_seed": 0, "quiet": True}
HMC = {"basis": 5, "signs": "both", "width": "lognormal"}
WALKS = {
    "a fit works": pcvm_pymc.PCVMClassifier(random_state=0).fit,
    "a mode is found": lambda *data: find_map_em(pcvm_model(*data), progressbar=False),
    "a posterior is drawn": lambda *data: sample(pcvm_model(*data, **HMC), **FEW_DRAWS),
}


@pytest.mark.parametrize("title", WALKS)
def test_what_contributors_read_is_called_in_that_order(title):
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"## How {title}")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)
    pairs = [re.findall(r"`([\w.]+)` \(`([\w/]+\.py)`\)", step) for step in steps]
    named = [(name.rpartition(".")[2], path) for each in pairs for name, path in each]
    assert len(named) >= len(steps) >= 9
    codes = {}

    def follow(frame, event, _):
        if event == "call":
            codes.setdefault(id(frame.f_code), frame.f_code)

    rows = np.random.default_rng(0).normal(size=(60, 3))
    sys.setprofile(follow)
    try:
        WALKS[title](rows, rows[:, 0] > 0)
    finally:
        sys.setprofile(None)
    called = [(code.co_name, Path(code.co_filename)) for code in codes.values()]
    order = [called.index((name, PACKAGE / path)) for name, path in named]
    assert order == sorted(order), named


# words to retire, and what to write instead
RETIRED = {
    r"carr(y|ies|ied|ying)": "have, contain, transfer",
    r"(holds?|holding|held)(?![- _]out)": "has, keeps, contains, is true",
    r"(comes?|came|run|ends? at) (to )?rest": "converges, stops",
    r"looks? (at|of|again)|a look": "scan, inspect",
    r"(is|are|was) told|tells?( .{1,20})? apart": "receives, distinguishes",
    r"anew": "again, refit",
    r"beside": "next to, in addition to",
    r"of no account|for want of": "say it plainly",
    r"stands?( in)? (for|on)": "represents, is placed at",
    r"dear": "expensive",
    r"leaving one out": "leave-one-out",
    r"means of rows": "k-means centres",
    r"(a )?weights? of either sign": "unconstrained weights",
    r"cells?": "grid point (of a search), job (of a run)",
    r"millinats?": "nats",
    r"house of pieces": "say what changed",
    r"l(ie|ies|ay) elsewhere": "distributed",
    r"one's own": "user-defined",
}
WORDS = re.compile("|".join(rf"(?P<w{i}>\b{word}\b)" for i, word in enumerate(RETIRED)), re.I)
IMPORTING = [*ROOT.glob("[bdn]*/*.py"), *ROOT.glob("notebooks/*.ipynb")]


@pytest.mark.parametrize("path", IMPORTING, ids=lambda path: path.name)
def test_scripts_and_notebooks_find_what_they_import(path):
    source = path.read_text()
    if path.suffix == ".ipynb":
        cells = [each for each in json.loads(source)["cells"] if each["cell_type"] == "code"]
        source = "\n".join("".join(each["source"]).replace("%", "#") for each in cells)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pcvm_pymc"):
            exec(ast.unparse(node), {})


LINTED = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
LINTED = [*LINTED, *sorted(DOCS.glob("**/*.md"))]
GENERATED = {"generated", "_build", "notebooks"}
LINTED = [path for path in LINTED if not GENERATED & set(path.relative_to(ROOT).parts)]


def prose_of(text):
    """Return a page without code, formulas and addresses; lines stay where they are."""
    for kind in (r"^```.*?^```$", r"`[^`\n]*`", r"\]\([^)]*\)", r"^ {4}.*$"):
        text = re.sub(kind, lambda each: "\n" * each[0].count("\n"), text, flags=re.M | re.S)
    return text


def retired_words(text):
    """Return what to change, line by line."""
    advice = list(RETIRED.values())
    return [
        f"line {number}: {found[0]!r}: {advice[int(found.lastgroup[1:])]}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in WORDS.finditer(line)
    ]


def test_the_list_of_words_finds_them():
    text = "A row held out.\n```\nheld\n```\nIt holds `carried` beside it.\n"
    assert [each[:7] for each in retired_words(prose_of(text))] == ["line 5:", "line 5:"]


@pytest.mark.parametrize("path", LINTED, ids=lambda path: path.stem)
def test_pages_are_in_plain_words(path):
    found = retired_words(prose_of(path.read_text()))
    assert not found, "\n".join(found)


NARROW = 75  # columns of a line of code; longer ones run out of their box on the site


def code_lines(path):
    """Yield number and text of each line of code that a page, or the docstrings of a module, shows."""
    text = path.read_text()
    if path.suffix == ".md":
        for block in BLOCK.finditer(text):
            if block[1].startswith("{"):  # a directive
                continue
            yield from enumerate(block[2].splitlines(), text[: block.start(2)].count("\n") + 1)
        return
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if not documented or ast.get_docstring(node) is None:
            continue
        said = node.body[0].value
        for example in doctest.DocTestParser().get_examples(said.value):
            lines = [f">>> {each}" for each in example.source.splitlines()]
            yield from enumerate([*lines, *example.want.splitlines()], said.lineno + example.lineno)


def too_long(path):
    return [f"{path.name}:{i}: {line}" for i, line in code_lines(path) if len(line) > NARROW]


def test_a_long_line_of_code_is_found(tmp_path):
    long = "x = " + "1 + " * 20 + "1"
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(f"Text.\n\n```python\n{long[:60]}\n{long}\n```\n{long}\n")
    module.write_text(
        f'def f():\n    """Add.\n\n    >>> 1\n    1\n    >>> {long}\n    21\n    """\n'
    )
    assert too_long(page) == [f"page.md:5: {long}"]
    assert too_long(module) == [f"module.py:6: >>> {long}"]


PAGES_WITH_CODE = [path for path in LINTED if DOCS in path.parents or path.parent == ROOT]


@pytest.mark.parametrize("path", [*PAGES_WITH_CODE, PACKAGE], ids=lambda path: path.stem)
def test_lines_of_code_fit_their_box(path):
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    found = [line for each in files for line in too_long(each)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_begin_with_a_question_and_say_what_was_learned(path):
    cells = json.loads(path.read_text())["cells"]
    text = ["".join(each["source"]) for each in cells if each["cell_type"] == "markdown"]
    assert re.search(r"\*\*[A-Z][^*]+\?\*\*", text[0])
    assert any("## What was learned" in each for each in text[-2:])
    found = retired_words(prose_of("\n".join(text)))
    assert not found, "\n".join(found)


def texts_of(path):
    """Yield a module's docstrings, and the messages of its errors."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.Raise):
            parts = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
            yield from (each.value for each in parts if isinstance(each.value, str))


PLAIN_ROOMS = ("core", "estimators", "model", "inference", "assessment", "cli", "experiments")
PLAIN_ROOMS = (*PLAIN_ROOMS, "export", "figures.py")
HEAD = re.compile(r"^ *\w+ : .*$", re.MULTILINE)  # the name of an argument


@pytest.mark.parametrize("room", PLAIN_ROOMS)
def test_docstrings_and_errors_are_in_plain_words(room):
    files = sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / room]
    found = [
        f"{path.name}: {word}"
        for path in files
        for text in texts_of(path)
        for word in retired_words(prose_of(HEAD.sub("", text)))
    ]
    assert not found, "\n".join(found)


SHORT = "README.md", "benchmarks/README.md", "docs/*.md", "docs/tutorials/*.md", "docs/guides/*.md"


def sentence_lengths(text):
    """Return words of each sentence; one ends with its paragraph or item of a list, too."""
    text = re.sub(r"^\s*(\||#|:::|!\[|<!--).*$", "", prose_of(text), flags=re.M)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*:]|\d+\.)\s)", text)
    words = [each.split() for part in parts for each in re.split(r"[.?!:]\s|\.\)", part)]
    return [len(each) for each in words if len(each) > 2]


@pytest.mark.parametrize("pages", SHORT)
def test_sentences_are_short(pages):
    """On average below 18 words, tables and headings left out."""
    texts = [path.read_text() for path in ROOT.glob(pages) if path in LINTED]
    lengths = [each for text in texts for each in sentence_lengths(text)]
    print(f"{pages}: {np.mean(lengths):.1f} words in a sentence, {len(lengths)} sentences")  # noqa: T201
    assert np.mean(lengths) < 18
