"""The site: ``uv run --group docs sphinx-build -W --keep-going -b html docs docs/_build/html``."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from docutils import nodes  # noqa: E402
from docutils.parsers.rst import Directive, directives  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402
from generate import GROUPS, grouped, source_of, write_pages  # noqa: E402

import pcvm_pymc  # noqa: E402
from pcvm_pymc.estimators.base import KernelMachine  # noqa: E402

project = "pcvm_pymc"
author = "the authors of pcvm_pymc"
project_copyright = author
version = release = pcvm_pymc.__version__
repository = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"][
    "Repository"
]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates", "**/results"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc", "edit-this-page"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "icon_links": [{"name": "Repository", "url": repository, "icon": "fa-solid fa-code-branch"}],
    "use_edit_page_button": True,
}
# the theme asks for `file_name`; what is edited is the file that the page was made from
html_context = {"edit_page_url_template": repository + "/edit/main/{{ source or file_name }}"}
html_sidebars = {page: [] for page in ("index", "models", "choose", "glossary")}

nb_execution_mode = (
    "off"  # what is shown is what was committed; CI runs the notebooks by themselves
)
nb_output_stderr = "remove"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say the types, with shapes
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"  # long names are cut off beside a page
# types are words and shapes, of which no single one is a reference
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [(name, "params_style") for name in ("Attributes", "Warns", *GROUPS)]
html_math_renderer = "mathml"  # drawn by the browser itself: no script from elsewhere
default_role = "py:obj"
# a short name that several modules have: any of them says what it is
suppress_warnings = ["ref.python"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"


class Post(Directive):
    """Date and tags of a notebook, which begins as those of PyMC's gallery do."""

    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = {"tags": directives.unchanged, "category": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        text = " · ".join([*self.arguments, self.options.get("tags", "")]).strip(" ·")
        return [nodes.paragraph(text, text, classes=["post"])]


# what docutils' translation does not know, and what says the same
TEX = (
    (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
    (r"\\(begin|end)\{array\}(\{[lcr]*\})?", r"\\\1{matrix}"),
)


def write_math(self: Any, node: Any) -> None:
    """Write a formula as MathML."""
    source = node.astext().strip("$")
    for old, new in TEX:
        source = re.sub(old, new, source)
    if r"\\" in source and r"\begin" not in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    is_block = isinstance(node, nodes.math_block)
    text = tex2mathml(source, as_block=is_block)
    self.body.append(f'<div class="math">{text}</div>' if is_block else text)
    raise nodes.SkipNode


def skip_foreign(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn and PyMC give their subclasses, and modules' names with own pages."""
    if what == "module":
        return True if name in pcvm_pymc.__all__ and name != "FAMILY" else None
    if what != "class":
        return None
    if re.fullmatch(r"set_\w+_request|get_metadata_routing", name):
        return True
    plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
    module = getattr(plain, "__module__", None) or ""
    if callable(plain) and not module.startswith("pcvm_pymc"):
        return True
    return None


def put_example_first(
    app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]
) -> None:
    """Put the example of a class or function before its parameters, which may be many."""
    heads = {line: i for i, line in enumerate(lines[:-1]) if re.fullmatch("-{3,}", lines[i + 1])}
    if {"Examples", "Parameters"} <= set(heads) and heads["Parameters"] < heads["Examples"]:
        start, place = heads["Examples"], heads["Parameters"]
        end = min((i for i in heads.values() if i > start), default=len(lines))
        lines[:] = [*lines[:place], *lines[start:end], "", *lines[place:start], *lines[end:]]
    if what == "class" and issubclass(member, KernelMachine) and "Parameters" in heads:
        lines[:] = grouped(lines)


def say_source(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Say which file of the repository a page is made from, for its link to edit it."""
    context["source"] = source_of(name)


def setup(app: Any) -> None:
    """Write the pages that are made from the package."""
    app.add_directive("post", Post)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", put_example_first, priority=400)  # before napoleon
    app.connect("html-page-context", say_source)
    write_pages(HERE)
