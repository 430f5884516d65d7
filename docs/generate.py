"""Pages that the site makes from the package and its tests: nothing in them is written by hand."""

import base64
import inspect
import io
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from pydoc import locate
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
import test_contract as contract  # noqa: E402
from matplotlib.image import imread, imsave  # noqa: E402

from pcvm_pymc import FAMILY  # noqa: E402

# a notebook of the gallery: what to say of it, and which of its pictures stands for it
NOTEBOOKS = {
    "01_map_and_posterior": ("A first model, its mode by EM, its posterior, and both compared", -2),
    "02_posterior_and_projection": ("Which prior, what a mode hides, and back to few vectors", -1),
    "03_rvm_family": ("Relevance vector machine, RVM*, sparse probit, and four ways to a width", 1),
    "04_many_classes": ("Three classes and more, by EM, from the bottom up, and sampled", 0),
    "05_reproducing_the_papers": ("Some of the tables and figures of five papers, run again", 0),
    "06_which_features": ("A width for each feature: relevance and its spread over folds", 0),
    "07_own_terms": ("Intercepts by group, partially pooled, from a data frame to new rows", -2),
    "hyperprior_comparison": ("Accuracy against number of vectors over 17 real sets", -2),
}
# links between files of the repository, as they are on the site
LINKS = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/": "../",
    "benchmarks/README.md": "benchmarks.md",
    "notebooks/": "../notebooks/",
}
#: pages that are files of the repository
PAGES = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "benchmarks": "benchmarks/README.md",
}
#: arguments of estimators as their pages group them
GROUPS = {
    "Kernel and width": "kernel width basis features scale cv",
    "What is fitted": "estimation n_vectors likelihood link hyperprior prior gamma bias noise std star",
    "Solver": "method options memory_limit random_state verbose",
    "Data": "categorical_features class_weight",
}
NOTEBOOK_LINK = ("](../benchmarks/README.md)", "](../generated/benchmarks.md)")
# what the contract tests of a row show, in the words of a user
CONTRACT = {
    "PyMC": {
        "test_the_cores_log_posterior_is_the_models": "`compile_logp` is the core's log posterior",
        "test_em_on_a_model_is_that_of_the_core_and_its_value_the_models": "`find_map_em`, `EMStep`",
        "test_predictions_are_pymcs_and_survive_the_store": "`set_data` and "
        "`sample_posterior_predictive`; `predict`, `save`, `load`",
    },
    "ArviZ": {
        "test_arviz_takes_draws_and_their_log_likelihood": "`summary`, `loo` after `compute_log_likelihood`",
    },
    "scikit-learn": {
        "test_an_estimator_is_the_model_route": "the estimator is the model",
        "test_rows_in_chunks_end_where_rows_in_memory_do": "rows in chunks end where rows in memory do",
    },
}


def write_pages(docs: Path) -> None:
    """Write all of them below ``docs/generated`` and ``docs/notebooks``, both unknown to git."""
    generated = docs / "generated"
    generated.mkdir(exist_ok=True)
    pages = {
        "family.inc": family_table(),
        "compatibility.inc": compatibility_tables(),
        "gallery.inc": gallery(docs),
        **{f"{page}.md": linked((ROOT / source).read_text()) for page, source in PAGES.items()},
    }
    for name, text in pages.items():
        write(generated / name, text)
    for picture in ("growth.png", "scale.png"):
        shutil.copy(ROOT / "benchmarks" / picture, generated)


def write(path: Path, text: str) -> None:
    """Write a page where it changed, so that Sphinx reads anew what is new."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def source_of(page: str) -> str:
    """Return the file of the repository that a page of the site is made from."""
    folder, _, name = page.rpartition("/")
    if folder == "generated":
        return PAGES[name]
    if folder == "notebooks":
        return f"{page}.ipynb"
    if folder != "api/generated":
        return f"docs/{page}.md"
    return str(Path(inspect.getfile(locate(name))).relative_to(ROOT))


def grouped(lines: Sequence[str]) -> list[str]:
    """Return the docstring of an estimator with its parameters in groups, each in the order that it has.

    Raises
    ------
    KeyError
        For an argument that no group has.
    """
    start = lines.index("Parameters")
    end = next(i for i in range(start + 2, len(lines)) if lines[i].startswith("---")) - 1
    group_of = {each: name for name, names in GROUPS.items() for each in names.split()}
    entries: list[list[str]] = []  # a head with the names of arguments, then its text
    for line in lines[start + 2 : end]:
        if line and not line[0].isspace():
            entries.append([])
        entries[-1].append(line)
    sections: dict[str, list[str]] = {name: [name, "-" * len(name)] for name in GROUPS}
    for head, *text in entries:
        names, *kind = head.split(" : ")
        for name, section in sections.items():
            if its := [each for each in names.split(", ") if group_of[each] == name]:
                section += [" : ".join([", ".join(its), *kind]), *text]
    filled = [[*section, ""] for section in sections.values() if len(section) > 2]
    return [*lines[:start], *chain.from_iterable(filled), *lines[end:]]


def linked(text: str) -> str:
    """Return the text of a file of the repository with its links as they are on the site."""
    for old, new in LINKS.items():
        text = text.replace(f"]({old}", f"]({new}").replace(f"](../{old}", f"]({new}")
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(each) + " |" for each in lines) + "\n"


def estimator_of(key: str) -> str:
    """Return the class that the contract lays beside a row's model, or none."""
    row = FAMILY[key]
    if key in contract.WITHOUT_A_MODEL:
        return "`MRVMClassifier`"
    prior = contract.PRIORS.get(row.priors[0], contract.PRIORS["gamma"])
    return f"`{type(contract.ESTIMATORS[key](contract.piece_of(row.likelihood), prior)).__name__}`"


