"""Writes what documents show of the measurements: python -m replication.report.

From the records in docs/replication and docs/results it makes claims.md, the table of claims, four
pictures, and the blocks of numbers in README, report and guides. The words are written by hand.
"""

from __future__ import annotations

if __name__ == "__main__":
    import linattn_lab.startup  # noqa: F401  (before torch)

import dataclasses

from linattn_lab.script import parse_flags, run_script
from linattn_models.basics.files import replace_file
from replication.blocks import write_blocks
from replication.plots import draw_plots
from replication.published import FOLDER, read_published
from replication.tables import write_claims


@dataclasses.dataclass(frozen=True)
class Flags:
    """Make the tables and pictures of the replication report, and the numbers of documents."""


def main() -> None:
    """Writes claims.md, the pictures and the blocks of numbers."""
    evidence = read_published()
    replace_file(FOLDER / "claims.md", write_claims(evidence).encode())
    written = [FOLDER / "claims.md", *draw_plots(evidence, FOLDER / "figures")]
    written += write_blocks(evidence)
    print("\n".join(f"written: {file}" for file in written))


if __name__ == "__main__":
    parse_flags(Flags, description=__doc__)
    run_script(main)
