"""The numbers in README, report and guides: tables between markers, written from records.

    <!-- numbers: NAME, by `python -m nox -s report` -->
    <!-- end of numbers -->

What is between the markers is replaced; the words around it are a person's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from linattn_core.errors import expected, near, quote
from linattn_models.basics.files import replace_file
from replication.abstract import abstract
from replication.cost_tables import costs
from replication.counts import count_verdicts
from replication.experiments import ROOT
from replication.paper_tables import bits, copy, lengths, speech, speech_trainings, speedups
from replication.published import RESULTS
from replication.records import Evidence, mark_older
from replication.speed_tables import anywhere, gpu, speed

DOCUMENTS = (
    "README.md", "docs/images.md", "docs/replication/report.md", "packages/linattn-cuda/README.md",
    "docs/results/attentions/README.md", "docs/results/copy_task/README.md",
    "docs/results/conversion/README.md", "docs/results/speech/README.md", "docs/text.md",
    "docs/costs.md", "docs/anywhere.md",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+), by [^>]*-->\n).*?(<!-- end of numbers -->)", re.S)


def write_blocks(evidence: list[Evidence]) -> list[Path]:
    """Fills the blocks of every document; returns the documents."""
    documents = [ROOT / name for name in DOCUMENTS]
    for document in documents:
        replace_file(document, fill_blocks(document.read_text("utf-8"), evidence).encode())
    return documents


def fill_blocks(text: str, evidence: list[Evidence]) -> str:
    """Returns a document with its blocks written anew."""

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in BLOCKS:
            raise ValueError(expected("numbers", "a block's name", quote(name), near(name, BLOCKS)))
        return f"{begin}{BLOCKS[name](evidence).strip()}\n{end}"

    return BLOCK.sub(fill, text)


def published(folder: str) -> Callable[[list[Evidence]], str]:
    """A block that is the table which an application has published; older days are marked."""
    return lambda evidence: mark_older((RESULTS / folder / "table.md").read_text("utf-8"), evidence)


BLOCKS: dict[str, Callable[[list[Evidence]], str]] = {
    **{
        x.__name__: x
        for x in (abstract, anywhere, bits, copy, costs, gpu, lengths, speech, speed, speedups)
    },
    "verdicts": count_verdicts,
    "trained-on-speech": speech_trainings,
    "demo": published("demo"),
    "compared-on-copies": published("copy_task"),
    "compared-on-digits": published("attentions"),
    "compared-on-text": published("text_generation"),
    "converted-characters": published("conversion/characters"),
    "converted-sentences": published("conversion/sentences"),
}
