"""The report as one page of HTML: nothing is loaded, nothing is run."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

TEMPLATE = Path(__file__).with_name("page.html")
VERDICT = re.compile(
    r"<td>((?:stale: )?)(confirmed in direction|confirmed|not confirmed|not run)((?:; [^<]*)?)</td>"
)
CLASSES = {
    "confirmed": "yes",
    "confirmed in direction": "partly",
    "not confirmed": "no",
    "not run": "open",
}
CAPTION_BELOW = re.compile(r"<p>(<figure>.*?</figure>)</p>\n<p><em>.*?</em></p>", re.DOTALL)
LINK_BESIDE = re.compile(r'<a href="(?!https?:|#)[^"]*">(.*?)</a>')


def page(text: str, plots: Mapping[str, str], folder: Path) -> str:
    """The page.

    Args:
        text: the report in Markdown, whose pictures are in `folder`.
        plots: SVG by name, for the pictures figures/NAME.svg.
    """

    def picture(_: RendererHTML, tokens: Sequence[Token], index: int, *others: object) -> str:
        """A picture as part of the page, with its caption."""
        source, words = Path(str(tokens[index].attrs["src"])), html.escape(tokens[index].content)
        if source.suffix == ".svg":
            label = f'<svg role="img" aria-label="{words}" '
            drawn = plots[source.stem].replace("<svg ", label, 1)
        else:
            data = base64.b64encode((folder / source).read_bytes()).decode()
            drawn = f'<img alt="{words}" src="data:image/png;base64,{data}">'
        return f"<figure>{drawn}<figcaption>{words}</figcaption></figure>"

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    rules: dict[str, Any] = {"image": picture, "heading_open": _heading}
    rules["table_open"] = lambda *_: '<div class="wide"><table>\n'
    rules["table_close"] = lambda *_: "</table></div>\n"
    for name, rule in rules.items():
        markdown.add_render_rule(name, rule)
    body = CAPTION_BELOW.sub(r"\1", markdown.render(text))
    # Links to documents beside the page would lead nowhere: the page stands alone.
    body = VERDICT.sub(_chip, LINK_BESIDE.sub(r"\1", body))
    title = html.escape(text.lstrip().partition("\n")[0].lstrip("# "))
    return (
        jinja2.Template(TEMPLATE.read_text(encoding="utf-8")).render(title=title, body=body) + "\n"
    )


def _heading(_: RendererHTML, tokens: Sequence[Token], index: int, *others: object) -> str:
    """A heading with the anchor that Sphinx and GitHub give it."""
    anchor = re.sub(r"[^\w\- ]", "", tokens[index + 1].content.lower()).replace(" ", "-")
    return f'<{tokens[index].tag} id="{anchor}">'


def _chip(match: re.Match[str]) -> str:
    stale, words, fault = match.groups()
    return f'<td class="{CLASSES[words]}{" stale" if stale else ""}">{stale}{words}{fault}</td>'
