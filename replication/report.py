"""Writes what docs/replication/report.md shows: python -m replication.report.

From the records in docs/replication it makes claims.md, the table of claims, and four pictures. The
report itself is written by hand.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path

from linattn_lab.script import parse_flags, run_script
from linattn_models.files import replace_file
from replication.plots import draw_plots
from replication.records import FOLDER, list_pictures, read_evidence
from replication.tables import write_claims


@dataclasses.dataclass(frozen=True)
class Flags:
    """Make the tables and pictures of the replication report."""

    folder: Path = FOLDER
    """Folder of the records, and of what is made of them."""


def main(flags: Flags) -> None:
    """Writes claims.md and the pictures."""
    evidence = read_evidence(flags.folder)
    pictures = list_pictures(flags.folder)
    replace_file(flags.folder / "claims.md", write_claims(evidence, pictures).encode())
    figures = draw_plots(evidence, flags.folder / "figures")
    print("\n".join(f"written: {file}" for file in (flags.folder / "claims.md", *figures)))


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
