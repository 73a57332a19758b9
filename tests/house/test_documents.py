"""What the documents say exists: sessions, scripts, linked files; and their examples run."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PLACES = (
    "*.md", "[a-z]*/README.md", "[a-z]*/*/README.md", "docs/*.md", "docs/*/*.md",
    "docs/results/*/*.md",
)  # fmt: skip
GUIDES = sorted({path for place in PLACES for path in ROOT.glob(place)})
SESSION = re.compile(r"\bnox -s ([\w-]+)")
SCRIPT = re.compile(r"\bpython ((?:apps|benchmarks)/\S+\.py)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
FENCED = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
INCLUDED = re.compile(r"^```{include} (\S+)", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_EXAMPLES = [guide for guide in GUIDES if PYTHON.search(guide.read_text())]


def name(path: Path) -> str:
    """The document's path in the repository, to name the test."""
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    """The names of the sessions in noxfile.py."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        if any("nox.session" in ast.unparse(decorator) for decorator in function.decorator_list)
    }


def test_commands_exist(sessions: set[str]) -> None:
    def named(pattern: re.Pattern[str]) -> set[tuple[str, str]]:
        return {(name(guide), x) for guide in GUIDES for x in pattern.findall(guide.read_text())}

    assert {x for x in named(SESSION) if x[1] not in sessions} == set()
    assert {x for x in named(SCRIPT) if not (ROOT / x[1]).is_file()} == set()


def test_notebooks_have_links_that_lead_somewhere_and_no_outputs() -> None:
    for path in (ROOT / "docs").rglob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            targets = LINK.findall("".join(cell["source"])) if cell["cell_type"] != "code" else ()
            assert [x for x, _ in targets if not (path.parent / x).is_file()] == []
            assert not cell.get("outputs")


def test_links_lead_somewhere() -> None:
    links = [
        (guide, guide.parent / path if path else guide, anchor)
        for guide in GUIDES
        for path, anchor in LINK.findall(COMMENT.sub("", guide.read_text()))
    ]

    assert [(name(guide), path) for guide, path, _ in links if not path.exists()] == []
    pages = [x for x in links if x[2] and x[1].suffix == ".md"]
    known = {page: anchors(page) for _, page, _ in pages}
    assert [(name(x), path, anchor) for x, path, anchor in pages if anchor not in known[path]] == []


def anchors(page: Path) -> set[str]:
    """What a link to a heading of this page can end with: letters, digits and hyphens."""
    text = page.read_text()
    headings = HEADING.findall(FENCED.sub("", text))
    own = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return own.union(*(anchors(page.parent / path) for path in INCLUDED.findall(text)))


@pytest.mark.parametrize("guide", WITH_EXAMPLES, ids=name)
def test_examples_run(guide: Path, tmp_path: Path) -> None:
    # The examples of one document are one program: a later one uses the names of those before it.
    program = "\n".join(PYTHON.findall(guide.read_text()))

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
