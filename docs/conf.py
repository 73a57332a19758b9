"""How Sphinx builds the site: `python -m nox -s docs`.

Pages of the repository that live outside docs/ (READMEs, ARCHITECTURE.md) are included, not
copied; their links are turned into links of the site. Guides in notebook form are executed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import docutils.nodes
import latex2mathml.converter
import nbclient
from jupyter_cache import get_cache
from jupyter_cache.executors import utils as notebook_execution

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DOCUMENTED = (  # they import the others
    "linattn_models.training", "linattn_models.huggingface",
    "linattn_lab.batches", "linattn_lab.plots", "linattn_lab.script", "linattn_lab.tables",
)  # fmt: skip

project = "linattn"
author = "the authors of linattn"
project_copyright = f"2026, {author}"
extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon",
    "sphinx_copybutton", "sphinx_design",
]  # fmt: skip
copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor output
# Tables that other pages include are not pages of the site.
TABLE = "table.md"
exclude_patterns = ["README.md", f"results/**/{TABLE}", "results/costs/results.md"]
highlight_language = "none"  # what is Python says so
html_theme = "furo"
html_title = "linattn"
html_show_sphinx = False
html_math_renderer = "mathml"  # formulas need no network and no JavaScript
html_static_path = ["_static"]
html_css_files = ["site.css"]

default_role = "py:obj"
autodoc_typehints = "none"  # docstrings give shapes and dtypes, which annotations do not
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as one list

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs" / "executed")
nb_execution_timeout = 3_600  # a guard alone: a machine may be busy
nb_execution_raise_on_error = True
# No setting says how long a kernel may take to start: it would be 60 seconds.
notebook_execution.executenb = functools.partial(
    nbclient.execute, startup_timeout=nb_execution_timeout
)

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
INCLUDED = re.compile(r"^```\{include\} (\S+)", re.MULTILINE)
DOCUMENTED_NAME = re.compile(r"\.\. (currentmodule|autofunction|autoclass|autoexception):: (\S+)")
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example|Cost):")


@functools.cache
def pages() -> dict[Path, Path]:
    """The page that shows a file, for each file outside docs/ that is shown."""
    return {
        (page.parent / name).resolve(): page
        for page in DOCS.rglob("*.md")
        for name in INCLUDED.findall(page.read_text())
    }


def relink(text: str, source: Path) -> str:
    """The text of `source` with links as its page needs them; where the site has no page, none."""
    page = pages().get(source, source)

    def seen(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        path = (source.parent / target).resolve()
        path = pages().get(path, path)
        if DOCS not in path.parents or not path.is_file() or path.name == TABLE:
            return label
        return f"{mark}[{label}]({os.path.relpath(path, page.parent)}{anchor or ''})"

    return LINK.sub(seen, text)


def relink_included(app: Any, source: Path, page: str, content: list[str]) -> None:
    """Sphinx's event for an included file."""
    content[0] = relink(content[0], (Path(app.srcdir) / source).resolve())


def relink_page(app: Any, page: str, content: list[str]) -> None:
    """Sphinx's event for a page of docs/, which may be a notebook."""
    source = Path(app.env.doc2path(page))
    if source.suffix != ".ipynb":
        content[0] = relink(content[0], source)
        return
    notebook = json.loads(content[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = relink("".join(cell["source"]), source)
    content[0] = json.dumps(notebook)


def add_summary(app: Any, page: str, content: list[str]) -> None:
    """Sphinx's event for a page of the reference: a table of its names stands below the title."""
    if not page.startswith("reference/"):
        return
    module, names = "", []
    for directive, name in DOCUMENTED_NAME.findall(content[0]):
        module = name if directive == "currentmodule" else module
        if directive != "currentmodule":
            names.append(name if name.startswith("linattn_") else f"{module}.{name}")
    table = "\n".join(("```{eval-rst}", ".. autosummary::", "   :nosignatures:", ""))
    table += "".join(f"\n   ~{name}" for name in names) + "\n```\n"
    title, rest = content[0].split("\n", 1)
    content[0] = f"{title}\n\n{table}{rest}"


def equations_as_written(*event: Any) -> None:
    """An indented block that follows a paragraph of a docstring is shown as it is written."""
    lines: list[str] = event[-1]
    paragraph = ""
    for place in range(len(lines) - 1, 0, -1):
        before = next((line for line in reversed(lines[:place]) if line), "")
        starts = lines[place].startswith("    ") and not lines[place - 1]
        paragraph = before if starts else paragraph
        if starts and not before.startswith(" ") and not SECTION.fullmatch(before):
            lines[place - 1 : place] = ["", "::", ""]


def mathml(display: str) -> Any:
    """A writer of formulas, "inline" or "block"."""

    def visit(writer: Any, node: Any) -> None:
        writer.body.append(latex2mathml.converter.convert(node.astext(), display=display))
        raise docutils.nodes.SkipNode

    return visit, None


def prepare(app: Any) -> None:
    """What the processes of `--jobs` share: the database of executed guides, and the packages."""
    get_cache(nb_execution_cache_path).list_cache_records()
    for module in DOCUMENTED:
        importlib.import_module(module)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", prepare)
    app.add_html_math_renderer("mathml", mathml("inline"), mathml("block"))
    app.connect("include-read", relink_included)
    app.connect("source-read", relink_page)
    app.connect("source-read", add_summary)
    app.connect("autodoc-process-docstring", equations_as_written)