def family_table() -> str:
    """Return the table of the family."""
    return table(
        [
            "row",
            "likelihoods",
            "priors of weights",
            "signs",
            "point estimate",
            "samplers",
            "estimator",
        ],
        (
            [
                f"**{row.name}** (`{key}`); {row.source}",
                ", ".join(row.likelihoods),
                ", ".join(row.priors),
                {"label_signs": "own label", "class_signs": "own class"}.get(
                    getattr(row.signs, "__name__", ""), "free"
                ),
                ", ".join(row.solvers),
                ", ".join(row.samplers),
                estimator_of(key),
            ]
            for key, row in FAMILY.items()
        ),
    )


def cases_of(test: str) -> dict[str, int]:
    """Return how many cases of each row a test of the contract runs over."""
    marks = (mark for mark in getattr(contract, test).pytestmark if mark.name == "parametrize")
    cases = next(mark.args[1] for mark in marks if "key" in mark.args[0])
    keys = [case.values[0] for case in cases]
    if test == "test_an_estimator_is_the_model_route":
        keys = [key for key in keys if key not in contract.WITHOUT_A_MODEL]
    return {key: keys.count(key) for key in FAMILY}


def compatibility_tables() -> str:
    """Return what of PyMC, ArviZ and scikit-learn the contract holds each row to."""
    parts = []
    for package, tests in CONTRACT.items():
        counts = {title: cases_of(test) for test, title in tests.items()}
        rows = [
            [row.name, *(f"✓ ({n[key]})" if n[key] else "–" for n in counts.values())]
            for key, row in FAMILY.items()
        ]
        parts.append(f"## {package}\n\n" + table(["row", *counts], rows))
    solvers = dict.fromkeys(chain.from_iterable((*r.solvers, *r.samplers) for r in FAMILY.values()))
    rows = [
        [
            row.name,
            *("✓" if each in (*row.solvers, *row.samplers) else "refused" for each in solvers),
        ]
        for row in FAMILY.values()
    ]
    parts.append("## Solvers and samplers\n\n" + table(["row", *(f"`{s}`" for s in solvers)], rows))
    return "\n".join(parts)


def gallery(docs: Path) -> str:
    """Copy the notebooks, write their thumbnails, and return a grid of cards."""
    folder, thumbnails = docs / "notebooks", docs / "generated" / "thumbnails"
    folder.mkdir(exist_ok=True)
    thumbnails.mkdir(exist_ok=True)
    lines = ["::::{grid} 1 2 2 3", ":class-container: thumbnails", ":gutter: 3", ""]
    for name, (text, picture) in NOTEBOOKS.items():
        notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
        write(folder / f"{name}.ipynb", json.dumps(notebook).replace(*NOTEBOOK_LINK))
        write_thumbnail(thumbnails / f"{name}.png", pictures_of(notebook)[picture])
        lines += [
            f":::{{grid-item-card}} {title_of(notebook)}",
            f":link: /notebooks/{name}",
            ":link-type: doc",
            f":img-top: /generated/thumbnails/{name}.png",
            f":img-alt: a picture of the notebook {name}",
            "",
            text,
            ":::",
            "",
        ]
    return "\n".join([*lines, "::::", ""])


def pictures_of(notebook: dict[str, Any]) -> list[bytes]:
    """Return the pictures that a notebook shows, in their order."""
    outputs = chain.from_iterable(cell.get("outputs", ()) for cell in notebook["cells"])
    found = (output.get("data", {}).get("image/png") for output in outputs)
    return [base64.b64decode("".join(each)) for each in found if each]


def write_thumbnail(path: Path, picture: bytes) -> None:
    """Write a picture, of a row of panels the first ones: up to the widest gap near a card's width."""
    image = imread(io.BytesIO(picture))
    height, width = image.shape[:2]
    ends = range(round(0.9 * height), min(round(1.75 * height), width))
    if width > 1.75 * height:
        blank = (image == image[0, 0]).all(axis=(0, 2))
        gaps = np.split(np.array(ends), np.flatnonzero(np.diff(blank[ends.start : ends.stop])) + 1)
        widest = max((gap for gap in gaps if blank[gap[0]]), key=len, default=[width])
        image = image[:, : widest[len(widest) // 2]]
    imsave(path, image)


def title_of(notebook: dict[str, Any]) -> str:
    """Return a notebook's first heading."""
    lines = chain.from_iterable("".join(c["source"]).splitlines() for c in notebook["cells"])
    return next(line for line in lines if line.startswith("# "))[2:]
