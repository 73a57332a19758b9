"""The report as one page of HTML: nothing is loaded, nothing is run."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

VERDICT = re.compile(
    r"<td>((?:stale: )?)(confirmed in direction|confirmed|not confirmed|not run)((?:; [^<]*)?)</td>"
)
CLASSES = {
    "confirmed": "yes",
    "confirmed in direction": "partly",
    "not confirmed": "no",
    "not run": "open",
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 0 auto;
  padding: 0 1rem 4rem; background: Canvas; color: CanvasText; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.25; margin-top: 2.2rem; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .86rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { background: var(--quiet); }
td:first-child { min-width: 7rem; }
td { overflow-wrap: normal; }
pre { overflow-x: auto; background: var(--quiet); padding: .7rem; font-size: .82rem; }
code { font-size: .9em; }
figure { margin: 1.2rem 0; max-width: 40rem; background: #fff; color: #222; padding: .4rem; }
figcaption { font-size: .9rem; }
figure svg, figure img { width: 100%; height: auto; display: block; }
figure img { image-rendering: pixelated; }
.yes, .partly, .no, .open { white-space: nowrap; font-weight: 600; }
.yes { color: #1a7f37; } .partly { color: #9a6700; } .no { color: #cf222e; } .open { opacity: .6; }
.stale { opacity: .75; font-weight: 400; font-style: italic; }
"""


def page(text: str, plots: Mapping[str, str], folder: Path) -> str:
    """The page.

    Args:
        text: the report in Markdown, whose pictures are in `folder`.
        plots: SVG by name, for the pictures figures/NAME.svg.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule("image", _picture(plots, folder))
    markdown.add_render_rule("table_open", _before('<div class="wide"><table>\n'))
    markdown.add_render_rule("table_close", _before("</table></div>\n"))
    markdown.add_render_rule("heading_open", _heading)
    body = markdown.render(text)
    body = re.sub(
        r"<p>(<figure>.*?</figure>)</p>\n<p><em>.*?</em></p>", r"\1", body, flags=re.DOTALL
    )
    # Links to documents beside the page would lead nowhere: the page stands alone.
    body = re.sub(r'<a href="(?!https?:|#)[^"]*">(.*?)</a>', r"\1", body)
    body = VERDICT.sub(_chip, body)
    title = html.escape(text.lstrip().partition("\n")[0].lstrip("# "))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _before(words: str) -> Any:
    def rule(*arguments: object) -> str:
        return words

    return rule


def _picture(plots: Mapping[str, str], folder: Path) -> Any:
    """A picture as part of the page, with its caption."""

    def rule(_: RendererHTML, tokens: Sequence[Token], index: int, *others: object) -> str:
        token = tokens[index]
        source, words = Path(str(token.attrs["src"])), html.escape(token.content)
        if source.suffix == ".svg":
            label = f'<svg role="img" aria-label="{words}" '
            drawn = plots[source.stem].replace("<svg ", label, 1)
        else:
            data = base64.b64encode((folder / source).read_bytes()).decode()
            drawn = f'<img alt="{words}" src="data:image/png;base64,{data}">'
        return f"<figure>{drawn}<figcaption>{words}</figcaption></figure>"

    return rule


def _heading(renderer: RendererHTML, tokens: Sequence[Token], index: int, *others: object) -> str:
    """A heading with the anchor that Sphinx and GitHub give it."""
    anchor = re.sub(r"[^\w\- ]", "", tokens[index + 1].content.lower()).replace(" ", "-")
    return f'<{tokens[index].tag} id="{anchor}">'


def _chip(match: re.Match[str]) -> str:
    stale, words, fault = match.groups()
    return f'<td class="{CLASSES[words]}{" stale" if stale else ""}">{stale}{words}{fault}</td>'
